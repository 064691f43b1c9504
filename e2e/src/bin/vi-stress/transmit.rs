//! The task that posts the planned operations to a send queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::sync::Ordering;
use vipl::{Descriptor, Operation, Vi};

use crate::header::{Header, Immediate, Mark, PeerMemory};
use crate::pattern::{Rng, fill};
use crate::plan::{CELLS, MessageKind, Stream};
use crate::slot::{Expected, MAX_SEGMENTS, PostedEntry, Slot, Work, lock};
use crate::source::Read;
use crate::unexpected::UnexpectedAccess;
use crate::window::write_offset;
use e2e::failure::Failure;

/// Receives of the peer that are reserved for control messages.
pub(crate) const RESERVE: u32 = 3;
/// Time after which credits are sent in a control message, if no other message has carried them.
const CREDIT_INTERVAL: Duration = Duration::from_millis(2);

/// Posts sends.
pub(crate) struct SendPost {
    pub(crate) vi: Arc<Vi>,
    pub(crate) stream: Stream,
    /// Posted messages; each uses a receive of the peer.
    pub(crate) messages: u32,
    /// Posted writes, with and without immediate data.
    pub(crate) writes: u32,
    /// Remaining writes without immediate data before the next message; `None` until the plan is read.
    plain_writes_due: Option<u32>,
    /// Remaining reads after those writes, likewise.
    reads_due: Option<u32>,
    /// The last operation except reads, if it was a write without immediate data: the peer was not notified of it, and
    /// its cell is unchanged.
    unnotified: Option<u32>,
    /// The next message, which notifies the peer of the write, must wait for the read-back.
    fence_due: bool,
    /// Posted unexpected operations.
    pub(crate) unexpected_reads: u32,
    pub(crate) unexpected_writes: u32,
    advertised_granted: u32,
    advertised_checked: u32,
    advertised_at: Instant,
    pub(crate) own_memory: PeerMemory,
}

/// The next operation to post.
enum Next {
    Message,
    Write { immediate: bool },
    Read,
    Control,
    Nothing,
}

impl SendPost {
    pub(crate) fn new(vi: Arc<Vi>, stream: Stream, own_memory: PeerMemory) -> Self {
        Self {
            vi,
            stream,
            messages: 0,
            writes: 0,
            plain_writes_due: None,
            reads_due: None,
            unnotified: None,
            fence_due: false,
            unexpected_reads: 0,
            unexpected_writes: 0,
            advertised_granted: 0,
            advertised_checked: 0,
            advertised_at: Instant::now(),
            own_memory,
        }
    }

    /// Posts the next operation. Returns false if none may be posted.
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
            Next::Control => self.post_header(slot, descriptor, rng)?,
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
                Next::Control
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
            let writes = *self.plain_writes_due.get_or_insert_with(|| {
                self.stream.plain_writes_before(&slot.config, self.messages)
            });
            let reads = *self
                .reads_due
                .get_or_insert_with(|| self.stream.reads_before(&slot.config, self.messages));
            let kind = self.stream.message(&slot.config, self.messages).kind;
            match (writes, reads, kind) {
                (1.., _, _) if has_cell => return Next::Write { immediate: false },
                (0, 1.., _) if has_memory => return Next::Read,
                (0, 0, MessageKind::Write) if has_cell => return Next::Write { immediate: true },
                (0, 0, MessageKind::Send) => return Next::Message,
                (_, _, _) => {}
            }
        }
        if credit > 0 && self.must_advertise(slot) {
            Next::Control
        } else {
            Next::Nothing
        }
    }

    /// Whether credits or free cells should be sent to the peer now.
    fn must_advertise(&self, slot: &Slot) -> bool {
        let granted = granted(slot).saturating_sub(self.advertised_granted);
        let checked = slot
            .shared
            .checked
            .load(Ordering::SeqCst)
            .saturating_sub(self.advertised_checked);
        granted >= slot.config.receives as u32 / 3
            || checked >= CELLS / 2
            || (granted + checked > 0 && self.advertised_at.elapsed() >= CREDIT_INTERVAL)
    }

    fn header(&mut self, slot: &Slot, length_bytes: usize) -> [u8; Header::BYTES] {
        self.advertised_granted = granted(slot);
        self.advertised_checked = slot.shared.checked.load(Ordering::SeqCst);
        self.advertised_at = Instant::now();
        let header = Header {
            stream: self.stream,
            number: self.messages,
            length_bytes: length_bytes as u32,
            granted: self.advertised_granted,
            consumed: self.advertised_checked,
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
        let plan = self.stream.message(&slot.config, self.messages);
        let key = self.stream.message_key(self.messages);
        let lengths = spread(&mut descriptor, plan.length_bytes, rng);
        fill_segments(&mut descriptor, &lengths, key, 0);
        if plan.length_bytes >= Header::BYTES {
            let header = self.header(slot, plan.length_bytes);
            put_first(&mut descriptor, &lengths, &header);
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
        let memory =
            (*lock(&slot.shared.peer_memory)).ok_or("the address of the window is unknown")?;
        let plan = self.stream.write(&slot.config, self.writes);
        let key = self.stream.write_key(self.writes);
        let lengths = spread(&mut descriptor, plan.length_bytes, rng);
        fill_segments(&mut descriptor, &lengths, key, plan.offset_bytes);
        let begin = write_offset(&self.stream, &slot.config, self.writes);
        descriptor.set_operation(Operation::RdmaWrite(memory.window.at(begin)));
        self.writes += 1;
        descriptor.set_immediate(immediate.then(|| self.immediate(Mark::Write)));
        if immediate {
            slot.shared.quota.fetch_sub(1, Ordering::SeqCst);
            self.count_message();
        } else {
            self.plain_writes_due = self.plain_writes_due.map(|due| due - 1);
            self.unnotified = Some(self.writes - 1);
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
        let lengths = spread(&mut descriptor, Header::BYTES, rng);
        let header = self.header(slot, Header::BYTES);
        put_first(&mut descriptor, &lengths, &header);
        descriptor.set_operation(Operation::Send);
        descriptor.set_immediate(Some(self.immediate(Mark::Control)));
        // The plan of this message number is not used.
        self.count_message();
        self.post(slot, descriptor, Header::BYTES, Work::Send, rng)
    }

    fn post_read(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let memory =
            (*lock(&slot.shared.peer_memory)).ok_or("the address of the source is unknown")?;
        let unnotified = self
            .unnotified
            .filter(|_| slot.config.reads_back && rng.chance(700));
        let (remote, key, offset_bytes, length_bytes) = match unnotified {
            Some(number) => {
                self.fence_due = true;
                let write = self.stream.write(&slot.config, number);
                let skip = rng.below(write.length_bytes as u64 + 1) as usize;
                let begin = write_offset(&self.stream, &slot.config, number) + skip as u64;
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
            lengths: spread(&mut descriptor, length_bytes, rng),
        };
        read.prepare(&mut descriptor);
        descriptor.set_operation(Operation::RdmaRead(remote));
        descriptor.set_immediate(None);
        self.reads_due = self.reads_due.map(|due| due - 1);
        self.post(slot, descriptor, length_bytes, Work::Read(read), rng)
    }

    /// Posts an operation that the remote side must refuse. Returns false if that is not possible yet.
    pub(crate) fn post_unexpected(&mut self, slot: &Slot, rng: &mut Rng) -> Result<bool, Failure> {
        let Some(memory) = *lock(&slot.shared.peer_memory) else {
            return Ok(false);
        };
        let Some(mut descriptor) = lock(&slot.idle_sends).pop() else {
            return Ok(false);
        };
        let access = UnexpectedAccess::choose(&slot.config, &memory, rng);
        let read = Read {
            key: 0,
            offset_bytes: 0,
            lengths: spread(&mut descriptor, access.length_bytes, rng),
        };
        access.apply(&mut descriptor);
        let work = if access.is_read() {
            read.prepare(&mut descriptor);
            self.unexpected_reads += 1;
            Work::Read(read)
        } else {
            self.unexpected_writes += 1;
            Work::Write { immediate: false }
        };
        let entry = PostedEntry::new(&descriptor, access.length_bytes, work, Expected::Refusal);
        self.post_entry(slot, descriptor, entry)?;
        Ok(true)
    }

    /// Counts the message that is about to be posted.
    fn count_message(&mut self) {
        (self.plain_writes_due, self.reads_due, self.unnotified) = (None, None, None);
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
        let entry = PostedEntry::new(&descriptor, length_bytes, work, Expected::Success);
        self.post_entry(slot, descriptor, entry)
    }

    fn post_entry(
        &mut self,
        slot: &Slot,
        descriptor: Descriptor,
        entry: PostedEntry,
    ) -> Result<(), Failure> {
        slot.sends.push(entry);
        slot.shared.count_progress();
        self.vi
            .post_send(descriptor)
            .map_err(|refused| format!("posting a send: {refused}").into())
    }
}

/// Returns the total number of messages that the peer may send on this connection.
fn granted(slot: &Slot) -> u32 {
    slot.shared.receives_posted.load(Ordering::SeqCst) + slot.shared.lost.load(Ordering::SeqCst)
}

/// Used bytes of each segment.
type SegmentLengths = [usize; MAX_SEGMENTS];

/// Distributes a message randomly over the segments.
fn spread(descriptor: &mut Descriptor, length_bytes: usize, rng: &mut Rng) -> SegmentLengths {
    let count = descriptor.segment_count();
    let mut lengths = [0; MAX_SEGMENTS];
    let mut left = length_bytes;
    let mut room: usize = (0..count).map(|index| descriptor.buffer(index).len()).sum();
    for (index, length) in lengths.iter_mut().enumerate().take(count) {
        let capacity = descriptor.buffer(index).len();
        room -= capacity;
        // Bytes that do not fit into the later segments.
        let least = left.saturating_sub(room);
        let most = left.min(capacity);
        let used = if rng.chance(500) {
            most
        } else {
            least + rng.below((most - least) as u64 + 1) as usize
        };
        descriptor.set_used_bytes(index, used);
        *length = used;
        left -= used;
    }
    lengths
}

/// Fills the used bytes of all segments with the bytes of a key, starting at `offset`.
fn fill_segments(descriptor: &mut Descriptor, lengths: &SegmentLengths, key: u64, offset: usize) {
    let mut at = offset;
    for (index, length) in lengths.iter().enumerate().take(descriptor.segment_count()) {
        fill(key, at, &mut descriptor.buffer_mut(index)[..*length]);
        at += length;
    }
}

/// Writes the first bytes of a message.
fn put_first(descriptor: &mut Descriptor, lengths: &SegmentLengths, mut bytes: &[u8]) {
    for (index, length) in lengths.iter().enumerate().take(descriptor.segment_count()) {
        let (head, rest) = bytes.split_at(bytes.len().min(*length));
        descriptor.buffer_mut(index)[..head.len()].copy_from_slice(head);
        bytes = rest;
    }
}
