//! The requester of a request and the peer of a connection within the same engine, which no frame from the wire can
//! imitate.

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::ConnectRequest as Rqst;
use vi_types::{CallError, ReliabilityLevel, ViIndex};

use super::receive_checks::{add, edited};

use crate::testkit::net::{CLIENT, Net, S, SERVER, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
// Offsets in a connect request: device_header, then local and remote address.
const CONNECTION_ID: usize = 80;
const VI_HANDLE: usize = 84;
const LOCAL_DISCRIMINATOR: usize = 112;
const REMOTE_DISCRIMINATOR: usize = 176;

#[test]
fn requester_of_a_local_request_is_its_vi_and_both_sides_know_each_other() {
    for shortcut in [false, true] {
        let mut net = Net::pair_with(1, |config| config.shortcut = shortcut);
        let [a, b] = [(); 2].map(|()| net.create(CLIENT, params(RD)));
        let listener = net.listen(CLIENT, "x");
        net.request(CLIENT, a, "x", &[CLIENT], None);
        net.settle();
        let conn = net.indication(CLIENT, listener).unwrap().conn;
        assert_eq!(net.nodes[CLIENT].engine.requester(conn), Ok(Some(a)));
        let pending = net.nodes[CLIENT].engine.connected_to(a);
        assert_eq!(pending, Err(CallError::InvalidState));
        net.accept(CLIENT, conn, b).unwrap();
        net.settle();
        let answered = net.nodes[CLIENT].engine.requester(conn);
        assert_eq!(answered, Err(CallError::Timeout));
        assert_eq!(net.nodes[CLIENT].engine.connected_to(a), Ok(Some(b)));
        assert_eq!(net.nodes[CLIENT].engine.connected_to(b), Ok(Some(a)));
        net.disconnect(CLIENT, a);
        net.settle();
        for vi in [a, b] {
            let over = net.nodes[CLIENT].engine.connected_to(vi);
            assert_eq!(over, Err(CallError::InvalidState));
        }
    }
}

#[test]
fn requester_at_another_port_is_none() {
    let mut net = Net::pair();
    let (a, b, conn) = net.request_pending(RD);
    assert_eq!(net.nodes[SERVER].engine.requester(conn), Ok(None));
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.nodes[CLIENT].engine.connected_to(a), Ok(None));
    assert_eq!(net.nodes[SERVER].engine.connected_to(b), Ok(None));
}

#[test]
fn requester_that_timed_out_is_an_error() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(CLIENT, "x");
    net.request(CLIENT, a, "x", &[CLIENT], Some(S));
    net.settle();
    let conn = net.indication(CLIENT, listener).unwrap().conn;
    net.advance(2 * S);
    let gone = net.nodes[CLIENT].engine.requester(conn);
    assert_eq!(gone, Err(CallError::Timeout));
}

/// Injects an edited copy of the pending request of a local VI from the wire. Returns the requester that the engine
/// reports, and the VI.
fn inject_copy(edit: impl FnOnce(&mut [u8])) -> (Option<ViIndex>, ViIndex) {
    let mut net = Net::pair();
    net.wire.lose(SERVER, Rqst, u32::MAX);
    let vi = net.create(SERVER, params(RD));
    net.request(SERVER, vi, "x", &[SERVER], None);
    net.settle();
    let listeners = ["x", "y"].map(|name| net.listen(SERVER, name));
    let frame = net.frames(SERVER, Rqst).swap_remove(0);
    let eof = FrameView::parse(&frame).unwrap().eof;
    net.inject(SERVER, &edited(&frame, eof, edit));
    let mut indications = listeners.iter().filter_map(|l| net.indication(SERVER, *l));
    let conn = indications.next().expect("a request").conn;
    (net.nodes[SERVER].engine.requester(conn).unwrap(), vi)
}

#[test]
fn forged_request_from_the_local_port_has_no_requester() {
    let (copied, vi) = inject_copy(|_| {});
    assert_eq!(copied, Some(vi), "an identical copy");
    let forged = [
        inject_copy(|frame| add(frame, CONNECTION_ID, 1)),
        inject_copy(|frame| add(frame, VI_HANDLE, 0x10_0000)),
        inject_copy(|frame| add(frame, VI_HANDLE, 1)),
        inject_copy(|frame| frame[LOCAL_DISCRIMINATOR] ^= 1),
        inject_copy(|frame| frame[REMOTE_DISCRIMINATOR] = b'y'),
    ];
    assert_eq!(forged.map(|(requester, _)| requester), [None; 5]);
}
