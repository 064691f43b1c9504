//! Limits on refused RDMA accesses: a peer that guesses memory handles loses its connection (ADR 0041).

use fcvi_frame::fcoe::Eof;
use vi_types::{AsyncError, MissLimits, ReliabilityLevel, ViIndex, ViState};

use super::receive_checks::{HANDLE, edited};
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::topology::{Topology, for_each_topology, with_topology};
use crate::testkit::{
    expected_events::sent,
    io::{Event, Send},
};
use crate::{Counter, EngineConfig, RecoveryConfig};

const UD: ReliabilityLevel = ReliabilityLevel::UnreliableDelivery;
const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;
const RR: ReliabilityLevel = ReliabilityLevel::ReliableReception;
/// FCVI_RMT_VA_HANDLE in a frame.
const RMT_VA_HANDLE: usize = HANDLE + 24;
const SECRET: u32 = 0x1234_0001;
const LIMITS: MissLimits = MissLimits {
    burst: 8,
    interval_ns: 10 * S,
    per_connection: 20,
};

fn limit(config: &mut EngineConfig) {
    config.miss_limits = LIMITS;
}

fn connected(level: ReliabilityLevel) -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair_with(3, limit);
    let (a, b) = net.join(level);
    net.nodes[SERVER].io.register(SECRET, 0, 64);
    net.clear_logs();
    (net, a, b)
}

fn write_to(net: &mut Net, vi: ViIndex, handle: u32, immediate: Option<u32>) {
    let write = Send {
        data: vec![0xEE; 8],
        remote: Some((0, handle)),
        immediate,
        ..Send::default()
    };
    net.post(CLIENT, vi, write);
    net.settle();
}

/// Returns a guessed handle, which is never the secret one.
fn guess(generation: u32) -> u32 {
    (SECRET & 0xFFFF) | (0x8000 + generation) << 16
}

fn is_written(net: &Net) -> bool {
    let region = &net.nodes[SERVER].io.regions[&SECRET];
    region.bytes.iter().any(|byte| *byte != 0)
}

fn reports(log: &[Event], error: AsyncError) -> usize {
    let is_it = |event: &&Event| **event == Event::Async(error);
    log.iter().filter(is_it).count()
}

#[test]
fn guesses_at_line_rate_are_limited_and_break_only_their_connection_ud() {
    for_each_topology(|| {
        let (mut net, a, b) = connected(UD);
        let (c, d) = net.join(UD);
        net.clear_logs();
        for generation in 0..19 {
            write_to(&mut net, a, guess(generation), None);
            assert_eq!(net.state(SERVER, b), ViState::Connected);
        }
        assert_eq!(net.count(SERVER, Counter::RdmaMisses), 8);
        assert_eq!(net.count(SERVER, Counter::DropRdmaLimited), 11);
        assert_eq!(net.nodes[SERVER].engine.refused_accesses(b), 19);
        // The valid handle is not looked up either.
        write_to(&mut net, a, SECRET, None);
        assert!(!is_written(&net));
        assert_eq!(net.count(SERVER, Counter::RdmaMissBreaks), 1);
        let log = net.log(SERVER, b);
        assert_eq!(reports(&log, AsyncError::RdmaWriteProtection), 9);
        assert_eq!(reports(&log, AsyncError::ConnectionLost), 1);
        for (node, vi) in [(CLIENT, a), (SERVER, b)] {
            assert_eq!(net.state(node, vi), ViState::Error);
        }
        assert_eq!(reports(&net.log(CLIENT, a), AsyncError::ConnectionLost), 1);
        assert_eq!(net.nodes[SERVER].engine.refused_accesses(b), 20);
        // Another connection of the same two ports, made earlier.
        write_to(&mut net, c, SECRET, None);
        assert!(is_written(&net));
        assert_eq!(net.state(SERVER, d), ViState::Connected);
        assert_eq!(net.log(SERVER, d), []);
        assert_eq!(net.total(Counter::Breaks), 2);
    });
}

#[test]
fn limited_peer_is_looked_up_again_once_per_interval_ud() {
    for_each_topology(|| {
        let (mut net, a, b) = connected(UD);
        for generation in 0..9 {
            write_to(&mut net, a, guess(generation), None);
        }
        net.advance(10 * S + MS);
        write_to(&mut net, a, guess(9), None);
        write_to(&mut net, a, SECRET, None);
        assert!(!is_written(&net), "the only token is used");
        assert_eq!(net.count(SERVER, Counter::RdmaMisses), 9);
        net.advance(10 * S + MS);
        write_to(&mut net, a, SECRET, None);
        assert!(is_written(&net), "a valid access takes no token");
        write_to(&mut net, a, SECRET, None);
        assert_eq!(net.count(SERVER, Counter::DropRdmaLimited), 2);
        assert_eq!(net.state(SERVER, b), ViState::Connected);
    });
}

#[test]
fn limited_write_with_immediate_takes_no_receive_descriptor_ud() {
    for_each_topology(|| {
        let (mut net, a, b) = connected(UD);
        for generation in 0..8 {
            write_to(&mut net, a, guess(generation), None);
        }
        let receive = net.post_receive(SERVER, b, 64);
        write_to(&mut net, a, SECRET, Some(1));
        assert!(!is_written(&net));
        let receives = &net.nodes[SERVER].io.vi(b).receives;
        assert!(receives.iter().any(|r| r.id == receive && !r.claimed));
        net.post_send(CLIENT, a, b"continues");
        net.settle();
        assert_eq!(net.nodes[SERVER].io.vi(b).receives.len(), 0);
    });
}

/// Sends a write or read with a guessed handle on a new connection.
fn guess_once(net: &mut Net, level: ReliabilityLevel, handle: u32, read: bool) {
    let (a, b) = net.join(level);
    let send = Send {
        data: vec![0xEE; 8],
        remote: Some((0, handle)),
        read,
        ..Send::default()
    };
    net.post(CLIENT, a, send);
    net.settle();
    assert_eq!(net.state(SERVER, b), ViState::Error, "{handle:#x}");
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        net.disconnect(node, vi);
        net.settle();
        assert!(net.nodes[node].engine.destroy_vi(vi));
    }
}

#[test]
fn peer_that_connects_again_for_each_guess_is_limited_rd_and_rr() {
    for level in [RD, RR] {
        for read in [false, true] {
            let mut net = Net::pair_with(3, limit);
            net.nodes[SERVER].io.register(SECRET, 0, 64);
            for generation in 0..12 {
                guess_once(&mut net, level, guess(generation), read);
            }
            assert_eq!(net.count(SERVER, Counter::RdmaMisses), 8);
            assert_eq!(net.count(SERVER, Counter::DropRdmaLimited), 4);
            guess_once(&mut net, level, SECRET, read);
            assert!(!is_written(&net));
            net.advance(100 * S);
            net.wire.trace.clear();
            let (a, b) = net.join(level);
            write_to(&mut net, a, SECRET, None);
            assert!(is_written(&net));
            assert_eq!(net.state(SERVER, b), ViState::Connected);
        }
    }
}

/// The VIs of one engine count as one peer per user.
#[test]
fn misses_of_a_user_do_not_limit_other_users_of_the_same_port() {
    for topology in [Topology::Port, Topology::Shortcut] {
        with_topology(topology, || {
            let mut net = Net::pair_with(3, limit);
            net.nodes[SERVER].io.register(SECRET, 0, 64);
            let attempt = |net: &mut Net, user, handle| {
                let (a, b) = (
                    net.create(CLIENT, params(RD)),
                    net.create(SERVER, params(RD)),
                );
                net.nodes[CLIENT].engine.set_user(a, user);
                net.nodes[SERVER].engine.set_user(b, 1000);
                net.connect(a, b);
                write_to(net, a, handle, None);
                let state = net.state(SERVER, b);
                net.disconnect(CLIENT, a);
                net.settle();
                net.disconnect(SERVER, b);
                net.settle();
                for vi in [a, b] {
                    assert!(net.nodes[SERVER].engine.destroy_vi(vi));
                }
                state
            };
            for generation in 0..8 {
                let state = attempt(&mut net, 1001, guess(generation));
                assert_eq!(state, ViState::Error);
            }
            assert_eq!(attempt(&mut net, 1001, SECRET), ViState::Error);
            assert!(!is_written(&net));
            // Other users are not limited.
            for user in [1000, 1002] {
                assert_eq!(attempt(&mut net, user, SECRET), ViState::Connected);
            }
        });
    }
}

/// With message recovery the handle of an out-of-order frame is looked up too, once per connection.
#[test]
fn guesses_ahead_of_order_are_looked_up_once_rd() {
    let configs = [CLIENT, SERVER].map(|node| {
        let mut config = config(node);
        config.recovery = Some(RecoveryConfig::default());
        limit(&mut config);
        config
    });
    let mut net = Net::new(configs.to_vec(), 9);
    let (a, b) = net.join(RD);
    net.nodes[SERVER].io.register(SECRET, 0, 9_000);
    net.clear_logs();
    let before = net.wire.trace.len();
    net.wire.cut = true;
    let write = Send {
        data: vec![0xEE; 5_000],
        remote: Some((0, guess(0))),
        ..Send::default()
    };
    net.post(CLIENT, a, write);
    // Its second frame, without the first one, with another handle each time.
    let second = net.wire.trace[before + 1].bytes.clone();
    for generation in 0..4 {
        let handle = guess(generation).to_be_bytes();
        let frame = edited(&second, Eof::N, |bytes| {
            bytes[RMT_VA_HANDLE..RMT_VA_HANDLE + 4].copy_from_slice(&handle);
        });
        net.inject(SERVER, &frame);
    }
    assert_eq!(net.count(SERVER, Counter::DropAheadRefused), 1);
    assert_eq!(net.count(SERVER, Counter::RdmaMisses), 1);
    assert_eq!(net.count(SERVER, Counter::DropAheadUnfit), 3);
    assert_eq!(net.state(SERVER, b), ViState::Connected);
}

#[test]
fn refusals_below_the_limit_are_reported_one_by_one_ud() {
    for_each_topology(|| {
        let (mut net, a, b) = connected(UD);
        for generation in 0..7 {
            write_to(&mut net, a, guess(generation), None);
        }
        let log = net.log(SERVER, b);
        assert_eq!(reports(&log, AsyncError::RdmaWriteProtection), 7);
        write_to(&mut net, a, SECRET, None);
        assert!(is_written(&net));
        let expected: Vec<_> = (0..8).map(|id| sent(id, 8)).collect();
        assert_eq!(net.log(CLIENT, a), expected);
    });
}

/// A known handle with an invalid address is refused each time, as the programming guide requires, and is not a guess.
#[test]
fn refusals_of_a_known_handle_are_not_limited_ud() {
    for_each_topology(|| {
        let (mut net, a, b) = connected(UD);
        for _ in 0..3 * LIMITS.per_connection {
            let write = Send {
                data: vec![0xEE; 65],
                remote: Some((0, SECRET)),
                ..Send::default()
            };
            net.post(CLIENT, a, write);
            net.settle();
        }
        let log = net.log(SERVER, b);
        let reported = reports(&log, AsyncError::RdmaWriteProtection);
        assert_eq!(reported, 3 * LIMITS.per_connection as usize);
        assert_eq!(net.count(SERVER, Counter::RdmaMisses), 0);
        assert_eq!(net.state(SERVER, b), ViState::Connected);
    });
}
