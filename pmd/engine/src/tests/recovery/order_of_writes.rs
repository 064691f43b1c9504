//! RDMA writes behind a message that fails: at Reliable Reception nothing is processed after the
//! descriptor that generated the error (VIPL 2.4); at Reliable Delivery bytes may have been placed.

use vi_types::{AsyncError, ReliabilityLevel, Status, ViState};

use super::{RD, RR, TARGET, pair, withheld, write};
use crate::Counter;
use crate::testkit::net::{CLIENT, MS, SERVER};
use crate::testkit::{
    expected_events::{send_failed, sent},
    io::Event,
};

/// Sends a message that will fail, and a write whose frames all arrive first. Returns the number of bytes written.
fn placed_behind_a_failure(level: ReliabilityLevel, immediate: Option<u32>) -> usize {
    let (mut net, a, b) = pair(level);
    if immediate.is_some() {
        net.post_receive(SERVER, b, 0);
    }
    let frames = withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 3_000]);
        net.post(CLIENT, a, write(9_000, immediate));
    });
    // The second frame of the send arrives too; without it the write would be behind an unknown message.
    net.wire.cut = true;
    net.nodes[SERVER].io.vi(b).receives.clear();
    net.post_receive(SERVER, b, 2_000);
    if immediate.is_some() {
        net.post_receive(SERVER, b, 0);
    }
    for frame in &frames[1..] {
        net.inject(SERVER, frame);
    }
    net.wire.cut = false;
    net.advance(20 * MS);
    let log = net.log(SERVER, b);
    assert!(
        log.contains(&Event::Async(AsyncError::ConnectionLost)),
        "{log:?}"
    );
    assert_eq!(net.state(CLIENT, a), ViState::Error);
    let first = match level {
        RR => Status::REMOTE_DESCRIPTOR,
        _ => Status::FLUSHED,
    };
    let sends = net.log(CLIENT, a);
    let sends: Vec<&Event> = sends
        .iter()
        .filter(|event| matches!(event, Event::Sent(..)))
        .collect();
    assert_eq!(
        sends,
        [&send_failed(0, first), &send_failed(1, Status::FLUSHED)]
    );
    let region = &net.nodes[SERVER].io.regions[&TARGET].bytes;
    region.iter().filter(|byte| **byte != 0).count()
}

#[test]
fn nothing_is_written_behind_a_message_that_fails_at_reliable_reception() {
    for immediate in [None, Some(5)] {
        assert_eq!(placed_behind_a_failure(RR, immediate), 0, "{immediate:?}");
        assert!(
            placed_behind_a_failure(RD, immediate) > 0,
            "out of order at Reliable Delivery, {immediate:?}"
        );
    }
}

/// Frames of a write that are not placed out of order are retransmitted; the messages behind it are placed early.
#[test]
fn writes_are_placed_in_order_at_reliable_reception() {
    let (mut net, a, b) = pair(RR);
    for bytes in [3_000, 0, 3_000] {
        net.post_receive(SERVER, b, bytes);
    }
    let frames = withheld(&mut net, |net| {
        net.post_send(CLIENT, a, &[1; 3_000]);
        net.post(CLIENT, a, write(5_000, Some(5)));
        net.post_send(CLIENT, a, &[2; 3_000]);
    });
    net.wire.cut = true;
    for frame in &frames[1..] {
        net.inject(SERVER, frame);
    }
    let placed = |net: &crate::testkit::net::Net| {
        let region = &net.nodes[SERVER].io.regions[&TARGET].bytes;
        region.iter().filter(|byte| **byte != 0).count()
    };
    assert_eq!(placed(&net), 0);
    assert_eq!(net.count(SERVER, Counter::DropAheadWrite), 3);
    assert_eq!(net.count(SERVER, Counter::AheadPlaced), 3, "both sends");
    // The write is the next message: its out-of-order frames are placed, except the last one.
    net.inject(SERVER, &frames[0]);
    net.inject(SERVER, &frames[3]);
    net.inject(SERVER, &frames[4]);
    assert_eq!(placed(&net), 2_080);
    net.wire.cut = false;
    net.advance(20 * MS);
    assert_eq!(placed(&net), 5_000);
    assert_eq!(
        net.log(CLIENT, a),
        [sent(0, 3_000), sent(1, 5_000), sent(2, 3_000)]
    );
    assert_eq!(net.log(SERVER, b).len(), 3);
}
