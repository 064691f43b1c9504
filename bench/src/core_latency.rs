//! Core-to-core latency: the round trip of a cache line between two cores.
//!
//! It depends on whether the two share a physical core, a cache or only memory. On a virtual machine this changes at
//! run time; results measured before and after such a change are not comparable.

use std::thread;
use std::time::{Duration, Instant};

use crate::baseline::{CacheLine, EndRoundOnDrop, publish, wait_for_change};
use crate::cli::{CoreLatencyOptions, Cores};
use crate::error::{Error, Result};
use crate::output;
use crate::process::pin;
use crate::sync::AtomicBool;

/// Round trips per reading of the clock.
const SLICE: u64 = 1000;

/// Runs `vibench core-latency`. `bench/lib.sh` parses the output.
pub(crate) fn run(options: &CoreLatencyOptions) -> Result<()> {
    let Cores { client, server } = options.cores;
    let round_trip_ns = measure(options.cores, options.seconds)?;
    output::line(format_args!(
        "cores {client} and {server}: cache line round trip {round_trip_ns:.0} ns"
    ))
}

/// Measures the round trip in ns, as the median of short slices: slices with a preemption are outliers.
fn measure(cores: Cores, duration: Duration) -> Result<f64> {
    if cores.client == cores.server {
        return Err(Error::Usage("--cores: the two cores must differ".into()));
    }
    let (request, response, is_over) = (
        CacheLine::default(),
        CacheLine::default(),
        AtomicBool::new(false),
    );
    let mut slices = thread::scope(|scope| {
        let server = scope.spawn(|| {
            let _over = EndRoundOnDrop(&is_over);
            pin(cores.server)?;
            let mut last = 0;
            while let Some(word) = wait_for_change(&request, last, &is_over, false) {
                last = word;
                publish(&response, word);
            }
            Ok(())
        });
        let over = EndRoundOnDrop(&is_over);
        pin(cores.client)?;
        let mut slices = Vec::new();
        let (start, mut last) = (Instant::now(), 0);
        'slices: loop {
            let begun = Instant::now();
            for _ in 0..SLICE {
                publish(&request, last + 1);
                match wait_for_change(&response, last, &is_over, false) {
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
        match server.join() {
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
    fn measure_between_two_cores_gives_nanoseconds() {
        let ids = core_affinity::get_core_ids().expect("the cores of this process");
        let [client, server, ..] = ids[..] else {
            panic!("two cores are needed");
        };
        let cores = Cores {
            client: client.id,
            server: server.id,
        };
        // In a thread of its own, since it stays pinned.
        let ns = thread::spawn(move || measure(cores, BRIEF)).join().unwrap();
        assert!(ns.unwrap() > 1.0);
    }

    #[test]
    fn measure_with_equal_or_missing_cores_fails() {
        let measure_on = |client, server| {
            let cores = Cores { client, server };
            thread::spawn(move || measure(cores, BRIEF)).join().unwrap()
        };
        let first = core_affinity::get_core_ids().unwrap()[0].id;
        assert!(measure_on(first, first).is_err());
        for (client, server) in [(first, 5000), (5000, first)] {
            let error = measure_on(client, server).unwrap_err();
            assert!(error.to_string().contains("5000"), "{error}");
        }
    }
}
