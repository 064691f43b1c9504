//! Limits of the engine's tables: no state grows with the number of connection attempts.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::seal;
use fcvi_frame::iu::Opcode::{ConnectResponse1, DisconnectRequest, ReadResponse, SendRequest};
use vi_types::{CallError, ReliabilityLevel, ViIndex, ViState};

use crate::Counter;
use crate::EngineConfig;
use crate::RecoveryConfig;

use crate::testkit::expected_events::received;
use crate::testkit::io::Send;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::transmit::TxStream;

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const US: u64 = 1_000;

#[test]
fn unmatched_requests_at_high_rate_leave_no_state() {
    let mut net = Net::pair();
    net.wire.tracing = false;
    let a = net.create(CLIENT, params(RD));
    for _ in 0..70_000 {
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.advance(5 * US);
        assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    }
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    assert_eq!(net.nodes[CLIENT].engine.port.timers.len(), 0);
    assert!(net.nodes[SERVER].engine.port.incoming.is_empty());
}

/// Requests that are cancelled at once leave quarantined OX_IDs and unanswered disconnects; neither delays messages.
#[test]
fn cancelled_requests_leave_ox_ids_for_messages() {
    let mut net = Net::new((0..3).map(config).collect(), 9);
    let (a, b) = net.join(RD);
    net.clear_logs();
    net.wire.tracing = false;
    let c = net.create(CLIENT, params(RD));
    net.wire.lose(2, None, u32::MAX);
    net.nodes[2].io.room = 0;
    for _ in 0..60_000 {
        net.request(CLIENT, c, "x", &[2], None);
        net.disconnect(CLIENT, c);
        assert_eq!(net.error(CLIENT, c), Some(CallError::InvalidState));
        net.advance(10 * US);
    }
    assert!(net.count(CLIENT, Counter::ControlNoRoom) > 0);
    assert!(net.count(CLIENT, Counter::CloseOverflows) > 0);
    for n in 0..1000 {
        net.post_receive(SERVER, b, 8);
        net.post_send(CLIENT, a, b"through");
        net.settle();
        assert_eq!(net.log(SERVER, b), [received(n, b"through")]);
    }
    net.disconnect(CLIENT, c);
    net.advance(60 * S);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}

#[test]
fn ten_thousand_connections_leave_no_state() {
    let mut net = Net::pair();
    net.wire.tracing = false;
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    for round in 0..10_000 {
        net.connect(a, b);
        assert!(net.nodes[CLIENT].engine.port.timers.len() <= 2);
        let (first, vi, second, other) = if round % 2 == 0 {
            (CLIENT, a, SERVER, b)
        } else {
            (SERVER, b, CLIENT, a)
        };
        net.disconnect(first, vi);
        net.settle();
        net.disconnect(second, other);
        net.clear_logs();
    }
    for node in &net.nodes {
        assert_eq!(node.engine.exchange_usage(), (0, 0));
        assert_eq!(node.engine.port.timers.len(), 0);
        assert!(node.engine.port.incoming.iter().all(Option::is_none));
        assert!(
            node.engine
                .port
                .pending_disconnects
                .iter()
                .all(Option::is_none)
        );
        assert_eq!(node.engine.port.peers.len(), 1);
        assert!(node.engine.listeners.is_empty());
    }
}

#[test]
fn unanswered_requests_are_limited_and_connections_continue() {
    let mut net = Net::pair();
    let (a, b) = net.join(RD);
    net.clear_logs();
    let vis: Vec<_> = (0..12).map(|_| net.create(CLIENT, params(RD))).collect();
    let mut listeners = Vec::new();
    for vi in &vis {
        listeners.push(net.listen(SERVER, "x"));
        net.request(CLIENT, *vi, "x", &[SERVER], None);
    }
    net.settle();
    assert_eq!(net.count(SERVER, Counter::DropIncomingFull), 4);
    for vi in &vis[8..] {
        assert_eq!(net.error(CLIENT, *vi), Some(CallError::NO_RESOURCES));
    }
    net.post_receive(SERVER, b, 8);
    net.post_send(CLIENT, a, b"continue");
    net.settle();
    assert_eq!(net.log(SERVER, b), [received(0, b"continue")]);
    // A rejected request is kept only until its slot is needed.
    let conn = net.indication(SERVER, listeners[0]).unwrap().conn;
    net.reject(SERVER, conn).unwrap();
    net.request(CLIENT, vis[8], "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.outcome(CLIENT, vis[8]), None);
}

/// Acceptances of requests that ended, which the server did not learn: each is answered with a disconnect.
#[test]
fn late_acceptances_leave_slots_for_real_disconnects() {
    let mut net = Net::pair_with(1, |config| config.r_a_tov_ns = 20 * S);
    let (a, b) = net.join(RD);
    let limit = net.nodes[CLIENT].engine.config().max_pending_disconnects as usize;
    net.wire.lose(CLIENT, DisconnectRequest, u32::MAX);
    let (mut late, mut vis) = (Vec::new(), Vec::new());
    for _ in 0..limit {
        let (c, d, conn) = net.request_pending(RD);
        net.wire.lose(SERVER, ConnectResponse1, 1);
        net.accept(SERVER, conn, d).expect("a match");
        net.disconnect(CLIENT, c);
        late.extend(net.frames(SERVER, ConnectResponse1).last().cloned());
        vis.push((c, d));
        net.disconnect(SERVER, d);
        net.nodes[CLIENT].engine.destroy_vi(c);
        net.nodes[SERVER].engine.destroy_vi(d);
    }
    // The cancellations have timed out, the acceptances arrive.
    net.advance(20 * S);
    net.wire.trace.clear();
    for frame in &late {
        net.inject(CLIENT, frame);
    }
    net.wire.clear_losses();
    assert_eq!(net.frames(CLIENT, DisconnectRequest).len(), limit / 2);
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.state(SERVER, b), ViState::Error);
    net.advance(60 * S);
    let mut pending = net.nodes[CLIENT].engine.port.pending_disconnects.iter();
    assert!(pending.all(Option::is_none));
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}

#[test]
fn a_destroyed_vi_leaves_no_timer() {
    let (mut net, a, b) = Net::connected(RD);
    net.post_receive(SERVER, b, 5000);
    net.wire.cut = true;
    net.post_send(CLIENT, a, &[1; 5000]);
    net.wire.cut = false;
    let first = net.frames(CLIENT, SendRequest)[0].clone();
    net.inject(SERVER, &first);
    assert_eq!(net.nodes[SERVER].engine.port.timers.len(), 1);
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    assert!(net.nodes[SERVER].engine.destroy_vi(b));
    assert_eq!(net.nodes[SERVER].engine.port.timers.len(), 0);
}

#[test]
fn a_timer_call_does_no_more_than_its_budget() {
    let mut net = Net::pair();
    net.wire.cut = true;
    for _ in 0..20 {
        let vi = net.create(CLIENT, params(RD));
        net.request(CLIENT, vi, "x", &[SERVER], Some(MS));
    }
    let now_ns = net.now_ns + MS;
    let idle = |net: &Net| {
        let state = |n| net.nodes[CLIENT].engine.state(ViIndex(n));
        (0..20).filter(|n| state(*n) == Some(ViState::Idle)).count()
    };
    let more = net.act(CLIENT, |engine, io| engine.handle_timeout(now_ns, 8, io));
    assert!(more);
    assert_eq!(idle(&net), 8);
    let more = net.act(CLIENT, |engine, io| engine.handle_timeout(now_ns, 12, io));
    assert!(!more);
    assert_eq!(idle(&net), 20);
}

/// Injects the frames of a whole connection with random bytes changed and the CRC corrected:
/// nothing panics and every table keeps its limit.
#[test]
fn random_frame_contents_cause_no_panic_and_keep_limits() {
    for level in [RD, ReliabilityLevel::ReliableReception] {
        for recovery in [None, Some(RecoveryConfig::default())] {
            let seed = 0xF0CC;
            println!("seed {seed:#x}, {level:?}, {recovery:?}");
            inject_random_frames(seed, level, recovery);
        }
    }
}

fn inject_random_frames(seed: u64, level: ReliabilityLevel, recovery: Option<RecoveryConfig>) {
    let mut rng = Rng::new(seed);
    let recovers = recovery.is_some();
    let configs = [CLIENT, SERVER].map(|node| EngineConfig {
        recovery: recovery.clone(),
        ..config(node)
    });
    let mut net = Net::new(configs.to_vec(), 1);
    let (a, b) = net.join(level);
    net.nodes[SERVER].io.register(7, 0, 8192);
    net.post_receive(SERVER, b, 5000);
    net.post_send(CLIENT, a, &[1; 5000]);
    let write = Send {
        data: vec![1; 5000],
        remote: Some((0, 7)),
        ..Send::default()
    };
    net.post(CLIENT, a, write);
    net.post_read(CLIENT, a, (0, 7), 5000);
    net.settle();
    if recovers {
        exercise_recovery(&mut net, a, b);
    }
    net.disconnect(CLIENT, a);
    net.settle();
    net.disconnect(SERVER, b);
    let frames: Vec<_> = net.wire.trace.drain(..).map(|s| s.bytes).collect();
    net.wire.tracing = false;
    let mut listener = net.listen(SERVER, "x");
    for round in 0..30_000 {
        if round % 100 == 0 {
            net.wire.cut = false;
            net.act(SERVER, |engine, io| engine.unlisten(listener, io));
            net.disconnect(CLIENT, a);
            net.disconnect(SERVER, b);
            net.advance(30 * S);
            net.connect(a, b);
            net.clear_logs();
            listener = net.listen(SERVER, "x");
            net.post_receive(SERVER, b, 5000);
            // A read and a message whose responses are pending.
            net.wire.cut = true;
            net.post_read(CLIENT, a, (0, 7), 5000);
            net.post_send(CLIENT, a, &[1; 5000]);
            // With recovery they stay pending only while no frame arrives.
            net.wire.cut = recovers && round % 200 == 0;
        }
        let mut frame = frames[rng.below(frames.len() as u64) as usize].clone();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(84.min(frame.len() as u64)) as usize;
            frame[at] = rng.next_u64() as u8;
        }
        let to = rng.below(2) as usize;
        if rng.below(4) > 0 {
            match_connection(&net, to, &mut frame, &mut rng);
        }
        let len = frame.len();
        let eof = if rng.below(4) > 0 { Eof::T } else { Eof::N };
        seal(&mut frame, len, eof).unwrap();
        net.inject(to, &frame);
        net.advance(rng.below(MS));
    }
}

/// Causes retransmitted frames, gap reports, a repeated read request and a piggybacked acknowledgement.
fn exercise_recovery(net: &mut Net, a: ViIndex, b: ViIndex) {
    for node in [CLIENT, SERVER] {
        net.wire.lose(node, SendRequest, 1);
        net.wire.lose(node, ReadResponse, 1);
    }
    for (node, vi, other, to) in [(CLIENT, a, SERVER, b), (SERVER, b, CLIENT, a)] {
        net.post_receive(other, to, 5000);
        net.post_receive(other, to, 8);
        net.post_send(node, vi, &[1; 5000]);
        net.post_send(node, vi, &[1; 8]);
    }
    net.post_read(CLIENT, a, (0, 7), 5000);
    net.advance(100 * MS);
    assert!(net.count(SERVER, Counter::TxGapReports) > 0);
    assert!(net.count(CLIENT, Counter::FramesResent) > 0);
    assert!(net.count(SERVER, Counter::ReadsRepeated) > 0);
}

/// Sets the handle of a frame to that of the destination's connection, and its message ID and OX_ID at random to those
/// of a request in flight or of the next expected message.
fn match_connection(net: &Net, to: usize, frame: &mut [u8], rng: &mut Rng) {
    let Some(ep) = net.nodes[to].engine.endpoints[0].as_ref() else {
        return;
    };
    frame[52..56].copy_from_slice(&ep.handle.to_be_bytes());
    let entry = |tx: &TxStream| tx.in_flight.get(rng.below(2) as usize).copied();
    let entry = ep.tx.as_deref().and_then(entry);
    match (entry, rng.below(3)) {
        (Some(entry), 0) => {
            frame[60..64].copy_from_slice(&entry.msg_id.to_be_bytes());
            frame[44..46].copy_from_slice(&entry.ox_id.to_be_bytes());
        }
        (_, 1) => frame[60..64].copy_from_slice(&ep.rx.reassembly.expected.to_be_bytes()),
        _ => {}
    }
}

#[test]
fn vi_allocation_uses_the_lowest_free_slot_once() {
    let mut net = Net::pair();
    let engine = &mut net.nodes[CLIENT].engine;
    let slots = engine.endpoints.len() as u32;
    for slot in 0..slots {
        assert_eq!(engine.create_vi(params(RD)), Some(ViIndex(slot)));
    }
    assert_eq!(engine.create_vi(params(RD)), None);
    let mut rng = Rng::new(7);
    for _ in 0..50 {
        let mut destroyed: Vec<_> = (0..5)
            .map(|_| ViIndex(rng.next_u64() as u32 % slots))
            .collect();
        destroyed.sort_unstable();
        destroyed.dedup();
        for vi in destroyed.iter().rev() {
            assert!(engine.destroy_vi(*vi));
            assert!(!engine.destroy_vi(*vi), "it is destroyed");
        }
        for vi in destroyed {
            assert_eq!(engine.create_vi(params(RD)), Some(vi));
        }
        assert_eq!(engine.create_vi(params(RD)), None);
    }
}
