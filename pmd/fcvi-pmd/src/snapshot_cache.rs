//! A cache of snapshots for concurrent clients: taking a snapshot briefly interrupts the pollers of all NICs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum interval between the beginnings of two snapshots.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// The last snapshot.
pub(crate) struct SnapshotCache<T> {
    /// With the time at which it was begun.
    last: Mutex<Option<(Instant, Arc<T>)>>,
    /// Notified when a snapshot was taken.
    taken: Condvar,
}

impl<T> SnapshotCache<T> {
    pub(crate) const fn new() -> Self {
        Self {
            last: Mutex::new(None),
            taken: Condvar::new(),
        }
    }

    /// Returns the last snapshot if it is younger than [`INTERVAL`]; else takes one.
    pub(crate) fn recent(&self, take: impl FnOnce() -> T) -> Arc<T> {
        let mut last = self.last();
        let now = Instant::now();
        match &*last {
            Some((begun, value)) if now < *begun + INTERVAL => Arc::clone(value),
            _ => self.replace(&mut last, now, take),
        }
    }

    /// Returns a snapshot that was begun after this call: one of another client, or one that this call takes when
    /// [`INTERVAL`] has passed.
    pub(crate) fn fresh(&self, take: impl FnOnce() -> T) -> Arc<T> {
        let requested = Instant::now();
        let mut last = self.last();
        loop {
            let now = Instant::now();
            let due = match &*last {
                Some((begun, value)) if *begun >= requested => return Arc::clone(value),
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

    /// Counts the snapshots.
    struct CountingSource {
        cache: SnapshotCache<u32>,
        taken: AtomicU32,
    }

    impl CountingSource {
        fn new() -> Self {
            Self {
                cache: SnapshotCache::new(),
                taken: AtomicU32::new(0),
            }
        }

        fn take(&self) -> u32 {
            self.taken.fetch_add(1, Ordering::SeqCst)
        }
    }

    #[test]
    fn concurrent_clients_take_at_most_one_snapshot_per_interval() {
        let source = CountingSource::new();
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        source.cache.recent(|| source.take());
                    }
                    for _ in 0..3 {
                        source.cache.fresh(|| source.take());
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
    fn fresh_returns_a_snapshot_begun_after_the_call() {
        let source = CountingSource::new();
        for _ in 0..3 {
            source.cache.recent(|| source.take());
            let before = source.taken.load(Ordering::SeqCst);
            let fresh = source.cache.fresh(|| source.take());
            assert!(*fresh >= before, "{fresh} {before}");
        }
    }

    #[test]
    fn recent_takes_a_snapshot_if_the_last_one_is_old() {
        let source = CountingSource::new();
        let first = source.cache.recent(|| source.take());
        source.cache.last().as_mut().unwrap().0 -= INTERVAL;
        let second = source.cache.recent(|| source.take());
        assert!(second > first);
    }
}
