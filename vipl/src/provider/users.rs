//! Calls beyond the guide: the users of programs at the other ends of requests and connections.

use pmd::nic;

use crate::types::{ConnHandle, Result, ViHandle};

/// Returns the user ID of the program that makes a request which is not answered yet; `None` where
/// it is not known. It is known of programs that are attached to the same NIC of the same datapath
/// process, as the kernel named them to the process, and of this program's own requests where it
/// opened the NIC itself.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request; `Timeout` if the client has gone.
pub fn request_user(conn: ConnHandle) -> Result<Option<u32>> {
    Ok(nic::request_user(conn.into_raw())?)
}

/// Returns the user ID of the program that a VI is connected to, known of the same programs as by
/// [`request_user`].
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI; `InvalidState` unless the VI is Connected.
pub fn peer_user(vi: ViHandle) -> Result<Option<u32>> {
    Ok(nic::peer_user(vi.into_raw())?)
}
