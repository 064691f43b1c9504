//! Received segments: matching to messages, placement, completion, acknowledgement.

mod failure;
mod misses;
mod rdma;
mod single_send;

use vi_types::misses::PeerMisses;

use crate::source::Source;

use crate::{
    Flags, Headers, Item, RdmaHeader, Segment, SegmentHeader, SegmentType, ViErrorType, is_after,
};
use vi_types::{AsyncError, Claim, MessageDestination, Status, ViIndex};

use failure::Failure;
pub use rdma::WORD_BYTES;
use rdma::place_write;

use super::{
    BufferAccess, CloseReason, MemoryRanges, MessageMemory, PartialWord, RxMessage, RxSegment,
    StreamIo, Transfer,
};
use super::{Counter, Counters};

/// Minimum missing payload bytes for a direct read into the destination.
const DIRECT_BYTES: u32 = 4096;
/// Bytes at the end of a message that are always copied, after all others: an application that polls them
/// must see them last.
const COPIED_TAIL_BYTES: u32 = 64;

impl Transfer {
    /// Adds the destination of the next payload for a direct read; returns its bytes, 0 if it needs a copy.
    pub fn add_direct(
        &self,
        vi: ViIndex,
        path: &mut impl StreamIo,
        ranges: &mut MemoryRanges,
    ) -> u32 {
        let left = u32::from(self.rx.decoder.payload_left());
        if left < DIRECT_BYTES {
            return 0;
        }
        let Some(segment) = self.rx.segment else {
            return 0;
        };
        let (memory, offset, space) = match self.target(&segment) {
            Some(target) => target,
            None => return 0,
        };
        // All but the last bytes of the segment.
        let bytes = left.min(space).saturating_sub(COPIED_TAIL_BYTES);
        if bytes < DIRECT_BYTES - COPIED_TAIL_BYTES {
            return 0;
        }
        match path.locate(vi, memory, offset, bytes, ranges) {
            BufferAccess::Direct => bytes,
            BufferAccess::NeedsCopy | BufferAccess::Invalid => 0,
        }
    }

    /// Returns the destination of the next payload of this segment, the offset, and the space there.
    fn target(&self, segment: &RxSegment) -> Option<(MessageMemory, u32, u32)> {
        if segment.kind == SegmentType::ReadResponse {
            let entry = self.tx.in_flight.get(segment.read as usize)?;
            let space = entry.length_bytes - entry.placed_bytes;
            return Some((
                MessageMemory::ReadTarget(segment.read),
                entry.placed_bytes,
                space,
            ));
        }
        let message = self.rx.message?;
        let placed = message.placed_bytes;
        match message.kind {
            MessageDestination::Receive { capacity_bytes } => {
                let limit = capacity_bytes.min(self.params.max_transfer_bytes);
                Some((MessageMemory::Receive, placed, limit.saturating_sub(placed)))
            }
            // A direct read could write an aligned word in two parts.
            MessageDestination::Write { .. } | MessageDestination::Discard => None,
        }
    }
}

/// Receive processing of a VI's connection.
pub struct Receiver<'a, P> {
    /// The time.
    pub now_ns: u64,
    /// The VI.
    pub vi: ViIndex,
    /// The connection.
    pub transfer: &'a mut Transfer,
    /// Queues and memory of the VI.
    pub path: &'a mut P,
    /// RDMA misses of all peers.
    pub misses: &'a mut PeerMisses<Source>,
    /// Counters of the NIC.
    pub counters: &'a mut Counters,
}

impl<P: StreamIo> Receiver<'_, P> {
    /// Accounts for bytes that were read directly into the destination of [`Transfer::add_direct`].
    pub fn placed(&mut self, bytes: u32) -> Result<(), CloseReason> {
        self.counters.add(Counter::RxDirectBytes, u64::from(bytes));
        let rx = &mut self.transfer.rx;
        if !rx.decoder.skip_payload(bytes as u16) {
            return Err(CloseReason::Protocol(Counter::DropMalformed));
        }
        self.path.note_arrived();
        let Some(segment) = rx.segment else {
            return Ok(());
        };
        if segment.kind == SegmentType::ReadResponse {
            let flight = &mut self.transfer.tx.in_flight;
            let _none = flight.note_placed(segment.read as usize, bytes);
        } else if let Some(message) = &mut rx.message {
            message.placed_bytes += bytes;
            message.offset_bytes += bytes;
        }
        Ok(())
    }

    /// Processes received bytes.
    ///
    /// # Errors
    /// Why the connection breaks.
    pub fn feed(&mut self, mut input: &[u8]) -> Result<(), CloseReason> {
        loop {
            if self.path.is_failing(self.vi) {
                // A descriptor's memory became invalid: what follows its message is not delivered.
                return Err(CloseReason::Local);
            }
            if input.is_empty() {
                return Ok(());
            }
            let mut rest = input;
            if let Some((header, payload)) = self.transfer.rx.decoder.whole_send(&mut rest)
                && self.receive_single(&header, payload)?
            {
                input = rest;
                continue;
            }
            match self.transfer.rx.decoder.next(&mut input) {
                // By reference: it is large because of the CE header.
                Ok(Some(Item::Segment(ref segment))) => {
                    self.counters.count(Counter::RxSegments);
                    self.segment(segment)?;
                    if segment.payload_bytes == 0 {
                        self.end_segment()?;
                    }
                }
                Ok(Some(Item::Payload { bytes, left })) => {
                    self.payload(bytes)?;
                    if left == 0 {
                        self.end_segment()?;
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) => return Err(CloseReason::Malformed(error)),
            }
        }
    }

    /// Processes the header fields that do not concern its own message: credits and acknowledgement.
    #[inline]
    fn process_header(&mut self, header: &SegmentHeader) -> Result<(), CloseReason> {
        if let Some(credits) = &mut self.transfer.tx.credits {
            credits.note_posted(header.rx_posted);
            if self.transfer.tx.starved && credits.available() > 0 {
                self.path.resume(self.vi);
            }
        }
        self.process_ack(header)
    }

    /// Processes the headers of a segment.
    fn segment(&mut self, segment: &Segment) -> Result<(), CloseReason> {
        let header = &segment.header;
        self.process_header(header)?;
        let rdma = match segment.headers {
            Headers::Rdma(rdma) => Some(rdma),
            Headers::Plain | Headers::Connect(_) => None,
        };
        self.transfer.rx.segment = Some(RxSegment {
            kind: header.kind,
            ends: header.flags.contains(Flags::END_OF_MESSAGE),
            transmit_error: header.flags.contains(Flags::TRANSMIT_ERROR),
            read: 0,
        });
        match (header.kind, rdma) {
            (SegmentType::Send, _) => self.message_segment(header, None),
            (SegmentType::Write, Some(rdma)) => self.message_segment(header, Some(rdma)),
            (SegmentType::ReadRequest | SegmentType::Nop, _)
                if !header.flags.contains(Flags::END_OF_MESSAGE) =>
            {
                Err(CloseReason::Protocol(Counter::DropOutOfOrder))
            }
            (SegmentType::ReadRequest, Some(rdma)) => self.read_request(header, &rdma),
            (SegmentType::ReadResponse, Some(rdma)) => self.read_response(header, &rdma),
            (SegmentType::Nop, _) => self.next_number(header),
            _ => Err(CloseReason::Protocol(Counter::DropOutOfOrder)),
        }
    }

    /// Begins a message: its number must be the next one, and no other message may be open.
    fn next_number(&mut self, header: &SegmentHeader) -> Result<(), CloseReason> {
        let rx = &mut self.transfer.rx;
        let next = rx.number.wrapping_add(1);
        let fits = rx.message.is_none() && header.message == next && header.data_offset == 0;
        if !fits {
            return Err(CloseReason::Protocol(Counter::DropOutOfOrder));
        }
        rx.number = next;
        rx.ack_number = next;
        Ok(())
    }

    /// Processes Message ACK and Remote Error Code [VI/TCP 3.1].
    #[inline]
    fn process_ack(&mut self, header: &SegmentHeader) -> Result<(), CloseReason> {
        if !self.transfer.tx.awaits_ack {
            // They must be ignored.
            return Ok(());
        }
        self.apply_ack(header)
    }

    fn apply_ack(&mut self, header: &SegmentHeader) -> Result<(), CloseReason> {
        let tx = &mut self.transfer.tx;
        let error = header.remote_error;
        let failed =
            error.vi_error != ViErrorType::None || error.is_code == crate::IsCode::Transport;
        // The peer may report an error for a message as soon as it has its headers.
        let last = match failed {
            true => tx.begun_number().unwrap_or(tx.number),
            false => tx.number,
        };
        if is_after(header.ack, last) {
            return Err(CloseReason::Protocol(Counter::DropFalseAck));
        }
        if failed {
            tx.in_flight.acknowledge(header.ack.wrapping_sub(1));
            tx.complete_answered(self.vi, self.path);
            return Err(CloseReason::FailedAtPeer {
                number: header.ack,
                error,
            });
        }
        if !tx.in_flight.is_empty() {
            let before = tx.in_flight.unanswered();
            tx.in_flight.acknowledge(header.ack);
            if tx.in_flight.unanswered() < before {
                tx.complete_answered(self.vi, self.path);
                self.path.resume(self.vi);
            }
        }
        Ok(())
    }

    /// Processes a segment of a send or write; the first one claims the resources of the message.
    fn message_segment(
        &mut self,
        header: &SegmentHeader,
        rdma: Option<RdmaHeader>,
    ) -> Result<(), CloseReason> {
        if let Some(message) = &self.transfer.rx.message {
            let same = message.number == header.message
                && message.write == rdma.is_some()
                && message.offset_bytes == header.data_offset
                && self.same_target(message, rdma);
            return if same {
                self.note_immediate(header)
            } else {
                Err(CloseReason::Protocol(Counter::DropOutOfOrder))
            };
        }
        let ack_number = self.transfer.rx.ack_number;
        self.next_number(header)?;
        // It is acknowledged when it is placed.
        self.transfer.rx.ack_number = ack_number;
        let immediate = immediate_of(header);
        self.transfer.rx.message = Some(RxMessage {
            number: header.message,
            kind: MessageDestination::Discard,
            write: rdma.is_some(),
            placed_bytes: 0,
            partial_word: PartialWord::default(),
            offset_bytes: 0,
            immediate,
        });
        match rdma {
            None => self.open_receive(),
            Some(rdma) => self.open_write(&rdma, immediate.is_some()),
        }
    }

    /// Takes immediate data from the first segment of its message that has it; a write claims a receive descriptor
    /// then.
    fn note_immediate(&mut self, header: &SegmentHeader) -> Result<(), CloseReason> {
        let immediate = immediate_of(header);
        let Some(message) = &mut self.transfer.rx.message else {
            return Ok(());
        };
        if immediate.is_none() || message.immediate.is_some() {
            return Ok(());
        }
        message.immediate = immediate;
        let MessageDestination::Write {
            target,
            total_bytes,
            claimed: false,
        } = message.kind
        else {
            return Ok(());
        };
        if self.claim_for_write()? {
            self.set_kind(MessageDestination::Write {
                target,
                total_bytes,
                claimed: true,
            });
        }
        Ok(())
    }

    /// Checks that the RDMA header did not change within the message.
    fn same_target(&self, message: &RxMessage, rdma: Option<RdmaHeader>) -> bool {
        match (message.kind, rdma) {
            (
                MessageDestination::Write {
                    target,
                    total_bytes,
                    ..
                },
                Some(rdma),
            ) => target == (rdma.address, rdma.handle) && total_bytes == rdma.total_bytes,
            _ => true,
        }
    }

    fn set_kind(&mut self, kind: MessageDestination) {
        if let Some(message) = &mut self.transfer.rx.message {
            message.kind = kind;
        }
    }

    fn claim(&mut self) -> Claim {
        let claim = self.path.claim_receive(self.vi);
        if claim != Claim::Empty {
            self.count_claim();
        }
        claim
    }

    /// Counts a claimed receive descriptor.
    #[inline]
    fn count_claim(&mut self) {
        let rx = &mut self.transfer.rx;
        rx.used = rx.used.wrapping_add(1);
        if let Some(posted) = &mut rx.posted {
            posted.use_one();
        }
    }

    /// Notes that the message with this number is completely placed.
    #[inline]
    fn message_placed(&mut self, number: u32) {
        self.counters.count(Counter::RxMessages);
        let rx = &mut self.transfer.rx;
        rx.ack_number = number;
        if rx.sends_acks && !rx.ack_pending {
            rx.ack_pending = true;
            self.path.resume(self.vi);
        }
    }

    /// Claims the receive descriptor of a send.
    fn open_receive(&mut self) -> Result<(), CloseReason> {
        match self.claim() {
            Claim::Ready { capacity_bytes } => {
                self.set_kind(MessageDestination::Receive { capacity_bytes });
                Ok(())
            }
            Claim::Empty => self.no_descriptor(),
            Claim::Fault(status) => {
                self.complete_error(status, false);
                self.break_if_reliable(ViErrorType::Descriptor)
            }
        }
    }

    fn no_descriptor(&mut self) -> Result<(), CloseReason> {
        self.counters.count(Counter::DropNoDescriptor);
        self.path.report(self.vi, AsyncError::ReceiveQueueEmpty);
        self.break_if_reliable(ViErrorType::Descriptor)
    }

    /// Places payload bytes of the current segment.
    fn payload(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        let Some(segment) = self.transfer.rx.segment else {
            return Ok(());
        };
        let vi = self.vi;
        if segment.kind == SegmentType::ReadResponse {
            let flight = &mut self.transfer.tx.in_flight;
            let Some(entry) = flight.get(segment.read as usize) else {
                return Ok(());
            };
            let (number, offset) = (entry.number, entry.placed_bytes);
            if !self.path.place_read(vi, segment.read, offset, bytes) {
                return Err(CloseReason::Failed {
                    number,
                    status: Status::PROTECTION,
                });
            }
            let _some = flight.note_placed(segment.read as usize, bytes.len() as u32);
            return Ok(());
        }
        let Some(message) = &mut self.transfer.rx.message else {
            return Ok(());
        };
        // It can wrap only after every size limit is exceeded.
        message.offset_bytes = message.offset_bytes.wrapping_add(bytes.len() as u32);
        let offset = message.placed_bytes;
        let partial = message.partial_word.as_slice().len();
        let end = u64::from(offset) + (partial + bytes.len()) as u64;
        let placed = match message.kind {
            MessageDestination::Receive { capacity_bytes } => {
                message.placed_bytes = end as u32;
                if end > u64::from(capacity_bytes.min(self.transfer.params.max_transfer_bytes)) {
                    Err(Failure::TooLong)
                } else if self.path.place_receive(vi, 0, offset, bytes) {
                    Ok(())
                } else {
                    Err(Failure::Protection)
                }
            }
            MessageDestination::Write {
                target,
                total_bytes,
                ..
            } => {
                if end > u64::from(total_bytes) {
                    Err(Failure::Incomplete)
                } else if place_write(self.path, vi, (target, total_bytes), message, bytes) {
                    Ok(())
                } else {
                    Err(Failure::Protection)
                }
            }
            MessageDestination::Discard => return Ok(()),
        };
        match placed {
            Ok(()) => Ok(()),
            Err(failure) => self.fail_message(failure),
        }
    }

    /// Ends a segment, and its message if it is the last one.
    fn end_segment(&mut self) -> Result<(), CloseReason> {
        let Some(segment) = self.transfer.rx.segment.take() else {
            return Ok(());
        };
        match segment.kind {
            SegmentType::Send | SegmentType::Write => self.end_message_segment(&segment),
            SegmentType::ReadResponse if segment.ends => {
                let tx = &mut self.transfer.tx;
                tx.in_flight.mark_answered(segment.read as usize);
                tx.complete_answered(self.vi, self.path);
                self.path.resume(self.vi);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end_message_segment(&mut self, segment: &RxSegment) -> Result<(), CloseReason> {
        let Some(message) = self.transfer.rx.message else {
            return Ok(());
        };
        if !segment.ends {
            return Ok(());
        }
        let is_short = match message.kind {
            MessageDestination::Write { total_bytes, .. } => message.placed_bytes != total_bytes,
            MessageDestination::Receive { .. } | MessageDestination::Discard => false,
        };
        if message.kind != MessageDestination::Discard && (segment.transmit_error || is_short) {
            self.fail_message(Failure::Incomplete)?;
            self.transfer.rx.message = None;
            return Ok(());
        }
        self.transfer.rx.message = None;
        if message.kind == MessageDestination::Discard {
            self.counters.count(Counter::DropDiscarded);
            return Ok(());
        }
        self.message_placed(message.number);
        let (length_bytes, immediate) = (message.placed_bytes, message.immediate);
        if let Some(completion) = message.kind.completion(length_bytes, immediate) {
            self.path.complete_receive(self.vi, completion);
            if self.transfer.rx.posted.is_some() {
                self.path.resume(self.vi);
            }
        }
        Ok(())
    }
}

fn immediate_of(header: &SegmentHeader) -> Option<u32> {
    (header.flags.contains(Flags::IMMEDIATE)).then_some(header.immediate)
}
