//! Failed received messages, by reliability level (docs/spec/vi-engine-errors.md).

use crate::{IsCode, RemoteError, ViErrorType};
use vi_types::{AsyncError, Completion, MessageDestination, Status};

use super::Receiver;
use crate::transfer::Counter;
use crate::transfer::{CloseReason, StreamIo};

/// Why a received message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It had Transmit Error, or ended too early.
    Incomplete,
    /// It exceeds the descriptor or the VI's limit.
    TooLong,
    /// Its destination memory is not valid.
    Protection,
}

impl<P: StreamIo> Receiver<'_, P> {
    /// Ends the open message with an error, depending on the level and the kind of message.
    #[cold]
    pub(super) fn fail_message(&mut self, failure: Failure) -> Result<(), CloseReason> {
        let vi = self.vi;
        let Some(message) = &mut self.transfer.rx.message else {
            return Ok(());
        };
        let kind = core::mem::replace(&mut message.kind, MessageDestination::Discard);
        let (status, vi_error) = match failure {
            Failure::Incomplete => {
                self.counters.count(Counter::IncompleteMessages);
                (Status::TRANSPORT.with(Status::PARTIAL), ViErrorType::None)
            }
            Failure::TooLong => (Status::LENGTH, ViErrorType::Descriptor),
            Failure::Protection if matches!(kind, MessageDestination::Write { .. }) => {
                (Status::PROTECTION, ViErrorType::RdmaProtection)
            }
            Failure::Protection => (Status::PROTECTION, ViErrorType::Descriptor),
        };
        let reliable = self.transfer.params.level.is_reliable();
        match kind {
            MessageDestination::Receive { .. } => self.complete_error(status, false),
            MessageDestination::Write { claimed: true, .. } => self.complete_error(status, true),
            MessageDestination::Write { .. } if reliable || failure == Failure::Protection => {
                let error = match failure {
                    Failure::Incomplete => AsyncError::RdmaWriteAbort,
                    Failure::TooLong => AsyncError::RdmaWriteData,
                    Failure::Protection => AsyncError::RdmaWriteProtection,
                };
                self.path.report(vi, error);
            }
            MessageDestination::Write { .. } | MessageDestination::Discard => {}
        }
        self.break_if_reliable(vi_error)
    }

    /// Breaks the connection at a reliable level because the last message failed; its sender gets the error
    /// if it uses acknowledgements.
    pub(super) fn break_if_reliable(&mut self, vi_error: ViErrorType) -> Result<(), CloseReason> {
        if !self.transfer.params.level.is_reliable() {
            return Ok(());
        }
        let is_code = match vi_error {
            ViErrorType::None => IsCode::Transport,
            _ => IsCode::None,
        };
        Err(CloseReason::ReportedToPeer {
            number: self.transfer.rx.number,
            error: RemoteError { vi_error, is_code },
        })
    }

    pub(super) fn complete_error(&mut self, status: Status, remote_write: bool) {
        self.path.complete_receive(
            self.vi,
            Completion {
                status,
                length_bytes: 0,
                immediate: None,
                remote_write,
            },
        );
        if self.transfer.rx.posted.is_some() {
            // It consumed a descriptor: an advertisement of those after it may be due.
            self.path.resume(self.vi);
        }
    }
}
