//! Posting and polling of descriptors: the data path [VIPL 3.5].
//!
//! A Done or Wait call always writes its descriptor pointer, unless that is NULL: the completed
//! descriptor, or NULL, so that a program does not use a stale one.

use core::ptr::null_mut;
use core::time::Duration;

use vipl::{CqEntry, Done, MemoryHandle, RawDescriptor, Result, Timeout, VipError, provider};

use crate::guard::{guarded, guarded_data_path};
use crate::pointer::Out;
use crate::types::{RawHandle, VipBoolean, VipReturn, VipUlong, handle_to_c};
use crate::vi::{cq_from_c, vi_from_c};

/// `VIP_INFINITE`.
const INFINITE: VipUlong = !0;

/// `VIP_STATUS_ERROR_MASK`: the error bits of a status.
const STATUS_ERROR_MASK: u32 = 0x1FE;

/// Converts a timeout parameter in milliseconds.
#[inline]
pub(crate) fn timeout_from_c(timeout_ms: VipUlong) -> Timeout {
    match timeout_ms {
        0 => Timeout::Immediate,
        INFINITE => Timeout::Infinite,
        finite => Timeout::After(Duration::from_millis(finite)),
    }
}

/// Writes the descriptor of a Done or Wait call and returns its result.
#[inline]
fn deliver(found: Result<Done>, out: &Out<*mut RawDescriptor>) -> Result<()> {
    let (descriptor, outcome) = match found {
        Ok(Done::Completed { descriptor, status }) if status & STATUS_ERROR_MASK == 0 => {
            (descriptor, Ok(()))
        }
        Ok(Done::Completed { descriptor, .. }) => (descriptor, Err(VipError::DescriptorError)),
        Ok(Done::Empty) => (null_mut(), Err(VipError::DescriptorError)),
        Ok(Done::NotDone) => (null_mut(), Err(VipError::NotDone)),
        Err(error) => (null_mut(), Err(error)),
    };
    out.set(descriptor);
    outcome
}

/// Posts a descriptor on a send queue [VIPL 3.5.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipPostSend(
    vi_handle: RawHandle,
    descriptor_ptr: *mut RawDescriptor,
    memory_handle: u32,
) -> VipReturn {
    guarded_data_path("VipPostSend", || {
        let (vi, handle) = (vi_from_c(vi_handle), MemoryHandle(memory_handle));
        // SAFETY: the C caller does not access descriptor and buffers until the descriptor is taken
        // off its queue; the provider checks that they are registered.
        unsafe { provider::post_send(vi, descriptor_ptr, handle) }
    })
}

/// Posts a descriptor on a receive queue [VIPL 3.5.4].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipPostRecv(
    vi_handle: RawHandle,
    descriptor_ptr: *mut RawDescriptor,
    memory_handle: u32,
) -> VipReturn {
    guarded_data_path("VipPostRecv", || {
        let (vi, handle) = (vi_from_c(vi_handle), MemoryHandle(memory_handle));
        // SAFETY: as in VipPostSend.
        unsafe { provider::post_recv(vi, descriptor_ptr, handle) }
    })
}

/// Takes the descriptor at the head of a send queue if it has completed [VIPL 3.5.2].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendDone(
    vi_handle: RawHandle,
    descriptor_ptr: *mut *mut RawDescriptor,
) -> VipReturn {
    guarded_data_path("VipSendDone", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(descriptor_ptr) }?;
        deliver(provider::send_done(vi_from_c(vi_handle)), &out)
    })
}

/// Takes the descriptor at the head of a receive queue if it has completed [VIPL 3.5.5].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvDone(
    vi_handle: RawHandle,
    descriptor_ptr: *mut *mut RawDescriptor,
) -> VipReturn {
    guarded_data_path("VipRecvDone", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(descriptor_ptr) }?;
        deliver(provider::recv_done(vi_from_c(vi_handle)), &out)
    })
}

/// Waits for the descriptor at the head of a send queue and takes it [VIPL 3.5.3].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendWait(
    vi_handle: RawHandle,
    timeout_ms: VipUlong,
    descriptor_ptr: *mut *mut RawDescriptor,
) -> VipReturn {
    guarded("VipSendWait", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(descriptor_ptr) }?;
        deliver(
            provider::send_wait(vi_from_c(vi_handle), timeout_from_c(timeout_ms)),
            &out,
        )
    })
}

/// Waits for the descriptor at the head of a receive queue and takes it [VIPL 3.5.6].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvWait(
    vi_handle: RawHandle,
    timeout_ms: VipUlong,
    descriptor_ptr: *mut *mut RawDescriptor,
) -> VipReturn {
    guarded("VipRecvWait", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(descriptor_ptr) }?;
        deliver(
            provider::recv_wait(vi_from_c(vi_handle), timeout_from_c(timeout_ms)),
            &out,
        )
    })
}

/// The two OUT parameters of the completion queue calls.
struct EntryOut {
    vi: Out<RawHandle>,
    recv_queue: Out<VipBoolean>,
}

impl EntryOut {
    /// Checks both pointers; NULL is an invalid parameter.
    ///
    /// # Safety
    /// Both are NULL or writable while the result exists.
    #[inline]
    unsafe fn new(vi_handle: *mut RawHandle, recv_queue: *mut VipBoolean) -> Result<Self> {
        // SAFETY: the caller's obligation.
        let vi = unsafe { Out::new(vi_handle) }?;
        // SAFETY: the caller's obligation.
        let recv_queue = unsafe { Out::new(recv_queue) }?;
        Ok(Self { vi, recv_queue })
    }

    #[inline]
    fn set(&self, entry: &CqEntry) {
        self.vi.set(handle_to_c(entry.vi.into_raw()));
        self.recv_queue.set(entry.recv_queue.into());
    }
}

/// Takes the oldest entry of a completion queue, if any [VIPL 3.5.7].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQDone(
    cq_handle: RawHandle,
    vi_handle: *mut RawHandle,
    recv_queue: *mut VipBoolean,
) -> VipReturn {
    guarded_data_path("VipCQDone", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { EntryOut::new(vi_handle, recv_queue) }?;
        out.set(&provider::cq_done(cq_from_c(cq_handle))?);
        Ok(())
    })
}

/// Waits for an entry of a completion queue and takes it [VIPL 3.5.8].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQWait(
    cq_handle: RawHandle,
    timeout_ms: VipUlong,
    vi_handle: *mut RawHandle,
    recv_queue: *mut VipBoolean,
) -> VipReturn {
    guarded("VipCQWait", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { EntryOut::new(vi_handle, recv_queue) }?;
        out.set(&provider::cq_wait(
            cq_from_c(cq_handle),
            timeout_from_c(timeout_ms),
        )?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::{dangling_mut, without_provenance_mut};

    /// Calls `deliver`; returns its result and the caller's pointer.
    fn delivered(found: Result<Done>) -> (Result<()>, *mut RawDescriptor) {
        let mut slot = without_provenance_mut(0xDEAD);
        // SAFETY: a local variable.
        let out = unsafe { Out::new(&raw mut slot) }.expect("not NULL");
        let outcome = deliver(found, &out);
        (outcome, slot)
    }

    #[test]
    fn deliver_returns_an_error_for_an_error_status() {
        let descriptor = dangling_mut();
        let done = |status| delivered(Ok(Done::Completed { descriptor, status }));
        assert_eq!(done(0x0009_0001), (Ok(()), descriptor));
        for bit in 1..=8 {
            assert_eq!(
                done(1 | (1 << bit)),
                (Err(VipError::DescriptorError), descriptor)
            );
        }
    }

    #[test]
    fn deliver_without_a_descriptor_writes_null() {
        assert_eq!(
            delivered(Ok(Done::Empty)),
            (Err(VipError::DescriptorError), null_mut())
        );
        assert_eq!(
            delivered(Ok(Done::NotDone)),
            (Err(VipError::NotDone), null_mut())
        );
        assert_eq!(
            delivered(Err(VipError::Timeout)),
            (Err(VipError::Timeout), null_mut())
        );
    }

    #[test]
    fn timeouts_are_milliseconds() {
        assert!(matches!(timeout_from_c(0), Timeout::Immediate));
        assert!(matches!(timeout_from_c(!0), Timeout::Infinite));
        assert!(
            matches!(timeout_from_c(1500), Timeout::After(d) if d == Duration::from_millis(1500))
        );
    }
}
