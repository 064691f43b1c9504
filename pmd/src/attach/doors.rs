//! How many may stand in the door of a datapath process, how fast they ask, and how much is said
//! about it.

use std::collections::HashMap;
use std::fmt::Arguments;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::socket::Peer;
use crate::config::ProcessConfig;
use crate::log_limiter::LogLimiter;

const SECOND: Duration = Duration::from_secs(1);

/// Conversations that have not begun, at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct MostPending {
    pub(super) per_process: u32,
    pub(super) per_user: u32,
}

impl From<&ProcessConfig> for MostPending {
    fn from(config: &ProcessConfig) -> Self {
        Self {
            per_process: config.max_pending_per_process,
            per_user: config.max_pending_per_user,
        }
    }
}

/// Conversations that have not begun.
#[derive(Debug, Default)]
pub(super) struct Doors(Mutex<Standing>);

#[derive(Debug, Default)]
struct Standing {
    processes: HashMap<libc::pid_t, u32>,
    users: HashMap<libc::uid_t, u32>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct InDoor {
    doors: Arc<Doors>,
    peer: Peer,
}

impl Doors {
    /// Another one comes; or why it has to wait outside.
    pub(super) fn enter(self: &Arc<Self>, peer: Peer, most: MostPending) -> Result<InDoor, String> {
        let mut standing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_process = standing.processes.get(&peer.pid).copied().unwrap_or(0);
        let of_user = standing.users.get(&peer.uid).copied().unwrap_or(0);
        let Peer { pid, uid, .. } = peer;
        if of_process >= most.per_process {
            return Err(format!(
                "max_pending_per_process = {} conversations of process {pid} have not begun",
                most.per_process
            ));
        }
        if of_user >= most.per_user {
            return Err(format!(
                "max_pending_per_user = {} conversations of user {uid} have not begun",
                most.per_user
            ));
        }
        standing.processes.insert(peer.pid, of_process + 1);
        standing.users.insert(peer.uid, of_user + 1);
        let doors = Arc::clone(self);
        Ok(InDoor { doors, peer })
    }
}

impl Drop for InDoor {
    fn drop(&mut self) {
        let mut standing = self.doors.0.lock().unwrap_or_else(PoisonError::into_inner);
        leave(&mut standing.processes, self.peer.pid);
        leave(&mut standing.users, self.peer.uid);
    }
}

fn leave<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, u32>, who: K) {
    if let Some(count) = counts.get_mut(&who) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&who);
        }
    }
}

/// The calls of so long may come at once.
const BURST: Duration = Duration::from_millis(100);

/// How fast the applications of a user make their calls, with all their threads.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    fn due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another call of one who may make so many in a second, on average: how long it has to wait,
    /// so that the others get their turns.
    pub(super) fn step(&self, now: Instant, per_second: u32) -> Duration {
        let mut due = self.due();
        let at = due.map_or(now, |due| due.max(now));
        *due = Some(at + SECOND / per_second.max(1));
        at.saturating_duration_since(now).saturating_sub(BURST)
    }

    /// As [`Self::step`], and waits.
    ///
    /// # Errors
    /// It would take longer than `limit`; gives `per_second`.
    pub(super) fn wait(&self, per_second: u32, limit: Duration) -> Result<(), u32> {
        let wait = self.step(Instant::now(), per_second);
        if wait > limit {
            return Err(per_second);
        }
        if !wait.is_zero() {
            // Nobody wakes it; should it wake by itself, it is a little early.
            std::thread::park_timeout(wait);
        }
        Ok(())
    }

    /// It is as a new one.
    fn is_rested(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| due <= now)
    }
}

/// The paces of all users: one who attaches again goes on at the pace that it had.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<HashMap<libc::uid_t, Arc<Pace>>>);

impl Paces {
    /// The pace of a user.
    pub(super) fn of(&self, uid: libc::uid_t) -> Arc<Pace> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        paces.retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.is_rested(now));
        Arc::clone(paces.entry(uid).or_default())
    }
}

static LINES: LogLimiter = LogLimiter::new(u32::MAX);

/// From now on [`say`] writes so many lines in a second, at most.
pub(super) fn say_at_most(lines_per_second: u32) {
    LINES.set_lines_per_second(lines_per_second);
}

/// Writes a line about who comes and goes, unless there are too many of them: applications must
/// not be able to fill the log.
pub(super) fn say(level: log::Level, line: Arguments<'_>) {
    let Some(suppressed) = LINES.admit(Instant::now()) else {
        return;
    };
    if suppressed > 0 {
        log::warn!(
            "{suppressed} lines about applications are left out: max_log_lines_per_second = {}",
            LINES.lines_per_second()
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

    const MOST: MostPending = MostPending {
        per_process: 3,
        per_user: 8,
    };

    #[test]
    fn neither_a_process_nor_a_user_fills_the_door_and_others_still_get_in() {
        let doors = Arc::new(Doors::default());
        let enter = |pid, uid| doors.enter(peer(pid, uid), MOST);
        let first: Vec<_> = (0..MOST.per_process)
            .map(|_| enter(1, 7).unwrap())
            .collect();
        let why = enter(1, 7).unwrap_err();
        assert!(why.contains("max_pending_per_process = 3"), "{why}");
        let mut rest = Vec::new();
        let why = (2..)
            .find_map(|pid| enter(pid, 7).map(|one| rest.push(one)).err())
            .unwrap();
        assert!(why.contains("max_pending_per_user = 8"), "{why}");
        assert_eq!(first.len() + rest.len(), MOST.per_user as usize);
        assert!(enter(9999, 8).is_ok(), "another user");
        drop((first, rest));
        assert!(doors.0.lock().unwrap().processes.is_empty());
        assert!(doors.0.lock().unwrap().users.is_empty());
    }

    #[test]
    fn a_flood_of_calls_gets_its_rate_and_no_more() {
        for per_second in [1, 10, 10_000] {
            let (pace, now) = (Pace::default(), Instant::now());
            for _ in 0..=per_second / 10 {
                assert!(pace.step(now, per_second).is_zero());
            }
            for _ in 0..per_second {
                pace.step(now, per_second);
            }
            let waits = pace.step(now, per_second);
            let expected = SECOND.saturating_sub(BURST)..SECOND + SECOND / per_second + BURST;
            assert!(expected.contains(&waits), "{per_second}: {waits:?}");
            assert!(pace.step(now + 4 * SECOND, per_second).is_zero());
        }
    }

    #[test]
    fn the_pace_is_the_users_whatever_it_lets_go_of() {
        let (paces, now) = (Paces::default(), Instant::now());
        // One call in ten minutes.
        let slow = |uid| paces.of(uid).0.lock().unwrap().replace(now + 600 * SECOND);
        assert_eq!(slow(7), None);
        assert!(
            paces.of(7).wait(1, SECOND).is_err(),
            "it waits for its turn"
        );
        assert!(paces.of(8).wait(1, SECOND).is_ok(), "another one's");
        let kept = paces.of(9);
        drop(paces.of(10));
        let knows = |uid| paces.0.lock().unwrap().contains_key(&uid);
        assert!([7, 9, 10].map(knows).iter().all(|known| *known));
        paces.of(7);
        assert!(!knows(10), "it is as a new one");
        assert!(Arc::ptr_eq(&kept, &paces.of(9)));
    }
}
