//! Long sends that the peer copies from the memory of the sender: parts, order, and what is sent in frames instead.

use fcvi_frame::fc::FCtl;
use fcvi_frame::fcoe::{Eof, MAX_FRAME_BYTES, Sof};
use fcvi_frame::flags::reliability_flags;
use fcvi_frame::frame::{FrameHeader, FrameView};
use fcvi_frame::iu::Opcode::{RendezvousRequest, SendRequest, SendResponse};
use fcvi_frame::profile;
use vi_types::{DIRECT_PART_BYTES, ReliabilityLevel, Status, ViIndex};

use crate::Counter;
use crate::testkit::expected_events::{
    connection_lost_events, receive_failed, received, send_failed, sent, without_partial_data,
};
use crate::testkit::io::{Event, Receive, Send};
use crate::testkit::net::{CLIENT, Net, S, SERVER, read};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const PART: usize = DIRECT_PART_BYTES as usize;
/// The shortest send that is copied, and the shortest before another one.
const SHORTEST: usize = 4 * 1024;
const SHORTEST_OF_MANY: usize = 32 * 1024;
/// Address and handle of the client's memory, which the server's model has.
const SOURCE: (u64, u32) = (0x1000, 7);

/// Returns a connected pair whose client sends from memory that the server can copy from.
fn pair(level: ReliabilityLevel) -> (Net, ViIndex, ViIndex) {
    let (mut net, a, b) = Net::connected(level);
    net.nodes[CLIENT].io.own_source = Some(SOURCE);
    let io = &mut net.nodes[SERVER].io;
    io.register(SOURCE.1, SOURCE.0, 4 * PART);
    let region = io.regions.get_mut(&SOURCE.1).expect("registered");
    region.bytes.copy_from_slice(&data(4 * PART));
    (net, a, b)
}

fn data(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

fn send(len: usize) -> Send {
    Send {
        data: data(len),
        ..Send::default()
    }
}

/// Takes the parts that the server copied.
fn copied(net: &mut Net) -> Vec<(u64, usize)> {
    let parts = core::mem::take(&mut net.nodes[SERVER].io.copied);
    let part = |(address, bytes)| (address - SOURCE.0, bytes as usize);
    parts.into_iter().map(part).collect()
}

fn requests(net: &Net) -> usize {
    net.frames(CLIENT, RendezvousRequest).len()
}

/// Delivers what is under way, without the calls in which `Net::deliver_one` lets the nodes go on: the server copies the first
/// part of a message.
fn deliver(net: &mut Net) {
    for (to, frame) in net.wire.take_in_transit() {
        net.inject(to, &frame);
    }
}

/// Asserts that every exchange has ended.
fn assert_no_open_exchange(net: &Net) {
    for node in [CLIENT, SERVER] {
        assert_eq!(net.nodes[node].engine.exchange_usage().0, 0);
    }
}

/// Runs both nodes until nothing is left to do.
fn settle(net: &mut Net) {
    net.settle();
    net.pump(SERVER);
    net.settle();
}

#[test]
fn long_send_is_copied_in_parts_and_completes_with_the_response() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        for len in [SHORTEST, PART, PART + 1, 3 * PART] {
            let rx = net.post_receive(SERVER, b, len as u32);
            let tx = net.post(CLIENT, a, send(len));
            assert_eq!(net.log(CLIENT, a), [], "not before it is copied");
            settle(&mut net);
            let starts = (0..len).step_by(PART);
            let parts: Vec<_> = starts.map(|at| (at as u64, PART.min(len - at))).collect();
            assert_eq!(copied(&mut net), parts, "{level:?}");
            assert_eq!(net.log(SERVER, b), [received(rx, &data(len))]);
            assert_eq!(net.log(CLIENT, a), [sent(tx, len as u32)]);
        }
        assert_eq!(requests(&net), 4);
        assert_eq!(net.frames(CLIENT, SendRequest), Vec::<Vec<u8>>::new());
        assert_eq!(net.count(CLIENT, Counter::RendezvousMessages), 4);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn immediate_data_arrives() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 40_000);
    let with_immediate = Send {
        immediate: Some(0xFEED),
        ..send(40_000)
    };
    net.post(CLIENT, a, with_immediate);
    settle(&mut net);
    let log = net.log(SERVER, b);
    assert!(
        matches!(&log[..], [Event::Received(got)] if got.immediate == Some(0xFEED)),
        "{log:?}"
    );
    assert_eq!(requests(&net), 1);
}

#[test]
fn what_has_to_be_in_frames_is_not_copied() {
    for (level, len, is_sharable) in [
        (UD, PART, true),
        (RD, SHORTEST - 1, true),
        (RD, PART, false),
    ] {
        let (mut net, a, b) = pair(level);
        if !is_sharable {
            net.nodes[CLIENT].io.own_source = None;
        }
        let rx = net.post_receive(SERVER, b, PART as u32);
        net.post(CLIENT, a, send(len));
        settle(&mut net);
        assert_eq!(net.log(SERVER, b), [received(rx, &data(len))]);
        assert_eq!((requests(&net), copied(&mut net).len()), (0, 0));
    }
}

#[test]
fn short_sends_before_others_are_in_frames() {
    let (mut net, a, b) = pair(RD);
    let lengths = [
        SHORTEST_OF_MANY,
        SHORTEST_OF_MANY - 1,
        SHORTEST_OF_MANY,
        SHORTEST_OF_MANY - 1,
    ];
    for len in lengths {
        net.post_receive(SERVER, b, len as u32);
        net.nodes[CLIENT].io.post_send(a, send(len));
    }
    settle(&mut net);
    let got: Vec<_> = (0..)
        .zip(lengths)
        .map(|(id, len)| received(id, &data(len)))
        .collect();
    assert!(net.log(SERVER, b) == got);
    let lengths: Vec<_> = copied(&mut net).into_iter().map(|(_, len)| len).collect();
    let last = SHORTEST_OF_MANY - 1;
    assert_eq!(lengths, [SHORTEST_OF_MANY, SHORTEST_OF_MANY, last]);
}

#[test]
fn declined_send_is_sent_in_frames_and_so_are_the_next_ones() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.nodes[SERVER].io.peer_source_is_mapped = false;
        for number in 0..1001 {
            let rx = net.post_receive(SERVER, b, SHORTEST as u32);
            let tx = net.post(CLIENT, a, send(SHORTEST));
            settle(&mut net);
            assert_eq!(net.log(SERVER, b), [received(rx, &data(SHORTEST))]);
            assert_eq!(net.log(CLIENT, a), [sent(tx, SHORTEST as u32)]);
            assert_eq!(requests(&net), 1 + usize::from(number == 1000), "{number}");
        }
        assert_eq!(copied(&mut net), []);
        assert_eq!(net.count(CLIENT, Counter::RendezvousDeclined), 2);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn nothing_is_sent_before_the_response() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        let bytes = [PART as u32, 5, PART as u32];
        let receives = bytes.map(|bytes| net.post_receive(SERVER, b, bytes));
        let sends = bytes.map(|bytes| net.post(CLIENT, a, send(bytes as usize)));
        assert_eq!(net.frames(CLIENT, SendRequest).len(), 0);
        assert_eq!(requests(&net), 1);
        settle(&mut net);
        let all = |of: [u64; 3]| of.into_iter().zip(bytes);
        let got: Vec<_> = all(receives)
            .map(|(id, bytes)| received(id, &data(bytes as usize)))
            .collect();
        assert_eq!(net.log(SERVER, b), got, "{level:?}");
        let done: Vec<_> = all(sends).map(|(id, bytes)| sent(id, bytes)).collect();
        assert_eq!(net.log(CLIENT, a), done);
        assert_eq!(requests(&net), 2);
    }
}

#[test]
fn send_behind_a_read_waits_for_its_data() {
    let (mut net, a, b) = pair(RD);
    let rx = net.post_receive(SERVER, b, PART as u32);
    let first = net.post(CLIENT, a, read(SOURCE, 100));
    let second = net.post(CLIENT, a, send(PART));
    assert_eq!(requests(&net), 0);
    settle(&mut net);
    assert_eq!(
        net.log(CLIENT, a),
        [sent(first, 100), sent(second, PART as u32)]
    );
    assert_eq!(net.log(SERVER, b), [received(rx, &data(PART))]);
    assert_eq!(requests(&net), 1);
}

#[test]
fn own_messages_are_sent_while_a_message_is_copied() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, 4 * PART as u32);
    net.post(CLIENT, a, send(4 * PART));
    deliver(&mut net);
    assert_eq!(copied(&mut net).len(), 1);
    for turn in 1..=2 {
        for _ in 0..3 {
            net.nodes[SERVER].io.post_send(b, send(5));
        }
        net.act(SERVER, |engine, io| engine.pump(0, b, 16, io));
        assert_eq!(net.frames(SERVER, SendRequest).len(), 3 * turn);
        assert_eq!(copied(&mut net).len(), 1, "one part in a turn");
    }
    assert_eq!(net.frames(SERVER, SendResponse).len(), 0);
}

/// The events of both sides after a long send meets this receive, or none.
fn events_of(
    level: ReliabilityLevel,
    source: Option<(u64, u32)>,
    receive: Option<&Receive>,
    sent: &Send,
) -> [Vec<Event>; 2] {
    let (mut net, a, b) = pair(level);
    net.nodes[CLIENT].io.own_source = source;
    if let Some(receive) = receive {
        net.nodes[SERVER].io.post_receive(b, receive.clone());
    }
    net.post(CLIENT, a, sent.clone());
    settle(&mut net);
    [(CLIENT, a), (SERVER, b)].map(|(node, vi)| without_partial_data(net.log(node, vi)))
}

#[test]
fn errors_are_those_of_frames() {
    let receive = |capacity: usize| Receive {
        capacity_bytes: capacity as u32,
        ..Receive::default()
    };
    let cases: [(&str, Option<Receive>, Send); 6] = [
        ("no receive", None, send(PART)),
        ("too short", Some(receive(PART - 1)), send(PART)),
        (
            "malformed receive",
            Some(Receive {
                fault: Status::FORMAT,
                ..receive(PART)
            }),
            send(PART),
        ),
        (
            "malformed send",
            Some(receive(PART)),
            Send {
                fault: Status::FORMAT,
                ..send(PART)
            },
        ),
        (
            "unregistered receive",
            Some(Receive {
                gone_from: Some(0),
                ..receive(PART)
            }),
            send(PART),
        ),
        (
            "unregistered send",
            Some(receive(PART)),
            Send {
                gone_from: Some(0),
                ..send(PART)
            },
        ),
    ];
    for level in [RD, RR] {
        for (name, receive, send) in &cases {
            let events = |source| events_of(level, source, receive.as_ref(), send);
            let in_frames = events(None);
            assert!(in_frames.concat().len() > 2, "{name}: {in_frames:?}");
            // The model's server finds no such region, as if the sender had deregistered it.
            let source = match send.gone_from {
                None => SOURCE,
                Some(_) => (SOURCE.0, SOURCE.1 + 1),
            };
            let copied = events(Some(source));
            if *name == "unregistered receive" && level == RD {
                // In frames the send is complete when the receive fails.
                assert_eq!(copied[1], in_frames[1], "{name}");
                continue;
            }
            assert_eq!(copied, in_frames, "{name} at {level:?}");
        }
    }
}

#[test]
fn memory_that_becomes_inaccessible_between_parts_breaks_the_connection() {
    let incomplete = Status::TRANSPORT.with(Status::PARTIAL);
    for (level, status) in [(RD, Status::FLUSHED), (RR, Status::TRANSPORT)] {
        let (mut net, a, b) = pair(level);
        let rx = net.post_receive(SERVER, b, 2 * PART as u32);
        let tx = net.post(CLIENT, a, send(2 * PART));
        let regions = &mut net.nodes[SERVER].io.regions;
        let region = regions.get_mut(&SOURCE.1).expect("registered");
        region.gone_from = SOURCE.0 + PART as u64 + 1;
        settle(&mut net);
        assert_eq!(copied(&mut net), [(0, PART)]);
        let mut expected = vec![receive_failed(rx, incomplete)];
        expected.extend(connection_lost_events());
        assert_eq!(without_partial_data(net.log(SERVER, b)), expected);
        let log = net.log(CLIENT, a);
        assert!(log.contains(&send_failed(tx, status)), "{log:?}");
    }
}

#[test]
fn disconnect_of_either_side_flushes_the_send() {
    for level in [RD, RR] {
        for side in [CLIENT, SERVER] {
            for has_begun in [false, true] {
                let (mut net, a, b) = pair(level);
                let rx = net.post_receive(SERVER, b, 2 * PART as u32);
                let tx = net.post(CLIENT, a, send(2 * PART));
                if has_begun {
                    deliver(&mut net);
                    assert_eq!(copied(&mut net), [(0, PART)]);
                }
                // A VI that is not connected gives the peer no access.
                net.nodes[SERVER].io.peer_source_is_mapped = false;
                net.disconnect(side, if side == CLIENT { a } else { b });
                settle(&mut net);
                let log = net.log(CLIENT, a);
                assert!(log.contains(&send_failed(tx, Status::FLUSHED)), "{log:?}");
                let log = without_partial_data(net.log(SERVER, b));
                assert!(
                    log.contains(&receive_failed(rx, Status::FLUSHED)),
                    "{log:?}"
                );
                assert_no_open_exchange(&net);
            }
        }
    }
}

#[test]
fn copy_that_the_peer_has_ended_fails_if_no_disconnect_comes() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        let rx = net.post_receive(SERVER, b, 2 * PART as u32);
        net.post(CLIENT, a, send(2 * PART));
        deliver(&mut net);
        net.nodes[SERVER].io.peer_source_is_mapped = false;
        settle(&mut net);
        assert_eq!(net.log(SERVER, b), [], "it waits for the disconnect");
        net.advance(3 * S);
        let log = without_partial_data(net.log(SERVER, b));
        let incomplete = Status::TRANSPORT.with(Status::PARTIAL);
        assert_eq!(log.first(), Some(&receive_failed(rx, incomplete)));
        assert_no_open_exchange(&net);
    }
}

#[test]
fn access_ends_before_a_send_fails() {
    let (mut net, a, b) = pair(RR);
    net.post_receive(SERVER, b, PART as u32);
    net.wire.lose(CLIENT, RendezvousRequest, 1);
    let tx = net.post(CLIENT, a, send(PART));
    net.advance(30 * S);
    let log = net.log(CLIENT, a);
    assert_eq!(log.first(), Some(&send_failed(tx, Status::TRANSPORT)));
    assert_eq!(net.nodes[CLIENT].io.access_ends, [0]);
    assert_no_open_exchange(&net);
}

#[test]
fn request_does_not_time_out_at_reliable_delivery() {
    let (mut net, a, b) = pair(RD);
    net.post_receive(SERVER, b, PART as u32);
    net.wire.lose(CLIENT, RendezvousRequest, 1);
    net.post(CLIENT, a, send(PART));
    net.advance(30 * S);
    assert_eq!(net.log(CLIENT, a), []);
}

#[test]
fn timeout_of_earlier_frames_does_not_end_a_copy() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        // Of several frames, which start the timer of an incomplete message.
        net.nodes[CLIENT].io.own_source = None;
        net.post_receive(SERVER, b, PART as u32);
        net.post(CLIENT, a, send(SHORTEST));
        settle(&mut net);
        net.nodes[CLIENT].io.own_source = Some(SOURCE);
        let rx = net.post_receive(SERVER, b, 2 * PART as u32);
        net.post(CLIENT, a, send(2 * PART));
        deliver(&mut net);
        assert_eq!(copied(&mut net).len(), 1);
        net.log(SERVER, b);
        let late_ns = net.now_ns + 3 * S;
        net.now_ns = late_ns;
        net.act(
            SERVER,
            |engine, io| {
                while engine.handle_timeout(late_ns, 8, io) {}
            },
        );
        settle(&mut net);
        assert!(net.log(SERVER, b) == [received(rx, &data(2 * PART))]);
    }
}

#[test]
fn frames_for_a_message_that_is_copied_break_the_connection() {
    for (last, offset) in [(false, PART), (true, PART), (true, 0)] {
        let (mut net, a, b) = pair(RD);
        let rx = net.post_receive(SERVER, b, 3 * PART as u32);
        net.post_receive(SERVER, b, PART as u32);
        net.post(CLIENT, a, send(2 * PART));
        let request = net.frames(CLIENT, RendezvousRequest).remove(0);
        deliver(&mut net);
        let view = FrameView::parse(&request).expect("a frame");
        let mut header = FrameHeader {
            dst: view.ethernet.dst,
            src: view.ethernet.src,
            sof: Sof::N3,
            fc: view.fc,
            device: Some(view.iu().expect("an IU").header),
        };
        header.fc.r_ctl = SendRequest.r_ctl();
        header.fc.df_ctl = profile::df_ctl(SendRequest.header_bytes());
        header.fc.f_ctl = profile::F_CTL_ONE_WAY.union(FCtl::RELATIVE_OFFSET);
        if last {
            header.fc.f_ctl = header.fc.f_ctl.union(FCtl::END_SEQUENCE);
        }
        header.fc.seq_cnt += 1;
        header.fc.parameter = offset as u32;
        let device = header.device.as_mut().expect("an IU");
        device.opcode = SendRequest;
        device.flags = reliability_flags(RD);
        let mut frame = vec![0; MAX_FRAME_BYTES];
        let bytes = header.emit_frame(&[7; 2000], Eof::T, &mut frame);
        net.inject(SERVER, &frame[..bytes.expect("a valid length")]);
        settle(&mut net);
        let log = without_partial_data(net.log(SERVER, b));
        let incomplete = Status::TRANSPORT.with(Status::PARTIAL);
        assert_eq!(log.first(), Some(&receive_failed(rx, incomplete)));
        assert_eq!(copied(&mut net), [(0, PART)]);
    }
}

#[test]
fn second_response_is_dropped() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, PART as u32);
        net.post(CLIENT, a, send(PART));
        settle(&mut net);
        net.log(CLIENT, a);
        let response = net.frames(SERVER, SendResponse).remove(0);
        net.inject(CLIENT, &response);
        settle(&mut net);
        assert_eq!(net.log(CLIENT, a), []);
        assert_eq!(net.count(CLIENT, Counter::DropStrayResponse), 1);
    }
}

#[test]
fn response_that_finds_no_room_is_sent_later() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.post_receive(SERVER, b, PART as u32);
        let tx = net.post(CLIENT, a, send(PART));
        net.nodes[SERVER].io.room = 0;
        settle(&mut net);
        assert_eq!(copied(&mut net), [(0, PART)]);
        assert_eq!(net.log(CLIENT, a), []);
        net.nodes[SERVER].io.room = usize::MAX;
        net.pump(SERVER);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(tx, PART as u32)]);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn declining_response_that_finds_no_room_is_sent_later() {
    for level in [RD, RR] {
        let (mut net, a, b) = pair(level);
        net.nodes[SERVER].io.peer_source_is_mapped = false;
        let rx = net.post_receive(SERVER, b, PART as u32);
        net.post(CLIENT, a, send(PART));
        net.nodes[SERVER].io.room = 0;
        settle(&mut net);
        assert_eq!(net.log(SERVER, b), []);
        net.nodes[SERVER].io.room = usize::MAX;
        net.pump(SERVER);
        settle(&mut net);
        assert!(net.log(SERVER, b) == [received(rx, &data(PART))]);
        assert_no_open_exchange(&net);
    }
}
