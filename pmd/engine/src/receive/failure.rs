//! Failed messages, by reliability level (docs/spec/vi-engine-errors.md).

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::IuView;
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::{AsyncError, Claim, Completion, MessageDestination, Status};

use super::RxStream;
use crate::connection::Break;
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::responses::Response;
use crate::transmit::TxStream;

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

impl RxStream {
    /// Ends the open message with an error, by reliability level and kind of message
    /// (vipl-semantics, table of errors).
    #[cold]
    pub(crate) fn fail_message<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        failure: ReceiveFailure,
    ) -> Result<(), Break> {
        let reliable = self.params.level.is_reliable();
        let Some(message) = self.reassembly.message.as_mut() else {
            return Ok(());
        };
        let (kind, msg_id) = (message.kind, message.msg_id);
        message.kind = MessageDestination::Discard;
        if failure == ReceiveFailure::Incomplete && !reliable {
            self.reassembly.message = None;
        }
        if kind == MessageDestination::Discard {
            return Ok(());
        }
        let (status, reason) = match failure {
            ReceiveFailure::Incomplete => {
                cx.count(Counter::IncompleteMessages);
                (
                    Status::TRANSPORT.with(Status::PARTIAL),
                    MessageReason::MessageIncomplete,
                )
            }
            ReceiveFailure::TooLong => (Status::LENGTH, MessageReason::DescriptorTooShort),
            ReceiveFailure::Protection if matches!(kind, MessageDestination::Write { .. }) => {
                (Status::PROTECTION, MessageReason::WriteProtection)
            }
            ReceiveFailure::Protection => (Status::PROTECTION, MessageReason::DescriptorProtection),
        };
        match kind {
            MessageDestination::Receive { .. } => complete_error(cx, status, false),
            MessageDestination::Write { claimed: true, .. } => complete_error(cx, status, true),
            MessageDestination::Write { .. } if failure == ReceiveFailure::Protection => {
                cx.io.report(cx.vi, AsyncError::RdmaWriteProtection);
            }
            MessageDestination::Write { .. } if reliable => {
                let error = self.damaged_or(msg_id, AsyncError::RdmaWriteAbort);
                cx.io.report(cx.vi, error);
            }
            MessageDestination::Write { .. } | MessageDestination::Discard => {}
        }
        self.break_reliable(tx, cx, reason)
    }

    /// Handles a frame of a message whose first frame never arrived, on a reliable connection: the
    /// message is lost.
    #[cold]
    pub(super) fn first_frame_lost<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        cx.count(Counter::DropNoContext);
        let msg_id = iu.header.msg_id;
        let lost = self.reassembly.lost_before(msg_id);
        if lost > 0 {
            return self.messages_lost(tx, cx, lost, iu);
        }
        cx.count(Counter::IncompleteMessages);
        let error = self.damaged_or(msg_id, AsyncError::RdmaWriteAbort);
        self.report_lost(tx, cx, iu, error)
    }

    /// Handles messages that never arrived before this one.
    #[cold]
    pub(super) fn messages_lost<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        lost: u32,
        iu: &IuView<'_>,
    ) -> Result<(), Break> {
        cx.port.counters.add(Counter::LostMessages, u64::from(lost));
        if !self.params.level.is_reliable() {
            return Ok(());
        }
        let error = self.damaged_or(self.reassembly.expected, AsyncError::RdmaTransport);
        self.report_lost(tx, cx, iu, error)
    }

    /// Reports what is missing before a frame and breaks the connection: by the next receive
    /// descriptor if the frame's message takes one, else by an asynchronous error.
    fn report_lost<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        iu: &IuView<'_>,
        error: AsyncError,
    ) -> Result<(), Break> {
        let wants_descriptor = iu.header.opcode == Opcode::SendRequest
            || iu.header.flags & message_request::IMMEDIATE != 0;
        if wants_descriptor && cx.io.claim_receive(cx.vi) != Claim::Empty {
            complete_error(cx, Status::TRANSPORT, false);
        } else {
            cx.io.report(cx.vi, error);
        }
        self.break_reliable(tx, cx, MessageReason::MessageLost)
    }

    /// Breaks the connection of a reliable VI; at Reliable Reception the open message is refused
    /// first.
    #[cold]
    pub(super) fn break_reliable<I: EngineIo>(
        &mut self,
        tx: &mut TxStream,
        cx: &mut Context<'_, I>,
        mut reason: MessageReason,
    ) -> Result<(), Break> {
        self.flush_acknowledgement(tx, cx);
        if !self.params.level.is_reliable() {
            return Ok(());
        }
        if let Some(message) = self.reassembly.message.as_ref().filter(|_| self.responds) {
            reason = tx.responses.refuse(cx, &Response::to(message), reason);
        }
        Err(Break(reason))
    }

    /// Returns `RDMAW_DATA` if a frame of this message was damaged, else `error` (VIPL 3.8.1).
    fn damaged_or(&self, msg_id: u32, error: AsyncError) -> AsyncError {
        if self.damaged_write == Some(msg_id) {
            AsyncError::RdmaWriteData
        } else {
            error
        }
    }
}

/// Completes a receive descriptor with an error.
pub(super) fn complete_error<I: EngineIo>(
    cx: &mut Context<'_, I>,
    status: Status,
    remote_write: bool,
) {
    let completion = Completion {
        status,
        length_bytes: 0,
        immediate: None,
        remote_write,
    };
    cx.io.complete_receive(cx.vi, completion);
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
