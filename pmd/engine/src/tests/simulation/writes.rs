//! RDMA writes of a simulation: each has a place and bytes of its own, and is judged by them.

use super::{Posted, REGION, STEPS, Simulation};
use crate::Level;
use crate::testkit::host::Send;

const MAX_WRITE: u64 = 5_000;
/// Each write of a connection has a place and bytes of its own.
pub(super) const REGION_BYTES: usize = (STEPS * MAX_WRITE) as usize;

/// An RDMA write into the place of its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    length_bytes: usize,
    /// Messages before it that take a receive descriptor.
    before: usize,
    /// It is such a message itself.
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
        let (node, vi) = (self.ends[at].node, self.ends[at].vi);
        let end = &mut self.ends[at];
        let number = end.written.len();
        end.written.push(Write {
            length_bytes,
            before: end.sent.len(),
            immediate,
        });
        let write = Send {
            data: vec![Write::byte(number); length_bytes],
            remote: Some((number as u64 * MAX_WRITE, REGION)),
            immediate: immediate.then_some(at as u32),
            ..Send::default()
        };
        let posted = if immediate {
            // It shows itself at the other end as a message without bytes of its own.
            end.sent.push(Vec::new());
            Posted::Message(end.sent.len() - 1)
        } else {
            Posted::Write(number)
        };
        let id = self.net.post(node, vi, write);
        self.ends[at].posted.insert(id, posted);
    }

    /// Where a write of this end goes.
    pub(super) fn target_of(&self, at: usize, number: usize) -> &[u8] {
        let bytes = &self.net.nodes[1 - at].host.regions[&REGION].bytes;
        let from = number * MAX_WRITE as usize;
        &bytes[from..from + self.ends[at].written[number].length_bytes]
    }

    /// Every byte that was written is of the write that goes there. At Reliable Reception there
    /// is none of a write behind what did not arrive whole (VIPL 2.4).
    pub(super) fn judge_writes(&self, at: usize) {
        let what = &self.what;
        let delivered = self.ends[1 - at].delivered;
        let mut whole = true;
        let mut all = 0;
        for (number, write) in self.ends[at].written.iter().enumerate() {
            let there = self.target_of(at, number);
            let placed = there.iter().filter(|b| **b != 0).count();
            all += placed;
            let own = there.iter().all(|b| *b == 0 || *b == Write::byte(number));
            assert!(own, "{what}: bytes of another write");
            if self.level != Level::ReliableReception {
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
        let bytes = &self.net.nodes[1 - at].host.regions[&REGION].bytes;
        let found = bytes.iter().filter(|b| **b != 0).count();
        assert_eq!(found, all, "{what}: bytes that nobody wrote");
    }
}
