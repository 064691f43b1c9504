//! A queue of the VIs with something to send: stride scheduling of applications, round robin of
//! the VIs of each.
//!
//! Each application has a lane, and lanes are served by weight: an application with a thousand busy
//! VIs is not served more often than one with a single busy VI. Each service is a bounded number of
//! frames and bytes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use vi_types::ViIndex;

/// Increment of the pass value of a lane of weight 1 for each service.
const STRIDE: u64 = 1 << 20;

/// The queued VIs of one application.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<ViIndex>,
    /// The pass value of stride scheduling: services over weight.
    pass: u64,
    stride: u64,
}

/// A queue of VIs to serve.
pub(crate) struct RunQueue {
    lanes: Vec<Lane>,
    /// Lanes with a queued VI, the lowest pass value first.
    busy: BinaryHeap<Reverse<(u64, u32)>>,
    waiting: usize,
    /// The pass value of the lane served last: an idle lane gains no credit.
    pass: u64,
    max_vi: usize,
}

/// The lane of the NIC's own program.
pub(crate) const OWN_LANE: u32 = 0;

impl RunQueue {
    /// Creates a queue for `max_vi` VIs.
    pub(crate) fn new(max_vi: usize) -> Self {
        let mut queue = Self {
            lanes: Vec::new(),
            busy: BinaryHeap::new(),
            waiting: 0,
            pass: 0,
            max_vi,
        };
        queue.open(OWN_LANE, 1);
        queue
    }

    /// Sets the weight of a lane, and allocates the lane.
    pub(crate) fn open(&mut self, lane: u32, weight: u32) {
        while self.lanes.len() <= lane as usize {
            self.lanes.push(Lane {
                waiting: VecDeque::with_capacity(self.max_vi),
                ..Lane::default()
            });
        }
        self.busy.reserve(self.lanes.len());
        self.lanes[lane as usize].stride = STRIDE / u64::from(weight.max(1));
    }

    /// Returns the number of queued VIs.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Appends a VI to its lane.
    #[inline]
    pub(crate) fn push(&mut self, lane: u32, vi: ViIndex) {
        let Some(found) = self.lanes.get_mut(lane as usize) else {
            debug_assert!(false, "a lane that was not opened");
            return;
        };
        if found.waiting.is_empty() {
            found.pass = found.pass.max(self.pass);
            self.busy.push(Reverse((found.pass, lane)));
        }
        found.waiting.push_back(vi);
        self.waiting += 1;
    }

    /// Takes the next VI to serve.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<ViIndex> {
        let Reverse((pass, number)) = self.busy.pop()?;
        let lane = self.lanes.get_mut(number as usize)?;
        let vi = lane.waiting.pop_front()?;
        self.waiting -= 1;
        self.pass = pass;
        lane.pass = pass + lane.stride;
        if !lane.waiting.is_empty() {
            self.busy.push(Reverse((lane.pass, number)));
        }
        Some(vi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves lanes of this weight and number of busy VIs `rounds` times; returns the services of each.
    fn service_counts(lanes: &[(u32, u32)], rounds: usize) -> Vec<u32> {
        let mut queue = RunQueue::new(2048);
        let mut owners = Vec::new();
        for (number, &(weight, vis)) in (1u32..).zip(lanes) {
            queue.open(number, weight);
            for _ in 0..vis {
                queue.push(number, ViIndex(owners.len() as u32));
                owners.push(number);
            }
        }
        let mut served = vec![0; lanes.len()];
        for _ in 0..rounds {
            let vi = queue.pop().unwrap();
            let lane = owners[vi.0 as usize];
            served[lane as usize - 1] += 1;
            queue.push(lane, vi);
        }
        served
    }

    #[test]
    fn lane_with_many_busy_vis_is_not_served_more_often() {
        assert_eq!(service_counts(&[(10, 1000), (10, 1)], 1000), [500, 500]);
        assert_eq!(service_counts(&[(10, 1), (10, 3), (10, 99)], 300), [100; 3]);
    }

    #[test]
    fn lanes_are_served_by_weight() {
        let served = service_counts(&[(10, 50), (30, 1)], 4000);
        assert!(served[0].abs_diff(1000) <= 1, "{served:?}");
        let served = service_counts(&[(1, 4), (100, 4)], 10_100);
        assert!(served[0].abs_diff(100) <= 1, "{served:?}");
    }

    #[test]
    fn idle_lane_does_not_catch_up() {
        let mut queue = RunQueue::new(4);
        queue.open(1, 1);
        queue.open(2, 1);
        for _ in 0..1000 {
            queue.push(1, ViIndex(1));
            assert_eq!(queue.pop(), Some(ViIndex(1)));
        }
        let mut late = 0;
        queue.push(1, ViIndex(1));
        queue.push(2, ViIndex(2));
        for _ in 0..100 {
            let vi = queue.pop().unwrap();
            late += u32::from(vi == ViIndex(2));
            queue.push(vi.0, vi);
        }
        assert!((49..=51).contains(&late), "{late} of 100");
    }

    #[test]
    fn vis_of_a_lane_are_served_round_robin() {
        let mut queue = RunQueue::new(8);
        for round in 0..3 {
            for vi in 0..8 {
                queue.push(OWN_LANE, ViIndex(vi));
            }
            assert_eq!(queue.len(), 8);
            for vi in 0..8 {
                assert_eq!(queue.pop(), Some(ViIndex(vi)), "round {round}");
            }
            assert_eq!(queue.pop(), None);
            assert!(queue.is_empty());
        }
    }
}
