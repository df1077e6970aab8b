//! Contract of an exchange that goes wrong: a failure of one rank's own copies fails only the moves
//! it concerns, and the peers' other moves are well; wrong bytes show in the digests; a failure of
//! the transport fails all moves of a rank, by the deadline at the latest, says why, and leaves
//! nothing that could touch the cache; afterwards a new communicator serves.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use seqshift::device::Stream;
use seqshift::ffi;
use seqshift::kv::{Move, Transfer, TransferError, TransferOptions};
use support::cache::Cache;
use support::fault::{Fault, Faults};
use support::pair::{Pair, all_is_well, errors};
use support::{LONG, deadline, group, runtime};

/// The digest of what is sent costs the peer no time.
#[test]
fn a_send_does_not_wait_for_the_copy_to_the_host() {
    let faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::new(&rank, true);
        rank.barrier.wait();
        if rank.rank == 0 {
            // Behind the gather of both moves.
            faults.rules().arm("aclrtMemcpyAsync", 2, 1, Fault::Stall);
        }
        rank.barrier.wait();
        // Calls of both ranks are counted.
        if rank.rank == 1 {
            faults.rules().await_hits(1);
        }
        let report = pair.exchange(&rank, deadline());
        if rank.rank == 1 {
            faults.rules().clear();
            assert_eq!(pair.arrived(), [true, true]);
        }
        assert_eq!(
            (report.broken.as_deref(), errors(&report)),
            (None, vec![None, None])
        );
    });
}

#[test]
fn a_refused_gather_fails_its_move_only() {
    let faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::new(&rank, false);
        rank.barrier.wait();
        if rank.rank == 0 {
            // The gather of both moves, and then that of the second one by itself.
            let refusal = || Fault::Return(i64::from(ffi::CANN_RT_INTERNAL));
            faults.rules().arm("aclrtMemcpyAsync", 1, 1, refusal());
            // A call that meets a rule is not counted by the next one.
            faults.rules().arm("aclrtMemcpyAsync", 2, 1, refusal());
        }
        rank.barrier.wait();
        let report = pair.exchange(&rank, deadline());
        assert_eq!(report.broken, None);
        if rank.rank == 0 {
            let [None, Some(error)] = errors(&report)[..] else {
                panic!("{report:?}")
            };
            assert!(
                error.starts_with("gather: ") && error.contains("507000"),
                "{error}"
            );
        } else {
            assert_eq!(errors(&report), [None, None]);
            assert_eq!(pair.arrived(), [true, false]);
        }
        all_is_well(&rank, &mut pair);
    });
}

#[test]
fn a_gather_that_fails_on_the_device_fails_the_moves_it_was_sent_with() {
    let faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::new(&rank, false);
        rank.barrier.wait();
        if rank.rank == 0 {
            let failure = Fault::FailTask(i64::from(ffi::CANN_RT_INTERNAL));
            faults.rules().arm("aclrtMemcpyAsync", 1, 1, failure);
        }
        rank.barrier.wait();
        let report = pair.exchange(&rank, deadline());
        assert_eq!(report.broken, None);
        let failed: Vec<_> = errors(&report).iter().map(Option::is_some).collect();
        assert_eq!(failed, [rank.rank == 0; 2]);
        all_is_well(&rank, &mut pair);
    });
}

#[test]
fn a_refused_scatter_fails_its_move_only() {
    let faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::new(&rank, false);
        rank.barrier.wait();
        if rank.rank == 0 {
            // After the gather the scatter of both moves, and then that of the first by itself.
            let refusal = Fault::Return(i64::from(ffi::CANN_RT_INTERNAL));
            faults.rules().arm("aclrtMemcpyAsync", 2, 2, refusal);
        }
        rank.barrier.wait();
        let report = pair.exchange(&rank, deadline());
        assert_eq!(report.broken, None);
        if rank.rank == 0 {
            assert_eq!(errors(&report), [None, None]);
        } else {
            let [Some(error), None] = errors(&report)[..] else {
                panic!("{report:?}")
            };
            assert!(error.starts_with("scatter: "), "{error}");
            assert_eq!(pair.arrived(), [false, true]);
        }
        all_is_well(&rank, &mut pair);
    });
}

#[test]
fn an_impossible_block_fails_its_move_only() {
    let _faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::new(&rank, true);
        let both: [&[u32]; 2] = if rank.rank == 0 {
            [&[0, 16], &[1]]
        } else {
            [&[8, 9], &[10]]
        };
        let moves = both.map(|blocks| Move {
            peer: 1 - rank.rank,
            blocks,
        });
        let to_myself = Move {
            peer: rank.rank,
            blocks: &[3],
        };
        let to_nobody = Move {
            peer: 2,
            blocks: &[3],
        };
        let ours = [to_myself, moves[0], to_nobody, moves[1]];
        let (outbound, inbound): (&[_], &[_]) = if rank.rank == 0 {
            (&ours, &[])
        } else {
            (&[], &moves)
        };
        let transfer = &mut pair.transfer;
        let report = transfer.exchange(&rank.communicator, outbound, inbound, deadline());
        assert_eq!(report.broken, None);
        if rank.rank == 0 {
            let [Some(myself), Some(block), Some(nobody), None] = errors(&report)[..] else {
                panic!("{report:?}")
            };
            assert_eq!(myself, "rank 0 is no peer of rank 0 of 2");
            assert_eq!(block, "block 16 is not one of the cache's 16 blocks");
            assert_eq!(nobody, "rank 2 is no peer of rank 0 of 2");
            assert_eq!(report.outbound[1].digest, None);
        } else {
            assert_eq!(errors(&report), [None, None]);
        }
        all_is_well(&rank, &mut pair);
    });
}

#[test]
fn wrong_bytes_show_in_the_digest_of_their_move() {
    let faults = Faults::begin();
    let reports = group(2, |rank| {
        let mut pair = Pair::new(&rank, true);
        rank.barrier.wait();
        if rank.rank == 0 {
            // In the second move's bytes.
            faults
                .rules()
                .arm("HcclBatchSendRecv", 1, 2, Fault::Corrupt(5000));
        }
        rank.barrier.wait();
        pair.exchange(&rank, deadline())
    });
    let digests = |index: usize| {
        let (sent, got) = (&reports[0].outbound[index], &reports[1].inbound[index]);
        assert!(sent.error.is_none() && got.error.is_none());
        (
            sent.digest.expect("computed"),
            got.digest.expect("computed"),
        )
    };
    let (sent, got) = digests(0);
    assert_eq!(sent, got);
    let (sent, got) = digests(1);
    assert_ne!(sent, got);
}

#[test]
fn a_stalled_link_fails_everything_by_the_deadline_and_a_new_communicator_serves() {
    let faults = Faults::begin();
    group(2, |mut rank| {
        let mut pair = Pair::new(&rank, true);
        rank.barrier.wait();
        if rank.rank == 0 {
            faults.rules().arm("HcclBatchSendRecv", 1, 0, Fault::Stall);
        }
        rank.barrier.wait();
        let start = Instant::now();
        let report = pair.exchange(&rank, start + Duration::from_millis(700));
        assert!(start.elapsed() < LONG / 2);
        let reason = report.broken.clone().expect("nothing has arrived");
        assert!(reason.contains("did not finish within"), "{reason}");
        assert_eq!(
            errors(&report),
            [Some(reason.as_str()), Some(reason.as_str())]
        );
        assert!(rank.communicator.is_broken());
        let again = pair.exchange(&rank, deadline());
        assert!(
            again
                .broken
                .is_some_and(|reason| reason.contains("earlier failure"))
        );
        rank.barrier.wait();
        faults.rules().clear();
        rank.reconnect();
        all_is_well(&rank, &mut pair);
    });
}

/// What is sent from the cache and received into it has no gather and no scatter to fail: what goes
/// wrong is the link's, or shows in the digest of the bytes that are in the cache.
#[test]
fn bytes_that_are_not_staged_are_verified_and_given_up_like_others() {
    let faults = Faults::begin();
    let reports = group(2, |mut rank| {
        let mut pair = Pair::direct(&rank);
        let moved = 2 * 4 * pair.length;
        rank.barrier.wait();
        if rank.rank == 0 {
            // A byte of what rank 1 receives in each round, which is one move.
            let corrupt = Fault::Corrupt(5000);
            faults.rules().arm("HcclBatchSendRecv", 1, 0, corrupt);
        }
        rank.barrier.wait();
        let damaged = pair.exchange(&rank, deadline());
        assert_eq!(damaged.direct, moved);
        // The link fails at both ends.
        rank.barrier.wait();
        if rank.rank == 0 {
            faults.rules().clear();
            let failure = Fault::FailTask(i64::from(ffi::CANN_RT_INTERNAL));
            faults.rules().arm("HcclBatchSendRecv", 1, 0, failure);
        }
        rank.barrier.wait();
        let report = pair.exchange(&rank, deadline());
        assert!(report.broken.is_some() && errors(&report).iter().all(Option::is_some));
        rank.barrier.wait();
        if rank.rank == 0 {
            faults.rules().clear();
            faults.rules().arm("HcclBatchSendRecv", 1, 0, Fault::Stall);
        }
        rank.reconnect();
        let start = Instant::now();
        let report = pair.exchange(&rank, start + Duration::from_millis(700));
        assert!(report.broken.is_some() && start.elapsed() < LONG / 2);
        rank.barrier.wait();
        faults.rules().clear();
        rank.reconnect();
        all_is_well(&rank, &mut pair);
        damaged
    });
    for (sent, got) in reports[0].outbound.iter().zip(&reports[1].inbound) {
        assert!(sent.error.is_none() && got.error.is_none());
        assert!(sent.digest.is_some() && got.digest.is_some());
        assert_ne!(sent.digest, got.digest);
    }
}

#[test]
fn a_deadline_that_has_passed_sends_nothing() {
    let _faults = Faults::begin();
    group(2, |rank| {
        let mut pair = Pair::new(&rank, false);
        let report = pair.exchange(&rank, Instant::now());
        assert!(report.broken.is_some());
        assert!(errors(&report).iter().all(Option::is_some));
        rank.barrier.wait();
    });
}

#[test]
fn a_peer_that_has_left_is_noticed_long_before_the_deadline() {
    let _faults = Faults::begin();
    group(2, |rank| {
        if rank.rank == 1 {
            drop(rank.communicator);
            rank.barrier.wait();
        } else {
            let mut pair = Pair::new(&rank, false);
            let start = Instant::now();
            let report = pair.exchange(&rank, deadline());
            assert!(report.broken.is_some());
            assert!(start.elapsed() < LONG / 2);
            rank.barrier.wait();
        }
    });
}

#[test]
fn staging_memory_that_cannot_be_had_is_an_error_before_anything_is_sent() {
    let faults = Faults::begin();
    let runtime = runtime(0);
    let stream = Stream::new(&runtime).expect("a stream");
    let cache = Cache::new(&stream, 0, 16, &[1024], 0);
    faults.arm(
        "aclrtMalloc",
        2,
        1,
        Fault::Return(i64::from(ffi::CANN_RT_DEVICE_OOM)),
    );
    let make = |bytes| {
        let options = TransferOptions::new(&runtime, bytes, false);
        // SAFETY: the cache outlives the transfer.
        unsafe { Transfer::new(&runtime, cache.layout.clone(), 2, options) }
    };
    let error = make(1 << 20).expect_err("there is no memory");
    let TransferError::Staging {
        bytes: 1_048_576,
        source,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(source.is_out_of_memory());
    assert!(error.to_string().contains("staging_mib"), "{error}");
    let error = make(1000).expect_err("too small");
    assert!(
        matches!(
            error,
            TransferError::TooSmall {
                bytes: 1000,
                ranks: 2
            }
        ),
        "{error}"
    );
    make(1 << 20).expect("now there is memory");
}

/// Both scatters are on the stream when the first one is found to have failed.
#[test]
fn what_was_behind_a_failed_scatter_counts_as_failed() {
    let failure = || Fault::FailTask(i64::from(ffi::CANN_RT_INTERNAL));
    for second in [failure(), Fault::Stall] {
        let faults = Faults::begin();
        // The calls of both ranks are counted: a scatter may come before the second gather.
        let gathered = AtomicBool::new(false);
        group(2, |rank| {
            let mut pair = Pair::in_rounds(&rank, false);
            rank.barrier.wait();
            if rank.rank == 0 {
                faults.rules().arm("aclrtMemcpyAsync", 3, 1, failure());
                // A call that meets a rule is not counted by the next one.
                faults.rules().arm("aclrtMemcpyAsync", 3, 1, second);
            }
            rank.barrier.wait();
            let until = Instant::now() + Duration::from_secs(5);
            let report = pair.exchange(&rank, until);
            assert_eq!(report.rounds, 2);
            assert!(
                Instant::now() < until + Duration::from_secs(5),
                "{report:?}"
            );
            if rank.rank == 0 {
                gathered.store(errors(&report) == [None, None], Ordering::Relaxed);
            }
            rank.barrier.wait();
            if rank.rank == 1 && gathered.load(Ordering::Relaxed) {
                let [Some(first), Some(_)] = errors(&report)[..] else {
                    panic!("{report:?} arrived {:?}", pair.arrived())
                };
                assert!(first.starts_with("scatter: "), "{first}");
            }
        });
    }
}
