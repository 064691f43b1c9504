//! Peer-to-peer connections [VIPL 3.3.6-3.3.8].

use vipl::{VipError, provider};

use crate::address::read_net_address;
use crate::guard::{guarded, guarded_new};
use crate::pointer::Out;
use crate::queue::timeout_from_c;
use crate::types::{RawHandle, VipNetAddress, VipReturn, VipUlong, VipViAttributes};
use crate::vi::vi_from_c;

/// Requests a peer-to-peer connection and returns immediately [VIPL 3.3.6].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerRequest(
    vi_handle: RawHandle,
    local_addr: *const VipNetAddress,
    remote_addr: *const VipNetAddress,
    timeout_ms: VipUlong,
) -> VipReturn {
    guarded_new("VipConnectPeerRequest", || {
        // SAFETY: NULL or as long as its lengths state, as the C caller guarantees.
        let local = unsafe { read_net_address(local_addr) }?;
        // SAFETY: as above.
        let remote = unsafe { read_net_address(remote_addr) }?;
        if timeout_ms == 0 {
            return Err(VipError::InvalidParameter);
        }
        let timeout = timeout_from_c(timeout_ms);
        provider::connect_peer_request(vi_from_c(vi_handle), &local, &remote, timeout)
    })
}

/// Returns the result of a peer request without waiting [VIPL 3.3.7].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerDone(
    vi_handle: RawHandle,
    remote_vi_attribs: *mut VipViAttributes,
) -> VipReturn {
    guarded("VipConnectPeerDone", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let attributes_out = unsafe { Out::new(remote_vi_attribs) }?;
        let attributes = provider::connect_peer_done(vi_from_c(vi_handle))?;
        attributes_out.set((&attributes).into());
        Ok(())
    })
}

/// Waits for the result of a peer request and returns it [VIPL 3.3.8].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerWait(
    vi_handle: RawHandle,
    remote_vi_attribs: *mut VipViAttributes,
) -> VipReturn {
    guarded("VipConnectPeerWait", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let attributes_out = unsafe { Out::new(remote_vi_attribs) }?;
        let attributes = provider::connect_peer_wait(vi_from_c(vi_handle))?;
        attributes_out.set((&attributes).into());
        Ok(())
    })
}
