//! Checks of single frames and bursts.

use super::Pair;
use super::frames::{
    Deadline, MIN_FRAME_BYTES, alloc_for, drops, flush, free_all, next_received, receive, send,
    serial_of, write_frame,
};
use crate::mbuf::{BURST, MbufBatch};

const GROUP_BIT: u8 = 1;

pub(super) fn capabilities_are_sane(make: &mut dyn FnMut() -> Pair) {
    let (a, b) = make();
    assert_ne!(a.capabilities().mac, b.capabilities().mac);
    for port in [&a, &b] {
        let capabilities = port.capabilities();
        assert!(!capabilities.driver.is_empty());
        assert!(!capabilities.device.is_empty());
        assert_eq!(capabilities.mac[0] & GROUP_BIT, 0, "a group address");
        assert!(capabilities.max_frame_bytes >= MIN_FRAME_BYTES);
    }
}

pub(super) fn invalid_addresses_are_rejected(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let own = a.capabilities().clone();
    for impossible in [[0; 6], [0x01, 0, 0, 0, 0, 1]] {
        a.change_address(impossible)
            .expect_err("not a station address");
        assert_eq!(*a.capabilities(), own);
    }
    send(&mut *b, own.mac, 0..1, MIN_FRAME_BYTES);
    receive(&mut *a, b.capabilities().mac, 0..1);
}

pub(super) fn empty_bursts_do_nothing(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let mut batch = MbufBatch::new();
    assert_eq!(a.tx_burst(&mut batch), 0);
    assert_eq!(a.rx_burst(&mut batch, BURST), 0);
    send(&mut *a, b.capabilities().mac, 0..1, MIN_FRAME_BYTES);
    assert_eq!(b.rx_burst(&mut batch, 0), 0);
    assert!(batch.is_empty());
    receive(&mut *b, a.capabilities().mac, 0..1);
}

pub(super) fn every_length_arrives_byte_for_byte(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let longest = a.capabilities().max_frame_bytes;
    let lengths = (MIN_FRAME_BYTES..=longest)
        .step_by(37)
        .chain((MIN_FRAME_BYTES..=longest.min(200)).step_by(1))
        .chain([longest - 1, longest]);
    for (serial, len_bytes) in (0..).zip(lengths) {
        send(&mut *a, b.capabilities().mac, serial..serial + 1, len_bytes);
        receive(&mut *b, a.capabilities().mac, serial..serial + 1);
    }
}

pub(super) fn bursts_arrive_in_order_both_ways(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    for round in 0..200u32 {
        let first = round * BURST as u32;
        let serials = first..first + 1 + round % BURST as u32;
        send(&mut *a, b_mac, serials.clone(), 64 + round as usize);
        send(&mut *b, a_mac, serials.clone(), 64);
        receive(&mut *b, a_mac, serials.clone());
        receive(&mut *a, b_mac, serials);
    }
}

pub(super) fn received_bursts_respect_max_and_room(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    send(&mut *a, b_mac, 0..BURST as u32 * 2, MIN_FRAME_BYTES);
    let deadline = Deadline::new("frames that were sent");
    let mut batch = MbufBatch::new();
    let mut received = 0u32;
    while received < BURST as u32 {
        let (before, max) = (batch.len(), 1 + received as usize % 3);
        let added = b.rx_burst(&mut batch, max);
        assert!(added <= max, "{added} frames where {max} were allowed");
        assert_eq!(batch.len(), before + added);
        received += added as u32;
        deadline.check();
    }
    while batch.room() > 0 {
        let before = batch.len();
        let added = b.rx_burst(&mut batch, BURST);
        assert_eq!(batch.len(), before + added);
        deadline.check();
    }
    assert_eq!(b.rx_burst(&mut batch, BURST), 0, "a full batch has no room");
    for expected in 0..BURST as u32 {
        let mbuf = batch.pop().expect("a full batch");
        assert_eq!(serial_of(mbuf.bytes(), b_mac, a_mac), expected);
        b.free(mbuf);
    }
    receive(&mut *b, a_mac, BURST as u32..BURST as u32 * 2);
}

pub(super) fn statistics_add_up(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let (before_a, before_b) = (a.stats(), b.stats());
    let mut bytes = 0u64;
    for serial in 0..300u32 {
        let len_bytes = MIN_FRAME_BYTES + serial as usize % 100;
        send(&mut *a, b_mac, serial..serial + 1, len_bytes);
        receive(&mut *b, a_mac, serial..serial + 1);
        bytes += len_bytes as u64;
    }
    let (after_a, after_b) = (a.stats(), b.stats());
    assert_eq!(after_a.tx_frames - before_a.tx_frames, 300);
    assert_eq!(after_a.tx_bytes - before_a.tx_bytes, bytes);
    assert_eq!(after_b.rx_frames - before_b.rx_frames, 300);
    assert_eq!(after_b.rx_bytes - before_b.rx_bytes, bytes);
    assert_eq!(after_a.rx_frames, before_a.rx_frames);
    assert_eq!(after_b.tx_frames, before_b.tx_frames);
    let mut names: Vec<_> = after_a.counters.iter().map(|c| c.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "two counters of one name");
}

/// A driver that knows the stations of its segment counts the drops; otherwise the frames are lost on the wire.
pub(super) fn unknown_destinations_do_not_affect_others(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let mut unknown_mac = b_mac;
    unknown_mac[5] ^= 0x5A;
    unknown_mac[4] ^= 0x33;
    let unknown_drops = |port: &dyn crate::Port| {
        let counters = port.stats().counters;
        counters
            .iter()
            .find(|counter| counter.name == "drop_unknown_destination")
            .map(|counter| counter.value)
    };
    let before = unknown_drops(&*a);
    send(&mut *a, unknown_mac, 0..1_000, MIN_FRAME_BYTES);
    if let (Some(before), Some(after)) = (before, unknown_drops(&*a)) {
        assert_eq!(after - before, 1_000);
    }
    send(&mut *a, b_mac, 5_000..5_010, MIN_FRAME_BYTES);
    receive(&mut *b, a_mac, 5_000..5_010);
}

pub(super) fn frames_to_own_address_are_delivered_or_counted(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let before = drops(&*a);
    let mut batch = MbufBatch::new();
    for serial in 0..8 {
        let mut mbuf = alloc_for(&mut *a, a_mac);
        write_frame(&mut mbuf, a_mac, a_mac, serial, 100);
        batch.push(mbuf).expect("eight frames fit");
    }
    flush(&mut *a, &mut batch);
    if drops(&*a) == before {
        receive(&mut *a, a_mac, 0..8);
    } else {
        assert_eq!(drops(&*a) - before, 8, "all or none");
    }
    // None of them reaches the neighbour.
    send(&mut *a, b_mac, 100..101, 100);
    let mut received = MbufBatch::new();
    let mbuf = next_received(&mut *b, &mut received);
    assert_eq!(serial_of(mbuf.bytes(), b_mac, a_mac), 100);
    b.free(mbuf);
    free_all(&mut *b, &mut received);
}
