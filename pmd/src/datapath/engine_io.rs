//! The engine's I/O trait implemented on queues, memory and port.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameHeader, Payload};
use vi_core::completion::{CompletionStatus, complete_valid_head};
use vi_core::descriptor::{control, send_operation};
use vi_core::events::AsyncEvent;
use vi_core::memory::{Access, copy};
use vi_core::posted_descriptor::{Cursor, still_valid};
use vi_core::waiters::Event;
use vi_engine::{CopyResult, DataFrame, Direct, DirectConnection, EngineIo, Moved, Transmit};
use vi_types::{
    AsyncError, Claim, Completion, Operation, QueueIo, QueueKind, SendWork, Status, ViIndex,
    ViState, Waiter, status,
};

use super::{Datapath, Memory, Slot, client_memory, path_of, shortcut};
use crate::call_waiters::Object;

impl QueueIo for Datapath {
    #[inline]
    fn next_send(&mut self, vi: ViIndex) -> Option<SendWork> {
        let regions = self.regions;
        let path = self.vi(vi)?;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { path.shared.send.ahead(path.in_flight) }?;
        let mut fault = slot.fault;
        if fault == 0 && !still_valid(slot, regions, path.tag, slot.access()) {
            fault = status::PROTECTION_ERROR;
        }
        path.send_cursor = Cursor::default();
        Some(work_of(slot, fault))
    }

    #[inline]
    fn keep_in_flight(&mut self, vi: ViIndex) {
        if let Some(path) = self.vi(vi) {
            path.in_flight += 1;
        }
    }

    #[inline]
    fn complete_send(&mut self, vi: ViIndex, outcome: Status, length_bytes: u32) {
        let Some(path) = self.vi(vi) else {
            return;
        };
        // SAFETY: we hold the backend lock; the reference is not kept.
        let op = unsafe { path.shared.send.head() }.map_or(0, |slot| send_operation(slot.control));
        self.complete(vi, QueueKind::Send, outcome.0 | op, length_bytes, None);
    }

    #[inline]
    fn is_failing(&self, vi: ViIndex) -> bool {
        !self.failed.is_empty() && self.failed.contains(&vi)
    }

    #[inline]
    fn claim_receive(&mut self, vi: ViIndex) -> Claim {
        let regions = self.regions;
        let Some(path) = self.vi(vi) else {
            return Claim::Empty;
        };
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let Some(slot) = (unsafe { path.shared.recv.ahead(path.claimed) }) else {
            return self.claim_submitted(vi);
        };
        if slot.fault != 0 {
            return Claim::Fault(Status(slot.fault));
        }
        if !still_valid(slot, regions, path.tag, Access::Write) {
            return Claim::Fault(Status::PROTECTION);
        }
        path.claimed += 1;
        Claim::Ready {
            capacity_bytes: slot.length_bytes,
        }
    }

    #[inline(always)]
    fn place_receive(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        let (path, memory) = self.parts(vi);
        let Some(path) = path.filter(|path| ahead < path.claimed) else {
            return false;
        };
        let queue = &path.shared.recv;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let Some(slot) = (unsafe { queue.ahead(ahead) }) else {
            return false;
        };
        if !still_valid(slot, memory.regions, path.tag, Access::Write) {
            return false;
        }
        let cursor = path.recv_cursor.of(queue.sequence(ahead));
        // SAFETY: the segments were found valid under the backend lock, held since.
        unsafe { memory.scatter(path.tag, cursor, slot, offset_bytes, payload) }
    }

    #[inline]
    fn complete_receive(&mut self, vi: ViIndex, completion: Completion) {
        self.arrived = true;
        self.complete(
            vi,
            QueueKind::Receive,
            received_word(&completion),
            completion.length_bytes,
            completion.immediate,
        );
    }

    fn names_region(&mut self, vi: ViIndex, handle: u32) -> bool {
        let regions = self.regions;
        let tag = self.vi(vi).map(|path| path.tag);
        tag.is_some_and(|tag| regions.has_tag(handle, tag))
    }

    #[inline]
    fn place_rdma_write(
        &mut self,
        vi: ViIndex,
        (address, handle): (u64, u32),
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        self.arrived = true;
        let (path, memory) = self.parts(vi);
        let Some(path) = path else {
            return false;
        };
        let Some(at) = address.checked_add(u64::from(offset_bytes)) else {
            return false;
        };
        let (tag, length) = (path.tag, payload.len() as u64);
        if tag.is_client() {
            // SAFETY: we hold the backend lock.
            return unsafe { memory.place_for_client((tag, at, handle), payload) };
        }
        let regions = memory.regions;
        if !regions.check(handle, tag, at, length, Access::RemoteWrite) {
            return false;
        }
        // SAFETY: checked under the backend lock, held since; deregistration needs it.
        unsafe { copy::write_in_order(at, payload) };
        true
    }

    fn place_read(&mut self, vi: ViIndex, ahead: u32, offset_bytes: u32, payload: &[u8]) -> bool {
        self.arrived = true;
        self.place_in_flight(vi, ahead, offset_bytes, payload)
    }

    fn resume(&mut self, vi: ViIndex) {
        self.enqueue(vi);
    }

    fn flush_sends(&mut self, vi: ViIndex) {
        self.flush_queue(vi, QueueKind::Send);
    }

    fn flush_receives(&mut self, vi: ViIndex) {
        self.flush_queue(vi, QueueKind::Receive);
    }

    fn set_state(&mut self, vi: ViIndex, state: ViState) {
        if state != ViState::Connected {
            self.end_direct_access(vi);
        }
        if let Some(path) = self.vi(vi) {
            path.shared.set_state(state);
            if state == ViState::Error && !self.errored.contains(&vi) {
                self.errored.push_back(vi);
            }
        }
        self.pending_events |= Event::on_connection(vi.0);
        self.calls.notify(Object::Connection(vi));
    }

    fn report(&mut self, vi: ViIndex, error: AsyncError) {
        let Some(path) = path_of(&mut self.vis, vi) else {
            return;
        };
        let (nic, handle) = (path.shared.nic, path.handle);
        let event = AsyncEvent::of_vi(handle, path.shared.nic_handle(), error);
        match (path.client, &mut self.served) {
            (Some(client), Some(served)) => served.report_of_vi(client, path, event),
            _ => self.events.push(event),
        }
        if error == AsyncError::ConnectionLost && self.lowered_mtu.is_some() {
            self.note_break_by_mtu(nic, handle);
        }
    }

    fn control_event(&mut self, waiter: Waiter) {
        self.pending_events |= match waiter {
            Waiter::Outcome(vi) => {
                self.calls.notify(Object::Connection(vi));
                Event::on_connection(vi.0)
            }
            Waiter::Request(listener) => {
                self.calls.notify(Object::Listener(listener));
                Event::on_listener(listener)
            }
            Waiter::All => {
                self.calls.notify_all();
                Event::CONTROL
            }
        };
    }

    fn random(&mut self) -> u32 {
        self.random.word()
    }
}

impl EngineIo for Datapath {
    #[inline]
    fn transmit_data(&mut self, vi: ViIndex, frame: DataFrame<'_>, payload_bytes: u32) -> Transmit {
        let range = (frame.per_frame.relative_offset, payload_bytes);
        self.transmit(vi, frame, |buffer, path, memory| {
            // SAFETY: we hold the backend lock; the reference ends with this call.
            let slot = unsafe { path.shared.send.ahead(path.in_flight) }?;
            if !still_valid(slot, memory.regions, path.tag, slot.access()) {
                return None;
            }
            // SAFETY: the segments were found valid just now, and we hold the backend lock.
            unsafe { memory.payload(path.tag, &mut path.send_cursor, slot, range, buffer) }
        })
    }

    #[inline(always)]
    fn transmit_payload(&mut self, frame: DataFrame<'_>, payload: Payload<'_>) -> Transmit {
        let frame = frame.with_payload(payload, self.prefetch_bytes);
        self.transmit_other(frame.template.dst(), |out| frame.emit(out).ok())
    }

    fn in_flight_work(&mut self, vi: ViIndex, ahead: u32) -> Option<SendWork> {
        let path = self.vi(vi).filter(|path| ahead <= path.in_flight)?;
        // SAFETY: we hold the backend lock; the reference ends with this call.
        let slot = unsafe { path.shared.send.ahead(ahead) }?;
        Some(work_of(slot, slot.fault))
    }

    fn retransmit_data(
        &mut self,
        vi: ViIndex,
        ahead: u32,
        frame: DataFrame<'_>,
        payload_bytes: u32,
    ) -> Transmit {
        let range = (frame.per_frame.relative_offset, payload_bytes);
        self.transmit(vi, frame, |buffer, path, memory| {
            let queue = &path.shared.send;
            // SAFETY: we hold the backend lock; the reference ends with this call.
            let slot = unsafe { queue.ahead(ahead) }.filter(|_| ahead <= path.in_flight)?;
            if !still_valid(slot, memory.regions, path.tag, slot.access()) {
                return None;
            }
            let cursor = path.again_cursor.of(queue.sequence(ahead));
            // SAFETY: the segments were found valid just now, and we hold the backend lock.
            unsafe { memory.payload(path.tag, cursor, slot, range, buffer) }
        })
    }

    fn transmit_control(&mut self, header: &FrameHeader, payload: &[u8]) -> Transmit {
        // A control frame is at most 268 bytes; only a port that cannot carry FCoE at all
        // has no room for it, and such a port cannot be opened.
        self.transmit_other(header.dst, |out| {
            header.emit_frame(payload, Eof::T, out).ok()
        })
    }

    #[inline(always)]
    fn receive_whole(&mut self, vi: ViIndex, payload: &[u8], immediate: Option<u32>) -> bool {
        let Self {
            vis,
            regions,
            mover,
            served,
            ..
        } = self;
        let memory = Memory { regions, mover };
        let Some(path) = path_of(vis, vi).filter(|path| path.claimed == 0) else {
            return false;
        };
        let queue = &path.shared.recv;
        // SAFETY: we hold the backend lock; the reference ends before the completion.
        let Some(slot) = (unsafe { queue.head() }) else {
            return false;
        };
        if slot.fault != 0
            || payload.len() > slot.length_bytes as usize
            || !still_valid(slot, memory.regions, path.tag, Access::Write)
        {
            return false;
        }
        let bytes = payload.len() as u32;
        let (tag, cursor) = (path.tag, &mut Cursor::default());
        let is_placed = if tag.is_client() && slot.mapped_address(0, bytes).is_none() {
            let (receiver, served) = ((&*path, &mut *slot), served.as_deref_mut());
            let from = payload.as_ptr().expose_provenance() as u64;
            // SAFETY: found valid under the backend lock, held since; all of the payload can be read.
            unsafe { client_memory::receive_inline(receiver, served, memory.regions, from, bytes) }
        } else {
            // SAFETY: the segments were found valid under the backend lock, held since.
            unsafe { memory.scatter(tag, cursor, slot, 0, payload) }
        };
        if !is_placed {
            return false;
        }
        let received = Completion::received(bytes, immediate);
        if tag.is_client() {
            self.complete_receive(vi, received);
            return true;
        }
        let completion = CompletionStatus {
            word: received_word(&received) | status::DONE,
            length_bytes: bytes,
            immediate,
        };
        slot.status = completion.word;
        let address = slot.address;
        // SAFETY: the descriptor was found valid with its segments; the reference to the slot has ended.
        let sequence = unsafe { complete_valid_head(queue, address, completion) };
        let (handle, target) = (path.handle, path.recv_target);
        self.arrived = true;
        self.announce(handle, target, QueueKind::Receive, sequence);
        true
    }

    #[inline]
    fn write_whole(&mut self, vi: ViIndex, target: (u64, u32), payload: &[u8]) -> bool {
        let is_own = self.vi(vi).is_some_and(|path| !path.tag.is_client());
        is_own && self.place_rdma_write(vi, target, 0, payload)
    }

    #[inline]
    fn check_rdma_write(&mut self, vi: ViIndex, target: &DeviceHeader) -> bool {
        let regions = self.regions;
        let Some(path) = self.vi(vi) else {
            return false;
        };
        regions.check(
            target.rmt_va_handle,
            path.tag,
            target.rmt_va,
            u64::from(target.tot_len),
            Access::RemoteWrite,
        )
    }

    fn check_rdma_read(&mut self, vi: ViIndex, source: &DeviceHeader) -> bool {
        let bytes = u64::from(source.tot_len);
        self.check_remote_read(vi, (source.rmt_va, source.rmt_va_handle), bytes)
    }

    fn transmit_read(
        &mut self,
        vi: ViIndex,
        frame: DataFrame<'_>,
        source: (u64, u32),
        payload_bytes: u32,
    ) -> Transmit {
        self.send_read(vi, frame, source, payload_bytes)
    }

    fn connected(&mut self, vi: ViIndex, connection: &DirectConnection) {
        self.allow_direct_access(vi, connection);
    }

    // As `access_whole_directly`.
    #[inline(never)]
    fn access_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        part: (u32, u32),
    ) -> Direct {
        self.copy_directly(vi, work, sent, part)
    }

    fn can_access_directly(&mut self, vi: ViIndex, work: &SendWork) -> bool {
        self.reaches_directly(vi, work)
    }

    fn peer_has_handled(&mut self, vi: ViIndex, sent: u32) {
        if let Some(direct) = self.vi(vi).and_then(|path| path.direct.as_mut()) {
            direct.note_handled(sent);
        }
    }

    // A separate function, so that sends do not pay for it.
    #[inline(never)]
    fn access_whole_directly(
        &mut self,
        vi: ViIndex,
        work: &SendWork,
        sent: u32,
        memory: Payload<'_>,
    ) -> bool {
        self.copy_whole_directly(vi, work, sent, memory)
    }

    fn has_later_send(&mut self, vi: ViIndex) -> bool {
        self.vi(vi)
            .is_some_and(|path| path.shared.send.depth() > path.in_flight + 1)
    }

    fn rendezvous_source(&mut self, vi: ViIndex) -> Option<(u64, u32)> {
        self.rendezvous(vi)?.own_source()
    }

    fn can_copy_from_peer(&mut self, vi: ViIndex, source: (u64, u32), message_bytes: u32) -> bool {
        self.rendezvous(vi)
            .is_some_and(|mut rendezvous| rendezvous.can_copy(source, message_bytes))
    }

    fn copy_from_peer(
        &mut self,
        vi: ViIndex,
        source: (u64, u32),
        message_bytes: u32,
        part: (u32, u32),
    ) -> CopyResult {
        match self.rendezvous(vi) {
            Some(mut rendezvous) => rendezvous.copy(source, message_bytes, part),
            None => CopyResult::ConnectionEnded,
        }
    }

    fn end_access(&mut self, vi: ViIndex) {
        self.end_direct_access(vi);
    }

    fn move_message(
        &mut self,
        vi: ViIndex,
        other: ViIndex,
        operation: Operation,
        offset_bytes: u32,
        bytes: u32,
    ) -> Moved {
        let Self {
            vis,
            regions,
            mover,
            served,
            ..
        } = self;
        let (memory, served) = (Memory { regions, mover }, served.as_deref_mut());
        let (between, part) = ((vi, other), (offset_bytes, bytes));
        shortcut::move_part(vis, memory, served, between, operation, part)
    }
}

/// Returns the status word of a completed receive, without [`status::DONE`].
#[inline]
fn received_word(completion: &Completion) -> u32 {
    let mut word = completion.status.0;
    word |= if completion.remote_write {
        status::OP_REMOTE_RDMA_WRITE
    } else {
        status::OP_RECEIVE
    };
    if completion.immediate.is_some() {
        word |= status::IMMEDIATE;
    }
    word
}

/// Returns the work that a posted send descriptor requests.
#[inline]
pub(super) fn work_of(slot: &Slot, fault: u32) -> SendWork {
    let remote = (slot.remote_address, slot.remote_handle);
    SendWork {
        length_bytes: slot.length_bytes,
        immediate: (slot.control & control::IMMEDIATE != 0).then_some(slot.immediate),
        operation: match slot.control & control::OP_MASK {
            control::OP_RDMA_WRITE => Operation::Write { remote },
            control::OP_RDMA_READ => Operation::Read { remote },
            _ => Operation::Send,
        },
        fence: slot.control & control::QFENCE != 0,
        fault: Status(fault),
    }
}
