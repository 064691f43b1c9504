//! Why calls fail, in words: logged, and kept for the thread that made the call.

use std::cell::RefCell;
use std::fmt;

use pmd::{ControlError, ResourceError, nic};

use crate::types::{ViAttributes, VipError};

/// Why a call failed. A program may meet a limit in its data path: nothing is written out until somebody asks.
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
                "{call}: MaxTransferSize = {wanted}: must be 1 to {max}; raise max_transfer_bytes in \
                 [[nic]], or the MTU if 65536 frames hold no more"
            ),
            Self::Text(text) => f.write_str(text),
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<Option<Reason>> = const { RefCell::new(None) };
}

/// Why the last call of this thread failed that gave [`VipError::ErrorResource`], or [`VipError::InvalidMtu`] for its
/// own attributes, or that was `open_nic`, `open_nic_with` or `ns_init`, in words: which limit was reached, what is in
/// use, what to do.
///
/// A full queue of a [`Vi`](crate::Vi) is no failure in this sense: a program waits for room.
pub fn last_error() -> Option<String> {
    LAST_ERROR.with_borrow(|reason| reason.as_ref().map(Reason::to_string))
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
    keep(Reason::Text(text));
    error
}

/// Keeps a reason for [`last_error`], if there is memory for that.
fn keep(reason: Reason) {
    if !pmd::reserve::is_needed() {
        LAST_ERROR.set(Some(reason));
    }
}

fn log_and_keep(handle: u64, reason: Reason) {
    nic::log_limited(handle, log::Level::Warn, format_args!("{reason}"));
    keep(reason);
}

/// The error of `call` on an object of this handle. Which limit was reached, or what was refused, is
/// logged and kept for [`last_error`]: the code alone does not tell.
#[cold]
pub(super) fn failed(call: &'static str, handle: u64, error: ControlError) -> VipError {
    if let ControlError::Resource(why) = error {
        log_and_keep(handle, Reason::Resource(call, why));
    }
    error.into()
}

/// As [`failed`], for a call with attributes of a VI.
#[cold]
pub(super) fn vi_failed(
    call: &'static str,
    handle: u64,
    attributes: &ViAttributes,
    error: ControlError,
) -> VipError {
    if error == ControlError::Mtu
        && let Some(max) = nic::max_transfer_bytes(handle)
    {
        let wanted = attributes.max_transfer_bytes;
        log_and_keep(handle, Reason::TransferSize { call, wanted, max });
    }
    failed(call, handle, error)
}
