//! No bell is lost, and what was posted before it is seen by whoever hears it.

use loom::sync::Arc;
use loom::thread;

use crate::doorbell::Doorbells;
use crate::explore;
use crate::sync::{AtomicU32, Ordering};

/// Two VIs of one word of bells, and one of another.
const VIS: [u32; 3] = [1, 2, 64];

struct Bench {
    bells: Doorbells,
    /// What was posted on each VI; only the bell tells of it.
    posted: [AtomicU32; VIS.len()],
}

impl Bench {
    fn post(&self, place: usize) {
        self.posted[place].fetch_add(1, Ordering::Relaxed);
        self.bells.ring(VIS[place]);
    }

    /// Answers the bells; takes note of how much was seen of each VI then.
    fn drain(&self, seen: &mut [u32; VIS.len()]) {
        self.bells.drain(|vi| {
            let place = VIS
                .iter()
                .position(|known| *known == vi)
                .expect("a bell that was rung");
            let posted = self.posted[place].load(Ordering::Relaxed);
            assert!(posted > 0, "a bell before its descriptor");
            seen[place] = posted;
        });
    }
}

/// Posts on some VIs from two threads while a third drains; then a last drain.
fn ring_and_drain(first: &'static [usize], second: &'static [usize]) {
    explore(3, move || {
        let bench = Arc::new(Bench {
            bells: Doorbells::new(),
            posted: core::array::from_fn(|_| AtomicU32::new(0)),
        });
        let ringers: Vec<_> = [first, second]
            .map(|places| {
                let bench = Arc::clone(&bench);
                thread::spawn(move || places.iter().for_each(|place| bench.post(*place)))
            })
            .into();
        let mut seen = [0; VIS.len()];
        bench.drain(&mut seen);
        bench.drain(&mut seen);
        for ringer in ringers {
            ringer.join().expect("a ringer ends");
        }
        bench.drain(&mut seen);
        assert!(!bench.bells.any());
        for (place, seen) in seen.into_iter().enumerate() {
            let posted = bench.posted[place].load(Ordering::Relaxed);
            assert_eq!(
                seen, posted,
                "VI {} was left with something posted",
                VIS[place]
            );
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
