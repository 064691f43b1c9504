//! VIs with something to send, in the order in which they are served.
//!
//! Each application has a lane. Its VIs are served in turn among themselves, and the lanes by
//! their weights: who has a thousand busy VIs is not served more often than who has one. A serving
//! is bounded work, of frames and of bytes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use vi_engine::ViIndex;

/// How far a serving takes a lane of weight 1.
const STRIDE: u64 = 1 << 20;

/// The VIs of an application that wait.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<ViIndex>,
    /// What was served of it, over its weight.
    pass: u64,
    stride: u64,
}

/// VIs that wait to be served.
pub(crate) struct RunQueue {
    lanes: Vec<Lane>,
    /// Lanes in which a VI waits, the one that has gone least far first.
    busy: BinaryHeap<Reverse<(u64, u32)>>,
    waiting: usize,
    /// Where the lane stood that was served last: nobody saves up while it has nothing to do.
    pass: u64,
    max_vi: usize,
}

/// The lane of the NIC's own program.
pub(crate) const OWN_LANE: u32 = 0;

impl RunQueue {
    /// Room for so many VIs.
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

    /// From now on a lane has this weight; makes the room that it needs.
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

    /// How many VIs wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Behind the others of its lane.
    #[inline]
    pub(crate) fn push(&mut self, lane: u32, vi: ViIndex) {
        let Some(place) = self.lanes.get_mut(lane as usize) else {
            debug_assert!(false, "a lane that was not opened");
            return;
        };
        if place.waiting.is_empty() {
            place.pass = place.pass.max(self.pass);
            self.busy.push(Reverse((place.pass, lane)));
        }
        place.waiting.push_back(vi);
        self.waiting += 1;
    }

    /// The next one to serve.
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

    /// So many servings of lanes in which so many VIs are always busy: how many each lane got.
    fn servings(lanes: &[(u32, u32)], rounds: usize) -> Vec<u32> {
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
    fn who_has_many_busy_vis_is_not_served_more_often() {
        assert_eq!(servings(&[(10, 1000), (10, 1)], 1000), [500, 500]);
        assert_eq!(servings(&[(10, 1), (10, 3), (10, 99)], 300), [100; 3]);
    }

    #[test]
    fn a_lane_is_served_as_its_weight_says() {
        let served = servings(&[(10, 50), (30, 1)], 4000);
        assert!(served[0].abs_diff(1000) <= 1, "{served:?}");
        let served = servings(&[(1, 4), (100, 4)], 10_100);
        assert!(served[0].abs_diff(100) <= 1, "{served:?}");
    }

    #[test]
    fn who_had_nothing_to_do_does_not_catch_up() {
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
    fn the_vis_of_a_lane_are_served_in_turn_and_all_of_them() {
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
