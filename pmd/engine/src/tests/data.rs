//! Message delivery: sizes around frame boundaries, immediate data, RDMA writes.

use fcvi_frame::fcoe::Sof;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{SendRequest, WriteRequest};
use vi_types::{Pumped, ReliabilityLevel, Status, ViParams};

use crate::Counter;
use crate::testkit::net::{CLIENT, Net, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::topology::{Topology, for_each_topology, topology};
use crate::testkit::{
    expected_events::{received, sent},
    io::{Event, Received, Send},
};

const LEVELS: [ReliabilityLevel; 2] = [
    ReliabilityLevel::UnreliableDelivery,
    ReliabilityLevel::ReliableDelivery,
];
/// User bytes in a full frame with a device_header of 16 and of 32 bytes.
const SEND_CAPACITY: usize = 2112 - 16;
const WRITE_CAPACITY: usize = 2112 - 32;

/// Returns the sizes within 5 bytes of a multiple of `capacity`.
fn sizes(capacity: usize) -> Vec<usize> {
    let near = |n: usize| (n * capacity).saturating_sub(5)..=n * capacity + 5;
    (0..4).flat_map(near).collect()
}

#[test]
fn sends_of_all_sizes_around_frame_boundaries_arrive_whole() {
    for_each_topology(|| {
        for level in LEVELS {
            let (mut net, a, b) = Net::connected(level);
            let mut rng = Rng::new(11);
            for size in sizes(SEND_CAPACITY) {
                let data = rng.bytes(size);
                net.wire.trace.clear();
                let (rx, tx) = (
                    net.post_receive(SERVER, b, size as u32),
                    net.post_send(CLIENT, a, &data),
                );
                assert_eq!(net.log(CLIENT, a), [sent(tx, size as u32)]);
                net.settle();
                assert_eq!(net.log(SERVER, b), [received(rx, &data)], "{size} bytes");
                let frames = net.frames(CLIENT, SendRequest);
                let expected = match topology() {
                    Topology::Wire | Topology::Port => size.div_ceil(SEND_CAPACITY).max(1),
                    Topology::Shortcut => 0,
                };
                assert_eq!(frames.len(), expected);
            }
            let messages = sizes(SEND_CAPACITY).len() as u64;
            assert_eq!(net.count(CLIENT, Counter::TxMessages), messages);
            assert_eq!(net.count(SERVER, Counter::RxMessages), messages);
            assert_eq!(
                net.count(CLIENT, Counter::TxFrames),
                net.count(SERVER, Counter::RxFrames)
            );
            assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
        }
    });
}

#[test]
fn rdma_writes_of_all_sizes_around_frame_boundaries_arrive_whole() {
    for_each_topology(|| {
        for level in LEVELS {
            let (mut net, a, b) = Net::connected(level);
            let mut rng = Rng::new(12);
            for size in sizes(WRITE_CAPACITY) {
                let data = rng.bytes(size);
                net.nodes[SERVER].io.register(7, 0x1000, size + 32);
                let write = Send {
                    data: data.clone(),
                    remote: Some((0x1010, 7)),
                    ..Send::default()
                };
                let tx = net.post(CLIENT, a, write);
                net.settle();
                assert_eq!(net.log(CLIENT, a), [sent(tx, size as u32)]);
                assert_eq!(net.log(SERVER, b), []);
                let bytes = &net.nodes[SERVER].io.regions[&7].bytes;
                assert_eq!(bytes[16..16 + size], data);
                assert!(bytes[..16].iter().all(|b| *b == 0));
                assert!(bytes[16 + size..].iter().all(|b| *b == 0));
            }
        }
    });
}

#[test]
fn immediate_data_arrives_with_sends_and_consumes_a_receive_with_writes() {
    for_each_topology(|| {
        for level in LEVELS {
            let (mut net, a, b) = Net::connected(level);
            net.nodes[SERVER].io.register(7, 0, 5000);
            for size in [0, 1, 3000] {
                for remote in [None, Some((0, 7))] {
                    let rx = net.post_receive(SERVER, b, if remote.is_some() { 0 } else { 3000 });
                    let data = vec![9; size];
                    let send = Send {
                        data: data.clone(),
                        immediate: Some(0x8000_0001),
                        remote,
                        ..Send::default()
                    };
                    net.post(CLIENT, a, send);
                    net.settle();
                    let placed = if remote.is_some() { Vec::new() } else { data };
                    let expected = Received {
                        id: rx,
                        status: Status::OK,
                        length_bytes: size as u32,
                        immediate: Some(0x8000_0001),
                        remote_write: remote.is_some(),
                        data: placed,
                    };
                    assert_eq!(net.log(SERVER, b), [Event::Received(expected)]);
                }
            }
        }
    });
}

#[test]
fn a_receive_may_be_longer_than_the_message() {
    for_each_topology(|| {
        let (mut net, a, b) = Net::connected(ReliabilityLevel::ReliableDelivery);
        net.post_receive(SERVER, b, 100_000);
        net.post_send(CLIENT, a, b"short");
        net.settle();
        assert_eq!(net.log(SERVER, b), [received(0, b"short")]);
    });
}

#[test]
fn messages_of_both_directions_and_of_many_vis_do_not_mix() {
    for_each_topology(|| {
        let mut net = Net::pair();
        let pairs: Vec<_> = (0..8)
            .map(|_| net.join(ReliabilityLevel::ReliableDelivery))
            .collect();
        net.clear_logs();
        let data = |node: usize, vi: usize, n: u8| vec![n ^ (vi as u8) << 4; 100 + 3000 * node];
        for (at, (a, b)) in pairs.iter().enumerate() {
            for (node, vi) in [(CLIENT, *a), (SERVER, *b)] {
                for n in 0..4 {
                    net.post_receive(node, vi, 8000);
                    net.nodes[node].io.post_send(
                        vi,
                        Send {
                            data: data(node, at, n),
                            ..Send::default()
                        },
                    );
                }
            }
        }
        // One frame of each VI in turn.
        for _ in 0..100 {
            for node in [CLIENT, SERVER] {
                for (a, b) in &pairs {
                    let vi = if node == CLIENT { *a } else { *b };
                    let now_ns = net.now_ns;
                    net.act(node, |engine, io| engine.pump(now_ns, vi, 1, io));
                }
            }
        }
        net.settle();
        for (at, (a, b)) in pairs.iter().enumerate() {
            for (node, vi) in [(CLIENT, *a), (SERVER, *b)] {
                let log = net.log(node, vi);
                let got: Vec<_> = log
                    .iter()
                    .filter(|e| matches!(e, Event::Received(_)))
                    .cloned()
                    .collect();
                let peer = 1 - node;
                let expected: Vec<_> = (0..4)
                    .map(|n| received(u64::from(n), &data(peer, at, n)))
                    .collect();
                assert_eq!(got, expected);
                assert_eq!(log.len(), 8);
            }
        }
    });
}

#[test]
fn connection_uses_the_smaller_data_field_size() {
    for smaller in [CLIENT, SERVER] {
        let mut configs = vec![config(CLIENT), config(SERVER)];
        configs[smaller].data_field_bytes = 257;
        let mut net = Net::new(configs, 4);
        let (a, b) = net.join(ReliabilityLevel::ReliableDelivery);
        net.clear_logs();
        net.post_receive(SERVER, b, 1000);
        let data: Vec<u8> = (0..1000).map(|n| n as u8).collect();
        net.post_send(CLIENT, a, &data);
        net.settle();
        assert_eq!(net.log(SERVER, b), [received(0, &data)]);
        // 257 rounded down to a multiple of 4 is 256.
        let frames = net.frames(CLIENT, SendRequest);
        assert_eq!(frames.len(), 1000_usize.div_ceil(240));
    }
}

/// The fields by which a network monitor follows a message [FCVI P-3, P-10].
#[test]
fn frames_of_a_message_are_numbered_in_their_exchange() {
    let (mut net, a, b) = Net::connected(ReliabilityLevel::ReliableDelivery);
    for _ in 0..2 {
        net.post_receive(SERVER, b, 10_000);
        net.post_send(CLIENT, a, &[1; 5001]);
    }
    let frames = net.frames(CLIENT, SendRequest);
    let views: Vec<_> = frames
        .iter()
        .map(|f| FrameView::parse(f).unwrap())
        .collect();
    assert_eq!(views.len(), 6);
    for (at, view) in views.iter().enumerate() {
        let fragment = at % 3;
        let first = &views[at - fragment];
        let message = view.iu().unwrap().header;
        assert_eq!(message.msg_id, first.iu().unwrap().header.msg_id);
        assert_eq!(view.fc.ox_id, first.fc.ox_id);
        assert_eq!(view.fc.seq_id, first.fc.seq_id);
        assert_eq!(view.fc.seq_cnt, first.fc.seq_cnt + fragment as u16);
        assert_eq!(view.fc.parameter as usize, fragment * SEND_CAPACITY);
        let (sof, f_ctl) = match fragment {
            0 => (Sof::I3, 0x30_0008),
            1 => (Sof::N3, 0x30_0008),
            _ => (Sof::N3, 0x38_0008 | 3),
        };
        assert_eq!((view.sof, view.fc.f_ctl.0), (sof, f_ctl));
    }
    assert_ne!(views[0].fc.ox_id, views[3].fc.ox_id);
    let ids: Vec<u32> = [0, 3]
        .map(|n| views[n].iu().unwrap().header.msg_id)
        .to_vec();
    assert_eq!(ids[1], ids[0].wrapping_add(1));
}

#[test]
fn full_port_blocks_a_message_that_resumes_later() {
    for size in [10, 10_000] {
        let (mut net, a, b) = Net::connected(ReliabilityLevel::ReliableDelivery);
        let data = Rng::new(5).bytes(size);
        net.post_receive(SERVER, b, size as u32);
        net.nodes[CLIENT].io.room = 0;
        net.post_send(CLIENT, a, &data);
        for _ in 0..10 {
            let now_ns = net.now_ns;
            let pumped = net.act(CLIENT, |engine, io| engine.pump(now_ns, a, 8, io));
            assert!(matches!(pumped, Pumped::Blocked | Pumped::Idle));
            net.nodes[CLIENT].io.room = 1;
        }
        net.settle();
        assert_eq!(net.log(CLIENT, a), [sent(0, size as u32)]);
        assert_eq!(net.log(SERVER, b), [received(0, &data)]);
        assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    }
}

#[test]
fn exhausted_ox_id_pool_delays_a_message() {
    let (mut net, a, b) = Net::connected(ReliabilityLevel::ReliableDelivery);
    let now_ns = net.now_ns;
    let pool = &mut net.nodes[CLIENT].engine.port.exchanges;
    let first = pool.open(now_ns).unwrap();
    while pool.open(now_ns).is_some() {}
    net.post_receive(SERVER, b, 8);
    net.post_send(CLIENT, a, b"waits");
    assert_eq!(net.log(CLIENT, a), []);
    let pool = &mut net.nodes[CLIENT].engine.port.exchanges;
    pool.close(first.ox_id, first.seq_cnt);
    net.pump(CLIENT);
    net.settle();
    assert_eq!(net.log(SERVER, b), [received(0, b"waits")]);
}

#[test]
fn message_ids_wrap() {
    for level in LEVELS {
        let (mut net, a, b) = Net::connected(level);
        for (node, vi) in [(CLIENT, a), (SERVER, b)] {
            let ep = net.nodes[node].engine.endpoints[vi.slot()]
                .as_mut()
                .unwrap();
            ep.tx.as_mut().unwrap().next_msg_id = u32::MAX;
            ep.rx.reassembly.expected = u32::MAX;
        }
        for n in 0..3 {
            net.post_receive(SERVER, b, 5000);
            net.post_send(CLIENT, a, &[n; 5000]);
            net.settle();
            assert_eq!(net.log(SERVER, b), [received(n.into(), &[n; 5000])]);
        }
    }
}

#[test]
fn seq_cnt_wraps_in_the_middle_of_a_message() {
    let (mut net, a, b) = Net::connected(ReliabilityLevel::ReliableDelivery);
    for ox_id in 0..0xFFFF {
        net.nodes[CLIENT].engine.port.exchanges.close(ox_id, 0xFFFE);
    }
    net.post_receive(SERVER, b, 10_000);
    net.post_send(CLIENT, a, &[3; 10_000]);
    net.settle();
    assert_eq!(net.log(SERVER, b), [received(0, &[3; 10_000])]);
}

#[test]
fn message_of_max_transfer_size_is_delivered() {
    for_each_topology(|| {
        let mut net = Net::pair();
        let size = ViParams {
            max_transfer_bytes: 70_000,
            ..params(ReliabilityLevel::ReliableDelivery)
        };
        let (a, b) = (net.create(CLIENT, size), net.create(SERVER, size));
        net.connect(a, b);
        net.clear_logs();
        let data = Rng::new(6).bytes(70_000);
        net.post_receive(SERVER, b, 70_000);
        net.post_send(CLIENT, a, &data);
        net.settle();
        assert_eq!(net.log(SERVER, b), [received(0, &data)]);
        assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
        assert_eq!(net.frames(CLIENT, WriteRequest).len(), 0);
    });
}
