//! Messages that cannot go on, by reliability level (docs/spec/vi-engine-errors.md).

use vi_engine::{AsyncError, Completion, Host, Level, Status};
use vitcp_lite::{IsCode, RemoteError, ViErrorType};

use super::Receiver;
use crate::vitcp::closing::Ending;
use crate::vitcp::connection::RxKind;
use crate::vitcp::counters::Counter;

/// Why a message cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It came with Transmit Error, or ended too early.
    Incomplete,
    /// It does not fit the descriptor or the VI.
    TooLong,
    /// The memory it is meant for is not valid.
    Protection,
}

impl Receiver<'_> {
    /// Ends the open message with an error, as the level and the kind of message want it.
    #[cold]
    pub(super) fn fail_message(&mut self, failure: Failure) -> Result<(), Ending> {
        let vi = self.vi;
        let Some(message) = &mut self.connection.rx.message else {
            return Ok(());
        };
        let kind = core::mem::replace(&mut message.kind, RxKind::Discard);
        let (status, told) = match failure {
            Failure::Incomplete => {
                self.counters.count(Counter::IncompleteMessages);
                (Status::TRANSPORT.with(Status::PARTIAL), ViErrorType::None)
            }
            Failure::TooLong => (Status::LENGTH, ViErrorType::Descriptor),
            Failure::Protection if matches!(kind, RxKind::Write { .. }) => {
                (Status::PROTECTION, ViErrorType::RdmaProtection)
            }
            Failure::Protection => (Status::PROTECTION, ViErrorType::Descriptor),
        };
        let reliable = self.params.level != Level::UnreliableDelivery;
        match kind {
            RxKind::Receive { .. } => self.complete_error(status, false),
            RxKind::Write { claimed: true, .. } => self.complete_error(status, true),
            RxKind::Write { .. } if reliable || failure == Failure::Protection => {
                let error = match failure {
                    Failure::Incomplete => AsyncError::RdmaWriteAbort,
                    Failure::TooLong => AsyncError::RdmaWriteData,
                    Failure::Protection => AsyncError::RdmaWriteProtection,
                };
                self.path.report(vi, error);
            }
            RxKind::Write { .. } | RxKind::Discard => {}
        }
        self.broken(told)
    }

    /// The message that came last failed: at a reliable level the connection breaks, and its
    /// sender is told why where it wants to hear.
    pub(super) fn broken(&mut self, vi_error: ViErrorType) -> Result<(), Ending> {
        if self.params.level == Level::UnreliableDelivery {
            return Ok(());
        }
        let is_code = match vi_error {
            ViErrorType::None => IsCode::Transport,
            _ => IsCode::None,
        };
        Err(Ending::Told {
            number: self.connection.rx.number,
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
        if self.connection.rx.posted.is_some() {
            // It took a descriptor all the same: the peer may have to hear of those behind it.
            self.path.resume(self.vi);
        }
    }
}
