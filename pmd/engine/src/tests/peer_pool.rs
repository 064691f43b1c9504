//! The peer pool: several requests with the same addresses, several ports of one host, two VIs of one port.

use fcvi_frame::iu::Opcode::ConnectRequest as Rqst;
use vi_types::{CallError, ReliabilityLevel, ViIndex, ViState};

use crate::Counter;
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

/// Returns a net of `ports` N_Ports of one host.
fn host_of(ports: usize, seed: u64) -> Net {
    let mut configs: Vec<_> = (0..ports).map(config).collect();
    for at in 0..ports {
        configs[at].host = configs[0].host;
        // The order of the names differs from that of the IDs.
        configs[at].port_name = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at * 7)) & 0xFFFF;
    }
    Net::new(configs, seed)
}

/// Returns the connected pairs; asserts that each connected VI has exactly one peer among `vis`.
fn pairs(net: &mut Net, vis: &[(usize, ViIndex)]) -> Vec<(usize, usize)> {
    let mut connections = Vec::new();
    for (node, vi) in vis {
        let ep = net.nodes[*node].engine.endpoints[vi.slot()].as_ref();
        let ep = ep.expect("a VI");
        let connection = ep
            .connection
            .filter(|_| net.state(*node, *vi) == ViState::Connected);
        connections.push((ep.handle, connection));
    }
    let mut pairs = Vec::new();
    for (a, (handle, connection)) in connections.iter().enumerate() {
        let Some(connection) = connection else {
            continue;
        };
        let others: Vec<usize> = (0..vis.len())
            .filter(|b| {
                net.nodes[vis[*b].0].id == connection.peer
                    && connections[*b].0 == connection.peer_handle
                    && connections[*b]
                        .1
                        .is_some_and(|other| other.peer_handle == *handle)
            })
            .collect();
        assert_eq!(others.len(), 1, "exactly one peer");
        pairs.push((a.min(others[0]), a.max(others[0])));
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

#[test]
fn two_vis_of_one_port_connect() {
    let mut net = host_of(1, 3);
    let vis = [0, 1].map(|_| (0, net.create(0, params(RD))));
    for (node, vi) in vis {
        net.peer_request(node, vi, "x", &[0], None);
    }
    net.settle();
    assert_eq!(pairs(&mut net, &vis), [(0, 1)]);
    for (node, vi) in vis {
        assert!(matches!(net.peer_outcome(node, vi), Some(Ok(_))));
        net.post_receive(node, vi, 8);
    }
    assert_eq!(net.count(0, Counter::Connects), 2);
    net.disconnect(0, vis[0].1);
    net.settle();
    assert_eq!(net.state(0, vis[1].1), ViState::Error);
}

#[test]
fn a_request_does_not_match_itself() {
    let mut net = host_of(2, 5);
    let vi = net.create(0, params(RD));
    net.peer_request(0, vi, "x", &[0, 1], Some(S));
    net.advance(S);
    assert_eq!(net.peer_error(0, vi), Some(CallError::Timeout));
}

/// Requests that match are matched in the order in which they were made.
#[test]
fn the_oldest_request_is_matched_first() {
    for higher in [CLIENT, SERVER] {
        let mut configs: Vec<_> = (0..2).map(config).collect();
        configs[higher].port_name = u64::MAX;
        let mut net = Net::new(configs, 7);
        let waiting: Vec<_> = (0..4)
            .map(|_| (SERVER, net.create(SERVER, params(RD))))
            .collect();
        // The order of the requests differs from that of the VIs' slots.
        let order = [2, 0, 3, 1];
        for at in order {
            net.peer_request(SERVER, waiting[at].1, "x", &[CLIENT], None);
            net.settle();
        }
        for expected in order {
            let vi = net.create(CLIENT, params(RD));
            net.peer_request(CLIENT, vi, "x", &[SERVER], None);
            net.settle();
            let connected = |at: &usize| net.state(SERVER, waiting[*at].1) == ViState::Connected;
            let done = order.iter().position(|at| *at == expected).unwrap() + 1;
            for (n, at) in order.iter().enumerate() {
                assert_eq!(connected(at), n < done, "{higher}: {at} after {expected}");
            }
        }
    }
}

#[test]
fn odd_request_stays_pending_until_the_next_one() {
    let mut net = host_of(1, 9);
    let vis: Vec<_> = (0..4).map(|_| (0, net.create(0, params(RD)))).collect();
    for (node, vi) in &vis[..3] {
        net.peer_request(*node, *vi, "x", &[0], None);
    }
    net.advance(S);
    assert_eq!(pairs(&mut net, &vis).len(), 1);
    let (node, vi) = vis[3];
    net.peer_request(node, vi, "x", &[0], None);
    net.settle();
    assert_eq!(pairs(&mut net, &vis).len(), 2);
}

/// Every port of a host requests every port at once: as many pairs as possible connect.
#[test]
fn requests_between_all_ports_of_a_host_make_the_most_pairs() {
    for seed in 0..200 {
        for ports in [2, 3, 5, 6] {
            let mut net = host_of(ports, seed);
            net.wire.tracing = false;
            let all: Vec<usize> = (0..ports).collect();
            let vis: Vec<_> = (0..ports)
                .map(|node| (node, net.create(node, params(RD))))
                .collect();
            for (at, (node, vi)) in vis.iter().enumerate() {
                net.peer_request(*node, *vi, "x", &all, None);
                // Not all at the same time.
                net.advance((seed >> at) % 3 * 700);
            }
            net.advance(60 * MS);
            let found = pairs(&mut net, &vis);
            assert_eq!(found.len(), ports / 2, "{ports} ports, seed {seed}");
            let pending = vis
                .iter()
                .filter(|(node, vi)| net.state(*node, *vi) == ViState::ConnectPending);
            assert_eq!(pending.count(), ports % 2, "{ports} ports, seed {seed}");
        }
    }
}

/// Both sides request all ports of the other host, where only one port has a request.
#[test]
fn requests_between_hosts_with_several_ports_connect() {
    for (first, second) in [(0, 3), (2, 5), (1, 4)] {
        let mut configs: Vec<_> = (0..6).map(config).collect();
        for at in 0..6 {
            configs[at].host = configs[at / 3 * 3].host;
        }
        let mut net = Net::new(configs, 4);
        let vis = [first, second].map(|node| (node, net.create(node, params(RD))));
        net.peer_request(first, vis[0].1, "x", &[3, 4, 5], None);
        net.peer_request(second, vis[1].1, "x", &[0, 1, 2], None);
        net.settle();
        assert_eq!(pairs(&mut net, &vis), [(0, 1)]);
        net.advance(30 * S);
        for node in &net.nodes {
            assert_eq!(node.engine.exchange_usage().0, 0);
            assert_eq!(node.engine.port.timers.len(), 0);
        }
    }
}

/// A port that joined after a request was made gets no request but sends its own; the two connect whichever is the
/// higher one.
#[test]
fn port_that_joined_after_the_request_connects() {
    for seed in 0..8 {
        let mut net = host_of(2, seed);
        let vis = [0, 1].map(|node| (node, net.create(node, params(RD))));
        net.peer_request(0, vis[0].1, "x", &[0], None);
        net.advance(S);
        net.peer_request(1, vis[1].1, "x", &[1, 0], None);
        net.settle();
        assert_eq!(pairs(&mut net, &vis), [(0, 1)], "seed {seed}");
    }
}

/// Neither port knew the other one when its request was made; then one of them or both discover the other.
#[test]
fn ports_that_discover_each_other_later_connect() {
    for seed in 0..8 {
        for seeing in [&[0][..], &[1], &[0, 1]] {
            let mut net = host_of(2, seed);
            let vis = [0, 1].map(|node| (node, net.create(node, params(RD))));
            for (node, vi) in vis {
                net.peer_request(node, vi, "x", &[node], None);
            }
            net.advance(S);
            assert_eq!(pairs(&mut net, &vis), []);
            net.wire.trace.clear();
            for node in seeing {
                net.port_joined(*node, 1 - node);
                net.port_joined(*node, 1 - node);
            }
            assert_eq!(net.frames(seeing[0], Rqst).len(), 1, "requested once");
            net.settle();
            assert_eq!(pairs(&mut net, &vis), [(0, 1)], "{seeing:?}, seed {seed}");
        }
    }
}

/// A port that was lost and joined again is requested again; a port of another host is not.
#[test]
fn port_that_joined_again_is_requested_again() {
    let mut configs: Vec<_> = (0..3).map(config).collect();
    configs[1].host = configs[0].host;
    let mut net = Net::new(configs, 6);
    let vi = net.create(0, params(RD));
    net.wire.cut = true;
    net.peer_request(0, vi, "x", &[0, 1], None);
    net.peer_lost(0, 1);
    net.wire.trace.clear();
    net.port_joined(0, 2);
    assert_eq!(net.frames(0, Rqst).len(), 0);
    net.port_joined(0, 1);
    assert_eq!(net.frames(0, Rqst).len(), 1);
    net.disconnect(0, vi);
    assert_eq!(net.nodes[0].engine.exchange_usage().0, 0);
    // A request that has ended is not sent to a new port.
    net.peer_request(0, vi, "x", &[0], Some(MS));
    net.advance(MS);
    net.wire.trace.clear();
    net.port_joined(0, 1);
    assert_eq!(net.frames(0, Rqst).len(), 0);
}

/// The application of a port dies while both requests are in the pool, and another one with its N_Port_ID posts a
/// request.
#[test]
fn lost_port_is_not_requested_until_it_requests() {
    for seed in 0..8 {
        let mut net = host_of(3, seed);
        let vis: Vec<_> = (0..3)
            .map(|node| (node, net.create(node, params(RD))))
            .collect();
        net.wire.cut = true;
        net.peer_request(0, vis[0].1, "x", &[0, 1, 2], None);
        net.peer_request(1, vis[1].1, "x", &[0, 1, 2], None);
        net.advance(S);
        net.disconnect(1, vis[1].1);
        net.peer_lost(0, 1);
        net.wire.cut = false;
        net.wire.trace.clear();
        net.advance(6 * S);
        assert_eq!(net.peer_outcome(0, vis[0].1), None);
        // To its own port and the remaining one, every 5 s.
        assert!((2..=4).contains(&net.frames(0, Rqst).len()));
        net.peer_request(1, vis[1].1, "x", &[0, 1, 2], None);
        net.settle();
        assert_eq!(pairs(&mut net, &vis), [(0, 1)], "seed {seed}");
    }
}

/// Unmatched requests leave no state, refused ones a limited number of entries.
#[test]
fn unmatched_requests_leave_no_state() {
    let mut configs: Vec<_> = (0..2).map(config).collect();
    configs[SERVER].port_name = u64::MAX;
    let mut net = Net::new(configs, 1);
    let unmatched = net.create(CLIENT, params(RD));
    for _ in 0..500 {
        net.peer_request(CLIENT, unmatched, "unmatched", &[SERVER], None);
        net.settle();
        net.disconnect(CLIENT, unmatched);
    }
    let server = &net.nodes[SERVER].engine;
    assert_eq!(server.counters().get(Counter::PeerNotPosted), 500);
    assert!(server.port.incoming.is_empty());
    assert_eq!(
        (server.exchange_usage(), server.port.timers.len()),
        ((0, 0), 0)
    );
    // The lower side of each pair keeps the refused request, within the limit of all requests.
    let other = net.create(CLIENT, params(ReliabilityLevel::UnreliableDelivery));
    let vi = net.create(SERVER, params(RD));
    for _ in 0..50 {
        net.peer_request(CLIENT, other, "x", &[SERVER], None);
        net.peer_request(SERVER, vi, "x", &[CLIENT], None);
        net.settle();
        assert_eq!(
            net.peer_error(SERVER, vi),
            Some(CallError::ReliabilityLevel)
        );
        assert_eq!(
            net.peer_error(CLIENT, other),
            Some(CallError::ReliabilityLevel)
        );
    }
    let client = &net.nodes[CLIENT].engine;
    assert_eq!(
        client.port.incoming.len(),
        client.config().max_incoming as usize
    );
    net.advance(25 * S);
    assert!(
        net.nodes[CLIENT]
            .engine
            .port
            .incoming
            .iter()
            .all(Option::is_none)
    );
}
