//! User IDs of remote programs, for requests and connections: an extension of the guide.

use pmd::nic;

use crate::types::{ConnHandle, Result, ViHandle};

/// Returns the user ID of the program that made a pending request, or `None` if it is not known. It
/// is known for programs that are attached to the same NIC of the same datapath process, which gets
/// it from the kernel, and for requests of this program itself if it opened the NIC.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request; `Timeout` if the client has given up.
pub fn request_user(conn: ConnHandle) -> Result<Option<u32>> {
    Ok(nic::request_user(conn.into_raw())?)
}

/// Returns the user ID of the program that a VI is connected to, or `None` if it is not known; see
/// [`request_user`].
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI; `InvalidState` unless the VI is Connected.
pub fn peer_user(vi: ViHandle) -> Result<Option<u32>> {
    Ok(nic::peer_user(vi.into_raw())?)
}
