//! Messages of one frame that are received in one step, and the same traffic with each frame received as part of a
//! message, have the same effects: frames, events, counters.

use vi_types::ReliabilityLevel;

use super::{Simulation, wires};
use crate::testkit::net::Node;

#[test]
fn receiving_in_one_step_changes_no_effect() {
    let (mut received, mut written) = (0, 0);
    for level in [
        ReliabilityLevel::UnreliableDelivery,
        ReliabilityLevel::ReliableDelivery,
        ReliabilityLevel::ReliableReception,
    ] {
        for (faults, seed) in wires()
            .into_iter()
            .flat_map(|w| (0..12).map(move |n| (w, n)))
        {
            let [with, without] = [true, false].map(|receives_whole| {
                let mut simulation = Simulation::new(0x0E57_0000 + seed, level, faults, false);
                simulation.net.wire.tracing = true;
                for node in &mut simulation.net.nodes {
                    node.io.receives_whole = receives_whole;
                }
                simulation.connection();
                simulation
            });
            assert_eq!(with.events, without.events, "{}", with.what);
            let frames = |simulation: &Simulation| {
                let sent = simulation.net.wire.trace.iter();
                sent.map(|sent| sent.bytes.clone()).collect::<Vec<_>>()
            };
            assert!(frames(&with) == frames(&without), "{}: frames", with.what);
            for (a, b) in with.net.nodes.iter().zip(&*without.net.nodes) {
                let counters = |node: &Node| node.engine.counters().iter().collect::<Vec<_>>();
                assert_eq!(counters(a), counters(b), "{}", with.what);
                received += a.io.received_whole;
                written += a.io.written_whole;
                assert_eq!((b.io.received_whole, b.io.written_whole), (0, 0));
            }
        }
    }
    let in_one_step = format!("{received} sends and {written} writes in one step");
    assert!(received > 1000 && written > 100, "{in_one_step}");
}
