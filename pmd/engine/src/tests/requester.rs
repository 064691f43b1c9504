//! Which requests and connections are of a VI of the same engine, and that no frame from the wire
//! can claim to be.

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::ConnectRequest as Rqst;

use super::receive_checks::{add, edited};
use crate::testkit::net::{CLIENT, Net, S, SERVER, params};
use crate::{ConnectError, Level, ViIndex};

const RD: Level = Level::ReliableDelivery;
/// Of a connect request: device_header, then local and remote address.
const CONNECTION_ID: usize = 80;
const VI_HANDLE: usize = 84;
const LOCAL_DISCRIMINATOR: usize = 112;
const REMOTE_DISCRIMINATOR: usize = 176;

#[test]
fn requester_of_a_local_request_is_its_vi_and_both_ends_know_each_other() {
    for shortcut in [false, true] {
        let mut net = Net::pair_with(1, |config| config.shortcut = shortcut);
        let [a, b] = [(); 2].map(|()| net.create(CLIENT, params(RD)));
        let listener = net.listen(CLIENT, "x");
        net.request(CLIENT, a, "x", &[CLIENT], None);
        net.settle();
        let conn = net.indication(CLIENT, listener).unwrap().conn;
        assert_eq!(net.nodes[CLIENT].engine.requester(conn), Ok(Some(a)));
        let pending = net.nodes[CLIENT].engine.connected_to(a);
        assert_eq!(pending, Err(ConnectError::InvalidState));
        net.accept(CLIENT, conn, b).unwrap();
        net.settle();
        let answered = net.nodes[CLIENT].engine.requester(conn);
        assert_eq!(answered, Err(ConnectError::Timeout));
        assert_eq!(net.nodes[CLIENT].engine.connected_to(a), Ok(Some(b)));
        assert_eq!(net.nodes[CLIENT].engine.connected_to(b), Ok(Some(a)));
        net.disconnect(CLIENT, a);
        net.settle();
        for vi in [a, b] {
            let over = net.nodes[CLIENT].engine.connected_to(vi);
            assert_eq!(over, Err(ConnectError::InvalidState));
        }
    }
}

#[test]
fn requester_at_another_port_is_none_of_ours() {
    let mut net = Net::pair();
    let (a, b, conn) = net.ask(RD);
    assert_eq!(net.nodes[SERVER].engine.requester(conn), Ok(None));
    net.accept(SERVER, conn, b).unwrap();
    net.settle();
    assert_eq!(net.nodes[CLIENT].engine.connected_to(a), Ok(None));
    assert_eq!(net.nodes[SERVER].engine.connected_to(b), Ok(None));
}

#[test]
fn requester_that_gave_up_is_not_named() {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let listener = net.listen(CLIENT, "x");
    net.request(CLIENT, a, "x", &[CLIENT], Some(S));
    net.settle();
    let conn = net.indication(CLIENT, listener).unwrap().conn;
    net.advance(2 * S);
    let gone = net.nodes[CLIENT].engine.requester(conn);
    assert_eq!(gone, Err(ConnectError::Timeout));
}

/// What the engine makes of a request that comes by the wire as if it were its own, while one of
/// its VIs makes the request that it is a copy of.
fn claimed(edit: impl FnOnce(&mut [u8])) -> (Option<ViIndex>, ViIndex) {
    let mut net = Net::pair();
    net.wire.lose(SERVER, Rqst, u32::MAX);
    let vi = net.create(SERVER, params(RD));
    net.request(SERVER, vi, "x", &[SERVER], None);
    net.settle();
    let listeners = ["x", "y"].map(|name| net.listen(SERVER, name));
    let frame = net.frames(SERVER, Rqst).swap_remove(0);
    let eof = FrameView::parse(&frame).unwrap().eof;
    net.inject(SERVER, &edited(&frame, eof, edit));
    let mut came = listeners.iter().filter_map(|l| net.indication(SERVER, *l));
    let conn = came.next().expect("a request").conn;
    (net.nodes[SERVER].engine.requester(conn).unwrap(), vi)
}

#[test]
fn request_that_claims_our_port_is_not_taken_for_one_of_ours() {
    let (copied, vi) = claimed(|_| {});
    assert_eq!(copied, Some(vi), "in nothing different");
    let forged = [
        claimed(|frame| add(frame, CONNECTION_ID, 1)),
        claimed(|frame| add(frame, VI_HANDLE, 0x10_0000)),
        claimed(|frame| add(frame, VI_HANDLE, 1)),
        claimed(|frame| frame[LOCAL_DISCRIMINATOR] ^= 1),
        claimed(|frame| frame[REMOTE_DISCRIMINATOR] = b'y'),
    ];
    assert_eq!(forged.map(|(requester, _)| requester), [None; 5]);
}
