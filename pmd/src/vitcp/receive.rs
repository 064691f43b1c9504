//! Segments received: matched to messages, placed, completed, acknowledged.

mod failure;
mod misses;
mod rdma;
mod whole;

use fcvi_frame::connect::HostAddress;
use vi_engine::misses::PeerMisses;
use vi_engine::{AsyncError, Claim, Completion, Host, Status, ViIndex, ViParams};
use vitcp_lite::{
    Flags, Headers, Item, RdmaHeader, Segment, SegmentHeader, SegmentType, ViErrorType, is_after,
};

use failure::Failure;
use rdma::place_write;

use super::closing::Ending;
use super::connection::{Connection, HeldBytes, RxKind, RxMessage, RxSegment};
use super::counters::{Counter, Counters};
use super::transmit::complete_answered;
use crate::datapath::Datapath;
use crate::datapath::stream::{Lies, Pieces, Place};

/// Payload of which at least so much is still to come goes to its place without a copy of ours.
const DIRECT_BYTES: u32 = 4096;
/// Of a message the last bytes are copied: whoever polls them must see them last.
const COPIED_TAIL_BYTES: u32 = 64;

/// The receiving side of a VI's connection, and what it needs.
pub(super) struct Receiver<'a> {
    pub(super) now_ns: u64,
    pub(super) vi: ViIndex,
    pub(super) params: ViParams,
    pub(super) connection: &'a mut Connection,
    pub(super) path: &'a mut Datapath,
    /// Misses of all hosts.
    pub(super) misses: &'a mut PeerMisses<HostAddress>,
    pub(super) counters: &'a mut Counters,
}

impl Receiver<'_> {
    /// Adds the places of payload that comes next, as much as may go there without a copy of ours;
    /// how many bytes that is.
    pub(super) fn direct(&mut self, pieces: &mut Pieces) -> u32 {
        let left = u32::from(self.connection.rx.decoder.payload_left());
        if left < DIRECT_BYTES {
            return 0;
        }
        let Some(segment) = self.connection.rx.segment else {
            return 0;
        };
        let (place, offset, room) = match self.target(&segment) {
            Some(target) => target,
            None => return 0,
        };
        // All but the last bytes of what the segment brings.
        let bytes = left.min(room).saturating_sub(COPIED_TAIL_BYTES);
        if bytes < DIRECT_BYTES - COPIED_TAIL_BYTES {
            return 0;
        }
        match self.path.locate(self.vi, place, offset, bytes, pieces) {
            Lies::Here => bytes,
            Lies::Apart | Lies::Nowhere => 0,
        }
    }

    /// Where the payload of this segment goes next, and how much fits there.
    fn target(&self, segment: &RxSegment) -> Option<(Place, u32, u32)> {
        if segment.kind == SegmentType::ReadResponse {
            let entry = self.connection.tx.in_flight.get(segment.read as usize)?;
            let room = entry.length_bytes - entry.placed_bytes;
            return Some((Place::Reading(segment.read), entry.placed_bytes, room));
        }
        let message = self.connection.rx.message?;
        let placed = message.placed_bytes;
        match message.kind {
            RxKind::Receive { capacity_bytes } => {
                let most = capacity_bytes.min(self.params.max_transfer_bytes);
                Some((Place::Receiving, placed, most.saturating_sub(placed)))
            }
            // The kernel would write what has come of an aligned word, and the rest of it later.
            RxKind::Write { .. } | RxKind::Discard => None,
        }
    }

    /// So many bytes went to where [`Self::direct`] said.
    pub(super) fn placed(&mut self, bytes: u32) -> Result<(), Ending> {
        self.counters.add(Counter::RxDirectBytes, u64::from(bytes));
        let rx = &mut self.connection.rx;
        if !rx.decoder.skip_payload(bytes as u16) {
            return Err(Ending::Protocol(Counter::DropMalformed));
        }
        self.path.arrived = true;
        let Some(segment) = rx.segment else {
            return Ok(());
        };
        if segment.kind == SegmentType::ReadResponse {
            let flight = &mut self.connection.tx.in_flight;
            let _gone = flight.place(segment.read as usize, bytes);
        } else if let Some(message) = &mut rx.message {
            message.placed_bytes += bytes;
            message.offset_bytes += bytes;
        }
        Ok(())
    }

    /// Takes what came.
    pub(super) fn feed(&mut self, mut input: &[u8]) -> Result<(), Ending> {
        loop {
            if self.path.failed.contains(&self.vi) {
                // A descriptor's memory is gone: what stands behind its message comes to nobody.
                return Err(Ending::Local);
            }
            if input.is_empty() {
                return Ok(());
            }
            let mut behind = input;
            if let Some((header, payload)) = self.connection.rx.decoder.whole_send(&mut behind)
                && self.whole(&header, payload)?
            {
                input = behind;
                continue;
            }
            match self.connection.rx.decoder.next(&mut input) {
                // Not moved: it has room for what a connection begins with.
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
                Err(error) => {
                    log::debug!("a segment that is none: {error}");
                    return Err(Ending::Protocol(Counter::DropMalformed));
                }
            }
        }
    }

    /// What every segment says beside its own message.
    #[inline]
    fn heard(&mut self, header: &SegmentHeader) -> Result<(), Ending> {
        if let Some(credits) = &mut self.connection.tx.credits {
            credits.note_posted(header.rx_posted);
            if self.connection.tx.starved && credits.available() > 0 {
                self.path.resume(self.vi);
            }
        }
        self.acknowledged(header)
    }

    /// The headers of a segment.
    fn segment(&mut self, segment: &Segment) -> Result<(), Ending> {
        let header = &segment.header;
        self.heard(header)?;
        let rdma = match segment.headers {
            Headers::Rdma(rdma) => Some(rdma),
            Headers::Plain | Headers::Connect(_) => None,
        };
        self.connection.rx.segment = Some(RxSegment {
            kind: header.kind,
            ends: header.flags.contains(Flags::END_OF_MESSAGE),
            transmit_error: header.flags.contains(Flags::TRANSMIT_ERROR),
            read: 0,
        });
        match (header.kind, rdma) {
            (SegmentType::Send, _) => self.part_of_message(header, None),
            (SegmentType::Write, Some(rdma)) => self.part_of_message(header, Some(rdma)),
            (SegmentType::ReadRequest | SegmentType::Nop, _)
                if !header.flags.contains(Flags::END_OF_MESSAGE) =>
            {
                Err(Ending::Protocol(Counter::DropOutOfOrder))
            }
            (SegmentType::ReadRequest, Some(rdma)) => self.read_request(header, &rdma),
            (SegmentType::ReadResponse, Some(rdma)) => self.read_response(header, &rdma),
            (SegmentType::Nop, _) => self.next_number(header),
            _ => Err(Ending::Protocol(Counter::DropOutOfOrder)),
        }
    }

    /// This segment begins a message: its number is the next one, and no other is open.
    fn next_number(&mut self, header: &SegmentHeader) -> Result<(), Ending> {
        let rx = &mut self.connection.rx;
        let next = rx.number.wrapping_add(1);
        let fits = rx.message.is_none() && header.message == next && header.data_offset == 0;
        if !fits {
            return Err(Ending::Protocol(Counter::DropOutOfOrder));
        }
        rx.number = next;
        rx.good = next;
        Ok(())
    }

    /// What the peer says of our messages [VI/TCP 3.1].
    #[inline]
    fn acknowledged(&mut self, header: &SegmentHeader) -> Result<(), Ending> {
        if !self.connection.tx.awaits_ack {
            // Whatever it says must be ignored.
            return Ok(());
        }
        self.acknowledged_to(header)
    }

    fn acknowledged_to(&mut self, header: &SegmentHeader) -> Result<(), Ending> {
        let tx = &mut self.connection.tx;
        let error = header.remote_error;
        let failed =
            error.vi_error != ViErrorType::None || error.is_code == vitcp_lite::IsCode::Transport;
        // A message may fail as soon as its headers are there.
        let last = match failed {
            true => tx.begun_number().unwrap_or(tx.number),
            false => tx.number,
        };
        if is_after(header.ack, last) {
            return Err(Ending::Protocol(Counter::DropFalseAck));
        }
        if failed {
            tx.in_flight.acknowledge(header.ack.wrapping_sub(1));
            complete_answered(self.vi, tx, self.path);
            return Err(Ending::Refused {
                number: header.ack,
                error,
            });
        }
        if !tx.in_flight.is_empty() {
            let before = tx.in_flight.unanswered();
            tx.in_flight.acknowledge(header.ack);
            if tx.in_flight.unanswered() < before {
                complete_answered(self.vi, tx, self.path);
                self.path.resume(self.vi);
            }
        }
        Ok(())
    }

    /// A segment of a send or write: its first one claims what the message needs.
    fn part_of_message(
        &mut self,
        header: &SegmentHeader,
        rdma: Option<RdmaHeader>,
    ) -> Result<(), Ending> {
        if let Some(message) = &self.connection.rx.message {
            let same = message.number == header.message
                && message.write == rdma.is_some()
                && message.offset_bytes == header.data_offset
                && self.same_target(message, rdma);
            return if same {
                self.note_immediate(header)
            } else {
                Err(Ending::Protocol(Counter::DropOutOfOrder))
            };
        }
        let good = self.connection.rx.good;
        self.next_number(header)?;
        // It is good when it is placed.
        self.connection.rx.good = good;
        let immediate = immediate_of(header);
        self.connection.rx.message = Some(RxMessage {
            number: header.message,
            kind: RxKind::Discard,
            write: rdma.is_some(),
            placed_bytes: 0,
            held: HeldBytes::default(),
            offset_bytes: 0,
            immediate,
        });
        match rdma {
            None => self.open_receive(),
            Some(rdma) => self.open_write(&rdma, immediate.is_some()),
        }
    }

    /// Immediate data may be said in any segment of its message: it counts from the first one that has it, and of a
    /// write it takes a receive descriptor then.
    fn note_immediate(&mut self, header: &SegmentHeader) -> Result<(), Ending> {
        let said = immediate_of(header);
        let Some(message) = &mut self.connection.rx.message else {
            return Ok(());
        };
        if said.is_none() || message.immediate.is_some() {
            return Ok(());
        }
        message.immediate = said;
        let RxKind::Write {
            target,
            total_bytes,
            claimed: false,
        } = message.kind
        else {
            return Ok(());
        };
        if self.claim_for_write()? {
            self.set_kind(RxKind::Write {
                target,
                total_bytes,
                claimed: true,
            });
        }
        Ok(())
    }

    /// The RDMA header of a message stays what it is.
    fn same_target(&self, message: &RxMessage, rdma: Option<RdmaHeader>) -> bool {
        match (message.kind, rdma) {
            (
                RxKind::Write {
                    target,
                    total_bytes,
                    ..
                },
                Some(rdma),
            ) => target == (rdma.address, rdma.handle) && total_bytes == rdma.total_bytes,
            _ => true,
        }
    }

    fn set_kind(&mut self, kind: RxKind) {
        if let Some(message) = &mut self.connection.rx.message {
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

    /// A message has taken a receive descriptor.
    #[inline]
    fn count_claim(&mut self) {
        let rx = &mut self.connection.rx;
        rx.used = rx.used.wrapping_add(1);
        if let Some(posted) = &mut rx.posted {
            posted.use_one();
        }
    }

    /// The message with this number is placed, as a whole.
    #[inline]
    fn is_good(&mut self, number: u32) {
        self.counters.count(Counter::RxMessages);
        let rx = &mut self.connection.rx;
        rx.good = number;
        if rx.acknowledges && !rx.owes_ack {
            rx.owes_ack = true;
            self.path.resume(self.vi);
        }
    }

    /// Claims the receive descriptor of a send.
    fn open_receive(&mut self) -> Result<(), Ending> {
        match self.claim() {
            Claim::Ready { capacity_bytes } => {
                self.set_kind(RxKind::Receive { capacity_bytes });
                Ok(())
            }
            Claim::Empty => self.no_descriptor(),
            Claim::Fault(status) => {
                self.complete_error(status, false);
                self.broken(ViErrorType::Descriptor)
            }
        }
    }

    fn no_descriptor(&mut self) -> Result<(), Ending> {
        self.counters.count(Counter::DropNoDescriptor);
        self.path.report(self.vi, AsyncError::ReceiveQueueEmpty);
        self.broken(ViErrorType::Descriptor)
    }

    /// Bytes of the payload of the segment that came last.
    fn payload(&mut self, bytes: &[u8]) -> Result<(), Ending> {
        let Some(segment) = self.connection.rx.segment else {
            return Ok(());
        };
        let vi = self.vi;
        if segment.kind == SegmentType::ReadResponse {
            let flight = &mut self.connection.tx.in_flight;
            let Some(entry) = flight.get(segment.read as usize) else {
                return Ok(());
            };
            let (number, offset) = (entry.number, entry.placed_bytes);
            if !self.path.place_read(vi, segment.read, offset, bytes) {
                return Err(Ending::Failed {
                    number,
                    status: Status::PROTECTION,
                });
            }
            let _there = flight.place(segment.read as usize, bytes.len() as u32);
            return Ok(());
        }
        let Some(message) = &mut self.connection.rx.message else {
            return Ok(());
        };
        // A message of more bytes than there are numbers for them is above every limit before.
        message.offset_bytes = message.offset_bytes.wrapping_add(bytes.len() as u32);
        let offset = message.placed_bytes;
        let held = message.held.as_slice().len();
        let end = u64::from(offset) + (held + bytes.len()) as u64;
        let placed = match message.kind {
            RxKind::Receive { capacity_bytes } => {
                message.placed_bytes = end as u32;
                if end > u64::from(capacity_bytes.min(self.params.max_transfer_bytes)) {
                    Err(Failure::TooLong)
                } else if self.path.place_receive(vi, 0, offset, bytes) {
                    Ok(())
                } else {
                    Err(Failure::Protection)
                }
            }
            RxKind::Write {
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
            RxKind::Discard => return Ok(()),
        };
        match placed {
            Ok(()) => Ok(()),
            Err(failure) => self.fail_message(failure),
        }
    }

    /// The last byte of a segment is placed, and of its message perhaps.
    fn end_segment(&mut self) -> Result<(), Ending> {
        let Some(segment) = self.connection.rx.segment.take() else {
            return Ok(());
        };
        match segment.kind {
            SegmentType::Send | SegmentType::Write => self.end_of_part(&segment),
            SegmentType::ReadResponse if segment.ends => {
                let tx = &mut self.connection.tx;
                tx.in_flight.answer(segment.read as usize);
                complete_answered(self.vi, tx, self.path);
                self.path.resume(self.vi);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end_of_part(&mut self, segment: &RxSegment) -> Result<(), Ending> {
        let Some(message) = self.connection.rx.message else {
            return Ok(());
        };
        if !segment.ends {
            return Ok(());
        }
        let short = match message.kind {
            RxKind::Write { total_bytes, .. } => message.placed_bytes != total_bytes,
            RxKind::Receive { .. } | RxKind::Discard => false,
        };
        if message.kind != RxKind::Discard && (segment.transmit_error || short) {
            self.fail_message(Failure::Incomplete)?;
            self.connection.rx.message = None;
            return Ok(());
        }
        self.connection.rx.message = None;
        if message.kind == RxKind::Discard {
            self.counters.count(Counter::DropDiscarded);
            return Ok(());
        }
        self.is_good(message.number);
        let (claimed, remote_write) = match message.kind {
            RxKind::Receive { .. } => (true, false),
            RxKind::Write { claimed, .. } => (claimed, true),
            RxKind::Discard => (false, false),
        };
        if claimed {
            self.path.complete_receive(
                self.vi,
                Completion {
                    status: Status::OK,
                    length_bytes: message.placed_bytes,
                    immediate: message.immediate,
                    remote_write,
                },
            );
            if self.connection.rx.posted.is_some() {
                self.path.resume(self.vi);
            }
        }
        Ok(())
    }
}

fn immediate_of(header: &SegmentHeader) -> Option<u32> {
    (header.flags.contains(Flags::IMMEDIATE)).then_some(header.immediate)
}
