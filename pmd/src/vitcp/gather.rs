//! What goes to TCP with one system call: segments, their headers beside each other in a buffer of
//! ours, their payload where the program has it.

use vi_engine::ViIndex;
use vitcp_lite::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::rdma::RdmaHeader;
use vitcp_lite::segment::SegmentHeader;

use super::connection::Tx;
use crate::datapath::Datapath;
use crate::datapath::stream::{Lies, Pieces, Place};

/// Segments in one system call, at most.
const MAX_SEGMENTS: usize = 64;
/// Pieces of memory in one system call, at most.
const MAX_PIECES: usize = 512;
/// Bytes in one system call, about at most.
const MAX_BYTES: usize = 1 << 20;
/// Room for headers, and for payload that is copied: a whole segment always fits into an empty buffer.
const BUFFER_BYTES: usize = 256 << 10;
/// Payload up to this is copied beside its header: cheaper than a piece of its own.
const COPIED_BYTES: u32 = 1024;
/// A call with so many segments is one of a stream.
const STREAM_SEGMENTS: usize = 8;
/// What is written of a stream is kept back for what follows: so long at most, and no more once
/// nothing followed in so many looks.
pub(super) const KEPT_BACK_NS: u64 = 30_000;
pub(super) const KEPT_BACK_LOOKS: u32 = 8;
/// Bytes of the headers of a message's segment, at most.
pub(super) const HEADERS_BYTES: usize = SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES;

/// What a segment is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// So many bytes of what waits as it is: segments of the connection's procedure.
    Control(u32),
    /// Of the message of the next descriptor: so much payload. `begins` one, `ends` one.
    Own {
        payload_bytes: u32,
        begins: bool,
        ends: bool,
    },
    /// The request of an RDMA read.
    Read,
    /// Of an answer to the peer's oldest read.
    Answer { payload_bytes: u32, ends: bool },
    /// A NOP.
    Nop,
    /// The rest of a segment of which a part is written.
    Rest,
}

/// A segment of which a part is written: the rest must be the same bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    headers: [u8; HEADERS_BYTES],
    headers_bytes: u32,
    written_bytes: u32,
    payload: Option<Payload>,
    pub(super) part: Part,
}

impl Unfinished {
    /// Does it begin a message of ours, which has a number then?
    pub(super) fn begins(&self) -> bool {
        match self.part {
            Part::Own { begins, .. } => begins,
            Part::Read | Part::Nop => true,
            Part::Control(_) | Part::Answer { .. } | Part::Rest => false,
        }
    }

    /// The bytes that are not written; `None` if the memory of its payload is not valid any more.
    pub(super) fn rest(&self, vi: ViIndex, path: &mut Datapath) -> Option<Vec<u8>> {
        let headers = self.headers.get(..self.headers_bytes as usize)?;
        let payload_bytes = self.payload.map_or(0, |payload| payload.bytes as usize);
        let mut bytes = vec![0; headers.len() + payload_bytes];
        let (front, behind) = bytes.split_at_mut(headers.len());
        front.copy_from_slice(headers);
        if let Some(payload) = self.payload {
            let place = payload.place_now(vi, path);
            if !path.copy_out(vi, place, payload.offset_bytes, behind) {
                return None;
            }
        }
        bytes.drain(..self.written_bytes as usize);
        Some(bytes)
    }
}

/// Where payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) place: Place,
    pub(super) offset_bytes: u32,
    pub(super) bytes: u32,
}

impl Payload {
    /// Its place, of a segment that was begun before: those before it are sent, so it is of the
    /// first that is not, wherever that was.
    fn place_now(&self, vi: ViIndex, path: &mut Datapath) -> Place {
        match self.place {
            Place::Sending(_) => Place::Sending(path.in_flight(vi)),
            place => place,
        }
    }
}

/// A segment of this system call.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// Where it ends in the bytes of the call.
    end_bytes: usize,
    headers_at: usize,
    headers_bytes: usize,
    payload: Option<Payload>,
    part: Part,
}

/// What became of a segment that was to be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    Yes,
    /// It must wait for the next system call.
    Full,
    /// The memory of its payload is not valid.
    Fault,
}

/// One system call's worth of segments, for one connection at a time.
pub(super) struct Gather {
    pieces: Pieces,
    buffer: Box<[u8]>,
    used_bytes: usize,
    /// The last piece is the end of what is used of the buffer, so that it can grow.
    grows: bool,
    planned: Vec<Planned>,
    bytes: usize,
}

impl Gather {
    pub(super) fn new() -> Self {
        Self {
            pieces: Pieces::with_capacity(MAX_PIECES),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            used_bytes: 0,
            grows: false,
            planned: Vec::with_capacity(MAX_SEGMENTS),
            bytes: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.planned.clear();
        (self.used_bytes, self.bytes, self.grows) = (0, 0, false);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// May TCP keep the end of this call back, for what follows? So it may if a program streams:
    /// this call takes many segments, as the one before did just now.
    #[inline]
    pub(super) fn keeps_back(&self, now_ns: u64, may_follow: bool, tx: &mut Tx) -> bool {
        let streams = self.planned.len() >= STREAM_SEGMENTS;
        let streamed = core::mem::replace(&mut tx.streams, streams);
        let in_stream = streams && streamed && may_follow;
        let keeps = in_stream && now_ns < tx.pushed_ns + KEPT_BACK_NS;
        if !keeps {
            tx.pushed_ns = now_ns;
            tx.corked = false;
        }
        keeps
    }

    fn is_full(&self) -> bool {
        self.planned.len() == MAX_SEGMENTS || self.bytes >= MAX_BYTES || self.pieces.room() < 2
    }

    /// Takes so many bytes of the buffer as the next ones of the call.
    fn stage(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let range = self.used_bytes..self.used_bytes + bytes;
        let to = self.buffer.get_mut(range)?;
        let address = to.as_mut_ptr().expose_provenance() as u64;
        if self.grows {
            self.pieces.grow_last(bytes);
        } else {
            self.pieces.push(address, bytes);
            self.grows = true;
        }
        self.used_bytes += bytes;
        self.bytes += bytes;
        self.buffer
            .get_mut(self.used_bytes - bytes..self.used_bytes)
    }

    /// Takes back what was added behind this point.
    fn rewind(&mut self, (pieces, last_bytes, used, bytes): (usize, usize, usize, usize)) {
        self.pieces.truncate(pieces);
        self.pieces.set_last(last_bytes);
        (self.used_bytes, self.bytes) = (used, bytes);
        // Conservative: what is added next gets a piece of its own.
        self.grows = false;
    }

    fn point(&self) -> (usize, usize, usize, usize) {
        let last = self.pieces.last_bytes();
        (self.pieces.len(), last, self.used_bytes, self.bytes)
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

    /// Room for one small message alone: its header, and its payload. What was gathered is gone.
    #[inline]
    pub(super) fn alone(&mut self) -> Option<(&mut [u8; SEGMENT_HEADER_BYTES], &mut [u8])> {
        self.clear();
        let (header, rest) = self.buffer.split_first_chunk_mut()?;
        Some((header, rest.get_mut(..COPIED_BYTES as usize)?))
    }

    /// That message, of so much payload.
    #[inline]
    pub(super) fn lone_bytes(&self, payload_bytes: u32) -> &[u8] {
        let bytes = SEGMENT_HEADER_BYTES + payload_bytes as usize;
        self.buffer.get(..bytes).unwrap_or_default()
    }

    /// It is what was planned: TCP did not take all of it.
    #[cold]
    pub(super) fn plan_alone(&mut self, payload_bytes: u32) {
        self.stage(SEGMENT_HEADER_BYTES + payload_bytes as usize);
        let payload = (payload_bytes > 0).then_some(Payload {
            place: Place::Sending(0),
            offset_bytes: 0,
            bytes: payload_bytes,
        });
        let part = Part::Own {
            payload_bytes,
            begins: true,
            ends: true,
        };
        self.plan(0, SEGMENT_HEADER_BYTES, payload, part);
    }

    /// Adds bytes as they are.
    pub(super) fn add_control(&mut self, bytes: &[u8]) {
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
    pub(super) fn add(
        &mut self,
        (vi, path): (ViIndex, &mut Datapath),
        header: &SegmentHeader,
        rdma: Option<&RdmaHeader>,
        payload: Option<Payload>,
        part: Part,
    ) -> Added {
        let room = BUFFER_BYTES - self.used_bytes;
        let payload_bytes = payload.map_or(0, |payload| payload.bytes as usize);
        if self.is_full() || room < HEADERS_BYTES + payload_bytes {
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

    /// Adds payload but its first `skipped` bytes. False if its memory is not valid. There is room.
    fn add_payload(
        &mut self,
        (vi, path): (ViIndex, &mut Datapath),
        payload: Payload,
        skipped: u32,
    ) -> bool {
        let (offset, bytes) = (payload.offset_bytes + skipped, payload.bytes - skipped);
        if bytes == 0 {
            return true;
        }
        if bytes > COPIED_BYTES {
            match path.locate(vi, payload.place, offset, bytes, &mut self.pieces) {
                Lies::Here => {
                    self.grows = false;
                    self.bytes += bytes as usize;
                    return true;
                }
                Lies::Apart => {}
                Lies::Nowhere => return false,
            }
        }
        match self.stage(bytes as usize) {
            Some(to) => path.copy_out(vi, payload.place, offset, to),
            None => false,
        }
    }

    /// Adds the rest of a segment. False if the memory of its payload is not valid any more.
    pub(super) fn add_rest(
        &mut self,
        (vi, path): (ViIndex, &mut Datapath),
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
            let place = payload.place_now(vi, path);
            let payload = Payload { place, ..payload };
            let added = self.add_payload((vi, path), payload, skipped);
            if !added {
                return false;
            }
        }
        self.plan(0, 0, None, Part::Rest);
        true
    }

    /// What became of the segments, in their order, when TCP took so many bytes: `sent` is told of
    /// each that is written, and of what part it is. Gives the one of which a part is written.
    pub(super) fn settle(
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
                _ if written == 0 && planned.part != Part::Rest => None,
                Part::Control(_) => {
                    sent(Part::Control(written as u32));
                    None
                }
                Part::Rest => before.map(|before| Unfinished {
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

    /// Is the end of a call with so many segments kept back?
    fn keeps_back(tx: &mut Tx, now_ns: u64, segments: usize) -> bool {
        let mut gather = Gather::new();
        for _ in 0..segments {
            gather.plan(0, 0, None, Part::Nop);
        }
        gather.keeps_back(now_ns, true, tx)
    }

    #[test]
    fn what_is_kept_back_is_of_a_stream_and_not_for_long() {
        let mut tx = Tx::new();
        let begin_ns = 1_000_000;
        assert!(!keeps_back(&mut tx, begin_ns, STREAM_SEGMENTS), "the first");
        assert!(keeps_back(&mut tx, begin_ns + 1, STREAM_SEGMENTS));
        assert!(keeps_back(
            &mut tx,
            begin_ns + KEPT_BACK_NS - 1,
            MAX_SEGMENTS
        ));
        assert!(!keeps_back(
            &mut tx,
            begin_ns + KEPT_BACK_NS,
            STREAM_SEGMENTS
        ));
        assert!(
            !keeps_back(&mut tx, begin_ns + KEPT_BACK_NS + 1, 1),
            "an answer"
        );
        let next_ns = begin_ns + KEPT_BACK_NS + 2;
        assert!(
            !keeps_back(&mut tx, next_ns, STREAM_SEGMENTS),
            "again the first"
        );
        assert!(keeps_back(&mut tx, next_ns + 1, STREAM_SEGMENTS));
    }
}
