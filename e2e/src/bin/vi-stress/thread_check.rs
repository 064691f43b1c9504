//! Checks of threads, open files and resident memory of the process.

use std::fs;
use std::time::{Duration, Instant};

use e2e::failure::Failure;

/// Numbers of threads and open files. Pipes are not counted: only the symbolizer of ThreadSanitizer opens any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceCounts {
    pub(crate) threads: usize,
    pub(crate) files: usize,
}

impl ResourceCounts {
    pub(crate) fn read() -> Result<Self, Failure> {
        Ok(Self {
            threads: fs::read_dir("/proc/self/task")?.count(),
            files: fs::read_dir("/proc/self/fd")?
                .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
                .filter(|target| !target.to_string_lossy().starts_with("pipe:"))
                .count(),
        })
    }

    /// Reads the numbers once only this thread is left; procfs may list joined threads for a moment.
    pub(crate) fn read_single_threaded() -> Result<Self, Failure> {
        let begun = Instant::now();
        loop {
            let counts = Self::read()?;
            if counts.threads == 1 || begun.elapsed() > JOINED_THREAD_TIMEOUT {
                return Ok(counts);
            }
            std::thread::yield_now();
        }
    }
}

/// Maximum time for which procfs may list joined threads.
const JOINED_THREAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the resident memory in KiB.
fn resident_kib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let number = line.trim().trim_end_matches(" kB");
    Ok(number.parse()?)
}

/// Minimum runtime for the check of memory growth.
const MIN_RUNTIME: Duration = Duration::from_secs(120);
/// Permitted growth from the first to the last minute: a percentage plus a constant.
const MAX_GROWTH_PERCENT: u64 = 5;
const MAX_GROWTH_KIB: u64 = 8 << 10;

/// Samples of the resident memory.
pub(crate) struct MemorySamples {
    since: Instant,
    samples: Vec<(Duration, u64)>,
}

impl MemorySamples {
    pub(crate) fn new(run: Duration) -> Self {
        Self {
            since: Instant::now(),
            samples: Vec::with_capacity(run.as_secs() as usize + 16),
        }
    }

    pub(crate) fn sample(&mut self) -> Result<(), Failure> {
        self.samples.push((self.since.elapsed(), resident_kib()?));
        Ok(())
    }

    /// Returns the maxima of the first and of the last minute; fails if the latter is too high.
    pub(crate) fn check_growth(&self) -> Result<(u64, u64), Failure> {
        let minute = Duration::from_secs(60);
        let end = self.since.elapsed();
        let highest = |from: Duration, to: Duration| {
            let within = self
                .samples
                .iter()
                .filter(|(at, _)| (from..=to).contains(at));
            within.map(|(_, kib)| *kib).max().unwrap_or(0)
        };
        let first = highest(Duration::ZERO, minute);
        let last = highest(end.saturating_sub(minute), end);
        if end >= MIN_RUNTIME && last > first + first * MAX_GROWTH_PERCENT / 100 + MAX_GROWTH_KIB {
            return Err(format!("resident memory grew from {first} KiB in the first minute to {last} KiB in the last").into());
        }
        Ok((first, last))
    }
}
