//! What a failure that the peer reports means for a descriptor.

use fcvi_frame::reason::MessageReason;
use vi_types::{OperationKind, Status};

/// Cause of a failure that the peer reports, by the message that it is about [FCVI P-8].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendFailure {
    /// The remote receive descriptor.
    Descriptor,
    /// The target of a write.
    Write,
    /// The source of a read.
    Read,
    /// The network.
    Transport,
}

impl SendFailure {
    /// Returns the failure for a reason; `None` if the reason is about no message.
    pub(crate) fn of(reason: MessageReason) -> Option<Self> {
        match reason {
            MessageReason::NoDescriptor
            | MessageReason::DescriptorFormat
            | MessageReason::DescriptorProtection
            | MessageReason::DescriptorTooShort => Some(Self::Descriptor),
            MessageReason::WriteProtection | MessageReason::WriteNotEnabled => Some(Self::Write),
            MessageReason::ReadProtection | MessageReason::ReadNotEnabled => Some(Self::Read),
            MessageReason::MessageLost
            | MessageReason::MessageIncomplete
            | MessageReason::NoResources
            | MessageReason::UlpTimeout => Some(Self::Transport),
            MessageReason::None
            | MessageReason::UnknownHandle
            | MessageReason::ProtocolError
            | MessageReason::Disconnected
            | MessageReason::NicClosing
            | MessageReason::Gaps
            | MessageReason::Unknown(_) => None,
        }
    }

    /// Reports whether it can be about such a message: one on which the guide allows the status
    /// (VIPL 5.2).
    pub(crate) fn applies_to(self, kind: OperationKind) -> bool {
        match self {
            Self::Descriptor => matches!(
                kind,
                OperationKind::Send | OperationKind::Write { immediate: true }
            ),
            Self::Write => matches!(kind, OperationKind::Write { .. }),
            Self::Read => kind == OperationKind::Read,
            Self::Transport => true,
        }
    }

    pub(crate) fn status(self) -> Status {
        match self {
            Self::Descriptor => Status::REMOTE_DESCRIPTOR,
            Self::Write | Self::Read => Status::RDMA_PROTECTION,
            Self::Transport => Status::TRANSPORT,
        }
    }

    /// Returns the status of a message of this kind that was refused for this reason.
    pub(crate) fn status_of(reason: MessageReason, kind: OperationKind) -> Status {
        Self::of(reason)
            .filter(|failure| failure.applies_to(kind))
            .unwrap_or(Self::Transport)
            .status()
    }
}
