//! Why calls fail, in words: logged, and kept for the thread that made the call.

use std::cell::RefCell;

use pmd::{ControlError, nic};

use crate::types::{ViAttributes, VipError};

thread_local! {
    static LAST_ERROR: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Why the last call of this thread failed that gave [`VipError::ErrorResource`], or that was `open_nic`,
/// `open_nic_with` or `ns_init`, in words: which limit was reached, what is in use, what to do.
///
/// A full queue of a [`Vi`](crate::Vi) is no failure in this sense: a program waits for room.
pub fn last_error() -> Option<String> {
    LAST_ERROR.with_borrow(Clone::clone)
}

/// The error of a call that opens a NIC or its name service; the text is logged and kept for
/// [`last_error`].
#[cold]
pub(super) fn explain(error: VipError, text: String) -> VipError {
    let level = match error {
        VipError::ErrorResource => log::Level::Error,
        _ => log::Level::Warn,
    };
    log::log!(level, "{text}");
    keep(text);
    error
}

/// Keeps a text for [`last_error`], if there is memory for that.
fn keep(text: String) {
    if !pmd::reserve::is_needed() {
        LAST_ERROR.set(Some(text));
    }
}

/// The error of `call` on an object of this handle. Which limit was reached, or what was refused, is
/// logged and kept for [`last_error`]: the code alone does not tell.
#[cold]
pub(super) fn failed(call: &str, handle: u64, error: ControlError) -> VipError {
    if let ControlError::Resource(why) = error {
        let text = format!("{call}: {why}");
        nic::log_limited(handle, log::Level::Warn, format_args!("{text}"));
        keep(text);
    }
    error.into()
}

/// As [`failed`], for a call with attributes of a VI.
#[cold]
pub(super) fn vi_failed(
    call: &str,
    handle: u64,
    attributes: &ViAttributes,
    error: ControlError,
) -> VipError {
    if error == ControlError::Mtu {
        let wanted = attributes.max_transfer_bytes;
        let line = format_args!(
            "{call}: MaxTransferSize = {wanted}: must be 1 to what VipQueryNic reports \
             (max_transfer_bytes of [[nic]], or as much as 65536 frames hold)"
        );
        nic::log_limited(handle, log::Level::Warn, line);
        keep(line.to_string());
    }
    failed(call, handle, error)
}
