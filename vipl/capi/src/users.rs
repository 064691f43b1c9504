//! User IDs of remote programs: calls of `viaduct.h`.

use vipl::provider;

use crate::connect::conn_from_c;
use crate::guard::guarded;
use crate::pointer::Out;
use crate::types::{RawHandle, VipReturn};
use crate::vi::vi_from_c;

/// `VIADUCT_USER_UNKNOWN`, which is no valid user ID.
const UNKNOWN: u32 = u32::MAX;

/// Returns the user ID of the program that made a pending request.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_request_user(
    conn_handle: RawHandle,
    user: *mut u32,
) -> VipReturn {
    guarded("viaduct_get_request_user", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(user) }?;
        let user = provider::request_user(conn_from_c(conn_handle))?;
        out.set(user.unwrap_or(UNKNOWN));
        Ok(())
    })
}

/// Returns the user ID of the program that a Connected VI is connected to.
///
/// # Safety
/// The pointer is as the crate's documentation requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn viaduct_get_peer_user(vi_handle: RawHandle, user: *mut u32) -> VipReturn {
    guarded("viaduct_get_peer_user", || {
        // SAFETY: NULL or writable, as the C caller guarantees.
        let out = unsafe { Out::new(user) }?;
        let user = provider::peer_user(vi_from_c(vi_handle))?;
        out.set(user.unwrap_or(UNKNOWN));
        Ok(())
    })
}
