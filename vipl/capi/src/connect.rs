//! Connections between client and server [VIPL 3.3.1-3.3.5].

use vipl::{ConnHandle, VipError, provider};

use crate::address::{AddressOut, read_net_address};
use crate::guard::{guarded, guarded_new};
use crate::nic::nic_from_c;
use crate::pointer::Out;
use crate::queue::timeout_from_c;
use crate::types::{
    RawHandle, VipNetAddress, VipReturn, VipUlong, VipViAttributes, handle_from_c, handle_to_c,
};
use crate::vi::vi_from_c;

pub(crate) fn conn_from_c(handle: RawHandle) -> ConnHandle {
    ConnHandle::from_raw(handle_from_c(handle))
}

/// Waits for a connection request [VIPL 3.3.1].
///
/// Writes the lengths, the host address and the discriminator of `remote_addr`, and no byte after them.
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectWait(
    nic_handle: RawHandle,
    local_addr: *const VipNetAddress,
    timeout_ms: VipUlong,
    remote_addr: *mut VipNetAddress,
    remote_vi_attribs: *mut VipViAttributes,
    conn_handle: *mut RawHandle,
) -> VipReturn {
    guarded_new("VipConnectWait", || {
        // SAFETY: NULL or as long as its lengths state, as the C caller guarantees.
        let local = unsafe { read_net_address(local_addr) }?;
        // SAFETY: NULL or with room for the longest address, as the C caller guarantees.
        let remote_out = unsafe { AddressOut::whole(remote_addr) }?;
        // SAFETY: NULL or writable, as the C caller guarantees.
        let attributes_out = unsafe { Out::new(remote_vi_attribs) }?;
        // SAFETY: as above.
        let conn_out = unsafe { Out::new(conn_handle) }?;
        let nic = nic_from_c(nic_handle);
        let request = provider::connect_wait(nic, &local, timeout_from_c(timeout_ms))?;
        remote_out.set(&request.remote);
        attributes_out.set((&request.attributes).into());
        conn_out.set(handle_to_c(request.conn.into_raw()));
        Ok(())
    })
}

/// Accepts a connection request with an Idle VI [VIPL 3.3.2].
#[unsafe(no_mangle)]
pub extern "C" fn VipConnectAccept(conn_handle: RawHandle, vi_handle: RawHandle) -> VipReturn {
    guarded_new("VipConnectAccept", || {
        provider::connect_accept(conn_from_c(conn_handle), vi_from_c(vi_handle))
    })
}

/// Rejects a connection request [VIPL 3.3.3].
#[unsafe(no_mangle)]
pub extern "C" fn VipConnectReject(conn_handle: RawHandle) -> VipReturn {
    guarded("VipConnectReject", || {
        provider::connect_reject(conn_from_c(conn_handle))
    })
}

/// Requests a connection to a server [VIPL 3.3.4].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectRequest(
    vi_handle: RawHandle,
    local_addr: *const VipNetAddress,
    remote_addr: *const VipNetAddress,
    timeout_ms: VipUlong,
    remote_vi_attribs: *mut VipViAttributes,
) -> VipReturn {
    guarded_new("VipConnectRequest", || {
        // SAFETY: NULL or as long as its lengths state, as the C caller guarantees.
        let local = unsafe { read_net_address(local_addr) }?;
        // SAFETY: as above.
        let remote = unsafe { read_net_address(remote_addr) }?;
        // SAFETY: NULL or writable, as the C caller guarantees.
        let attributes_out = unsafe { Out::new(remote_vi_attribs) }?;
        if timeout_ms == 0 {
            return Err(VipError::InvalidParameter);
        }
        let timeout = timeout_from_c(timeout_ms);
        let attributes = provider::connect_request(vi_from_c(vi_handle), &local, &remote, timeout)?;
        attributes_out.set((&attributes).into());
        Ok(())
    })
}

/// Disconnects a VI, in any state, and flushes its queues [VIPL 3.3.5].
#[unsafe(no_mangle)]
pub extern "C" fn VipDisconnect(vi_handle: RawHandle) -> VipReturn {
    guarded("VipDisconnect", || {
        provider::disconnect(vi_from_c(vi_handle))
    })
}
