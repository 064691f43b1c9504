//! Resource usage of a process, from procfs.

use std::fs;
use std::io;

/// Resource usage of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Of these, sockets.
    pub sockets: usize,
    /// Threads.
    pub threads: usize,
    /// Shared mappings: of files, of memfds, of packet socket rings.
    pub shared_mappings: usize,
    /// Resident memory in KiB.
    pub resident_kib: u64,
}

impl ProcessUsage {
    /// Reads the usage of a process.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(process: u32) -> io::Result<Self> {
        let mut usage = Self::default();
        for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
            usage.descriptors += 1;
            // The descriptor may have been closed in the meantime.
            let target = fs::read_link(entry?.path()).unwrap_or_default();
            usage.sockets += usize::from(target.to_string_lossy().starts_with("socket:"));
        }
        usage.threads = fs::read_dir(format!("/proc/{process}/task"))?.count();
        let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
        usage.shared_mappings = maps.lines().filter(is_shared).count();
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        usage.resident_kib = kib(&status, "VmRSS:");
        Ok(usage)
    }

    /// Returns the peak resident memory of a process in KiB, since its start or [`Self::reset_peak`].
    ///
    /// # Errors
    /// There is no such process.
    pub fn peak_kib(process: u32) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        Ok(kib(&status, "VmHWM:"))
    }

    /// Resets the peak resident memory of a process to its current value.
    ///
    /// # Errors
    /// There is no such process, or it belongs to another user.
    pub fn reset_peak(process: u32) -> io::Result<()> {
        fs::write(format!("/proc/{process}/clear_refs"), "5")
    }

    /// Lists threads, descriptors and shared mappings, one per line, for error messages.
    pub fn list(process: u32) -> String {
        let of = |what: &str| format!("/proc/{process}/{what}");
        let entries = |what: &str| fs::read_dir(of(what)).into_iter().flatten().flatten();
        let threads =
            entries("task").filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let threads = threads.map(|name| format!("thread {}", name.trim_end()));
        let descriptors = entries("fd").filter_map(|fd| fs::read_link(fd.path()).ok());
        let descriptors = descriptors.map(|target| format!("descriptor {}", target.display()));
        let maps = fs::read_to_string(of("maps")).unwrap_or_default();
        let mappings = maps.lines().filter(is_shared);
        let mappings = mappings.map(|line| format!("mapping {line}"));
        let all: Vec<_> = threads.chain(descriptors).chain(mappings).collect();
        all.join("\n")
    }
}

/// Returns a field of `/proc/PID/status` in KiB; 0 if it is missing.
fn kib(status: &str, name: &str) -> u64 {
    let words = status.lines().find_map(|line| line.strip_prefix(name));
    words
        .and_then(|words| words.split_ascii_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// Whether a line of `/proc/PID/maps` is a shared mapping.
fn is_shared(line: &&str) -> bool {
    let rights = line.split_ascii_whitespace().nth(1);
    rights.is_some_and(|rights| rights.ends_with('s'))
}
