//! The limit of a datapath process on posted descriptors, enforced in the attached program (`max_descriptors`).

use vi_core::sync::{AtomicU32, Ordering};
use vi_types::{Limit, LimitOf, LimitReached, ResourceError};

/// Counts the descriptors of an attached NIC that are posted and not complete, on all queues together. A descriptor of
/// many data segments counts as several ([`descriptor_units`](vi_core::queue::descriptor_units)), but never as more than
/// the limit, so that it can be posted.
///
/// A program within its limit never waits for the process: the process counts the descriptors that it has taken and
/// not completed, which are never more than these.
#[derive(Debug)]
pub(crate) struct DescriptorQuota {
    limit: u32,
    posted: AtomicU32,
    /// Changed by the holder of the backend lock.
    completed: AtomicU32,
}

impl DescriptorQuota {
    pub(crate) const fn new(limit: u32) -> Self {
        Self {
            limit,
            posted: AtomicU32::new(0),
            completed: AtomicU32::new(0),
        }
    }

    /// Counts a descriptor that is about to be posted as this many; false if the limit is reached.
    #[inline]
    pub(crate) fn try_acquire(&self, units: u32) -> bool {
        // Acquire: partner of the Release store in `complete`: what is complete was posted
        // before. An older number allows fewer; a thread that reaped has seen the completion counted.
        self.try_acquire_from(units, self.completed.load(Ordering::Acquire))
    }

    /// As [`Self::try_acquire`], with the number of completions that was read before.
    #[inline]
    fn try_acquire_from(&self, units: u32, mut completed: u32) -> bool {
        let units = units.min(self.limit);
        loop {
            let posted = self.posted.load(Ordering::Relaxed);
            if posted.wrapping_sub(completed) > self.limit - units {
                // Acquire: as in `try_acquire`. Other threads may have posted since.
                let now = self.completed.load(Ordering::Acquire);
                if now == completed {
                    return false;
                }
                completed = now;
                continue;
            }
            let next = posted.wrapping_add(units);
            let (won, lost) = (Ordering::Relaxed, Ordering::Relaxed);
            let counted = self.posted.compare_exchange_weak(posted, next, won, lost);
            if counted.is_ok() {
                return true;
            }
        }
    }

    /// The error of a failed [`Self::try_acquire`].
    #[cold]
    pub(crate) fn limit_reached(&self) -> ResourceError {
        LimitReached::all_in_use(Limit::MaxDescriptors, self.limit, LimitOf::Program)
    }

    /// Counts the completion of a descriptor that was acquired with these units. Called by the holder of the backend lock before it publishes the completion, so that the
    /// thread that reaps it can post another descriptor.
    #[inline]
    pub(crate) fn complete(&self, units: u32) {
        let units = units.min(self.limit);
        let completed = self.completed.load(Ordering::Relaxed);
        // Release: partner of the Acquire load in `try_acquire`.
        self.completed
            .store(completed.wrapping_add(units), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn try_acquire_fails_at_the_limit_and_succeeds_after_each_completion() {
        let quota = DescriptorQuota::new(3);
        for _ in 0..3 {
            assert!(quota.try_acquire(1));
        }
        assert!(!quota.try_acquire(1), "a fourth one");
        quota.complete(1);
        assert!(quota.try_acquire(1));
        assert!(!quota.try_acquire(1));
    }

    #[test]
    fn long_descriptors_count_as_several_and_fit_alone() {
        let quota = DescriptorQuota::new(6);
        assert!(quota.try_acquire(2) && quota.try_acquire(1) && quota.try_acquire(2));
        assert!(!quota.try_acquire(2), "one is left");
        assert!(quota.try_acquire(1));
        for units in [2, 1, 2, 1] {
            assert!(!quota.try_acquire(64));
            quota.complete(units);
        }
        assert!(quota.try_acquire(64), "alone");
        assert!(!quota.try_acquire(1));
        quota.complete(64);
        assert!(quota.try_acquire(6));
    }

    /// A thread that is stopped between its two reads while others post and reap.
    #[test]
    fn try_acquire_with_an_old_completion_count_reads_it_again() {
        let quota = DescriptorQuota::new(2);
        for _ in 0..2 {
            assert!(quota.try_acquire(1));
            quota.complete(1);
        }
        assert!(quota.try_acquire_from(1, 0), "nothing is posted");
        assert!(quota.try_acquire_from(1, 0));
        assert!(!quota.try_acquire_from(1, 0), "two are");
    }

    #[test]
    fn counters_wrap() {
        let quota = DescriptorQuota {
            limit: 2,
            posted: AtomicU32::new(u32::MAX),
            completed: AtomicU32::new(u32::MAX),
        };
        for _ in 0..4 {
            assert!(quota.try_acquire(1) && quota.try_acquire(1));
            assert!(!quota.try_acquire(1));
            quota.complete(1);
            quota.complete(1);
        }
    }

    #[test]
    fn concurrent_acquires_get_exactly_the_limit() {
        const LIMIT: u32 = 1000;
        let quota = DescriptorQuota::new(LIMIT);
        let acquired: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..LIMIT)
                            .map(|_| u32::from(quota.try_acquire(1)))
                            .sum::<u32>()
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(acquired, LIMIT);
    }
}
