//! Reliable Reception: a send or write completes when the peer has placed it.

use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{
    DisconnectRequest, SendRequest, SendResponse, WriteRequest, WriteResponse,
};
use vi_types::{AsyncError, ReliabilityLevel, Status, ViIndex, ViState};

use crate::Counter;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::{
    expected_events::{
        connection_lost_events, receive_failed, received, send_failed, sent, without_partial_data,
    },
    io::{Event, Send},
};

const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;

/// Returns a connected pair with at most `max_unanswered` descriptors in flight per side, and receives at the server.
fn pair(max_unanswered: u32) -> (Net, ViIndex, ViIndex) {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.max_unanswered = max_unanswered;
        config
    });
    let mut net = Net::new(configs.to_vec(), 3);
    let (a, b) = net.join(RR);
    net.clear_logs();
    net.wire.trace.clear();
    for _ in 0..10 {
        net.post_receive(SERVER, b, 10_000);
    }
    net.nodes[SERVER].io.register(7, 0, 10_000);
    (net, a, b)
}

fn write(len: usize, immediate: Option<u32>) -> Send {
    Send {
        data: vec![7; len],
        remote: Some((0, 7)),
        immediate,
        ..Send::default()
    }
}

/// Asserts that every exchange has ended, and that none is quarantined unless the connection broke.
fn assert_no_open_exchange(net: &Net) {
    for node in [CLIENT, SERVER] {
        let (open, quarantined) = net.nodes[node].engine.exchange_usage();
        assert_eq!(open, 0);
        assert!(quarantined == 0 || net.count(node, Counter::Breaks) > 0);
    }
}

#[test]
fn sends_and_writes_of_all_sizes_complete_when_they_are_placed() {
    let (mut net, a, b) = pair(64);
    let mut rng = Rng::new(21);
    for (capacity, remote) in [(2096, false), (2080, true)] {
        let near = |n: usize| (n * capacity).saturating_sub(2)..=n * capacity + 2;
        for size in (0..4).flat_map(near) {
            let mut send = write(size, Some(5));
            send.data = rng.bytes(size);
            if !remote {
                send.remote = None;
            }
            let (data, frames) = (send.data.clone(), net.wire.trace.len());
            let rx = net.post_receive(SERVER, b, 10_000) - 10;
            let tx = net.post(CLIENT, a, send);
            assert_eq!(net.log(CLIENT, a), [], "not before it is placed");
            while net.nodes[SERVER].io.vi(b).log.is_empty() {
                assert!(net.deliver_one());
                assert_eq!(net.log(CLIENT, a), []);
            }
            let log = net.log(SERVER, b);
            let Event::Received(got) = &log[0] else {
                panic!("{log:?}");
            };
            assert_eq!((got.id, got.status), (rx, Status::OK));
            assert_eq!((got.length_bytes, got.remote_write), (size as u32, remote));
            if remote {
                assert_eq!(net.nodes[SERVER].io.regions[&7].bytes[..size], data);
            } else {
                assert_eq!(got.data, data);
            }
            net.settle();
            assert_eq!(net.log(CLIENT, a), [sent(tx, size as u32)]);
            let requests = size.div_ceil(capacity).max(1);
            assert_eq!(net.wire.trace.len() - frames, requests + 1);
        }
    }
    assert_no_open_exchange(&net);
    let messages = net.count(CLIENT, Counter::TxMessages);
    assert_eq!(net.count(SERVER, Counter::TxResponses), messages);
    assert_eq!(net.count(CLIENT, Counter::RxResponses), messages);
}

#[test]
fn write_without_immediate_data_gets_a_response() {
    let (mut net, a, b) = pair(64);
    let tx = net.post(CLIENT, a, write(5000, None));
    net.settle();
    assert_eq!(net.log(CLIENT, a), [sent(tx, 5000)]);
    assert_eq!(net.log(SERVER, b), []);
    assert_eq!(net.frames(SERVER, WriteResponse).len(), 1);
    assert_no_open_exchange(&net);
}

/// The fields by which a network monitor follows an exchange [FCVI P-3].
#[test]
fn a_response_is_the_second_sequence_of_its_exchange() {
    let (mut net, a, _) = pair(64);
    net.post_send(CLIENT, a, &[1; 5001]);
    net.post(CLIENT, a, write(3, None));
    net.settle();
    let views = |net: &Net, from, opcode| -> Vec<_> {
        let frames = net.frames(from, opcode);
        let parse = |f: &Vec<u8>| {
            let view = FrameView::parse(f).unwrap();
            (view.fc, view.sof, view.iu().unwrap().header)
        };
        frames.iter().map(parse).collect()
    };
    for (request, response) in [(SendRequest, SendResponse), (WriteRequest, WriteResponse)] {
        let requests = views(&net, CLIENT, request);
        let (last, responses) = (requests.last().unwrap(), views(&net, SERVER, response));
        for (fc, _, header) in &requests {
            assert_eq!(header.flags, 0x60, "RR, response requested");
            let fill = if fc.seq_cnt == last.0.seq_cnt {
                (last.0.f_ctl.0 & 3) | 0x29_0008
            } else {
                0x20_0008
            };
            assert_eq!(fc.f_ctl.0, fill);
        }
        assert_eq!(responses.len(), 1);
        let (fc, sof, header) = responses[0];
        assert_eq!((sof, fc.f_ctl.0), (Sof::I3, 0x98_0000));
        assert_eq!((fc.ox_id, fc.rx_id), (last.0.ox_id, last.0.ox_id));
        assert_eq!(fc.seq_id, last.0.seq_id.wrapping_add(1));
        assert_eq!(fc.seq_cnt, last.0.seq_cnt.wrapping_add(1));
        assert_eq!(header.msg_id, last.2.msg_id);
        assert_eq!((header.flags, header.parameter), (0, 0));
    }
}

#[test]
fn messages_stream_without_waiting_for_responses() {
    let (mut net, a, b) = pair(64);
    net.wire.cut = true;
    for n in 0..8 {
        net.post_send(CLIENT, a, &[n; 3000]);
    }
    let frames = net.frames(CLIENT, SendRequest);
    assert_eq!(frames.len(), 16, "all before the first response");
    net.wire.cut = false;
    for frame in &frames {
        net.inject(SERVER, frame);
    }
    net.settle();
    let log: Vec<_> = (0..8).map(|n| sent(n, 3000)).collect();
    assert_eq!(net.log(CLIENT, a), log);
    let log: Vec<_> = (0..8).map(|n| received(n, &[n as u8; 3000])).collect();
    assert_eq!(net.log(SERVER, b), log);
}

#[test]
fn full_window_advances_with_each_response() {
    for limit in [1, 3] {
        let (mut net, a, b) = pair(limit);
        for n in 0..10 {
            net.post_send(CLIENT, a, &[n; 10]);
        }
        let mut seen = 0;
        loop {
            let requests = net.frames(CLIENT, SendRequest).len();
            let completed = net.nodes[CLIENT].io.vi(a).log.len();
            assert!(requests - completed <= limit as usize);
            seen = seen.max(requests - completed);
            if !net.deliver_one() {
                break;
            }
        }
        assert_eq!(seen, limit as usize);
        let log: Vec<_> = (0..10).map(|n| sent(n, 10)).collect();
        assert_eq!(net.log(CLIENT, a), log);
        let log: Vec<_> = (0..10).map(|n| received(n, &[n as u8; 10])).collect();
        assert_eq!(net.log(SERVER, b), log);
        assert_no_open_exchange(&net);
    }
}

/// The server's port accepts `room` frames and then none until its limit is raised.
#[test]
fn responses_delayed_by_a_full_port_keep_their_order() {
    for room in 0..4 {
        let (mut net, a, b) = pair(64);
        net.nodes[SERVER].io.room = room;
        net.post(CLIENT, a, write(8, None));
        for n in 0..5 {
            net.post_send(CLIENT, a, &[n; 8]);
        }
        net.settle();
        let placed = net.log(SERVER, b);
        assert_eq!(placed.len(), 5, "receives complete without the port");
        let log: Vec<_> = (0..room as u64).map(|n| sent(n, 8)).collect();
        assert_eq!(net.log(CLIENT, a), log);
        net.nodes[SERVER].io.room = 2;
        net.pump(SERVER);
        net.nodes[SERVER].io.room = usize::MAX;
        // The response to this message follows the delayed ones.
        net.post_send(CLIENT, a, &[5; 8]);
        net.settle();
        let log: Vec<_> = (room as u64..7).map(|n| sent(n, 8)).collect();
        assert_eq!(net.log(CLIENT, a), log);
        assert_no_open_exchange(&net);
    }
}

/// Returns a client with the maximum number of messages in flight, all placed by a server with the minimum
/// configuration whose port is full.
fn maximum_in_flight_at_a_minimal_server() -> (Net, ViIndex, ViIndex) {
    let mut configs = vec![config(CLIENT), config(SERVER)];
    (
        configs[CLIENT].max_unanswered,
        configs[SERVER].max_unanswered,
    ) = (256, 1);
    let mut net = Net::new(configs, 3);
    let (a, b) = net.join(RR);
    net.clear_logs();
    for _ in 0..258 {
        net.post_receive(SERVER, b, 8);
    }
    net.nodes[SERVER].io.room = 0;
    for n in 0..258 {
        net.post_send(CLIENT, a, &[n as u8; 8]);
    }
    net.settle();
    let placed: Vec<_> = (0..256).map(|n| received(n, &[n as u8; 8])).collect();
    assert_eq!(net.log(SERVER, b), placed);
    assert_eq!(net.log(CLIENT, a), []);
    (net, a, b)
}

#[test]
fn server_keeps_the_responses_to_all_messages_in_flight() {
    let (mut net, a, b) = maximum_in_flight_at_a_minimal_server();
    net.nodes[SERVER].io.room = usize::MAX;
    net.pump(SERVER);
    net.settle();
    let log: Vec<_> = (0..258).map(|n| sent(n, 8)).collect();
    assert_eq!(net.log(CLIENT, a), log);
    assert_eq!(net.log(SERVER, b).len(), 2);
    assert_no_open_exchange(&net);
}

/// A client that does not wait for responses, against the profile.
#[test]
fn excess_of_delayed_responses_breaks_the_connection() {
    let (mut net, a, b) = maximum_in_flight_at_a_minimal_server();
    let now_ns = net.now_ns;
    net.act(CLIENT, |engine, io| {
        let (ep, mut cx) = engine.split(now_ns, a, io).unwrap();
        ep.tx.as_mut().unwrap().handle_answer(&mut cx, 0, 1);
    });
    net.pump(CLIENT);
    net.settle();
    assert_eq!(net.count(SERVER, Counter::ResponseOverflows), 1);
    let log = vec![
        received(256, &[0; 8]),
        connection_lost_events()[0].clone(),
        receive_failed(257, Status::FLUSHED),
        connection_lost_events()[1].clone(),
    ];
    assert_eq!(net.log(SERVER, b), log);
    net.nodes[SERVER].io.room = usize::MAX;
    net.advance(5 * S);
    let log = net.log(CLIENT, a);
    assert_eq!(log[0], sent(0, 8), "treated as answered");
    assert_eq!(log[1], send_failed(1, Status::TRANSPORT), "no response");
    assert_eq!(log[2], connection_lost_events()[0]);
    let flushed: Vec<_> = (2..258).map(|n| send_failed(n, Status::FLUSHED)).collect();
    assert_eq!(log[3..259], flushed);
}

/// Sends three messages, of which the second finds no descriptor.
fn send_with_second_refused(net: &mut Net, a: ViIndex, b: ViIndex) {
    net.nodes[SERVER].io.vi(b).receives.truncate(1);
    for n in 0..3 {
        net.post_send(CLIENT, a, &[n; 8]);
    }
}

#[test]
fn refusal_is_reported_by_the_response_or_the_disconnect() {
    for lost in [None, Some(SendResponse), Some(DisconnectRequest)] {
        let (mut net, a, b) = pair(64);
        send_with_second_refused(&mut net, a, b);
        if let Some(opcode) = lost {
            // The first response is delivered, then the given IU is lost.
            while net.frames(SERVER, SendResponse).is_empty() {
                assert!(net.deliver_one());
            }
            net.wire.lose(SERVER, opcode, u32::MAX);
        }
        net.settle();
        let expected = vec![
            sent(0, 8),
            send_failed(1, Status::REMOTE_DESCRIPTOR),
            connection_lost_events()[0].clone(),
            send_failed(2, Status::FLUSHED),
            connection_lost_events()[1].clone(),
        ];
        assert_eq!(net.log(CLIENT, a), expected, "{lost:?}");
        let expected = vec![
            received(0, &[0; 8]),
            Event::Async(AsyncError::ReceiveQueueEmpty),
            connection_lost_events()[0].clone(),
            connection_lost_events()[1].clone(),
        ];
        assert_eq!(net.log(SERVER, b), expected, "{lost:?}");
        net.advance(60 * S);
        assert_no_open_exchange(&net);
    }
}

/// The first message was placed, but its response was delayed by the full port when the second failed: the first must
/// not complete with the error of the second.
#[test]
fn refusal_behind_delayed_responses_is_a_transport_error() {
    let (mut net, a, b) = pair(64);
    net.nodes[SERVER].io.room = 0;
    send_with_second_refused(&mut net, a, b);
    net.settle();
    net.nodes[SERVER].io.room = usize::MAX;
    net.advance(60 * S);
    let expected = vec![
        send_failed(0, Status::TRANSPORT),
        connection_lost_events()[0].clone(),
        send_failed(1, Status::FLUSHED),
        send_failed(2, Status::FLUSHED),
        connection_lost_events()[1].clone(),
    ];
    assert_eq!(net.log(CLIENT, a), expected);
}

#[test]
fn message_refused_while_it_is_sent_is_aborted() {
    for lost in [SendResponse, DisconnectRequest] {
        let (mut net, a, b) = pair(64);
        net.nodes[SERVER].io.vi(b).receives.clear();
        net.wire.lose(SERVER, lost, u32::MAX);
        // The port accepts only the first frame of the first message.
        net.nodes[CLIENT].io.room = 1;
        net.post_send(CLIENT, a, &[1; 9000]);
        net.post_send(CLIENT, a, b"second");
        net.settle();
        let expected = vec![
            send_failed(0, Status::REMOTE_DESCRIPTOR),
            connection_lost_events()[0].clone(),
            send_failed(1, Status::FLUSHED),
            connection_lost_events()[1].clone(),
        ];
        assert_eq!(net.log(CLIENT, a), expected, "{lost:?}");
        assert_eq!(net.frames(CLIENT, SendRequest).len(), 1);
        net.nodes[CLIENT].io.room = usize::MAX;
        net.advance(60 * S);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn lost_response_is_detected_by_the_next_response() {
    let (mut net, a, b) = pair(64);
    net.wire.lose(SERVER, SendResponse, 1);
    for n in 0..3 {
        net.post_send(CLIENT, a, &[n; 8]);
    }
    net.settle();
    assert_eq!(net.count(CLIENT, Counter::LostResponses), 1);
    let expected = vec![
        send_failed(0, Status::TRANSPORT),
        connection_lost_events()[0].clone(),
        send_failed(1, Status::FLUSHED),
        send_failed(2, Status::FLUSHED),
        connection_lost_events()[1].clone(),
    ];
    assert_eq!(net.log(CLIENT, a), expected);
    assert_eq!(net.state(SERVER, b), ViState::Error);
}

#[test]
fn missing_response_breaks_after_the_ulp_timeout_of_the_oldest_message() {
    let (mut net, a, _) = pair(64);
    let ulp_ns = net.nodes[CLIENT].engine.config().ulp_timeout_ns;
    let begin_ns = net.now_ns;
    net.post_send(CLIENT, a, b"answered");
    net.settle();
    net.wire.cut = true;
    net.advance(ulp_ns / 2);
    let first_ns = net.now_ns;
    net.post_send(CLIENT, a, b"first");
    net.advance(ulp_ns / 2);
    net.post_send(CLIENT, a, b"second");
    assert_eq!(net.log(CLIENT, a), [sent(0, 8)]);
    assert!(
        net.now_ns > begin_ns + ulp_ns,
        "the timer was set for the answered message"
    );
    net.advance(first_ns + ulp_ns - 1 - net.now_ns);
    assert_eq!(net.log(CLIENT, a), []);
    net.advance(1);
    let expected = vec![
        send_failed(1, Status::TRANSPORT),
        connection_lost_events()[0].clone(),
        send_failed(2, Status::FLUSHED),
        connection_lost_events()[1].clone(),
    ];
    assert_eq!(net.log(CLIENT, a), expected);
    assert_eq!(net.count(CLIENT, Counter::ResponseTimeouts), 1);
    let (_, quarantined) = net.nodes[CLIENT].engine.exchange_usage();
    assert!(quarantined >= 2, "abandoned exchanges are quarantined");
}

#[test]
fn response_restarts_the_timeout_for_the_next_message() {
    let (mut net, a, _) = pair(64);
    let ulp_ns = net.nodes[CLIENT].engine.config().ulp_timeout_ns;
    net.nodes[SERVER].io.room = 0;
    for _ in 0..4 {
        net.post_send(CLIENT, a, b"slow");
    }
    for n in 0..4 {
        net.advance(ulp_ns * 3 / 4);
        net.nodes[SERVER].io.room = 1;
        net.pump(SERVER);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(n, 4)]);
    }
    assert_no_open_exchange(&net);
}

/// A write is refused while an earlier send has no response, and both responses are lost. The reason of the disconnect
/// concerns writes, so the send is only flushed.
#[test]
fn disconnect_fails_only_a_descriptor_that_its_reason_concerns() {
    let (mut net, a, b) = pair(64);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.wire.lose(SERVER, WriteResponse, u32::MAX);
    net.post_send(CLIENT, a, b"placed");
    let mut refused = write(8, None);
    refused.remote = Some((0, 99));
    net.post(CLIENT, a, refused);
    net.settle();
    let expected = vec![
        send_failed(0, Status::FLUSHED),
        send_failed(1, Status::RDMA_PROTECTION),
        connection_lost_events()[0].clone(),
        connection_lost_events()[1].clone(),
    ];
    assert_eq!(net.log(CLIENT, a), expected);
    let log = net.log(SERVER, b);
    assert_eq!(log[0], received(0, b"placed"));
    assert_eq!(log[1], Event::Async(AsyncError::RdmaWriteProtection));
}

#[test]
fn disconnect_by_the_consumer_flushes_all_descriptors() {
    let (mut net, a, b) = pair(64);
    net.wire.lose(SERVER, SendResponse, u32::MAX);
    net.post_send(CLIENT, a, b"placed");
    net.settle();
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(net.log(CLIENT, a)[1], send_failed(0, Status::FLUSHED));
}

/// A local error behind messages in flight is reported in posting order, and nothing behind it is sent.
#[test]
fn local_error_completes_after_messages_in_flight() {
    let faulty = Send {
        data: vec![1; 8],
        fault: Status::FORMAT,
        ..Send::default()
    };
    let gone = |from| Send {
        data: vec![1; 5000],
        gone_from: Some(from),
        ..Send::default()
    };
    let partial = Status::PROTECTION.with(Status::PARTIAL);
    let cases = [
        (faulty, Status::FORMAT),
        (gone(0), Status::PROTECTION),
        (gone(3000), partial),
    ];
    for (second, status) in cases {
        let (mut net, a, b) = pair(64);
        net.nodes[SERVER].io.room = 0;
        net.post_send(CLIENT, a, b"first");
        net.post(CLIENT, a, second);
        net.post_send(CLIENT, a, b"third");
        net.settle();
        assert_eq!(net.log(CLIENT, a), []);
        net.nodes[SERVER].io.room = usize::MAX;
        net.pump(SERVER);
        net.settle();
        let expected = vec![
            sent(0, 5),
            send_failed(1, status),
            connection_lost_events()[0].clone(),
            send_failed(2, Status::FLUSHED),
            connection_lost_events()[1].clone(),
        ];
        assert_eq!(net.log(CLIENT, a), expected);
        net.settle();
        let log = without_partial_data(net.log(SERVER, b));
        assert_eq!(log[0], received(0, b"first"));
        assert!(!log.contains(&received(1, b"third")));
        assert_eq!(net.state(SERVER, b), ViState::Error);
        net.advance(60 * S);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn message_ids_and_seq_cnt_wrap() {
    let (mut net, a, b) = pair(64);
    for ox_id in 0..0xFFFF {
        net.nodes[CLIENT].engine.port.exchanges.close(ox_id, 0xFFFF);
    }
    let sides = [(CLIENT, a), (SERVER, b)];
    for (node, vi) in sides {
        let ep = net.nodes[node].engine.endpoints[vi.slot()]
            .as_mut()
            .unwrap();
        ep.tx.as_mut().unwrap().next_msg_id = u32::MAX - 1;
        ep.rx.reassembly.expected = u32::MAX - 1;
    }
    for n in 0..6 {
        net.post_send(CLIENT, a, &[n; 5000]);
    }
    net.settle();
    let log: Vec<_> = (0..6).map(|n| sent(n, 5000)).collect();
    assert_eq!(net.log(CLIENT, a), log);
    assert_no_open_exchange(&net);
}

#[test]
fn messages_before_response3_are_answered_in_both_directions() {
    let mut net = Net::pair();
    let (a, b) = (
        net.create(CLIENT, params(RR)),
        net.create(SERVER, params(RR)),
    );
    net.wire
        .lose(SERVER, fcvi_frame::iu::Opcode::ConnectResponse3, 1);
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.post_receive(CLIENT, a, 10);
    net.post_receive(SERVER, b, 10);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
    net.clear_logs();
    net.post_send(SERVER, b, b"early");
    net.settle();
    net.post_send(CLIENT, a, b"late");
    net.settle();
    let log = net.log(CLIENT, a);
    assert_eq!(log[1..], [received(0, b"early"), sent(0, 4)]);
    assert_eq!(net.log(SERVER, b), [sent(0, 5), received(0, b"late")]);
}

#[test]
fn duplicate_response_is_dropped() {
    let (mut net, a, _) = pair(64);
    net.wire.faults.duplicate = 1_000_000;
    for n in 0..5 {
        net.post_send(CLIENT, a, &[n; 8]);
    }
    net.advance(10 * MS);
    let log: Vec<_> = (0..5).map(|n| sent(n, 8)).collect();
    assert_eq!(net.log(CLIENT, a), log);
    assert_eq!(net.count(CLIENT, Counter::DropStrayResponse), 5);
    assert_eq!(net.count(SERVER, Counter::DropStaleMessage), 5);
    assert_no_open_exchange(&net);
}
