//! Rate limiter for log lines that peers or applications can cause.

use std::fmt::Arguments;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// Permits a number of log lines per second, and counts suppressed lines.
#[derive(Debug)]
pub struct LogLimiter(Mutex<State>);

#[derive(Debug)]
struct State {
    lines_per_second: u32,
    since: Option<Instant>,
    written: u32,
    suppressed: u64,
}

impl LogLimiter {
    /// Makes a limiter of this many lines per second.
    pub const fn new(lines_per_second: u32) -> Self {
        Self(Mutex::new(State {
            lines_per_second,
            since: None,
            written: 0,
            suppressed: 0,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the limit.
    pub fn set_lines_per_second(&self, lines_per_second: u32) {
        self.lock().lines_per_second = lines_per_second;
    }

    /// Returns the limit.
    pub fn lines_per_second(&self) -> u32 {
        self.lock().lines_per_second
    }

    /// Checks whether a line may be written now; if so, returns the number of lines suppressed since the last one.
    pub fn admit(&self, now: Instant) -> Option<u64> {
        let mut state = self.lock();
        let has_expired = |since| now.saturating_duration_since(since) >= SECOND;
        if state.since.is_none_or(has_expired) {
            state.since = Some(now);
            state.written = 0;
        }
        if state.written >= state.lines_per_second {
            state.suppressed += 1;
            return None;
        }
        state.written += 1;
        Some(core::mem::take(&mut state.suppressed))
    }

    /// Logs a line about `subject`, within the limit; before it, the number of suppressed lines.
    pub fn log(&self, level: log::Level, subject: &str, line: Arguments<'_>) {
        if level > log::max_level() {
            return;
        }
        let Some(suppressed) = self.admit(Instant::now()) else {
            return;
        };
        if suppressed > 0 {
            let limit = self.lines_per_second();
            log::warn!(
                "{subject}: {suppressed} log lines suppressed: more than {limit} per second"
            );
        }
        log::log!(level, "{subject}: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_suppressed_and_counted() {
        let now = Instant::now();
        for limit in [1, 50] {
            let limiter = LogLimiter::new(limit);
            for _ in 0..limit {
                assert_eq!(limiter.admit(now), Some(0));
            }
            assert_eq!(limiter.admit(now), None);
            assert_eq!(limiter.admit(now + SECOND / 2), None);
            assert_eq!(limiter.admit(now + SECOND), Some(2));
            limiter.set_lines_per_second(limit + 1);
            for _ in 0..limit {
                assert_eq!(limiter.admit(now + SECOND), Some(0));
            }
            assert_eq!(limiter.admit(now + SECOND), None);
        }
    }
}
