//! Error handling by reliability level: one test per row of docs/spec/vi-engine-errors.md and level.

mod half_sent;
mod loss;
mod rdma;
mod reasons;

use fcvi_frame::iu::Opcode::DisconnectRequest;
use vi_types::{AsyncError, ReliabilityLevel, Status, ViIndex, ViParams, ViState};

use crate::Counter;
use crate::testkit::net::{CLIENT, Net, S, SERVER, params};
use crate::testkit::topology::{Topology, for_each_topology, topology};
use crate::testkit::{
    expected_events::{
        connection_lost_events, peer_disconnected_events, receive_failed, received, send_failed,
        sent, without_partial_data,
    },
    io::{Event, Receive, Received, Send},
};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
const INCOMPLETE: Status = Status::TRANSPORT.with(Status::PARTIAL);

/// A connected pair: three receives at the server, one send behind the faulty one at the client.
struct Case {
    net: Net,
    a: ViIndex,
    b: ViIndex,
}

impl Case {
    fn new(level: ReliabilityLevel) -> Self {
        Self::with_receives(level, &[64, 64, 64])
    }

    fn with_receives(level: ReliabilityLevel, capacities: &[u32]) -> Self {
        let (mut net, a, b) = Net::connected(level);
        for capacity_bytes in capacities {
            net.post_receive(SERVER, b, *capacity_bytes);
        }
        net.nodes[SERVER].io.register(7, 0x1000, 8192);
        Self { net, a, b }
    }

    fn write(&mut self, remote: (u64, u32), len: usize, immediate: Option<u32>) {
        let write = Send {
            data: vec![0xEE; len],
            remote: Some(remote),
            immediate,
            ..Send::default()
        };
        self.net.post(CLIENT, self.a, write);
    }

    /// Asserts that both sides see these events, stay connected and deliver the next message.
    fn stays_connected(mut self, client: &[Event], server: &[Event]) {
        self.net.settle();
        let (a, b) = (self.a, self.b);
        assert_eq!(self.net.log(CLIENT, a), client);
        let log = without_partial_data(self.net.log(SERVER, b));
        assert_eq!(log, server);
        let rx = self.net.post_receive(SERVER, b, 64);
        let first = self.net.nodes[SERVER].io.vi(b).receives[0].id;
        assert!(first <= rx);
        self.net.post_send(CLIENT, a, b"after");
        self.net.settle();
        assert_eq!(self.net.log(SERVER, b), [received(first, b"after")]);
        assert_eq!(self.net.count(CLIENT, Counter::Breaks), 0);
        assert_eq!(self.net.count(SERVER, Counter::Breaks), 0);
    }

    /// Asserts that both sides break once after these events, and that pending descriptors are flushed in order.
    fn breaks(mut self, client: &[Event], server: &[Event]) {
        self.net.settle();
        for (node, vi, events) in [(CLIENT, self.a, client), (SERVER, self.b, server)] {
            let log = without_partial_data(self.net.log(node, vi));
            assert_eq!(log[..events.len()], *events, "node {node}");
            let rest = &log[events.len()..];
            assert_eq!(
                rest.first(),
                Some(&connection_lost_events()[0]),
                "node {node}"
            );
            assert_eq!(
                rest.last(),
                Some(&connection_lost_events()[1]),
                "node {node}"
            );
            assert_flushed_in_order(&rest[1..rest.len() - 1]);
            assert_eq!(self.net.state(node, vi), ViState::Error);
            let queues = self.net.nodes[node].io.vi(vi);
            assert!(queues.sends.is_empty() && queues.receives.is_empty());
        }
        assert_eq!(self.net.total(Counter::Breaks), 2);
        self.net.advance(60 * S);
        for (node, vi) in [(CLIENT, self.a), (SERVER, self.b)] {
            assert_eq!(self.net.log(node, vi), []);
            assert_eq!(self.net.nodes[node].engine.exchange_usage().0, 0);
        }
    }
}

fn assert_flushed_in_order(events: &[Event]) {
    let (mut last_send, mut last_receive) = (None, None);
    for event in events {
        let (last, id, status) = match event {
            Event::Sent(id, status, 0) => (&mut last_send, *id, *status),
            Event::Received(Received { id, status, .. }) => (&mut last_receive, *id, *status),
            other => panic!("not a flushed descriptor: {other:?}"),
        };
        assert_eq!(status, Status::FLUSHED);
        assert!(last.is_none_or(|before| before < id));
        *last = Some(id);
    }
}

fn remote_write_failed(id: u64, status: Status) -> Event {
    let Event::Received(received) = receive_failed(id, status) else {
        unreachable!("a receive");
    };
    Event::Received(Received {
        remote_write: true,
        ..received
    })
}

// --- Local error of a send or write descriptor.

fn local_error(level: ReliabilityLevel, remote: Option<(u64, u32)>, fault: Status) -> Case {
    let mut case = Case::new(level);
    let io = &mut case.net.nodes[CLIENT].io;
    let faulty = Send {
        data: vec![1; 8],
        remote,
        fault,
        ..Send::default()
    };
    io.post_send(case.a, faulty);
    let second = Send {
        data: b"second".to_vec(),
        ..Send::default()
    };
    io.post_send(case.a, second);
    case.net.pump(CLIENT);
    case
}

const LOCAL_FAULTS: [Status; 3] = [Status::FORMAT, Status::PROTECTION, Status::LENGTH];

#[test]
fn local_error_ud() {
    for_each_topology(|| {
        for fault in LOCAL_FAULTS {
            for remote in [None, Some((0x1000, 7))] {
                local_error(UD, remote, fault).stays_connected(
                    &[send_failed(0, fault), sent(1, 6)],
                    &[received(0, b"second")],
                );
            }
        }
    });
}

#[test]
fn local_error_rd() {
    for_each_topology(|| {
        for fault in LOCAL_FAULTS {
            for remote in [None, Some((0x1000, 7))] {
                local_error(RD, remote, fault).breaks(&[send_failed(0, fault)], &[]);
            }
        }
    });
}

#[test]
fn local_error_rr() {
    for_each_topology(|| {
        for fault in LOCAL_FAULTS {
            for remote in [None, Some((0x1000, 7))] {
                local_error(RR, remote, fault).breaks(&[send_failed(0, fault)], &[]);
            }
        }
    });
}

fn memory_gone_while_sending(level: ReliabilityLevel, gone_from: u32, len: usize) -> Case {
    let mut case = Case::with_receives(level, &[9000, 9000, 9000]);
    let send = Send {
        data: vec![1; len],
        gone_from: Some(gone_from),
        ..Send::default()
    };
    case.net.post(CLIENT, case.a, send);
    case
}

#[test]
fn memory_gone_while_sending_ud() {
    for_each_topology(|| {
        let partial = Status::PROTECTION.with(Status::PARTIAL);
        // Without frames a message claims its receive descriptor before its first byte is read.
        let begun = match topology() {
            Topology::Wire | Topology::Port => &[] as &[Event],
            Topology::Shortcut => &[receive_failed(0, INCOMPLETE)],
        };
        let unread = [send_failed(0, Status::PROTECTION)];
        memory_gone_while_sending(UD, 0, 8).stays_connected(&unread, begun);
        memory_gone_while_sending(UD, 0, 5000).stays_connected(&unread, begun);
        let mut case = memory_gone_while_sending(UD, 3000, 5000);
        case.net.advance(3 * S);
        case.stays_connected(&[send_failed(0, partial)], &[receive_failed(0, INCOMPLETE)]);
    });
}

#[test]
fn memory_gone_while_sending_rd() {
    for_each_topology(|| {
        let partial = Status::PROTECTION.with(Status::PARTIAL);
        memory_gone_while_sending(RD, 0, 8).breaks(&[send_failed(0, Status::PROTECTION)], &[]);
        memory_gone_while_sending(RD, 3000, 5000).breaks(&[send_failed(0, partial)], &[]);
    });
}

#[test]
fn memory_gone_while_sending_rr() {
    for_each_topology(|| {
        let partial = Status::PROTECTION.with(Status::PARTIAL);
        memory_gone_while_sending(RR, 0, 8).breaks(&[send_failed(0, Status::PROTECTION)], &[]);
        memory_gone_while_sending(RR, 3000, 5000).breaks(&[send_failed(0, partial)], &[]);
    });
}

// --- A message arrives, no receive descriptor.

fn no_descriptor(level: ReliabilityLevel, remote: bool, len: usize) -> Case {
    let mut case = Case::with_receives(level, &[]);
    if remote {
        case.write((0x1000, 7), len, Some(5));
    } else {
        case.net.post_send(CLIENT, case.a, &vec![1; len]);
    }
    case
}

#[test]
fn no_descriptor_ud() {
    for_each_topology(|| {
        for remote in [false, true] {
            for len in [0, 5000] {
                let mut case = no_descriptor(UD, remote, len);
                case.net.settle();
                assert_eq!(case.net.count(SERVER, Counter::DropNoDescriptor), 1);
                let bytes = &case.net.nodes[SERVER].io.regions[&7].bytes;
                assert!(bytes.iter().all(|b| *b == 0));
                case.stays_connected(
                    &[sent(0, len as u32)],
                    &[Event::Async(AsyncError::ReceiveQueueEmpty)],
                );
            }
        }
    });
}

#[test]
fn no_descriptor_rd() {
    for_each_topology(|| {
        for remote in [false, true] {
            no_descriptor(RD, remote, 10).breaks(
                &[sent(0, 10)],
                &[Event::Async(AsyncError::ReceiveQueueEmpty)],
            );
        }
    });
}

#[test]
fn no_descriptor_rr() {
    for_each_topology(|| {
        for remote in [false, true] {
            for len in [0, 10, 5000] {
                no_descriptor(RR, remote, len).breaks(
                    &[send_failed(0, Status::REMOTE_DESCRIPTOR)],
                    &[Event::Async(AsyncError::ReceiveQueueEmpty)],
                );
            }
        }
    });
}

// --- Receive descriptor too small, or message above MaxTransferSize.

fn too_short(level: ReliabilityLevel, capacity: u32, len: usize) -> Case {
    let mut case = Case::with_receives(level, &[capacity, 64]);
    case.net.post_send(CLIENT, case.a, &vec![1; len]);
    case
}

#[test]
fn receive_too_short_ud() {
    for_each_topology(|| {
        for (capacity, len) in [(0, 1), (63, 64), (2096, 2097), (3000, 9000)] {
            too_short(UD, capacity, len)
                .stays_connected(&[sent(0, len as u32)], &[receive_failed(0, Status::LENGTH)]);
        }
    });
}

#[test]
fn receive_too_short_rd() {
    for_each_topology(|| {
        for (capacity, len) in [(0, 1), (63, 64), (2096, 2097), (3000, 9000)] {
            too_short(RD, capacity, len)
                .breaks(&[sent(0, len as u32)], &[receive_failed(0, Status::LENGTH)]);
        }
    });
}

#[test]
fn receive_too_short_rr() {
    for_each_topology(|| {
        for (capacity, len) in [(0, 1), (63, 64), (2096, 2097), (3000, 9000)] {
            too_short(RR, capacity, len).breaks(
                &[send_failed(0, Status::REMOTE_DESCRIPTOR)],
                &[receive_failed(0, Status::LENGTH)],
            );
        }
    });
}

fn above_max_transfer_size(level: ReliabilityLevel) -> Case {
    let mut net = Net::pair();
    let small = ViParams {
        max_transfer_bytes: 100,
        ..params(level)
    };
    let (a, b) = (net.create(CLIENT, small), net.create(SERVER, small));
    net.connect(a, b);
    net.clear_logs();
    net.post_receive(SERVER, b, 4096);
    // The sender's check is the task of its host, and absent here.
    net.post_send(CLIENT, a, &[1; 101]);
    Case { net, a, b }
}

#[test]
fn above_max_transfer_size_ud() {
    for_each_topology(|| {
        let failed = receive_failed(0, Status::LENGTH);
        above_max_transfer_size(UD).stays_connected(&[sent(0, 101)], &[failed]);
    });
}

#[test]
fn above_max_transfer_size_rd() {
    for_each_topology(|| {
        let failed = receive_failed(0, Status::LENGTH);
        above_max_transfer_size(RD).breaks(&[sent(0, 101)], &[failed]);
    });
}

#[test]
fn above_max_transfer_size_rr() {
    for_each_topology(|| {
        let failed = receive_failed(0, Status::LENGTH);
        above_max_transfer_size(RR).breaks(&[send_failed(0, Status::REMOTE_DESCRIPTOR)], &[failed]);
    });
}

// --- Receive descriptor malformed, or its memory not valid.

fn bad_receive(level: ReliabilityLevel, receive: Receive, remote: bool) -> Case {
    let mut case = Case::with_receives(level, &[]);
    case.net.nodes[SERVER].io.post_receive(case.b, receive);
    case.net.post_receive(SERVER, case.b, 64);
    if remote {
        case.write((0x1000, 7), 8, Some(1));
    } else {
        case.net.post_send(CLIENT, case.a, &[1; 8]);
    }
    case
}

fn faulty_receive(fault: Status) -> Receive {
    Receive {
        capacity_bytes: 64,
        fault,
        ..Receive::default()
    }
}

#[test]
fn receive_malformed_ud() {
    for_each_topology(|| {
        for fault in [Status::FORMAT, Status::PROTECTION] {
            let failed = receive_failed(0, fault);
            bad_receive(UD, faulty_receive(fault), false).stays_connected(&[sent(0, 8)], &[failed]);
            let failed = remote_write_failed(0, fault);
            bad_receive(UD, faulty_receive(fault), true).stays_connected(&[sent(0, 8)], &[failed]);
        }
    });
}

#[test]
fn receive_malformed_rd() {
    for_each_topology(|| {
        for fault in [Status::FORMAT, Status::PROTECTION] {
            let failed = receive_failed(0, fault);
            bad_receive(RD, faulty_receive(fault), false).breaks(&[sent(0, 8)], &[failed]);
            let failed = remote_write_failed(0, fault);
            bad_receive(RD, faulty_receive(fault), true).breaks(&[sent(0, 8)], &[failed]);
        }
    });
}

#[test]
fn receive_malformed_rr() {
    for_each_topology(|| {
        for fault in [Status::FORMAT, Status::PROTECTION] {
            let sender = [send_failed(0, Status::REMOTE_DESCRIPTOR)];
            let failed = receive_failed(0, fault);
            bad_receive(RR, faulty_receive(fault), false).breaks(&sender, &[failed]);
            let failed = remote_write_failed(0, fault);
            bad_receive(RR, faulty_receive(fault), true).breaks(&sender, &[failed]);
        }
    });
}

fn receive_memory_gone(level: ReliabilityLevel, gone_from: u32) -> Case {
    let mut case = Case::with_receives(level, &[]);
    let receive = Receive {
        capacity_bytes: 9000,
        gone_from: Some(gone_from),
        ..Receive::default()
    };
    case.net.nodes[SERVER].io.post_receive(case.b, receive);
    case.net.post_receive(SERVER, case.b, 64);
    case.net.post_send(CLIENT, case.a, &[1; 6000]);
    case
}

#[test]
fn receive_memory_gone_ud() {
    for_each_topology(|| {
        for gone_from in [0, 2096, 5999] {
            let failed = receive_failed(0, Status::PROTECTION);
            receive_memory_gone(UD, gone_from).stays_connected(&[sent(0, 6000)], &[failed]);
        }
    });
}

#[test]
fn receive_memory_gone_rd() {
    for_each_topology(|| {
        for gone_from in [0, 2096, 5999] {
            let failed = receive_failed(0, Status::PROTECTION);
            receive_memory_gone(RD, gone_from).breaks(&[sent(0, 6000)], &[failed]);
        }
    });
}

#[test]
fn receive_memory_gone_rr() {
    for_each_topology(|| {
        for gone_from in [0, 2096, 5999] {
            let failed = receive_failed(0, Status::PROTECTION);
            receive_memory_gone(RR, gone_from)
                .breaks(&[send_failed(0, Status::REMOTE_DESCRIPTOR)], &[failed]);
        }
    });
}

// --- The peer disconnects, or dies.

#[test]
fn peer_disconnects() {
    for_each_topology(|| {
        for level in [UD, RD, RR] {
            for closer in [CLIENT, SERVER] {
                let mut case = Case::new(level);
                let (vi, other, other_vi) = if closer == CLIENT {
                    (case.a, SERVER, case.b)
                } else {
                    (case.b, CLIENT, case.a)
                };
                case.net.post_receive(CLIENT, case.a, 1);
                case.net.disconnect(closer, vi);
                assert_eq!(case.net.state(closer, vi), ViState::Idle);
                let own = case.net.log(closer, vi);
                assert_eq!(own[0], Event::State(ViState::Idle));
                assert_flushed_in_order(&own[1..]);
                case.net.settle();
                let log = case.net.log(other, other_vi);
                assert_eq!(log.first(), Some(&peer_disconnected_events()[0]));
                assert_eq!(log.last(), Some(&peer_disconnected_events()[1]));
                assert_flushed_in_order(&log[1..log.len() - 1]);
                assert_eq!(case.net.log(closer, vi), []);
            }
        }
    });
}

#[test]
fn peer_dies() {
    for level in [UD, RD, RR] {
        let mut case = Case::new(level);
        case.net.peer_lost(SERVER, CLIENT);
        let log = case.net.log(SERVER, case.b);
        assert_eq!(log.first(), Some(&connection_lost_events()[0]));
        assert_eq!(log.last(), Some(&connection_lost_events()[1]));
        assert_flushed_in_order(&log[1..log.len() - 1]);
        // There is no peer to notify.
        assert!(case.net.frames(SERVER, DisconnectRequest).is_empty());
    }
}

// --- The consumer's own fatal errors (posted beyond the queue, memory deregistered).

#[test]
fn own_fatal_error() {
    for_each_topology(|| {
        for level in [UD, RD, RR] {
            let mut case = Case::new(level);
            let (now_ns, b) = (case.net.now_ns, case.b);
            case.net
                .act(SERVER, |engine, io| engine.fail_vi(now_ns, b, io));
            case.breaks(&[], &[]);
        }
        for pending in [false, true] {
            let mut net = Net::pair();
            let a = net.create(CLIENT, params(RD));
            if pending {
                net.request(CLIENT, a, "x", &[SERVER], None);
            }
            let now_ns = net.now_ns;
            net.act(CLIENT, |engine, io| engine.fail_vi(now_ns, a, io));
            assert_eq!(net.state(CLIENT, a), ViState::Error);
            assert_eq!(net.error(CLIENT, a).is_some(), pending);
            net.disconnect(CLIENT, a);
            assert_eq!(net.state(CLIENT, a), ViState::Idle);
            assert!(net.nodes[CLIENT].engine.destroy_vi(a));
        }
    });
}
