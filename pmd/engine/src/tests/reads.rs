//! RDMA reads: data, order, fences, limits, and the end of the connection.

use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, SendRequest};
use vi_types::{Pumped, ReliabilityLevel, Status, ViIndex, ViParams};

use crate::testkit::net::{CLIENT, Net, S, SERVER, config, params, read};
use crate::testkit::rng::Rng;
use crate::testkit::topology::{Topology, for_each_topology, topology};
use crate::testkit::{
    expected_events::{connection_lost_events, received, send_failed, sent},
    io::{Event, Send},
};
use crate::{Counter, EngineConfig};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const LEVELS: [ReliabilityLevel; 2] = [RD, RR];
/// Start address and handle of the server's region.
const SOURCE: (u64, u32) = (0x1000, 7);

/// Returns a connected pair, with a region of random bytes and receives at the server.
fn pair(level: ReliabilityLevel, adjust: impl Fn(&mut EngineConfig)) -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair_with(4, adjust);
    let (a, b) = net.join(level);
    net.clear_logs();
    net.wire.trace.clear();
    net.nodes[SERVER].io.register(7, 0x1000, 20_000);
    let bytes = Rng::new(9).bytes(20_000);
    net.nodes[SERVER].io.regions.get_mut(&7).unwrap().bytes = bytes;
    for _ in 0..10 {
        net.post_receive(SERVER, b, 10_000);
    }
    (net, a, b)
}

fn bytes_at(net: &Net, from: usize, len: usize) -> Vec<u8> {
    net.nodes[SERVER].io.regions[&7].bytes[from..from + len].to_vec()
}

/// Lets the server's port accept `room` frames, and sends what is pending.
fn unblock_server(net: &mut Net, room: usize) {
    net.nodes[SERVER].io.room = room;
    net.pump(SERVER);
    net.settle();
}

fn assert_no_open_exchange(net: &Net) {
    for node in [CLIENT, SERVER] {
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn reads_of_all_sizes_around_frame_boundaries_arrive_whole() {
    for_each_topology(|| {
        for level in LEVELS {
            let (mut net, a, b) = pair(level, |_| {});
            let near = |n: usize| (n * 2096).saturating_sub(3)..=n * 2096 + 3;
            for size in (0..4).flat_map(near) {
                net.wire.trace.clear();
                let id = net.post_read(CLIENT, a, (0x1010, 7), size);
                let by_frames = topology() != Topology::Shortcut;
                let at_once = net.log(CLIENT, a);
                assert_eq!(at_once.is_empty(), by_frames);
                net.settle();
                let log = [at_once, net.log(CLIENT, a)].concat();
                assert_eq!(log, [sent(id, size as u32)]);
                assert_eq!(net.read_data(CLIENT, a), [(id, bytes_at(&net, 16, size))]);
                assert_eq!(net.log(SERVER, b), [], "the target's consumer sees nothing");
                let frames = size.div_ceil(2096).max(1);
                let [requests, data_frames] = if by_frames { [1, frames] } else { [0, 0] };
                let responses = net.ius().iter().filter(|iu| iu.1 == ReadResponse).count();
                assert_eq!(net.frames(CLIENT, ReadRequest).len(), requests);
                assert_eq!(responses, data_frames);
            }
            assert_no_open_exchange(&net);
        }
    });
}

/// The fields by which a network monitor follows a read [FCVI P-3, P-6].
#[test]
fn the_frames_of_a_read_are_two_sequences_of_one_exchange() {
    for (level, flags) in [(RD, 0x50), (RR, 0x60)] {
        let (mut net, a, _) = pair(level, |_| {});
        let fenced = Send {
            fence: true,
            immediate: Some(9),
            ..read(SOURCE, 5001)
        };
        net.post(CLIENT, a, fenced);
        net.settle();
        let view = |f: &Vec<u8>| {
            let view = FrameView::parse(f).unwrap();
            (view.sof, view.fc, view.iu().unwrap().header)
        };
        let (sof, request, header) = view(&net.frames(CLIENT, ReadRequest)[0]);
        assert_eq!((sof, request.f_ctl.0), (Sof::I3, 0x29_0000));
        assert_eq!((header.flags, header.parameter), (flags | 8, 0));
        assert_eq!((header.rmt_va, header.rmt_va_handle), SOURCE);
        assert_eq!((header.tot_len, request.parameter), (5001, 0));
        let answer = net.frames(SERVER, ReadResponse);
        assert_eq!(answer.len(), 3);
        for (at, frame) in answer.iter().enumerate() {
            let (sof, fc, response) = view(frame);
            let (expected_sof, f_ctl, flags) = match at {
                0 => (Sof::I3, 0x90_0008, 0),
                1 => (Sof::N3, 0x90_0008, 0),
                _ => (Sof::N3, 0x98_0008 | 3, 0x40),
            };
            assert_eq!(
                (sof, fc.f_ctl.0, response.flags),
                (expected_sof, f_ctl, flags)
            );
            assert_eq!((fc.ox_id, fc.rx_id), (request.ox_id, request.ox_id));
            assert_eq!(fc.seq_id, request.seq_id.wrapping_add(1));
            assert_eq!(fc.seq_cnt, request.seq_cnt.wrapping_add(1 + at as u16));
            assert_eq!(fc.parameter as usize, at * 2096);
            assert_eq!((response.msg_id, response.parameter), (header.msg_id, 0));
        }
    }
}

#[test]
fn messages_behind_a_pending_read_complete_after_it() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        net.nodes[SERVER].io.room = 0;
        net.post_read(CLIENT, a, SOURCE, 3000);
        for n in 1..4 {
            net.post_send(CLIENT, a, &[n; 3000]);
        }
        net.post_read(CLIENT, a, SOURCE, 10);
        net.post_send(CLIENT, a, b"last");
        net.settle();
        assert_eq!(net.log(SERVER, b).len(), 4, "placed at once");
        assert_eq!(net.log(CLIENT, a), [], "but completed in posting order");
        // At RR the four responses are sent first, then the frames of the reads.
        let responses = if level == RR { 4 } else { 0 };
        unblock_server(&mut net, responses + 1);
        assert_eq!(net.log(CLIENT, a), []);
        unblock_server(&mut net, 1);
        let mut log = vec![sent(0, 3000)];
        log.extend((1..4).map(|n| sent(n, 3000)));
        assert_eq!(net.log(CLIENT, a), log);
        unblock_server(&mut net, 1);
        assert_eq!(net.log(CLIENT, a), [sent(4, 10), sent(5, 4)]);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn fence_waits_only_for_earlier_reads() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        net.nodes[SERVER].io.room = 0;
        let fenced = |data: &[u8]| Send {
            data: data.to_vec(),
            fence: true,
            ..Send::default()
        };
        net.post_send(CLIENT, a, b"0");
        net.post(CLIENT, a, fenced(b"1"));
        net.settle();
        let placed = [received(0, b"0"), received(1, b"1")];
        assert_eq!(net.log(SERVER, b), placed, "no read before it");
        net.post_read(CLIENT, a, SOURCE, 10);
        net.post_read(CLIENT, a, SOURCE, 10);
        net.post_send(CLIENT, a, b"4");
        net.post(CLIENT, a, fenced(b"5"));
        net.post_send(CLIENT, a, b"6");
        net.settle();
        assert_eq!(net.log(SERVER, b), [received(2, b"4")]);
        let responses = if level == RR { 3 } else { 0 };
        unblock_server(&mut net, responses + 1);
        assert_eq!(net.log(SERVER, b), [], "one read is still open");
        unblock_server(&mut net, usize::MAX);
        assert_eq!(net.log(SERVER, b), [received(3, b"5"), received(4, b"6")]);
        let ids: Vec<u64> = net.log(CLIENT, a).iter().map(id_of_ok).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6]);
        assert_no_open_exchange(&net);
    }
}

fn id_of_ok(event: &Event) -> u64 {
    match event {
        Event::Sent(id, Status::OK, _) => *id,
        other => panic!("not a successful send: {other:?}"),
    }
}

#[test]
fn pending_reads_are_limited_by_the_peer() {
    for level in LEVELS {
        for limit in [1, 3] {
            let (mut net, a, _) = pair(level, |config| config.max_reads_accepted = limit);
            net.nodes[SERVER].io.room = 0;
            for n in 0..8 {
                net.post_read(CLIENT, a, (0x1000 + n, 7), 100);
            }
            net.settle();
            let requests = |net: &Net| net.frames(CLIENT, ReadRequest).len();
            assert_eq!(requests(&net), usize::from(limit));
            unblock_server(&mut net, 1);
            assert_eq!(requests(&net), usize::from(limit) + 1);
            unblock_server(&mut net, usize::MAX);
            let log: Vec<_> = (0..8).map(|n| sent(n, 100)).collect();
            assert_eq!(net.log(CLIENT, a), log);
            let data: Vec<_> = (0..8)
                .map(|n| (n, bytes_at(&net, n as usize, 100)))
                .collect();
            assert_eq!(net.read_data(CLIENT, a), data);
            assert_eq!(net.count(SERVER, Counter::DropTooManyReads), 0);
            assert_no_open_exchange(&net);
        }
    }
}

#[test]
fn messages_pending_behind_a_read_are_limited() {
    for level in LEVELS {
        for limit in [1, 3] {
            let (mut net, a, b) = pair(level, |config| config.max_unanswered = limit);
            net.nodes[SERVER].io.room = 0;
            net.post_read(CLIENT, a, SOURCE, 100);
            for n in 1..8 {
                net.post_send(CLIENT, a, &[n; 8]);
            }
            net.settle();
            let placed = net.nodes[SERVER].io.vi(b).log.len();
            assert_eq!(placed, limit as usize - 1);
            unblock_server(&mut net, usize::MAX);
            let ids: Vec<u64> = net.log(CLIENT, a).iter().map(id_of_ok).collect();
            assert_eq!(ids, (0..8).collect::<Vec<_>>());
            assert_eq!(net.log(SERVER, b).len(), 7);
            assert_no_open_exchange(&net);
        }
    }
}

#[test]
fn read_responses_and_own_messages_alternate() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        net.post_receive(CLIENT, a, 20_000);
        net.nodes[SERVER].io.room = 0;
        net.post_read(CLIENT, a, SOURCE, 8 * 2096);
        net.post_send(SERVER, b, &[1; 8 * 2096]);
        net.settle();
        net.wire.trace.clear();
        for _ in 0..12 {
            net.nodes[SERVER].io.room = 1;
            net.pump(SERVER);
        }
        let from_server: Vec<_> = net.ius().into_iter().filter(|iu| iu.0 == SERVER).collect();
        let count = |opcode| from_server.iter().filter(|iu| iu.1 == opcode).count();
        assert_eq!(count(ReadResponse), 6);
        assert_eq!(count(SendRequest), 6);
        unblock_server(&mut net, usize::MAX);
        assert_eq!(net.read_data(CLIENT, a), [(0, bytes_at(&net, 0, 8 * 2096))]);
        assert_eq!(net.log(SERVER, b), [sent(0, 8 * 2096)]);
        assert_no_open_exchange(&net);
    }
}

#[test]
fn pump_with_a_budget_of_one_frame_sends_everything() {
    let (mut net, a, b) = pair(RR, |_| {});
    net.post_receive(CLIENT, a, 20_000);
    net.nodes[SERVER].io.room = 0;
    net.post_read(CLIENT, a, SOURCE, 6000);
    net.post_send(CLIENT, a, b"to be answered");
    net.post_send(SERVER, b, &[1; 6000]);
    net.settle();
    net.nodes[SERVER].io.room = usize::MAX;
    let now_ns = net.now_ns;
    let mut pumps = 0;
    while net.act(SERVER, |engine, io| engine.pump(now_ns, b, 1, io)) == Pumped::More {
        pumps += 1;
    }
    assert!(pumps <= 10, "7 frames, and little beyond: {pumps}");
    net.settle();
    assert_eq!(
        net.log(CLIENT, a)[..2],
        [received(0, &[1; 6000]), sent(0, 6000)]
    );
    assert_no_open_exchange(&net);
}

#[test]
fn read_waits_for_the_port_and_for_an_ox_id() {
    let (mut net, a, _) = pair(RD, |_| {});
    net.nodes[CLIENT].io.room = 0;
    net.post_read(CLIENT, a, SOURCE, 100);
    net.settle();
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    let now_ns = net.now_ns;
    let pool = &mut net.nodes[CLIENT].engine.port.exchanges;
    let first = pool.open(now_ns).unwrap();
    while pool.open(now_ns).is_some() {}
    net.nodes[CLIENT].io.room = usize::MAX;
    let pumped = net.act(CLIENT, |engine, io| engine.pump(now_ns, a, 8, io));
    assert_eq!(pumped, Pumped::Blocked);
    let pool = &mut net.nodes[CLIENT].engine.port.exchanges;
    pool.close(first.ox_id, first.seq_cnt);
    net.pump(CLIENT);
    net.settle();
    assert_eq!(net.log(CLIENT, a), [sent(0, 100)]);
}

/// Read responses need no local OX_ID: they are sent while own messages wait for one.
#[test]
fn peers_read_is_served_without_a_free_ox_id() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        let now_ns = net.now_ns;
        let pool = &mut net.nodes[SERVER].engine.port.exchanges;
        let first = pool.open(now_ns).unwrap();
        while pool.open(now_ns).is_some() {}
        net.post_receive(CLIENT, a, 10);
        net.post_send(SERVER, b, b"waits");
        net.post_read(CLIENT, a, SOURCE, 10_000);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(0, 10_000)]);
        let pool = &mut net.nodes[SERVER].engine.port.exchanges;
        pool.close(first.ox_id, first.seq_cnt);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [received(0, b"waits")]);
    }
}

#[test]
fn a_read_at_unreliable_delivery_is_a_format_error() {
    for_each_topology(|| {
        let (mut net, a, b) = Net::connected(ReliabilityLevel::UnreliableDelivery);
        net.nodes[SERVER].io.register(7, 0x1000, 100);
        net.post_receive(SERVER, b, 100);
        net.post_read(CLIENT, a, SOURCE, 10);
        net.post_send(CLIENT, a, b"another");
        net.settle();
        let log = [send_failed(0, Status::FORMAT), sent(1, 7)];
        assert_eq!(net.log(CLIENT, a), log);
        assert!(net.frames(CLIENT, ReadRequest).is_empty());
        assert_eq!(net.log(SERVER, b), [received(0, b"another")]);
    });
}

#[test]
fn local_error_behind_a_read_completes_after_it() {
    for level in LEVELS {
        for fault_of_read in [false, true] {
            let (mut net, a, b) = pair(level, |_| {});
            net.nodes[SERVER].io.room = 0;
            net.post_read(CLIENT, a, SOURCE, 100);
            let mut faulty = if fault_of_read {
                read(SOURCE, 10)
            } else {
                Send::default()
            };
            faulty.fault = Status::PROTECTION;
            net.post(CLIENT, a, faulty);
            net.post_send(CLIENT, a, b"never sent");
            net.settle();
            assert_eq!(net.log(CLIENT, a), []);
            unblock_server(&mut net, usize::MAX);
            let expected = [
                sent(0, 100),
                send_failed(1, Status::PROTECTION),
                connection_lost_events()[0].clone(),
                send_failed(2, Status::FLUSHED),
                connection_lost_events()[1].clone(),
            ];
            assert_eq!(net.log(CLIENT, a), expected);
            assert_eq!(net.frames(CLIENT, SendRequest).len(), 0);
            assert_eq!(
                net.log(SERVER, b).last(),
                Some(&connection_lost_events()[1])
            );
        }
    }
}

/// The request itself cannot be sent: the memory of its descriptor is invalid.
#[test]
fn read_with_invalid_memory_fails_before_the_request() {
    for behind in [false, true] {
        let (mut net, a, _) = pair(RD, |_| {});
        net.nodes[SERVER].io.room = 0;
        if behind {
            net.post_read(CLIENT, a, SOURCE, 100);
        }
        let mut gone = Send {
            gone_from: Some(0),
            ..read(SOURCE, 100)
        };
        gone.fault = Status::PROTECTION;
        let id = net.post(CLIENT, a, gone);
        unblock_server(&mut net, usize::MAX);
        let log = net.log(CLIENT, a);
        assert!(log.contains(&send_failed(id, Status::PROTECTION)));
        assert_eq!(log.contains(&sent(0, 100)), behind);
        assert_eq!(log.last(), Some(&connection_lost_events()[1]));
    }
}

#[test]
fn read_data_restarts_the_response_timeout() {
    let (mut net, a, _) = pair(RD, |_| {});
    let ulp_ns = net.nodes[CLIENT].engine.config().ulp_timeout_ns;
    net.nodes[SERVER].io.room = 0;
    net.post_read(CLIENT, a, SOURCE, 4 * 2096);
    net.settle();
    for _ in 0..3 {
        net.advance(ulp_ns * 3 / 4);
        unblock_server(&mut net, 1);
        assert_eq!(net.log(CLIENT, a), []);
    }
    net.advance(ulp_ns);
    let partial = Status::TRANSPORT.with(Status::PARTIAL);
    assert_eq!(net.log(CLIENT, a)[0], send_failed(0, partial));
    assert_eq!(net.count(CLIENT, Counter::ResponseTimeouts), 1);
}

#[test]
fn message_ids_and_seq_cnt_wrap_in_the_middle_of_a_read() {
    let (mut net, a, b) = pair(RD, |_| {});
    for ox_id in 0..0xFFFF {
        net.nodes[CLIENT].engine.port.exchanges.close(ox_id, 0xFFFD);
    }
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        let ep = net.nodes[node].engine.endpoints[vi.slot()]
            .as_mut()
            .unwrap();
        ep.tx.as_mut().unwrap().next_msg_id = u32::MAX;
        ep.rx.reassembly.expected = u32::MAX;
    }
    for n in 0..3 {
        net.post_read(CLIENT, a, SOURCE, 10_000);
        net.post_send(CLIENT, a, &[n; 10]);
    }
    net.settle();
    let ids: Vec<u64> = net.log(CLIENT, a).iter().map(id_of_ok).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    let data = bytes_at(&net, 0, 10_000);
    assert!(net.read_data(CLIENT, a).iter().all(|(_, got)| *got == data));
    assert_no_open_exchange(&net);
}

#[test]
fn both_sides_read_at_once() {
    for_each_topology(|| {
        for level in LEVELS {
            let (mut net, a, b) = pair(level, |_| {});
            net.nodes[CLIENT].io.register(5, 0, 10_000);
            net.nodes[CLIENT].io.regions.get_mut(&5).unwrap().bytes = vec![0x5A; 10_000];
            for _ in 0..6 {
                net.post_read(CLIENT, a, SOURCE, 9_000);
                net.post_read(SERVER, b, (0, 5), 9_000);
            }
            net.settle();
            let there = bytes_at(&net, 0, 9_000);
            let got = net.read_data(CLIENT, a);
            assert_eq!(got.len(), 6);
            assert!(got.iter().all(|(_, data)| *data == there));
            let got = net.read_data(SERVER, b);
            assert_eq!(got.len(), 6);
            assert!(got.iter().all(|(_, data)| *data == vec![0x5A; 9_000]));
            assert_no_open_exchange(&net);
        }
    });
}

/// Ends a connection at each step of mixed traffic, in each way: all descriptors complete once and in order, and no
/// state remains.
#[test]
fn connection_that_ends_at_any_step_completes_all_descriptors() {
    type End = fn(&mut Net, ViIndex, ViIndex);
    let ends: [End; 4] = [
        |net, a, _| net.disconnect(CLIENT, a),
        |net, _, b| net.disconnect(SERVER, b),
        |net, _, _| {
            net.peer_lost(CLIENT, SERVER);
            net.peer_lost(SERVER, CLIENT);
        },
        |net, a, b| {
            let now_ns = net.now_ns;
            net.act(CLIENT, |engine, io| engine.fail_vi(now_ns, a, io));
            net.act(SERVER, |engine, io| engine.fail_vi(now_ns, b, io));
        },
    ];
    for level in LEVELS {
        for end in ends {
            let mut steps = 0;
            while run_until_end(level, steps, end) {
                steps += 1;
            }
            assert!(steps > 20);
        }
    }
}

/// Runs mixed traffic that ends after `steps` frames. Returns false if no frame was left by then.
fn run_until_end(
    level: ReliabilityLevel,
    steps: usize,
    end: fn(&mut Net, ViIndex, ViIndex),
) -> bool {
    let (mut net, a, b) = pair(level, |config| config.max_unanswered = 4);
    net.nodes[CLIENT].io.register(7, 0x1000, 20_000);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        for _ in 0..4 {
            net.post_receive(node, vi, 10_000);
        }
        net.nodes[node].io.room = 0;
        let fenced = Send {
            fence: true,
            data: vec![3; 10],
            ..Send::default()
        };
        let write = Send {
            data: vec![2; 5000],
            remote: Some(SOURCE),
            ..Send::default()
        };
        let sends = [read(SOURCE, 5000), write, fenced, read(SOURCE, 10)];
        for send in sends {
            net.post(node, vi, send);
        }
    }
    let mut frames_left = true;
    for _ in 0..steps {
        for node in [CLIENT, SERVER] {
            net.nodes[node].io.room = 1;
            net.pump(node);
        }
        frames_left = net.deliver_one();
    }
    for node in [CLIENT, SERVER] {
        net.nodes[node].io.room = usize::MAX;
    }
    end(&mut net, a, b);
    net.advance(60 * S);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        net.disconnect(node, vi);
        net.settle();
        let mut next = 0;
        for event in net.log(node, vi) {
            if let Event::Sent(id, status, _) = event {
                assert_eq!(id, next, "{level:?}, {steps} steps");
                next += 1;
                let legal = [Status::OK, Status::FLUSHED].contains(&status);
                assert!(legal, "{level:?}, {steps} steps: {status:?}");
            }
        }
        assert_eq!(next, 4);
        assert_eq!(net.nodes[node].io.vi(vi).in_flight, 0);
        let engine = &net.nodes[node].engine;
        assert_eq!(engine.exchange_usage().0, 0);
        assert_eq!(engine.port.timers.len(), 0);
    }
    frames_left
}

#[test]
fn attributes_advertise_the_read_limit() {
    for (configured, advertised) in [(5, 5), (0, 1), (1000, 256)] {
        let mut server = config(SERVER);
        server.max_reads_accepted = configured;
        let mut net = Net::new(vec![config(CLIENT), server], 4);
        for rdma_read in [true, false] {
            let vi = ViParams {
                rdma_read,
                ..params(RD)
            };
            let (a, b) = (net.create(CLIENT, vi), net.create(SERVER, vi));
            let listener = net.listen(SERVER, "x");
            net.request(CLIENT, a, "x", &[SERVER], None);
            net.settle();
            let conn = net.indication(SERVER, listener).unwrap().conn;
            net.accept(SERVER, conn, b).unwrap();
            net.settle();
            let remote = net.outcome(CLIENT, a).unwrap().unwrap();
            assert_eq!(remote.attributes.rdma_read, rdma_read);
            let endpoint = net.nodes[CLIENT].engine.endpoint(a).unwrap();
            assert_eq!(
                endpoint.connection.unwrap().remote.max_reads,
                if rdma_read { advertised } else { 0 }
            );
        }
    }
}
