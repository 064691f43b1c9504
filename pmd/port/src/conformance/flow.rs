//! Checks of buffer ownership and back-pressure.

use super::Pair;
use super::frames::{
    Deadline, MIN_FRAME_BYTES, alloc_for, flush, free_all, next_received, receive, send, serial_of,
    write_frame,
};
use crate::mbuf::{BURST, Mbuf, MbufBatch};
use crate::port::{MacBytes, Port, PortEvent};
use crate::rng::Rng;

/// More frames than any port queues for one slow receiver.
const MORE_THAN_ROOM: u32 = 200_000;

pub(super) fn freed_unsent_buffers_are_never_sent(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    for round in 0..500u32 {
        let mut batch = MbufBatch::new();
        let mut unsent = Vec::new();
        for at in 0..8 {
            let mut mbuf = alloc_for(&mut *a, b_mac);
            if (round >> (at % 3)) & 1 == at & 1 {
                write_frame(&mut mbuf, b_mac, a_mac, u32::MAX, MIN_FRAME_BYTES);
                unsent.push(mbuf);
            } else {
                let serial = round * 8 + batch.len() as u32;
                write_frame(&mut mbuf, b_mac, a_mac, serial, MIN_FRAME_BYTES);
                batch.push(mbuf).expect("eight frames fit");
            }
        }
        let count = batch.len() as u32;
        if round % 2 == 0 {
            flush(&mut *a, &mut batch);
            unsent.drain(..).for_each(|mbuf| a.free(mbuf));
        } else {
            unsent.drain(..).rev().for_each(|mbuf| a.free(mbuf));
            flush(&mut *a, &mut batch);
        }
        receive(&mut *b, a_mac, round * 8..round * 8 + count);
    }
}

pub(super) fn freeing_unsent_buffers_leaks_nothing(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let mut batch = MbufBatch::new();
    for round in 0..20_000 {
        let mbuf = alloc_for(&mut *a, b_mac);
        assert!(mbuf.is_empty(), "a lent buffer holds no frame");
        assert!(mbuf.capacity() >= a.capabilities().max_frame_bytes);
        a.free(mbuf);
        // The receiver polls now and then, since unsent buffers may leave slots for it to skip.
        if round % 16 == 0 {
            assert_eq!(b.rx_burst(&mut batch, BURST), 0);
        }
    }
    send(&mut *a, b_mac, 0..BURST as u32, MIN_FRAME_BYTES);
    receive(&mut *b, a_mac, 0..BURST as u32);
}

pub(super) fn received_buffers_keep_their_bytes_until_freed_in_any_order(
    make: &mut dyn FnMut() -> Pair,
) {
    let seed = 0x0F_EE_D5;
    eprintln!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let mut held: Vec<(u32, Mbuf)> = Vec::new();
    let mut batch = MbufBatch::new();
    for serial in 0..5_000u32 {
        let len_bytes = MIN_FRAME_BYTES + rng.below(150) as usize;
        send(&mut *a, b_mac, serial..serial + 1, len_bytes);
        let mbuf = next_received(&mut *b, &mut batch);
        assert_eq!(serial_of(mbuf.bytes(), b_mac, a_mac), serial);
        held.push((serial, mbuf));
        // Slots may be released in order only, so the oldest buffer is not held forever.
        while held.len() > 24 || held.first().is_some_and(|(oldest, _)| serial - oldest > 64) {
            let at = match held[0].0 {
                oldest if serial - oldest > 64 => 0,
                _ => rng.below(held.len() as u32) as usize,
            };
            let (expected, mbuf) = held.remove(at);
            assert_eq!(serial_of(mbuf.bytes(), b_mac, a_mac), expected);
            b.free(mbuf);
        }
    }
    for (expected, mbuf) in held.into_iter().rev() {
        assert_eq!(serial_of(mbuf.bytes(), b_mac, a_mac), expected);
        b.free(mbuf);
    }
    send(&mut *a, b_mac, 9_000..9_100, MIN_FRAME_BYTES);
    receive(&mut *b, a_mac, 9_000..9_100);
}

/// Sends frames with serial numbers from `first` on until the port has no free buffer;
/// returns how many it took.
fn fill(port: &mut dyn Port, dst: MacBytes, first: u32) -> u32 {
    let src = port.capabilities().mac;
    let mut taken = 0;
    let mut batch = MbufBatch::new();
    while taken < MORE_THAN_ROOM {
        let Some(mut mbuf) = port.alloc(dst) else {
            break;
        };
        write_frame(&mut mbuf, dst, src, first + taken, MIN_FRAME_BYTES);
        batch.push(mbuf).expect("an empty batch");
        if port.tx_burst(&mut batch) == 0 {
            break;
        }
        taken += 1;
    }
    free_all(port, &mut batch);
    taken
}

pub(super) fn full_receiver_blocks_the_sender_and_recovers(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let mut first = 0;
    for _ in 0..5 {
        let taken = fill(&mut *a, b_mac, first);
        assert!(taken >= BURST as u32, "room for {taken} frames only");
        let marker = first + taken;
        if a.capabilities().lossless {
            assert!(taken < MORE_THAN_ROOM, "no back-pressure");
            receive(&mut *b, a_mac, first..marker);
            send(&mut *a, b_mac, marker..marker + 1, MIN_FRAME_BYTES);
            receive(&mut *b, a_mac, marker..marker + 1);
        } else {
            send_until_received(&mut *a, &mut *b, first, marker);
        }
        first = marker + 1;
    }
    send(&mut *b, a_mac, 0..BURST as u32, MIN_FRAME_BYTES);
    receive(&mut *a, b_mac, 0..BURST as u32);
}

/// Receives the frames that were not lost, in increasing order, until a copy of the marker arrives.
fn send_until_received(from: &mut dyn Port, to: &mut dyn Port, first: u32, marker: u32) {
    let (src, dst) = (from.capabilities().mac, to.capabilities().mac);
    let deadline = Deadline::new("a frame after an overrun");
    let mut batch = MbufBatch::new();
    let mut next = first;
    while next <= marker {
        if to.rx_burst(&mut batch, BURST) == 0 {
            send(from, dst, marker..marker + 1, MIN_FRAME_BYTES);
            deadline.check();
        }
        while let Some(mbuf) = batch.pop() {
            let serial = serial_of(mbuf.bytes(), dst, src);
            let repeated = next == marker + 1 && serial == marker;
            // Markers of the previous round may arrive late.
            let late = first > 0 && serial == first - 1;
            assert!(
                repeated || late || (next..=marker).contains(&serial),
                "received {serial}, expected {next}..={marker}"
            );
            next = next.max(serial + 1);
            to.free(mbuf);
        }
    }
}

pub(super) fn unsent_frames_stay_in_the_batch_in_order(make: &mut dyn FnMut() -> Pair) {
    let (mut a, mut b) = make();
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    let (mut next, mut unsent) = (0u32, 0u32);
    let mut batch = MbufBatch::new();
    for _ in 0..2_000 {
        while batch.room() > 0
            && let Some(mut mbuf) = a.alloc(b_mac)
        {
            write_frame(&mut mbuf, b_mac, a_mac, next, MIN_FRAME_BYTES);
            batch.push(mbuf).expect("room was checked");
            next += 1;
        }
        let before = batch.len();
        let taken = a.tx_burst(&mut batch);
        assert_eq!(batch.len(), before - taken);
        unsent += taken as u32;
        if let Some(front) = batch.front() {
            assert_eq!(serial_of(front.bytes(), b_mac, a_mac), unsent, "order");
        }
        if taken == 0 || batch.len() == BURST {
            break;
        }
    }
    let deadline = Deadline::new("the remaining frames to be sent");
    while !batch.is_empty() {
        let mut received = MbufBatch::new();
        b.rx_burst(&mut received, BURST);
        free_all(&mut *b, &mut received);
        a.tx_burst(&mut batch);
        deadline.check();
    }
}

/// Frames to a station that left are dropped, and block no sender.
pub(super) fn departed_station_does_not_block_the_sender(make: &mut dyn FnMut() -> Pair) {
    let (mut a, b) = make();
    let b_mac = b.capabilities().mac;
    fill(&mut *a, b_mac, 0);
    drop(b);
    let mut events = Vec::new();
    for _ in 0..20 {
        a.upkeep();
        a.events(&mut events);
        send(&mut *a, b_mac, 0..BURST as u32, MIN_FRAME_BYTES);
    }
    let left = events.iter().filter_map(|event| match event {
        PortEvent::Left(neighbour) => Some(neighbour.mac),
        PortEvent::Joined(_)
        | PortEvent::MtuChanged(_)
        | PortEvent::RingFailed(_)
        | PortEvent::Unreachable(_)
        | PortEvent::Failed(_) => None,
    });
    let left: Vec<MacBytes> = left.collect();
    assert!(
        left.is_empty() || left == [b_mac],
        "{left:?} left, expected {b_mac:?}"
    );
    events.clear();
    assert!(
        !a.events(&mut events) && events.is_empty(),
        "reported twice"
    );
}
