//! Messages of one frame that are sent and received in one step, and the same traffic by way of the send queue and with
//! each frame received as part of a message, have the same effects: frames, events, counters.

use vi_types::ReliabilityLevel;

use super::{Simulation, wires};
use crate::testkit::net::Node;

#[test]
fn one_step_changes_no_effect() {
    let (mut sent, mut received, mut written) = (0, 0, 0);
    for level in [
        ReliabilityLevel::UnreliableDelivery,
        ReliabilityLevel::ReliableDelivery,
        ReliabilityLevel::ReliableReception,
    ] {
        for (faults, seed) in wires()
            .into_iter()
            .flat_map(|w| (0..12).map(move |n| (w, n)))
        {
            let [with, without] = [true, false].map(|in_one_step| {
                let mut simulation = Simulation::new(0x0E57_0000 + seed, level, faults, false);
                simulation.net.wire.tracing = true;
                for node in &mut simulation.net.nodes {
                    node.io.in_one_step = in_one_step;
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
                sent += a.io.sent_whole;
                received += a.io.received_whole;
                written += a.io.written_whole;
                let others = [b.io.sent_whole, b.io.received_whole, b.io.written_whole];
                assert_eq!(others, [0; 3]);
            }
        }
    }
    let in_one_step = format!("{sent} sent, {received} sends and {written} writes received");
    assert!(
        sent > 1000 && received > 1000 && written > 100,
        "{in_one_step}"
    );
}
