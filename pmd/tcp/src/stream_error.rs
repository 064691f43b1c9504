//! What an error of a stream means, with TLS or without.

use std::io;

/// Checks for `EAGAIN`: the operation would block.
pub(super) fn is_would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Checks for a TLS error: the peer violated TLS, or one side refused the other.
pub(super) fn is_tls_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// Checks for an end of TCP without close_notify.
pub(super) fn is_truncated(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// Checks whether a read used up its system calls: there may be more data.
pub(super) fn is_budget_spent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Checks whether a read found data of the handshake, which needs a turn.
pub(super) fn needs_turn(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}
