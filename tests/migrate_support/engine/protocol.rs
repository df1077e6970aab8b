//! The model's answers to the protocol.

use seqshift::migrate::engine::{Captured, Counts, Engine, EngineError, Result, Source, Watched};
use seqshift::wire::manifest::{Manifest, SequenceKey, Tokens};
use seqshift::wire::message::{Detail, SequenceDetail, Sync};

use super::{BLOCK_SIZE, FakeEngine, Phase, Sequence, check_contents};
use crate::migrate_support::faults::Point;

impl Engine for FakeEngine {
    fn counts(&mut self) -> Result<Counts> {
        self.enter(Phase::Counts);
        self.fails(Point::Counts)?;
        Ok(Counts {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            free_kv_blocks: self.free.len() as u32,
            max_num_seqs: self.slots as u32,
            has_sync: !self.outgoing.is_empty() || !self.aborts.is_empty(),
        })
    }

    fn detail(&mut self) -> Result<Detail> {
        self.enter(Phase::Detail);
        self.fails(Point::Detail)?;
        let blocks = |tokens: usize| (tokens as u32).div_ceil(BLOCK_SIZE);
        let one = |s: &Sequence| SequenceDetail {
            key: s.key,
            kv_blocks: blocks(s.computed()),
            movable: true,
        };
        let promised = self.promised();
        Ok(Detail {
            running: self.running.iter().map(one).collect(),
            waiting_blocks: self
                .waiting
                .iter()
                .map(|s| blocks(s.prompt.len()))
                .collect(),
            free_kv_blocks: self.free.len().saturating_sub(promised) as u32,
            ..Detail::default()
        })
    }

    fn take_sync(&mut self, ranks: u32) -> Result<Vec<Sync>> {
        self.enter(Phase::Sync);
        let mut all = vec![Sync::default(); ranks as usize];
        for (key, one) in std::mem::take(&mut self.outgoing) {
            assert_ne!(key.origin, self.rank);
            all[key.origin as usize].returns.push(one);
        }
        let aborts = std::mem::take(&mut self.aborts);
        for (rank, sync) in (0..).zip(&mut all) {
            if rank != self.rank {
                sync.aborts.clone_from(&aborts);
            }
        }
        Ok(all)
    }

    fn accept_sync(&mut self, sync: Sync) -> Result<()> {
        self.enter(Phase::Sync);
        for one in sync.returns {
            let Some(name) = self.away.get(&one.key) else {
                assert!(self.aborted.contains(&one.key), "{:?}", one.key);
                continue;
            };
            let tokens = one.outputs.iter().flat_map(|o| &o.token_ids);
            self.results.get_mut(name).unwrap().extend(tokens);
            if one.done {
                self.finished.insert(name.clone());
                self.away.remove(&one.key);
            }
        }
        for key in sync.aborts {
            self.outgoing.remove(&key);
            self.remove(|s| s.key == Some(key));
        }
        Ok(())
    }

    fn capture(&mut self, source: Source) -> Result<Captured> {
        self.enter(Phase::Capture);
        self.fails(Point::Capture)?;
        let contradicts = self.faults.fires(Point::Manifest);
        let next = SequenceKey {
            origin: self.rank,
            serial: self.serial,
        };
        self.serial += 1;
        let sequence = self.at(source);
        assert!(!sequence.frozen, "captured twice");
        sequence.frozen = true;
        let computed = sequence.computed() as u32;
        let kv_blocks = computed.div_ceil(BLOCK_SIZE);
        Ok(Captured {
            blocks: sequence.blocks[..kv_blocks as usize].to_vec(),
            manifest: Manifest {
                key: *sequence.key.get_or_insert(next),
                request_id: sequence.name.clone(),
                hops: sequence.hops,
                prompt: Tokens(sequence.prompt.clone()),
                output: Tokens(sequence.output.clone()),
                sampling_params: sequence.length.to_le_bytes().to_vec(),
                eos_token_id: None,
                cache_salt: None,
                num_computed_tokens: computed,
                num_cached_tokens: 0,
                generator_state: None,
                kv_blocks: kv_blocks + u32::from(contradicts),
            },
        })
    }

    fn reserve(&mut self, manifest: &Manifest, ticket: Option<u32>) -> Result<Vec<u32>> {
        self.enter(Phase::Reserve);
        self.fails(Point::Reserve)?;
        let length = manifest.sampling_params.as_slice().try_into().unwrap();
        let mut sequence = Sequence {
            name: manifest.request_id.clone(),
            key: Some(manifest.key),
            prompt: manifest.prompt.0.clone(),
            output: manifest.output.0.clone(),
            length: u32::from_le_bytes(length),
            hops: manifest.hops + 1,
            blocks: Vec::new(),
            frozen: false,
            gone: false,
            preempted: 0,
        };
        if manifest.kv_blocks > 0 {
            let arriving = self.reserved.values().filter(|(s, _)| !s.output.is_empty());
            if self.running.len() + arriving.count() >= self.slots {
                return Err(EngineError("no slot".into()));
            }
            let held = ticket
                .and_then(|t| self.prepared.get(&t))
                .map_or(0, Vec::len);
            if self.free.len() + held < self.promised() + sequence.to_come() {
                return Err(EngineError("no blocks".into()));
            }
        }
        sequence.blocks = ticket.map_or_else(Vec::new, |t| self.prepared.remove(&t).unwrap());
        let more = manifest.kv_blocks as usize - sequence.blocks.len();
        let from = self.free.len() - more;
        sequence.blocks.extend(self.free.split_off(from));
        let mut blocks = sequence.blocks.clone();
        let twice = self.reserved.insert(manifest.key, (sequence, false));
        assert!(twice.is_none(), "reserved twice");
        if self.faults.fires(Point::Blocks) {
            blocks.pop();
        }
        Ok(blocks)
    }

    fn install(&mut self, key: SequenceKey) -> Result<()> {
        self.enter(Phase::Install);
        self.fails(Point::Install)?;
        let (_, installed) = self.reserved.get_mut(&key).unwrap();
        assert!(!std::mem::replace(installed, true), "installed twice");
        Ok(())
    }

    fn activate(&mut self, key: SequenceKey) -> Result<()> {
        self.commit();
        self.fails(Point::Activate)?;
        let (sequence, installed) = self.reserved.remove(&key).unwrap();
        assert!(installed);
        check_contents(&sequence, self.shard, &self.memory.lock().unwrap());
        if key.origin == self.rank {
            assert_eq!(self.away.remove(&key), Some(sequence.name.clone()));
            // Everything generated elsewhere came home before.
            assert_eq!(self.results[&sequence.name], sequence.output);
        }
        let has_kv = !sequence.output.is_empty();
        let list = if has_kv {
            &mut self.running
        } else {
            &mut self.waiting
        };
        list.push(sequence);
        Ok(())
    }

    fn release(&mut self, key: SequenceKey) -> Result<()> {
        self.commit();
        self.fails(Point::Release)?;
        let (sequence, _) = self.reserved.remove(&key).unwrap();
        self.free.extend(sequence.blocks);
        Ok(())
    }

    fn forget(&mut self, source: Source, to: u32) -> Result<()> {
        self.commit();
        self.fails(Point::Forget)?;
        let rank = self.rank;
        assert_ne!(to, rank);
        let sequence = self.at(source);
        assert!(std::mem::replace(&mut sequence.frozen, false) && !sequence.gone);
        sequence.gone = true;
        let (key, name) = (sequence.key.unwrap(), sequence.name.clone());
        let blocks = std::mem::take(&mut sequence.blocks);
        self.free.extend(blocks);
        assert!(!self.outgoing.contains_key(&key), "tokens left behind");
        if key.origin == rank {
            self.away.insert(key, name);
        }
        Ok(())
    }

    fn thaw(&mut self, source: Source) -> Result<()> {
        self.commit();
        self.fails(Point::Thaw)?;
        let sequence = self.at(source);
        assert!(std::mem::replace(&mut sequence.frozen, false), "not frozen");
        Ok(())
    }

    fn watch(&mut self, source: Source, ticket: u32) -> Result<Vec<u32>> {
        self.enter(Phase::Capture);
        self.fails(Point::Watch)?;
        let sequence = self.at(source);
        let (name, preempted) = (sequence.name.clone(), sequence.preempted);
        let full = full_blocks(sequence);
        self.watched.insert(ticket, (name, preempted));
        Ok(full)
    }

    fn watched(&mut self, ticket: u32) -> Result<Watched> {
        self.enter(Phase::Detail);
        self.fails(Point::Watched)?;
        let (name, preempted) = &self.watched[&ticket];
        let at = self.running.iter().position(|s| s.name == *name);
        Ok(match at.map(|at| (at, &self.running[at])) {
            Some((at, sequence)) if sequence.preempted == *preempted => Watched::Running {
                index: at as u32,
                full: full_blocks(sequence),
            },
            Some(_) => Watched::Gone("preempted".into()),
            None if self.waiting.iter().any(|s| s.name == *name) => {
                Watched::Gone("preempted".into())
            }
            None => Watched::Gone("ended".into()),
        })
    }

    fn prepare(&mut self, ticket: u32, blocks: u32) -> Result<Vec<u32>> {
        self.enter(Phase::Reserve);
        self.fails(Point::Prepare)?;
        let promised = self.promised();
        let held = self.prepared.entry(ticket).or_default();
        let more = blocks as usize - held.len();
        if self.free.len() < promised + more {
            return Err(EngineError("no blocks".into()));
        }
        held.extend(self.free.split_off(self.free.len() - more));
        Ok(held.clone())
    }

    fn dismiss(&mut self, ticket: u32) -> Result<()> {
        self.fails(Point::Dismiss)?;
        self.watched.remove(&ticket);
        self.free
            .extend(self.prepared.remove(&ticket).unwrap_or_default());
        Ok(())
    }
}

fn full_blocks(sequence: &Sequence) -> Vec<u32> {
    let full = sequence.computed() / BLOCK_SIZE as usize;
    sequence.blocks[..full].to_vec()
}
