//! Opening, closing and querying a NIC, and its error callback [VIPL 3.1, 3.7.1, 3.8].

use core::ffi::{c_char, c_void};

use vipl::{ErrorDescriptor, ErrorHandler, NicHandle, VipError, provider};

use crate::guard::{guarded, guarded_new, run_handler};
use crate::pointer::{Out, read_string};
use crate::types::{
    ErrorHandlerFn, NIC_NAME_BYTES, RawHandle, VipErrorDescriptor, VipNicAttributes, VipReturn,
    handle_from_c, handle_to_c,
};

/// Converts a NIC handle from C, which may be invalid.
#[inline]
pub(crate) fn nic_from_c(handle: RawHandle) -> NicHandle {
    NicHandle::from_raw(handle_from_c(handle))
}

/// Opens a NIC by name [VIPL 3.1.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipOpenNic(
    device_name: *const c_char,
    nic_handle: *mut RawHandle,
) -> VipReturn {
    guarded_new("VipOpenNic", || {
        vipl::logger::install("vipl");
        // SAFETY: NULL or a string, as the C caller guarantees.
        let name = unsafe { read_string(device_name, NIC_NAME_BYTES - 1) }?;
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(nic_handle) }?;
        let name = name.to_str().map_err(|_| {
            let name = name.to_string_lossy();
            log::debug!("VipOpenNic: device name \"{name}\": not UTF-8");
            VipError::InvalidParameter
        })?;
        let nic = provider::open_nic(name)?;
        out.set(handle_to_c(nic.into_raw()));
        Ok(())
    })
}

/// Closes a NIC handle and releases everything that it owns [VIPL 3.1.2].
#[unsafe(no_mangle)]
pub extern "C" fn VipCloseNic(nic_handle: RawHandle) -> VipReturn {
    guarded("VipCloseNic", || {
        provider::close_nic(nic_from_c(nic_handle))
    })
}

/// Returns a NIC's attributes and limits [VIPL 3.7.1].
///
/// # Safety
/// The pointers are as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryNic(
    nic_handle: RawHandle,
    nic_attribs: *mut VipNicAttributes,
) -> VipReturn {
    guarded("VipQueryNic", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(nic_attribs) }?;
        out.set((&provider::query_nic(nic_from_c(nic_handle))?).into());
        Ok(())
    })
}

/// The context pointer of a handler, sent to the handler thread.
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the pointer is only passed to the C function it was registered with; that function
// may be called on any thread [VIPL 3.5.9, 3.8.1].
unsafe impl Send for Context {}

impl Context {
    /// Returns the pointer. A method, so that closures capture the whole context and not its field.
    pub(crate) fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Registers the handler of asynchronous errors; NULL restores the default, which logs them
/// [VIPL 3.8.1].
///
/// # Safety
/// `handler` is NULL or may be called with `context` from any thread until it is replaced or the
/// NIC is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipErrorCallback(
    nic_handle: RawHandle,
    context: *mut c_void,
    handler: ErrorHandlerFn,
) -> VipReturn {
    guarded_new("VipErrorCallback", || {
        let context = Context(context);
        let wrapped = handler.map(|function| -> ErrorHandler {
            Box::new(move |error: &ErrorDescriptor| {
                let mut error_desc = VipErrorDescriptor::from(error);
                // SAFETY: callable as the registering program guarantees; the descriptor outlives the
                // call.
                run_handler("VipErrorCallback", || unsafe {
                    function(context.get(), &raw mut error_desc);
                });
            })
        });
        provider::error_callback(nic_from_c(nic_handle), wrapped)
    })
}
