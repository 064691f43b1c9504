//! Connection IUs that a station off the path forges: it knows the ports of a connection and earlier connection IDs,
//! and receives no frame of theirs.

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::seal;
use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2, DisconnectRequest,
};
use vi_types::{CallError, ReliabilityLevel, ViState};

use crate::Counter;
use crate::quarantine::MAX_RECEIVED;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

/// Returns a frame with another FCVI_CONNECTION_ID.
fn with_connection_id(frame: &[u8], id: u32) -> Vec<u8> {
    const AT: usize = 80;
    let mut frame = frame.to_vec();
    frame[AT..AT + 4].copy_from_slice(&id.to_be_bytes());
    let bytes = frame.len();
    seal(&mut frame, bytes, Eof::T).expect("a valid frame");
    frame
}

/// A DISCONNECT_RQST of a client that cancelled a request; the request and the VI are gone.
fn cancellation(net: &mut Net) -> Vec<u8> {
    let a = net.create(CLIENT, params(RD));
    net.request(CLIENT, a, "cancelled", &[SERVER], None);
    net.disconnect(CLIENT, a);
    net.settle();
    net.frames(CLIENT, DisconnectRequest)[0].clone()
}

/// Even with the right connection ID: the server has not answered that request.
#[test]
fn forged_response2_of_the_next_request_does_not_delay_it() {
    let mut net = Net::pair();
    let (a, b) = net.join(RD);
    let response2 = net.frames(CLIENT, Resp2)[0].clone();
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        net.disconnect(node, vi);
        net.settle();
    }
    let next = net.nodes[CLIENT]
        .engine
        .port
        .connection_ids
        .clone()
        .allocate();
    net.inject(SERVER, &with_connection_id(&response2, next));
    assert_eq!(net.count(SERVER, Counter::DropStrayConnect), 1);
    net.connect(a, b);
    assert_eq!(net.count(SERVER, Counter::DropLateRequest), 0);
}

#[test]
fn forged_cancellations_of_the_following_connection_ids_do_not_delay_requests() {
    let mut net = Net::pair();
    let cancel = cancellation(&mut net);
    let last = net.nodes[CLIENT].engine.port.connection_ids.last();
    for n in 1..=1000 {
        net.inject(SERVER, &with_connection_id(&cancel, last.wrapping_add(n)));
    }
    // The first one is real.
    assert_eq!(net.count(SERVER, Counter::UnknownDisconnects), 1001);
    let (a, b) = net.join(RD);
    assert_eq!(net.count(SERVER, Counter::DropLateRequest), 0);
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
}

#[test]
fn forged_cancellations_evict_no_ended_request() {
    let mut net = Net::pair();
    let cancel = cancellation(&mut net);
    let (a, _) = net.join(RD);
    let request = net.frames(CLIENT, Rqst)[1].clone();
    net.disconnect(CLIENT, a);
    net.settle();
    net.wire.tracing = false;
    net.wire.cut = true;
    for id in 0..=MAX_RECEIVED as u32 {
        net.inject(SERVER, &with_connection_id(&cancel, id));
    }
    let listener = net.listen(SERVER, "x");
    net.inject(SERVER, &request);
    assert_eq!(net.indication(SERVER, listener), None);
    assert_eq!(net.count(SERVER, Counter::DropLateRequest), 1);
}

/// Each would use a disconnect, which is retried, and an OX_ID.
#[test]
fn forged_acceptances_use_no_disconnect_and_no_ox_id() {
    let mut net = Net::pair();
    let (a, _) = net.join(RD);
    let accepted = net.frames(SERVER, Resp1)[0].clone();
    net.wire.cut = true;
    for id in 0..1000 {
        net.inject(CLIENT, &with_connection_id(&accepted, id));
    }
    assert_eq!(net.count(CLIENT, Counter::DropStrayConnect), 1000);
    assert_eq!(net.frames(CLIENT, DisconnectRequest).len(), 0);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
}

/// A real acceptance that comes too late is answered, also after the VI was destroyed.
#[test]
fn late_acceptance_of_an_ended_request_is_answered_with_a_disconnect() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    net.wire.lose(CLIENT, DisconnectRequest, 1);
    net.disconnect(CLIENT, a);
    assert!(net.nodes[CLIENT].engine.destroy_vi(a));
    net.accept(SERVER, conn, b).expect("a pending request");
    net.advance(5 * S + MS);
    assert!(net.count(CLIENT, Counter::DropStrayConnect) >= 1);
    assert_eq!(net.error(SERVER, b), Some(CallError::Timeout));
    assert_eq!(net.state(SERVER, b), ViState::Idle);
}
