//! What is sent next, for one system call: the rest of a segment, answers, messages, a NOP.

use vi_engine::{Operation, SendWork, Status, ViIndex};
use vitcp_lite::profile::{RDMA_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{Credits, Flags, RdmaHeader, SegmentHeader, SegmentType};

use super::{posted_word, rdma, takes_descriptor};
use crate::datapath::Datapath;
use crate::datapath::stream::Place;
use crate::vitcp::closing::Ending;
use crate::vitcp::connection::{Connection, Endpoint, Open};
use crate::vitcp::gather::{Added, Gather, Part, Payload};

/// How far planning got that goes before what was sent.
struct Ahead {
    /// Descriptors behind what is in flight.
    descriptors: u32,
    /// Of these, reads, and those that stay in flight.
    reads: usize,
    kept: usize,
    number: u32,
    open: Option<Open>,
    credits: Option<Credits>,
    /// Answers that are whole, and bytes of the next one.
    answers: usize,
    answered_bytes: u32,
    answer_next: bool,
}

/// Why no further message of ours is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// There is none.
    Empty,
    /// It waits for an answer of the peer's, which will have the VI served again.
    Wait,
    /// It waits for a receive descriptor of the peer's.
    Starved,
    /// The system call is full.
    Full,
    /// The descriptor has this fault, and nothing of it was sent.
    Fault(Status),
    /// The memory of a message that was sent in part is gone.
    Gone,
}

/// Segments for one system call.
pub(super) struct Plan<'a> {
    pub(super) vi: ViIndex,
    pub(super) ep: &'a Endpoint,
    pub(super) connection: &'a mut Connection,
    pub(super) gather: &'a mut Gather,
    pub(super) path: &'a mut Datapath,
    /// What all segments of this call say.
    pub(super) rx_posted: u16,
}

impl Plan<'_> {
    /// Plans all that may be sent now; why no more of our own messages.
    pub(super) fn all(&mut self) -> Result<Stop, Ending> {
        if let Some(rest) = self.connection.tx.unfinished
            && !self.gather.add_rest((self.vi, self.path), &rest)
        {
            // The other end has the begin of a segment, and the rest is gone.
            return Err(Ending::MemoryGone);
        }
        self.gather.add_control(&self.connection.tx.control);
        self.rx_posted = posted_word(self.vi, self.connection, self.path);
        let mut ahead = self.begin();
        let mut stop = Stop::Empty;
        let mut own = true;
        loop {
            let answers = ahead.answers < self.connection.tx.answers.len();
            if answers && (ahead.answer_next || !own) {
                match self.answer(&mut ahead) {
                    Added::Yes => ahead.answer_next = false,
                    Added::Full | Added::Fault => return Ok(Stop::Full),
                }
            } else if own {
                match self.own(&mut ahead) {
                    None => ahead.answer_next = true,
                    Some(Stop::Full) => return Ok(Stop::Full),
                    Some(other) => {
                        stop = other;
                        own = false;
                    }
                }
            } else {
                break;
            }
        }
        self.nop(&mut ahead);
        Ok(stop)
    }

    /// Where planning begins: behind the segment that is not finished, if there is one.
    fn begin(&mut self) -> Ahead {
        let tx = &self.connection.tx;
        let mut ahead = Ahead {
            descriptors: 0,
            reads: 0,
            kept: 0,
            number: tx.number,
            open: tx.open,
            credits: tx.credits,
            answers: 0,
            answered_bytes: tx.answers.front().map_or(0, |job| job.sent_bytes),
            answer_next: tx.answer_next,
        };
        if let Some(rest) = &tx.unfinished {
            match rest.part {
                Part::Own {
                    payload_bytes,
                    begins,
                    ends,
                } => {
                    if begins && let Some(work) = self.path.work_ahead(self.vi, 0) {
                        let number = ahead.number.wrapping_add(1);
                        let sent_bytes = 0;
                        let open = Open {
                            work,
                            number,
                            sent_bytes,
                        };
                        ahead.begin(open, tx.awaits_ack || !tx.in_flight.is_empty());
                    }
                    ahead.own_sent(payload_bytes, ends);
                }
                Part::Read => ahead.read_sent(),
                Part::Answer {
                    payload_bytes,
                    ends,
                } => ahead.answer_sent(payload_bytes, ends),
                Part::Nop => ahead.number = ahead.number.wrapping_add(1),
                Part::Control(_) | Part::Rest => {}
            }
        }
        ahead
    }

    /// A header with what every segment says.
    fn header(&self, kind: SegmentType, number: u32) -> SegmentHeader {
        let mut header = SegmentHeader::new(kind, 0);
        header.message = number;
        header.ack = self.connection.rx.good;
        header.rx_posted = self.rx_posted;
        header
    }

    /// Plans the next segment of our own messages. `None`: it is planned.
    fn own(&mut self, ahead: &mut Ahead) -> Option<Stop> {
        let open = match ahead.open {
            Some(open) => open,
            None => match self.next_message(ahead) {
                Ok(Some(open)) => open,
                Ok(None) => return None,
                Err(stop) => return Some(stop),
            },
        };
        let begins = ahead.open.is_none();
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
        let payload_bytes = left.min(self.connection.tx.segment_bytes - headers);
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
            place: Place::Sending(self.path.in_flight(self.vi) + ahead.descriptors),
            offset_bytes: open.sent_bytes,
            bytes: payload_bytes,
        });
        let part = Part::Own {
            payload_bytes,
            begins,
            ends,
        };
        match self.add(&header, rdma.as_ref(), payload, part) {
            Added::Yes => {
                if begins {
                    let tx = &self.connection.tx;
                    ahead.begin(open, tx.awaits_ack || !tx.in_flight.is_empty());
                }
                ahead.own_sent(payload_bytes, ends);
                None
            }
            Added::Full => Some(Stop::Full),
            Added::Fault if begins => Some(self.fault_at(ahead, Status::PROTECTION)),
            Added::Fault => Some(if self.gather.is_empty() {
                Stop::Gone
            } else {
                Stop::Full
            }),
        }
    }

    /// A fault counts when its descriptor is the next one, and nothing is to be written before.
    fn fault_at(&self, ahead: &Ahead, status: Status) -> Stop {
        if ahead.descriptors == 0 && self.gather.is_empty() {
            Stop::Fault(status)
        } else {
            Stop::Full
        }
    }

    /// The message of the next descriptor, if it may be begun. `None`: it was a read, which is
    /// planned whole.
    fn next_message(&mut self, ahead: &mut Ahead) -> Result<Option<Open>, Stop> {
        let work = self.path.work_ahead(self.vi, ahead.descriptors);
        let Some(work) = work else {
            return Err(Stop::Empty);
        };
        let mut work = work;
        if work.length_bytes > self.connection.max_transfer_bytes && work.fault.is_ok() {
            // Both ends have agreed on less than the VI had when it was posted.
            work.fault = Status::LENGTH;
        }
        let flight = &self.connection.tx.in_flight;
        if let Some(status) = flight.fault {
            return Err(if flight.is_empty() {
                self.fault_at(ahead, status)
            } else {
                Stop::Wait
            });
        }
        if !work.fault.is_ok() {
            // In its turn: behind all that is in flight.
            return Err(if flight.is_empty() {
                self.fault_at(ahead, work.fault)
            } else {
                Stop::Wait
            });
        }
        let is_read = matches!(work.operation, Operation::Read { .. });
        let stays =
            is_read || self.connection.tx.awaits_ack || !flight.is_empty() || ahead.kept > 0;
        let reads = flight.reads() + ahead.reads;
        if (stays && !flight.has_room(ahead.kept))
            || (work.fence && reads > 0)
            || (is_read && !flight.takes_read(ahead.reads))
        {
            return Err(Stop::Wait);
        }
        let number = ahead.number.wrapping_add(1);
        if is_read {
            return self.read(ahead, &work, number);
        }
        if takes_descriptor(&work)
            && let Some(credits) = &ahead.credits
            && credits.available() == 0
        {
            return Err(Stop::Starved);
        }
        Ok(Some(Open {
            work,
            number,
            sent_bytes: 0,
        }))
    }

    fn read(
        &mut self,
        ahead: &mut Ahead,
        work: &SendWork,
        number: u32,
    ) -> Result<Option<Open>, Stop> {
        let Operation::Read { remote } = work.operation else {
            return Err(Stop::Wait);
        };
        if !self.ep.is_reliable() {
            return Err(self.fault_at(ahead, Status::FORMAT));
        }
        let mut header = self.header(SegmentType::ReadRequest, number);
        header.flags = Flags::END_OF_MESSAGE;
        header.segment_bytes = (SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES) as u16;
        let rdma = rdma(remote, work.length_bytes);
        match self.add(&header, Some(&rdma), None, Part::Read) {
            Added::Yes => {
                ahead.read_sent();
                Ok(None)
            }
            Added::Full | Added::Fault => Err(Stop::Full),
        }
    }

    /// Plans the next segment of the answer to the peer's oldest read.
    fn answer(&mut self, ahead: &mut Ahead) -> Added {
        let Some(job) = self.connection.tx.answers.get(ahead.answers).copied() else {
            return Added::Full;
        };
        let mut header = self.header(SegmentType::ReadResponse, job.number);
        let headers = (SEGMENT_HEADER_BYTES + RDMA_HEADER_BYTES) as u32;
        let rdma = rdma(job.source, job.total_bytes);
        header.data_offset = ahead.answered_bytes;
        let left = job.total_bytes - ahead.answered_bytes;
        let mut added = Added::Fault;
        if !job.refused {
            let payload_bytes = left.min(self.connection.tx.segment_bytes - headers);
            let ends = payload_bytes == left;
            header.segment_bytes = (headers + payload_bytes) as u16;
            if ends {
                header.flags = Flags::END_OF_MESSAGE;
            }
            let payload = (payload_bytes > 0).then_some(Payload {
                place: Place::Read(job.source),
                offset_bytes: ahead.answered_bytes,
                bytes: payload_bytes,
            });
            let part = Part::Answer {
                payload_bytes,
                ends,
            };
            added = self.add(&header, Some(&rdma), payload, part);
            if added == Added::Yes {
                ahead.answer_sent(payload_bytes, ends);
            }
        }
        if added == Added::Fault {
            // The answer ends here: what was asked for may not be read, or not any more.
            header.flags = Flags::END_OF_MESSAGE.with(Flags::TRANSMIT_ERROR);
            header.segment_bytes = headers as u16;
            let part = Part::Answer {
                payload_bytes: 0,
                ends: true,
            };
            added = self.add(&header, Some(&rdma), None, part);
            if added == Added::Yes {
                ahead.answer_sent(0, true);
            }
        }
        added
    }

    /// Plans a NOP if the peer is owed something that no other segment says. It begins a message,
    /// so no other one is open.
    fn nop(&mut self, ahead: &mut Ahead) {
        if !self.gather.is_empty() || ahead.open.is_some() {
            return;
        }
        let rx = &self.connection.rx;
        let posted = rx.posted.is_some_and(|posted| posted.wants_nop());
        if !rx.owes_ack && !posted {
            return;
        }
        let mut header = self.header(SegmentType::Nop, ahead.number.wrapping_add(1));
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
        self.gather
            .add((self.vi, self.path), header, rdma, payload, part)
    }
}

impl Ahead {
    /// A message begins; `stays` in flight when it is sent.
    fn begin(&mut self, open: Open, stays: bool) {
        self.number = open.number;
        self.open = Some(open);
        if takes_descriptor(&open.work)
            && let Some(credits) = &mut self.credits
        {
            // One was there when the message was planned.
            let _used = credits.use_one();
        }
        self.kept += usize::from(stays || self.kept > 0);
    }

    fn own_sent(&mut self, payload_bytes: u32, ends: bool) {
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

    fn answer_sent(&mut self, payload_bytes: u32, ends: bool) {
        self.answered_bytes += payload_bytes;
        if ends {
            self.answers += 1;
            self.answered_bytes = 0;
        }
    }
}
