//! What a process has of the system: threads, descriptors of files, memory.

use std::fs;
use std::time::{Duration, Instant};

use crate::Failure;

/// Threads and open files. Pipes do not count: nothing here makes any but a data-race check, which reads names through
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) threads: usize,
    pub(crate) files: usize,
}

impl Census {
    pub(crate) fn take() -> Result<Self, Failure> {
        Ok(Self {
            threads: fs::read_dir("/proc/self/task")?.count(),
            files: fs::read_dir("/proc/self/fd")?
                .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
                .filter(|target| !target.to_string_lossy().starts_with("pipe:"))
                .count(),
        })
    }

    /// Of this thread alone. One that was joined is still shown for a moment.
    pub(crate) fn take_alone() -> Result<Self, Failure> {
        let begun = Instant::now();
        loop {
            let census = Self::take()?;
            if census.threads == 1 || begun.elapsed() > LINGERING {
                return Ok(census);
            }
            std::thread::yield_now();
        }
    }
}

/// How long a thread that was joined may still be shown.
const LINGERING: Duration = Duration::from_secs(5);

/// Resident memory in KiB.
fn resident_kib() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let number = line.trim().trim_end_matches(" kB");
    Ok(number.parse()?)
}

/// Runs shorter than this say nothing about memory.
const SHORTEST: Duration = Duration::from_secs(120);
/// Memory that may come on top between the first minute and the last: in hundredths, and in any case.
const SLACK_PERCENT: u64 = 5;
const SLACK_KIB: u64 = 8 << 10;

/// Resident memory over a run.
pub(crate) struct Memory {
    since: Instant,
    samples: Vec<(Duration, u64)>,
}

impl Memory {
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

    /// The highest of the first minute and of the last; the last one may not be much higher.
    pub(crate) fn judge(&self) -> Result<(u64, u64), Failure> {
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
        if end >= SHORTEST && last > first + first * SLACK_PERCENT / 100 + SLACK_KIB {
            return Err(format!("resident memory grew from {first} KiB in the first minute to {last} KiB in the last").into());
        }
        Ok((first, last))
    }
}
