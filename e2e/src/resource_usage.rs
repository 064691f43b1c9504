//! Resources of a datapath process: those of the system from procfs, those of its applications from `fcvi-pmd stat`.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::datapath::DatapathProcess;
use crate::process::{Running, TIMEOUT};
use crate::procfs::ProcessUsage;

/// Consecutive equal samples that count as stable.
const STABLE_SAMPLES: u32 = 10;
/// Time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(1);

/// System resources of a process without those of its connections to running programs. A program attached to one NIC
/// has a socket for its control connection and one for each call connection; the process has the remote sockets, a
/// thread for each of them, and an epoll set per program by which the program wakes a poll thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemUsage {
    /// Open file descriptors.
    pub descriptors: usize,
    /// Of these, sockets.
    pub sockets: usize,
    /// Threads.
    pub threads: usize,
    /// Shared mappings, including those of application memory.
    pub shared_mappings: usize,
}

impl SystemUsage {
    /// Reads the usage of a process to which these programs are attached, with one NIC each.
    ///
    /// # Panics
    /// One of them has ended.
    pub fn of(process: &DatapathProcess, attached: &[&Running]) -> Self {
        let usage = |id| ProcessUsage::of(id).expect("a running process");
        let connections: usize = attached.iter().map(|one| usage(one.id()).sockets).sum();
        let all = usage(process.id());
        Self {
            descriptors: all.descriptors.saturating_sub(connections + attached.len()),
            sockets: all.sockets.saturating_sub(connections),
            threads: all.threads.saturating_sub(connections),
            shared_mappings: all.shared_mappings,
        }
    }
}

/// Resources of applications, from `fcvi-pmd stat --json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApplicationUsage {
    /// Attached applications.
    pub applications: usize,
    /// VIs on all NICs.
    pub vis: u64,
    /// Registered regions on all NICs.
    pub regions: u64,
    /// Registered bytes on all NICs.
    pub registered_bytes: u64,
}

impl ApplicationUsage {
    /// Reads the usage of a process.
    ///
    /// # Panics
    /// The output lacks a counter.
    pub fn of(process: &DatapathProcess) -> Self {
        let stat = process.stat();
        let nics = stat["nics"].as_array().expect("NICs");
        let level = |nic: &Value, name: &str| {
            let counter = nic["counters"][name].as_u64();
            counter.unwrap_or_else(|| panic!("no {name} in {nic}"))
        };
        let sum = |name| nics.iter().map(|nic| level(nic, name)).sum();
        Self {
            applications: stat["applications"].as_array().expect("a list").len(),
            vis: sum("vis"),
            regions: sum("regions"),
            registered_bytes: sum("registered_bytes"),
        }
    }
}

/// All resources of a datapath process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceUsage {
    /// Of the system.
    pub system: SystemUsage,
    /// Of its applications.
    pub applications: ApplicationUsage,
}

impl ResourceUsage {
    /// Waits until a process that is ready and has no applications has opened and closed what it needs for its start; returns
    /// the usage.
    ///
    /// # Panics
    /// After the timeout.
    pub fn without_applications(process: &DatapathProcess) -> Self {
        Self {
            system: stable_usage(process, &[], |_| true),
            applications: ApplicationUsage::of(process),
        }
    }

    /// Waits until exactly these programs are attached and no connection is being set up or closed; returns the usage.
    /// `baseline` is the usage before the first of them attached.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_until_stable(
        process: &DatapathProcess,
        attached: &[&Running],
        baseline: Self,
    ) -> Self {
        let mut applications = ApplicationUsage::of(process);
        wait_until(process, || {
            applications = ApplicationUsage::of(process);
            (applications.applications == attached.len())
                .then_some(())
                .ok_or(applications)
        });
        let before = baseline.system;
        let system = stable_usage(process, attached, |now| {
            now.threads == before.threads && now.sockets == before.sockets
        });
        Self {
            system,
            applications,
        }
    }

    /// Waits until the process has exactly this usage again.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_until_restored(self, process: &DatapathProcess, attached: &[&Running]) {
        wait_until(process, || {
            let system = SystemUsage::of(process, attached);
            if system != self.system {
                let before = self.system;
                return Err(format!("{system:?}, before: {before:?}"));
            }
            let applications = ApplicationUsage::of(process);
            let is_restored = applications == self.applications;
            is_restored
                .then_some(())
                .ok_or_else(|| format!("{applications:?}, before: {:?}", self.applications))
        });
    }
}

/// Waits until the usage of the system is idle and the same in consecutive samples; returns it.
fn stable_usage(
    process: &DatapathProcess,
    attached: &[&Running],
    is_idle: impl Fn(&SystemUsage) -> bool,
) -> SystemUsage {
    let (mut usage, mut samples) = (SystemUsage::of(process, attached), 0);
    wait_until(process, || {
        let now = SystemUsage::of(process, attached);
        let is_same = is_idle(&now) && now == usage;
        samples = if is_same { samples + 1 } else { 0 };
        let before = core::mem::replace(&mut usage, now);
        (samples >= STABLE_SAMPLES)
            .then_some(())
            .ok_or((now, before))
    });
    usage
}

/// Calls `check` until it succeeds; panics with its last error after the timeout.
fn wait_until<E: Debug>(process: &DatapathProcess, mut check: impl FnMut() -> Result<(), E>) {
    let deadline = Instant::now() + TIMEOUT;
    while let Err(found) = check() {
        if Instant::now() >= deadline {
            panic!("timed out: {found:?}\n{}", ProcessUsage::list(process.id()));
        }
        thread::park_timeout(SAMPLE_INTERVAL);
    }
}
