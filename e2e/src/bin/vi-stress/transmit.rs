//! The duty that posts to a send queue what is planned.

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::sync::Ordering;
use vipl::{Descriptor, Operation, Vi};

use crate::Failure;
use crate::header::{Header, Immediate, Mark, PeerMemory};
use crate::pattern::{Rng, fill};
use crate::plan::{CELLS, Kind, Stream};
use crate::slot::{MAX_SEGMENTS, Manners, Slot, Ticket, Work, lock};
use crate::source::Read;
use crate::stray::Stray;
use crate::window::place;

/// Receives of the peer that are kept for messages that only tell.
pub(crate) const RESERVE: u32 = 3;
/// What the peer should know is told after so long, if no message carried it.
const TELL_AFTER: Duration = Duration::from_millis(2);

/// Posts sends.
pub(crate) struct SendPost {
    pub(crate) vi: Arc<Vi>,
    pub(crate) stream: Stream,
    /// Messages posted: each takes a receive of the peer.
    pub(crate) messages: u32,
    /// Writes posted, with and without immediate data.
    pub(crate) writes: u32,
    /// Writes without immediate data to be posted before the next message; `None` before that was looked up.
    silent_due: Option<u32>,
    /// Reads to be posted behind those, in the same way.
    reads_due: Option<u32>,
    /// The last thing posted that was no read, if it was a write without immediate data: the peer has not heard of it,
    /// and leaves it alone.
    unheard: Option<u32>,
    /// The peer may not hear of the write before it is read back.
    fence_due: bool,
    /// Strays posted.
    pub(crate) stray_reads: u32,
    pub(crate) stray_writes: u32,
    told_granted: u32,
    told_checked: u32,
    told_at: Instant,
    pub(crate) own_memory: PeerMemory,
}

/// What is to be posted next.
enum Next {
    Message,
    Write { immediate: bool },
    Read,
    Tell,
    Nothing,
}

impl SendPost {
    pub(crate) fn new(vi: Arc<Vi>, stream: Stream, own_memory: PeerMemory) -> Self {
        Self {
            vi,
            stream,
            messages: 0,
            writes: 0,
            silent_due: None,
            reads_due: None,
            unheard: None,
            fence_due: false,
            stray_reads: 0,
            stray_writes: 0,
            told_granted: 0,
            told_checked: 0,
            told_at: Instant::now(),
            own_memory,
        }
    }

    /// Posts the next thing that may be posted. False if there is none.
    pub(crate) fn step(&mut self, slot: &Slot, rng: &mut Rng) -> Result<bool, Failure> {
        let shared = &slot.shared;
        if !shared.is_up.load(Ordering::SeqCst) || shared.is_closing.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let next = self.next(slot);
        if matches!(next, Next::Nothing) {
            return Ok(false);
        }
        let Some(descriptor) = lock(&slot.idle_sends).pop() else {
            return Ok(false);
        };
        match next {
            Next::Message => self.post_message(slot, descriptor, rng)?,
            Next::Write { immediate } => self.post_write(slot, descriptor, immediate, rng)?,
            Next::Read => self.post_read(slot, descriptor, rng)?,
            Next::Tell => self.post_header(slot, descriptor, rng)?,
            Next::Nothing => {}
        }
        Ok(true)
    }

    fn next(&mut self, slot: &Slot) -> Next {
        let shared = &slot.shared;
        let credit = shared
            .granted
            .load(Ordering::SeqCst)
            .saturating_sub(self.messages);
        if self.messages == 0 {
            return if credit > 0 {
                Next::Tell
            } else {
                Next::Nothing
            };
        }
        if credit > RESERVE && shared.quota.load(Ordering::SeqCst) > 0 {
            let has_memory = lock(&shared.peer_memory).is_some();
            let has_cell = has_memory
                && self
                    .writes
                    .wrapping_sub(shared.consumed.load(Ordering::SeqCst))
                    < CELLS;
            let silent = *self.silent_due.get_or_insert_with(|| {
                self.stream.silent_writes_before(&slot.shape, self.messages)
            });
            let reads = *self
                .reads_due
                .get_or_insert_with(|| self.stream.reads_before(&slot.shape, self.messages));
            let kind = self.stream.message(&slot.shape, self.messages).kind;
            match (silent, reads, kind) {
                (1.., _, _) if has_cell => return Next::Write { immediate: false },
                (0, 1.., _) if has_memory => return Next::Read,
                (0, 0, Kind::Write) if has_cell => return Next::Write { immediate: true },
                (0, 0, Kind::Send) => return Next::Message,
                (_, _, _) => {}
            }
        }
        if credit > 0 && self.has_news(slot) {
            Next::Tell
        } else {
            Next::Nothing
        }
    }

    /// The peer should be told of credits or cells now.
    fn has_news(&self, slot: &Slot) -> bool {
        let granted = granted(slot).saturating_sub(self.told_granted);
        let checked = slot
            .shared
            .checked
            .load(Ordering::SeqCst)
            .saturating_sub(self.told_checked);
        granted >= slot.shape.receives as u32 / 3
            || checked >= CELLS / 2
            || (granted + checked > 0 && self.told_at.elapsed() >= TELL_AFTER)
    }

    fn header(&mut self, slot: &Slot, length_bytes: usize) -> [u8; Header::BYTES] {
        self.told_granted = granted(slot);
        self.told_checked = slot.shared.checked.load(Ordering::SeqCst);
        self.told_at = Instant::now();
        let header = Header {
            stream: self.stream,
            number: self.messages,
            length_bytes: length_bytes as u32,
            granted: self.told_granted,
            consumed: self.told_checked,
            writes: self.writes,
            memory: self.own_memory,
        };
        header.encode()
    }

    fn immediate(&self, mark: Mark) -> u32 {
        Immediate {
            mark,
            writes: self.writes,
            number: self.messages,
        }
        .encode()
    }

    fn post_message(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let plan = self.stream.message(&slot.shape, self.messages);
        let key = self.stream.message_key(self.messages);
        let cuts = spread(&mut descriptor, plan.length_bytes, rng);
        fill_segments(&mut descriptor, &cuts, key, 0);
        if plan.length_bytes >= Header::BYTES {
            let header = self.header(slot, plan.length_bytes);
            put_first(&mut descriptor, &cuts, &header);
        }
        descriptor.set_operation(Operation::Send);
        descriptor.set_immediate(plan.has_immediate.then(|| self.immediate(Mark::Data)));
        slot.shared.quota.fetch_sub(1, Ordering::SeqCst);
        self.count_message();
        self.post(slot, descriptor, plan.length_bytes, Work::Send, rng)
    }

    fn post_write(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        immediate: bool,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let memory = (*lock(&slot.shared.peer_memory)).ok_or("a write without a window")?;
        let plan = self.stream.write(&slot.shape, self.writes);
        let key = self.stream.write_key(self.writes);
        let cuts = spread(&mut descriptor, plan.length_bytes, rng);
        fill_segments(&mut descriptor, &cuts, key, plan.offset_bytes);
        let begin = place(&self.stream, &slot.shape, self.writes);
        descriptor.set_operation(Operation::RdmaWrite(memory.window.at(begin)));
        self.writes += 1;
        descriptor.set_immediate(immediate.then(|| self.immediate(Mark::Write)));
        if immediate {
            slot.shared.quota.fetch_sub(1, Ordering::SeqCst);
            self.count_message();
        } else {
            self.silent_due = self.silent_due.map(|due| due - 1);
            self.unheard = Some(self.writes - 1);
        }
        let work = Work::Write { immediate };
        self.post(slot, descriptor, plan.length_bytes, work, rng)
    }

    fn post_header(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let cuts = spread(&mut descriptor, Header::BYTES, rng);
        let header = self.header(slot, Header::BYTES);
        put_first(&mut descriptor, &cuts, &header);
        descriptor.set_operation(Operation::Send);
        descriptor.set_immediate(Some(self.immediate(Mark::Tell)));
        // The number of this message has a plan that is not used.
        self.count_message();
        self.post(slot, descriptor, Header::BYTES, Work::Send, rng)
    }

    fn post_read(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let memory = (*lock(&slot.shared.peer_memory)).ok_or("a read without a source")?;
        let unheard = self
            .unheard
            .filter(|_| slot.shape.reads_back && rng.chance(700));
        let (remote, key, offset_bytes, length_bytes) = match unheard {
            Some(number) => {
                self.fence_due = true;
                let write = self.stream.write(&slot.shape, number);
                let skip = rng.below(write.length_bytes as u64 + 1) as usize;
                let begin = place(&self.stream, &slot.shape, number) + skip as u64;
                (
                    memory.window.at(begin),
                    self.stream.write_key(number),
                    write.offset_bytes + skip,
                    write.length_bytes - skip,
                )
            }
            None => {
                let (begin, length_bytes) = Read::range(rng);
                let key = self.stream.reversed().source_key();
                (memory.source.at(begin as u64), key, begin, length_bytes)
            }
        };
        let read = Read {
            key,
            offset_bytes,
            cuts: spread(&mut descriptor, length_bytes, rng),
        };
        read.prepare(&mut descriptor);
        descriptor.set_operation(Operation::RdmaRead(remote));
        descriptor.set_immediate(None);
        self.reads_due = self.reads_due.map(|due| due - 1);
        self.post(slot, descriptor, length_bytes, Work::Read(read), rng)
    }

    /// Asks for what the other side must refuse, and the connection ends. False if that cannot be done yet.
    pub(crate) fn post_stray(&mut self, slot: &Slot, rng: &mut Rng) -> Result<bool, Failure> {
        let Some(memory) = *lock(&slot.shared.peer_memory) else {
            return Ok(false);
        };
        let Some(mut descriptor) = lock(&slot.idle_sends).pop() else {
            return Ok(false);
        };
        let stray = Stray::choose(&slot.shape, &memory, rng);
        let read = Read {
            key: 0,
            offset_bytes: 0,
            cuts: spread(&mut descriptor, stray.length_bytes, rng),
        };
        stray.ask(&mut descriptor);
        let work = if stray.is_read() {
            read.prepare(&mut descriptor);
            self.stray_reads += 1;
            Work::Read(read)
        } else {
            self.stray_writes += 1;
            Work::Write { immediate: false }
        };
        let ticket = Ticket::new(&descriptor, stray.length_bytes, work, Manners::Stray);
        self.post_ticket(slot, descriptor, ticket)?;
        Ok(true)
    }

    /// The message that is about to be posted has its number.
    fn count_message(&mut self) {
        (self.silent_due, self.reads_due, self.unheard) = (None, None, None);
        self.messages += 1;
    }

    fn post(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        length_bytes: usize,
        work: Work,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let is_read = matches!(work, Work::Read(_));
        descriptor.set_fence((self.fence_due && !is_read) || rng.chance(60));
        self.fence_due &= is_read;
        let ticket = Ticket::new(&descriptor, length_bytes, work, Manners::Good);
        self.post_ticket(slot, descriptor, ticket)
    }

    fn post_ticket(
        &mut self,
        slot: &Slot,
        descriptor: Descriptor,
        ticket: Ticket,
    ) -> Result<(), Failure> {
        slot.sends.push(ticket);
        slot.shared.note_move();
        self.vi
            .post_send(descriptor)
            .map_err(|refused| format!("a send: {refused}").into())
    }
}

/// Messages that the peer may send in this connection, in total.
fn granted(slot: &Slot) -> u32 {
    slot.shared.receives_posted.load(Ordering::SeqCst) + slot.shared.lost.load(Ordering::SeqCst)
}

/// The used bytes of each segment.
type Cuts = [usize; MAX_SEGMENTS];

/// Divides a message over the segments at random.
fn spread(descriptor: &mut Descriptor, length_bytes: usize, rng: &mut Rng) -> Cuts {
    let count = descriptor.segment_count();
    let mut cuts = [0; MAX_SEGMENTS];
    let mut left = length_bytes;
    let mut room: usize = (0..count).map(|index| descriptor.buffer(index).len()).sum();
    for (index, cut) in cuts.iter_mut().enumerate().take(count) {
        let here = descriptor.buffer(index).len();
        room -= here;
        // What the later segments have no room for must go here.
        let least = left.saturating_sub(room);
        let most = left.min(here);
        let used = if rng.chance(500) {
            most
        } else {
            least + rng.below((most - least) as u64 + 1) as usize
        };
        descriptor.set_used_bytes(index, used);
        *cut = used;
        left -= used;
    }
    cuts
}

/// Writes the bytes of a key, from `offset` on, into the used bytes of all segments.
fn fill_segments(descriptor: &mut Descriptor, cuts: &Cuts, key: u64, offset: usize) {
    let mut at = offset;
    for (index, cut) in cuts.iter().enumerate().take(descriptor.segment_count()) {
        fill(key, at, &mut descriptor.buffer_mut(index)[..*cut]);
        at += cut;
    }
}

/// Writes the first bytes of a message.
fn put_first(descriptor: &mut Descriptor, cuts: &Cuts, mut bytes: &[u8]) {
    for (index, cut) in cuts.iter().enumerate().take(descriptor.segment_count()) {
        let (here, rest) = bytes.split_at(bytes.len().min(*cut));
        descriptor.buffer_mut(index)[..here.len()].copy_from_slice(here);
        bytes = rest;
    }
}
