//! The two duties of a send queue: post what is planned, and take back what is complete.

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::sync::Ordering;
use vipl::{CompletedOperation, Descriptor, Operation, RemoteBuffer, Timeout, Vi, VipError};

use crate::Failure;
use crate::header::{Header, Immediate, Mark};
use crate::pattern::{Rng, fill};
use crate::plan::{CELLS, Kind, Stream};
use crate::slot::{MAX_SEGMENTS, Place, Slot, Ticket, lock};
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
    told_granted: u32,
    told_checked: u32,
    told_at: Instant,
    pub(crate) own_window: RemoteBuffer,
}

/// What is to be posted next.
enum Next {
    Message,
    Write { immediate: bool },
    Tell,
    Nothing,
}

impl SendPost {
    pub(crate) fn new(vi: Arc<Vi>, stream: Stream, own_window: RemoteBuffer) -> Self {
        Self {
            vi,
            stream,
            messages: 0,
            writes: 0,
            silent_due: None,
            told_granted: 0,
            told_checked: 0,
            told_at: Instant::now(),
            own_window,
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
            let has_cell = lock(&shared.peer_window).is_some()
                && self
                    .writes
                    .wrapping_sub(shared.consumed.load(Ordering::SeqCst))
                    < CELLS;
            let silent = *self.silent_due.get_or_insert_with(|| {
                self.stream.silent_writes_before(&slot.shape, self.messages)
            });
            let kind = self.stream.message(&slot.shape, self.messages).kind;
            match (silent, kind) {
                (1.., _) if has_cell => return Next::Write { immediate: false },
                (0, Kind::Write) if has_cell => return Next::Write { immediate: true },
                (0, Kind::Send) => return Next::Message,
                (_, _) => {}
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
            window: self.own_window,
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
        self.silent_due = None;
        self.messages += 1;
        self.post(slot, descriptor, plan.length_bytes, true)
    }

    fn post_write(
        &mut self,
        slot: &Slot,
        mut descriptor: Descriptor,
        immediate: bool,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let window = (*lock(&slot.shared.peer_window)).ok_or("a write without a window")?;
        let plan = self.stream.write(&slot.shape, self.writes);
        let key = self.stream.write_key(self.writes);
        let cuts = spread(&mut descriptor, plan.length_bytes, rng);
        fill_segments(&mut descriptor, &cuts, key, plan.offset_bytes);
        let begin = place(&self.stream, &slot.shape, self.writes);
        descriptor.set_operation(Operation::RdmaWrite(window.at(begin)));
        self.writes += 1;
        descriptor.set_immediate(immediate.then(|| self.immediate(Mark::Write)));
        if immediate {
            slot.shared.quota.fetch_sub(1, Ordering::SeqCst);
            self.silent_due = None;
            self.messages += 1;
        } else {
            self.silent_due = self.silent_due.map(|due| due - 1);
        }
        self.post(slot, descriptor, plan.length_bytes, immediate)
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
        self.silent_due = None;
        self.messages += 1;
        self.post(slot, descriptor, Header::BYTES, true)
    }

    /// Writes where the other side has registered nothing: it must refuse, and the connection ends.
    pub(crate) fn post_stray_write(
        &mut self,
        slot: &Slot,
        beyond_bytes: u64,
        rng: &mut Rng,
    ) -> Result<bool, Failure> {
        let Some(window) = *lock(&slot.shared.peer_window) else {
            return Ok(false);
        };
        let Some(mut descriptor) = lock(&slot.idle_sends).pop() else {
            return Ok(false);
        };
        let length_bytes = 1 + rng.below(300) as usize;
        spread(&mut descriptor, length_bytes, rng);
        descriptor.set_operation(Operation::RdmaWrite(window.at(beyond_bytes)));
        descriptor.set_immediate(None);
        self.writes += 1;
        self.post(slot, descriptor, length_bytes, false)?;
        Ok(true)
    }

    fn post(
        &mut self,
        slot: &Slot,
        descriptor: Descriptor,
        length_bytes: usize,
        is_message: bool,
    ) -> Result<(), Failure> {
        let is_write = matches!(descriptor.operation(), Operation::RdmaWrite(_));
        slot.sends
            .push(Ticket::new(&descriptor, length_bytes, is_message, is_write));
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

/// Reaps sends.
pub(crate) struct SendReap {
    pub(crate) vi: Arc<Vi>,
    /// Messages that completed without error.
    pub(crate) messages: u32,
    /// Writes without immediate data that did.
    pub(crate) silent_writes: u32,
    pub(crate) flushed: u32,
}

impl SendReap {
    pub(crate) fn new(vi: Arc<Vi>) -> Self {
        Self {
            vi,
            messages: 0,
            silent_writes: 0,
            flushed: 0,
        }
    }

    /// Takes one completed send. False if there is none in time.
    pub(crate) fn step(
        &mut self,
        slot: &Slot,
        place: &Place,
        wait: Option<Duration>,
        rng: &mut Rng,
    ) -> Result<bool, Failure> {
        let found = match wait {
            Some(limit) => self.vi.send_wait(Timeout::After(limit)),
            None => self.vi.send_done(),
        };
        let completed = match found {
            Ok(Some(completed)) => completed,
            Ok(None) | Err(VipError::NotDone | VipError::Timeout) => return Ok(false),
            Err(error) => return Err(format!("a send queue: {error}").into()),
        };
        let ticket = slot.sends.take(&completed)?;
        let status = completed.status;
        if status.is_ok() {
            let expected = if ticket.is_write {
                CompletedOperation::RdmaWrite
            } else {
                CompletedOperation::Send
            };
            if self.flushed > 0 {
                return Err("a send completed behind one that was flushed".into());
            }
            if (completed.length_bytes(), status.operation()) != (ticket.length_bytes, expected) {
                return Err(format!("{ticket:?} completed as {completed:?}").into());
            }
            self.messages += u32::from(ticket.is_message);
            self.silent_writes += u32::from(!ticket.is_message);
        } else if status.is_flushed() {
            self.flushed += 1;
            slot.shared.is_broken.store(true, Ordering::SeqCst);
        } else {
            return Err(format!("a send failed: {status}, {ticket:?}").into());
        }
        let mut descriptor = completed.descriptor;
        if rng.chance(4) {
            place.furnish(&mut descriptor, &slot.shape, rng)?;
        }
        lock(&slot.idle_sends).push(descriptor);
        slot.shared.note_move();
        Ok(true)
    }
}
