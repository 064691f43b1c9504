//! Messages between two VIs of this engine, moved without frames.
//!
//! A connection is made by frames through the port, as any other. If its client is found to be a VI
//! of this engine when the server's half is made, all its messages are moved from memory to memory
//! by the sender's [`Engine::pump`](crate::Engine::pump), in both directions, so that each direction stays in order. A
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
use vi_types::{
    AsyncError, MessageDestination, Operation, OperationKind, Pumped, ReliabilityLevel, SendWork,
    Status, ViIndex, ViState,
};

use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::endpoint::Endpoint;
use crate::engine_io::{EngineIo, Moved};
use crate::n_port::NPort;
use crate::reassembly::RxMessage;
use crate::receive::{ReceiveFailure, deliver};
use crate::transmit::{SendFailure, Step};

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

impl Endpoint {
    /// Moves messages to and from `other` without frames from now on.
    pub(crate) fn start_shortcut(&mut self, other: ViIndex) {
        let transfer = None;
        self.shortcut = Some(Box::new(Shortcut { other, transfer }));
        // No message frame is accepted: no peer has address 0.
        self.peer = NPortId::default();
        self.rx.stop_responding();
        if let Some(tx) = &mut self.tx {
            tx.recovery = None;
        }
    }

    /// Ends this side after the other one left the connection with `reason`, or broke.
    pub(crate) fn end_shortcut<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        reason: Option<MessageReason>,
    ) {
        let Some(shortcut) = self.shortcut.take() else {
            return;
        };
        let failure = reason.and_then(SendFailure::of);
        if let Some((transfer, failure)) = shortcut.transfer.zip(failure) {
            complete_failed(cx, self.params.level, &transfer, failure);
        }
        if self.state() == ViState::ConnectPending {
            // The server's half was made, so the connection existed, although RESP3 has not
            // arrived.
            self.client_connected(cx);
        }
        let loss = if reason == Some(MessageReason::Disconnected) {
            AsyncError::Disconnected
        } else {
            AsyncError::ConnectionLost
        };
        self.enter_error(cx, None, loss);
    }

    fn set_transfer(&mut self, transfer: Option<Transfer>) {
        if let Some(shortcut) = self.shortcut.as_deref_mut() {
            shortcut.transfer = transfer;
        }
    }

    /// Opens a send or write of the other side.
    fn open_moved<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        work: &SendWork,
    ) -> Result<MessageDestination, Break> {
        let Some(tx) = self.tx.as_deref_mut() else {
            return Ok(MessageDestination::Discard);
        };
        let (rx, header) = (&mut self.rx, header_of(work));
        rx.reassembly.message = Some(RxMessage {
            msg_id: 0,
            ox_id: 0,
            seq_id: 0,
            next_seq_cnt: 0,
            placed_bytes: 0,
            immediate: work.immediate,
            kind: MessageDestination::Discard,
            opcode: header.opcode,
        });
        rx.claim_destination(tx, cx, &header)?;
        let kind = rx
            .reassembly
            .message
            .map_or(MessageDestination::Discard, |m| m.kind);
        if let MessageDestination::Receive { capacity_bytes } = kind
            && work.length_bytes > capacity_bytes.min(rx.params.max_transfer_bytes)
        {
            rx.fail_message(tx, cx, ReceiveFailure::TooLong)?;
            return Ok(MessageDestination::Discard);
        }
        Ok(kind)
    }

    /// Fails the open message.
    fn fail_moved<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        failure: ReceiveFailure,
    ) -> Result<(), Break> {
        let Some(tx) = self.tx.as_deref_mut() else {
            return Ok(());
        };
        self.rx.fail_message(tx, cx, failure)
    }
}

/// A VI whose messages are moved, the other side, and the engine of both.
pub(crate) struct Pair<'a, I> {
    now_ns: u64,
    vi: ViIndex,
    other: ViIndex,
    endpoints: &'a mut [Option<Endpoint>],
    port: &'a mut NPort,
    io: &'a mut I,
}

impl<'a, I: EngineIo> Pair<'a, I> {
    /// Returns a VI and the other side of its shortcut; `None` without one.
    pub(crate) fn of(
        now_ns: u64,
        vi: ViIndex,
        endpoints: &'a mut [Option<Endpoint>],
        port: &'a mut NPort,
        io: &'a mut I,
    ) -> Option<Self> {
        let endpoint = endpoints.get(vi.slot())?.as_ref()?;
        let other = endpoint.shortcut.as_ref()?.other;
        Some(Self {
            now_ns,
            vi,
            other,
            endpoints,
            port,
            io,
        })
    }

    fn side(&mut self, vi: ViIndex) -> Option<(&mut Endpoint, Context<'_, I>)> {
        Context::split(self.now_ns, vi, self.endpoints, self.port, self.io)
    }

    /// Breaks the connection because of one side.
    #[cold]
    fn break_side(&mut self, vi: ViIndex, broken: Break) -> Step {
        if let Some((ep, mut cx)) = self.side(vi) {
            ep.break_local(&mut cx, broken);
        }
        Step::Nothing
    }

    /// Does the work of [`Engine::pump`](crate::Engine::pump).
    pub(crate) fn pump(mut self, budget: u32) -> Pumped {
        let mut room_bytes = self.port.config.shortcut_bytes.max(LINE_BYTES);
        for _ in 0..budget {
            let Some((ep, _)) = self.side(self.vi) else {
                return Pumped::Idle;
            };
            let Some(shortcut) = ep.shortcut.as_deref() else {
                return Pumped::Idle;
            };
            let step = match shortcut.transfer {
                Some(transfer) => self.continue_transfer(transfer, &mut room_bytes),
                None => self.start_transfer(),
            };
            match step {
                Step::Next if self.io.is_failing(self.vi) || self.io.is_failing(self.other) => {
                    return Pumped::Idle;
                }
                Step::Next if room_bytes < LINE_BYTES => return Pumped::More,
                Step::Next => {}
                Step::Nothing | Step::Enough | Step::Copied | Step::Break(_) => {
                    return Pumped::Idle;
                }
                Step::Blocked => return Pumped::Blocked,
            }
        }
        Pumped::More
    }

    /// Starts the next descriptor at the other VI, as its first frame would.
    fn start_transfer(&mut self) -> Step {
        let Some(mut work) = self.io.next_send(self.vi) else {
            return Step::Nothing;
        };
        let Some((ep, cx)) = self.side(self.vi) else {
            return Step::Nothing;
        };
        let unreliable = ep.params.level == ReliabilityLevel::UnreliableDelivery;
        let is_read = matches!(work.operation, Operation::Read { .. });
        if is_read && work.fault.is_ok() && unreliable {
            work.fault = Status::FORMAT;
        }
        if !work.fault.is_ok() {
            cx.io.complete_send(cx.vi, work.fault, 0);
            return if unreliable {
                Step::Next
            } else {
                self.break_side(self.vi, Break(MessageReason::ProtocolError))
            };
        }
        let transfer = Transfer {
            work,
            moved_bytes: 0,
        };
        ep.set_transfer(Some(transfer));
        let Some((ep, mut cx)) = self.side(self.other) else {
            return Step::Nothing;
        };
        if ep.state() == ViState::ConnectPending {
            // The first message implies RESP3 [FCVI P-12].
            ep.client_connected(&mut cx);
        }
        if is_read {
            if let Some(reason) = ep.rx.refuses_read(&mut cx, &header_of(&work)) {
                return self.refuse_read(reason);
            }
            cx.count(Counter::RxMessages);
            return Step::Next;
        }
        match ep.open_moved(&mut cx, &work) {
            Ok(MessageDestination::Discard) => self.drop_remainder(&work),
            Ok(MessageDestination::Receive { .. } | MessageDestination::Write { .. }) => Step::Next,
            Err(broken) => self.break_side(self.other, broken),
        }
    }

    /// Moves the next bytes of the open message and completes it with the last ones.
    fn continue_transfer(&mut self, transfer: Transfer, room_bytes: &mut u32) -> Step {
        let Transfer { work, moved_bytes } = transfer;
        let left_bytes = work.length_bytes - moved_bytes;
        let bytes = if left_bytes <= *room_bytes {
            left_bytes
        } else {
            *room_bytes & !(LINE_BYTES - 1)
        };
        let (vi, other, operation) = (self.vi, self.other, work.operation);
        match self
            .io
            .move_message(vi, other, operation, moved_bytes, bytes)
        {
            Moved::All => {}
            Moved::LocalInvalid => return self.source_invalid(moved_bytes),
            Moved::RemoteInvalid => {
                return match operation {
                    Operation::Read { .. } => self.refuse_read(MessageReason::ReadProtection),
                    Operation::Send | Operation::Write { .. } => self.target_invalid(&work),
                };
            }
        }
        *room_bytes -= bytes;
        let moved_bytes = moved_bytes + bytes;
        if moved_bytes < work.length_bytes {
            if let Some((ep, _)) = self.side(vi) {
                ep.set_transfer(Some(Transfer { work, moved_bytes }));
            }
            return Step::Next;
        }
        if let Some((ep, mut cx)) = self.side(other)
            && let Some(mut done) = ep.rx.reassembly.message.take()
        {
            done.placed_bytes = moved_bytes;
            deliver(&mut cx, &done);
        }
        let counters = &mut self.port.counters;
        counters.count(Counter::ShortcutMessages);
        counters.add(Counter::ShortcutBytes, u64::from(moved_bytes));
        self.complete_transfer(&work)
    }

    /// Completes the send descriptor, whatever the receiver did with the message.
    fn complete_transfer(&mut self, work: &SendWork) -> Step {
        if let Some((ep, mut cx)) = self.side(self.vi) {
            ep.set_transfer(None);
            cx.count(Counter::TxMessages);
            cx.io.complete_send(cx.vi, Status::OK, work.length_bytes);
        }
        Step::Next
    }

    /// Drops the remaining bytes of a message that failed at the receiver (Unreliable Delivery).
    fn drop_remainder(&mut self, work: &SendWork) -> Step {
        if let Some((ep, _)) = self.side(self.other) {
            ep.rx.reassembly.message = None;
        }
        self.complete_transfer(work)
    }

    /// Fails a send or write whose target at the other VI became invalid.
    #[cold]
    fn target_invalid(&mut self, work: &SendWork) -> Step {
        let Some((ep, mut cx)) = self.side(self.other) else {
            return Step::Nothing;
        };
        match ep.fail_moved(&mut cx, ReceiveFailure::Protection) {
            Ok(()) => self.drop_remainder(work),
            Err(broken) => self.break_side(self.other, broken),
        }
    }

    /// Refuses a read at the other VI (VIPL 3.8.1): both consumers are notified.
    #[cold]
    fn refuse_read(&mut self, reason: MessageReason) -> Step {
        self.port.counters.count(Counter::DropRdmaProtection);
        self.io.report(self.other, AsyncError::RdmaReadProtection);
        self.break_side(self.other, Break(reason))
    }

    /// Fails a message whose send descriptor's memory became invalid.
    #[cold]
    fn source_invalid(&mut self, moved_bytes: u32) -> Step {
        let mut status = Status::PROTECTION;
        if moved_bytes > 0 {
            status = status.with(Status::PARTIAL);
        }
        let Some((ep, cx)) = self.side(self.vi) else {
            return Step::Nothing;
        };
        ep.set_transfer(None);
        cx.io.complete_send(cx.vi, status, 0);
        if ep.params.level != ReliabilityLevel::UnreliableDelivery {
            return self.break_side(self.vi, Break(MessageReason::ProtocolError));
        }
        // The remaining bytes will not arrive.
        let Some((ep, mut cx)) = self.side(self.other) else {
            return Step::Nothing;
        };
        match ep.fail_moved(&mut cx, ReceiveFailure::Incomplete) {
            Ok(()) => Step::Next,
            Err(broken) => self.break_side(self.other, broken),
        }
    }
}

/// Completes the message that was being moved with a failure of the other VI, if the failure
/// applies to it. At Reliable Delivery only reads get such an error (VIPL 5.2).
fn complete_failed<I: EngineIo>(
    cx: &mut Context<'_, I>,
    level: ReliabilityLevel,
    transfer: &Transfer,
    failure: SendFailure,
) {
    let kind = OperationKind::of(&transfer.work);
    if !failure.applies_to(kind) {
        return;
    }
    if kind != OperationKind::Read && level != ReliabilityLevel::ReliableReception {
        cx.count(Counter::TxMessages);
        cx.io
            .complete_send(cx.vi, Status::OK, transfer.work.length_bytes);
        return;
    }
    let mut status = failure.status();
    if kind == OperationKind::Read && transfer.moved_bytes > 0 {
        status = status.with(Status::PARTIAL);
    }
    cx.io.complete_send(cx.vi, status, 0);
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
