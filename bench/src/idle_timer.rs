//! Time without progress, for timeouts of polling loops.

use std::time::{Duration, Instant};

/// Maximum time counted between two polls: a pause of the machine is not idle time.
const MAX_GAP: Duration = Duration::from_secs(1);

/// Time since the first of a series of unsuccessful polls.
#[derive(Default)]
pub(crate) struct IdleTimer {
    last_poll: Option<Instant>,
    total: Duration,
}

impl IdleTimer {
    /// Records an unsuccessful poll at `now`, and returns the time since the first one.
    pub(crate) fn idle_time(&mut self, now: Instant) -> Duration {
        let gap = self
            .last_poll
            .map_or(Duration::ZERO, |last_poll| now - last_poll);
        self.total += gap.min(MAX_GAP);
        self.last_poll = Some(now);
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_of_long_pause_is_limited() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut timer = IdleTimer::default();
        assert_eq!(timer.idle_time(at(0)), Duration::ZERO);
        assert_eq!(timer.idle_time(at(300)), Duration::from_millis(300));
        assert_eq!(timer.idle_time(at(90_300)), Duration::from_millis(1300));
        assert_eq!(timer.idle_time(at(90_400)), Duration::from_millis(1400));
    }
}
