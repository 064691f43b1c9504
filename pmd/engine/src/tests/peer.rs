//! One peer request and what becomes of it (VIPL 3.3.6-3.3.8, 6.7).

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest,
};
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};

use crate::testkit::host::Event;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::{ConnectError, Counter, EndpointState, Level, ViIndex, ViParams};

const RD: Level = Level::ReliableDelivery;
/// Ethernet and FCoE headers, then 16 bytes of the FC header.
const OX_ID_AT: usize = 14 + 14 + 16;
const BOTH: [usize; 2] = [CLIENT, SERVER];

fn pair() -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    (net, a, b)
}

fn ask(net: &mut Net, node: usize, vi: ViIndex, timeout_ns: Option<u64>) {
    net.peer_request(node, vi, "x", &[1 - node], timeout_ns);
}

fn connected(net: &mut Net, node: usize, vi: ViIndex) -> bool {
    matches!(net.peer_outcome(node, vi), Some(Ok(_)))
        && net.state(node, vi) == EndpointState::Connected
}

/// What RESP1 frames of this node said, in order.
fn answers(net: &Net, from: usize) -> Vec<(ConnectStatus, ConnectReason)> {
    let said = |bytes: &Vec<u8>| {
        let frame = FrameView::parse(bytes).expect("a frame");
        connect_parameter::unpack(frame.iu().expect("an IU").header.parameter)
    };
    net.frames(from, Resp1).iter().map(said).collect()
}

#[test]
fn a_request_stays_in_the_pool_until_a_match_comes() {
    let (mut net, a, b) = pair();
    ask(&mut net, CLIENT, a, None);
    net.advance(100 * S);
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    assert_eq!(net.state(CLIENT, a), EndpointState::ConnectPending);
    assert!(net.count(SERVER, Counter::PeerNotPosted) > 20);
    net.clear_logs();
    ask(&mut net, SERVER, b, Some(S));
    // No timer is waited for, though the old request is rarely repeated by now.
    net.settle();
    assert!(connected(&mut net, CLIENT, a));
    assert!(connected(&mut net, SERVER, b));
    let states = net.log(SERVER, b);
    let expected = [EndpointState::ConnectPending, EndpointState::Connected].map(Event::State);
    assert_eq!(states, expected);
}

#[test]
fn attributes_of_the_other_end_come_with_the_outcome() {
    let (mut net, a, _) = pair();
    let open = ViParams {
        rdma_write: false,
        ..params(RD)
    };
    let b = net.create(SERVER, open);
    ask(&mut net, CLIENT, a, None);
    ask(&mut net, SERVER, b, None);
    net.settle();
    let of_b = net.peer_outcome(CLIENT, a).unwrap().unwrap();
    let of_a = net.peer_outcome(SERVER, b).unwrap().unwrap();
    assert_eq!(of_b.n_port_id, net.nodes[SERVER].id);
    assert!(!of_b.attributes.rdma_write && of_a.attributes.rdma_write);
    // Each is told once.
    let again = Some(Err(ConnectError::InvalidState));
    assert_eq!(net.peer_outcome(CLIENT, a), again);
    assert_eq!(net.outcome(CLIENT, a), None);
}

/// An unanswered request is repeated after 10, 40, 160, 640 ms, 2.56 s and then every 5 s.
#[test]
fn requests_are_repeated_ever_more_slowly() {
    let (mut net, a, _) = pair();
    net.wire.cut = true;
    ask(&mut net, CLIENT, a, None);
    let mut sent = vec![0];
    for ms in 1..=20_000 {
        net.advance(MS);
        if net.frames(CLIENT, Rqst).len() > sent.len() {
            sent.push(ms);
        }
    }
    let expected = [0, 10, 50, 210, 850, 3410, 8410, 13410, 18410];
    assert_eq!(sent, expected);
    assert_eq!(net.count(CLIENT, Counter::Retries), sent.len() as u64 - 1);
}

#[test]
fn what_does_not_match_stays_apart() {
    // Another discriminator.
    let (mut net, a, b) = pair();
    net.peer_request(CLIENT, a, "x", &[SERVER], Some(S));
    net.peer_request(SERVER, b, "y", &[CLIENT], Some(S));
    net.advance(S);
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.peer_error(SERVER, b), Some(ConnectError::Timeout));
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    // Another host: the server asks a third one.
    let mut net = Net::new((0..3).map(config).collect(), 1);
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    net.peer_request(CLIENT, a, "x", &[SERVER], Some(S));
    net.peer_request(SERVER, b, "x", &[2], Some(S));
    net.advance(S);
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.peer_error(SERVER, b), Some(ConnectError::Timeout));
}

#[test]
fn a_time_out_leaves_an_idle_vi_with_its_receives() {
    let (mut net, a, _) = pair();
    net.post_receive(CLIENT, a, 8);
    ask(&mut net, CLIENT, a, Some(7 * MS));
    net.advance(7 * MS - 1);
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    net.advance(1);
    assert_eq!(net.state(CLIENT, a), EndpointState::Idle);
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.nodes[CLIENT].host.vi(a).receives.len(), 1);
    net.advance(S);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    assert!(net.nodes[CLIENT].engine.destroy_vi(a));
}

/// The outcome of a request is told although the VI is Idle by then; a new request takes
/// its place, and so does any other connection call.
#[test]
fn an_outcome_is_kept_until_the_next_call() {
    let (mut net, a, b) = pair();
    ask(&mut net, CLIENT, a, Some(MS));
    let first = net.nodes[CLIENT].engine.peer_request(a).unwrap();
    net.advance(2 * MS);
    ask(&mut net, CLIENT, a, None);
    let engine = &mut net.nodes[CLIENT].engine;
    let stale = engine.take_peer_outcome(a, first);
    assert_eq!(stale, Some(Err(ConnectError::InvalidState)));
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    ask(&mut net, SERVER, b, None);
    net.settle();
    net.disconnect(CLIENT, a);
    let gone = Some(ConnectError::InvalidState);
    assert_eq!(net.peer_error(CLIENT, a), gone, "the connection is no more");
    ask(&mut net, CLIENT, a, Some(MS));
    net.advance(2 * MS);
    net.request(CLIENT, a, "nobody", &[SERVER], None);
    assert_eq!(net.peer_error(CLIENT, a), gone);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let wrong = Err(ConnectError::InvalidState);
    let (mut net, a, b) = pair();
    let held = {
        let asking = net.create(SERVER, params(RD));
        let listener = net.listen(CLIENT, "held");
        net.request(SERVER, asking, "held", &[CLIENT], None);
        net.settle();
        net.indication(CLIENT, listener).unwrap().conn
    };
    ask(&mut net, CLIENT, a, None);
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), wrong);
    assert_eq!(net.accept(CLIENT, held, a), wrong);
    assert!(!net.nodes[CLIENT].engine.destroy_vi(a));
    ask(&mut net, SERVER, b, None);
    net.settle();
    assert!(connected(&mut net, CLIENT, a) && connected(&mut net, SERVER, b));
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Error);
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
    // While a client waits for its server, too.
    net.listen(SERVER, "server");
    net.disconnect(CLIENT, a);
    net.request(CLIENT, a, "server", &[SERVER], None);
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
}

#[test]
fn the_two_models_do_not_match_each_other() {
    let (mut net, a, b) = pair();
    // A client finds no peer.
    ask(&mut net, SERVER, b, None);
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(ConnectError::NoMatch));
    assert_eq!(net.peer_outcome(SERVER, b), None);
    net.disconnect(SERVER, b);
    // A peer finds no server, and a server no peer.
    let listener = net.listen(SERVER, "x");
    ask(&mut net, CLIENT, a, Some(100 * MS));
    net.advance(100 * MS);
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::Timeout));
    assert_eq!(net.indication(SERVER, listener), None);
}

/// Both ends learn which attribute differs, whichever IU is lost on the way.
#[test]
fn other_attributes_end_both_requests() {
    let level = params(Level::UnreliableDelivery);
    let transfer = ViParams {
        max_transfer_bytes: 4096,
        ..params(RD)
    };
    let cases = [
        (level, ConnectError::ReliabilityLevel),
        (transfer, ConnectError::MaxTransferSize),
    ];
    for (other, error) in cases {
        for first in BOTH {
            for lost in [None, Some(Rqst), Some(Resp1)] {
                let mut net = Net::pair();
                let vis = [net.create(CLIENT, params(RD)), net.create(SERVER, other)];
                if let Some(opcode) = lost {
                    net.wire.lose(CLIENT, opcode, 1);
                    net.wire.lose(SERVER, opcode, 1);
                }
                ask(&mut net, first, vis[first], None);
                ask(&mut net, 1 - first, vis[1 - first], None);
                net.advance(60 * MS);
                for node in BOTH {
                    let what = format!("{error:?}, {first} first, {lost:?} lost");
                    assert_eq!(net.peer_error(node, vis[node]), Some(error), "{what}");
                    assert_eq!(net.state(node, vis[node]), EndpointState::Idle, "{what}");
                }
                // What was refused is remembered for a while, and then no more.
                net.advance(25 * S);
                for node in &net.nodes {
                    assert!(node.engine.incoming.iter().all(Option::is_none));
                    assert_eq!(node.engine.exchange_usage().0, 0);
                    assert_eq!(node.engine.timers.len(), 0);
                }
            }
        }
    }
}

#[test]
fn one_that_left_the_pool_is_not_connected() {
    for leaves in BOTH {
        let (mut net, a, b) = pair();
        let vis = [a, b];
        ask(&mut net, leaves, vis[leaves], None);
        net.settle();
        net.disconnect(leaves, vis[leaves]);
        let left = net.peer_error(leaves, vis[leaves]);
        assert_eq!(left, Some(ConnectError::InvalidState));
        ask(&mut net, 1 - leaves, vis[1 - leaves], Some(S));
        net.advance(S);
        let error = net.peer_error(1 - leaves, vis[1 - leaves]);
        assert_eq!(error, Some(ConnectError::Timeout));
    }
}

/// Half a connection whose other end leaves, dies or says nothing more goes back into the
/// pool and connects with the next one that matches.
#[test]
fn half_a_connection_goes_back_into_the_pool() {
    // The server's port is the higher one: its VI sends RESP2, the client's RESP1.
    let halves = [(CLIENT, Resp2), (SERVER, Resp3)];
    type End = fn(&mut Net, usize, ViIndex);
    let ends: [(&str, End); 3] = [
        ("left", |net, node, vi| net.disconnect(node, vi)),
        ("died", |net, node, _| {
            net.wire.cut = true;
            net.peer_lost(1 - node, node);
        }),
        ("silent", |net, _, _| {
            net.wire.cut = true;
            net.advance(20 * S);
        }),
    ];
    for (node, awaited) in halves {
        for (what, end) in ends {
            let (mut net, a, b) = pair();
            let vis = [a, b];
            net.wire.lose(1 - node, awaited, u32::MAX);
            ask(&mut net, CLIENT, a, None);
            ask(&mut net, SERVER, b, None);
            net.settle();
            assert_eq!(net.peer_outcome(node, vis[node]), None, "{what}");
            let peer = net.create(1 - node, params(RD));
            end(&mut net, 1 - node, vis[1 - node]);
            net.wire.cut = false;
            net.settle();
            assert_eq!(net.peer_outcome(node, vis[node]), None, "{what}");
            assert_eq!(net.count(node, Counter::PeerReturned), 1, "{what}");
            let pending = EndpointState::ConnectPending;
            assert_eq!(net.state(node, vis[node]), pending, "{what}");
            net.wire.heal();
            // It is the only one left of its kind at the other port, or the only one that waits.
            net.disconnect(1 - node, vis[1 - node]);
            ask(&mut net, 1 - node, peer, None);
            net.advance(6 * S);
            assert!(connected(&mut net, node, vis[node]), "{awaited:?} {what}");
            assert!(connected(&mut net, 1 - node, peer), "{awaited:?} {what}");
        }
    }
}

#[test]
fn half_a_connection_ends_with_the_time_of_its_request() {
    for (node, awaited) in [(CLIENT, Resp2), (SERVER, Resp3)] {
        let (mut net, a, b) = pair();
        let vis = [a, b];
        net.wire.lose(1 - node, awaited, u32::MAX);
        ask(&mut net, node, vis[node], Some(50 * MS));
        ask(&mut net, 1 - node, vis[1 - node], None);
        net.advance(50 * MS);
        let error = net.peer_error(node, vis[node]);
        assert_eq!(error, Some(ConnectError::Timeout), "{awaited:?}");
        assert_eq!(net.state(node, vis[node]), EndpointState::Idle);
        net.settle();
        // The other end hears of it: it waits on, or lost its connection.
        assert!(!net.frames(node, DisconnectRequest).is_empty());
        let other = net.state(1 - node, vis[1 - node]);
        let expected = match awaited {
            Resp2 => EndpointState::ConnectPending,
            _ => EndpointState::Error,
        };
        assert_eq!(other, expected);
    }
}

/// The reasons of 7.6 that are no errors, each where it belongs.
#[test]
fn responses_say_why() {
    let (mut net, a, b) = pair();
    ask(&mut net, SERVER, b, None);
    net.settle();
    let not_posted = (ConnectStatus::Pending, ConnectReason::NotYetPosted);
    assert_eq!(answers(&net, CLIENT), [not_posted]);
    ask(&mut net, CLIENT, a, None);
    net.settle();
    let yours = (ConnectStatus::GoOn, ConnectReason::YoursWins);
    let mine = (ConnectStatus::Superseded, ConnectReason::MineWins);
    assert_eq!(answers(&net, CLIENT), [not_posted, yours]);
    assert_eq!(answers(&net, SERVER), [mine]);
    // The winner's request, late.
    let request = net.frames(SERVER, Rqst).pop().unwrap();
    net.inject(CLIENT, &request);
    let duplicate = (
        ConnectStatus::Pending,
        ConnectReason::DuplicateOfEstablished,
    );
    assert_eq!(answers(&net, CLIENT).pop(), Some(duplicate));
    net.settle();
    assert_eq!(net.state(CLIENT, a), EndpointState::Connected);
    assert_eq!(net.state(SERVER, b), EndpointState::Connected);
}

/// A repeated request is answered at once and on its newest exchange, also where RESP1 would
/// be repeated only later.
#[test]
fn a_request_that_was_accepted_is_accepted_again() {
    let (mut net, a, b) = pair();
    net.wire.lose(CLIENT, Resp1, 1);
    net.wire.lose(CLIENT, Resp2, u32::MAX);
    ask(&mut net, CLIENT, a, None);
    ask(&mut net, SERVER, b, None);
    net.settle();
    let mut request = net.frames(SERVER, Rqst).pop().unwrap();
    let ox_id = [0x12, 0x34];
    request[OX_ID_AT..OX_ID_AT + 2].copy_from_slice(&ox_id);
    let length = request.len();
    seal(&mut request, length, Eof::T).unwrap();
    net.wire.trace.clear();
    net.inject(CLIENT, &request);
    let responses = net.frames(CLIENT, Resp1);
    assert_eq!(responses.len(), 1);
    assert_eq!(responses[0][OX_ID_AT..OX_ID_AT + 2], ox_id);
}

/// A port that refuses, whatever its reason, does not end the request.
#[test]
fn refusals_without_a_match_are_passed_over() {
    let (mut net, a, b) = pair();
    let own = net.nodes[SERVER].engine.config().host;
    ask(&mut net, CLIENT, a, None);
    // The request is still on its way.
    net.nodes[SERVER].engine.config.host.0[15] = 99;
    net.advance(S);
    assert!(answers(&net, SERVER).contains(&(ConnectStatus::Failed, ConnectReason::NotMyAddress)));
    net.nodes[SERVER].engine.config.host = own;
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    ask(&mut net, SERVER, b, None);
    net.advance(6 * S);
    assert!(connected(&mut net, CLIENT, a) && connected(&mut net, SERVER, b));
}

#[test]
fn no_room_in_the_port_only_delays() {
    for full in BOTH {
        let (mut net, a, b) = pair();
        net.nodes[full].host.room = 0;
        ask(&mut net, CLIENT, a, None);
        ask(&mut net, SERVER, b, None);
        net.advance(5 * MS);
        net.nodes[full].host.room = usize::MAX;
        net.advance(60 * MS);
        assert!(connected(&mut net, CLIENT, a) && connected(&mut net, SERVER, b));
    }
}

#[test]
fn a_fatal_error_of_the_consumers_ends_the_request() {
    let (mut net, a, _) = pair();
    ask(&mut net, CLIENT, a, None);
    let now_ns = net.now_ns;
    net.act(CLIENT, |engine, host| engine.fail_vi(now_ns, a, host));
    assert_eq!(net.state(CLIENT, a), EndpointState::Error);
    assert_eq!(net.peer_error(CLIENT, a), Some(ConnectError::InvalidState));
}
