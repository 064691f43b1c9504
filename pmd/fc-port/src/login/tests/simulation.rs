//! Simulation of many machines on faulty segments: soon after the faults stop, every running node is logged in with
//! every other one, with the same frame size at both sides.

use super::frames::{MS, S, host, neighbour};
use super::net::{Faults, Segment};
use crate::login::PortState;
use protocol_testkit::rng::Rng;

const NODES: usize = 6;

/// Asserts that all running nodes are logged in with each other, with the same frame size at both sides.
fn assert_complete(segment: &Segment, seed: u64) {
    for (at, node) in segment.nodes.iter().enumerate() {
        let expected: Vec<_> = (0..NODES)
            .filter(|other| *other != at && node.is_up && segment.nodes[*other].is_up)
            .map(|other| {
                let sizes = [at, other].map(|at| 2112 - 100 * (at as u16 + 1));
                let bytes = sizes.into_iter().min().expect("two") & !3;
                (neighbour(other as u8 + 1).id, bytes)
            })
            .collect();
        let mut found: Vec<_> = node
            .logins
            .iter()
            .map(|l| (l.id, l.data_field_bytes))
            .collect();
        found.sort();
        assert_eq!(found, expected, "node {at}, seed {seed:#x}");
        for port in node.machine.ports() {
            let reported = node.logins.iter().any(|l| Some(*l) == port.login);
            assert_eq!(port.state == PortState::LoggedIn, reported);
        }
        assert_eq!(
            node.machine.context.exchanges.open_count(),
            0,
            "node {at}, seed {seed:#x}"
        );
        assert_eq!(
            node.machine.poll_timeout(),
            None,
            "node {at}, seed {seed:#x}"
        );
    }
}

#[test]
fn nodes_on_a_reliable_segment_log_in_at_once_and_only_once() {
    let mut segment = Segment::new(NODES as u8, 1);
    for at in 0..NODES {
        segment.start(at);
    }
    segment.run(MS);
    assert_complete(&segment, 1);
    for node in &segment.nodes {
        let counts: Vec<_> = node.machine.counters().iter().collect();
        for (name, n) in counts {
            let expected = match name {
                "logins" => 5,
                "requests" | "answers" => continue,
                _ => 0,
            };
            assert_eq!(n, expected, "{name}");
        }
    }
}

#[test]
fn all_nodes_are_logged_in_after_faults() {
    for seed in 0..60 {
        let mut segment = Segment::new(NODES as u8, seed);
        segment.faults = Faults {
            lost: 100_000,
            repeated: 100_000,
            delayed: 200_000,
            delay_ns: 3 * S,
        };
        for at in 0..NODES {
            segment.start(at);
        }
        segment.run(5 * S);
        // No frame is delayed longer than 3 s, and no node waits longer than the longest timer.
        segment.faults = Faults::default();
        segment.run(60 * S);
        assert_complete(&segment, seed);
    }
}

#[test]
fn restarted_node_is_logged_in_again_and_logouts_are_reported() {
    for seed in 0..40 {
        let mut rng = Rng::new(seed ^ 0xA5);
        let mut segment = Segment::new(NODES as u8, seed);
        for at in 0..NODES {
            segment.start(at);
        }
        segment.run(S);
        segment.faults = Faults {
            lost: 100_000,
            repeated: 100_000,
            delayed: 100_000,
            delay_ns: S,
        };
        for _ in 0..5 {
            let at = rng.below(NODES as u64) as usize;
            segment.kill(at);
            segment.run(rng.below(4 * S));
            segment.start(at);
            segment.run(rng.below(4 * S));
        }
        segment.faults = Faults::default();
        segment.run(60 * S);
        assert_complete(&segment, seed);
        let logouts = segment.nodes.iter().map(|node| {
            node.machine
                .counters()
                .get(crate::login::LoginCounter::Logouts)
        });
        assert!(logouts.sum::<u64>() >= 5, "seed {seed:#x}");
    }
}

#[test]
fn total_loss_causes_failures_without_growth() {
    let mut segment = Segment::new(NODES as u8, 3);
    segment.faults.lost = 1_000_000;
    for at in 0..NODES {
        segment.start(at);
    }
    segment.run(1000 * S);
    for node in &segment.nodes {
        assert!(node.failures >= 5 * 40, "{}", node.failures);
        assert!(node.machine.context.exchanges.open_count() <= NODES);
        assert_eq!(node.machine.ports().count(), NODES - 1);
    }
    segment.faults.lost = 0;
    segment.run(30 * S);
    assert_complete(&segment, 3);
}

#[test]
fn every_host_resolves_to_all_of_its_ports() {
    for seed in 0..40 {
        let mut segment = Segment::new(NODES as u8, seed);
        for at in 0..NODES {
            segment.start(at);
        }
        segment.run(S);
        segment.faults.repeated = 200_000;
        for at in 0..NODES {
            for wanted in 1..=4 {
                let now_ns = segment.now_ns;
                segment.nodes[at]
                    .machine
                    .resolve(now_ns, host(wanted))
                    .expect("room");
            }
        }
        segment.run(3 * S);
        for node in &segment.nodes {
            for wanted in 1..=4_u8 {
                let reported = node.hosts.iter().filter(|(host, _)| *host == wanted);
                let mut reported: Vec<_> = reported.map(|(_, id)| *id).collect();
                assert_eq!(reported.pop(), Some(None), "the end is reported last");
                reported.sort();
                // Of the four hosts three have two ports each.
                let ports = [2 * wanted - 1, 2 * wanted].map(|n| Some(neighbour(n).id));
                let expected = if wanted < 4 { &ports[..] } else { &[] };
                assert_eq!(reported, expected, "host {wanted}, seed {seed:#x}");
            }
        }
    }
}

#[test]
fn lost_farp_frames_are_retried() {
    let mut found = 0;
    for seed in 0..40 {
        let mut segment = Segment::new(2, seed);
        segment.start(0);
        segment.start(1);
        segment.run(S);
        segment.faults.lost = 300_000;
        let now_ns = segment.now_ns;
        segment.nodes[0]
            .machine
            .resolve(now_ns, host(1))
            .expect("room");
        segment.nodes[0]
            .machine
            .resolve(now_ns, host(9))
            .expect("room");
        segment.run(3 * S);
        let hosts = &segment.nodes[0].hosts;
        assert!(hosts.contains(&(9, None)) && hosts.contains(&(1, None)));
        assert!(
            hosts.contains(&(1, Some(neighbour(1).id))),
            "the local port"
        );
        found += u32::from(hosts.contains(&(1, Some(neighbour(2).id))));
    }
    println!("{found} of 40 answered at once");
    assert!(found > 0);
}
