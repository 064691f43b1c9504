//! Connection options of VIs of VI/TCP NICs, an extension of the VIPL guide [VI/TCP 2.2.1].

use pmd::nic;
use vi_types::{ConnectionOptions, NegotiatedOptions};

use crate::types::{ConnHandle, Result, ViHandle};

/// Returns the connection options of a VI.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI, or a VI of a NIC that does not use VI/TCP.
pub fn connection_options(vi: ViHandle) -> Result<ConnectionOptions> {
    Ok(nic::connection_options(vi.into_raw())?)
}

/// Replaces the connection options of an Idle VI.
///
/// # Errors
/// As for [`connection_options`]; `InvalidParameter` also for security information that is too long; `InvalidState`
/// unless the VI is Idle.
pub fn set_connection_options(vi: ViHandle, options: &ConnectionOptions) -> Result<()> {
    Ok(nic::set_connection_options(vi.into_raw(), options)?)
}

/// Returns the options that a VI and its peer have negotiated.
///
/// # Errors
/// As for [`connection_options`]; `InvalidState` unless the VI is Connected.
pub fn negotiated_options(vi: ViHandle) -> Result<NegotiatedOptions> {
    Ok(nic::negotiated_options(vi.into_raw())?)
}

/// Returns the security information of a pending connection request.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request, or a request of a NIC that does not use VI/TCP;
/// `Timeout` if the client has given up.
pub fn request_security(conn: ConnHandle) -> Result<Vec<u8>> {
    Ok(nic::request_security(conn.into_raw())?)
}
