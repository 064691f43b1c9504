//! Connection options of VIs beyond the VIPL guide, for NICs that speak VI/TCP [VI/TCP 2.2.1].

use vi_types::{ConnectionOptions, NegotiatedOptions, Outcome};

use super::{conn, vi};

/// Returns the connection options of a VI.
///
/// # Errors
/// `InvalidParameter` for a handle that names no VI, or one of a NIC that does not speak VI/TCP.
pub fn connection_options(handle: u64) -> Outcome<ConnectionOptions> {
    let vi = vi(handle)?;
    vi.device.calls.connection_options(vi, handle)
}

/// Replaces the connection options of an Idle VI.
///
/// # Errors
/// As for [`connection_options`], also for security information that is too long; `InvalidState` unless
/// the VI is Idle.
pub fn set_connection_options(handle: u64, options: &ConnectionOptions) -> Outcome<()> {
    let vi = vi(handle)?;
    vi.device.calls.set_connection_options(vi, handle, options)
}

/// Returns the options that a VI and its peer have negotiated.
///
/// # Errors
/// As for [`connection_options`]; `InvalidState` unless the VI is Connected.
pub fn negotiated_options(handle: u64) -> Outcome<NegotiatedOptions> {
    let vi = vi(handle)?;
    vi.device.calls.negotiated_options(vi, handle)
}

/// Returns the security information that a client sent with its pending request.
///
/// # Errors
/// `InvalidParameter` for a handle that names no request, or one of a NIC that does not speak VI/TCP;
/// `Timeout` if the client has given up.
pub fn request_security(conn_handle: u64) -> Outcome<Vec<u8>> {
    let (device, id) = conn(conn_handle)?;
    device.calls.request_security(device, id)
}
