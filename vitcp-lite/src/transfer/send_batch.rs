//! The segments of one send system call: headers and short payload contiguous in a buffer, longer payload
//! directly from the application's memory.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::rdma::RdmaHeader;
use crate::segment::SegmentHeader;
use vi_types::ViIndex;

use super::{BufferAccess, MemoryRanges, MessageMemory, StreamIo, Tx};

/// Maximum segments of one system call.
const MAX_SEGMENTS: usize = 64;
/// Maximum memory ranges of one system call.
const MAX_RANGES: usize = 512;
/// Approximate limit of bytes in one system call.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of the buffer for headers and copied payload: a whole segment always fits into an empty buffer.
const BUFFER_BYTES: usize = 256 << 10;
/// Maximum payload bytes that are copied next to the header: cheaper than a memory range of their own.
const COPIED_BYTES: u32 = 1024;
/// Minimum segments of a call that belongs to a stream.
const STREAM_SEGMENTS: usize = 8;
/// Maximum time for which TCP holds the end of a call of a stream back for the data that follows.
pub const CORK_NS: u64 = 30_000;
/// Polls without a write after which it is pushed earlier.
pub const CORK_POLLS: u32 = 8;
/// Maximum header bytes of a segment of a message.
pub(crate) const HEADERS_BYTES: usize = SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES;

/// What a segment of the batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// This many bytes of pending control segments.
    Control(u32),
    /// A segment of the message of the next descriptor; `begins`, `ends`: its first, its last one.
    Message {
        payload_bytes: u32,
        begins: bool,
        ends: bool,
    },
    /// An RDMA Read Request.
    ReadRequest,
    /// A segment of the response to the peer's oldest read.
    ReadResponse { payload_bytes: u32, ends: bool },
    /// A NOP.
    Nop,
    /// The remainder of a partly written segment.
    Remainder,
}

/// A partly written segment: its remainder must be sent unchanged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    headers: [u8; HEADERS_BYTES],
    headers_bytes: u32,
    written_bytes: u32,
    payload: Option<Payload>,
    pub(crate) part: Part,
}

impl Unfinished {
    /// Checks whether it begins a message of ours, and so uses a message number.
    pub(crate) fn begins(&self) -> bool {
        match self.part {
            Part::Message { begins, .. } => begins,
            Part::ReadRequest | Part::Nop => true,
            Part::Control(_) | Part::ReadResponse { .. } | Part::Remainder => false,
        }
    }

    /// Returns the bytes that are not written; `None` if the memory of its payload is not valid any more.
    pub(crate) fn remainder(&self, vi: ViIndex, path: &mut impl StreamIo) -> Option<Vec<u8>> {
        let headers = self.headers.get(..self.headers_bytes as usize)?;
        let payload_bytes = self.payload.map_or(0, |payload| payload.bytes as usize);
        let mut bytes = vec![0; headers.len() + payload_bytes];
        let (front, rest) = bytes.split_at_mut(headers.len());
        front.copy_from_slice(headers);
        if let Some(payload) = self.payload {
            let memory = payload.current_memory(vi, path);
            if !path.copy_out(vi, memory, payload.offset_bytes, rest) {
                return None;
            }
        }
        bytes.drain(..self.written_bytes as usize);
        Some(bytes)
    }
}

/// Payload of a segment, in the application's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Payload {
    pub(crate) memory: MessageMemory,
    pub(crate) offset_bytes: u32,
    pub(crate) bytes: u32,
}

impl Payload {
    /// Returns the memory for a segment that was begun in an earlier call: all descriptors before it are
    /// sent, so it is now that of the first descriptor that is not in flight.
    fn current_memory(&self, vi: ViIndex, path: &mut impl StreamIo) -> MessageMemory {
        match self.memory {
            MessageMemory::Send(_) => MessageMemory::Send(path.in_flight(vi)),
            memory => memory,
        }
    }
}

/// A segment of this system call.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// Offset of its end in the bytes of the call.
    end_bytes: usize,
    headers_at: usize,
    headers_bytes: usize,
    payload: Option<Payload>,
    part: Part,
}

/// Result of adding a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Yes,
    /// It must wait for the next system call.
    Full,
    /// The memory of its payload is not valid.
    Fault,
}

/// The segments of one system call, for one connection at a time.
pub struct SendBatch {
    ranges: MemoryRanges,
    buffer: Box<[u8]>,
    used_bytes: usize,
    /// The last memory range ends where the used part of the buffer ends, so it can grow.
    grows: bool,
    planned: Vec<Planned>,
    bytes: usize,
}

impl Default for SendBatch {
    /// Creates an empty batch, with all the memory that it needs.
    fn default() -> Self {
        Self {
            ranges: MemoryRanges::with_capacity(MAX_RANGES),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            used_bytes: 0,
            grows: false,
            planned: Vec::with_capacity(MAX_SEGMENTS),
            bytes: 0,
        }
    }
}

impl SendBatch {
    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.planned.clear();
        (self.used_bytes, self.bytes, self.grows) = (0, 0, false);
    }

    /// Checks whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// Returns the number of bytes to send.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the memory ranges to send.
    #[must_use]
    pub fn ranges(&self) -> &MemoryRanges {
        &self.ranges
    }

    /// Checks whether TCP may hold the end of this call back for data that follows: only in a stream, where
    /// this call and the one just before have many segments.
    #[inline]
    pub fn may_cork(&self, now_ns: u64, may_follow: bool, tx: &mut Tx) -> bool {
        let streaming = self.planned.len() >= STREAM_SEGMENTS;
        let streamed = core::mem::replace(&mut tx.streaming, streaming);
        let in_stream = streaming && streamed && may_follow;
        let corks = in_stream && now_ns < tx.pushed_ns + CORK_NS;
        if !corks {
            tx.pushed_ns = now_ns;
            tx.corked = false;
        }
        corks
    }

    fn is_full(&self) -> bool {
        self.planned.len() == MAX_SEGMENTS || self.bytes >= MAX_BYTES || self.ranges.room() < 2
    }

    /// Appends `bytes` of the buffer to the call, for the caller to fill.
    fn stage(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let range = self.used_bytes..self.used_bytes + bytes;
        let to = self.buffer.get_mut(range)?;
        let address = to.as_mut_ptr().expose_provenance() as u64;
        if self.grows {
            self.ranges.grow_last(bytes);
        } else {
            self.ranges.push(address, bytes);
            self.grows = true;
        }
        self.used_bytes += bytes;
        self.bytes += bytes;
        self.buffer
            .get_mut(self.used_bytes - bytes..self.used_bytes)
    }

    /// Removes everything added after this point.
    fn rewind(&mut self, (ranges, last_bytes, used, bytes): (usize, usize, usize, usize)) {
        self.ranges.truncate(ranges);
        self.ranges.set_last(last_bytes);
        (self.used_bytes, self.bytes) = (used, bytes);
        // Conservative: the next addition gets a memory range of its own.
        self.grows = false;
    }

    fn point(&self) -> (usize, usize, usize, usize) {
        let last = self.ranges.last_bytes();
        (self.ranges.len(), last, self.used_bytes, self.bytes)
    }

    fn plan(
        &mut self,
        headers_at: usize,
        headers_bytes: usize,
        payload: Option<Payload>,
        part: Part,
    ) {
        self.planned.push(Planned {
            end_bytes: self.bytes,
            headers_at,
            headers_bytes,
            payload,
            part,
        });
    }

    /// Clears the batch and returns the buffer for a single small message: header and payload.
    #[inline]
    pub(crate) fn single(&mut self) -> Option<(&mut [u8; SEGMENT_HEADER_BYTES], &mut [u8])> {
        self.clear();
        let (header, rest) = self.buffer.split_first_chunk_mut()?;
        Some((header, rest.get_mut(..COPIED_BYTES as usize)?))
    }

    /// Returns the first `bytes` bytes of the buffer: that message with its header, or all segments if the payload of
    /// none is sent from the application's memory.
    #[inline]
    #[must_use]
    pub fn buffered(&self, bytes: usize) -> &[u8] {
        self.buffer.get(..bytes).unwrap_or_default()
    }

    /// Adds that message to the batch, since TCP did not take all of it.
    #[cold]
    pub fn plan_single(&mut self, payload_bytes: u32) {
        self.stage(SEGMENT_HEADER_BYTES + payload_bytes as usize);
        let payload = (payload_bytes > 0).then_some(Payload {
            memory: MessageMemory::Send(0),
            offset_bytes: 0,
            bytes: payload_bytes,
        });
        let part = Part::Message {
            payload_bytes,
            begins: true,
            ends: true,
        };
        self.plan(0, SEGMENT_HEADER_BYTES, payload, part);
    }

    /// Adds pending control segments, as far as the buffer has space.
    pub(crate) fn add_control(&mut self, bytes: &[u8]) {
        let take = bytes.len().min(BUFFER_BYTES - self.used_bytes);
        if take == 0 {
            return;
        }
        if let (Some(to), Some(from)) = (self.stage(take), bytes.get(..take)) {
            to.copy_from_slice(from);
            self.plan(0, 0, None, Part::Control(take as u32));
        }
    }

    /// Adds a segment.
    pub(crate) fn add(
        &mut self,
        (vi, path): (ViIndex, &mut impl StreamIo),
        header: &SegmentHeader,
        rdma: Option<&RdmaHeader>,
        payload: Option<Payload>,
        part: Part,
    ) -> Added {
        let space = BUFFER_BYTES - self.used_bytes;
        let payload_bytes = payload.map_or(0, |payload| payload.bytes as usize);
        if self.is_full() || space < HEADERS_BYTES + payload_bytes {
            return Added::Full;
        }
        let point = self.point();
        let at = self.used_bytes;
        let headers_bytes = match rdma {
            Some(_) => HEADERS_BYTES,
            None => SEGMENT_HEADER_BYTES,
        };
        if let Some(to) = self.stage(headers_bytes) {
            put_headers(to, header, rdma);
        }
        if let Some(payload) = payload
            && !self.add_payload((vi, path), payload, 0)
        {
            self.rewind(point);
            return Added::Fault;
        }
        self.plan(at, headers_bytes, payload, part);
        Added::Yes
    }

    /// Adds payload without its first `skipped` bytes. Returns false if its memory is not valid. The caller
    /// has checked the space.
    fn add_payload(
        &mut self,
        (vi, path): (ViIndex, &mut impl StreamIo),
        payload: Payload,
        skipped: u32,
    ) -> bool {
        let (offset, bytes) = (payload.offset_bytes + skipped, payload.bytes - skipped);
        if bytes == 0 {
            return true;
        }
        if bytes > COPIED_BYTES {
            match path.locate(vi, payload.memory, offset, bytes, &mut self.ranges) {
                BufferAccess::Direct => {
                    self.grows = false;
                    self.bytes += bytes as usize;
                    return true;
                }
                BufferAccess::NeedsCopy => {}
                BufferAccess::Invalid => return false,
            }
        }
        match self.stage(bytes as usize) {
            Some(to) => path.copy_out(vi, payload.memory, offset, to),
            None => false,
        }
    }

    /// Adds the remainder of a segment. Returns false if the memory of its payload is not valid any more.
    pub(crate) fn add_remainder(
        &mut self,
        (vi, path): (ViIndex, &mut impl StreamIo),
        rest: &Unfinished,
    ) -> bool {
        let left = rest
            .headers
            .get(rest.written_bytes as usize..rest.headers_bytes as usize);
        if let Some(left) = left.filter(|left| !left.is_empty())
            && let Some(to) = self.stage(left.len())
        {
            to.copy_from_slice(left);
        }
        if let Some(payload) = rest.payload {
            let skipped = rest.written_bytes.saturating_sub(rest.headers_bytes);
            let memory = payload.current_memory(vi, path);
            let payload = Payload { memory, ..payload };
            let added = self.add_payload((vi, path), payload, skipped);
            if !added {
                return false;
            }
        }
        self.plan(0, 0, None, Part::Remainder);
        true
    }

    /// Passes the parts that are written to `sent`, in order, after TCP took `written_bytes`. Returns the
    /// partly written segment, if there is one. `before`: the one of the call before.
    pub(crate) fn apply_written(
        &self,
        written_bytes: usize,
        before: Option<&Unfinished>,
        mut sent: impl FnMut(Part),
    ) -> Option<Unfinished> {
        let mut begin_bytes = 0;
        for planned in &self.planned {
            if planned.end_bytes <= written_bytes {
                sent(planned.part);
                begin_bytes = planned.end_bytes;
                continue;
            }
            let written = written_bytes - begin_bytes;
            return match planned.part {
                _ if written == 0 && planned.part != Part::Remainder => None,
                Part::Control(_) => {
                    sent(Part::Control(written as u32));
                    None
                }
                Part::Remainder => before.map(|before| Unfinished {
                    written_bytes: before.written_bytes + written as u32,
                    ..*before
                }),
                part => {
                    let mut headers = [0; HEADERS_BYTES];
                    let range = planned.headers_at..planned.headers_at + planned.headers_bytes;
                    if let (Some(to), Some(from)) = (
                        headers.get_mut(..planned.headers_bytes),
                        self.buffer.get(range),
                    ) {
                        to.copy_from_slice(from);
                    }
                    Some(Unfinished {
                        headers,
                        headers_bytes: planned.headers_bytes as u32,
                        written_bytes: written as u32,
                        payload: planned.payload,
                        part,
                    })
                }
            };
        }
        None
    }
}

fn put_headers(to: &mut [u8], header: &SegmentHeader, rdma: Option<&RdmaHeader>) {
    if let Some((first, rest)) = to.split_first_chunk_mut::<SEGMENT_HEADER_BYTES>() {
        header.emit(first);
        if let (Some(rdma), Some(second)) = (rdma, rest.first_chunk_mut::<RDMA_HEADER_BYTES>()) {
            rdma.emit(second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a call with this many segments may be corked.
    fn may_cork(tx: &mut Tx, now_ns: u64, segments: usize) -> bool {
        let mut batch = SendBatch::default();
        for _ in 0..segments {
            batch.plan(0, 0, None, Part::Nop);
        }
        batch.may_cork(now_ns, true, tx)
    }

    #[test]
    fn may_cork_only_within_a_stream_and_its_time_limit() {
        let mut tx = Tx::new();
        let begin_ns = 1_000_000;
        assert!(!may_cork(&mut tx, begin_ns, STREAM_SEGMENTS), "the first");
        assert!(may_cork(&mut tx, begin_ns + 1, STREAM_SEGMENTS));
        assert!(may_cork(&mut tx, begin_ns + CORK_NS - 1, MAX_SEGMENTS));
        assert!(!may_cork(&mut tx, begin_ns + CORK_NS, STREAM_SEGMENTS));
        assert!(
            !may_cork(&mut tx, begin_ns + CORK_NS + 1, 1),
            "a single segment"
        );
        let next_ns = begin_ns + CORK_NS + 2;
        assert!(
            !may_cork(&mut tx, next_ns, STREAM_SEGMENTS),
            "the first again"
        );
        assert!(may_cork(&mut tx, next_ns + 1, STREAM_SEGMENTS));
    }
}
