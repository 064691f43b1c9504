//! Plan of one send system call: the remainder of a segment, control segments, read responses, messages, a
//! NOP.

use crate::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::{Credits, Flags, RdmaHeader, SegmentHeader, SegmentType};
use vi_types::{Operation, SendWork, Status, ViIndex};

use super::send_batch::{Added, Part, Payload, SendBatch};
use super::transmit::{rdma, takes_descriptor};
use super::{CloseReason, MessageMemory, OpenMessage, StreamIo, Transfer};

/// Transmit state after the segments that are planned so far.
struct Planned {
    /// Descriptors after those in flight.
    descriptors: u32,
    /// Of these, reads, and those that will be in flight.
    reads: usize,
    kept: usize,
    number: u32,
    open: Option<OpenMessage>,
    credits: Option<Credits>,
    /// Complete read responses, and bytes of the next one.
    read_responses: usize,
    response_bytes: u32,
    response_next: bool,
}

/// Why no further message of ours is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// There is none.
    Empty,
    /// It waits for a response of the peer, which resumes the VI.
    Wait,
    /// It waits for a receive descriptor of the peer.
    Starved,
    /// The system call is full.
    Full,
    /// The descriptor has this fault, and no part of it was sent.
    Fault(Status),
    /// The memory of a partly sent message became invalid.
    MemoryInvalid,
}

/// Planner of the segments of one system call.
pub struct Plan<'a, P> {
    vi: ViIndex,
    transfer: &'a mut Transfer,
    batch: &'a mut SendBatch,
    path: &'a mut P,
    /// Rx Descriptors Posted of all segments of this call.
    rx_posted: u16,
}

impl<'a, P: StreamIo> Plan<'a, P> {
    /// Creates a planner that fills an empty batch with the segments of a VI.
    pub fn new(
        vi: ViIndex,
        transfer: &'a mut Transfer,
        batch: &'a mut SendBatch,
        path: &'a mut P,
    ) -> Self {
        batch.clear();
        Self {
            vi,
            transfer,
            batch,
            path,
            rx_posted: 0,
        }
    }

    /// Plans all that may be sent now; returns why no further message is planned.
    ///
    /// # Errors
    /// `MemoryInvalid`: the remainder of a segment cannot be sent.
    pub fn all(&mut self) -> Result<Stop, CloseReason> {
        if let Some(rest) = self.transfer.tx.unfinished
            && !self.batch.add_remainder((self.vi, self.path), &rest)
        {
            // The peer has the beginning of a segment, and the remainder is invalid.
            return Err(CloseReason::MemoryInvalid);
        }
        self.batch.add_control(&self.transfer.tx.control);
        self.rx_posted = self.transfer.posted_word(self.vi, self.path);
        let mut planned = self.begin();
        let mut stop = Stop::Empty;
        let mut may_plan_message = true;
        loop {
            let has_response = planned.read_responses < self.transfer.tx.read_responses.len();
            if has_response && (planned.response_next || !may_plan_message) {
                match self.read_response(&mut planned) {
                    Added::Yes => planned.response_next = false,
                    Added::Full | Added::Fault => return Ok(Stop::Full),
                }
            } else if may_plan_message {
                match self.message(&mut planned) {
                    None => planned.response_next = true,
                    Some(Stop::Full) => return Ok(Stop::Full),
                    Some(other) => {
                        stop = other;
                        may_plan_message = false;
                    }
                }
            } else {
                break;
            }
        }
        self.nop(&mut planned);
        Ok(stop)
    }

    /// Returns the state before planning: after the partly written segment, if there is one.
    fn begin(&mut self) -> Planned {
        let tx = &self.transfer.tx;
        let mut planned = Planned {
            descriptors: 0,
            reads: 0,
            kept: 0,
            number: tx.number,
            open: tx.open,
            credits: tx.credits,
            read_responses: 0,
            response_bytes: tx.read_responses.front().map_or(0, |job| job.sent_bytes),
            response_next: tx.response_next,
        };
        if let Some(rest) = &tx.unfinished {
            match rest.part {
                Part::Message {
                    payload_bytes,
                    begins,
                    ends,
                } => {
                    if begins && let Some(work) = self.path.work_ahead(self.vi, 0) {
                        let number = planned.number.wrapping_add(1);
                        let sent_bytes = 0;
                        let open = OpenMessage {
                            work,
                            number,
                            sent_bytes,
                        };
                        planned.begin(open, tx.awaits_ack || !tx.in_flight.is_empty());
                    }
                    planned.message_sent(payload_bytes, ends);
                }
                Part::ReadRequest => planned.read_sent(),
                Part::ReadResponse {
                    payload_bytes,
                    ends,
                } => planned.response_sent(payload_bytes, ends),
                Part::Nop => planned.number = planned.number.wrapping_add(1),
                Part::Control(_) | Part::Remainder => {}
            }
        }
        planned
    }

    /// Creates a header with the fields that all segments have.
    fn header(&self, kind: SegmentType, number: u32) -> SegmentHeader {
        let mut header = SegmentHeader::new(kind, 0);
        header.message = number;
        header.ack = self.transfer.rx.ack_number;
        header.rx_posted = self.rx_posted;
        header
    }

    /// Plans the next segment of our messages; returns why it could not, or `None`.
    fn message(&mut self, planned: &mut Planned) -> Option<Stop> {
        let open = match planned.open {
            Some(open) => open,
            None => match self.next_message(planned) {
                Ok(Some(open)) => open,
                Ok(None) => return None,
                Err(stop) => return Some(stop),
            },
        };
        let begins = planned.open.is_none();
        let (kind, remote) = match open.work.operation {
            Operation::Send => (SegmentType::Send, None),
            Operation::Write { remote } | Operation::Read { remote } => {
                (SegmentType::Write, Some(remote))
            }
        };
        let headers = match remote {
            None => SEGMENT_HEADER_BYTES,
            Some(_) => SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES,
        } as u32;
        let left = open.work.length_bytes - open.sent_bytes;
        let payload_bytes = left.min(self.transfer.tx.segment_bytes - headers);
        let ends = payload_bytes == left;
        let mut header = self.header(kind, open.number);
        header.segment_bytes = (headers + payload_bytes) as u16;
        header.data_offset = open.sent_bytes;
        if ends {
            header.flags = header.flags.with(Flags::END_OF_MESSAGE);
        }
        if let Some(immediate) = open.work.immediate {
            header.flags = header.flags.with(Flags::IMMEDIATE);
            header.immediate = immediate;
        }
        let rdma = remote.map(|remote| rdma(remote, open.work.length_bytes));
        let payload = (payload_bytes > 0).then(|| Payload {
            memory: MessageMemory::Send(self.path.in_flight(self.vi) + planned.descriptors),
            offset_bytes: open.sent_bytes,
            bytes: payload_bytes,
        });
        let part = Part::Message {
            payload_bytes,
            begins,
            ends,
        };
        match self.add(&header, rdma.as_ref(), payload, part) {
            Added::Yes => {
                if begins {
                    let tx = &self.transfer.tx;
                    planned.begin(open, tx.awaits_ack || !tx.in_flight.is_empty());
                }
                planned.message_sent(payload_bytes, ends);
                None
            }
            Added::Full => Some(Stop::Full),
            Added::Fault if begins => Some(self.fault_at(planned, Status::PROTECTION)),
            Added::Fault => Some(if self.batch.is_empty() {
                Stop::MemoryInvalid
            } else {
                Stop::Full
            }),
        }
    }

    /// Reports a fault only if its descriptor is the next one, with nothing to write before it.
    fn fault_at(&self, planned: &Planned, status: Status) -> Stop {
        if planned.descriptors == 0 && self.batch.is_empty() {
            Stop::Fault(status)
        } else {
            Stop::Full
        }
    }

    /// Begins the message of the next descriptor, if it may begin. `Ok(None)`: a read, whose request is
    /// planned already.
    fn next_message(&mut self, planned: &mut Planned) -> Result<Option<OpenMessage>, Stop> {
        let work = self.path.work_ahead(self.vi, planned.descriptors);
        let Some(work) = work else {
            return Err(Stop::Empty);
        };
        let mut work = work;
        if work.length_bytes > self.transfer.params.max_transfer_bytes && work.fault.is_ok() {
            // The negotiated size is less than the VI's at the time of the post.
            work.fault = Status::LENGTH;
        }
        let flight = &self.transfer.tx.in_flight;
        if let Some(status) = flight.fault {
            return Err(if flight.is_empty() {
                self.fault_at(planned, status)
            } else {
                Stop::Wait
            });
        }
        if !work.fault.is_ok() {
            // It completes in order: after all in flight.
            return Err(if flight.is_empty() {
                self.fault_at(planned, work.fault)
            } else {
                Stop::Wait
            });
        }
        let is_read = matches!(work.operation, Operation::Read { .. });
        let stays =
            is_read || self.transfer.tx.awaits_ack || !flight.is_empty() || planned.kept > 0;
        let reads = flight.reads() + planned.reads;
        if (stays && !flight.has_space(planned.kept))
            || (work.fence && reads > 0)
            || (is_read && !flight.takes_read(planned.reads))
        {
            return Err(Stop::Wait);
        }
        let number = planned.number.wrapping_add(1);
        if is_read {
            return self.read(planned, &work, number);
        }
        if takes_descriptor(&work)
            && let Some(credits) = &planned.credits
            && credits.available() == 0
        {
            return Err(Stop::Starved);
        }
        Ok(Some(OpenMessage {
            work,
            number,
            sent_bytes: 0,
        }))
    }

    fn read(
        &mut self,
        planned: &mut Planned,
        work: &SendWork,
        number: u32,
    ) -> Result<Option<OpenMessage>, Stop> {
        let Operation::Read { remote } = work.operation else {
            return Err(Stop::Wait);
        };
        if !self.transfer.params.level.is_reliable() {
            return Err(self.fault_at(planned, Status::FORMAT));
        }
        let mut header = self.header(SegmentType::ReadRequest, number);
        header.flags = Flags::END_OF_MESSAGE;
        header.segment_bytes = (SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES) as u16;
        let rdma = rdma(remote, work.length_bytes);
        match self.add(&header, Some(&rdma), None, Part::ReadRequest) {
            Added::Yes => {
                planned.read_sent();
                Ok(None)
            }
            Added::Full | Added::Fault => Err(Stop::Full),
        }
    }

    /// Plans the next segment of the response to the peer's oldest read.
    fn read_response(&mut self, planned: &mut Planned) -> Added {
        let jobs = &self.transfer.tx.read_responses;
        let Some(job) = jobs.get(planned.read_responses).copied() else {
            return Added::Full;
        };
        let mut header = self.header(SegmentType::ReadResponse, job.number);
        let headers = (SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES) as u32;
        let rdma = rdma(job.source, job.total_bytes);
        header.data_offset = planned.response_bytes;
        let left = job.total_bytes - planned.response_bytes;
        let mut added = Added::Fault;
        if !job.refused {
            let payload_bytes = left.min(self.transfer.tx.segment_bytes - headers);
            let ends = payload_bytes == left;
            header.segment_bytes = (headers + payload_bytes) as u16;
            if ends {
                header.flags = Flags::END_OF_MESSAGE;
            }
            let payload = (payload_bytes > 0).then_some(Payload {
                memory: MessageMemory::ReadSource(job.source),
                offset_bytes: planned.response_bytes,
                bytes: payload_bytes,
            });
            let part = Part::ReadResponse {
                payload_bytes,
                ends,
            };
            added = self.add(&header, Some(&rdma), payload, part);
            if added == Added::Yes {
                planned.response_sent(payload_bytes, ends);
            }
        }
        if added == Added::Fault {
            // The response ends here: the access is refused, or the memory became invalid.
            header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
            header.segment_bytes = headers as u16;
            let part = Part::ReadResponse {
                payload_bytes: 0,
                ends: true,
            };
            added = self.add(&header, Some(&rdma), None, part);
            if added == Added::Yes {
                planned.response_sent(0, true);
            }
        }
        added
    }

    /// Plans a NOP if an acknowledgement or advertisement is due and no other segment carries it. It is a
    /// message, so none may be open.
    fn nop(&mut self, planned: &mut Planned) {
        if !self.batch.is_empty() || planned.open.is_some() {
            return;
        }
        let rx = &self.transfer.rx;
        let posted = rx.posted.is_some_and(|posted| posted.wants_nop());
        if !rx.ack_pending && !posted {
            return;
        }
        let mut header = self.header(SegmentType::Nop, planned.number.wrapping_add(1));
        header.flags = Flags::END_OF_MESSAGE;
        header.segment_bytes = SEGMENT_HEADER_BYTES as u16;
        self.add(&header, None, None, Part::Nop);
    }

    fn add(
        &mut self,
        header: &SegmentHeader,
        rdma: Option<&RdmaHeader>,
        payload: Option<Payload>,
        part: Part,
    ) -> Added {
        self.batch
            .add((self.vi, self.path), header, rdma, payload, part)
    }
}

impl Planned {
    /// Begins a message; `stays`: it will be in flight after it is sent.
    fn begin(&mut self, open: OpenMessage, stays: bool) {
        self.number = open.number;
        self.open = Some(open);
        if takes_descriptor(&open.work)
            && let Some(credits) = &mut self.credits
        {
            // It was available when the message was planned.
            let _used = credits.use_one();
        }
        self.kept += usize::from(stays || self.kept > 0);
    }

    fn message_sent(&mut self, payload_bytes: u32, ends: bool) {
        if let Some(open) = &mut self.open {
            open.sent_bytes += payload_bytes;
        }
        if ends {
            self.open = None;
            self.descriptors += 1;
        }
    }

    fn read_sent(&mut self) {
        self.number = self.number.wrapping_add(1);
        self.descriptors += 1;
        self.reads += 1;
        self.kept += 1;
    }

    fn response_sent(&mut self, payload_bytes: u32, ends: bool) {
        self.response_bytes += payload_bytes;
        if ends {
            self.read_responses += 1;
            self.response_bytes = 0;
        }
    }
}
