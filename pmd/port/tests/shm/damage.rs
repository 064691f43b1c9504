//! Segment files that are removed, truncated or overwritten while ports are open.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use pmd_port::shm::{ShmConfig, ShmPort};
use pmd_port::{Port, PortEvent, PortFailure, WakeSource};

use crate::support::{
    Deadline, Neighbours, assert_gone, counter, files, fresh, open, receive, receive_at_least,
    send, try_send,
};

/// Block size in the segment's file (`layout.rs`): a header of two blocks, then the stations.
const BLOCK_BYTES: u64 = 128;
/// Distance from slot to slot in a ring.
const SLOT_BYTES: u64 = 2304;

fn file(config: &ShmConfig, name: &str) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(config.segment_directory().join(name))
        .expect("a file of the segment")
}

fn station_file(config: &ShmConfig, slot: usize) -> File {
    let start = format!("station-{slot}.");
    let names = files(config);
    let name = names.iter().find(|name| name.starts_with(&start));
    file(config, name.expect("the station's file"))
}

/// Runs upkeep until the port fails; returns the failure.
fn failure_of(port: &mut ShmPort) -> PortFailure {
    let deadline = Deadline::new("the port to fail");
    let mut events = Vec::new();
    loop {
        port.upkeep();
        port.events(&mut events);
        let failures: Vec<PortFailure> = events
            .iter()
            .filter_map(|event| match event {
                PortEvent::Failed(failure) => Some(*failure),
                PortEvent::Joined(_)
                | PortEvent::Left(_)
                | PortEvent::MtuChanged(_)
                | PortEvent::RingFailed(_)
                | PortEvent::Unreachable(_) => None,
            })
            .collect();
        if let [failure] = failures[..] {
            return failure;
        }
        deadline.check();
    }
}

/// Uses a failed port in every way; verifies that nothing is delivered and its failure is not reported again.
fn assert_inert(port: &mut ShmPort, other: [u8; 6]) {
    for serial in 0..2_000 {
        if !try_send(port, other, serial) {
            break;
        }
    }
    receive(port);
    if let WakeSource::Futex { .. } = port.arm() {
        port.disarm();
    }
    let mut events = Vec::new();
    for _ in 0..3 {
        port.upkeep();
        port.events(&mut events);
    }
    let failed = |event: &&PortEvent| matches!(event, PortEvent::Failed(_));
    assert_eq!(events.iter().filter(failed).count(), 0, "reported before");
}

fn two_ports(name: &str) -> (ShmConfig, [ShmPort; 2]) {
    let config = fresh(name);
    let mut ports = [open(&config), open(&config)];
    let [a, b] = &mut ports;
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    send(a, b_mac, 1);
    send(b, a_mac, 2);
    assert_eq!(receive_at_least(b, 1), [(a_mac, 1)]);
    assert_eq!(receive_at_least(a, 1), [(b_mac, 2)]);
    (config, ports)
}

/// Damages a segment; both ports fail with the expected failure, and the segment can be recreated after they are closed.
fn assert_all_ports_fail(name: &str, damage: impl FnOnce(&ShmConfig), expected: PortFailure) {
    let (config, [mut a, mut b]) = two_ports(name);
    let macs = [a.capabilities().mac, b.capabilities().mac];
    damage(&config);
    assert_eq!(failure_of(&mut a), expected);
    assert_eq!(failure_of(&mut b), expected);
    assert_inert(&mut a, macs[1]);
    assert_inert(&mut b, macs[0]);
    drop((a, b));
    let (mut c, mut d) = (open(&config), open(&config));
    send(&mut c, d.capabilities().mac, 3);
    assert_eq!(receive_at_least(&mut d, 1), [(c.capabilities().mac, 3)]);
    drop((c, d));
    assert_gone(&config);
}

#[test]
fn truncated_segment_fails_its_ports() {
    let truncate = |config: &ShmConfig| file(config, "segment").set_len(0).expect("shorter");
    assert_all_ports_fail("truncated", truncate, PortFailure::SegmentRemoved);
}

#[test]
fn removed_segment_fails_its_ports() {
    let remove =
        |config: &ShmConfig| std::fs::remove_dir_all(config.segment_directory()).expect("removed");
    assert_all_ports_fail("removed", remove, PortFailure::SegmentRemoved);
}

#[test]
fn overwritten_header_fails_the_ports() {
    let overwrite = |config: &ShmConfig| {
        let file = file(config, "segment");
        file.write_all_at(&[0xA5; 16], 8).expect("written");
    };
    assert_all_ports_fail("header", overwrite, PortFailure::SegmentDamaged);
}

#[test]
fn zeroed_segment_fails_its_ports() {
    let zero = |config: &ShmConfig| {
        let file = file(config, "segment");
        let bytes = file.metadata().expect("a file").len() as usize;
        file.write_all_at(&vec![0; bytes], 0).expect("written");
    };
    assert_all_ports_fail("zeros", zero, PortFailure::SegmentDamaged);
}

#[test]
fn station_with_truncated_rings_fails_and_leaves() {
    for touch_first in [false, true] {
        let (config, [mut a, mut b]) = two_ports("rings");
        let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
        let mut seen = Neighbours::default();
        seen.wait_for(&mut b, 1);
        station_file(&config, 0).set_len(0).expect("shorter");
        if touch_first {
            // Before any port has checked.
            for serial in 0..10 {
                try_send(&mut b, a_mac, serial);
            }
            assert!(receive(&mut a).is_empty());
        }
        assert_eq!(failure_of(&mut a), PortFailure::SegmentRemoved);
        assert_inert(&mut a, b_mac);
        // That it left is reported after its last frame was received.
        while !receive(&mut b).is_empty() {}
        seen.wait_for(&mut b, 0);
        // Its slot is not reused while it is open; the new station and the other one work.
        let mut c = open(&config);
        send(&mut c, b_mac, 7);
        assert_eq!(receive_at_least(&mut b, 1), [(c.capabilities().mac, 7)]);
        drop((a, b, c));
        assert_gone(&config);
    }
}

#[test]
fn station_marked_as_left_fails() {
    let (config, [mut a, mut b]) = two_ports("evicted");
    // The state word of the first station: its generation, without the live bit.
    let at = 2 * BLOCK_BYTES;
    let segment = file(&config, "segment");
    let mut word = [0; 8];
    segment.read_exact_at(&mut word, at).expect("read");
    let state = u64::from_ne_bytes(word) & !1;
    segment
        .write_all_at(&state.to_ne_bytes(), at)
        .expect("written");
    assert_eq!(failure_of(&mut a), PortFailure::SegmentDamaged);
    assert_inert(&mut a, b.capabilities().mac);
    b.upkeep();
    assert!(b.events(&mut Vec::new()));
    drop((a, b));
}

/// The ring between two stations is invalid: they lose each other, and no other station.
#[test]
fn damaged_ring_disconnects_only_its_two_stations() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Damage {
        /// The consumer's head.
        Head,
        /// A flag of the producer's.
        Flag,
    }
    for damage in [Damage::Head, Damage::Flag] {
        let (config, [mut a, mut b]) = two_ports("ring");
        let mut c = open(&config);
        let [a_mac, b_mac, c_mac] = [&a, &b, &c].map(|port| port.capabilities().mac);
        let mut seen = [(); 3].map(|()| Neighbours::default());
        seen[0].wait_for(&mut a, 2);
        seen[1].wait_for(&mut b, 2);
        seen[2].wait_for(&mut c, 2);
        // The ring from `a` (slot 0) in the file of `b` (slot 1) begins with the head.
        let rings = station_file(&config, 1);
        match damage {
            Damage::Head => {
                rings
                    .write_all_at(&u64::MAX.to_ne_bytes(), 0)
                    .expect("written");
                // The producer reads it when the ring seems full.
                let mut serial = 0;
                while try_send(&mut a, b_mac, serial) {
                    serial += 1;
                }
                assert!(!try_send(&mut a, b_mac, serial), "the ring is full");
            }
            Damage::Flag => {
                for serial in 0..3 {
                    send(&mut a, b_mac, serial);
                }
                // Frame 0 of `two_ports` was in slot 0.
                rings
                    .write_all_at(&[0; 8], BLOCK_BYTES + SLOT_BYTES)
                    .expect("written");
                assert!(receive(&mut b).is_empty());
            }
        }
        let (first, second) = match damage {
            Damage::Head => (&mut a, &mut seen[0]),
            Damage::Flag => (&mut b, &mut seen[1]),
        };
        second.wait_for(first, 1);
        assert_eq!(counter(first, "stations_cut_off"), 1);
        assert_eq!(second.present[0].mac, c_mac, "{damage:?}");
        // The third station sees both and exchanges frames with both.
        seen[2].wait_for(&mut c, 2);
        send(&mut c, a_mac, 9);
        assert_eq!(receive_at_least(&mut a, 1), [(c_mac, 9)]);
        send(&mut c, b_mac, 9);
        let got = receive_at_least(&mut b, 1);
        assert!(got.contains(&(c_mac, 9)), "{got:?}");
        // The next station in the slot of `a` starts with an empty ring.
        if damage == Damage::Flag {
            drop(a);
            seen[1].wait_for(&mut b, 1);
            let mut d = open(&config);
            seen[1].wait_for(&mut b, 2);
            for serial in 20..25 {
                send(&mut d, b_mac, serial);
            }
            let d_mac = d.capabilities().mac;
            let got = receive_at_least(&mut b, 5);
            assert_eq!(got, [20, 21, 22, 23, 24].map(|serial| (d_mac, serial)));
            b.upkeep();
            assert_eq!(counter(&b, "stations_cut_off"), 1, "once");
        }
    }
}
