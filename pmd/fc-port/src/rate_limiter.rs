//! A limit per second.

use crate::time::NS_PER_S;

/// Counts uses within the second that began with the first of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RateLimiter {
    started_ns: u64,
    used: u32,
}

impl RateLimiter {
    /// Takes one of `limit` uses per second. Returns false if none is left.
    pub(crate) fn take(&mut self, now_ns: u64, limit: u32) -> bool {
        if now_ns.saturating_sub(self.started_ns) >= NS_PER_S || self.used == 0 {
            *self = Self {
                started_ns: now_ns,
                used: 0,
            };
        }
        let allowed = self.used < limit;
        self.used += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::{NS_PER_S, RateLimiter};

    #[test]
    fn rate_limiter_allows_at_most_limit_per_second() {
        let mut limit = RateLimiter::default();
        let mut taken = |now_ns| limit.take(now_ns, 2);
        assert_eq!([5, 6, 7].map(&mut taken), [true, true, false]);
        assert!(!taken(NS_PER_S + 4));
        assert!(taken(NS_PER_S + 5));
        assert!(!RateLimiter::default().take(0, 0));
    }
}
