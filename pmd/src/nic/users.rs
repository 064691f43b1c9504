//! Calls beyond the guide: the users of programs at the other ends of requests and connections.
//!
//! A user is known where the other end is a VI of the same NIC: in a datapath process the kernel
//! has named the user of each program that attached, and a program with a NIC of its own is of its
//! own user. Nothing that comes by the wire is believed.

use super::{conn, vi};
use crate::attach::calls;
use crate::control::{self, Outcome};
use crate::instance::Conn;

/// Returns the user whose program makes this request, which is not answered yet, as the datapath
/// process or this program sees it; `None` where it is not known.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request; `Timeout` if the client has gone.
pub fn request_user(conn_handle: u64) -> Outcome<Option<u32>> {
    let (device, id) = conn(conn_handle)?;
    match id {
        Conn::Engine(id) => control::users::request_user(device, id),
        Conn::Process(conn) => calls::request_user(device, conn),
    }
}

/// Returns the user whose program a VI is connected to, likewise.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI; `InvalidState` unless the VI is Connected.
pub fn peer_user(handle: u64) -> Outcome<Option<u32>> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::peer_user(vi, handle);
    }
    control::users::peer_user(vi, handle)
}
