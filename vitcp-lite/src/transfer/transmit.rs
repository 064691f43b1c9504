//! Effects of the segments that TCP took, and completion of sent descriptors.

use crate::profile::{
    CE_HEADER_BYTES, MAX_SECURITY_BYTES, RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES,
};
use crate::{CeHeader, Flags, Posted, RdmaHeader, RemoteError, SegmentHeader, SegmentType};
use vi_types::{Operation, OperationKind, SendWork, Status, ViIndex};

use super::in_flight::SentDescriptor;
use super::plan::Stop;
use super::send_batch::{Part, SendBatch};
use super::{CloseReason, OpenMessage, StreamIo, Transfer, Tx};
use super::{Counter, Counters};

pub(super) fn rdma((address, handle): (u64, u32), total_bytes: u32) -> RdmaHeader {
    RdmaHeader {
        address,
        handle,
        total_bytes,
    }
}

/// Checks whether a message consumes a receive descriptor of the peer.
pub(super) fn takes_descriptor(work: &SendWork) -> bool {
    match work.operation {
        Operation::Send => true,
        Operation::Write { .. } => work.immediate.is_some(),
        Operation::Read { .. } => false,
    }
}

impl Transfer {
    /// Returns the current Rx Descriptors Posted; call [`Rx::note_advertised`] when a segment with it is sent.
    ///
    /// [`Rx::note_advertised`]: super::Rx::note_advertised
    pub(super) fn posted_word(&mut self, vi: ViIndex, path: &mut impl StreamIo) -> u16 {
        let unclaimed = path.unclaimed(vi);
        let rx = &mut self.rx;
        let total = rx.used.wrapping_add(unclaimed);
        match &mut rx.posted {
            Some(posted) => {
                posted.note(total);
                posted.word()
            }
            None => total as u16,
        }
    }

    /// Returns the current Rx Descriptors Posted for a control segment, which is sent in any case: marks the value as
    /// advertised.
    pub fn advertise_posted(&mut self, vi: ViIndex, path: &mut impl StreamIo) -> u16 {
        let word = self.posted_word(vi, path);
        self.rx.note_advertised();
        word
    }

    /// Adds a Connect Request or Accept to the pending control segments, and advertises the receives of the VI.
    pub fn put_connect(
        &mut self,
        vi: ViIndex,
        kind: SegmentType,
        (ack, credits_low): (u32, u16),
        ce: &CeHeader,
        path: &mut impl StreamIo,
    ) {
        let mut extension = [0; CE_HEADER_BYTES + MAX_SECURITY_BYTES];
        let Some(extension_bytes) = ce.emit(&mut extension) else {
            return;
        };
        let mut posted = Posted::new(credits_low);
        posted.note(path.unclaimed(vi));
        self.rx.posted = Some(posted);
        let mut header = SegmentHeader::new(kind, (SEGMENT_HEADER_BYTES + extension_bytes) as u16);
        header.flags = Flags::END_OF_MESSAGE;
        header.message = self.tx.number;
        header.ack = ack;
        header.rx_posted = self.advertise_posted(vi, path);
        self.tx.put_control(&header);
        let extension = extension.iter().take(extension_bytes);
        self.tx.control.extend(extension);
    }

    /// Copies the only posted descriptor into `batch` as a whole segment, if it is a small send and nothing else is
    /// pending; otherwise `None`, without effect. Returns its payload bytes.
    #[inline]
    pub fn plan_single(
        &mut self,
        vi: ViIndex,
        batch: &mut SendBatch,
        path: &mut impl StreamIo,
    ) -> Option<u32> {
        if !self.tx.is_clear() {
            return None;
        }
        let limit_bytes = (self.tx.segment_bytes)
            .saturating_sub(SEGMENT_HEADER_BYTES as u32)
            .min(self.params.max_transfer_bytes);
        let (to, payload) = batch.single()?;
        let limit = payload.len().min(limit_bytes as usize);
        let work = path.copy_lone_send(vi, payload.get_mut(..limit)?)?;
        let bytes = work.length_bytes;
        let segment_bytes = SEGMENT_HEADER_BYTES as u16 + bytes as u16;
        let mut header = SegmentHeader::new(SegmentType::Send, segment_bytes);
        header.flags = Flags::END_OF_MESSAGE;
        if let Some(immediate) = work.immediate {
            header.flags = header.flags.with(Flags::IMMEDIATE);
            header.immediate = immediate;
        }
        header.message = self.tx.number.wrapping_add(1);
        header.ack = self.rx.ack_number;
        header.rx_posted = self.posted_word(vi, path);
        header.emit(to);
        Some(bytes)
    }

    /// Applies that TCP took all of the segment of [`Transfer::plan_single`], and completes its descriptor.
    #[inline]
    pub fn single_sent(
        &mut self,
        vi: ViIndex,
        bytes: u32,
        counters: &mut Counters,
        path: &mut impl StreamIo,
    ) {
        counters.count(Counter::TxSegments);
        counters.count(Counter::TxMessages);
        self.rx.note_advertised();
        let tx = &mut self.tx;
        tx.number = tx.number.wrapping_add(1);
        tx.response_next = true;
        if let Some(credits) = &mut tx.credits {
            // `is_clear` has checked that one is available.
            let _used = credits.use_one();
        }
        path.complete_send(vi, Status::OK, bytes);
    }

    /// Counts that a message begins to wait for a receive descriptor of the peer.
    pub fn note_starving(&mut self, stop: Stop, counters: &mut Counters) {
        let starved = stop == Stop::Starved;
        if starved && !self.tx.starved {
            counters.count(Counter::FlowControlWaits);
        }
        self.tx.starved = starved;
    }

    /// Applies a send of the planned segments of which TCP took `written` bytes.
    pub fn apply_written(
        &mut self,
        vi: ViIndex,
        written: usize,
        (batch, counters): (&SendBatch, &mut Counters),
        path: &mut impl StreamIo,
    ) {
        let Self { tx, rx, .. } = self;
        let before = tx.unfinished.take();
        // The remainder of a segment has the header values of an earlier call.
        let mut has_remainder = before.is_some();
        let mut advertises = false;
        let unfinished = batch.apply_written(written, before.as_ref(), |part| {
            let part = match part {
                Part::Remainder => {
                    has_remainder = false;
                    before.map_or(Part::Nop, |before| before.part)
                }
                Part::Control(bytes) => {
                    tx.control.drain(..bytes as usize);
                    return;
                }
                part => {
                    advertises = true;
                    part
                }
            };
            counters.count(Counter::TxSegments);
            match part {
                Part::Message {
                    payload_bytes,
                    begins,
                    ends,
                } => tx.message_sent(vi, (payload_bytes, begins, ends), counters, path),
                Part::ReadRequest => tx.read_sent(vi, counters, path),
                Part::ReadResponse {
                    payload_bytes,
                    ends,
                } => {
                    tx.response_next = false;
                    if let Some(job) = tx.read_responses.front_mut() {
                        job.sent_bytes += payload_bytes;
                    }
                    if ends {
                        tx.read_responses.pop_front();
                    }
                }
                Part::Nop => {
                    tx.number = tx.number.wrapping_add(1);
                    counters.count(Counter::TxNops);
                }
                Part::Control(_) | Part::Remainder => {}
            }
        });
        advertises |= unfinished.is_some() && !has_remainder;
        if advertises {
            rx.note_advertised();
        }
        tx.unfinished = unfinished;
    }

    /// Completes the next descriptor, which cannot be sent, with its fault. Returns true if the one after it may be
    /// sent.
    ///
    /// # Errors
    /// The connection of a reliable VI breaks.
    #[cold]
    pub fn complete_with_fault(
        &mut self,
        vi: ViIndex,
        status: Status,
        path: &mut impl StreamIo,
    ) -> Result<bool, CloseReason> {
        let flight = &mut self.tx.in_flight;
        if !flight.is_empty() {
            flight.fault = Some(status);
            return Ok(false);
        }
        flight.fault = None;
        path.complete_send(vi, status, 0);
        match self.params.level.is_reliable() {
            true => Err(CloseReason::Local),
            false => Ok(true),
        }
    }

    /// Ends a partly sent message whose memory became invalid, with Transmit Error. Returns and fails as
    /// [`Transfer::complete_with_fault`].
    #[cold]
    pub fn abort_message(
        &mut self,
        vi: ViIndex,
        path: &mut impl StreamIo,
    ) -> Result<bool, CloseReason> {
        let Some(open) = self.tx.open.take() else {
            return Ok(false);
        };
        let (kind, remote) = match open.work.operation {
            Operation::Send => (SegmentType::Send, None),
            Operation::Write { remote } | Operation::Read { remote } => {
                (SegmentType::Write, Some(remote))
            }
        };
        let headers_bytes = match remote {
            None => SEGMENT_HEADER_BYTES,
            Some(_) => SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES,
        };
        let mut header = SegmentHeader::new(kind, headers_bytes as u16);
        header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
        header.message = open.number;
        header.data_offset = open.sent_bytes;
        header.ack = self.rx.ack_number;
        header.remote_error = RemoteError::NONE;
        header.rx_posted = self.advertise_posted(vi, path);
        self.tx.put_control(&header);
        if let Some(remote) = remote {
            self.tx.put_rdma(&rdma(remote, open.work.length_bytes));
        }
        let status = match open.sent_bytes {
            0 => Status::PROTECTION,
            _ => Status::PROTECTION.with(Status::PARTIAL),
        };
        self.complete_with_fault(vi, status, path)
    }
}

impl Tx {
    /// Checks that nothing is pending, open or in flight before the next message, that a credit is available,
    /// and that its descriptor completes when it is sent.
    #[inline]
    fn is_clear(&self) -> bool {
        self.open.is_none()
            && self.unfinished.is_none()
            && self.control.is_empty()
            && self.read_responses.is_empty()
            && self.in_flight.is_empty()
            && self.in_flight.fault.is_none()
            && !self.awaits_ack
            && !self.corked
            && self.credits.is_none_or(|credits| credits.available() > 0)
    }

    /// Notes a single send, which ends a stream.
    pub fn note_single_send(&mut self, now_ns: u64) {
        (self.streaming, self.starved) = (false, false);
        self.pushed_ns = now_ns;
    }

    /// Adds a segment without payload to the pending control segments.
    pub fn put_control(&mut self, header: &SegmentHeader) {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        header.emit(&mut bytes);
        self.control.extend(bytes);
    }

    /// Adds the RDMA header of that segment.
    pub(super) fn put_rdma(&mut self, rdma: &RdmaHeader) {
        let mut bytes = [0; RDMA_HEADER_BYTES];
        rdma.emit(&mut bytes);
        self.control.extend(bytes);
    }

    /// Applies the send of a segment of the next descriptor's message.
    fn message_sent(
        &mut self,
        vi: ViIndex,
        (payload_bytes, begins, ends): (u32, bool, bool),
        counters: &mut Counters,
        path: &mut impl StreamIo,
    ) {
        if begins {
            let Some(work) = path.work_ahead(vi, 0) else {
                return;
            };
            self.number = self.number.wrapping_add(1);
            self.open = Some(OpenMessage {
                work,
                number: self.number,
                sent_bytes: 0,
            });
            if takes_descriptor(&work)
                && let Some(credits) = &mut self.credits
            {
                // It was available when the message was planned.
                let _used = credits.use_one();
            }
        }
        self.response_next = true;
        let Some(open) = &mut self.open else {
            return;
        };
        open.sent_bytes += payload_bytes;
        if !ends {
            return;
        }
        let open = *open;
        self.open = None;
        counters.count(Counter::TxMessages);
        if !self.awaits_ack && self.in_flight.is_empty() {
            path.complete_send(vi, Status::OK, open.work.length_bytes);
            return;
        }
        self.in_flight.push(SentDescriptor {
            kind: OperationKind::of(&open.work),
            answered: !self.awaits_ack,
            number: open.number,
            source: (0, 0),
            length_bytes: open.work.length_bytes,
            placed_bytes: 0,
        });
        path.keep_in_flight(vi);
    }

    /// Applies the send of a Read Request.
    fn read_sent(&mut self, vi: ViIndex, counters: &mut Counters, path: &mut impl StreamIo) {
        let Some(work) = path.work_ahead(vi, 0) else {
            return;
        };
        let Operation::Read { remote } = work.operation else {
            return;
        };
        self.number = self.number.wrapping_add(1);
        counters.count(Counter::TxMessages);
        self.in_flight.push(SentDescriptor {
            kind: OperationKind::Read,
            answered: false,
            number: self.number,
            source: remote,
            length_bytes: work.length_bytes,
            placed_bytes: 0,
        });
        path.keep_in_flight(vi);
    }

    /// Completes the oldest descriptors in flight that are answered.
    pub fn complete_answered(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        while !path.is_failing(vi)
            && let Some(entry) = self.in_flight.pop_answered()
        {
            path.complete_send(vi, Status::OK, entry.length_bytes);
        }
    }

    /// Returns the deadline for the next response if its timer must be set.
    pub fn response_deadline(&mut self, now_ns: u64, timeout_ns: u64) -> Option<u64> {
        let flight = &mut self.in_flight;
        if flight.unanswered() == 0 || flight.timer_set {
            return None;
        }
        flight.timer_set = true;
        flight.progressed = false;
        Some(now_ns + timeout_ns)
    }
}
