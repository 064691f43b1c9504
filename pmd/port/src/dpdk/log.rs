//! DPDK's log: forwarded to this program's log, and quoted in errors.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::slice;
use std::collections::VecDeque;
use std::sync::Mutex;

use dpdk_sys::{RTE_LOG_ERR, RTE_LOG_INFO, RTE_LOG_NOTICE, RTE_LOG_WARNING, dpdk_sys_log_to};

/// Maximum number of messages recent.
const KEPT_MAX: usize = 64;
/// Maximum number of messages that an error quotes.
const QUOTED_MAX: usize = 8;

/// The last warnings and errors, and the number of earlier ones.
struct RecentMessages {
    earlier: u64,
    texts: VecDeque<String>,
}

static LOG: Mutex<RecentMessages> = Mutex::new(RecentMessages {
    earlier: 0,
    texts: VecDeque::new(),
});

thread_local! {
    /// This thread expects failures: their messages are logged at trace level.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// A position in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

fn recent() -> std::sync::MutexGuard<'static, RecentMessages> {
    LOG.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns the position behind the last message.
pub(super) fn mark() -> Mark {
    let recent = recent();
    Mark(recent.earlier + recent.texts.len() as u64)
}

/// Returns the warnings and errors behind a position, oldest first.
pub(super) fn since(mark: Mark) -> Vec<String> {
    let recent = recent();
    let skipped = mark.0.saturating_sub(recent.earlier) as usize;
    let found = recent.texts.iter().skip(skipped);
    let surplus = found.len().saturating_sub(QUOTED_MAX);
    found.skip(surplus).cloned().collect()
}

/// Calls `f`, whose failures are expected: DPDK's messages of this thread are logged at trace level meanwhile.
pub(super) fn expecting_failure<R>(f: impl FnOnce() -> R) -> R {
    EXPECTED.set(true);
    let result = f();
    EXPECTED.set(false);
    result
}

/// Logs one message of DPDK's; keeps warnings and errors.
extern "C" fn on_message(_: *mut c_void, level: c_int, text: *const c_char, bytes: usize) {
    // SAFETY: the shim passes `bytes` bytes that are not written while this function runs.
    let text = unsafe { slice::from_raw_parts(text.cast::<u8>(), bytes) };
    let text = String::from_utf8_lossy(text);
    let text = text.trim();
    let level = u32::try_from(level).unwrap_or(RTE_LOG_ERR);
    match level {
        _ if EXPECTED.get() => log::trace!(target: "dpdk", "{text}"),
        ..=RTE_LOG_WARNING => log::warn!(target: "dpdk", "{text}"),
        RTE_LOG_NOTICE | RTE_LOG_INFO => log::debug!(target: "dpdk", "{text}"),
        _ => log::trace!(target: "dpdk", "{text}"),
    }
    if level > RTE_LOG_WARNING || text.is_empty() {
        return;
    }
    let mut recent = recent();
    if recent.texts.len() == KEPT_MAX {
        recent.texts.pop_front();
        recent.earlier += 1;
    }
    recent.texts.push_back(text.to_owned());
}

/// Redirects DPDK's log to [`on_message`].
pub(super) fn redirect() -> Result<(), c_int> {
    // SAFETY: the sink may be called by any thread, and its context is not used.
    match unsafe { dpdk_sys_log_to(Some(on_message), core::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(error),
    }
}
