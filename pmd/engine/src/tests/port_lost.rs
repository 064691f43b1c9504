//! Loss of the local port: every VI goes to Error, pending operations end, and nothing more is sent.

use fcvi_frame::iu::Opcode::{self, ConnectResponse2 as Resp2, ConnectResponse3 as Resp3};
use vi_types::{AsyncError, CallError, ReliabilityLevel, Status, ViIndex, ViState};

use crate::testkit::net::{CLIENT, Net, S, SERVER, params};
use crate::testkit::{expected_events::receive_failed, io::Event};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

fn lose_port(net: &mut Net, node: usize) {
    let now_ns = net.now_ns;
    net.act(node, |engine, io| engine.port_lost(now_ns, io));
}

/// Returns client and server VIs after `steps` steps: 1 requested, 2 accepted without RESP2, 3 connected,
/// 4 disconnected by the client.
fn vis_after(steps: u32) -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    let listener = net.listen(SERVER, "x");
    if steps >= 1 {
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
    }
    if steps >= 2 {
        if steps == 2 {
            net.wire.lose(CLIENT, Resp2, u32::MAX);
        }
        let conn = net.indication(SERVER, listener).unwrap().conn;
        net.accept(SERVER, conn, b).unwrap();
        net.settle();
    }
    if steps == 4 {
        net.disconnect(CLIENT, a);
        net.settle();
    }
    (net, a, b)
}

#[test]
fn port_loss_moves_every_vi_to_error_and_stops_traffic() {
    for steps in 0..5 {
        for node in [CLIENT, SERVER] {
            let (mut net, a, b) = vis_after(steps);
            let vi = [a, b][node];
            let before = net.state(node, vi);
            net.outcome(node, vi);
            net.clear_logs();
            net.wire.trace.clear();
            for _ in 0..2 {
                net.post_receive(node, vi, 10);
            }
            lose_port(&mut net, node);
            assert_eq!(net.state(node, vi), ViState::Error, "{steps} {node}");
            let log = net.log(node, vi);
            if before != ViState::Error {
                let flushed: Vec<&Event> = log
                    .iter()
                    .filter(|event| matches!(event, Event::Received(_)))
                    .collect();
                let [first, second] = [0, 1].map(|id| receive_failed(id, Status::FLUSHED));
                assert_eq!(flushed, [&first, &second], "{steps} {node}");
            }
            let lost = log.contains(&Event::Async(AsyncError::ConnectionLost));
            assert_eq!(lost, before == ViState::Connected, "{steps} {node}");
            match (before, node) {
                (ViState::ConnectPending, CLIENT) => {
                    assert_eq!(net.error(node, vi), Some(CallError::NotReachable));
                }
                (ViState::ConnectPending, _) => {
                    assert_eq!(net.error(node, vi), Some(CallError::Timeout));
                }
                _ => assert!(net.outcome(node, vi).is_none()),
            }
            assert_eq!(net.nodes[node].engine.exchange_usage().0, 0);
            net.wire.cut = true;
            net.advance(60 * S);
            let sent = net.ius().iter().any(|(from, _)| *from == node);
            assert!(!sent, "{steps} {node}: nothing can be sent");
            assert_eq!(
                net.nodes[node].engine.port.timers.len(),
                0,
                "{steps} {node}"
            );
            net.disconnect(node, vi);
            assert_eq!(net.state(node, vi), ViState::Idle);
            assert!(net.nodes[node].engine.destroy_vi(vi));
        }
    }
}

/// Returns a VI of `node` with a pending peer request. If `lost` is given, the other node has requested too, and its
/// frames of this IU are lost.
fn pending_request(node: usize, lost: Option<Opcode>) -> (Net, ViIndex) {
    let mut net = Net::pair();
    let vis = [CLIENT, SERVER].map(|node| net.create(node, params(RD)));
    if let Some(opcode) = lost {
        net.wire.lose(1 - node, opcode, u32::MAX);
        net.peer_request(1 - node, vis[1 - node], "x", &[node], None);
    }
    net.peer_request(node, vis[node], "x", &[1 - node], None);
    net.settle();
    (net, vis[node])
}

#[test]
fn pending_peer_request_fails_with_not_reachable() {
    // In the pool; half-open as the lower peer; half-open as the higher peer.
    for (node, lost) in [(CLIENT, None), (CLIENT, Some(Resp2)), (SERVER, Some(Resp3))] {
        let (mut net, vi) = pending_request(node, lost);
        assert_eq!(net.state(node, vi), ViState::ConnectPending);
        let number = net.nodes[node].engine.peer_request(vi).unwrap();
        lose_port(&mut net, node);
        assert_eq!(net.state(node, vi), ViState::Error);
        assert_eq!(net.nodes[node].engine.take_outcome(vi), None);
        let engine = &mut net.nodes[node].engine;
        let mut take = || engine.take_peer_outcome(vi, number);
        assert_eq!(take(), Some(Err(CallError::NotReachable)), "{lost:?}");
        assert_eq!(take(), Some(Err(CallError::InvalidState)), "once");
        net.disconnect(node, vi);
        assert_eq!(net.nodes[node].engine.port.timers.len(), 0);
        assert!(net.nodes[node].engine.destroy_vi(vi));
    }
}

#[test]
fn earlier_outcome_of_a_peer_request_is_kept() {
    let (mut net, vi) = pending_request(CLIENT, None);
    net.disconnect(CLIENT, vi);
    net.peer_request(CLIENT, vi, "x", &[SERVER], Some(S));
    net.advance(2 * S);
    lose_port(&mut net, CLIENT);
    assert_eq!(net.state(CLIENT, vi), ViState::Error);
    assert_eq!(net.peer_error(CLIENT, vi), Some(CallError::Timeout));
}

#[test]
fn unanswered_request_is_cancelled() {
    let (mut net, _, b) = vis_after(1);
    let listener = net.listen(SERVER, "y");
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "y", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    lose_port(&mut net, SERVER);
    net.disconnect(SERVER, b);
    assert_eq!(net.accept(SERVER, conn, b), Err(CallError::Timeout));
}

#[test]
fn unanswered_disconnect_is_not_repeated() {
    let (mut net, a, _) = Net::connected(RD);
    net.wire.cut = true;
    net.disconnect(CLIENT, a);
    lose_port(&mut net, CLIENT);
    net.wire.trace.clear();
    net.advance(60 * S);
    assert!(net.ius().is_empty());
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}
