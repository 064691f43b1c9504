//! A connection made, or not: what both consumers learn.

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest, DisconnectResponse,
};

use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config as node_config, params};
use crate::{ConnectError, Counter, EndpointState, Level, ViParams};

const RD: Level = Level::ReliableDelivery;
const UD: Level = Level::UnreliableDelivery;

#[test]
fn four_ius_connect() {
    let mut net = Net::pair();
    let (a, b) = net.join(RD);
    assert_eq!(
        net.ius(),
        [
            (CLIENT, Rqst),
            (SERVER, Resp1),
            (CLIENT, Resp2),
            (SERVER, Resp3)
        ]
    );
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    assert_eq!(net.state(SERVER, b), EndpointState::Connected);
    for node in [CLIENT, SERVER] {
        assert_eq!(net.count(node, Counter::Connects), 1);
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
        assert_eq!(net.nodes[node].engine.timers.len(), 0);
        assert_eq!(net.nodes[node].host.control_events, 1 + node as u64);
    }
}

#[test]
fn each_end_learns_the_attributes_of_the_other() {
    let mut net = Net::pair();
    let ours = ViParams {
        rdma_write: false,
        ..params(UD)
    };
    let a = net.create(CLIENT, ours);
    let b = net.create(SERVER, params(UD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let indication = net.indication(SERVER, listener).unwrap();
    assert_eq!(indication.remote.discriminator.as_bytes(), b"client");
    assert_eq!(
        indication.remote.host,
        net.nodes[CLIENT].engine.config().host
    );
    assert!(!indication.attributes.rdma_write);
    net.accept(SERVER, indication.conn, b).unwrap();
    net.settle();
    let remote = net.outcome(CLIENT, a).unwrap().unwrap();
    assert!(remote.attributes.rdma_write);
    assert_eq!(remote.n_port_id, net.nodes[SERVER].id);
    let remote = net.outcome(SERVER, b).unwrap().unwrap();
    assert_eq!(remote.n_port_id, net.nodes[CLIENT].id);
    assert_eq!(net.outcome(SERVER, b), None);
}

#[test]
fn a_vi_connects_to_another_one_of_its_own_port() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(CLIENT, params(RD));
    let listener = net.listen(CLIENT, "x");
    net.request(CLIENT, a, "x", &[CLIENT], None);
    net.settle();
    let conn = net.indication(CLIENT, listener).unwrap().conn;
    net.accept(CLIENT, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    assert_eq!(net.state(CLIENT, b), EndpointState::Connected);
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    assert_eq!(net.state(CLIENT, b), EndpointState::Error);
}

#[test]
fn only_an_idle_vi_connects() {
    let (mut net, a, b) = Net::connected(RD);
    let refused = Err(ConnectError::InvalidState);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), refused);
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Error);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), refused);
    net.disconnect(CLIENT, a);
    net.request(CLIENT, a, "x", &[SERVER], None);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), refused);
    let c = net.create(CLIENT, params(RD));
    assert!(!net.nodes[CLIENT].engine.destroy_vi(a));
    assert!(net.nodes[CLIENT].engine.destroy_vi(c));
    let gone = net.try_request(CLIENT, c, "x", &[SERVER], None);
    assert_eq!(gone, Err(ConnectError::Invalid));
}

/// Its last frames would have the SEQ_CNT of its first ones.
#[test]
fn message_that_the_frames_of_both_cannot_carry_is_refused_with_the_connection() {
    for (data_field_bytes, fits) in [(2112, true), (256, false)] {
        let mut net = Net::pair_with(1, |config| {
            if config.n_port_id == node_config(SERVER).n_port_id {
                config.data_field_bytes = data_field_bytes;
            }
        });
        let long = ViParams {
            max_transfer_bytes: 20 << 20,
            ..params(RD)
        };
        let [a, b] = [CLIENT, SERVER].map(|node| net.create(node, long));
        let listener = net.listen(SERVER, "x");
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
        let conn = net.indication(SERVER, listener).unwrap().conn;
        let accepted = net.accept(SERVER, conn, b);
        assert_eq!(accepted.is_ok(), fits);
        if !fits {
            assert_eq!(accepted, Err(ConnectError::MaxTransferSize));
        }
    }
}

#[test]
fn no_match_comes_at_once() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.listen(SERVER, "y");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    assert_eq!(net.count(SERVER, Counter::NoMatch), 1);
    assert_eq!(net.ius(), [(CLIENT, Rqst), (SERVER, Resp1)]);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn another_hosts_address_matches_nothing() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.nodes[SERVER].engine.config.host.0[15] ^= 1;
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
}

#[test]
fn a_listener_takes_one_request_and_the_longest_waiting_one_is_first() {
    let mut net = Net::pair();
    let listeners = [net.listen(SERVER, "x"), net.listen(SERVER, "x")];
    let vis: Vec<_> = (0..3).map(|_| net.create(CLIENT, params(RD))).collect();
    for (at, vi) in vis.iter().enumerate() {
        net.request(CLIENT, *vi, "x", &[SERVER], None);
        net.settle();
        let first = net.nodes[SERVER].engine.incoming.len();
        assert_eq!(first, (at + 1).min(2));
    }
    assert_eq!(net.error(CLIENT, vis[2]), Some(ConnectError::NoMatch));
    let first = net.indication(SERVER, listeners[0]).unwrap().conn;
    let second = net.indication(SERVER, listeners[1]).unwrap().conn;
    assert_eq!(net.indication(SERVER, listeners[0]), None);
    assert_ne!(first, second);
    net.reject(SERVER, first).unwrap();
    net.settle();
    assert_eq!(net.error(CLIENT, vis[0]), Some(ConnectError::Rejected));
    assert_eq!(net.outcome(CLIENT, vis[1]), None);
}

#[test]
fn a_consumer_that_stops_waiting_passes_its_request_on() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let first = net.listen(SERVER, "x");
    let second = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    net.act(SERVER, |engine, host| engine.unlisten(first, host));
    net.settle();
    assert_eq!(net.outcome(CLIENT, a), None);
    net.act(SERVER, |engine, host| engine.unlisten(second, host));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    assert_eq!(net.indication(SERVER, second), None);
    assert!(net.nodes[SERVER].engine.incoming[0].is_none());
}

#[test]
fn a_rejected_client_learns_it_and_its_receives_stay() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.post_receive(CLIENT, a, 8);
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.reject(SERVER, conn).unwrap();
    assert_eq!(net.reject(SERVER, conn), Err(ConnectError::Invalid));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    assert_eq!(net.nodes[CLIENT].host.vi(a).receives.len(), 1);
    assert_eq!(net.ius(), [(CLIENT, Rqst), (SERVER, Resp1)]);
}

/// Attributes that do not match, and what the server's consumer is told.
#[test]
fn conflicting_attributes_tell_the_client_nothing_and_leave_the_request() {
    let level = ViParams {
        level: UD,
        ..params(RD)
    };
    let size = ViParams {
        max_transfer_bytes: 4096,
        ..params(RD)
    };
    let not_compared = ViParams {
        rdma_write: false,
        ..params(RD)
    };
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    for (params, error) in [
        (level, ConnectError::ReliabilityLevel),
        (size, ConnectError::MaxTransferSize),
    ] {
        let vi = net.create(SERVER, params);
        assert_eq!(net.accept(SERVER, conn, vi), Err(error));
        assert_eq!(net.state(SERVER, vi), EndpointState::Idle);
    }
    net.settle();
    assert_eq!(net.ius(), [(CLIENT, Rqst)]);
    assert_eq!(net.outcome(CLIENT, a), None);
    let b = net.create(SERVER, not_compared);
    net.accept(SERVER, conn, b).unwrap();
    let again = net.create(SERVER, params(RD));
    assert_eq!(net.accept(SERVER, conn, again), Err(ConnectError::Invalid));
    assert_eq!(net.reject(SERVER, conn), Err(ConnectError::Invalid));
    net.settle();
    assert!(net.outcome(CLIENT, a).unwrap().is_ok());
    assert!(net.outcome(SERVER, b).unwrap().is_ok());
    assert_eq!(net.accept(SERVER, conn, again), Err(ConnectError::Invalid));
}

#[test]
fn accept_wants_an_idle_vi_and_leaves_the_request() {
    let (mut net, _, busy) = Net::connected(RD);
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    let refused = net.accept(SERVER, conn, busy);
    assert_eq!(refused, Err(ConnectError::InvalidState));
    let b = net.create(SERVER, params(RD));
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert!(net.outcome(CLIENT, a).unwrap().is_ok());
}

#[test]
fn a_client_that_gives_up_makes_a_later_accept_time_out() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], Some(3 * MS));
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.advance(3 * MS);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    let ius = net.ius();
    assert_eq!(
        ius[1..],
        [(CLIENT, DisconnectRequest), (SERVER, DisconnectResponse)]
    );
    let late = net.accept(SERVER, conn, b);
    assert_eq!(late, Err(ConnectError::Timeout));
    assert_eq!(net.state(SERVER, b), EndpointState::Idle);
    assert_eq!(net.accept(SERVER, conn, b), Err(ConnectError::Invalid));
}

#[test]
fn the_server_knows_the_clients_time_out_even_if_nobody_tells_it() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    let listener = net.listen(SERVER, "x");
    // Less than a millisecond counts as one: the request must not be void on arrival.
    net.request(CLIENT, a, "x", &[SERVER], Some(MS / 4));
    let request = &net.frames(CLIENT, Rqst)[0];
    let frame = FrameView::parse(request).unwrap();
    let payload = ConnectRequest::parse(frame.iu().unwrap().payload).unwrap();
    assert_eq!(payload.timeout_ms, 1);
    net.advance(MS / 8);
    net.wire.cut = true;
    net.advance(2 * MS);
    let conn = net.indication(SERVER, listener).unwrap().conn;
    let late = net.accept(SERVER, conn, b);
    assert_eq!(late, Err(ConnectError::Timeout));
    assert!(net.nodes[SERVER].engine.incoming[0].is_none());
}

#[test]
fn disconnect_ends_a_waiting_connect_call() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    let events = net.nodes[CLIENT].host.control_events;
    net.disconnect(CLIENT, a);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::InvalidState));
    assert_eq!(net.nodes[CLIENT].host.control_events, events + 1);
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    net.settle();
    let late = net.accept(SERVER, conn, b);
    assert_eq!(late, Err(ConnectError::Timeout));
}

#[test]
fn disconnect_ends_a_waiting_accept_call() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    net.wire.lose(CLIENT, Resp2, 1);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(SERVER, b), EndpointState::ConnectPending);
    net.disconnect(SERVER, b);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::InvalidState));
    assert!(net.nodes[SERVER].engine.incoming[0].is_none());
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    net.advance(30 * S);
    assert_eq!(net.nodes[SERVER].engine.exchange_usage(), (0, 0));
}

#[test]
fn receives_posted_before_stay_and_sends_are_flushed() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.post_receive(CLIENT, a, 64);
    net.request(CLIENT, a, "x", &[SERVER], Some(5 * MS));
    let id = net.post_send(CLIENT, a, b"too early");
    net.wire.cut = true;
    net.advance(6 * MS);
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Timeout));
    net.wire.cut = false;
    let b = net.create(SERVER, params(RD));
    net.clear_logs();
    net.connect(a, b);
    net.post_send(SERVER, b, b"posted before the first try");
    net.settle();
    let log = net.log(CLIENT, a);
    assert!(log.contains(&crate::testkit::net::received(
        0,
        b"posted before the first try"
    )));
    assert_eq!(id, 0);
}

#[test]
fn a_peer_that_takes_no_legal_frame_is_refused() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.nodes[CLIENT].engine.config.data_field_bytes = 255;
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    assert_eq!(net.count(SERVER, Counter::DropBadIu), 1);
    assert_eq!(net.indication(SERVER, listener), None);
}

#[test]
fn a_server_that_takes_no_legal_frame_is_left() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    net.nodes[SERVER].engine.config.data_field_bytes = 252;
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    assert_eq!(net.count(CLIENT, Counter::DropBadIu), 1);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    assert_eq!(net.state(SERVER, b), EndpointState::Idle);
    // The connect exchange is not lost: it is dead, and then free.
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
}

#[test]
fn a_server_that_accepts_what_does_not_match_is_left() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    net.wire.cut = true;
    net.accept(SERVER, conn, b).unwrap();
    net.wire.cut = false;
    // As if the server's attributes had been others than those it compared.
    net.nodes[CLIENT].engine.endpoints[0]
        .as_mut()
        .unwrap()
        .params
        .max_transfer_bytes = 1;
    net.advance(5 * S);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::MaxTransferSize));
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    let (open, _) = net.nodes[CLIENT].engine.exchange_usage();
    assert_eq!(open, 0);
}
