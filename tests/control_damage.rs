//! Damage on the control channel is repaired where it can be and else bears the name of the rank
//! that it came from.

mod control_support;

use std::time::Duration;

use control_support::*;
use seqshift::collective::control::{ControlError, Tamper};
use seqshift::collective::fault::{Action, Fault};
use seqshift::wire::WireError;
use seqshift::wire::frame::Kind;

#[test]
fn damaged_stale_and_doubled_frames_change_nothing() {
    let _shared = shared();
    for fault in [
        "action=corrupt",
        "action=corrupt,times=3",
        "action=corrupt,nth=2,peer=0",
        "action=truncate",
        "action=version",
        "action=duplicate,times=9",
        "action=stale,nth=2,times=9",
        "action=reorder,nth=2,times=9",
        "action=delay,milliseconds=120",
    ] {
        let mut meshes = with_fault(3, &format!("rank=1,kind=Offer,{fault}"));
        for kind in [
            Kind::Load,
            Kind::Offer,
            Kind::Reply,
            Kind::Offer,
            Kind::Load,
        ] {
            let results = gather(meshes, kind);
            for (_, result) in &results {
                assert_eq!(*result.as_ref().unwrap(), whole(3), "{fault}");
            }
            meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
        }
    }
}

#[test]
fn lasting_damage_is_the_entry_of_its_rank() {
    let _shared = shared();
    let results = gather(
        with_fault(3, "rank=1,kind=Offer,peer=2,action=corrupt,times=4"),
        Kind::Offer,
    );
    for (rank, (mesh, result)) in results.iter().enumerate() {
        let entries = result.as_ref().unwrap();
        let damaged = entries.iter().position(Result::is_err);
        assert_eq!(damaged, (rank == 2).then_some(1));
        // The sender knows it too.
        let refused: &[u32] = if rank == 1 { &[2] } else { &[] };
        assert_eq!(mesh.refused(), refused);
        if let Some(from) = damaged {
            assert!(matches!(entries[from], Err(WireError::Checksum { .. })));
        }
    }
    let meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
    for (mesh, result) in gather(meshes, Kind::Offer) {
        assert_eq!(result.unwrap(), whole(3));
        assert!(mesh.refused().is_empty());
    }
}

#[test]
fn damaged_answers_change_nothing() {
    let _shared = shared();
    let answers = [
        "action=corrupt,times=9",
        "action=version",
        "action=drop",
        "action=duplicate,times=9",
        "action=stale,nth=2,times=9",
        "action=reorder,nth=2,times=9",
        "action=delay,milliseconds=120",
    ];
    for action in answers {
        for (kind, damage) in [("Ack", 0), ("Again", 2), ("Refused", 4)] {
            if kind == "Again" && action == "action=drop" {
                continue;
            }
            // What rank 1 sends is damaged so often, and so are the answers of rank 0.
            let mut meshes = with_fault(3, &format!("rank=0,kind={kind},{action}"));
            if damage > 0 {
                let text = format!("rank=1,kind=Offer,action=corrupt,times={damage}");
                let fault: Fault = text.parse().unwrap();
                meshes[1].set_tamper(fault.on(1).unwrap());
            }
            for round in [Kind::Offer, Kind::Load, Kind::Offer] {
                let results = gather(meshes, round);
                let lost = damage > 3
                    && round == Kind::Offer
                    && results[0].1.as_ref().unwrap()[1].is_err();
                for (rank, (mesh, result)) in results.iter().enumerate() {
                    let mut entries = result.as_ref().unwrap().clone();
                    if lost && rank != 1 {
                        entries[1] = whole(3).remove(1);
                    }
                    assert_eq!(entries, whole(3), "{kind}: {action}");
                    let refused: &[u32] = if lost && rank == 1 { &[0, 2] } else { &[] };
                    assert_eq!(mesh.refused(), refused, "{kind}: {action}");
                }
                meshes = results.into_iter().map(|(mesh, _)| mesh).collect();
            }
        }
    }
}

#[test]
fn answers_that_are_lost_for_good_end_at_the_deadline() {
    let _shared = shared();
    // Both copies; and a question, whose sender waits for the answer.
    for (fault, damage) in [
        ("Ack,action=drop,times=2", ""),
        ("Again,action=drop", "corrupt"),
    ] {
        let mut meshes = with_fault(2, &format!("rank=0,kind={fault}"));
        if !damage.is_empty() {
            let fault: Fault = format!("rank=1,kind=Load,action={damage}").parse().unwrap();
            meshes[1].set_tamper(fault.on(1).unwrap());
        }
        let results = everywhere(meshes, |rank, mut mesh| {
            mesh.all_gather(
                Kind::Load,
                &pattern(rank, 0, 9),
                later(Duration::from_secs(1)),
            )
        });
        let text = results[1].as_ref().unwrap_err().to_string();
        assert!(text.contains("rank 0"), "{fault}: {text}");
    }
}

/// Sets the exchange number of the next frame to a later one.
struct Early;

impl Tamper for Early {
    fn outgoing(&mut self, _: Kind, _: u32, mut frame: Vec<u8>) -> Vec<u8> {
        frame[8] += 1;
        frame
    }
}

#[test]
fn damaged_header_and_frames_from_the_future_end_the_exchange() {
    let _shared = shared();
    for header in [true, false] {
        let mut meshes = with_fault(2, "rank=1,kind=Offer,action=header");
        if !header {
            meshes[1].set_tamper(Box::new(Early));
        }
        let results = gather(meshes, Kind::Offer);
        let error = results[0].1.as_ref().unwrap_err();
        assert!(
            matches!(error, ControlError::Gone { rank: 1, .. }),
            "{error}"
        );
        let why = if header {
            "not a seqshift frame"
        } else {
            "exchange 2 in 1"
        };
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn lost_frame_ends_at_the_deadline() {
    let _shared = shared();
    let meshes = with_fault(2, "rank=1,kind=Load,action=drop");
    let results = everywhere(meshes, |_, mut mesh| {
        let result = mesh.all_gather(Kind::Load, b"x", later(Duration::from_millis(200)));
        (mesh, result)
    });
    for (rank, (_, result)) in (0..).zip(&results) {
        let error = result.as_ref().unwrap_err();
        assert!(
            matches!(error, ControlError::Timeout { ranks, .. } if ranks == &[1 - rank]),
            "{error}"
        );
    }
}

#[test]
fn faults_are_read_from_text() {
    let text = "rank=1,kind=offer,action=delay,milliseconds=250,nth=2,times=3,peer=0";
    let fault = Fault {
        rank: 1,
        kind: Kind::Offer,
        peer: Some(0),
        action: Action::Delay(Duration::from_millis(250)),
        nth: 2,
        times: 3,
    };
    assert_eq!(text.parse(), Ok(fault));
    for (text, blamed) in [
        ("rank=1,kind=Offer", "action is missing"),
        ("kind=Offer,action=drop", "rank is missing"),
        ("rank=1,action=drop", "kind is missing"),
        ("rank=x,kind=Offer,action=drop", "rank: \"x\" is no number"),
        (
            "rank=1,kind=Offers,action=drop",
            "kind: \"Offers\" is none of",
        ),
        (
            "rank=1,kind=Offer,action=lose",
            "action: \"lose\" is none of",
        ),
        (
            "rank=1,kind=Offer,action=drop,when=2",
            "unknown key \"when\"",
        ),
        ("rank", "\"rank\" is no key=value"),
    ] {
        let error = text.parse::<Fault>().unwrap_err();
        assert!(error.contains(blamed), "{error}");
    }
}
