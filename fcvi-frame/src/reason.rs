//! Status and reason codes in FCVI_PARAMETER of responses and disconnects.
//!
//! | IU | Byte 0 | Byte 1 | Bytes 2-3 |
//! | --- | --- | --- | --- |
//! | message response, disconnect | reason | 0 | detail |
//! | connect response | CONN_STS | reason | detail |
//!
//! The layout [P-7] and the codes [P-8] are our choice. A detail is sent as 0 and ignored.

use core::fmt;

use crate::profile::{connect_reason, connect_status, message_reason};

/// Reason of a failed message or a disconnect [P-8].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageReason {
    /// No error.
    None,
    /// No receive descriptor was posted.
    NoDescriptor,
    /// The receive descriptor is malformed.
    DescriptorFormat,
    /// The memory of the receive descriptor may not be used.
    DescriptorProtection,
    /// The message is longer than the receive descriptor or MaxTransferSize.
    DescriptorTooShort,
    /// The target of an RDMA write may not be written.
    WriteProtection,
    /// The source of an RDMA read may not be read.
    ReadProtection,
    /// RDMA write is not enabled on the VI.
    WriteNotEnabled,
    /// RDMA read is not enabled on the VI.
    ReadNotEnabled,
    /// A message was lost: a later one arrived.
    MessageLost,
    /// A frame of the message is missing.
    MessageIncomplete,
    /// No such handle, or not connected to the sender.
    UnknownHandle,
    /// Invalid flags, length or header.
    ProtocolError,
    /// No resources.
    NoResources,
    /// The consumer called disconnect.
    Disconnected,
    /// A response timed out.
    UlpTimeout,
    /// The NIC is being closed.
    NicClosing,
    /// Ranges are missing; the payload lists them [P-16].
    Gaps,
    /// Any other code. Never one of the codes above if it was parsed.
    Unknown(u8),
}

impl MessageReason {
    /// Converts a code on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            message_reason::NONE => Self::None,
            message_reason::NO_DESCRIPTOR => Self::NoDescriptor,
            message_reason::DESCRIPTOR_FORMAT => Self::DescriptorFormat,
            message_reason::DESCRIPTOR_PROTECTION => Self::DescriptorProtection,
            message_reason::DESCRIPTOR_TOO_SHORT => Self::DescriptorTooShort,
            message_reason::WRITE_PROTECTION => Self::WriteProtection,
            message_reason::READ_PROTECTION => Self::ReadProtection,
            message_reason::WRITE_NOT_ENABLED => Self::WriteNotEnabled,
            message_reason::READ_NOT_ENABLED => Self::ReadNotEnabled,
            message_reason::MESSAGE_LOST => Self::MessageLost,
            message_reason::MESSAGE_INCOMPLETE => Self::MessageIncomplete,
            message_reason::UNKNOWN_HANDLE => Self::UnknownHandle,
            message_reason::PROTOCOL_ERROR => Self::ProtocolError,
            message_reason::NO_RESOURCES => Self::NoResources,
            message_reason::DISCONNECTED => Self::Disconnected,
            message_reason::ULP_TIMEOUT => Self::UlpTimeout,
            message_reason::NIC_CLOSING => Self::NicClosing,
            message_reason::GAPS => Self::Gaps,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::None => message_reason::NONE,
            Self::NoDescriptor => message_reason::NO_DESCRIPTOR,
            Self::DescriptorFormat => message_reason::DESCRIPTOR_FORMAT,
            Self::DescriptorProtection => message_reason::DESCRIPTOR_PROTECTION,
            Self::DescriptorTooShort => message_reason::DESCRIPTOR_TOO_SHORT,
            Self::WriteProtection => message_reason::WRITE_PROTECTION,
            Self::ReadProtection => message_reason::READ_PROTECTION,
            Self::WriteNotEnabled => message_reason::WRITE_NOT_ENABLED,
            Self::ReadNotEnabled => message_reason::READ_NOT_ENABLED,
            Self::MessageLost => message_reason::MESSAGE_LOST,
            Self::MessageIncomplete => message_reason::MESSAGE_INCOMPLETE,
            Self::UnknownHandle => message_reason::UNKNOWN_HANDLE,
            Self::ProtocolError => message_reason::PROTOCOL_ERROR,
            Self::NoResources => message_reason::NO_RESOURCES,
            Self::Disconnected => message_reason::DISCONNECTED,
            Self::UlpTimeout => message_reason::ULP_TIMEOUT,
            Self::NicClosing => message_reason::NIC_CLOSING,
            Self::Gaps => message_reason::GAPS,
            Self::Unknown(other) => other,
        }
    }

    /// Returns FCVI_PARAMETER with this reason [P-7].
    #[must_use]
    pub const fn to_parameter(self) -> u32 {
        u32::from_be_bytes([self.raw(), 0, 0, 0])
    }

    /// Returns the reason in an FCVI_PARAMETER [P-7].
    #[must_use]
    pub const fn from_parameter(parameter: u32) -> Self {
        let [reason, ..] = parameter.to_be_bytes();
        Self::from_raw(reason)
    }
}

impl fmt::Display for MessageReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no error",
            Self::NoDescriptor => "no receive descriptor posted",
            Self::DescriptorFormat => "receive descriptor malformed",
            Self::DescriptorProtection => "receive descriptor protected",
            Self::DescriptorTooShort => "receive descriptor too short",
            Self::WriteProtection => "RDMA write protected",
            Self::ReadProtection => "RDMA read protected",
            Self::WriteNotEnabled => "RDMA write not enabled",
            Self::ReadNotEnabled => "RDMA read not enabled",
            Self::MessageLost => "message lost",
            Self::MessageIncomplete => "message incomplete",
            Self::UnknownHandle => "unknown handle",
            Self::ProtocolError => "protocol error",
            Self::NoResources => "no resources",
            Self::Disconnected => "disconnected",
            Self::UlpTimeout => "response timed out",
            Self::NicClosing => "NIC closing",
            Self::Gaps => "ranges missing",
            Self::Unknown(code) => return write!(f, "reason {code:#04x}"),
        })
    }
}

/// CONN_STS: status of a connection request [P-7].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectStatus {
    /// Accepted, the procedure continues.
    Continue,
    /// No decision yet.
    Pending,
    /// Replaced by the peer's own request.
    Superseded,
    /// The connection failed.
    Failed,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u8),
}

impl ConnectStatus {
    /// Converts a code on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            connect_status::CONTINUE => Self::Continue,
            connect_status::PENDING => Self::Pending,
            connect_status::SUPERSEDED => Self::Superseded,
            connect_status::FAILED => Self::Failed,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Continue => connect_status::CONTINUE,
            Self::Pending => connect_status::PENDING,
            Self::Superseded => connect_status::SUPERSEDED,
            Self::Failed => connect_status::FAILED,
            Self::Unknown(other) => other,
        }
    }
}

/// Reason of the status of a connection request [P-8].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectReason {
    /// Accepted.
    Accepted,
    /// The consumer has not decided yet.
    WaitingForConsumer,
    /// The peer has not posted its own request yet.
    NotYetPosted,
    /// Simultaneous requests: the receiver's is used.
    YoursWins,
    /// Simultaneous requests: the sender's is used.
    MineWins,
    /// The connection exists already.
    DuplicateOfEstablished,
    /// No VI waits for this discriminator.
    NoMatch,
    /// The consumer rejected.
    Rejected,
    /// The reliability levels differ.
    ReliabilityLevel,
    /// The maximum transfer sizes differ.
    MaxTransferSize,
    /// The qualities of service differ.
    Qos,
    /// No resources.
    NoResources,
    /// Timed out.
    TimedOut,
    /// The host address is not the receiver's.
    NotMyAddress,
    /// The payload is malformed.
    Malformed,
    /// No such connection ID.
    UnknownConnection,
    /// The VI is not in a state for this.
    WrongState,
    /// Any other code. Never one of the codes above if it was parsed.
    Unknown(u8),
}

impl ConnectReason {
    /// Converts a code on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            connect_reason::ACCEPTED => Self::Accepted,
            connect_reason::WAITING_FOR_CONSUMER => Self::WaitingForConsumer,
            connect_reason::NOT_YET_POSTED => Self::NotYetPosted,
            connect_reason::YOURS_WINS => Self::YoursWins,
            connect_reason::MINE_WINS => Self::MineWins,
            connect_reason::DUPLICATE_OF_ESTABLISHED => Self::DuplicateOfEstablished,
            connect_reason::NO_MATCH => Self::NoMatch,
            connect_reason::REJECTED => Self::Rejected,
            connect_reason::RELIABILITY_LEVEL => Self::ReliabilityLevel,
            connect_reason::MAX_TRANSFER_SIZE => Self::MaxTransferSize,
            connect_reason::QOS => Self::Qos,
            connect_reason::NO_RESOURCES => Self::NoResources,
            connect_reason::TIMED_OUT => Self::TimedOut,
            connect_reason::NOT_MY_ADDRESS => Self::NotMyAddress,
            connect_reason::MALFORMED => Self::Malformed,
            connect_reason::UNKNOWN_CONNECTION => Self::UnknownConnection,
            connect_reason::WRONG_STATE => Self::WrongState,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Accepted => connect_reason::ACCEPTED,
            Self::WaitingForConsumer => connect_reason::WAITING_FOR_CONSUMER,
            Self::NotYetPosted => connect_reason::NOT_YET_POSTED,
            Self::YoursWins => connect_reason::YOURS_WINS,
            Self::MineWins => connect_reason::MINE_WINS,
            Self::DuplicateOfEstablished => connect_reason::DUPLICATE_OF_ESTABLISHED,
            Self::NoMatch => connect_reason::NO_MATCH,
            Self::Rejected => connect_reason::REJECTED,
            Self::ReliabilityLevel => connect_reason::RELIABILITY_LEVEL,
            Self::MaxTransferSize => connect_reason::MAX_TRANSFER_SIZE,
            Self::Qos => connect_reason::QOS,
            Self::NoResources => connect_reason::NO_RESOURCES,
            Self::TimedOut => connect_reason::TIMED_OUT,
            Self::NotMyAddress => connect_reason::NOT_MY_ADDRESS,
            Self::Malformed => connect_reason::MALFORMED,
            Self::UnknownConnection => connect_reason::UNKNOWN_CONNECTION,
            Self::WrongState => connect_reason::WRONG_STATE,
            Self::Unknown(other) => other,
        }
    }
}

impl fmt::Display for ConnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::WaitingForConsumer => "waiting for the consumer",
            Self::NotYetPosted => "not yet posted",
            Self::YoursWins => "simultaneous requests, yours wins",
            Self::MineWins => "simultaneous requests, mine wins",
            Self::DuplicateOfEstablished => "already connected",
            Self::NoMatch => "no match",
            Self::Rejected => "rejected",
            Self::ReliabilityLevel => "reliability levels differ",
            Self::MaxTransferSize => "maximum transfer sizes differ",
            Self::Qos => "qualities of service differ",
            Self::NoResources => "no resources",
            Self::TimedOut => "timed out",
            Self::NotMyAddress => "not my address",
            Self::Malformed => "malformed",
            Self::UnknownConnection => "unknown connection",
            Self::WrongState => "wrong state",
            Self::Unknown(code) => return write!(f, "reason {code:#04x}"),
        })
    }
}

/// FCVI_PARAMETER of connect responses [P-7].
pub mod connect_parameter {
    use super::{ConnectReason, ConnectStatus};

    /// Encodes status and reason in one word.
    #[must_use]
    pub const fn pack(status: ConnectStatus, reason: ConnectReason) -> u32 {
        u32::from_be_bytes([status.raw(), reason.raw(), 0, 0])
    }

    /// Decodes status and reason of a word.
    #[must_use]
    pub const fn unpack(parameter: u32) -> (ConnectStatus, ConnectReason) {
        let [status, reason, ..] = parameter.to_be_bytes();
        (
            ConnectStatus::from_raw(status),
            ConnectReason::from_raw(reason),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnectReason, ConnectStatus, MessageReason, connect_parameter};

    #[test]
    fn every_code_round_trips() {
        for raw in 0..=u8::MAX {
            assert_eq!(MessageReason::from_raw(raw).raw(), raw);
            assert_eq!(ConnectStatus::from_raw(raw).raw(), raw);
            assert_eq!(ConnectReason::from_raw(raw).raw(), raw);
            let reason = MessageReason::from_raw(raw);
            assert_eq!(MessageReason::from_parameter(reason.to_parameter()), reason);
            for status in 0..=u8::MAX {
                let pair = (
                    ConnectStatus::from_raw(status),
                    ConnectReason::from_raw(raw),
                );
                let word = connect_parameter::pack(pair.0, pair.1);
                assert_eq!(connect_parameter::unpack(word), pair);
            }
        }
    }

    #[test]
    fn reasons_are_in_the_first_bytes_and_details_are_ignored() {
        assert_eq!(MessageReason::NicClosing.to_parameter(), 0x4B00_0000);
        assert_eq!(
            MessageReason::from_parameter(0x4BFF_1234),
            MessageReason::NicClosing
        );
        let word = connect_parameter::pack(ConnectStatus::Failed, ConnectReason::WrongState);
        assert_eq!(word, 0x801A_0000);
        assert_eq!(
            connect_parameter::unpack(0x0101_1234),
            (ConnectStatus::Pending, ConnectReason::WaitingForConsumer)
        );
    }
}
