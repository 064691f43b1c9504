//! Connection requests to hosts without a known port, and to hosts that are lost (VIPL 3.3.4, 3.3.6).

use fcvi_frame::iu::Opcode::{ConnectResponse2, ConnectResponse3};
use vi_types::{CallError, NetAddress, ReliabilityLevel, Status, ViIndex, ViState};

use crate::ConnectCommand;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, discriminator, params};
use crate::testkit::{
    expected_events::receive_failed,
    io::{Event, Receive},
};

const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::UnreliableDelivery,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];

/// Returns a client with a receive posted.
fn client(net: &mut Net, level: ReliabilityLevel) -> ViIndex {
    let vi = net.create(CLIENT, params(level));
    net.nodes[CLIENT].io.post_receive(vi, Receive::default());
    vi
}

/// Asserts the state of a VI whose request failed with `NotReachable`, and destroys it.
fn assert_unreachable(net: &mut Net, vi: ViIndex, level: ReliabilityLevel) {
    let receives = net.nodes[CLIENT].io.vi(vi).receives.len();
    if !level.is_reliable() {
        assert_eq!(net.state(CLIENT, vi), ViState::Idle);
        assert_eq!(receives, 1);
    } else {
        assert_eq!(net.state(CLIENT, vi), ViState::Error);
        assert_eq!(receives, 0);
        let flushed = receive_failed(0, Status::FLUSHED);
        assert_eq!(net.log(CLIENT, vi), [Event::State(ViState::Error), flushed]);
    }
    net.disconnect(CLIENT, vi);
    assert_eq!(net.state(CLIENT, vi), ViState::Idle);
    assert!(net.nodes[CLIENT].engine.destroy_vi(vi));
}

#[test]
fn request_without_route_moves_reliable_vi_to_error() {
    for level in LEVELS {
        for is_peer in [false, true] {
            let mut net = Net::pair();
            let vi = client(&mut net, level);
            let error = if is_peer {
                net.peer_request(CLIENT, vi, "x", &[], None);
                net.peer_error(CLIENT, vi)
            } else {
                net.request(CLIENT, vi, "x", &[], None);
                net.error(CLIENT, vi)
            };
            assert_eq!(error, Some(CallError::NotReachable));
            assert_unreachable(&mut net, vi, level);
        }
    }
}

#[test]
fn host_lost_during_request_moves_reliable_vi_to_error() {
    for level in LEVELS {
        for accepts in [false, true] {
            let mut net = Net::pair();
            let vi = client(&mut net, level);
            let server = net.create(SERVER, params(level));
            let listener = net.listen(SERVER, "x");
            net.wire.lose(CLIENT, ConnectResponse2, u32::MAX);
            net.wire.lose(SERVER, ConnectResponse3, u32::MAX);
            net.request(CLIENT, vi, "x", &[SERVER], None);
            net.settle();
            if accepts {
                let conn = net.indication(SERVER, listener).unwrap().conn;
                net.accept(SERVER, conn, server).unwrap();
                net.settle();
            }
            net.clear_logs();
            net.peer_lost(CLIENT, SERVER);
            assert_eq!(net.error(CLIENT, vi), Some(CallError::NotReachable));
            assert_unreachable(&mut net, vi, level);
        }
    }
}

/// Returns two ports that require logins and have not discovered each other.
fn undiscovered_pair() -> Net {
    let mut net = Net::pair();
    for node in &mut net.nodes {
        node.engine.require_login();
    }
    net
}

/// Sends a request to the server's host, of which the client knows no port.
fn request_unknown_host(net: &mut Net, vi: ViIndex, timeout_ns: u64) {
    let [local, remote] = [CLIENT, SERVER].map(|node| NetAddress {
        host: net.nodes[node].engine.config().host,
        discriminator: discriminator("x"),
    });
    let command = ConnectCommand {
        local,
        remote,
        targets: &[],
        timeout_ns: Some(timeout_ns),
    };
    let now_ns = net.now_ns;
    net.act(CLIENT, |engine, io| {
        engine.connect(now_ns, vi, &command, io).unwrap();
    });
}

#[test]
fn request_to_unknown_host_times_out() {
    for level in LEVELS {
        let mut net = undiscovered_pair();
        let vi = client(&mut net, level);
        request_unknown_host(&mut net, vi, S);
        net.advance(S - MS);
        assert_eq!(net.state(CLIENT, vi), ViState::ConnectPending);
        net.advance(2 * MS);
        assert_eq!(net.error(CLIENT, vi), Some(CallError::Timeout));
        assert_eq!(net.state(CLIENT, vi), ViState::Idle);
        assert_eq!(net.nodes[CLIENT].io.vi(vi).receives.len(), 1);
    }
}

#[test]
fn request_is_sent_to_port_that_logs_in_later() {
    let level = ReliabilityLevel::ReliableDelivery;
    for waits in [false, true] {
        let mut net = undiscovered_pair();
        let vi = client(&mut net, level);
        request_unknown_host(&mut net, vi, S);
        net.advance(S / 2);
        let server = net.create(SERVER, params(level));
        let listener = waits.then(|| net.listen(SERVER, "x"));
        for (node, other) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
            let id = net.nodes[other].id;
            net.nodes[node].engine.logged_in(id, 2112);
        }
        net.port_joined(CLIENT, SERVER);
        net.settle();
        let Some(listener) = listener else {
            assert_eq!(net.error(CLIENT, vi), Some(CallError::NoMatch));
            continue;
        };
        let conn = net.indication(SERVER, listener).unwrap().conn;
        net.accept(SERVER, conn, server).unwrap();
        net.settle();
        assert_eq!(net.state(CLIENT, vi), ViState::Connected);
    }
}
