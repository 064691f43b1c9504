//! No doorbell is lost, and the thread that drains it sees what was posted before it.

use loom::sync::Arc;
use loom::thread;

use crate::doorbell::Doorbells;
use crate::explore;
use crate::sync::{AtomicU32, Ordering};

/// Two VIs in one word of the doorbells, and one in another.
const VIS: [u32; 3] = [1, 2, 64];

struct Model {
    doorbells: Doorbells,
    /// The number of posts on each VI; only the doorbell orders the access.
    posted: [AtomicU32; VIS.len()],
}

impl Model {
    fn post(&self, index: usize) {
        self.posted[index].fetch_add(1, Ordering::Relaxed);
        self.doorbells.ring(VIS[index]);
    }

    /// Drains the doorbells; records the number of posts seen of each VI.
    fn drain(&self, seen: &mut [u32; VIS.len()]) {
        self.doorbells.drain(|vi| {
            let index = VIS
                .iter()
                .position(|known| *known == vi)
                .expect("a doorbell that was rung");
            let posted = self.posted[index].load(Ordering::Relaxed);
            assert!(posted > 0, "a doorbell before its descriptor");
            seen[index] = posted;
        });
    }
}

/// Posts on VIs from two threads while a third drains; then drains once more.
fn ring_and_drain(first: &'static [usize], second: &'static [usize]) {
    explore(3, move || {
        let model = Arc::new(Model {
            doorbells: Doorbells::new(),
            posted: core::array::from_fn(|_| AtomicU32::new(0)),
        });
        let ringers: Vec<_> = [first, second]
            .map(|indices| {
                let model = Arc::clone(&model);
                thread::spawn(move || indices.iter().for_each(|index| model.post(*index)))
            })
            .into();
        let mut seen = [0; VIS.len()];
        model.drain(&mut seen);
        model.drain(&mut seen);
        for ringer in ringers {
            ringer.join().expect("a ringer ends");
        }
        model.drain(&mut seen);
        assert!(!model.doorbells.any());
        for (index, seen) in seen.into_iter().enumerate() {
            let posted = model.posted[index].load(Ordering::Relaxed);
            assert_eq!(seen, posted, "VI {} has an undrained post", VIS[index]);
        }
    });
}

#[test]
fn two_threads_post_on_the_same_vi() {
    ring_and_drain(&[0], &[0]);
}

#[test]
fn two_threads_post_on_vis_of_the_same_word_and_of_another() {
    ring_and_drain(&[0, 2], &[1]);
}
