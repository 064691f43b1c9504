//! Messages between two VIs of this engine, moved without frames.
//!
//! A connection is made by frames, through the port, as any other. If its client turns out to be
//! a VI of this engine when the server's half is made, its messages are moved from memory to
//! memory by the sender's [`Engine::pump`], all of them and in both directions: what goes one way
//! stays in order. Each is opened, fails and is delivered at the receiving end as one that comes
//! in frames; what needs frames, which are identifiers, responses and recovery, is left out.
//!
//! Nothing is in flight: a message is complete at both ends in the call that moves its last
//! bytes, a read too. So completions are in posting order at every level, the receiver's first,
//! and a fence has nothing to wait for.
//!
//! The ends leave the connection together, in one call, whichever of them disconnects, breaks, or
//! is failed; nobody needs to be told by a frame. What ends a message that is half moved:
//!
//! | what ends it | its send descriptor | its receive descriptor, if it took one |
//! | --- | --- | --- |
//! | either end disconnects, or breaks for another reason | flushed | flushed |
//! | the memory of the send descriptor goes | PROTECTION, PARTIAL | flushed; at Unreliable Delivery TRANSPORT, PARTIAL |
//! | the memory that is written goes | Reliable Reception: REMOTE_DESCRIPTOR or RDMA_PROTECTION; else complete | PROTECTION |
//! | the memory that is read goes | RDMA_PROTECTION, PARTIAL | |
//!
//! As over frames, whatever fails at a reliable level breaks the connection, and at Unreliable
//! Delivery the rest of the message is dropped.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::message_request;
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;

use crate::connect::ConnectError;
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Level, Phase, RxKind, RxMessage};
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Host, Moved, Operation, SendWork, Status};
use crate::receive;
use crate::transmit::{Failure, Kind, Pumped, Step};

/// All parts of a message but the last are multiples of this, so that no part ends inside a word.
const LINE_BYTES: u32 = 64;

/// One end of a connection within this engine. Both ends have one, or neither.
#[derive(Debug)]
pub(crate) struct Shortcut {
    /// The other end.
    pub(crate) other: ViIndex,
    /// What is being moved from here, or, if it is a read, to here.
    moving: Option<Moving>,
}

/// A message whose descriptor is the next on its send queue.
#[derive(Clone, Copy, Debug)]
struct Moving {
    work: SendWork,
    moved_bytes: u32,
}

impl Engine {
    /// The server's half of a connection is made: messages need no frames if the client is a VI
    /// of ours.
    pub(crate) fn take_shortcut(&mut self, server: ViIndex) {
        let Some(client) = self.client_of_ours(server) else {
            return;
        };
        for (vi, other) in [(server, client), (client, server)] {
            if let Some(ep) = self.endpoint_mut(vi) {
                let moving = None;
                ep.shortcut = Some(Box::new(Shortcut { other, moving }));
                // No frame of a message is accepted: no VI has a peer without an address.
                ep.peer = NPortId::default();
                ep.rx.recovery = None;
                if let Some(tx) = &mut ep.tx {
                    tx.recovery = None;
                }
            }
        }
    }

    /// The VI that asked for this connection, if it is one of ours. Each end must name the other:
    /// another port may pretend to have our address.
    fn client_of_ours(&self, server: ViIndex) -> Option<ViIndex> {
        let client = self.own_peer(server).filter(|_| self.config.shortcut)?;
        let phase = &self.endpoint(client)?.phase;
        matches!(phase, Phase::AwaitResponse3(_)).then_some(client)
    }

    /// [`Engine::pump`] for such a connection.
    pub(crate) fn pump_shortcut<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        budget: u32,
        host: &mut H,
    ) -> Pumped {
        let mut room_bytes = self.config.shortcut_bytes.max(LINE_BYTES);
        for _ in 0..budget {
            let shortcut = self.endpoint(vi).and_then(|ep| ep.shortcut.as_deref());
            let Some(Shortcut { other, moving }) = shortcut else {
                return Pumped::Idle;
            };
            let other = *other;
            let step = match *moving {
                Some(moving) => self.move_on(now_ns, vi, other, moving, &mut room_bytes, host),
                None => self.begin_moving(now_ns, vi, other, host),
            };
            match step {
                Step::Next if host.is_failing(vi) || host.is_failing(other) => return Pumped::Idle,
                Step::Next if room_bytes < LINE_BYTES => return Pumped::More,
                Step::Next => {}
                Step::Nothing | Step::Broken => return Pumped::Idle,
                Step::Blocked => return Pumped::Blocked,
            }
        }
        Pumped::More
    }

    fn set_moving(&mut self, vi: ViIndex, moving: Option<Moving>) {
        let ep = self.endpoint_mut(vi);
        if let Some(shortcut) = ep.and_then(|ep| ep.shortcut.as_deref_mut()) {
            shortcut.moving = moving;
        }
    }

    /// Takes the next descriptor to the other end, as its first frame would.
    fn begin_moving<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        host: &mut H,
    ) -> Step {
        let Some(mut work) = host.next_send(vi) else {
            return Step::Nothing;
        };
        let is_read = matches!(work.operation, Operation::Read { .. });
        if is_read && work.fault.is_ok() && self.level_of(vi) == Some(Level::UnreliableDelivery) {
            work.fault = Status::FORMAT;
        }
        if !work.fault.is_ok() {
            let goes_on = self.refuse_local(now_ns, vi, work, host);
            return if goes_on { Step::Next } else { Step::Broken };
        }
        if self.state(other) == Some(EndpointState::ConnectPending) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(other, host);
        }
        let moved_bytes = 0;
        self.set_moving(vi, Some(Moving { work, moved_bytes }));
        if is_read {
            self.open_read(now_ns, other, &work, host)
        } else {
            self.open_message(now_ns, vi, other, &work, host)
        }
    }

    /// A send or write begins at the other end.
    fn open_message<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        work: &SendWork,
        host: &mut H,
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
            self.open_write(now_ns, other, &header, host)
        } else {
            self.open_receive(now_ns, other, host)
        };
        let kind = self
            .endpoint(other)
            .and_then(|ep| Some(ep.rx.message?.kind));
        match kind.filter(|_| opened) {
            None => Step::Broken,
            Some(RxKind::Receive { capacity_bytes })
                if work.length_bytes > capacity_bytes.min(max_transfer_bytes) =>
            {
                self.fail_at_other(now_ns, vi, other, receive::Failure::TooLong, work, host)
            }
            Some(RxKind::Receive { .. } | RxKind::Write { .. }) => Step::Next,
            Some(RxKind::Discard) => {
                self.drop_rest(vi, other, work, host);
                Step::Next
            }
        }
    }

    /// A read begins at the other end.
    fn open_read<H: Host>(
        &mut self,
        now_ns: u64,
        other: ViIndex,
        work: &SendWork,
        host: &mut H,
    ) -> Step {
        if let Some(reason) = self.refuses_read(now_ns, other, &header_of(work), host) {
            return self.refuse_moving_read(now_ns, other, reason, host);
        }
        self.counters.count(Counter::RxMessages);
        Step::Next
    }

    /// Moves the next bytes of the open message and, with the last ones, completes it.
    fn move_on<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        moving: Moving,
        room_bytes: &mut u32,
        host: &mut H,
    ) -> Step {
        let Moving { work, moved_bytes } = moving;
        let left_bytes = work.length_bytes - moved_bytes;
        let bytes = if left_bytes <= *room_bytes {
            left_bytes
        } else {
            *room_bytes & !(LINE_BYTES - 1)
        };
        match host.move_message(vi, other, work.operation, moved_bytes, bytes) {
            Moved::All => {}
            Moved::OwnGone => return self.own_memory_gone(now_ns, vi, other, moved_bytes, host),
            Moved::OtherGone => {
                return match work.operation {
                    Operation::Read { .. } => {
                        let reason = MessageReason::ReadProtection;
                        self.refuse_moving_read(now_ns, other, reason, host)
                    }
                    Operation::Send | Operation::Write { .. } => {
                        let failure = receive::Failure::Protection;
                        self.fail_at_other(now_ns, vi, other, failure, &work, host)
                    }
                };
            }
        }
        *room_bytes -= bytes;
        let moved_bytes = moved_bytes + bytes;
        if moved_bytes < work.length_bytes {
            self.set_moving(vi, Some(Moving { work, moved_bytes }));
            return Step::Next;
        }
        let message = self.endpoint_mut(other).and_then(|ep| ep.rx.message.take());
        if let Some(mut done) = message {
            done.placed_bytes = moved_bytes;
            self.deliver(other, &done, host);
        }
        self.counters.count(Counter::ShortcutMessages);
        self.counters
            .add(Counter::ShortcutBytes, u64::from(moved_bytes));
        self.complete_moving(vi, &work, host);
        Step::Next
    }

    /// The message left its sender well, whatever became of it.
    fn complete_moving<H: Host>(&mut self, vi: ViIndex, work: &SendWork, host: &mut H) {
        self.set_moving(vi, None);
        self.counters.count(Counter::TxMessages);
        host.complete_send(vi, Status::OK, work.length_bytes);
    }

    /// Unreliable Delivery: what is left of a message that failed at the other end goes nowhere.
    fn drop_rest<H: Host>(&mut self, vi: ViIndex, other: ViIndex, work: &SendWork, host: &mut H) {
        if let Some(ep) = self.endpoint_mut(other) {
            ep.rx.message = None;
        }
        self.complete_moving(vi, work, host);
    }

    /// A send or write fails at the other end.
    #[cold]
    fn fail_at_other<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        failure: receive::Failure,
        work: &SendWork,
        host: &mut H,
    ) -> Step {
        if !self.fail_message(now_ns, other, failure, host) {
            return Step::Broken;
        }
        self.drop_rest(vi, other, work, host);
        Step::Next
    }

    /// The other end refuses a read (VIPL 3.8.1): both consumers are told.
    #[cold]
    fn refuse_moving_read<H: Host>(
        &mut self,
        now_ns: u64,
        other: ViIndex,
        reason: MessageReason,
        host: &mut H,
    ) -> Step {
        self.counters.count(Counter::DropRdmaProtection);
        host.report(other, AsyncError::RdmaReadProtection);
        self.break_local(now_ns, other, reason, host);
        Step::Broken
    }

    /// The memory of the send descriptor went away under the message.
    #[cold]
    fn own_memory_gone<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        other: ViIndex,
        moved_bytes: u32,
        host: &mut H,
    ) -> Step {
        let mut status = Status::PROTECTION;
        if moved_bytes > 0 {
            status = status.with(Status::PARTIAL);
        }
        self.set_moving(vi, None);
        host.complete_send(vi, status, 0);
        if self.level_of(vi) == Some(Level::UnreliableDelivery) {
            // The rest will not come, and nobody waits for it.
            self.fail_message(now_ns, other, receive::Failure::Incomplete, host);
            return Step::Next;
        }
        self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
        Step::Broken
    }

    /// The other end of this one left the connection, or broke. `told`: why, if that is to be told.
    pub(crate) fn end_shortcut<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        told: Option<MessageReason>,
        host: &mut H,
    ) {
        let ep = self.endpoint_mut(vi);
        let Some(shortcut) = ep.and_then(|ep| ep.shortcut.take()) else {
            return;
        };
        let failure = told.and_then(Failure::of);
        if let Some((moving, failure)) = shortcut.moving.zip(failure) {
            self.failed_at_other(vi, &moving, failure, host);
        }
        if self.state(vi) == Some(EndpointState::ConnectPending) {
            // The server's half was made: what ends now was a connection. RESP3 comes too late to
            // say so.
            self.client_connected(vi, host);
        }
        let loss = if told == Some(MessageReason::Disconnected) {
            AsyncError::Disconnected
        } else {
            AsyncError::ConnectionLost
        };
        self.ended_by_peer(now_ns, vi, loss, ConnectError::Timeout, host);
    }

    /// What was being moved failed at the other end, if the failure can be about it. At Reliable
    /// Delivery only reads are told so (VIPL 5.2).
    fn failed_at_other<H: Host>(
        &mut self,
        vi: ViIndex,
        moving: &Moving,
        failure: Failure,
        host: &mut H,
    ) {
        let kind = Kind::of(&moving.work);
        if !failure.can_concern(kind) {
            return;
        }
        if kind != Kind::Read && self.level_of(vi) != Some(Level::ReliableReception) {
            self.complete_moving(vi, &moving.work, host);
            return;
        }
        let mut status = failure.status();
        if kind == Kind::Read && moving.moved_bytes > 0 {
            status = status.with(Status::PARTIAL);
        }
        host.complete_send(vi, status, 0);
    }
}

/// What the first frame of this message would say of it to the other end.
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
