//! Messages that cannot go on, by reliability level (docs/spec/vi-engine-errors.md).

use fcvi_frame::flags::message_request;
use fcvi_frame::frame::IuView;
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;

use crate::answer::Response;
use crate::counters::Counter;
use crate::endpoint::{Level, Phase, RxKind};
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Claim, Completion, Host, Status};

/// Why a message cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Frames are missing, or the message ended too early.
    Incomplete,
    /// It does not fit the descriptor or the VI.
    TooLong,
    /// The memory it is meant for is not valid.
    Protection,
}

impl Engine {
    /// Ends the open message with an error, as the level and the kind of message
    /// want it (vipl-semantics, table of errors). True if the VI goes on.
    #[cold]
    pub(crate) fn fail_message<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        failure: Failure,
        host: &mut H,
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
        if failure == Failure::Incomplete && level == Level::UnreliableDelivery {
            ep.rx.message = None;
        }
        if kind == RxKind::Discard {
            return true;
        }
        let (status, reason) = match failure {
            Failure::Incomplete => {
                self.counters.count(Counter::IncompleteMessages);
                (
                    Status::TRANSPORT.with(Status::PARTIAL),
                    MessageReason::MessageIncomplete,
                )
            }
            Failure::TooLong => (Status::LENGTH, MessageReason::DescriptorTooShort),
            Failure::Protection if matches!(kind, RxKind::Write { .. }) => {
                (Status::PROTECTION, MessageReason::WriteProtection)
            }
            Failure::Protection => (Status::PROTECTION, MessageReason::DescriptorProtection),
        };
        match kind {
            RxKind::Receive { .. } => complete_error(vi, status, false, host),
            RxKind::Write { claimed: true, .. } => complete_error(vi, status, true, host),
            RxKind::Write { .. } if level != Level::UnreliableDelivery => host.report(
                vi,
                match failure {
                    Failure::Incomplete | Failure::TooLong => incomplete_write,
                    Failure::Protection => AsyncError::RdmaWriteProtection,
                },
            ),
            RxKind::Write { .. } if failure == Failure::Protection => {
                host.report(vi, AsyncError::RdmaWriteProtection);
            }
            RxKind::Write { .. } | RxKind::Discard => {}
        }
        self.break_reliable(now_ns, vi, reason, host)
    }

    /// A frame came of a message of which the first never did: as with any gap the message is lost, and at a reliable
    /// level there is nothing to wait for.
    #[cold]
    pub(super) fn begin_lost<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let window = self.config.message_window;
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let ahead = iu.header.msg_id.wrapping_sub(ep.rx.expected);
        let began_lost = ep
            .rx
            .damaged_or(iu.header.msg_id, AsyncError::RdmaWriteAbort);
        if ep.params.level == Level::UnreliableDelivery || ahead > window {
            return;
        }
        if matches!(ep.phase, Phase::AwaitResponse3(_)) {
            // The first message implies RESP3 [FCVI P-12].
            self.client_connected(vi, host);
        }
        if ahead > 0 {
            self.messages_lost(now_ns, vi, ahead, iu, host);
        } else {
            self.counters.add(Counter::IncompleteMessages, 1);
            self.never_began(now_ns, vi, iu, began_lost, host);
        }
    }

    /// Messages between the expected one and this one never came. True if the VI goes on.
    #[cold]
    pub(super) fn messages_lost<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        lost: u32,
        iu: &IuView<'_>,
        host: &mut H,
    ) -> bool {
        self.counters.add(Counter::LostMessages, u64::from(lost));
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        if ep.params.level == Level::UnreliableDelivery {
            return true;
        }
        let first_lost = ep.rx.expected;
        let error = ep.rx.damaged_or(first_lost, AsyncError::RdmaTransport);
        self.never_began(now_ns, vi, iu, error, host)
    }

    /// Tells of what is missing before a frame and breaks: by the receive descriptor that is next, if the frame's message
    /// takes one, else by an async error. Always false: the VI does not go on.
    fn never_began<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        iu: &IuView<'_>,
        error: AsyncError,
        host: &mut H,
    ) -> bool {
        let wants_descriptor = iu.header.opcode == Opcode::SendRequest
            || iu.header.flags & message_request::IMMEDIATE != 0;
        if wants_descriptor && host.claim_receive(vi) != Claim::Empty {
            complete_error(vi, Status::TRANSPORT, false, host);
        } else {
            host.report(vi, error);
        }
        self.break_reliable(now_ns, vi, MessageReason::MessageLost, host)
    }

    /// Breaks the connection of a reliable VI; at Reliable Reception the sender of the message
    /// that is open is told why first. True if the VI goes on (unreliable).
    #[cold]
    pub(super) fn break_reliable<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut reason: MessageReason,
        host: &mut H,
    ) -> bool {
        self.acknowledge_owed(now_ns, vi, host);
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        match ep.params.level {
            Level::UnreliableDelivery => return true,
            Level::ReliableDelivery => {}
            Level::ReliableReception => {
                if let Some(message) = ep.rx.message.as_ref().filter(|_| ep.shortcut.is_none()) {
                    let response = Response::to(message);
                    reason = self.refuse_message(vi, &response, reason, host);
                }
            }
        }
        self.break_local(now_ns, vi, reason, host);
        false
    }
}

pub(super) fn complete_error<H: Host>(
    vi: ViIndex,
    status: Status,
    remote_write: bool,
    host: &mut H,
) {
    host.complete_receive(
        vi,
        Completion {
            status,
            length_bytes: 0,
            immediate: None,
            remote_write,
        },
    );
}

/// The code for a receive descriptor that cannot be used [P-8].
pub(super) fn reason_of_fault(status: Status) -> MessageReason {
    if status.has(Status::FORMAT) {
        MessageReason::DescriptorFormat
    } else if status.has(Status::LENGTH) {
        MessageReason::DescriptorTooShort
    } else {
        MessageReason::DescriptorProtection
    }
}
