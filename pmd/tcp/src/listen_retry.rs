//! Retries of listening on a TCP port that another program uses.

use std::thread;
use std::time::{Duration, Instant};

/// Timeout for a TCP port that another program uses.
pub const LISTEN_TIMEOUT: Duration = Duration::from_secs(1);
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Retries while another program uses a TCP port: it may end, or start to share the port. `attempt` returns `None` for
/// a retry, and a result when its argument is true, after the timeout.
pub fn retry_listening<T>(timeout: Duration, mut attempt: impl FnMut(bool) -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(result) = attempt(Instant::now() >= deadline) {
            return result;
        }
        // No event reports that another program has started to accept, or has ended.
        thread::sleep(LISTEN_RETRY_INTERVAL);
    }
}
