//! Limits of a datapath process on pending connections, on the call rate of each user, and on log lines that
//! applications cause. Which users may attach at all is checked by [`crate::config`].

use std::collections::HashMap;
use std::fmt::Arguments;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::user_log_limiter::UserLogLimiter;
use crate::config::ProcessConfig;
use vi_core::control_socket::Peer;

const SECOND: Duration = Duration::from_secs(1);

/// Maximum numbers of pending connections: accepted, and the first request not yet handled.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingLimits {
    pub(super) per_process: u32,
    pub(super) per_user: u32,
    pub(super) all: u32,
}

impl From<&ProcessConfig> for PendingLimits {
    fn from(config: &ProcessConfig) -> Self {
        Self {
            per_process: config.max_pending_per_process,
            per_user: config.max_pending_per_user,
            all: config.pending_connections(),
        }
    }
}

/// Counts of pending connections.
#[derive(Debug, Default)]
pub(super) struct PendingConnections(Mutex<PendingCounts>);

#[derive(Debug, Default)]
struct PendingCounts {
    all: u32,
    processes: HashMap<libc::pid_t, u32>,
    users: HashMap<libc::uid_t, u32>,
}

/// One pending connection; counted until it is dropped.
#[derive(Debug)]
pub(super) struct PendingConnection {
    all: Arc<PendingConnections>,
    peer: Peer,
}

impl PendingConnections {
    /// Counts another pending connection of a peer. A user has at most as many as remain free, so that no user has all.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn add(
        self: &Arc<Self>,
        peer: Peer,
        limits: PendingLimits,
    ) -> Result<PendingConnection, String> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_process = counts.processes.get(&peer.pid).copied().unwrap_or(0);
        let of_user = counts.users.get(&peer.uid).copied().unwrap_or(0);
        let Peer { pid, uid, .. } = peer;
        if of_process >= limits.per_process {
            return Err(format!(
                "max_pending_per_process = {} connections of process {pid} are pending",
                limits.per_process
            ));
        }
        if of_user >= limits.per_user {
            return Err(format!(
                "max_pending_per_user = {} connections of user {uid} are pending",
                limits.per_user
            ));
        }
        if of_user >= limits.all.saturating_sub(counts.all) {
            return Err(format!(
                "max_pending = {}: {} connections are pending, {of_user} of user {uid}",
                limits.all, counts.all
            ));
        }
        counts.all += 1;
        counts.processes.insert(peer.pid, of_process + 1);
        counts.users.insert(peer.uid, of_user + 1);
        let all = Arc::clone(self);
        Ok(PendingConnection { all, peer })
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        let mut counts = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all -= 1;
        decrement(&mut counts.processes, self.peer.pid);
        decrement(&mut counts.users, self.peer.uid);
    }
}

fn decrement<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// Calls that are made within this time may come as a burst.
const BURST: Duration = Duration::from_millis(100);

/// Limits the rate of the calls of all applications of a user.
#[derive(Debug, Default)]
pub(super) struct RateLimiter(Mutex<Option<Instant>>);

impl RateLimiter {
    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call at an average limit of `per_second`, and returns how long it must wait.
    pub(super) fn delay(&self, now: Instant, per_second: u32) -> Duration {
        let mut due = self.due();
        let at = due.map_or(now, |due| due.max(now));
        *due = Some(at + SECOND / per_second.max(1));
        at.saturating_duration_since(now).saturating_sub(BURST)
    }

    /// Counts a call as [`Self::delay`] does, and waits.
    ///
    /// # Errors
    /// The delay exceeds `limit`; returns `per_second`.
    pub(super) fn wait(&self, per_second: u32, limit: Duration) -> Result<(), u32> {
        let delay = self.delay(Instant::now(), per_second);
        if delay > limit {
            return Err(per_second);
        }
        if !delay.is_zero() {
            // A spurious wake-up only makes the call a little early.
            std::thread::park_timeout(delay);
        }
        Ok(())
    }

    /// Checks that no call is counted: the limiter equals a new one.
    fn is_idle(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| due <= now)
    }
}

/// Rate limiters by user: they outlive the attachments of the user's applications.
#[derive(Debug, Default)]
pub(super) struct UserRateLimiters(Mutex<HashMap<libc::uid_t, Arc<RateLimiter>>>);

impl UserRateLimiters {
    /// Returns the limiter of a user, and removes those that are idle and unused.
    pub(super) fn of(&self, uid: libc::uid_t) -> Arc<RateLimiter> {
        let mut limiters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        limiters.retain(|_, limiter| Arc::strong_count(limiter) > 1 || !limiter.is_idle(now));
        Arc::clone(limiters.entry(uid).or_default())
    }
}

static LOG_LIMITER: UserLogLimiter = UserLogLimiter::new(u32::MAX);

/// Sets the limit of [`log_limited`] and [`log_of_user`].
pub(super) fn set_max_log_lines_per_second(lines_per_second: u32) {
    LOG_LIMITER.set_lines_per_second(lines_per_second);
}

/// Logs a line that applications cause, of whatever user, unless the limit is reached.
pub(super) fn log_limited(level: log::Level, line: Arguments<'_>) {
    log_within_limit(None, level, line);
}

/// Logs a line that an application of a user causes, unless the limit is reached: applications must not be able to fill
/// the log, and a user not to suppress the lines about others. `uid` is the user as which it counts.
pub(super) fn log_of_user(uid: libc::uid_t, level: log::Level, line: Arguments<'_>) {
    log_within_limit(Some(uid), level, line);
}

fn log_within_limit(user: Option<libc::uid_t>, level: log::Level, line: Arguments<'_>) {
    let Some(suppressed) = LOG_LIMITER.admit(user, Instant::now()) else {
        return;
    };
    if suppressed > 0 {
        let limit = LOG_LIMITER.lines_per_second();
        let of = user.map_or(String::new(), |uid| format!(" of user {uid}"));
        log::warn!(
            "applications{of}: {suppressed} log lines suppressed: max_log_lines_per_second = {limit}"
        );
    }
    log::log!(level, "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: libc::pid_t, uid: libc::uid_t) -> Peer {
        Peer { pid, uid, gid: 0 }
    }

    const LIMITS: PendingLimits = PendingLimits {
        per_process: 3,
        per_user: 8,
        all: 24,
    };

    #[test]
    fn pending_connections_are_limited_per_process_and_per_user() {
        let all = Arc::new(PendingConnections::default());
        let add = |pid, uid| all.add(peer(pid, uid), LIMITS);
        let first: Vec<_> = (0..LIMITS.per_process)
            .map(|_| add(1, 7).unwrap())
            .collect();
        let why = add(1, 7).unwrap_err();
        assert!(why.contains("max_pending_per_process = 3"), "{why}");
        let mut rest = Vec::new();
        let why = (2..)
            .find_map(|pid| add(pid, 7).map(|pending| rest.push(pending)).err())
            .unwrap();
        assert!(why.contains("max_pending_per_user = 8"), "{why}");
        assert_eq!(first.len() + rest.len(), LIMITS.per_user as usize);
        assert!(add(9999, 8).is_ok(), "another user");
        drop((first, rest));
        assert!(all.0.lock().unwrap().processes.is_empty());
        assert!(all.0.lock().unwrap().users.is_empty());
    }

    #[test]
    fn no_user_has_all_pending_connections() {
        let all = Arc::new(PendingConnections::default());
        let mut pending = Vec::new();
        let limits = PendingLimits {
            per_user: 100,
            ..LIMITS
        };
        let mut last_pid = 0;
        let mut fill = |uid| {
            let of_user = pending.len();
            let why = loop {
                last_pid += 1;
                match all.add(peer(last_pid, uid), limits) {
                    Ok(one) => pending.push(one),
                    Err(why) => break why,
                }
            };
            assert!(why.starts_with("max_pending = 24: "), "{why}");
            pending.len() - of_user
        };
        assert_eq!([7, 8, 9, 10].map(&mut fill), [12, 6, 3, 2]);
        assert_eq!(fill(7), 0);
        assert_eq!(fill(11), 1);
        drop(pending);
        assert_eq!(all.0.lock().unwrap().all, 0);
    }

    #[test]
    fn rate_limiter_delays_a_flood_of_calls_to_its_rate() {
        for per_second in [1, 10, 10_000] {
            let (limiter, now) = (RateLimiter::default(), Instant::now());
            for _ in 0..=per_second / 10 {
                assert!(limiter.delay(now, per_second).is_zero());
            }
            for _ in 0..per_second {
                limiter.delay(now, per_second);
            }
            let delay = limiter.delay(now, per_second);
            let expected = SECOND.saturating_sub(BURST)..SECOND + SECOND / per_second + BURST;
            assert!(expected.contains(&delay), "{per_second}: {delay:?}");
            assert!(limiter.delay(now + 4 * SECOND, per_second).is_zero());
        }
    }

    #[test]
    fn user_rate_limiters_are_kept_while_busy_or_in_use() {
        let (limiters, now) = (UserRateLimiters::default(), Instant::now());
        // One call in ten minutes.
        let slow = |uid| {
            let limiter = limiters.of(uid);
            limiter.0.lock().unwrap().replace(now + 600 * SECOND)
        };
        assert_eq!(slow(7), None);
        assert!(limiters.of(7).wait(1, SECOND).is_err(), "it must wait");
        assert!(limiters.of(8).wait(1, SECOND).is_ok(), "another user");
        let kept = limiters.of(9);
        drop(limiters.of(10));
        let contains = |uid| limiters.0.lock().unwrap().contains_key(&uid);
        assert!([7, 9, 10].map(contains).iter().all(|found| *found));
        limiters.of(7);
        assert!(!contains(10), "it is idle");
        assert!(Arc::ptr_eq(&kept, &limiters.of(9)));
    }
}
