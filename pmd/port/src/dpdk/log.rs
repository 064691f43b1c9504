//! DPDK's log: told to this program's, and quoted in errors.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::slice;
use std::collections::VecDeque;
use std::sync::Mutex;

use dpdk_sys::{RTE_LOG_ERR, RTE_LOG_INFO, RTE_LOG_NOTICE, RTE_LOG_WARNING, dpdk_sys_log_to};

/// Messages that are kept, at most.
const KEPT: usize = 64;
/// Messages that an error quotes, at most.
const QUOTED: usize = 8;

/// The last warnings and errors, and how many came before them.
struct Kept {
    earlier: u64,
    texts: VecDeque<String>,
}

static LOG: Mutex<Kept> = Mutex::new(Kept {
    earlier: 0,
    texts: VecDeque::new(),
});

thread_local! {
    /// What this thread causes is expected, and of no interest.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// A place in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(u64);

fn kept() -> std::sync::MutexGuard<'static, Kept> {
    LOG.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The place behind the last message.
pub(super) fn mark() -> Mark {
    let kept = kept();
    Mark(kept.earlier + kept.texts.len() as u64)
}

/// Warnings and errors behind a place, oldest first.
pub(super) fn since(mark: Mark) -> Vec<String> {
    let kept = kept();
    let skipped = mark.0.saturating_sub(kept.earlier) as usize;
    let found = kept.texts.iter().skip(skipped);
    let surplus = found.len().saturating_sub(QUOTED);
    found.skip(surplus).cloned().collect()
}

/// Calls `f`, whose failures are expected: what DPDK says of them is of interest to nobody but a developer.
pub(super) fn expecting_failure<R>(f: impl FnOnce() -> R) -> R {
    EXPECTED.set(true);
    let result = f();
    EXPECTED.set(false);
    result
}

/// Takes one message.
extern "C" fn take(_: *mut c_void, level: c_int, text: *const c_char, bytes: usize) {
    // SAFETY: the shim hands over `bytes` bytes that nobody else writes while this function runs.
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
    let mut kept = kept();
    if kept.texts.len() == KEPT {
        kept.texts.pop_front();
        kept.earlier += 1;
    }
    kept.texts.push_back(text.to_owned());
}

/// Has DPDK's log told here from now on.
pub(super) fn listen() -> Result<(), c_int> {
    // SAFETY: the sink may be called by any thread, and its context is not used.
    match unsafe { dpdk_sys_log_to(Some(take), core::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(error),
    }
}
