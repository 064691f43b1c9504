//! Virtual Interfaces and completion queues: create, destroy, query [VIPL 3.2, 3.6, 3.7.3].

use vipl::{CqHandle, ViHandle, provider};

use crate::guard::{guarded, guarded_new};
use crate::nic::nic_from_c;
use crate::pointer::{Out, read_in};
use crate::types::{
    RawHandle, VipBoolean, VipReturn, VipUlong, VipViAttributes, handle_from_c, handle_to_c,
};

/// Converts a VI handle from C, which may be invalid.
#[inline]
pub(crate) fn vi_from_c(handle: RawHandle) -> ViHandle {
    ViHandle::from_raw(handle_from_c(handle))
}

/// Converts a completion queue handle from C, which may be invalid.
#[inline]
pub(crate) fn cq_from_c(handle: RawHandle) -> CqHandle {
    CqHandle::from_raw(handle_from_c(handle))
}

/// Creates an Idle VI [VIPL 3.2.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateVi(
    nic_handle: RawHandle,
    vi_attribs: *const VipViAttributes,
    send_cq_handle: RawHandle,
    recv_cq_handle: RawHandle,
    vi_handle: *mut RawHandle,
) -> VipReturn {
    guarded_new("VipCreateVi", || {
        // SAFETY: NULL or readable, as the C caller guarantees.
        let attributes = unsafe { read_in(vi_attribs) }?.into();
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(vi_handle) }?;
        let [send_cq, recv_cq] = [send_cq_handle, recv_cq_handle]
            .map(|handle| (!handle.is_null()).then(|| cq_from_c(handle)));
        let vi = provider::create_vi(nic_from_c(nic_handle), &attributes, send_cq, recv_cq)?;
        out.set(handle_to_c(vi.into_raw()));
        Ok(())
    })
}

/// Destroys an Idle VI whose queues are empty [VIPL 3.2.2].
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyVi(vi_handle: RawHandle) -> VipReturn {
    guarded("VipDestroyVi", || {
        provider::destroy_vi(vi_from_c(vi_handle))
    })
}

/// Returns a VI's state and attributes [VIPL 3.7.3].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryVi(
    vi_handle: RawHandle,
    state: *mut u32,
    vi_attribs: *mut VipViAttributes,
    vi_send_q_empty: *mut VipBoolean,
    vi_recv_q_empty: *mut VipBoolean,
) -> VipReturn {
    guarded("VipQueryVi", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let state_out = unsafe { Out::new(state) }?;
        // SAFETY: as above.
        let attributes_out = unsafe { Out::new(vi_attribs) }?;
        // SAFETY: as above.
        let send_empty_out = unsafe { Out::new(vi_send_q_empty) }?;
        // SAFETY: as above.
        let recv_empty_out = unsafe { Out::new(vi_recv_q_empty) }?;
        let info = provider::query_vi(vi_from_c(vi_handle))?;
        state_out.set(info.state as u32);
        attributes_out.set((&info.attributes).into());
        send_empty_out.set(info.send_queue_empty.into());
        recv_empty_out.set(info.recv_queue_empty.into());
        Ok(())
    })
}

/// Creates a completion queue of at least `entry_count` entries [VIPL 3.6.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateCQ(
    nic_handle: RawHandle,
    entry_count: VipUlong,
    cq_handle: *mut RawHandle,
) -> VipReturn {
    guarded_new("VipCreateCQ", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(cq_handle) }?;
        let cq = provider::create_cq(nic_from_c(nic_handle), entry_count)?;
        out.set(handle_to_c(cq.into_raw()));
        Ok(())
    })
}

/// Changes the minimum capacity of a completion queue [VIPL 3.6.3].
#[unsafe(no_mangle)]
pub extern "C" fn VipResizeCQ(cq_handle: RawHandle, entry_count: VipUlong) -> VipReturn {
    guarded_new("VipResizeCQ", || {
        provider::resize_cq(cq_from_c(cq_handle), entry_count)
    })
}

/// Destroys a completion queue that no VI uses [VIPL 3.6.2].
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyCQ(cq_handle: RawHandle) -> VipReturn {
    guarded("VipDestroyCQ", || {
        provider::destroy_cq(cq_from_c(cq_handle))
    })
}
