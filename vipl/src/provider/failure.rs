//! Reasons of failed calls as text: logged, and stored for [`last_error`] of the calling thread.

use std::cell::RefCell;
use std::fmt;

use pmd::nic;
use vi_types::{CallError, ResourceError};

use crate::types::{ViAttributes, VipError};

/// The reason of a failed call. A program may reach a limit in its data path, so the text is formatted on demand.
enum Reason {
    Resource(&'static str, ResourceError),
    TransferSize {
        call: &'static str,
        wanted: u64,
        max: u32,
    },
    Text(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resource(call, why) => write!(f, "{call}: {why}"),
            Self::TransferSize { call, wanted, max } => write!(
                f,
                "{call}: MaxTransferSize = {wanted}: must be 1 to {max}; raise max_transfer_bytes \
                 in [nic.limits], or the MTU if a message already has 65536 frames"
            ),
            Self::Text(text) => f.write_str(text),
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Option<Reason>> = const { RefCell::new(None) };
}

/// Returns the reason of the last failed call of this thread as text: the limit that was reached, the current use, what
/// to do. Set by calls that return [`VipError::ErrorResource`], or [`VipError::InvalidMtu`] for their attributes, and
/// by `open_nic`, `open_nic_with` and `ns_init`.
///
/// Not set for a full queue of a [`Vi`](crate::Vi): the program waits for completions.
pub fn last_error() -> Option<String> {
    LAST_ERROR.with_borrow(|reason| reason.as_ref().map(Reason::to_string))
}

/// Returns `error` of a call that opens a NIC or its name service; logs `text` and stores it for
/// [`last_error`].
#[cold]
pub(super) fn explain(error: VipError, text: String) -> VipError {
    let level = match error {
        VipError::ErrorResource => log::Level::Error,
        _ => log::Level::Warn,
    };
    log::log!(level, "{text}");
    store(Reason::Text(text));
    error
}

/// Stores a reason for [`last_error`], unless memory is short.
fn store(reason: Reason) {
    if !vi_core::reserve::is_system_out_of_memory() {
        LAST_ERROR.set(Some(reason));
    }
}

fn log_and_store(handle: u64, reason: Reason) {
    nic::log_limited(handle, log::Level::Warn, format_args!("{reason}"));
    store(reason);
}

/// Converts the error of `call` on the object of a handle. For a resource error, logs the limit that
/// was reached and stores it for [`last_error`].
#[cold]
pub(super) fn failed(call: &'static str, handle: u64, error: CallError) -> VipError {
    if let CallError::Resource(why) = error {
        log_and_store(handle, Reason::Resource(call, why));
    }
    error.into()
}

/// As [`failed`], for a call with the attributes of a VI.
#[cold]
pub(super) fn vi_failed(
    call: &'static str,
    handle: u64,
    attributes: &ViAttributes,
    error: CallError,
) -> VipError {
    if error == CallError::MaxTransferSize
        && let Some(max) = nic::max_transfer_bytes(handle)
    {
        let wanted = attributes.max_transfer_bytes;
        log_and_store(handle, Reason::TransferSize { call, wanted, max });
    }
    failed(call, handle, error)
}
