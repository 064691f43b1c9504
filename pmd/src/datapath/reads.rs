//! RDMA reads: our memory read by a peer, and what was read of a peer's placed in ours.

use fcvi_frame::frame::{HeaderTemplate, PerFrame};
use vi_engine::{Transmit, ViIndex};

use super::{Datapath, eof};
use crate::memory::{Access, copy};
use crate::post::{Cursor, scatter, still_valid};

/// How far the data of a read has got in its segments, and of which read that is.
#[derive(Default)]
pub(super) struct ReadCursor {
    /// The descriptor, by its number on the send queue.
    sequence: u32,
    cursor: Cursor,
}

impl ReadCursor {
    /// The cursor for this descriptor: data of another one came since if it begins anew.
    fn of(&mut self, sequence: u32) -> &mut Cursor {
        if self.sequence != sequence {
            self.sequence = sequence;
            self.cursor = Cursor::default();
        }
        &mut self.cursor
    }
}

impl Datapath {
    /// Places what was read into the descriptor `ahead` places behind the oldest in flight.
    /// False if its memory is no longer valid, or holds less.
    pub(super) fn place_in_flight(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        let regions = self.regions;
        let Some(path) = self.vi(vi).filter(|path| ahead < path.in_flight) else {
            return false;
        };
        let queue = &path.shared.send;
        // SAFETY: we run under the turn; the reference ends with this call.
        let Some(slot) = (unsafe { queue.ahead(ahead) }) else {
            return false;
        };
        if slot.access() != Access::Write || !still_valid(slot, regions, path.tag, Access::Write) {
            return false;
        }
        let cursor = path.read_cursor.of(queue.sequence(ahead));
        // SAFETY: the segments were found valid in this turn, for writing.
        unsafe { scatter(cursor, slot, offset_bytes, payload) }
    }

    /// May the peer of this VI read so many bytes of this address and handle?
    pub(super) fn may_be_read(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        bytes: u64,
    ) -> bool {
        let regions = self.regions;
        self.vi(vi)
            .is_some_and(|path| regions.check(handle, path.tag, address, bytes, Access::RemoteRead))
    }

    /// Sends one frame of what a peer reads, from `source` and the frame's offset on.
    pub(super) fn send_read(
        &mut self,
        vi: ViIndex,
        (template, per_frame): (&HeaderTemplate, &PerFrame),
        (address, handle): (u64, u32),
        payload_bytes: u32,
        last: bool,
    ) -> Transmit {
        self.transmit(vi, template.dst(), |workbench, path, regions| {
            let at = address.checked_add(u64::from(per_frame.relative_offset))?;
            let bytes = u64::from(payload_bytes);
            if !regions.check(handle, path.tag, at, bytes, Access::RemoteRead) {
                return None;
            }
            let (eof, bytes) = (eof(last), payload_bytes as usize);
            workbench.build(template, per_frame, bytes, eof, |to| {
                // SAFETY: checked in this turn, and deregistration needs the turn.
                unsafe { copy::read(at, to) };
                true
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::DataSegment;

    #[test]
    fn data_of_two_reads_that_comes_in_turn_goes_where_it_belongs() {
        let segments = |base: u64, lengths: &[u32]| -> Vec<DataSegment> {
            let at = (0..).map(|index| base + index * 1000);
            at.zip(lengths)
                .map(|(address, &length)| DataSegment {
                    address,
                    handle: 1,
                    length,
                })
                .collect()
        };
        // What is left of a segment of one is more than a whole segment of the other.
        let reads = [segments(0, &[10, 300, 90]), segments(50_000, &[390, 10])];
        let mut cursor = ReadCursor::default();
        let mut seen = [Vec::new(), Vec::new()];
        for offset in (0..400).step_by(80) {
            for (number, segments) in reads.iter().enumerate() {
                let cursor = cursor.of(number as u32 + 7);
                let fits = cursor.walk(segments, offset, 80, |address, range| {
                    seen[number].extend((0..range.len() as u64).map(|i| address + i));
                });
                assert!(fits, "{offset} of {number}");
            }
        }
        for (seen, segments) in seen.iter().zip(&reads) {
            let expected: Vec<u64> = segments
                .iter()
                .flat_map(|s| (0..u64::from(s.length)).map(|i| s.address + i))
                .collect();
            assert_eq!(*seen, expected);
        }
    }
}
