//! How far two cores are from each other: what a cache line takes from one to the other and back.
//!
//! It depends on whether they share a core, a cache or only memory. On a virtual machine that
//! changes while it runs, so a figure beside another one is worth little if it changed in between.

use std::thread;
use std::time::{Duration, Instant};

use crate::cli::{Cores, DistanceOptions};
use crate::error::{Error, Result};
use crate::floor::{Line, Over, next, pass};
use crate::output;
use crate::process::pin;
use crate::sync::AtomicBool;

/// Round trips between two readings of the clock.
const SLICE: u64 = 1000;

/// Prints it.
pub(crate) fn run(options: &DistanceOptions) -> Result<()> {
    let Cores { near, far } = options.cores;
    let round_trip_ns = measure(options.cores, options.seconds)?;
    output::line(format_args!(
        "cores {near} and {far}: a cache line there and back in {round_trip_ns:.0} ns"
    ))
}

/// The median of short slices: the longest belong to whoever else wants a core.
fn measure(cores: Cores, duration: Duration) -> Result<f64> {
    if cores.near == cores.far {
        return Err(Error::Usage("--cores: two different ones".into()));
    }
    let (there, back, is_over) = (Line::default(), Line::default(), AtomicBool::new(false));
    let mut slices = thread::scope(|scope| {
        let far = scope.spawn(|| {
            let _over = Over(&is_over);
            pin(cores.far)?;
            let mut last = 0;
            while let Some(word) = next(&there, last, &is_over, false) {
                last = word;
                pass(&back, word);
            }
            Ok(())
        });
        let over = Over(&is_over);
        pin(cores.near)?;
        let mut slices = Vec::new();
        let (start, mut last) = (Instant::now(), 0);
        'slices: loop {
            let begun = Instant::now();
            for _ in 0..SLICE {
                pass(&there, last + 1);
                match next(&back, last, &is_over, false) {
                    Some(word) => last = word,
                    None => break 'slices,
                }
            }
            slices.push(begun.elapsed());
            if start.elapsed() >= duration {
                break;
            }
        }
        drop(over);
        match far.join() {
            Ok(outcome) => outcome.map(|()| slices),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    slices.sort_unstable();
    let median = slices.get(slices.len() / 2).copied().unwrap_or_default();
    Ok(median.as_nanos() as f64 / SLICE as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(20);

    #[test]
    fn two_cores_are_some_nanoseconds_apart() {
        let ids = core_affinity::get_core_ids().expect("the cores of this process");
        let [near, far, ..] = ids[..] else {
            panic!("two cores are needed");
        };
        let cores = Cores {
            near: near.id,
            far: far.id,
        };
        // In a thread of its own, which is pinned for good.
        let ns = thread::spawn(move || measure(cores, BRIEF)).join().unwrap();
        assert!(ns.unwrap() > 1.0);
    }

    #[test]
    fn cores_that_are_not_there_end_it() {
        let ask = |near, far| {
            let cores = Cores { near, far };
            thread::spawn(move || measure(cores, BRIEF)).join().unwrap()
        };
        let first = core_affinity::get_core_ids().unwrap()[0].id;
        assert!(ask(first, first).is_err());
        for (near, far) in [(first, 5000), (5000, first)] {
            let error = ask(near, far).unwrap_err();
            assert!(error.to_string().contains("5000"), "{error}");
        }
    }
}
