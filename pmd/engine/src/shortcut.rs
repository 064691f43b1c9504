//! Messages between two VIs of this engine, moved without frames.
//!
//! A connection is made by frames through the port, as any other. If its client is found to be a VI
//! of this engine when the server's half is made, all its messages are moved from memory to memory
//! by the sender's [`Engine::pump`], in both directions, so that each direction stays in order. A
//! message is opened, fails and is delivered at the receiver as one that arrives in frames;
//! identifiers, responses and recovery are omitted.
//!
//! Nothing is in flight: a message completes at both sides in the call that moves its last bytes,
//! reads included. So completions are in posting order at every level, the receiver's first, and a
//! fence has nothing to wait for.
//!
//! Both sides leave the connection together, in one call, whether one disconnects, breaks, or
//! fails; no frame is needed. Outcomes of a message that is partially moved:
//!
//! | cause | its send descriptor | its receive descriptor, if it took one |
//! | --- | --- | --- |
//! | either side disconnects, or breaks for another reason | flushed | flushed |
//! | the send memory becomes invalid | PROTECTION, PARTIAL | flushed; at Unreliable Delivery TRANSPORT, PARTIAL |
//! | the target memory becomes invalid | Reliable Reception: REMOTE_DESCRIPTOR or RDMA_PROTECTION; else complete | PROTECTION |
//! | the source memory becomes invalid | RDMA_PROTECTION, PARTIAL | |
//!
//! As over frames, any failure at a reliable level breaks the connection, and at Unreliable
//! Delivery the remaining bytes of the message are dropped.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::message_request;
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::{CallError, ReliabilityLevel, ViState};

use crate::counters::Counter;
use crate::endpoint::{Phase, RxKind, RxMessage};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{AsyncError, EngineIo, Moved, Operation, SendWork, Status};
use crate::receive::ReceiveFailure;
use crate::transmit::{OperationKind, Pumped, SendFailure, Step};

/// All parts of a message but the last are multiples of this, so that no part ends inside a word.
const LINE_BYTES: u32 = 64;

/// One side of a connection within this engine. Both sides have one, or neither.
#[derive(Debug)]
pub(crate) struct Shortcut {
    /// The VI on the other side.
    pub(crate) other: ViIndex,
    /// The message that is being moved from this VI or, for a read, to it.
    transfer: Option<Transfer>,
}

/// A message whose descriptor is the next on its send queue.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    work: SendWork,
    moved_bytes: u32,
}

impl Engine {
    /// Enables the shortcut after the server's half of a connection was made, if the client is a VI
    /// of this engine.
    pub(crate) fn enable_shortcut(&mut self, server: ViIndex) {
        let Some(client) = self.local_client(server) else {
            return;
        };
        for (vi, other) in [(server, client), (client, server)] {
            if let Some(ep) = self.endpoint_mut(vi) {
                let transfer = None;
                ep.shortcut = Some(Box::new(Shortcut { other, transfer }));
                // No message frame is accepted: no peer has address 0.
                ep.peer = NPortId::default();
                ep.rx.recovery = None;
                if let Some(tx) = &mut ep.tx {
                    tx.recovery = None;
                }
            }
        }
    }

    /// Returns the VI that requested this connection, if it is one of this engine. Both sides must
    /// name each other, because another port can claim our address.
    fn local_client(&self, server: ViIndex) -> Option<ViIndex> {
        let client = self.local_peer(server).filter(|_| self.config.shortcut)?;
        let phase = &self.endpoint(client)?.phase;
        matches!(phase, Phase::AwaitResponse3(_)).then_some(client)
    }

    /// Does the work of [`Engine::pump`] for such a connection.
    pub(crate) fn pump_shortcut<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        budget: u32,
        io: &mut I,
    ) -> Pumped {
        let mut room_bytes = self.config.shortcut_bytes.max(LINE_BYTES);
        for _ in 0..budget {
            let shortcut = self.endpoint(vi).and_then(|ep| ep.shortcut.as_deref());
            let Some(Shortcut { other, transfer }) = shortcut else {
                return Pumped::Idle;
            };
            let other = *other;
            let step = match *transfer {
                Some(transfer) => {
                    self.continue_transfer(now_ns, vi, other, transfer, &mut room_bytes, io)
                }
                None => self.start_transfer(now_ns, vi, other, io),
            };
            match step {
                Step::Next if io.is_failing(vi) || io.is_failing(other) => return Pumped::Idle,
                Step::Next if room_bytes < LINE_BYTES => return Pumped::More,
                Step::Next => {}
                Step::Nothing | Step::Broken => return Pumped::Idle,
                Step::Blocked => return Pumped::Blocked,
            }
        }
        Pumped::More
    }

    fn set_transfer(&mut self, vi: ViIndex, transfer: Option<Transfer>) {
        let ep = self.endpoint_mut(vi);
        if let Some(shortcut) = ep.and_then(|ep| ep.shortcut.as_deref_mut()) {
            shortcut.transfer = transfer;
        }
    }

    /// Starts the next descriptor at the other VI, as its first frame would.
    fn start_transfer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        io: &mut I,
    ) -> Step {
        let Some(mut work) = io.next_send(vi) else {
            return Step::Nothing;
        };
        let is_read = matches!(work.operation, Operation::Read { .. });
        if is_read
            && work.fault.is_ok()
            && self.level_of(vi) == Some(ReliabilityLevel::UnreliableDelivery)
        {
            work.fault = Status::FORMAT;
        }
        if !work.fault.is_ok() {
            let connected = self.refuse_local(now_ns, vi, work, io);
            return if connected { Step::Next } else { Step::Broken };
        }
        if self.state(other) == Some(ViState::ConnectPending) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(other, io);
        }
        let moved_bytes = 0;
        self.set_transfer(vi, Some(Transfer { work, moved_bytes }));
        if is_read {
            self.open_read(now_ns, other, &work, io)
        } else {
            self.open_message(now_ns, vi, other, &work, io)
        }
    }

    /// Opens a send or write at the other VI.
    fn open_message<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        work: &SendWork,
        io: &mut I,
    ) -> Step {
        let header = header_of(work);
        let Some(ep) = self.endpoint_mut(other) else {
            return Step::Broken;
        };
        let max_transfer_bytes = ep.params.max_transfer_bytes;
        ep.rx.message = Some(RxMessage {
            msg_id: 0,
            ox_id: 0,
            seq_id: 0,
            next_seq_cnt: 0,
            placed_bytes: 0,
            immediate: work.immediate,
            kind: RxKind::Discard,
            opcode: header.opcode,
        });
        let opened = if header.opcode == Opcode::WriteRequest {
            self.open_write(now_ns, other, &header, io)
        } else {
            self.open_receive(now_ns, other, io)
        };
        let kind = self
            .endpoint(other)
            .and_then(|ep| Some(ep.rx.message?.kind));
        match kind.filter(|_| opened) {
            None => Step::Broken,
            Some(RxKind::Receive { capacity_bytes })
                if work.length_bytes > capacity_bytes.min(max_transfer_bytes) =>
            {
                self.fail_at_receiver(now_ns, vi, other, ReceiveFailure::TooLong, work, io)
            }
            Some(RxKind::Receive { .. } | RxKind::Write { .. }) => Step::Next,
            Some(RxKind::Discard) => {
                self.drop_remainder(vi, other, work, io);
                Step::Next
            }
        }
    }

    /// Opens a read at the other VI.
    fn open_read<I: EngineIo>(
        &mut self,
        now_ns: u64,
        other: ViIndex,
        work: &SendWork,
        io: &mut I,
    ) -> Step {
        if let Some(reason) = self.refuses_read(now_ns, other, &header_of(work), io) {
            return self.refuse_transfer_read(now_ns, other, reason, io);
        }
        self.counters.count(Counter::RxMessages);
        Step::Next
    }

    /// Moves the next bytes of the open message and completes it with the last ones.
    fn continue_transfer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        transfer: Transfer,
        room_bytes: &mut u32,
        io: &mut I,
    ) -> Step {
        let Transfer { work, moved_bytes } = transfer;
        let left_bytes = work.length_bytes - moved_bytes;
        let bytes = if left_bytes <= *room_bytes {
            left_bytes
        } else {
            *room_bytes & !(LINE_BYTES - 1)
        };
        match io.move_message(vi, other, work.operation, moved_bytes, bytes) {
            Moved::All => {}
            Moved::LocalInvalid => return self.source_invalid(now_ns, vi, other, moved_bytes, io),
            Moved::RemoteInvalid => {
                return match work.operation {
                    Operation::Read { .. } => {
                        let reason = MessageReason::ReadProtection;
                        self.refuse_transfer_read(now_ns, other, reason, io)
                    }
                    Operation::Send | Operation::Write { .. } => {
                        let failure = ReceiveFailure::Protection;
                        self.fail_at_receiver(now_ns, vi, other, failure, &work, io)
                    }
                };
            }
        }
        *room_bytes -= bytes;
        let moved_bytes = moved_bytes + bytes;
        if moved_bytes < work.length_bytes {
            self.set_transfer(vi, Some(Transfer { work, moved_bytes }));
            return Step::Next;
        }
        let message = self.endpoint_mut(other).and_then(|ep| ep.rx.message.take());
        if let Some(mut done) = message {
            done.placed_bytes = moved_bytes;
            self.deliver(other, &done, io);
        }
        self.counters.count(Counter::ShortcutMessages);
        self.counters
            .add(Counter::ShortcutBytes, u64::from(moved_bytes));
        self.complete_transfer(vi, &work, io);
        Step::Next
    }

    /// Completes the send descriptor, whatever the receiver did with the message.
    fn complete_transfer<I: EngineIo>(&mut self, vi: ViIndex, work: &SendWork, io: &mut I) {
        self.set_transfer(vi, None);
        self.counters.count(Counter::TxMessages);
        io.complete_send(vi, Status::OK, work.length_bytes);
    }

    /// Drops the remaining bytes of a message that failed at the receiver (Unreliable Delivery).
    fn drop_remainder<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        other: ViIndex,
        work: &SendWork,
        io: &mut I,
    ) {
        if let Some(ep) = self.endpoint_mut(other) {
            ep.rx.message = None;
        }
        self.complete_transfer(vi, work, io);
    }

    /// Fails a send or write at the other VI.
    #[cold]
    fn fail_at_receiver<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        failure: ReceiveFailure,
        work: &SendWork,
        io: &mut I,
    ) -> Step {
        if !self.fail_message(now_ns, other, failure, io) {
            return Step::Broken;
        }
        self.drop_remainder(vi, other, work, io);
        Step::Next
    }

    /// Refuses a read at the other VI (VIPL 3.8.1): both consumers are notified.
    #[cold]
    fn refuse_transfer_read<I: EngineIo>(
        &mut self,
        now_ns: u64,
        other: ViIndex,
        reason: MessageReason,
        io: &mut I,
    ) -> Step {
        self.counters.count(Counter::DropRdmaProtection);
        io.report(other, AsyncError::RdmaReadProtection);
        self.break_local(now_ns, other, reason, io);
        Step::Broken
    }

    /// Fails a message whose send descriptor's memory became invalid.
    #[cold]
    fn source_invalid<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        moved_bytes: u32,
        io: &mut I,
    ) -> Step {
        let mut status = Status::PROTECTION;
        if moved_bytes > 0 {
            status = status.with(Status::PARTIAL);
        }
        self.set_transfer(vi, None);
        io.complete_send(vi, status, 0);
        if self.level_of(vi) == Some(ReliabilityLevel::UnreliableDelivery) {
            // The remaining bytes will not arrive.
            self.fail_message(now_ns, other, ReceiveFailure::Incomplete, io);
            return Step::Next;
        }
        self.break_local(now_ns, vi, MessageReason::ProtocolError, io);
        Step::Broken
    }

    /// Ends this side after the other one left the connection with `reason`, or broke.
    pub(crate) fn end_shortcut<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: Option<MessageReason>,
        io: &mut I,
    ) {
        let ep = self.endpoint_mut(vi);
        let Some(shortcut) = ep.and_then(|ep| ep.shortcut.take()) else {
            return;
        };
        let failure = reason.and_then(SendFailure::of);
        if let Some((transfer, failure)) = shortcut.transfer.zip(failure) {
            self.complete_failed(vi, &transfer, failure, io);
        }
        if self.state(vi) == Some(ViState::ConnectPending) {
            // The server's half was made, so the connection existed, although RESP3 has not
            // arrived.
            self.client_connected(vi, io);
        }
        let loss = if reason == Some(MessageReason::Disconnected) {
            AsyncError::Disconnected
        } else {
            AsyncError::ConnectionLost
        };
        self.ended_by_peer(now_ns, vi, loss, CallError::Timeout, io);
    }

    /// Completes the message that was being moved with a failure of the other VI, if the failure
    /// applies to it. At Reliable Delivery only reads get such an error (VIPL 5.2).
    fn complete_failed<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        transfer: &Transfer,
        failure: SendFailure,
        io: &mut I,
    ) {
        let kind = OperationKind::of(&transfer.work);
        if !failure.applies_to(kind) {
            return;
        }
        if kind != OperationKind::Read
            && self.level_of(vi) != Some(ReliabilityLevel::ReliableReception)
        {
            self.complete_transfer(vi, &transfer.work, io);
            return;
        }
        let mut status = failure.status();
        if kind == OperationKind::Read && transfer.moved_bytes > 0 {
            status = status.with(Status::PARTIAL);
        }
        io.complete_send(vi, status, 0);
    }
}

/// Returns the device header that the first frame of this message would have.
fn header_of(work: &SendWork) -> DeviceHeader {
    let (opcode, (rmt_va, rmt_va_handle)) = match work.operation {
        Operation::Send => (Opcode::SendRequest, (0, 0)),
        Operation::Write { remote } => (Opcode::WriteRequest, remote),
        Operation::Read { remote } => (Opcode::ReadRequest, remote),
    };
    let immediate = work.immediate.map_or(0, |_| message_request::IMMEDIATE);
    DeviceHeader {
        handle: 0,
        opcode,
        flags: immediate,
        msg_id: 0,
        parameter: work.immediate.unwrap_or(0),
        rmt_va,
        rmt_va_handle,
        tot_len: work.length_bytes,
    }
}
