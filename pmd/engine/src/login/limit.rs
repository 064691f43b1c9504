//! So many in a second.

const SECOND_NS: u64 = 1_000_000_000;

/// Counts what was done in the second that began with the first of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PerSecond {
    begun_ns: u64,
    done: u32,
}

impl PerSecond {
    /// True, and counted, if one more is allowed.
    pub(super) fn take(&mut self, now_ns: u64, limit: u32) -> bool {
        if now_ns.saturating_sub(self.begun_ns) >= SECOND_NS || self.done == 0 {
            *self = Self {
                begun_ns: now_ns,
                done: 0,
            };
        }
        let allowed = self.done < limit;
        self.done += u32::from(allowed);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::{PerSecond, SECOND_NS};

    #[test]
    fn no_second_has_more_than_its_limit() {
        let mut limit = PerSecond::default();
        let mut taken = |now_ns| limit.take(now_ns, 2);
        assert_eq!([5, 6, 7].map(&mut taken), [true, true, false]);
        assert!(!taken(SECOND_NS + 4));
        assert!(taken(SECOND_NS + 5));
        assert!(!PerSecond::default().take(0, 0));
    }
}
