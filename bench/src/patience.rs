//! How long one looks for something in vain.

use std::time::{Duration, Instant};

/// What the time between two looks counts at most: a host that was stopped meanwhile lost nothing.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// How long somebody has looked in vain.
#[derive(Default)]
pub(crate) struct Patience {
    looked: Option<Instant>,
    waited: Duration,
}

impl Patience {
    /// One more look in vain: how long it has been since the first one.
    pub(crate) fn after(&mut self, now: Instant) -> Duration {
        let gap = self.looked.map_or(Duration::ZERO, |looked| now - looked);
        self.waited += gap.min(LONGEST_GAP);
        self.looked = Some(now);
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_as_a_second() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut patience = Patience::default();
        assert_eq!(patience.after(at(0)), Duration::ZERO);
        assert_eq!(patience.after(at(300)), Duration::from_millis(300));
        assert_eq!(patience.after(at(90_300)), Duration::from_millis(1300));
        assert_eq!(patience.after(at(90_400)), Duration::from_millis(1400));
    }
}
