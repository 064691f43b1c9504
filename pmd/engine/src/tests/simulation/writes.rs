//! RDMA writes of a simulation: each has its own target range and byte value, by which it is checked.

use vi_types::ReliabilityLevel;

use super::{Posted, REGION, STEPS, Simulation};
use crate::testkit::io::Send;

const MAX_WRITE: u64 = 5_000;
/// Holds all writes of a connection, which do not overlap.
pub(super) const REGION_BYTES: usize = (STEPS * MAX_WRITE) as usize;

/// An RDMA write into the range of its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    length_bytes: usize,
    /// Number of messages before it that take a receive descriptor.
    before: usize,
    /// It takes a receive descriptor itself.
    immediate: bool,
}

impl Write {
    pub(super) fn byte(number: usize) -> u8 {
        (number % 255) as u8 + 1
    }
}

impl Simulation {
    pub(super) fn write(&mut self, at: usize) {
        let length_bytes = self.rng.below(MAX_WRITE) as usize;
        let immediate = self.rng.below(2) == 0;
        let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
        let endpoint = &mut self.endpoints[at];
        let number = endpoint.written.len();
        endpoint.written.push(Write {
            length_bytes,
            before: endpoint.sent.len(),
            immediate,
        });
        let write = Send {
            data: vec![Write::byte(number); length_bytes],
            remote: Some((number as u64 * MAX_WRITE, REGION)),
            immediate: immediate.then_some(at as u32),
            ..Send::default()
        };
        let posted = if immediate {
            // The peer receives it as a message without data.
            endpoint.sent.push(Vec::new());
            Posted::Message(endpoint.sent.len() - 1)
        } else {
            Posted::Write(number)
        };
        let id = self.net.post(node, vi, write);
        self.endpoints[at].posted.insert(id, posted);
    }

    /// Returns the target range of a write of this side.
    pub(super) fn target_of(&self, at: usize, number: usize) -> &[u8] {
        let bytes = &self.net.nodes[1 - at].io.regions[&REGION].bytes;
        let from = number * MAX_WRITE as usize;
        &bytes[from..from + self.endpoints[at].written[number].length_bytes]
    }

    /// Asserts that every written byte belongs to the write of its range. At Reliable Reception nothing is written
    /// behind a message that did not arrive complete (VIPL 2.4).
    pub(super) fn check_writes(&self, at: usize) {
        let what = &self.what;
        let delivered = self.endpoints[1 - at].delivered;
        let mut whole = true;
        let mut all = 0;
        for (number, write) in self.endpoints[at].written.iter().enumerate() {
            let target = self.target_of(at, number);
            let placed = target.iter().filter(|b| **b != 0).count();
            all += placed;
            let own = target.iter().all(|b| *b == 0 || *b == Write::byte(number));
            assert!(own, "{what}: bytes of another write");
            if self.level != ReliabilityLevel::ReliableReception {
                continue;
            }
            whole &= write.before <= delivered;
            assert!(
                placed == 0 || whole,
                "{what}: write {number} behind a failed message"
            );
            whole &= placed == write.length_bytes;
            whole &= !write.immediate || write.before < delivered;
        }
        let bytes = &self.net.nodes[1 - at].io.regions[&REGION].bytes;
        let found = bytes.iter().filter(|b| **b != 0).count();
        assert_eq!(found, all, "{what}: bytes outside all writes");
    }
}
