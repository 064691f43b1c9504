//! Connection options of VIs beyond the VIPL guide, for NICs that speak VI/TCP.

use vi_engine::ConnId;
use vi_types::{CallError, ConnectionOptions, NegotiatedOptions, Outcome};

use super::poller_of;
use crate::config::NicConfig;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::Backend;

const _: () = {
    use vitcp_lite::profile;
    assert!(ConnectionOptions::MAX_SECURITY_BYTES == profile::MAX_SECURITY_BYTES);
    assert!(ConnectionOptions::MAX_KEYED_SECURITY_BYTES == profile::MAX_KEYED_SECURITY_BYTES);
};

/// Returns the maximum length of security information of VIs of this NIC.
fn max_security_bytes(nic: &NicConfig) -> usize {
    match nic.key_file {
        Some(_) => ConnectionOptions::MAX_KEYED_SECURITY_BYTES,
        None => ConnectionOptions::MAX_SECURITY_BYTES,
    }
}

/// Returns the connection options of a VI.
pub(crate) fn connection_options(vi: Vi, handle: u64) -> Outcome<ConnectionOptions> {
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp();
    let options = tcp.and_then(|tcp| tcp.connection_options(vi.index));
    options.cloned().ok_or(CallError::InvalidParameter)
}

/// Replaces the connection options of a VI, which must be Idle.
pub(crate) fn set_connection_options(
    vi: Vi,
    handle: u64,
    options: &ConnectionOptions,
) -> Outcome<()> {
    options.check(max_security_bytes(&vi.device.config))?;
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp_mut();
    let tcp = tcp.ok_or(CallError::InvalidParameter)?;
    match tcp.set_connection_options(vi.index, options) {
        true => Ok(()),
        false => Err(CallError::InvalidState),
    }
}

/// Returns the options that a VI and its peer have negotiated.
pub(crate) fn negotiated_options(vi: Vi, handle: u64) -> Outcome<NegotiatedOptions> {
    vi.device.poll();
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let tcp = poller.engine.vi_tcp();
    let tcp = tcp.ok_or(CallError::InvalidParameter)?;
    tcp.negotiated_options(vi.index)
        .ok_or(CallError::InvalidState)
}

/// Returns the security information that a client sent with its pending request.
pub(crate) fn request_security(device: &'static Device, conn: ConnId) -> Outcome<Vec<u8>> {
    let mut held = device.lock();
    let poller = held
        .as_mut()
        .and_then(Backend::poller_mut)
        .ok_or(CallError::InvalidParameter)?;
    let tcp = poller.engine.vi_tcp();
    let tcp = tcp.ok_or(CallError::InvalidParameter)?;
    tcp.security_of(conn).ok_or(CallError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_limit_security_information() {
        let mut nic = NicConfig::default();
        assert_eq!(max_security_bytes(&nic), 256);
        nic.key_file = Some("keys".into());
        assert_eq!(max_security_bytes(&nic), 191);
    }
}
