//! Snapshots that many clients share: each one takes the pollers of all NICs from their work for a moment.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From the beginning of a snapshot to that of the next one, at least.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// The last snapshot, for as long as it serves.
pub(crate) struct Paced<T> {
    /// When it was begun.
    last: Mutex<Option<(Instant, Arc<T>)>>,
    /// There is another one.
    taken: Condvar,
}

impl<T> Paced<T> {
    pub(crate) const fn new() -> Self {
        Self {
            last: Mutex::new(None),
            taken: Condvar::new(),
        }
    }

    /// Returns the last one if it is younger than [`INTERVAL`], else takes one.
    pub(crate) fn recent(&self, take: impl FnOnce() -> T) -> Arc<T> {
        let mut last = self.last();
        let now = Instant::now();
        match &*last {
            Some((begun, value)) if now < *begun + INTERVAL => Arc::clone(value),
            _ => self.replace(&mut last, now, take),
        }
    }

    /// Returns one that was begun after this call: that of another client, or its own as soon as [`INTERVAL`] is over.
    pub(crate) fn fresh(&self, take: impl FnOnce() -> T) -> Arc<T> {
        let asked = Instant::now();
        let mut last = self.last();
        loop {
            let now = Instant::now();
            let due = match &*last {
                Some((begun, value)) if *begun >= asked => return Arc::clone(value),
                Some((begun, _)) => *begun + INTERVAL,
                None => now,
            };
            if due <= now {
                return self.replace(&mut last, now, take);
            }
            let waited = self.taken.wait_timeout(last, due - now);
            (last, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn replace(
        &self,
        last: &mut Option<(Instant, Arc<T>)>,
        now: Instant,
        take: impl FnOnce() -> T,
    ) -> Arc<T> {
        let value = Arc::new(take());
        *last = Some((now, Arc::clone(&value)));
        self.taken.notify_all();
        value
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, Arc<T>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    /// Takes numbers, one after the other.
    struct Source {
        paced: Paced<u32>,
        taken: AtomicU32,
    }

    impl Source {
        fn new() -> Self {
            Self {
                paced: Paced::new(),
                taken: AtomicU32::new(0),
            }
        }

        fn take(&self) -> u32 {
            self.taken.fetch_add(1, Ordering::SeqCst)
        }
    }

    #[test]
    fn clients_share_snapshots_and_at_most_one_is_taken_in_an_interval() {
        let source = Source::new();
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        source.paced.recent(|| source.take());
                    }
                    for _ in 0..3 {
                        source.paced.fresh(|| source.take());
                    }
                });
            }
        });
        let intervals = begun.elapsed().as_nanos() / INTERVAL.as_nanos();
        let taken = source.taken.load(Ordering::SeqCst);
        assert!(u128::from(taken) <= intervals + 1, "{taken} in {intervals}");
        assert!(taken >= 3, "{taken}");
    }

    #[test]
    fn fresh_snapshot_is_begun_after_the_call() {
        let source = Source::new();
        for _ in 0..3 {
            source.paced.recent(|| source.take());
            let before = source.taken.load(Ordering::SeqCst);
            let fresh = source.paced.fresh(|| source.take());
            assert!(*fresh >= before, "{fresh} {before}");
        }
    }

    #[test]
    fn recent_snapshot_is_replaced_when_it_is_old() {
        let source = Source::new();
        let first = source.paced.recent(|| source.take());
        source.paced.last().as_mut().unwrap().0 -= INTERVAL;
        let second = source.paced.recent(|| source.take());
        assert!(second > first);
    }
}
