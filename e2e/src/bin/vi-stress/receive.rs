//! The two duties of a receive queue: post receives, and check what arrives.

use std::sync::Arc;
use std::time::Duration;

use e2e::sync::Ordering;
use vipl::{Completed, CompletedOperation, Timeout, Vi, VipError};

use crate::Failure;
use crate::header::{Header, Immediate, Mark};
use crate::pattern::{Rng, mismatch};
use crate::plan::{Kind, Stream};
use crate::slot::{Manners, Place, Slot, Ticket, Work, lock};
use crate::window::Window;

/// Posts receives.
pub(crate) struct ReceivePost {
    pub(crate) vi: Arc<Vi>,
}

impl ReceivePost {
    /// Posts one receive. False if there is none to post.
    pub(crate) fn step(&mut self, slot: &Slot) -> Result<bool, Failure> {
        // It would only come back.
        if slot.shared.is_broken.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let Some(mut descriptor) = lock(&slot.idle_receives).pop() else {
            return Ok(false);
        };
        for index in 0..descriptor.segment_count() {
            let whole = descriptor.buffer(index).len();
            descriptor.set_used_bytes(index, whole);
        }
        slot.receives
            .push(Ticket::new(&descriptor, 0, Work::Receive, Manners::Good));
        self.vi
            .post_recv(descriptor)
            .map_err(|refused| format!("a receive: {refused}"))?;
        // Only now may the peer be told of it.
        slot.shared.receives_posted.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }
}

/// Reaps receives.
pub(crate) struct ReceiveReap {
    pub(crate) vi: Arc<Vi>,
    /// What the other side sends.
    pub(crate) stream: Stream,
    pub(crate) window: Window,
    /// The next message's number; on an unreliable connection, at least.
    pub(crate) next: u32,
    /// Writes checked.
    writes: u32,
    /// Messages that arrived.
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
    pub(crate) flushed: u32,
    /// Messages since the last one that arrived, of which the wire lost a part: each took a receive.
    cut: u32,
}

impl ReceiveReap {
    pub(crate) fn new(vi: Arc<Vi>, stream: Stream, window: Window) -> Self {
        Self {
            vi,
            stream,
            window,
            next: 0,
            writes: 0,
            messages: 0,
            bytes: 0,
            flushed: 0,
            cut: 0,
        }
    }

    /// For a new connection.
    pub(crate) fn begin(&mut self, stream: Stream) {
        self.stream = stream;
        (
            self.next,
            self.writes,
            self.messages,
            self.bytes,
            self.flushed,
            self.cut,
        ) = (0, 0, 0, 0, 0, 0);
    }

    /// Takes one completed receive and checks it. False if there is none in time.
    pub(crate) fn step(
        &mut self,
        slot: &Slot,
        place: &Place,
        wait: Option<Duration>,
        rng: &mut Rng,
    ) -> Result<bool, Failure> {
        let found = match wait {
            Some(limit) => self.vi.recv_wait(Timeout::After(limit)),
            None => self.vi.recv_done(),
        };
        let completed = match found {
            Ok(Some(completed)) => completed,
            Ok(None) | Err(VipError::NotDone | VipError::Timeout) => return Ok(false),
            Err(error) => return Err(format!("a receive queue: {error}").into()),
        };
        slot.receives.take(&completed)?;
        let status = completed.status;
        if status.is_ok() {
            if self.flushed > 0 {
                return Err("a message arrived behind a receive that was flushed".into());
            }
            self.check(slot, &completed)
                .map_err(|error| format!("message {} of {:?}: {error}", self.next, self.stream))?;
        } else if status.is_transport_error() && !slot.shape.is_reliable() {
            // The connection goes on.
            self.cut += 1;
        } else if status.is_flushed() || status.is_transport_error() {
            // A message that the end of the connection has cut.
            self.flushed += 1;
            slot.shared.is_broken.store(true, Ordering::SeqCst);
        } else {
            return Err(format!("a receive failed: {status}").into());
        }
        let mut descriptor = completed.descriptor;
        if rng.chance(4) {
            place.furnish(&mut descriptor, &slot.shape, rng)?;
        }
        lock(&slot.idle_receives).push(descriptor);
        slot.shared.note_move();
        Ok(true)
    }

    /// Checks a message: that it is the one whose turn it is, and each of its bytes.
    fn check(&mut self, slot: &Slot, completed: &Completed) -> Result<(), Failure> {
        let length_bytes = completed.length_bytes();
        let is_write = match completed.status.operation() {
            CompletedOperation::Receive => false,
            CompletedOperation::RemoteRdmaWrite => true,
            other => return Err(format!("arrived as {other:?}").into()),
        };
        let immediate = match completed.immediate() {
            Some(word) => {
                let read = Immediate::decode(word, self.next, self.writes);
                Some(read.ok_or_else(|| format!("immediate data {word:#x}"))?)
            }
            None => None,
        };
        let header = self.header(completed, is_write)?;
        let number = match (immediate, header) {
            (Some(Immediate { number, .. }), _) | (None, Some(Header { number, .. })) => number,
            (None, None) => self.next,
        };
        self.count(slot, number)?;
        match immediate {
            Some(Immediate {
                mark: Mark::Tell, ..
            }) => {
                if length_bytes != Header::BYTES || is_write {
                    return Err(format!("it only tells, with {length_bytes} bytes").into());
                }
            }
            Some(Immediate {
                mark: Mark::Data | Mark::Write,
                ..
            })
            | None => {
                self.check_planned(slot, completed, number, immediate, is_write)?;
            }
        }
        if let Some(header) = header {
            self.hear(slot, &header, number, length_bytes)?;
        }
        if let Some(writes) = immediate.map(|i| i.writes).or(header.map(|h| h.writes)) {
            self.check_writes(slot, writes, is_write)?;
        }
        self.bytes += length_bytes as u64;
        Ok(())
    }

    fn header(&self, completed: &Completed, is_write: bool) -> Result<Option<Header>, Failure> {
        if is_write || completed.length_bytes() < Header::BYTES {
            return Ok(None);
        }
        let mut bytes = [0; Header::BYTES];
        each_piece(completed, |at, piece| {
            let take = piece.len().min(Header::BYTES.saturating_sub(at));
            bytes[at.min(Header::BYTES)..][..take].copy_from_slice(&piece[..take]);
        });
        let header = Header::decode(&bytes).ok_or("its header is damaged")?;
        if header.stream != self.stream {
            return Err(format!("it belongs to {:?}", header.stream).into());
        }
        Ok(Some(header))
    }

    /// A reliable connection delivers every message; none delivers one twice, or after a later one.
    fn count(&mut self, slot: &Slot, number: u32) -> Result<(), Failure> {
        let missing = number.wrapping_sub(self.next);
        let most = if slot.shape.is_reliable() {
            0
        } else {
            slot.shape.receives as u32 * 64
        };
        if missing > most {
            return Err(format!("number {number} arrived").into());
        }
        let cut = std::mem::take(&mut self.cut);
        let lost = (missing.checked_sub(cut))
            .ok_or_else(|| format!("number {number} arrived behind {cut} that were cut"))?;
        slot.shared.lost.fetch_add(lost, Ordering::SeqCst);
        self.next = number + 1;
        self.messages += 1;
        Ok(())
    }

    fn check_planned(
        &self,
        slot: &Slot,
        completed: &Completed,
        number: u32,
        immediate: Option<Immediate>,
        is_write: bool,
    ) -> Result<(), Failure> {
        let plan = self.stream.message(&slot.shape, number);
        let length_bytes = completed.length_bytes();
        let planned_bytes = match (plan.kind, immediate) {
            (
                Kind::Write,
                Some(Immediate {
                    mark: Mark::Write,
                    writes,
                    ..
                }),
            ) if is_write => {
                self.stream
                    .write(&slot.shape, writes.wrapping_sub(1))
                    .length_bytes
            }
            (Kind::Send, None) if !plan.has_immediate && !is_write => plan.length_bytes,
            (
                Kind::Send,
                Some(Immediate {
                    mark: Mark::Data, ..
                }),
            ) if plan.has_immediate && !is_write => plan.length_bytes,
            (Kind::Send | Kind::Write, _) => {
                return Err(format!(
                    "{plan:?} was planned, {immediate:?} arrived, as a write: {is_write}"
                )
                .into());
            }
        };
        if length_bytes != planned_bytes {
            return Err(format!("{length_bytes} bytes of {planned_bytes}").into());
        }
        if is_write {
            return Ok(());
        }
        let key = self.stream.message_key(number);
        let header_bytes = if length_bytes >= Header::BYTES {
            Header::BYTES
        } else {
            0
        };
        let mut damage = None;
        each_piece(completed, |at, piece| {
            let skip = header_bytes.saturating_sub(at).min(piece.len());
            let found = mismatch(key, at + skip, &piece[skip..]);
            damage = damage.or(found.map(|place| at + skip + place));
        });
        match damage {
            Some(at) => Err(format!("byte {at} of {length_bytes} is wrong").into()),
            None => Ok(()),
        }
    }

    /// Takes note of what the peer tells.
    fn hear(
        &self,
        slot: &Slot,
        header: &Header,
        number: u32,
        length_bytes: usize,
    ) -> Result<(), Failure> {
        if (header.number, header.length_bytes) != (number, length_bytes as u32) {
            return Err(format!("it says of itself: {header:?}").into());
        }
        slot.shared
            .granted
            .fetch_max(header.granted, Ordering::SeqCst);
        slot.shared
            .consumed
            .fetch_max(header.consumed, Ordering::SeqCst);
        *lock(&slot.shared.peer_memory) = Some(header.memory);
        Ok(())
    }

    /// Checks the writes that came before this message.
    fn check_writes(&mut self, slot: &Slot, writes: u32, is_write: bool) -> Result<(), Failure> {
        while self.writes < writes {
            let is_last = self.writes + 1 == writes;
            // On an unreliable connection, what did not come with its message was lost.
            if slot.shape.is_reliable() || (is_last && is_write) {
                self.window.take(&self.stream, &slot.shape, self.writes)?;
            } else {
                self.window.forget(self.writes);
            }
            self.writes += 1;
        }
        slot.shared.checked.store(self.writes, Ordering::SeqCst);
        Ok(())
    }
}

/// The received bytes, segment by segment.
fn each_piece(completed: &Completed, mut each: impl FnMut(usize, &[u8])) {
    let mut at = 0;
    for index in 0..completed.descriptor.segment_count() {
        let buffer = completed.descriptor.buffer(index);
        let take = buffer.len().min(completed.length_bytes() - at);
        each(at, &buffer[..take]);
        at += take;
    }
}
