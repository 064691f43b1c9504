//! How many descriptors an attached program has posted: the datapath process allows so many.

use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sync::{AtomicU32, Ordering};

/// The descriptors of an attached NIC that are posted and not complete, all queues together.
///
/// A program within its limit never waits for the process, which counts what it took and has not
/// completed: less than this, at any time.
#[derive(Debug)]
pub(crate) struct Posting {
    most: u32,
    posted: AtomicU32,
    /// Changed by the holder of the turn.
    completed: AtomicU32,
}

impl Posting {
    pub(crate) const fn new(most: u32) -> Self {
        Self {
            most,
            posted: AtomicU32::new(0),
            completed: AtomicU32::new(0),
        }
    }

    /// Counts a descriptor that is about to be posted; false if there are too many.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // Acquire: partner of the Release store in `complete`: what is complete was posted
        // before. An older number allows less; whoever reaped has seen the completion counted.
        self.begin_after(self.completed.load(Ordering::Acquire))
    }

    /// As [`Self::begin`], where this many were complete a moment ago.
    #[inline]
    fn begin_after(&self, mut completed: u32) -> bool {
        loop {
            let posted = self.posted.load(Ordering::Relaxed);
            if posted.wrapping_sub(completed) >= self.most {
                // Acquire: as in `begin`. Others may have posted what completed since.
                let now = self.completed.load(Ordering::Acquire);
                if now == completed {
                    return false;
                }
                completed = now;
                continue;
            }
            let next = posted.wrapping_add(1);
            let (won, lost) = (Ordering::Relaxed, Ordering::Relaxed);
            let counted = self.posted.compare_exchange_weak(posted, next, won, lost);
            if counted.is_ok() {
                return true;
            }
        }
    }

    /// Why [`Self::begin`] gave false.
    #[cold]
    pub(crate) fn limit_reached(&self) -> ResourceError {
        LimitReached::all_in_use(Limit::MaxDescriptors, self.most, LimitOf::Program)
    }

    /// It was not posted after all.
    #[cold]
    pub(crate) fn take_back(&self) {
        self.posted.fetch_sub(1, Ordering::Relaxed);
    }

    /// One that was posted is about to complete. For the holder of the turn, before it publishes
    /// the completion: whoever reaps it may post another one.
    #[inline]
    pub(crate) fn complete(&self) {
        let completed = self.completed.load(Ordering::Relaxed);
        // Release: partner of the Acquire load in `begin`.
        self.completed
            .store(completed.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_are_allowed_and_one_more_for_each_that_completes() {
        let posting = Posting::new(3);
        for _ in 0..3 {
            assert!(posting.begin());
        }
        assert!(!posting.begin(), "a fourth one");
        posting.complete();
        assert!(posting.begin());
        assert!(!posting.begin());
        posting.take_back();
        assert!(posting.begin(), "the one that was not posted");
        assert!(!posting.begin());
    }

    /// A thread that is stopped between its two looks while others post and reap.
    #[test]
    fn what_was_complete_a_moment_ago_refuses_nothing() {
        let posting = Posting::new(2);
        for _ in 0..2 {
            assert!(posting.begin());
            posting.complete();
        }
        assert!(posting.begin_after(0), "nothing is posted");
        assert!(posting.begin_after(0));
        assert!(!posting.begin_after(0), "two are");
    }

    #[test]
    fn numbers_that_wrap_count_on() {
        let posting = Posting {
            most: 2,
            posted: AtomicU32::new(u32::MAX),
            completed: AtomicU32::new(u32::MAX),
        };
        for _ in 0..4 {
            assert!(posting.begin() && posting.begin());
            assert!(!posting.begin());
            posting.complete();
            posting.complete();
        }
    }

    #[test]
    fn threads_that_post_at_once_get_what_is_allowed_and_no_more() {
        const MOST: u32 = 1000;
        let posting = Posting::new(MOST);
        let begun: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..MOST).map(|_| u32::from(posting.begin())).sum::<u32>()))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!(begun, MOST);
    }
}
