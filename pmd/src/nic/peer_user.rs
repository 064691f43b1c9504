//! User IDs of the programs that request connections or are connected; beyond the VIPL guide.
//!
//! A user is known if the peer is a VI of the same NIC: in a datapath process the kernel reports the user of each
//! attached program, and all VIs of a program with a NIC of its own belong to its own user. Information from the wire
//! is not used.

use vi_types::Outcome;

use super::{conn, vi};

/// Returns the user ID of the program that made a pending request, in the user namespace of the datapath
/// process or this program; `None` if it is unknown.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request; `Timeout` if the client has given up.
pub fn request_user(conn_handle: u64) -> Outcome<Option<u32>> {
    let (device, id) = conn(conn_handle)?;
    device.calls.request_user(device, id)
}

/// Returns the user ID of the program that a VI is connected to, likewise.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI; `InvalidState` unless the VI is Connected.
pub fn peer_user(handle: u64) -> Outcome<Option<u32>> {
    let vi = vi(handle)?;
    vi.device.calls.peer_user(vi, handle)
}
