use std::sync::Arc;

use super::*;
use crate::mbuf::{BURST, MbufBatch};
use crate::port::{MacBytes, Neighbour, Port, PortEvent};

const BROADCAST: MacBytes = [0xFF; 6];

fn send(port: &mut LoopbackPort, dst: MacBytes, mark: u8, len_bytes: usize) -> bool {
    let Some(mut mbuf) = port.alloc(dst) else {
        return false;
    };
    mbuf.buffer_mut()[..len_bytes].fill(mark);
    mbuf.set_len(len_bytes);
    let mut batch = MbufBatch::new();
    batch.push(mbuf).expect("an empty batch");
    port.tx_burst(&mut batch) == 1
}

fn marks(port: &mut LoopbackPort) -> Vec<u8> {
    let mut marks = Vec::new();
    let mut batch = MbufBatch::new();
    while port.rx_burst(&mut batch, BURST) > 0 {
        while let Some(mbuf) = batch.pop() {
            marks.push(mbuf.bytes()[0]);
            port.free(mbuf);
        }
    }
    marks
}

fn counter(port: &LoopbackPort, name: &str) -> u64 {
    let counters = port.stats().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.expect("a counter of this name").value
}

fn mac(port: &LoopbackPort) -> MacBytes {
    port.capabilities().mac
}

fn hub(count: u8) -> Vec<LoopbackPort> {
    LoopbackPort::hub(&LoopbackConfig::stations(count)).expect("a small hub")
}

#[test]
fn group_frame_reaches_every_other_station() {
    let mut ports = hub(5);
    assert!(send(&mut ports[2], BROADCAST, 9, 60));
    for (station, port) in ports.iter_mut().enumerate() {
        let expected: &[u8] = if station == 2 { &[] } else { &[9] };
        assert_eq!(marks(port), expected);
    }
}

#[test]
fn slow_receiver_does_not_affect_others() {
    let mut ports = hub(3);
    let (slow, quick) = (mac(&ports[1]), mac(&ports[2]));
    let mut waiting = 0u64;
    while send(&mut ports[0], slow, 1, 60) {
        waiting += 1;
    }
    assert_eq!(waiting, 256);
    assert_eq!(counter(&ports[0], "tx_no_room"), 1);
    for _ in 0..1_000 {
        assert!(send(&mut ports[0], quick, 2, 60));
        assert_eq!(marks(&mut ports[2]), [2]);
    }
    assert!(send(&mut ports[0], BROADCAST, 3, 60));
    assert_eq!(counter(&ports[0], "drop_group_no_room"), 1);
    assert_eq!(marks(&mut ports[2]), [3]);
    assert_eq!(marks(&mut ports[1]).len(), 256);
    assert!(send(&mut ports[0], slow, 4, 60));
    assert_eq!(marks(&mut ports[1]), [4]);
}

#[test]
fn receive_is_fair_among_senders() {
    let mut ports = hub(3);
    let receiver = mac(&ports[0]);
    for _ in 0..100 {
        assert!(send(&mut ports[1], receiver, 1, 60));
        assert!(send(&mut ports[2], receiver, 2, 60));
    }
    let mut batch = MbufBatch::new();
    let mut seen = [0u32; 3];
    for _ in 0..30 {
        assert_eq!(ports[0].rx_burst(&mut batch, 4), 4);
        while let Some(mbuf) = batch.pop() {
            seen[usize::from(mbuf.bytes()[0])] += 1;
            ports[0].free(mbuf);
        }
    }
    assert!(seen[1] >= 30 && seen[2] >= 30, "{seen:?}");
}

#[test]
fn join_and_leave_are_reported_once() {
    let mut ports = hub(3);
    let gone = mac(&ports[1]);
    let mut events = Vec::new();
    assert!(ports[0].events(&mut events));
    let joined = [1, 2].map(|at: usize| {
        PortEvent::Joined(Neighbour {
            mac: mac(&ports[at]),
            generation: 0,
        })
    });
    assert_eq!(events, joined);
    assert!(!ports[0].events(&mut events));

    let receiver = mac(&ports[0]);
    assert!(send(&mut ports[1], receiver, 7, 60));
    let source = ports[0].arm();
    drop(ports.remove(1));
    let slept = source.sleep(std::time::Duration::from_secs(20));
    assert_eq!(slept.expect("futex"), crate::wake::Slept::Woken);
    events.clear();
    assert!(ports[0].events(&mut events));
    let neighbour = Neighbour {
        mac: gone,
        generation: 0,
    };
    assert_eq!(events, [PortEvent::Left(neighbour)]);
    assert_eq!(marks(&mut ports[0]), [7], "sent before it left");
    assert!(send(&mut ports[0], gone, 8, 60));
    assert_eq!(counter(&ports[0], "drop_unknown_destination"), 1);
}

#[test]
fn received_buffer_outlives_its_sender() {
    let (mut a, mut b) = LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair");
    assert!(send(&mut a, mac(&b), 0x5A, 2172));
    drop(a);
    let mut batch = MbufBatch::new();
    assert_eq!(b.rx_burst(&mut batch, BURST), 1);
    let mbuf = batch.pop().expect("one frame");
    assert!(mbuf.bytes().iter().all(|&byte| byte == 0x5A));
    b.free(mbuf);
}

#[test]
fn foreign_buffers_are_counted() {
    let (mut a, mut b) = LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair");
    let (mut other, _peer) = LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair");
    let foreign = other.alloc(mac(&b)).expect("room");
    a.free(foreign);
    assert_eq!(counter(&a, "drop_foreign_buffer"), 1);

    assert!(send(&mut a, mac(&b), 1, 60));
    let mut batch = MbufBatch::new();
    assert_eq!(b.rx_burst(&mut batch, BURST), 1);
    assert_eq!(b.tx_burst(&mut batch), 1, "taken, but not sent");
    assert_eq!(counter(&b, "drop_foreign_buffer"), 1);
    assert!(marks(&mut a).is_empty());
    assert!(send(&mut a, mac(&b), 13, 13));
    assert_eq!(counter(&a, "drop_bad_length"), 1);
    assert!(marks(&mut b).is_empty());
}

#[test]
fn invalid_configurations_are_rejected() {
    let good = LoopbackConfig::default();
    let bad = [
        LoopbackConfig::stations(1),
        LoopbackConfig::stations(65),
        LoopbackConfig {
            frames_per_ring: 0,
            ..good.clone()
        },
        LoopbackConfig {
            max_frame_bytes: 59,
            ..good.clone()
        },
        LoopbackConfig {
            macs: vec![[2, 0, 0, 0, 0, 1]; 2],
            ..good.clone()
        },
        LoopbackConfig {
            macs: vec![[2, 0, 0, 0, 0, 1], BROADCAST],
            ..good.clone()
        },
    ];
    for config in bad {
        let error = LoopbackPort::hub(&config).expect_err("a bad configuration");
        assert!(!error.to_string().is_empty());
    }
    assert!(LoopbackPort::pair(&LoopbackConfig::stations(3)).is_err());
}

#[test]
fn foreign_buffer_does_not_change_the_lent_count() {
    let (mut ours, mut theirs) = (hub(2), hub(2));
    let dst = mac(&ours[1]);
    let mut kept = ours[0].alloc(dst).expect("room");
    let foreign = theirs[0].alloc(dst).expect("room");
    ours[0].free(foreign);
    assert_eq!(counter(&ours[0], "drop_foreign_buffer"), 1);
    // If it counted as returned, the memory of `kept` would be unmapped with the hub.
    drop(ours);
    kept.buffer_mut().fill(1);
    assert!(kept.buffer_mut().iter().all(|&byte| byte == 1));
}

#[test]
fn hub_with_queued_frames_only_is_unmapped_on_drop() {
    let mut ports = hub(2);
    let dst = mac(&ports[1]);
    assert!(send(&mut ports[0], dst, 1, 60));
    let mut batch = MbufBatch::new();
    let own = mac(&ports[0]);
    assert!(send(&mut ports[1], own, 2, 60));
    assert_eq!(ports[0].rx_burst(&mut batch, 1), 1);
    // Owned by the other station, and freed by its receiver.
    ports[0].free(batch.pop().expect("a frame"));
    let hub = Arc::downgrade(&ports[0].hub);
    drop(ports);
    assert!(hub.upgrade().is_none());
}
