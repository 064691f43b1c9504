//! A single peer request and its outcomes (VIPL 3.3.6-3.3.8, 6.7).

use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::iu::Opcode::{
    ConnectRequest as Rqst, ConnectResponse1 as Resp1, ConnectResponse2 as Resp2,
    ConnectResponse3 as Resp3, DisconnectRequest,
};
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};
use vi_types::{CallError, ReliabilityLevel, ViIndex, ViParams, ViState};

use crate::Counter;
use crate::testkit::io::Event;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
/// Ethernet and FCoE headers, then 16 bytes of the FC header.
const OX_ID_AT: usize = 14 + 14 + 16;
const BOTH: [usize; 2] = [CLIENT, SERVER];

fn pair() -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    (net, a, b)
}

fn post_request(net: &mut Net, node: usize, vi: ViIndex, timeout_ns: Option<u64>) {
    net.peer_request(node, vi, "x", &[1 - node], timeout_ns);
}

fn connected(net: &mut Net, node: usize, vi: ViIndex) -> bool {
    matches!(net.peer_outcome(node, vi), Some(Ok(_))) && net.state(node, vi) == ViState::Connected
}

/// Returns status and reason of the RESP1 frames that a node sent, in order.
fn sent_responses(net: &Net, from: usize) -> Vec<(ConnectStatus, ConnectReason)> {
    let unpack = |bytes: &Vec<u8>| {
        let frame = FrameView::parse(bytes).expect("a frame");
        connect_parameter::unpack(frame.iu().expect("an IU").header.parameter)
    };
    net.frames(from, Resp1).iter().map(unpack).collect()
}

#[test]
fn request_stays_in_the_pool_until_a_match_arrives() {
    let (mut net, a, b) = pair();
    post_request(&mut net, CLIENT, a, None);
    net.advance(100 * S);
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    assert_eq!(net.state(CLIENT, a), ViState::ConnectPending);
    assert!(net.count(SERVER, Counter::PeerNotPosted) > 20);
    net.clear_logs();
    post_request(&mut net, SERVER, b, Some(S));
    // The match needs no timer, although the retry interval of the old request is long by now.
    net.settle();
    assert!(connected(&mut net, CLIENT, a));
    assert!(connected(&mut net, SERVER, b));
    let states = net.log(SERVER, b);
    let expected = [ViState::ConnectPending, ViState::Connected].map(Event::State);
    assert_eq!(states, expected);
}

#[test]
fn outcome_contains_the_attributes_of_the_peer() {
    let (mut net, a, _) = pair();
    let open = ViParams {
        rdma_write: false,
        ..params(RD)
    };
    let b = net.create(SERVER, open);
    post_request(&mut net, CLIENT, a, None);
    post_request(&mut net, SERVER, b, None);
    net.settle();
    let of_b = net.peer_outcome(CLIENT, a).unwrap().unwrap();
    let of_a = net.peer_outcome(SERVER, b).unwrap().unwrap();
    assert_eq!(of_b.n_port_id, net.nodes[SERVER].id);
    assert!(!of_b.attributes.rdma_write && of_a.attributes.rdma_write);
    // Each outcome is reported once.
    let again = Some(Err(CallError::InvalidState));
    assert_eq!(net.peer_outcome(CLIENT, a), again);
    assert_eq!(net.outcome(CLIENT, a), None);
}

/// An unanswered request is repeated after 10, 40, 160, 640 ms, 2.56 s and then every 5 s.
#[test]
fn unanswered_request_is_repeated_with_growing_intervals() {
    let (mut net, a, _) = pair();
    net.wire.cut = true;
    post_request(&mut net, CLIENT, a, None);
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
fn requests_that_do_not_match_time_out() {
    // Another discriminator.
    let (mut net, a, b) = pair();
    net.peer_request(CLIENT, a, "x", &[SERVER], Some(S));
    net.peer_request(SERVER, b, "y", &[CLIENT], Some(S));
    net.advance(S);
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.peer_error(SERVER, b), Some(CallError::Timeout));
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    // Another host: the server requests a third one.
    let mut net = Net::new((0..3).map(config).collect(), 1);
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    net.peer_request(CLIENT, a, "x", &[SERVER], Some(S));
    net.peer_request(SERVER, b, "x", &[2], Some(S));
    net.advance(S);
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.peer_error(SERVER, b), Some(CallError::Timeout));
}

#[test]
fn timeout_leaves_the_vi_idle_with_its_receives() {
    let (mut net, a, _) = pair();
    net.post_receive(CLIENT, a, 8);
    post_request(&mut net, CLIENT, a, Some(7 * MS));
    net.advance(7 * MS - 1);
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    net.advance(1);
    assert_eq!(net.state(CLIENT, a), ViState::Idle);
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.nodes[CLIENT].io.vi(a).receives.len(), 1);
    net.advance(S);
    assert_eq!(net.nodes[CLIENT].engine.exchange_usage(), (0, 0));
    assert!(net.nodes[CLIENT].engine.destroy_vi(a));
}

/// The outcome of a request can be read although the VI is Idle by then; a new request or any other connection call
/// discards it.
#[test]
fn outcome_is_kept_until_the_next_connection_call() {
    let (mut net, a, b) = pair();
    post_request(&mut net, CLIENT, a, Some(MS));
    let first = net.nodes[CLIENT].engine.peer_request(a).unwrap();
    net.advance(2 * MS);
    post_request(&mut net, CLIENT, a, None);
    let engine = &mut net.nodes[CLIENT].engine;
    let stale = engine.take_peer_outcome(a, first);
    assert_eq!(stale, Some(Err(CallError::InvalidState)));
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    post_request(&mut net, SERVER, b, None);
    net.settle();
    net.disconnect(CLIENT, a);
    let gone = Some(CallError::InvalidState);
    assert_eq!(net.peer_error(CLIENT, a), gone, "the connection has ended");
    post_request(&mut net, CLIENT, a, Some(MS));
    net.advance(2 * MS);
    net.request(CLIENT, a, "unmatched", &[SERVER], None);
    assert_eq!(net.peer_error(CLIENT, a), gone);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
}

#[test]
fn calls_in_the_wrong_state_change_nothing() {
    let wrong = Err(CallError::InvalidState);
    let (mut net, a, b) = pair();
    let pending = {
        let requesting = net.create(SERVER, params(RD));
        let listener = net.listen(CLIENT, "pending");
        net.request(SERVER, requesting, "pending", &[CLIENT], None);
        net.settle();
        net.indication(CLIENT, listener).unwrap().conn
    };
    post_request(&mut net, CLIENT, a, None);
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
    assert_eq!(net.try_request(CLIENT, a, "x", &[SERVER], None), wrong);
    assert_eq!(net.accept(CLIENT, pending, a), wrong);
    assert!(!net.nodes[CLIENT].engine.destroy_vi(a));
    post_request(&mut net, SERVER, b, None);
    net.settle();
    assert!(connected(&mut net, CLIENT, a) && connected(&mut net, SERVER, b));
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
    net.disconnect(SERVER, b);
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Error);
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
    // Likewise while a client request is pending.
    net.listen(SERVER, "server");
    net.disconnect(CLIENT, a);
    net.request(CLIENT, a, "server", &[SERVER], None);
    assert_eq!(net.try_peer_request(CLIENT, a, "x", &[SERVER], None), wrong);
}

#[test]
fn peer_requests_and_client_requests_do_not_match() {
    let (mut net, a, b) = pair();
    // A client request does not match a peer request.
    post_request(&mut net, SERVER, b, None);
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    assert_eq!(net.error(CLIENT, a), Some(CallError::NoMatch));
    assert_eq!(net.peer_outcome(SERVER, b), None);
    net.disconnect(SERVER, b);
    // A peer request does not match a listener.
    let listener = net.listen(SERVER, "x");
    post_request(&mut net, CLIENT, a, Some(100 * MS));
    net.advance(100 * MS);
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::Timeout));
    assert_eq!(net.indication(SERVER, listener), None);
}

/// Both sides get the error of the attribute that differs, whichever IU is lost.
#[test]
fn conflicting_attributes_fail_both_requests() {
    let level = params(ReliabilityLevel::UnreliableDelivery);
    let transfer = ViParams {
        max_transfer_bytes: 4096,
        ..params(RD)
    };
    let cases = [
        (level, CallError::ReliabilityLevel),
        (transfer, CallError::MaxTransferSize),
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
                post_request(&mut net, first, vis[first], None);
                post_request(&mut net, 1 - first, vis[1 - first], None);
                net.advance(60 * MS);
                for node in BOTH {
                    let what = format!("{error:?}, {first} first, {lost:?} lost");
                    assert_eq!(net.peer_error(node, vis[node]), Some(error), "{what}");
                    assert_eq!(net.state(node, vis[node]), ViState::Idle, "{what}");
                }
                // The refused request is kept for a limited time.
                net.advance(25 * S);
                for node in &net.nodes {
                    assert!(node.engine.port.incoming.iter().all(Option::is_none));
                    assert_eq!(node.engine.exchange_usage().0, 0);
                    assert_eq!(node.engine.port.timers.len(), 0);
                }
            }
        }
    }
}

#[test]
fn cancelled_request_is_not_matched() {
    for cancelling in BOTH {
        let (mut net, a, b) = pair();
        let vis = [a, b];
        post_request(&mut net, cancelling, vis[cancelling], None);
        net.settle();
        net.disconnect(cancelling, vis[cancelling]);
        let cancelled = net.peer_error(cancelling, vis[cancelling]);
        assert_eq!(cancelled, Some(CallError::InvalidState));
        post_request(&mut net, 1 - cancelling, vis[1 - cancelling], Some(S));
        net.advance(S);
        let error = net.peer_error(1 - cancelling, vis[1 - cancelling]);
        assert_eq!(error, Some(CallError::Timeout));
    }
}

/// A request whose peer disconnects, dies or becomes silent while the connection is half-open returns to the pool and
/// connects with the next match.
#[test]
fn half_open_connection_returns_to_the_pool() {
    // The server's port is the higher one: its VI sends RESP2, the client's RESP1.
    let halves = [(CLIENT, Resp2), (SERVER, Resp3)];
    type End = fn(&mut Net, usize, ViIndex);
    let ends: [(&str, End); 3] = [
        ("disconnected", |net, node, vi| net.disconnect(node, vi)),
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
            post_request(&mut net, CLIENT, a, None);
            post_request(&mut net, SERVER, b, None);
            net.settle();
            assert_eq!(net.peer_outcome(node, vis[node]), None, "{what}");
            let peer = net.create(1 - node, params(RD));
            end(&mut net, 1 - node, vis[1 - node]);
            net.wire.cut = false;
            net.settle();
            assert_eq!(net.peer_outcome(node, vis[node]), None, "{what}");
            assert_eq!(net.count(node, Counter::PeerReturned), 1, "{what}");
            let pending = ViState::ConnectPending;
            assert_eq!(net.state(node, vis[node]), pending, "{what}");
            net.wire.clear_losses();
            // The new request is the only one at the other port.
            net.disconnect(1 - node, vis[1 - node]);
            post_request(&mut net, 1 - node, peer, None);
            net.advance(6 * S);
            assert!(connected(&mut net, node, vis[node]), "{awaited:?} {what}");
            assert!(connected(&mut net, 1 - node, peer), "{awaited:?} {what}");
        }
    }
}

#[test]
fn half_open_connection_ends_at_the_timeout_of_its_request() {
    for (node, awaited) in [(CLIENT, Resp2), (SERVER, Resp3)] {
        let (mut net, a, b) = pair();
        let vis = [a, b];
        net.wire.lose(1 - node, awaited, u32::MAX);
        post_request(&mut net, node, vis[node], Some(50 * MS));
        post_request(&mut net, 1 - node, vis[1 - node], None);
        net.advance(50 * MS);
        let error = net.peer_error(node, vis[node]);
        assert_eq!(error, Some(CallError::Timeout), "{awaited:?}");
        assert_eq!(net.state(node, vis[node]), ViState::Idle);
        net.settle();
        // The peer is notified: its request is pending again, or its connection is lost.
        assert!(!net.frames(node, DisconnectRequest).is_empty());
        let other = net.state(1 - node, vis[1 - node]);
        let expected = match awaited {
            Resp2 => ViState::ConnectPending,
            _ => ViState::Error,
        };
        assert_eq!(other, expected);
    }
}

/// The reasons of 7.6 that are not errors, each in its case.
#[test]
fn responses_contain_the_reason() {
    let (mut net, a, b) = pair();
    post_request(&mut net, SERVER, b, None);
    net.settle();
    let not_posted = (ConnectStatus::Pending, ConnectReason::NotYetPosted);
    assert_eq!(sent_responses(&net, CLIENT), [not_posted]);
    post_request(&mut net, CLIENT, a, None);
    net.settle();
    let yours = (ConnectStatus::Continue, ConnectReason::YoursWins);
    let mine = (ConnectStatus::Superseded, ConnectReason::MineWins);
    assert_eq!(sent_responses(&net, CLIENT), [not_posted, yours]);
    assert_eq!(sent_responses(&net, SERVER), [mine]);
    // The winning request arrives late.
    let request = net.frames(SERVER, Rqst).pop().unwrap();
    net.inject(CLIENT, &request);
    let duplicate = (
        ConnectStatus::Pending,
        ConnectReason::DuplicateOfEstablished,
    );
    assert_eq!(sent_responses(&net, CLIENT).pop(), Some(duplicate));
    net.settle();
    assert_eq!(net.state(CLIENT, a), ViState::Connected);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
}

/// A repeated request is answered at once and on its newest exchange, even if the retry timer of RESP1 has not expired.
#[test]
fn repeated_request_is_accepted_again_at_once() {
    let (mut net, a, b) = pair();
    net.wire.lose(CLIENT, Resp1, 1);
    net.wire.lose(CLIENT, Resp2, u32::MAX);
    post_request(&mut net, CLIENT, a, None);
    post_request(&mut net, SERVER, b, None);
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

/// A refusal does not end the request, whatever its reason.
#[test]
fn refusals_do_not_end_the_request() {
    let (mut net, a, b) = pair();
    let own = net.nodes[SERVER].engine.config().host;
    post_request(&mut net, CLIENT, a, None);
    // The request is still in flight.
    net.nodes[SERVER].engine.port.config.host.0[15] = 99;
    net.advance(S);
    let refusal = (ConnectStatus::Failed, ConnectReason::NotMyAddress);
    assert!(sent_responses(&net, SERVER).contains(&refusal));
    net.nodes[SERVER].engine.port.config.host = own;
    assert_eq!(net.peer_outcome(CLIENT, a), None);
    post_request(&mut net, SERVER, b, None);
    net.advance(6 * S);
    assert!(connected(&mut net, CLIENT, a) && connected(&mut net, SERVER, b));
}

#[test]
fn full_port_only_delays_the_connection() {
    for full in BOTH {
        let (mut net, a, b) = pair();
        net.nodes[full].io.room = 0;
        post_request(&mut net, CLIENT, a, None);
        post_request(&mut net, SERVER, b, None);
        net.advance(5 * MS);
        net.nodes[full].io.room = usize::MAX;
        net.advance(60 * MS);
        assert!(connected(&mut net, CLIENT, a) && connected(&mut net, SERVER, b));
    }
}

#[test]
fn fatal_error_of_the_consumer_ends_the_request() {
    let (mut net, a, _) = pair();
    post_request(&mut net, CLIENT, a, None);
    let now_ns = net.now_ns;
    net.act(CLIENT, |engine, io| engine.fail_vi(now_ns, a, io));
    assert_eq!(net.state(CLIENT, a), ViState::Error);
    assert_eq!(net.peer_error(CLIENT, a), Some(CallError::InvalidState));
}
