//! Limit of log lines that applications cause: no user can suppress the lines about others.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// Maximum number of users whose lines are counted; further ones share what no user causes.
const MAX_USERS: usize = 256;

/// Permits a number of log lines per second, of which a user causes at most as many as remain for others; counts
/// suppressed lines by user.
#[derive(Debug)]
pub(super) struct UserLogLimiter(Mutex<State>);

#[derive(Debug)]
struct State {
    lines_per_second: u32,
    since: Option<Instant>,
    written: u32,
    /// By user; `None` for lines that no user causes.
    users: BTreeMap<Option<libc::uid_t>, OfUser>,
}

#[derive(Debug, Default)]
struct OfUser {
    written: u32,
    suppressed: u64,
}

impl UserLogLimiter {
    pub(super) const fn new(lines_per_second: u32) -> Self {
        Self(Mutex::new(State {
            lines_per_second,
            since: None,
            written: 0,
            users: BTreeMap::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the limit.
    pub(super) fn set_lines_per_second(&self, lines_per_second: u32) {
        self.lock().lines_per_second = lines_per_second;
    }

    /// Returns the limit.
    pub(super) fn lines_per_second(&self) -> u32 {
        self.lock().lines_per_second
    }

    /// Checks whether a line about a user may be written now; if so, returns the number of lines about that user that
    /// were suppressed since the last one.
    pub(super) fn admit(&self, user: Option<libc::uid_t>, now: Instant) -> Option<u64> {
        let mut state = self.lock();
        let has_expired = |since| now.saturating_duration_since(since) >= SECOND;
        if state.since.is_none_or(has_expired) {
            state.since = Some(now);
            state.written = 0;
            state.users.retain(|_, user| user.suppressed > 0);
            state.users.values_mut().for_each(|user| user.written = 0);
        }
        let is_known = state.users.len() < MAX_USERS || state.users.contains_key(&user);
        let user = user.filter(|_| is_known);
        let left = state.lines_per_second.saturating_sub(state.written);
        let of_user = state.users.entry(user).or_default();
        if of_user.written >= left {
            of_user.suppressed += 1;
            return None;
        }
        of_user.written += 1;
        let suppressed = core::mem::take(&mut of_user.suppressed);
        state.written += 1;
        Some(suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_cannot_suppress_the_lines_about_others() {
        for limit in [2, 50] {
            let (limiter, now) = (UserLogLimiter::new(limit), Instant::now());
            let written = |user, now| {
                let lines = (0..1000).map(|_| limiter.admit(user, now));
                lines.filter(Option::is_some).count() as u32
            };
            let half = limit / 2;
            assert_eq!(written(Some(7), now), half);
            assert!(written(Some(8), now) > 0);
            let suppressed = u64::from(1000 - half);
            assert_eq!(limiter.admit(Some(7), now + SECOND), Some(suppressed));
            assert_eq!(written(Some(7), now + 2 * SECOND), half);
            assert_eq!(limiter.admit(None, now + 2 * SECOND), Some(0));
        }
    }

    #[test]
    fn lines_of_all_users_are_limited_together() {
        let (limiter, now) = (UserLogLimiter::new(50), Instant::now());
        let lines = (0..100_000).map(|line| limiter.admit(Some(line % 1000), now));
        assert_eq!(lines.flatten().count(), 50);
        assert!(limiter.lock().users.len() <= MAX_USERS + 1);
        limiter.set_lines_per_second(1);
        assert!(limiter.admit(Some(2000), now + SECOND).is_some());
        assert_eq!(limiter.admit(Some(2001), now + SECOND), None);
    }
}
