//! Connection establishment: the outcomes that both consumers see.

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest, DisconnectResponse,
};
use vi_types::{CallError, ReliabilityLevel, ViParams, ViState};

use crate::Counter;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config as node_config, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;

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
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
    for node in [CLIENT, SERVER] {
        assert_eq!(net.count(node, Counter::Connects), 1);
        assert_eq!(net.nodes[node].engine.exchange_usage(), (0, 0));
        assert_eq!(net.nodes[node].engine.port.timers.len(), 0);
        assert_eq!(net.nodes[node].io.control_events, 1 + node as u64);
    }
}

#[test]
fn each_side_receives_the_attributes_of_its_peer() {
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
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert_eq!(net.state(CLIENT, b), ViState::Connected);
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    assert_eq!(net.state(CLIENT, b), ViState::Error);
}

#[test]
fn only_an_idle_vi_connects() {
    let (mut net, a, b) = Net::connected(RD);
    let refused = Err(CallError::InvalidState);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), refused);
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Error);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), refused);
    net.disconnect(CLIENT, a);
    net.request(CLIENT, a, "x", &[SERVER], None);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), refused);
    let c = net.create(CLIENT, params(RD));
    assert!(!net.nodes[CLIENT].engine.destroy_vi(a));
    assert!(net.nodes[CLIENT].engine.destroy_vi(c));
    let gone = net.try_request(CLIENT, c, "x", &[SERVER], None);
    assert_eq!(gone, Err(CallError::InvalidParameter));
}

/// SEQ_CNT would wrap: the last frames of a message would have the SEQ_CNT of the first ones.
#[test]
fn max_transfer_size_beyond_the_seq_cnt_range_is_refused() {
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
            assert_eq!(accepted, Err(CallError::MaxTransferSize));
        }
    }
}

#[test]
fn request_without_a_listener_fails_at_once() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.listen(SERVER, "y");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    assert_eq!(net.count(SERVER, Counter::NoMatch), 1);
    assert_eq!(net.ius(), [(CLIENT, Rqst), (SERVER, Resp1)]);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
}

#[test]
fn request_for_another_hosts_address_has_no_match() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.nodes[SERVER].engine.port.config.host.0[15] ^= 1;
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
}

#[test]
fn longest_waiting_listener_gets_the_first_request() {
    let mut net = Net::pair();
    let listeners = [net.listen(SERVER, "x"), net.listen(SERVER, "x")];
    let vis: Vec<_> = (0..3).map(|_| net.create(CLIENT, params(RD))).collect();
    for (at, vi) in vis.iter().enumerate() {
        net.request(CLIENT, *vi, "x", &[SERVER], None);
        net.settle();
        let first = net.nodes[SERVER].engine.port.incoming.len();
        assert_eq!(first, (at + 1).min(2));
    }
    assert_eq!(net.error(CLIENT, vis[2]), Some(CallError::NoMatch));
    let first = net.indication(SERVER, listeners[0]).unwrap().conn;
    let second = net.indication(SERVER, listeners[1]).unwrap().conn;
    assert_eq!(net.indication(SERVER, listeners[0]), None);
    assert_ne!(first, second);
    net.reject(SERVER, first).unwrap();
    net.settle();
    assert_eq!(net.error(CLIENT, vis[0]), Some(CallError::Rejected));
    assert_eq!(net.outcome(CLIENT, vis[1]), None);
}

#[test]
fn unlisten_passes_the_request_to_the_next_listener() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let first = net.listen(SERVER, "x");
    let second = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    net.act(SERVER, |engine, io| engine.unlisten(first, io));
    net.settle();
    assert_eq!(net.outcome(CLIENT, a), None);
    net.act(SERVER, |engine, io| engine.unlisten(second, io));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_eq!(net.indication(SERVER, second), None);
    assert!(net.nodes[SERVER].engine.port.incoming[0].is_none());
}

#[test]
fn rejected_client_keeps_its_receives() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.post_receive(CLIENT, a, 8);
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.reject(SERVER, conn).unwrap();
    assert_eq!(net.reject(SERVER, conn), Err(CallError::InvalidParameter));
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Rejected));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    assert_eq!(net.nodes[CLIENT].io.vi(a).receives.len(), 1);
    assert_eq!(net.ius(), [(CLIENT, Rqst), (SERVER, Resp1)]);
}

/// Attributes that do not match, and the errors that `accept` returns.
#[test]
fn accept_with_conflicting_attributes_fails_and_keeps_the_request() {
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
        (level, CallError::ReliabilityLevel),
        (size, CallError::MaxTransferSize),
    ] {
        let vi = net.create(SERVER, params);
        assert_eq!(net.accept(SERVER, conn, vi), Err(error));
        assert_eq!(net.state(SERVER, vi), ViState::Idle);
    }
    net.settle();
    assert_eq!(net.ius(), [(CLIENT, Rqst)]);
    assert_eq!(net.outcome(CLIENT, a), None);
    let b = net.create(SERVER, not_compared);
    net.accept(SERVER, conn, b).unwrap();
    let again = net.create(SERVER, params(RD));
    assert_eq!(
        net.accept(SERVER, conn, again),
        Err(CallError::InvalidParameter)
    );
    assert_eq!(net.reject(SERVER, conn), Err(CallError::InvalidParameter));
    net.settle();
    assert!(net.outcome(CLIENT, a).unwrap().is_ok());
    assert!(net.outcome(SERVER, b).unwrap().is_ok());
    assert_eq!(
        net.accept(SERVER, conn, again),
        Err(CallError::InvalidParameter)
    );
}

#[test]
fn accept_with_a_connected_vi_fails_and_keeps_the_request() {
    let (mut net, _, busy) = Net::connected(RD);
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    let refused = net.accept(SERVER, conn, busy);
    assert_eq!(refused, Err(CallError::InvalidState));
    let b = net.create(SERVER, params(RD));
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert!(net.outcome(CLIENT, a).unwrap().is_ok());
}

#[test]
fn accept_after_the_clients_timeout_times_out() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], Some(3 * MS));
    net.settle();
    let conn = net.indication(SERVER, listener).unwrap().conn;
    net.advance(3 * MS);
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    let ius = net.ius();
    assert_eq!(
        ius[1..],
        [(CLIENT, DisconnectRequest), (SERVER, DisconnectResponse)]
    );
    let late = net.accept(SERVER, conn, b);
    assert_eq!(late, Err(CallError::Timeout));
    assert_eq!(net.state(SERVER, b), ViState::Idle);
    assert_eq!(
        net.accept(SERVER, conn, b),
        Err(CallError::InvalidParameter)
    );
}

#[test]
fn server_applies_the_clients_timeout_without_a_disconnect() {
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
    assert_eq!(late, Err(CallError::Timeout));
    assert!(net.nodes[SERVER].engine.port.incoming[0].is_none());
}

#[test]
fn disconnect_ends_a_waiting_connect_call() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    let events = net.nodes[CLIENT].io.control_events;
    net.disconnect(CLIENT, a);
    assert_eq!(net.error(CLIENT, a), Some(CallError::InvalidState));
    assert_eq!(net.nodes[CLIENT].io.control_events, events + 1);
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    net.settle();
    let late = net.accept(SERVER, conn, b);
    assert_eq!(late, Err(CallError::Timeout));
}

#[test]
fn disconnect_ends_a_waiting_accept_call() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    net.wire.lose(CLIENT, Resp2, 1);
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.state(SERVER, b), ViState::ConnectPending);
    net.disconnect(SERVER, b);
    assert_eq!(net.error(SERVER, b), Some(CallError::InvalidState));
    assert!(net.nodes[SERVER].engine.port.incoming[0].is_none());
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    net.advance(30 * S);
    assert_eq!(net.nodes[SERVER].engine.exchange_usage(), (0, 0));
}

#[test]
fn failed_connect_keeps_receives_and_flushes_sends() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.post_receive(CLIENT, a, 64);
    net.request(CLIENT, a, "x", &[SERVER], Some(5 * MS));
    let id = net.post_send(CLIENT, a, b"too early");
    net.wire.cut = true;
    net.advance(6 * MS);
    assert_eq!(net.error(CLIENT, a), Some(CallError::Timeout));
    net.wire.cut = false;
    let b = net.create(SERVER, params(RD));
    net.clear_logs();
    net.connect(a, b);
    net.post_send(SERVER, b, b"posted before the first try");
    net.settle();
    let log = net.log(CLIENT, a);
    assert!(log.contains(&crate::testkit::expected_events::received(
        0,
        b"posted before the first try"
    )));
    assert_eq!(id, 0);
}

#[test]
fn request_with_an_illegal_data_field_size_is_rejected() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.nodes[CLIENT].engine.port.config.data_field_bytes = 255;
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Rejected));
    assert_eq!(net.count(SERVER, Counter::DropBadIu), 1);
    assert_eq!(net.indication(SERVER, listener), None);
}

#[test]
fn response_with_an_illegal_data_field_size_fails_the_connect() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    net.nodes[SERVER].engine.port.config.data_field_bytes = 252;
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::Rejected));
    assert_eq!(net.count(CLIENT, Counter::DropBadIu), 1);
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    assert_eq!(net.state(SERVER, b), ViState::Idle);
    // The OX_ID of the connect exchange does not leak: it is quarantined, then free.
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 1));
}

#[test]
fn acceptance_with_conflicting_attributes_fails_the_connect() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    net.wire.cut = true;
    net.accept(SERVER, conn, b).unwrap();
    net.wire.cut = false;
    // As if the server's attributes differed from those that it compared.
    net.nodes[CLIENT].engine.endpoints[0]
        .as_mut()
        .unwrap()
        .params
        .max_transfer_bytes = 1;
    net.advance(5 * S);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::MaxTransferSize));
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    let (open, _) = net.nodes[CLIENT].engine.exchange_usage();
    assert_eq!(open, 0);
}
