//! The two tasks of a receive queue: posting receives, and taking and checking completed ones.

use std::sync::Arc;
use std::time::Duration;

use e2e::sync::Ordering;
use vipl::{Completed, CompletedOperation, Timeout, Vi, VipError};

use crate::header::{Header, Immediate, Mark};
use crate::pattern::{Rng, mismatch};
use crate::plan::{MessageKind, Stream};
use crate::slot::{Expected, NicContext, PostedEntry, Slot, Work, lock};
use crate::window::Window;
use e2e::failure::Failure;

/// Posts receives.
pub(crate) struct ReceivePost {
    pub(crate) vi: Arc<Vi>,
}

impl ReceivePost {
    /// Posts one receive. Returns false if there is no idle descriptor.
    pub(crate) fn step(&mut self, slot: &Slot) -> Result<bool, Failure> {
        // It would be flushed.
        if slot.shared.is_broken.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let Some(mut descriptor) = lock(&slot.idle_receives).pop() else {
            return Ok(false);
        };
        for index in 0..descriptor.segment_count() {
            let length = descriptor.buffer(index).len();
            descriptor.set_used_bytes(index, length);
        }
        slot.receives.push(PostedEntry::new(
            &descriptor,
            0,
            Work::Receive,
            Expected::Success,
        ));
        self.vi
            .post_recv(descriptor)
            .map_err(|refused| format!("posting a receive: {refused}"))?;
        // After the post: the count is advertised to the peer as credits.
        slot.shared.receives_posted.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }
}

/// Takes and checks completed receives.
pub(crate) struct ReceiveReap {
    pub(crate) vi: Arc<Vi>,
    /// The stream of the remote side.
    pub(crate) stream: Stream,
    pub(crate) window: Window,
    /// The number of the next message; a lower limit on unreliable connections.
    pub(crate) next: u32,
    /// Checked writes.
    writes: u32,
    /// Received messages.
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
    pub(crate) flushed: u32,
    /// Partially received messages since the last complete one; each has used a receive.
    partial: u32,
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
            partial: 0,
        }
    }

    /// Resets the state for a new connection.
    pub(crate) fn begin(&mut self, stream: Stream) {
        self.stream = stream;
        (
            self.next,
            self.writes,
            self.messages,
            self.bytes,
            self.flushed,
            self.partial,
        ) = (0, 0, 0, 0, 0, 0);
    }

    /// Takes and checks one completed receive. Returns false if there is none within `wait`.
    pub(crate) fn step(
        &mut self,
        slot: &Slot,
        context: &NicContext,
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
            Err(error) => return Err(format!("receive queue: {error}").into()),
        };
        slot.receives.take(&completed)?;
        let status = completed.status;
        if status.is_ok() {
            if self.flushed > 0 {
                return Err("a message after a flushed receive".into());
            }
            self.check(slot, &completed)
                .map_err(|error| format!("message {} of {:?}: {error}", self.next, self.stream))?;
        } else if status.is_transport_error() && !slot.config.is_reliable() {
            // The connection continues.
            self.partial += 1;
        } else if status.is_flushed() || status.is_transport_error() {
            // A transport error: the end of the connection has interrupted a message.
            self.flushed += 1;
            slot.shared.is_broken.store(true, Ordering::SeqCst);
        } else {
            return Err(format!("a receive failed: {status}").into());
        }
        let mut descriptor = completed.descriptor;
        if rng.chance(4) {
            context.attach_memory(&mut descriptor, &slot.config, rng)?;
        }
        lock(&slot.idle_receives).push(descriptor);
        slot.shared.count_progress();
        Ok(true)
    }

    /// Checks the number and all bytes of a message.
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
                mark: Mark::Control,
                ..
            }) => {
                if length_bytes != Header::BYTES || is_write {
                    return Err(format!("a control message of {length_bytes} bytes").into());
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
            self.apply_header(slot, &header, number, length_bytes)?;
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
        let header = Header::decode(&bytes).ok_or("the header is damaged")?;
        if header.stream != self.stream {
            return Err(format!("the header is of {:?}", header.stream).into());
        }
        Ok(Some(header))
    }

    /// Checks the number of a message: reliable connections deliver all messages in order, unreliable ones may lose
    /// some.
    fn count(&mut self, slot: &Slot, number: u32) -> Result<(), Failure> {
        let missing = number.wrapping_sub(self.next);
        let limit = if slot.config.is_reliable() {
            0
        } else {
            slot.config.receives as u32 * 64
        };
        if missing > limit {
            return Err(format!("number {number} arrived").into());
        }
        let partial = std::mem::take(&mut self.partial);
        let lost = (missing.checked_sub(partial))
            .ok_or_else(|| format!("number {number} arrived after {partial} partial messages"))?;
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
        let plan = self.stream.message(&slot.config, number);
        let length_bytes = completed.length_bytes();
        let planned_bytes = match (plan.kind, immediate) {
            (
                MessageKind::Write,
                Some(Immediate {
                    mark: Mark::Write,
                    writes,
                    ..
                }),
            ) if is_write => {
                self.stream
                    .write(&slot.config, writes.wrapping_sub(1))
                    .length_bytes
            }
            (MessageKind::Send, None) if !plan.has_immediate && !is_write => plan.length_bytes,
            (
                MessageKind::Send,
                Some(Immediate {
                    mark: Mark::Data, ..
                }),
            ) if plan.has_immediate && !is_write => plan.length_bytes,
            (MessageKind::Send | MessageKind::Write, _) => {
                return Err(format!(
                    "expected {plan:?}, received {immediate:?}, as a write: {is_write}"
                )
                .into());
            }
        };
        if length_bytes != planned_bytes {
            return Err(format!("{length_bytes} bytes instead of {planned_bytes}").into());
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
            damage = damage.or(found.map(|index| at + skip + index));
        });
        match damage {
            Some(at) => Err(format!("byte {at} of {length_bytes} is wrong").into()),
            None => Ok(()),
        }
    }

    /// Checks a header, and stores the credits and addresses in it.
    fn apply_header(
        &self,
        slot: &Slot,
        header: &Header,
        number: u32,
        length_bytes: usize,
    ) -> Result<(), Failure> {
        if (header.number, header.length_bytes) != (number, length_bytes as u32) {
            return Err(format!("wrong header: {header:?}").into());
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

    /// Checks the writes before this message.
    fn check_writes(&mut self, slot: &Slot, writes: u32, is_write: bool) -> Result<(), Failure> {
        while self.writes < writes {
            let is_last = self.writes + 1 == writes;
            // On an unreliable connection, writes whose message did not arrive are lost.
            if slot.config.is_reliable() || (is_last && is_write) {
                self.window.check(&self.stream, &slot.config, self.writes)?;
            } else {
                self.window.forget(self.writes);
            }
            self.writes += 1;
        }
        slot.shared.checked.store(self.writes, Ordering::SeqCst);
        Ok(())
    }
}

/// Calls `each` for the received bytes of each segment.
fn each_piece(completed: &Completed, mut each: impl FnMut(usize, &[u8])) {
    let mut at = 0;
    for index in 0..completed.descriptor.segment_count() {
        let buffer = completed.descriptor.buffer(index);
        let take = buffer.len().min(completed.length_bytes() - at);
        each(at, &buffer[..take]);
        at += take;
    }
}
