//! RDMA reads, from the descriptor to the last byte.

use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{ReadRequest, ReadResponse, SendRequest};

use crate::testkit::host::{Event, Send};
use crate::testkit::net::{
    CLIENT, Net, S, SERVER, broken, config, params, read, received, send_failed, sent,
};
use crate::testkit::rng::Rng;
use crate::testkit::way::{Way, each_way, way};
use crate::{Counter, EngineConfig, Level, Pumped, Status, ViIndex};

const RD: Level = Level::ReliableDelivery;
const RR: Level = Level::ReliableReception;
const LEVELS: [Level; 2] = [RD, RR];
/// Where the server's region begins, and its handle.
const SOURCE: (u64, u32) = (0x1000, 7);

/// A connected pair, a region of random bytes at the server, and receives there.
fn pair(level: Level, adjust: impl Fn(&mut EngineConfig)) -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair_with(4, adjust);
    let (a, b) = net.join(level);
    net.clear_logs();
    net.wire.trace.clear();
    net.nodes[SERVER].host.register(7, 0x1000, 20_000);
    let bytes = Rng::new(9).bytes(20_000);
    net.nodes[SERVER].host.regions.get_mut(&7).unwrap().bytes = bytes;
    for _ in 0..10 {
        net.post_receive(SERVER, b, 10_000);
    }
    (net, a, b)
}

fn bytes_at(net: &Net, from: usize, len: usize) -> Vec<u8> {
    net.nodes[SERVER].host.regions[&7].bytes[from..from + len].to_vec()
}

/// The server's port has room again.
fn give_room(net: &mut Net, room: usize) {
    net.nodes[SERVER].host.room = room;
    net.pump(SERVER);
    net.settle();
}

fn nothing_open(net: &Net) {
    for node in [CLIENT, SERVER] {
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn reads_of_all_sizes_around_frame_boundaries_come_whole() {
    each_way(|| {
        for level in LEVELS {
            let (mut net, a, b) = pair(level, |_| {});
            let near = |n: usize| (n * 2096).saturating_sub(3)..=n * 2096 + 3;
            for size in (0..4).flat_map(near) {
                net.wire.trace.clear();
                let id = net.post_read(CLIENT, a, (0x1010, 7), size);
                let by_frames = way() != Way::Shortcut;
                let at_once = net.log(CLIENT, a);
                assert_eq!(at_once.is_empty(), by_frames);
                net.settle();
                let log = [at_once, net.log(CLIENT, a)].concat();
                assert_eq!(log, [sent(id, size as u32)]);
                assert_eq!(net.read_data(CLIENT, a), [(id, bytes_at(&net, 16, size))]);
                assert_eq!(net.log(SERVER, b), [], "the target's consumer sees nothing");
                let frames = size.div_ceil(2096).max(1);
                let [asked, answered] = if by_frames { [1, frames] } else { [0, 0] };
                let responses = net.ius().iter().filter(|iu| iu.1 == ReadResponse).count();
                assert_eq!(net.frames(CLIENT, ReadRequest).len(), asked);
                assert_eq!(responses, answered);
            }
            nothing_open(&net);
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
fn what_is_sent_behind_a_late_read_completes_behind_it() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        net.nodes[SERVER].host.room = 0;
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
        give_room(&mut net, responses + 1);
        assert_eq!(net.log(CLIENT, a), []);
        give_room(&mut net, 1);
        let mut log = vec![sent(0, 3000)];
        log.extend((1..4).map(|n| sent(n, 3000)));
        assert_eq!(net.log(CLIENT, a), log);
        give_room(&mut net, 1);
        assert_eq!(net.log(CLIENT, a), [sent(4, 10), sent(5, 4)]);
        nothing_open(&net);
    }
}

#[test]
fn a_fence_waits_for_every_read_before_it_and_for_nothing_else() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        net.nodes[SERVER].host.room = 0;
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
        give_room(&mut net, responses + 1);
        assert_eq!(net.log(SERVER, b), [], "one read is still open");
        give_room(&mut net, usize::MAX);
        assert_eq!(net.log(SERVER, b), [received(3, b"5"), received(4, b"6")]);
        let ids: Vec<u64> = net.log(CLIENT, a).iter().map(id_of_ok).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6]);
        nothing_open(&net);
    }
}

fn id_of_ok(event: &Event) -> u64 {
    match event {
        Event::Sent(id, Status::OK, _) => *id,
        other => panic!("not a send that went well: {other:?}"),
    }
}

#[test]
fn no_more_reads_are_asked_for_than_the_peer_takes() {
    for level in LEVELS {
        for limit in [1, 3] {
            let (mut net, a, _) = pair(level, |config| config.max_reads_accepted = limit);
            net.nodes[SERVER].host.room = 0;
            for n in 0..8 {
                net.post_read(CLIENT, a, (0x1000 + n, 7), 100);
            }
            net.settle();
            let asked = |net: &Net| net.frames(CLIENT, ReadRequest).len();
            assert_eq!(asked(&net), usize::from(limit));
            give_room(&mut net, 1);
            assert_eq!(asked(&net), usize::from(limit) + 1);
            give_room(&mut net, usize::MAX);
            let log: Vec<_> = (0..8).map(|n| sent(n, 100)).collect();
            assert_eq!(net.log(CLIENT, a), log);
            let data: Vec<_> = (0..8)
                .map(|n| (n, bytes_at(&net, n as usize, 100)))
                .collect();
            assert_eq!(net.read_data(CLIENT, a), data);
            assert_eq!(net.count(SERVER, Counter::DropTooManyReads), 0);
            nothing_open(&net);
        }
    }
}

#[test]
fn what_waits_behind_a_read_is_limited() {
    for level in LEVELS {
        for limit in [1, 3] {
            let (mut net, a, b) = pair(level, |config| config.max_unanswered = limit);
            net.nodes[SERVER].host.room = 0;
            net.post_read(CLIENT, a, SOURCE, 100);
            for n in 1..8 {
                net.post_send(CLIENT, a, &[n; 8]);
            }
            net.settle();
            let placed = net.nodes[SERVER].host.vi(b).log.len();
            assert_eq!(placed, limit as usize - 1);
            give_room(&mut net, usize::MAX);
            let ids: Vec<u64> = net.log(CLIENT, a).iter().map(id_of_ok).collect();
            assert_eq!(ids, (0..8).collect::<Vec<_>>());
            assert_eq!(net.log(SERVER, b).len(), 7);
            nothing_open(&net);
        }
    }
}

#[test]
fn answers_and_our_own_messages_take_turns() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        net.post_receive(CLIENT, a, 20_000);
        net.nodes[SERVER].host.room = 0;
        net.post_read(CLIENT, a, SOURCE, 8 * 2096);
        net.post_send(SERVER, b, &[1; 8 * 2096]);
        net.settle();
        net.wire.trace.clear();
        for _ in 0..12 {
            net.nodes[SERVER].host.room = 1;
            net.pump(SERVER);
        }
        let from_server: Vec<_> = net.ius().into_iter().filter(|iu| iu.0 == SERVER).collect();
        let count = |opcode| from_server.iter().filter(|iu| iu.1 == opcode).count();
        assert_eq!(count(ReadResponse), 6);
        assert_eq!(count(SendRequest), 6);
        give_room(&mut net, usize::MAX);
        assert_eq!(net.read_data(CLIENT, a), [(0, bytes_at(&net, 0, 8 * 2096))]);
        assert_eq!(net.log(SERVER, b), [sent(0, 8 * 2096)]);
        nothing_open(&net);
    }
}

#[test]
fn a_budget_of_one_frame_serves_everything_in_the_end() {
    let (mut net, a, b) = pair(RR, |_| {});
    net.post_receive(CLIENT, a, 20_000);
    net.nodes[SERVER].host.room = 0;
    net.post_read(CLIENT, a, SOURCE, 6000);
    net.post_send(CLIENT, a, b"to be answered");
    net.post_send(SERVER, b, &[1; 6000]);
    net.settle();
    net.nodes[SERVER].host.room = usize::MAX;
    let now_ns = net.now_ns;
    let mut pumps = 0;
    while net.act(SERVER, |engine, host| engine.pump(now_ns, b, 1, host)) == Pumped::More {
        pumps += 1;
    }
    assert!(pumps <= 10, "7 frames, and little beyond: {pumps}");
    net.settle();
    assert_eq!(
        net.log(CLIENT, a)[..2],
        [received(0, &[1; 6000]), sent(0, 6000)]
    );
    nothing_open(&net);
}

#[test]
fn a_read_waits_for_room_in_the_port_and_for_an_ox_id() {
    let (mut net, a, _) = pair(RD, |_| {});
    net.nodes[CLIENT].host.room = 0;
    net.post_read(CLIENT, a, SOURCE, 100);
    net.settle();
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    let now_ns = net.now_ns;
    let pool = &mut net.nodes[CLIENT].engine.exchanges;
    let first = pool.open(now_ns).unwrap();
    while pool.open(now_ns).is_some() {}
    net.nodes[CLIENT].host.room = usize::MAX;
    let pumped = net.act(CLIENT, |engine, host| engine.pump(now_ns, a, 8, host));
    assert_eq!(pumped, Pumped::Blocked);
    let pool = &mut net.nodes[CLIENT].engine.exchanges;
    pool.close(first.ox_id, first.seq_cnt);
    net.pump(CLIENT);
    net.settle();
    assert_eq!(net.log(CLIENT, a), [sent(0, 100)]);
}

/// Answers need no OX_ID of ours: they go on while our own messages wait for one.
#[test]
fn a_peers_read_is_served_while_we_have_no_ox_id() {
    for level in LEVELS {
        let (mut net, a, b) = pair(level, |_| {});
        let now_ns = net.now_ns;
        let pool = &mut net.nodes[SERVER].engine.exchanges;
        let first = pool.open(now_ns).unwrap();
        while pool.open(now_ns).is_some() {}
        net.post_receive(CLIENT, a, 10);
        net.post_send(SERVER, b, b"waits");
        net.post_read(CLIENT, a, SOURCE, 10_000);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(0, 10_000)]);
        let pool = &mut net.nodes[SERVER].engine.exchanges;
        pool.close(first.ox_id, first.seq_cnt);
        net.settle();
        assert_eq!(net.log(CLIENT, a), [received(0, b"waits")]);
    }
}

#[test]
fn a_read_at_unreliable_delivery_is_a_format_error() {
    each_way(|| {
        let (mut net, a, b) = Net::connected(Level::UnreliableDelivery);
        net.nodes[SERVER].host.register(7, 0x1000, 100);
        net.post_receive(SERVER, b, 100);
        net.post_read(CLIENT, a, SOURCE, 10);
        net.post_send(CLIENT, a, b"goes on");
        net.settle();
        let log = [send_failed(0, Status::FORMAT), sent(1, 7)];
        assert_eq!(net.log(CLIENT, a), log);
        assert!(net.frames(CLIENT, ReadRequest).is_empty());
        assert_eq!(net.log(SERVER, b), [received(0, b"goes on")]);
    });
}

#[test]
fn a_local_fault_behind_a_read_waits_for_it() {
    for level in LEVELS {
        for fault_of_read in [false, true] {
            let (mut net, a, b) = pair(level, |_| {});
            net.nodes[SERVER].host.room = 0;
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
            give_room(&mut net, usize::MAX);
            let expected = [
                sent(0, 100),
                send_failed(1, Status::PROTECTION),
                broken()[0].clone(),
                send_failed(2, Status::FLUSHED),
                broken()[1].clone(),
            ];
            assert_eq!(net.log(CLIENT, a), expected);
            assert_eq!(net.frames(CLIENT, SendRequest).len(), 0);
            assert_eq!(net.log(SERVER, b).last(), Some(&broken()[1]));
        }
    }
}

/// The request itself cannot be sent: its descriptor's memory went.
#[test]
fn a_read_whose_memory_went_before_it_was_asked_for() {
    for behind in [false, true] {
        let (mut net, a, _) = pair(RD, |_| {});
        net.nodes[SERVER].host.room = 0;
        if behind {
            net.post_read(CLIENT, a, SOURCE, 100);
        }
        let mut gone = Send {
            gone_from: Some(0),
            ..read(SOURCE, 100)
        };
        gone.fault = Status::PROTECTION;
        let id = net.post(CLIENT, a, gone);
        give_room(&mut net, usize::MAX);
        let log = net.log(CLIENT, a);
        assert!(log.contains(&send_failed(id, Status::PROTECTION)));
        assert_eq!(log.contains(&sent(0, 100)), behind);
        assert_eq!(log.last(), Some(&broken()[1]));
    }
}

#[test]
fn data_that_comes_gives_the_rest_its_time() {
    let (mut net, a, _) = pair(RD, |_| {});
    let ulp_ns = net.nodes[CLIENT].engine.config().ulp_timeout_ns;
    net.nodes[SERVER].host.room = 0;
    net.post_read(CLIENT, a, SOURCE, 4 * 2096);
    net.settle();
    for _ in 0..3 {
        net.advance(ulp_ns * 3 / 4);
        give_room(&mut net, 1);
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
        net.nodes[CLIENT].engine.exchanges.close(ox_id, 0xFFFD);
    }
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        let ep = net.nodes[node].engine.endpoints[vi.slot()]
            .as_mut()
            .unwrap();
        ep.tx.as_mut().unwrap().next_msg_id = u32::MAX;
        ep.rx.expected = u32::MAX;
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
    nothing_open(&net);
}

#[test]
fn both_ends_read_at_once() {
    each_way(|| {
        for level in LEVELS {
            let (mut net, a, b) = pair(level, |_| {});
            net.nodes[CLIENT].host.register(5, 0, 10_000);
            net.nodes[CLIENT].host.regions.get_mut(&5).unwrap().bytes = vec![0x5A; 10_000];
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
            nothing_open(&net);
        }
    });
}

/// The connection ends at any moment of a mixed life, in any way: everything posted completes
/// once and in order, and nothing is left.
#[test]
fn a_connection_may_end_in_the_middle_of_everything() {
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
            net.act(CLIENT, |engine, host| engine.fail_vi(now_ns, a, host));
            net.act(SERVER, |engine, host| engine.fail_vi(now_ns, b, host));
        },
    ];
    for level in LEVELS {
        for end in ends {
            let mut steps = 0;
            while life(level, steps, end) {
                steps += 1;
            }
            assert!(steps > 20);
        }
    }
}

/// One such life that ends after so many frames. False if it was over by then.
fn life(level: Level, steps: usize, end: fn(&mut Net, ViIndex, ViIndex)) -> bool {
    let (mut net, a, b) = pair(level, |config| config.max_unanswered = 4);
    net.nodes[CLIENT].host.register(7, 0x1000, 20_000);
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        for _ in 0..4 {
            net.post_receive(node, vi, 10_000);
        }
        net.nodes[node].host.room = 0;
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
    let mut going = true;
    for _ in 0..steps {
        for node in [CLIENT, SERVER] {
            net.nodes[node].host.room = 1;
            net.pump(node);
        }
        going = net.deliver_one();
    }
    for node in [CLIENT, SERVER] {
        net.nodes[node].host.room = usize::MAX;
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
        assert_eq!(net.nodes[node].host.vi(vi).in_flight, 0);
        let engine = &net.nodes[node].engine;
        assert_eq!(engine.exchange_usage().0, 0);
        assert_eq!(engine.timers.len(), 0);
    }
    going
}

#[test]
fn attributes_tell_how_many_reads_are_taken() {
    for (configured, told) in [(5, 5), (0, 1), (1000, 256)] {
        let mut server = config(SERVER);
        server.max_reads_accepted = configured;
        let mut net = Net::new(vec![config(CLIENT), server], 4);
        for rdma_read in [true, false] {
            let vi = crate::ViParams {
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
            assert_eq!(
                remote.attributes.max_reads,
                if rdma_read { told } else { 0 }
            );
        }
    }
}
