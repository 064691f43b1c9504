//! The status word of a completed descriptor [VIPL 5.2].

use std::fmt;

use vi_types::status as bits;

/// The operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletedOperation {
    /// A local send.
    Send,
    /// A receive of the peer's send.
    Receive,
    /// A local RDMA write.
    RdmaWrite,
    /// An RDMA write of the peer whose immediate data consumed this receive descriptor.
    RemoteRdmaWrite,
    /// A local RDMA read.
    RdmaRead,
    /// An undefined code.
    Unknown(u8),
}

/// The status word of a completed descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u32);

/// The error bits with their names.
const ERRORS: [(u32, &str); 8] = [
    (bits::FORMAT_ERROR, "local format error"),
    (bits::PROTECTION_ERROR, "local protection error"),
    (bits::LENGTH_ERROR, "local length error"),
    (bits::PARTIAL_ERROR, "partial message"),
    (bits::DESC_FLUSHED_ERROR, "flushed"),
    (bits::TRANSPORT_ERROR, "transport error"),
    (bits::RDMA_PROT_ERROR, "RDMA protection error"),
    (bits::REMOTE_DESC_ERROR, "remote descriptor error"),
];

impl Status {
    /// Wraps a status word that the provider wrote.
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the status word.
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// Reports whether the descriptor completed without an error.
    pub const fn is_ok(self) -> bool {
        self.0 & bits::DONE != 0 && self.0 & bits::ERROR_MASK == 0
    }

    /// Reports whether the descriptor was flushed: the VI was disconnected before the operation was executed.
    pub const fn is_flushed(self) -> bool {
        self.0 & bits::DESC_FLUSHED_ERROR != 0
    }

    /// Reports whether the descriptor is malformed.
    pub const fn is_format_error(self) -> bool {
        self.0 & bits::FORMAT_ERROR != 0
    }

    /// Reports a protection error: a data segment is not in registered memory of the VI's tag; on a receive, also an
    /// RDMA write with immediate data that was refused.
    pub const fn is_protection_error(self) -> bool {
        self.0 & bits::PROTECTION_ERROR != 0
    }

    /// Reports whether the message exceeds the transfer size or the posted segments.
    pub const fn is_length_error(self) -> bool {
        self.0 & bits::LENGTH_ERROR != 0
    }

    /// Reports whether only a part of the message was sent or received.
    pub const fn is_partial(self) -> bool {
        self.0 & bits::PARTIAL_ERROR != 0
    }

    /// Reports whether data was lost or damaged in transit.
    pub const fn is_transport_error(self) -> bool {
        self.0 & bits::TRANSPORT_ERROR != 0
    }

    /// Reports whether the peer's memory does not permit this RDMA access.
    pub const fn is_rdma_protection_error(self) -> bool {
        self.0 & bits::RDMA_PROT_ERROR != 0
    }

    /// Reports whether the peer had no receive descriptor, or an unusable one.
    pub const fn is_remote_descriptor_error(self) -> bool {
        self.0 & bits::REMOTE_DESC_ERROR != 0
    }

    /// Reports whether the message carried immediate data.
    pub const fn has_immediate(self) -> bool {
        self.0 & bits::IMMEDIATE != 0
    }

    /// Returns the operation that completed.
    pub fn operation(self) -> CompletedOperation {
        match self.0 & bits::OP_MASK {
            bits::OP_SEND => CompletedOperation::Send,
            bits::OP_RECEIVE => CompletedOperation::Receive,
            bits::OP_RDMA_WRITE => CompletedOperation::RdmaWrite,
            bits::OP_REMOTE_RDMA_WRITE => CompletedOperation::RemoteRdmaWrite,
            bits::OP_RDMA_READ => CompletedOperation::RdmaRead,
            other => CompletedOperation::Unknown((other >> bits::OP_MASK.trailing_zeros()) as u8),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ok() {
            return out.write_str("done");
        }
        let mut separator = "";
        for (_, name) in ERRORS.iter().filter(|(bit, _)| self.0 & bit != 0) {
            write!(out, "{separator}{name}")?;
            separator = ", ";
        }
        if separator.is_empty() {
            out.write_str("not done")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "Status({:#010x}: {:?}: {self})",
            self.0,
            self.operation()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_without_error_is_ok_and_has_operation() {
        let codes = [
            (0, CompletedOperation::Send),
            (1, CompletedOperation::Receive),
            (2, CompletedOperation::RdmaWrite),
            (3, CompletedOperation::RemoteRdmaWrite),
            (4, CompletedOperation::RdmaRead),
            (5, CompletedOperation::Unknown(5)),
            (7, CompletedOperation::Unknown(7)),
        ];
        for (code, operation) in codes {
            let status = Status::from_raw(code << 16 | 1);
            assert!(status.is_ok());
            assert!(!status.has_immediate());
            assert_eq!(status.operation(), operation);
        }
        assert!(Status::from_raw(1 << 19 | 1).has_immediate());
    }

    #[test]
    fn status_without_done_bit_is_not_ok() {
        assert!(!Status::from_raw(0).is_ok());
        assert_eq!(Status::from_raw(0).to_string(), "not done");
    }

    #[test]
    fn error_bits_have_position_and_name() {
        type Test = fn(Status) -> bool;
        let tests: [Test; 8] = [
            Status::is_format_error,
            Status::is_protection_error,
            Status::is_length_error,
            Status::is_partial,
            Status::is_flushed,
            Status::is_transport_error,
            Status::is_rdma_protection_error,
            Status::is_remote_descriptor_error,
        ];
        for (number, (bit, name)) in ERRORS.into_iter().enumerate() {
            assert_eq!(bit, 2 << number, "{name}");
            let status = Status::from_raw(bit | 1);
            assert!(!status.is_ok());
            assert_eq!(status.to_string(), name);
            for (other, test) in tests.into_iter().enumerate() {
                assert_eq!(test(status), other == number, "{name}");
            }
        }
        let both = Status::from_raw(bits::TRANSPORT_ERROR | bits::PARTIAL_ERROR | 1);
        assert_eq!(both.to_string(), "partial message, transport error");
    }
}
