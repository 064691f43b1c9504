//! Several ports of one process: addresses, lent buffers, groups, events.

use pmd_port::{BURST, MbufBatch, Port};

use crate::support::{
    Neighbours, assert_gone, counter, fresh, open, read_frame, receive, receive_at_least, send,
    write_frame,
};

#[test]
fn addresses_consist_of_prefix_zero_slot_and_generation() {
    let config = fresh("addresses");
    let first = open(&config);
    let second = open(&config);
    assert_eq!(first.capabilities().mac, [0x0e, 0xfd, 0, 0, 1, 1]);
    assert_eq!(second.capabilities().mac, [0x0e, 0xfd, 0, 0, 1, 2]);
    drop(first);
    let third = open(&config);
    assert_eq!(third.capabilities().mac, [0x0e, 0xfd, 0, 0, 2, 1]);
    assert_eq!(third.capabilities().device, config.segment);
    drop((second, third));
    assert_gone(&config);
}

#[test]
fn loans_are_published_in_allocation_order() {
    let config = fresh("loans");
    let (mut a, mut b) = (open(&config), open(&config));
    let (src, dst) = (a.capabilities().mac, b.capabilities().mac);
    let mut loans: Vec<_> = (0..4)
        .map(|serial| {
            let mut mbuf = a.alloc(dst).expect("room");
            write_frame(&mut mbuf, dst, src, serial, 100);
            mbuf
        })
        .collect();
    let mut batch = MbufBatch::new();
    batch.push(loans.remove(3)).expect("room");
    batch.push(loans.remove(1)).expect("room");
    assert_eq!(a.tx_burst(&mut batch), 2);
    assert!(
        receive(&mut b).is_empty(),
        "the first loan is not yet returned"
    );
    batch.push(loans.remove(0)).expect("room");
    assert_eq!(a.tx_burst(&mut batch), 1);
    assert_eq!(receive(&mut b), [(src, 0), (src, 1)]);
    a.free(loans.remove(0));
    assert_eq!(receive(&mut b), [(src, 3)]);
    assert_eq!(counter(&a, "void_slots_sent"), 1);
    assert_eq!(counter(&b, "void_slots_received"), 1);
}

#[test]
fn loan_window_is_bounded_and_the_newest_can_be_undone() {
    let config = fresh("window");
    let (mut a, b) = (open(&config), open(&config));
    let dst = b.capabilities().mac;
    let mut loans: Vec<_> = std::iter::from_fn(|| a.alloc(dst)).collect();
    assert_eq!(loans.len(), 64);
    while let Some(mbuf) = loans.pop() {
        a.free(mbuf);
    }
    assert_eq!(counter(&a, "void_slots_sent"), 0);
    assert_eq!(counter(&a, "ring_full"), 1);
    let loans: Vec<_> = std::iter::from_fn(|| a.alloc(dst)).collect();
    assert_eq!(loans.len(), 64);
    loans.into_iter().for_each(|mbuf| a.free(mbuf));
}

#[test]
fn group_frame_reaches_all_others_despite_a_full_ring() {
    let config = fresh("groups");
    let mut ports = [open(&config), open(&config), open(&config)];
    let group = [0x01, 0x10, 0x18, 0x01, 0x00, 0x02];
    let src = ports[0].capabilities().mac;
    for serial in 0..300 {
        let mut mbuf = ports[0].alloc(group).expect("a scratch buffer");
        write_frame(&mut mbuf, group, src, serial, 200);
        let mut batch = MbufBatch::new();
        batch.push(mbuf).expect("room");
        assert_eq!(ports[0].tx_burst(&mut batch), 1);
        let mut batch = MbufBatch::new();
        assert_eq!(ports[1].rx_burst(&mut batch, BURST), 1);
        let mbuf = batch.pop().expect("a frame");
        assert_eq!(read_frame(mbuf.bytes(), group), (src, serial));
        ports[1].free(mbuf);
    }
    // The third station never received: its ring of 256 is full.
    assert_eq!(counter(&ports[0], "drop_group_ring_full"), 300 - 256);
    assert!(receive(&mut ports[0]).is_empty(), "a copy to the sender");
    let mut batch = MbufBatch::new();
    assert_eq!(ports[2].rx_burst(&mut batch, BURST), BURST);
}

#[test]
fn unknown_destination_buffers_are_bounded_and_counted() {
    let config = fresh("unknown");
    let mut port = open(&config);
    let mut unknown_mac = port.capabilities().mac;
    unknown_mac[4] ^= 0x40;
    let mut loans: Vec<_> = std::iter::from_fn(|| port.alloc(unknown_mac)).collect();
    assert_eq!(loans.len(), 64, "scratch buffers are bounded");
    let mut batch = MbufBatch::new();
    for mut mbuf in loans.drain(..BURST) {
        mbuf.set_len(60);
        batch.push(mbuf).expect("room");
    }
    assert_eq!(port.tx_burst(&mut batch), BURST);
    assert_eq!(counter(&port, "drop_unknown_destination"), BURST as u64);
    for mbuf in loans {
        port.free(mbuf);
    }
    assert_eq!(std::iter::from_fn(|| port.alloc(unknown_mac)).count(), 64);
}

#[test]
fn left_is_reported_after_the_last_frame_and_before_the_successor() {
    let config = fresh("left");
    let (mut a, mut b) = (open(&config), open(&config));
    let dst = a.capabilities().mac;
    let mut neighbours = Neighbours::default();
    neighbours.update(&mut a);
    let old = neighbours.present[0];
    assert_eq!(old.mac, b.capabilities().mac);
    for serial in 0..5 {
        send(&mut b, dst, serial);
    }
    drop(b);
    neighbours.update(&mut a);
    assert_eq!(neighbours.present, [old], "frames are still to be received");
    let mut c = open(&config);
    for serial in 0..5 {
        send(&mut c, dst, 100 + serial);
    }
    neighbours.update(&mut a);
    assert_eq!(neighbours.present, [old]);
    let frames = receive_at_least(&mut a, 10);
    let new = c.capabilities().mac;
    let expected: Vec<_> = (0..5)
        .map(|serial| (old.mac, serial))
        .chain((100..105).map(|serial| (new, serial)))
        .collect();
    assert_eq!(frames, expected);
    neighbours.update(&mut a);
    assert_eq!(neighbours.left, [old]);
    assert_eq!(neighbours.present[0].mac, new);
    assert_ne!(new, old.mac);
    assert_eq!(new[5], old.mac[5], "the slot was used again");
}

/// A buffer lent to a station that left is neither sent nor overwritten by the next station, which has another slot.
#[test]
fn buffer_to_send_outlives_its_port_and_keeps_its_bytes() {
    let config = fresh("outlived");
    let (mut a, mut b) = (open(&config), open(&config));
    let (dst, old) = (a.capabilities().mac, b.capabilities().mac);
    let mut kept = b.alloc(dst).expect("room");
    write_frame(&mut kept, dst, old, 7, 200);
    drop(b);
    assert_eq!(read_frame(kept.bytes(), dst), (old, 7));
    let mut successor = open(&config);
    let new = successor.capabilities().mac;
    assert_ne!(new[5], old[5], "another slot");
    // Two laps of the ring.
    for serial in 0..600 {
        send(&mut successor, dst, serial);
        assert_eq!(receive(&mut a), [(new, serial)]);
    }
    assert_eq!(read_frame(kept.bytes(), dst), (old, 7));
    kept.buffer_mut().fill(1);
    drop((a, successor));
    // The slot stays locked until this process ends, and with it the segment.
    std::fs::remove_dir_all(config.segment_directory()).expect("the test's own segment");
}

#[test]
fn received_buffer_outlives_its_port_and_keeps_its_bytes() {
    let config = fresh("outlived-received");
    let (mut a, mut b) = (open(&config), open(&config));
    let (src, dst) = (a.capabilities().mac, b.capabilities().mac);
    send(&mut a, dst, 7);
    let mut batch = MbufBatch::new();
    assert_eq!(b.rx_burst(&mut batch, BURST), 1);
    let mut kept = batch.pop().expect("a frame");
    drop((a, b));
    assert_gone(&config);
    assert_eq!(read_frame(kept.bytes(), dst), (src, 7));
    kept.buffer_mut().fill(1);
}

/// Buffers of two segments have the same cookies. If a port accepted a foreign one, a slot would be lent twice.
#[test]
fn foreign_send_buffers_are_counted_and_not_lent_twice() {
    let (ours, theirs) = (fresh("ours"), fresh("theirs"));
    let (mut a, mut c) = (open(&ours), open(&theirs));
    let dst = a.capabilities().mac;
    assert_eq!(dst, c.capabilities().mac);
    let (kept, foreign) = (a.alloc(dst).expect("room"), c.alloc(dst).expect("room"));
    assert_eq!(kept.cookie(), foreign.cookie());
    a.free(foreign);
    let next = a.alloc(dst).expect("room");
    assert_ne!(next.bytes().as_ptr(), kept.bytes().as_ptr(), "lent already");
    let mut foreign = c.alloc(dst).expect("room");
    assert_eq!(next.cookie(), foreign.cookie());
    foreign.set_len(60);
    let mut batch = MbufBatch::new();
    batch.push(foreign).expect("room");
    assert_eq!(a.tx_burst(&mut batch), 1);
    assert_eq!(counter(&a, "foreign_buffers"), 2);
    a.free(next);
    a.free(kept);
    drop((a, c));
    assert_gone(&ours);
    // A buffer that was lent and never returned keeps its slot.
    std::fs::remove_dir_all(theirs.segment_directory()).expect("the test's own segment");
}

#[test]
fn foreign_received_buffers_are_counted_and_free_nothing() {
    let (ours, theirs) = (fresh("ours"), fresh("theirs"));
    let (mut a, mut c) = (open(&ours), open(&theirs));
    let dst = a.capabilities().mac;
    let take_one = |port: &mut dyn Port| {
        send(port, dst, 1);
        let mut batch = MbufBatch::new();
        assert_eq!(port.rx_burst(&mut batch, 1), 1);
        batch.pop().expect("a frame")
    };
    let (kept, foreign) = (take_one(&mut a), take_one(&mut c));
    assert_eq!(kept.cookie(), foreign.cookie());
    a.free(foreign);
    assert_eq!(counter(&a, "foreign_buffers"), 1);
    // As many frames as the ring holds, without overwriting the one that is still held.
    let mut batch = MbufBatch::new();
    let mut sent = 0;
    while sent < 1000
        && let Some(mut mbuf) = a.alloc(dst)
    {
        write_frame(&mut mbuf, dst, dst, sent, 60);
        batch.push(mbuf).expect("room");
        assert_eq!(a.tx_burst(&mut batch), 1);
        sent += 1;
    }
    assert!(sent < 1000, "the held frame blocks the ring");
    assert_eq!(read_frame(kept.bytes(), dst), (dst, 1));
    a.free(kept);
    drop((a, c));
    assert_gone(&ours);
    assert_gone(&theirs);
}

#[test]
fn frames_of_an_unreported_station_are_received() {
    let config = fresh("unseen");
    let mut a = open(&config);
    let dst = a.capabilities().mac;
    let mut b = open(&config);
    let src = b.capabilities().mac;
    send(&mut b, dst, 1);
    drop(b);
    assert_eq!(receive(&mut a), [(src, 1)]);
    let mut neighbours = Neighbours::default();
    neighbours.update(&mut a);
    assert!(neighbours.present.is_empty() && neighbours.left.is_empty());
}

#[test]
fn buffers_to_a_departed_station_are_freed_and_counted() {
    let config = fresh("retired");
    let (mut a, b) = (open(&config), open(&config));
    let dst = b.capabilities().mac;
    let mut loans: Vec<_> = (0..3).map(|_| a.alloc(dst).expect("room")).collect();
    drop(b);
    let successor = open(&config);
    let mut neighbours = Neighbours::default();
    neighbours.update(&mut a);
    assert_eq!(neighbours.present[0].mac, successor.capabilities().mac);
    let mut batch = MbufBatch::new();
    for mut mbuf in loans.drain(..2) {
        mbuf.buffer_mut().fill(7);
        mbuf.set_len(100);
        batch.push(mbuf).expect("room");
    }
    assert_eq!(a.tx_burst(&mut batch), 2);
    assert_eq!(counter(&a, "drop_station_left"), 2);
    a.free(loans.remove(0));
    assert_eq!(counter(&a, "foreign_buffers"), 0);
    let unknown = a.alloc(dst).expect("a scratch buffer");
    a.free(unknown);
}

#[test]
fn receive_is_fair_among_senders() {
    let config = fresh("fair");
    let mut receiver = open(&config);
    let dst = receiver.capabilities().mac;
    let mut senders = [open(&config), open(&config), open(&config)];
    for sender in &mut senders {
        for serial in 0..200 {
            send(sender, dst, serial);
        }
    }
    for _ in 0..10 {
        let frames = receive(&mut receiver);
        assert_eq!(frames.len(), BURST);
        for sender in &senders {
            let mac = sender.capabilities().mac;
            let share = frames.iter().filter(|(src, _)| *src == mac).count();
            assert!((10..=12).contains(&share), "{share} of {BURST}");
        }
    }
}
