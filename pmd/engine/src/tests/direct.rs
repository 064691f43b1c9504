//! RDMA operations without frames: parts, order, waiting, and what is sent in frames instead.

use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, WriteRequest};
use vi_types::{DIRECT_PART_BYTES, Pumped, ReliabilityLevel, Status, ViIndex};

use crate::testkit::expected_events::{send_failed, sent};
use crate::testkit::io::Send;
use crate::testkit::net::{CLIENT, Net, SERVER, read};
use crate::{Counter, Direct};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const PART: usize = DIRECT_PART_BYTES as usize;
/// Address and handle of a region of each node.
const REMOTE: (u64, u32) = (0x1000, 7);

/// Returns a connected pair whose client has this result of direct access.
fn pair(level: ReliabilityLevel, direct: Direct) -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair();
    let (a, b) = net.join(level);
    net.clear_logs();
    net.wire.trace.clear();
    for node in [CLIENT, SERVER] {
        net.nodes[node].io.register(REMOTE.1, REMOTE.0, 4 * PART);
    }
    net.nodes[CLIENT].io.direct = direct;
    (net, a, b)
}

fn write(len: usize) -> Send {
    Send {
        data: vec![1; len],
        remote: Some(REMOTE),
        ..Send::default()
    }
}

/// Takes the parts that were copied.
fn copied(net: &mut Net) -> Vec<(u64, usize)> {
    let parts = core::mem::take(&mut net.nodes[CLIENT].io.copied);
    let part = |(address, bytes)| (address - REMOTE.0, bytes as usize);
    parts.into_iter().map(part).collect()
}

#[test]
fn operation_is_copied_in_parts_and_completes_with_the_last() {
    for level in [UD, RD, RR] {
        let (mut net, a, _) = pair(level, Direct::Copied);
        for len in [1, 8, 5000, PART, PART + 1, 3 * PART] {
            let id = net.post(CLIENT, a, write(len));
            let starts = (0..len).step_by(PART);
            let parts: Vec<_> = starts.map(|at| (at as u64, PART.min(len - at))).collect();
            assert_eq!(copied(&mut net), parts, "{level:?}");
            assert_eq!(net.log(CLIENT, a), [sent(id, len as u32)]);
        }
        assert_eq!(net.count(CLIENT, Counter::DirectMessages), 6);
        let bytes = 1 + 8 + 5000 + PART + PART + 1 + 3 * PART;
        assert_eq!(net.count(CLIENT, Counter::DirectBytes), bytes as u64);
        assert_eq!(net.count(CLIENT, Counter::TxFrames), 0);
    }
}

#[test]
fn what_has_to_be_in_frames_is_not_copied() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level, Direct::Copied);
        for _ in 0..4 {
            net.post_receive(SERVER, b, 100);
        }
        let immediate = Send {
            immediate: Some(3),
            ..write(8)
        };
        for send in [immediate, write(0), read(REMOTE, 0)] {
            let (id, len) = (net.post(CLIENT, a, send.clone()), send.data.len());
            net.settle();
            assert_eq!(net.log(CLIENT, a), [sent(id, len as u32)]);
        }
        let send = net.post_send(CLIENT, a, b"a send");
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(send, 6)]);
        assert_eq!(copied(&mut net), []);
    }
}

#[test]
fn next_operation_is_whole_after_one_whose_memory_became_invalid() {
    let (mut net, a, _) = pair(UD, Direct::Copied);
    // Posted, and not yet carried out by `Net::pump`.
    let post = |net: &mut Net, send| net.nodes[CLIENT].io.post_send(a, send);
    let (first, second) = (post(&mut net, write(2 * PART)), post(&mut net, write(PART)));
    let pump = |net: &mut Net| net.act(CLIENT, |engine, io| engine.pump(0, a, 16, io));
    assert_eq!(pump(&mut net), Pumped::More);
    assert_eq!(copied(&mut net), [(0, PART)]);
    net.nodes[CLIENT].io.vi(a).sends[0].fault = Status::PROTECTION;
    net.pump(CLIENT);
    assert_eq!(copied(&mut net), [(0, PART)], "all of the second one");
    let failed = send_failed(first, Status::PROTECTION);
    assert_eq!(net.log(CLIENT, a), [failed, sent(second, PART as u32)]);
}

#[test]
fn reads_of_the_peer_are_answered_meanwhile() {
    let (mut net, a, b) = pair(RD, Direct::Copied);
    net.post(SERVER, b, read(REMOTE, 20_000));
    // The request arrives; its answer waits for the port.
    net.nodes[CLIENT].io.room = 0;
    net.settle();
    net.nodes[CLIENT].io.room = usize::MAX;
    for _ in 0..20 {
        net.nodes[CLIENT].io.post_send(a, write(PART));
    }
    for _ in 0..20 {
        net.act(CLIENT, |engine, io| engine.pump(0, a, 16, io));
    }
    let own = copied(&mut net).len();
    let answers = net.frames(CLIENT, ReadResponse).len();
    assert!(own >= 9 && answers >= 9, "{own} parts, {answers} frames");
}

#[test]
fn long_operation_waits_for_the_peer_in_bounded_time() {
    let (mut net, a, _) = pair(RD, Direct::NotYet);
    for len in [4096, 4096, PART] {
        net.nodes[CLIENT].io.post_send(a, write(len));
        let mut waits = 0;
        while net.frames(CLIENT, WriteRequest).is_empty() {
            net.act(CLIENT, |engine, io| engine.pump(0, a, 16, io));
            waits += 1;
        }
        assert!((500..2000).contains(&waits), "{waits}");
        net.settle();
        net.pump(CLIENT);
        net.settle();
        net.wire.trace.clear();
        assert_eq!(net.log(CLIENT, a).len(), 1);
    }
    // A short one does not wait.
    net.post(CLIENT, a, write(4095));
    assert_eq!(net.frames(CLIENT, WriteRequest).len(), 2);
    // One that waits is carried out as soon as the peer has handled the frames.
    net.wire.trace.clear();
    net.nodes[CLIENT].io.post_send(a, write(4096));
    net.act(CLIENT, |engine, io| engine.pump(0, a, 16, io));
    net.nodes[CLIENT].io.direct = Direct::Copied;
    net.pump(CLIENT);
    assert_eq!(copied(&mut net), [(0, 4096)]);
    assert_eq!(net.frames(CLIENT, WriteRequest).len(), 0);
}

#[test]
fn operation_behind_one_in_flight_waits_for_its_answer() {
    for level in [RD, RR] {
        let (mut net, a, _) = pair(level, Direct::NotYet);
        let first = net.post(CLIENT, a, read(REMOTE, 100));
        assert_eq!(net.frames(CLIENT, ReadRequest).len(), 1);
        net.nodes[CLIENT].io.direct = Direct::Copied;
        let second = net.post(CLIENT, a, read(REMOTE, 200));
        assert_eq!(net.frames(CLIENT, ReadRequest).len(), 1, "it waits");
        assert_eq!(copied(&mut net), []);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(first, 100), sent(second, 200)]);
        assert_eq!(copied(&mut net), [(0, 200)]);
        assert_eq!(net.frames(CLIENT, ReadRequest).len(), 1);
        assert_eq!(net.nodes[CLIENT].io.handled, 1);
    }
}

#[test]
fn send_at_reliable_delivery_does_not_show_that_the_peer_has_handled_it() {
    let (mut net, a, b) = pair(RD, Direct::NotYet);
    net.post_receive(SERVER, b, 100);
    // Behind a read in flight, the send completes with its answer.
    net.post(CLIENT, a, read(REMOTE, 100));
    net.post_send(CLIENT, a, b"a send");
    net.settle();
    assert_eq!(net.log(CLIENT, a).len(), 2);
    assert_eq!(net.nodes[CLIENT].io.handled, 0);
}
