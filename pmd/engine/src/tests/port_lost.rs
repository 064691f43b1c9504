//! The port itself fails: in whatever state a VI is, it is in Error, and nothing waits or is sent any more.

use fcvi_frame::iu::Opcode::ConnectResponse2 as Resp2;

use crate::testkit::host::Event;
use crate::testkit::net::{CLIENT, Net, S, SERVER, params, receive_failed};
use crate::{AsyncError, ConnectError, EndpointState, Level, Status, ViIndex};

const RD: Level = Level::ReliableDelivery;

fn lose_port(net: &mut Net, node: usize) {
    let now_ns = net.now_ns;
    net.act(node, |engine, host| engine.port_lost(now_ns, host));
}

/// Client and server VIs in the middle of connection set-up, after so many of its steps.
fn after(steps: u32) -> (Net, ViIndex, ViIndex) {
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
fn every_vi_is_in_error_whatever_it_was_and_nothing_moves_any_more() {
    for steps in 0..5 {
        for node in [CLIENT, SERVER] {
            let (mut net, a, b) = after(steps);
            let vi = [a, b][node];
            let before = net.state(node, vi);
            net.outcome(node, vi);
            net.clear_logs();
            net.wire.trace.clear();
            for _ in 0..2 {
                net.post_receive(node, vi, 10);
            }
            lose_port(&mut net, node);
            assert_eq!(net.state(node, vi), EndpointState::Error, "{steps} {node}");
            let log = net.log(node, vi);
            if before != EndpointState::Error {
                let flushed: Vec<&Event> = log
                    .iter()
                    .filter(|event| matches!(event, Event::Received(_)))
                    .collect();
                let [first, second] = [0, 1].map(|id| receive_failed(id, Status::FLUSHED));
                assert_eq!(flushed, [&first, &second], "{steps} {node}");
            }
            let lost = log.contains(&Event::Async(AsyncError::ConnectionLost));
            assert_eq!(lost, before == EndpointState::Connected, "{steps} {node}");
            match (before, node) {
                (EndpointState::ConnectPending, CLIENT) => {
                    assert_eq!(net.error(node, vi), Some(ConnectError::NotReachable));
                }
                (EndpointState::ConnectPending, _) => {
                    assert_eq!(net.error(node, vi), Some(ConnectError::Timeout));
                }
                _ => assert!(net.outcome(node, vi).is_none()),
            }
            assert_eq!(net.nodes[node].engine.exchange_usage().0, 0);
            net.wire.cut = true;
            net.advance(60 * S);
            let told = net.ius().iter().any(|(from, _)| *from == node);
            assert!(!told, "{steps} {node}: nothing can be sent");
            assert_eq!(net.nodes[node].engine.timers.len(), 0, "{steps} {node}");
            net.disconnect(node, vi);
            assert_eq!(net.state(node, vi), EndpointState::Idle);
            assert!(net.nodes[node].engine.destroy_vi(vi));
        }
    }
}

#[test]
fn a_request_that_nobody_answered_yet_is_void() {
    let (mut net, _, b) = after(1);
    let listener = net.listen(SERVER, "y");
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "y", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    lose_port(&mut net, SERVER);
    net.disconnect(SERVER, b);
    assert_eq!(net.accept(SERVER, conn, b), Err(ConnectError::Timeout));
}

#[test]
fn a_disconnect_that_was_not_answered_is_not_repeated() {
    let (mut net, a, _) = Net::connected(RD);
    net.wire.cut = true;
    net.disconnect(CLIENT, a);
    lose_port(&mut net, CLIENT);
    net.wire.trace.clear();
    net.advance(60 * S);
    assert!(net.ius().is_empty());
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage().0, 0);
}
