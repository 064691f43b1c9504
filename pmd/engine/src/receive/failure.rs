//! Failed messages, by reliability level (docs/spec/vi-engine-errors.md).

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::IuView;
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::ReliabilityLevel;

use crate::counters::Counter;
use crate::endpoint::{Phase, RxKind};
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{AsyncError, Claim, Completion, EngineIo, Status};
use crate::responses::Response;

/// Why a message failed at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveFailure {
    /// Frames are missing, or the message ended too early.
    Incomplete,
    /// It is longer than the descriptor or the VI's maximum.
    TooLong,
    /// Its destination memory is not valid.
    Protection,
}

impl Engine {
    /// Ends the open message with an error, by reliability level and kind of message
    /// (vipl-semantics, table of errors). Returns true if the VI stays connected.
    #[cold]
    pub(crate) fn fail_message<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        failure: ReceiveFailure,
        io: &mut I,
    ) -> bool {
        let Some(ep) = self.endpoint_mut(vi) else {
            return false;
        };
        let level = ep.params.level;
        let Some(message) = ep.rx.message.as_mut() else {
            return true;
        };
        let (kind, msg_id) = (message.kind, message.msg_id);
        message.kind = RxKind::Discard;
        let incomplete_write = ep.rx.damaged_or(msg_id, AsyncError::RdmaWriteAbort);
        if failure == ReceiveFailure::Incomplete && !level.is_reliable() {
            ep.rx.message = None;
        }
        if kind == RxKind::Discard {
            return true;
        }
        let (status, reason) = match failure {
            ReceiveFailure::Incomplete => {
                self.counters.count(Counter::IncompleteMessages);
                (
                    Status::TRANSPORT.with(Status::PARTIAL),
                    MessageReason::MessageIncomplete,
                )
            }
            ReceiveFailure::TooLong => (Status::LENGTH, MessageReason::DescriptorTooShort),
            ReceiveFailure::Protection if matches!(kind, RxKind::Write { .. }) => {
                (Status::PROTECTION, MessageReason::WriteProtection)
            }
            ReceiveFailure::Protection => (Status::PROTECTION, MessageReason::DescriptorProtection),
        };
        match kind {
            RxKind::Receive { .. } => complete_error(vi, status, false, io),
            RxKind::Write { claimed: true, .. } => complete_error(vi, status, true, io),
            RxKind::Write { .. } if level.is_reliable() => io.report(
                vi,
                match failure {
                    ReceiveFailure::Incomplete | ReceiveFailure::TooLong => incomplete_write,
                    ReceiveFailure::Protection => AsyncError::RdmaWriteProtection,
                },
            ),
            RxKind::Write { .. } if failure == ReceiveFailure::Protection => {
                io.report(vi, AsyncError::RdmaWriteProtection);
            }
            RxKind::Write { .. } | RxKind::Discard => {}
        }
        self.break_reliable(now_ns, vi, reason, io)
    }

    /// Handles a frame of a message whose first frame never arrived: the message is lost, and at a
    /// reliable level the connection breaks at once.
    #[cold]
    pub(super) fn first_frame_lost<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let window = self.config.message_window;
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let ahead = iu.header.msg_id.wrapping_sub(ep.rx.expected);
        let lost_error = ep
            .rx
            .damaged_or(iu.header.msg_id, AsyncError::RdmaWriteAbort);
        if !ep.params.level.is_reliable() || ahead > window {
            return;
        }
        if matches!(ep.phase, Phase::AwaitResponse3(_)) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(vi, io);
        }
        if ahead > 0 {
            self.messages_lost(now_ns, vi, ahead, iu, io);
        } else {
            self.counters.add(Counter::IncompleteMessages, 1);
            self.report_lost(now_ns, vi, iu, lost_error, io);
        }
    }

    /// Handles messages that never arrived before this one. Returns true if the VI stays connected.
    #[cold]
    pub(super) fn messages_lost<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        lost: u32,
        iu: &IuView<'_>,
        io: &mut I,
    ) -> bool {
        self.counters.add(Counter::LostMessages, u64::from(lost));
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        if !ep.params.level.is_reliable() {
            return true;
        }
        let first_lost = ep.rx.expected;
        let error = ep.rx.damaged_or(first_lost, AsyncError::RdmaTransport);
        self.report_lost(now_ns, vi, iu, error, io)
    }

    /// Reports what is missing before a frame and breaks the connection: by the next receive
    /// descriptor if the frame's message takes one, else by an asynchronous error. Always returns
    /// false.
    fn report_lost<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        iu: &IuView<'_>,
        error: AsyncError,
        io: &mut I,
    ) -> bool {
        let wants_descriptor = iu.header.opcode == Opcode::SendRequest
            || iu.header.flags & message_request::IMMEDIATE != 0;
        if wants_descriptor && io.claim_receive(vi) != Claim::Empty {
            complete_error(vi, Status::TRANSPORT, false, io);
        } else {
            io.report(vi, error);
        }
        self.break_reliable(now_ns, vi, MessageReason::MessageLost, io)
    }

    /// Breaks the connection of a reliable VI; at Reliable Reception the open message is refused
    /// first. Returns true if the VI stays connected (unreliable).
    #[cold]
    pub(super) fn break_reliable<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut reason: MessageReason,
        io: &mut I,
    ) -> bool {
        self.flush_acknowledgement(now_ns, vi, io);
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        match ep.params.level {
            ReliabilityLevel::UnreliableDelivery => return true,
            ReliabilityLevel::ReliableDelivery => {}
            ReliabilityLevel::ReliableReception => {
                if let Some(message) = ep.rx.message.as_ref().filter(|_| ep.shortcut.is_none()) {
                    let response = Response::to(message);
                    reason = self.refuse_message(vi, &response, reason, io);
                }
            }
        }
        self.break_local(now_ns, vi, reason, io);
        false
    }
}

/// Completes a receive descriptor with an error.
pub(super) fn complete_error<I: EngineIo>(
    vi: ViIndex,
    status: Status,
    remote_write: bool,
    io: &mut I,
) {
    io.complete_receive(
        vi,
        Completion {
            status,
            length_bytes: 0,
            immediate: None,
            remote_write,
        },
    );
}

/// Returns the reason code for an unusable receive descriptor [P-8].
pub(super) fn reason_of_fault(status: Status) -> MessageReason {
    if status.has(Status::FORMAT) {
        MessageReason::DescriptorFormat
    } else if status.has(Status::LENGTH) {
        MessageReason::DescriptorTooShort
    } else {
        MessageReason::DescriptorProtection
    }
}
