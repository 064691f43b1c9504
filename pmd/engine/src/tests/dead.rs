//! What is over is not taken for something new: handles and requests, for R_A_TOV.

use std::collections::HashSet;

use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, DisconnectRequest,
};

use crate::testkit::net::{CLIENT, Net, S, SERVER, params};
use crate::{ConnectError, Counter, EndpointState, Level};

const RD: Level = Level::ReliableDelivery;
const R_A_TOV: u64 = 10 * S;

/// This request arrives again: no consumer sees it, and nobody is answered.
fn is_late(net: &mut Net, request: &[u8]) {
    let listener = net.listen(SERVER, "x");
    let (late, answers) = (
        net.count(SERVER, Counter::DropLateRequest),
        net.frames(SERVER, Resp1).len(),
    );
    net.inject(SERVER, request);
    net.settle();
    assert_eq!(net.indication(SERVER, listener), None);
    assert_eq!(net.count(SERVER, Counter::DropLateRequest), late + 1);
    assert_eq!(net.frames(SERVER, Resp1).len(), answers);
    net.act(SERVER, |engine, host| engine.unlisten(listener, host));
}

#[test]
fn a_request_that_came_to_a_connection_is_shown_to_nobody_again() {
    for leaving in [CLIENT, SERVER] {
        let mut net = Net::pair();
        let (a, b) = net.join(RD);
        let request = net.frames(CLIENT, Rqst)[0].clone();
        net.disconnect(leaving, if leaving == CLIENT { a } else { b });
        net.settle();
        is_late(&mut net, &request);
        // No frame lives longer.
        net.advance(R_A_TOV);
        let listener = net.listen(SERVER, "x");
        net.inject(SERVER, &request);
        assert!(net.indication(SERVER, listener).is_some());
    }
}

#[test]
fn a_request_that_its_end_overtook_is_shown_to_nobody() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    net.wire.lose(CLIENT, Rqst, 1);
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.disconnect(CLIENT, a);
    net.settle();
    assert_eq!(net.count(SERVER, Counter::UnknownDisconnects), 1);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    is_late(&mut net, &request);
}

/// Both ends left half a connection, and the client's disconnect is lost: its RESP2 says that it
/// has seen RESP1.
#[test]
fn a_request_whose_acceptance_came_too_late_is_shown_to_nobody_again() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    let request = net.frames(CLIENT, Rqst)[0].clone();
    net.wire.lose(CLIENT, DisconnectRequest, u32::MAX);
    net.disconnect(CLIENT, a);
    net.accept(SERVER, conn, b).expect("a match");
    net.disconnect(SERVER, b);
    net.settle();
    is_late(&mut net, &request);
}

/// A client that has not seen RESP1 goes on asking: for a new try at the other end.
#[test]
fn half_a_connection_that_took_too_long_is_asked_for_again() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    net.wire.lose(SERVER, Resp1, u32::MAX);
    net.accept(SERVER, conn, b).expect("a match");
    let listener = net.listen(SERVER, "x");
    net.advance(20 * S);
    assert_eq!(net.error(SERVER, b), Some(ConnectError::Timeout));
    net.wire.heal();
    net.advance(5 * S);
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    net.accept(SERVER, conn, b).expect("a match");
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
}

/// Of seven handles that there are, five connections have five.
#[test]
fn a_handle_is_not_drawn_again_for_r_a_tov() {
    let mut net = Net::pair();
    for node in &mut net.nodes {
        node.host.random_mask = 0x7;
    }
    let (a, b) = (
        net.create(CLIENT, params(RD)),
        net.create(SERVER, params(RD)),
    );
    for _ in 0..3 {
        let mut handles = HashSet::new();
        for _ in 0..5 {
            net.connect(a, b);
            for (node, vi) in [(CLIENT, a), (SERVER, b)] {
                let ep = net.nodes[node].engine.endpoints[vi.slot()].as_ref();
                assert!(handles.insert((node, ep.expect("a VI").handle)));
            }
            net.disconnect(CLIENT, a);
            net.settle();
            net.disconnect(SERVER, b);
        }
        net.advance(R_A_TOV);
    }
}

/// What is kept to be refused again makes room, and is not asked for again by what is on its way.
#[test]
fn a_refused_request_that_made_room_is_shown_to_nobody_again() {
    let mut net = Net::pair();
    let places = net.nodes[SERVER].engine.config().max_incoming;
    for _ in 0..=places {
        let a = net.create(CLIENT, params(RD));
        let listener = net.listen(SERVER, "x");
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
        let conn = net.indication(SERVER, listener).expect("a request").conn;
        net.reject(SERVER, conn).expect("a request");
        net.settle();
        assert_eq!(net.error(CLIENT, a), Some(ConnectError::Rejected));
    }
    let first = net.frames(CLIENT, Rqst)[0].clone();
    is_late(&mut net, &first);
    let second = net.frames(CLIENT, Rqst)[1].clone();
    net.inject(SERVER, &second);
    assert_eq!(net.count(SERVER, Counter::KnownRequests), 1);
}
