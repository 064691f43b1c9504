//! Calls beyond the guide, for NICs that speak VI/TCP [VI/TCP 2.2.1].

use pmd::{Agreement, ViChoices, nic};

use crate::types::{ConnHandle, Result, ViHandle};

/// What a VI wants of its connections beyond the guide.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI, or one of a NIC that does not speak VI/TCP.
pub fn choices(vi: ViHandle) -> Result<ViChoices> {
    Ok(nic::choices(vi.into_raw())?)
}

/// Changes what an Idle VI wants, all of it or nothing.
///
/// # Errors
/// As for [`choices`], also for security information that is too long; `InvalidState` unless the VI is
/// Idle.
pub fn set_choices(vi: ViHandle, choices: &ViChoices) -> Result<()> {
    Ok(nic::set_choices(vi.into_raw(), choices)?)
}

/// What a VI and its peer have agreed on.
///
/// # Errors
/// As for [`choices`]; `InvalidState` unless the VI is Connected.
pub fn agreement(vi: ViHandle) -> Result<Agreement> {
    Ok(nic::agreement(vi.into_raw())?)
}

/// The security information that came with a request which is not answered yet.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request, or one of a NIC that does not speak VI/TCP;
/// `Timeout` if the client has gone.
pub fn request_security(conn: ConnHandle) -> Result<Vec<u8>> {
    Ok(nic::request_security(conn.into_raw())?)
}
