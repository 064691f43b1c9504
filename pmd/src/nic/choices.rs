//! Calls beyond the guide, for NICs that speak VI/TCP [VI/TCP 2.2.1].

use super::{conn, vi};
use crate::attach::calls;
use crate::choices::{Agreement, ViChoices};
use crate::control::{self, Outcome};
use crate::instance::Conn;

/// What a VI wants of its connections beyond the guide.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI, or one of a NIC that does not speak VI/TCP.
pub fn choices(handle: u64) -> Outcome<ViChoices> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::choices(vi, handle);
    }
    control::choices::choices(vi, handle)
}

/// Changes what an Idle VI wants, all of it or nothing.
///
/// # Errors
/// As for [`choices`], also for security information that is too long; `InvalidState` unless the VI is
/// Idle.
pub fn set_choices(handle: u64, choices: &ViChoices) -> Outcome<()> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::set_choices(vi, handle, choices);
    }
    control::choices::set_choices(vi, handle, choices)
}

/// What a VI and its peer have agreed on.
///
/// # Errors
/// As for [`choices`]; `InvalidState` unless the VI is Connected.
pub fn agreement(handle: u64) -> Outcome<Agreement> {
    let vi = vi(handle)?;
    if vi.device.is_attached() {
        return calls::agreement(vi, handle);
    }
    control::choices::agreement(vi, handle)
}

/// What the client told with this request, which is not answered yet.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request, or one of a NIC that does not speak VI/TCP;
/// `Timeout` if the client has gone.
pub fn request_security(conn_handle: u64) -> Outcome<Vec<u8>> {
    let (device, id) = conn(conn_handle)?;
    match id {
        Conn::Engine(id) => control::choices::request_security(device, id),
        Conn::Process(conn) => calls::request_security(device, conn),
    }
}
