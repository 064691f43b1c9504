//! Quarantine of handles and requests for R_A_TOV: late frames must not match new connections.

use std::collections::HashSet;

use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, DisconnectRequest,
};
use vi_types::{CallError, ReliabilityLevel, ViState};

use crate::testkit::net::{CLIENT, Net, Node, S, SERVER, config, params};
use crate::{Counter, EngineConfig};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const R_A_TOV: u64 = 10 * S;

/// Injects a request again; asserts that no listener gets it and no response is sent.
fn assert_late_request(net: &mut Net, request: &[u8]) {
    let listener = net.listen(SERVER, "x");
    let (late, responses) = (
        net.count(SERVER, Counter::DropLateRequest),
        net.frames(SERVER, Resp1).len(),
    );
    net.inject(SERVER, request);
    net.settle();
    assert_eq!(net.indication(SERVER, listener), None);
    assert_eq!(net.count(SERVER, Counter::DropLateRequest), late + 1);
    assert_eq!(net.frames(SERVER, Resp1).len(), responses);
    net.act(SERVER, |engine, io| engine.unlisten(listener, io));
}

#[test]
fn late_request_of_an_ended_connection_is_dropped() {
    for disconnecting in [CLIENT, SERVER] {
        let mut net = Net::pair();
        let (a, b) = net.join(RD);
        let request = net.frames(CLIENT, Rqst)[0].clone();
        net.disconnect(disconnecting, if disconnecting == CLIENT { a } else { b });
        net.settle();
        assert_late_request(&mut net, &request);
        // The maximum lifetime of a frame has passed.
        net.advance(R_A_TOV);
        let listener = net.listen(SERVER, "x");
        net.inject(SERVER, &request);
        assert!(net.indication(SERVER, listener).is_some());
    }
}

#[test]
fn request_overtaken_by_its_disconnect_is_dropped() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.wire.lose(CLIENT, Rqst, 1);
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.count(SERVER, Counter::UnknownDisconnects), 1);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    assert_late_request(&mut net, &request);
}

/// Both sides disconnect a half-open connection and the client's disconnect is lost: its RESP2 shows that it received
/// RESP1.
#[test]
fn late_request_of_a_half_open_connection_is_dropped() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    net.wire.lose(CLIENT, DisconnectRequest, u32::MAX);
    net.disconnect(CLIENT, a);
    net.accept(SERVER, conn, b).expect("a match");
    net.disconnect(SERVER, b);
    net.settle();
    assert_late_request(&mut net, &request);
}

/// A client without RESP1 repeats its request, which is a new attempt for the server.
#[test]
fn half_open_connection_that_timed_out_is_requested_again() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    net.wire.lose(SERVER, Resp1, u32::MAX);
    net.accept(SERVER, conn, b).expect("a match");
    let listener = net.listen(SERVER, "x");
    net.advance(20 * S);
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    net.wire.clear_losses();
    net.advance(5 * S);
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    net.accept(SERVER, conn, b).expect("a match");
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
}

/// Tens of thousands of requests of one VI within R_A_TOV, each under a handle of its own.
#[test]
fn handle_is_not_reused_within_r_a_tov() {
    let mut net = Net::pair();
    net.wire.tracing = false;
    let a = net.create(CLIENT, params(RD));
    let mut handles = HashSet::new();
    let begin_ns = net.now_ns;
    for _ in 0..40_000 {
        net.request(CLIENT, a, "x", &[SERVER], None);
        let ep = net.nodes[CLIENT].engine.endpoints[a.slot()].as_ref();
        let handle = ep.expect("a VI").handle;
        assert!(handles.insert(handle), "{handle:#x} again");
        net.advance(5_000);
        assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    }
    assert!(net.now_ns < begin_ns + R_A_TOV);
}

/// With the maximum number of VIs a handle has 16 bits besides its slot. A VI that used them all fails its connection
/// calls until the first handles leave quarantine; a failed `accept` keeps the pending request.
#[test]
fn vi_without_a_free_handle_cannot_connect() {
    let configs = [CLIENT, SERVER].map(|node| EngineConfig {
        max_vi: 0xFFFF,
        ..config(node)
    });
    let mut net = Net::new(configs.to_vec(), 3);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    for node in [CLIENT, SERVER] {
        let now_ns = net.now_ns;
        let Node { engine, io, .. } = &mut net.nodes[node];
        let (_, mut cx) = engine.split(now_ns, a, io).unwrap();
        while cx.new_handle().is_some() {}
    }
    assert_eq!(net.count(CLIENT, Counter::NoHandle), 1);
    net.request(CLIENT, a, "x", &[SERVER], None);
    assert_eq!(net.error(CLIENT, a), Some(CallError::NO_RESOURCES));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    net.peer_request(CLIENT, a, "x", &[SERVER], None);
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::NO_RESOURCES));
    assert_eq!(net.ius(), []);
    // Another VI has all of its handles.
    let c = net.create(CLIENT, params(RD));
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, c, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    assert_eq!(net.accept(SERVER, conn, b), Err(CallError::NO_RESOURCES));
    assert_eq!(net.state(SERVER, b), ViState::Idle);
    net.advance(R_A_TOV);
    net.accept(SERVER, conn, b).expect("the request is pending");
    net.settle();
    assert_eq!(net.state(CLIENT, c), ViState::Connected);
    net.request(CLIENT, a, "y", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
}

/// A peer that yields to the other request needs a second handle.
#[test]
fn peer_without_a_free_handle_cannot_yield() {
    let configs = [CLIENT, SERVER].map(|node| EngineConfig {
        max_vi: 0xFFFF,
        ..config(node)
    });
    let mut net = Net::new(configs.to_vec(), 4);
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    net.wire.lose(CLIENT, Rqst, u32::MAX);
    net.peer_request(CLIENT, a, "x", &[SERVER], None);
    let now_ns = net.now_ns;
    let Node { engine, io, .. } = &mut net.nodes[CLIENT];
    let (_, mut cx) = engine.split(now_ns, a, io).unwrap();
    while cx.new_handle().is_some() {}
    net.peer_request(SERVER, b, "x", &[CLIENT], None);
    net.settle();
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::NO_RESOURCES));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    assert_eq!(net.frames(CLIENT, Resp1).len(), 0, "no acceptance");
    assert_eq!(net.state(SERVER, b), ViState::ConnectPending);
}

/// A refused request that was evicted is still recognized: late copies of it are dropped.
#[test]
fn late_copy_of_an_evicted_refused_request_is_dropped() {
    let mut net = Net::pair();
    let limit = net.nodes[SERVER].engine.config().max_incoming;
    for _ in 0..=limit {
        let a = net.create(CLIENT, params(RD));
        let listener = net.listen(SERVER, "x");
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
        let conn = net.indication(SERVER, listener).expect("a request").conn;
        net.reject(SERVER, conn).expect("a request");
        net.settle();
        assert_eq!(net.error(CLIENT, a), Some(CallError::Rejected));
    }
    let first = net.frames(CLIENT, Rqst)[0].clone();
    assert_late_request(&mut net, &first);
    let second = net.frames(CLIENT, Rqst)[1].clone();
    net.inject(SERVER, &second);
    assert_eq!(net.count(SERVER, Counter::KnownRequests), 1);
}
