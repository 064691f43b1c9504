//! Asynchronous errors in their order, bounded in total and for each VI.
//!
//! A peer can cause errors without end, so each VI has a limit, and so have all together. Beyond
//! them errors are dropped, but the loss of a VI's connection, and of the NIC, is always kept: each
//! VI has room for one of its own. If one is queued already, the newer one takes its place.

use std::collections::VecDeque;

/// Maximum queued errors of one VI, unless it has no loss among them.
const MAX_PER_VI: u32 = 64;

/// What an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Index of the VI; `None` for the NIC.
    pub vi: Option<u32>,
    /// The connection of the VI, or the NIC, is lost.
    pub is_loss: bool,
}

/// The queued errors of one VI, or of the NIC.
#[derive(Clone, Copy, Debug, Default)]
struct Queued {
    errors: u32,
    /// Number of its newest loss, as counted by `ErrorBacklog::taken`.
    loss: Option<u64>,
}

/// A bounded queue of errors.
#[derive(Debug)]
pub struct ErrorBacklog<T> {
    entries: VecDeque<(Subject, T)>,
    /// Number of the oldest entry: how many were taken before it.
    taken: u64,
    nic: Queued,
    vis: Vec<Queued>,
    capacity: usize,
}

impl<T> ErrorBacklog<T> {
    /// Creates an empty queue for `capacity` errors, with memory for the losses of `vis` VIs too.
    /// Those of other VIs allocate memory when they occur.
    pub fn new(capacity: usize, vis: usize) -> Self {
        let losses = if vis > 0 { vis + 1 } else { 0 };
        Self {
            entries: VecDeque::with_capacity(if vis > 0 { capacity + losses } else { 0 }),
            taken: 0,
            nic: Queued::default(),
            vis: vec![Queued::default(); vis],
            capacity,
        }
    }

    /// Adds an error. Returns false if one was dropped: this one, or an earlier loss of the same VI
    /// whose place it has taken.
    pub fn push(&mut self, subject: Subject, error: T) -> bool {
        let has_room = self.entries.len() < self.capacity;
        let number = self.taken + self.entries.len() as u64;
        let taken = self.taken;
        let queued = self.queued(subject.vi);
        let earlier_loss = queued.loss.filter(|number| *number >= taken);
        let is_within_limits = has_room && queued.errors < MAX_PER_VI;
        if !is_within_limits && !subject.is_loss {
            return false;
        }
        if !is_within_limits && let Some(earlier) = earlier_loss {
            let at = (earlier - taken) as usize;
            if let Some(entry) = self.entries.get_mut(at) {
                *entry = (subject, error);
            }
            return false;
        }
        queued.errors += 1;
        if subject.is_loss {
            queued.loss = Some(number);
        }
        self.entries.push_back((subject, error));
        true
    }

    /// Takes the oldest error.
    pub fn pop(&mut self) -> Option<T> {
        let (subject, error) = self.entries.pop_front()?;
        self.taken += 1;
        let queued = self.queued(subject.vi);
        queued.errors = queued.errors.saturating_sub(1);
        Some(error)
    }

    /// Removes all errors.
    pub fn clear(&mut self) {
        while self.pop().is_some() {}
    }

    /// Returns the number of errors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Reports whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn queued(&mut self, vi: Option<u32>) -> &mut Queued {
        let Some(index) = vi.map(|index| index as usize) else {
            return &mut self.nic;
        };
        if index >= self.vis.len() {
            self.vis.resize(index + 1, Queued::default());
        }
        &mut self.vis[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 200;
    const VIS: usize = 10;

    fn error(vi: u32) -> Subject {
        Subject {
            vi: Some(vi),
            is_loss: false,
        }
    }

    fn loss(vi: u32) -> Subject {
        Subject {
            is_loss: true,
            ..error(vi)
        }
    }

    fn all<T>(backlog: &mut ErrorBacklog<T>) -> Vec<T> {
        core::iter::from_fn(|| backlog.pop()).collect()
    }

    #[test]
    fn errors_of_one_vi_are_limited_and_its_loss_is_kept() {
        let mut backlog = ErrorBacklog::new(CAPACITY, VIS);
        for n in 0..1000 {
            assert_eq!(backlog.push(error(3), n), n < MAX_PER_VI);
        }
        assert!(backlog.push(loss(3), 1000));
        assert!(backlog.push(error(4), 1001), "another VI has room");
        let expected: Vec<u32> = (0..MAX_PER_VI).chain([1000, 1001]).collect();
        assert_eq!(all(&mut backlog), expected);
        assert!(backlog.push(error(3), 1002), "taken errors do not count");
    }

    #[test]
    fn full_queue_keeps_the_loss_of_every_vi_and_of_the_nic() {
        let mut backlog = ErrorBacklog::new(CAPACITY, VIS);
        let room = backlog.entries.capacity();
        for n in 0..1000 {
            backlog.push(error(n % 4), n);
        }
        assert_eq!(backlog.len(), CAPACITY);
        for vi in 0..VIS as u32 {
            assert!(backlog.push(loss(vi), 1000 + vi));
            assert!(!backlog.push(error(vi), 2000));
        }
        let nic = Subject {
            vi: None,
            is_loss: true,
        };
        assert!(backlog.push(nic, 3000));
        assert_eq!(backlog.entries.capacity(), room, "nothing was allocated");
        let kept = all(&mut backlog);
        assert_eq!(
            kept[CAPACITY..],
            [
                1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 3000
            ]
        );
    }

    #[test]
    fn repeated_loss_in_a_full_queue_takes_the_place_of_the_earlier_one() {
        let mut backlog = ErrorBacklog::new(2, VIS);
        assert!(backlog.push(error(0), 1) && backlog.push(loss(1), 2) && backlog.push(loss(2), 3));
        for n in 0..1000 {
            assert!(!backlog.push(loss(1), 10 + n));
        }
        assert_eq!(all(&mut backlog), [1, 1009, 3]);
        // The place of one that was taken is free.
        assert!(backlog.push(loss(1), 4) && backlog.push(loss(1), 5) && !backlog.push(loss(1), 6));
        assert_eq!(all(&mut backlog), [4, 6]);
    }

    #[test]
    fn cleared_queue_has_room_again() {
        let mut backlog = ErrorBacklog::new(2, VIS);
        assert!(backlog.push(loss(1), 1) && backlog.push(loss(1), 2) && !backlog.push(error(1), 3));
        backlog.clear();
        assert!(backlog.is_empty() && backlog.push(error(1), 4) && backlog.push(loss(1), 5));
    }
}
