//! Connection options of VIs beyond the VIPL guide, for NICs that speak VI/TCP.

use vi_engine::ConnId;

use super::{ControlError, Outcome, poller_of};
use crate::connection_options::{ConnectionOptions, NegotiatedOptions};
use crate::device::Device;
use crate::nic_backend::Backend;
use crate::vi::ViShared;

/// Returns the connection options of a VI.
pub(crate) fn connection_options(vi: &'static ViShared, handle: u64) -> Outcome<ConnectionOptions> {
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp();
    let options = tcp.and_then(|tcp| tcp.connection_options(vi.index));
    options.cloned().ok_or(ControlError::InvalidParameter)
}

/// Replaces the connection options of a VI, which must be Idle.
pub(crate) fn set_connection_options(
    vi: &'static ViShared,
    handle: u64,
    options: &ConnectionOptions,
) -> Outcome<()> {
    options.check_for(&vi.device.config)?;
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp_mut();
    let tcp = tcp.ok_or(ControlError::InvalidParameter)?;
    match tcp.set_connection_options(vi.index, options) {
        true => Ok(()),
        false => Err(ControlError::InvalidState),
    }
}

/// Returns the options that a VI and its peer have negotiated.
pub(crate) fn negotiated_options(vi: &'static ViShared, handle: u64) -> Outcome<NegotiatedOptions> {
    vi.device.poll();
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp();
    let tcp = tcp.ok_or(ControlError::InvalidParameter)?;
    tcp.negotiated_options(vi.index)
        .ok_or(ControlError::InvalidState)
}

/// Returns the security information that a client sent with its pending request.
pub(crate) fn request_security(device: &'static Device, conn: ConnId) -> Outcome<Vec<u8>> {
    let mut held = device.lock();
    let poller = held
        .as_mut()
        .and_then(Backend::poller_mut)
        .ok_or(ControlError::InvalidParameter)?;
    let tcp = poller.engine.vi_tcp();
    let tcp = tcp.ok_or(ControlError::InvalidParameter)?;
    tcp.security_of(conn).ok_or(ControlError::Timeout)
}
