//! What a datapath process has: of the system, as procfs tells, and of its applications, as it says itself.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::datapath::DatapathProcess;
use crate::process::{Running, TIMEOUT};
use crate::usage::Usage;

/// As often in a row a process is seen to have the same before it is taken for settled.
const LOOKS: u32 = 10;
/// Between two looks the process gets on.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// What a process has of the system beyond its connections with programs that live. A program attached to one NIC
/// has a socket for the connection that it lives by, and one for each of its calls; the process has their other ends, a
/// thread for each, and for each program an epoll set by which the program wakes a poll thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Open descriptors.
    pub descriptors: usize,
    /// Of these, sockets.
    pub sockets: usize,
    /// Threads.
    pub threads: usize,
    /// Shared mappings, those of its applications' memory among them.
    pub shared_mappings: usize,
}

impl Own {
    /// Of a process to which these programs are attached, by one NIC each.
    ///
    /// # Panics
    /// One of them is gone.
    pub fn of(process: &DatapathProcess, attached: &[&Running]) -> Self {
        let usage = |id| Usage::of(id).expect("a process that lives");
        let ends: usize = attached.iter().map(|one| usage(one.id()).sockets).sum();
        let all = usage(process.id());
        Self {
            descriptors: all.descriptors.saturating_sub(ends + attached.len()),
            sockets: all.sockets.saturating_sub(ends),
            threads: all.threads.saturating_sub(ends),
            shared_mappings: all.shared_mappings,
        }
    }
}

/// What applications have, as `fcvi-pmd stat --json` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Those that are attached.
    pub applications: usize,
    /// VIs of all NICs.
    pub vis: u64,
    /// Regions of all NICs.
    pub regions: u64,
    /// Their bytes.
    pub registered_bytes: u64,
}

impl Account {
    /// Of a process at this moment.
    ///
    /// # Panics
    /// The process does not tell it.
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

/// All of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Of the system.
    pub own: Own,
    /// Of its applications.
    pub account: Account,
}

impl Holdings {
    /// Of a process that is ready, and nobody is attached to it.
    pub fn alone(process: &DatapathProcess) -> Self {
        Self {
            own: Own::of(process, &[]),
            account: Account::of(process),
        }
    }

    /// When these programs are attached, and none of its conversations is about to begin or end: it had `alone` before
    /// the first of them came.
    ///
    /// # Panics
    /// That does not come about.
    pub fn settled(process: &DatapathProcess, attached: &[&Running], alone: Self) -> Self {
        let mut account = Account::of(process);
        await_that(process, || {
            account = Account::of(process);
            (account.applications == attached.len())
                .then_some(())
                .ok_or(account)
        });
        let (mut own, mut looks) = (Own::of(process, attached), 0);
        await_that(process, || {
            let now = Own::of(process, attached);
            let is_still = now.threads == alone.own.threads && now.sockets == alone.own.sockets;
            looks = if is_still && now == own { looks + 1 } else { 0 };
            own = now;
            (looks >= LOOKS).then_some(()).ok_or((now, alone.own))
        });
        Self { own, account }
    }

    /// Waits until the process has exactly this.
    ///
    /// # Panics
    /// It has not in time.
    pub fn await_again(self, process: &DatapathProcess, attached: &[&Running]) {
        await_that(process, || {
            let own = Own::of(process, attached);
            if own != self.own {
                let before = self.own;
                return Err(format!("{own:?}, and before {before:?}"));
            }
            let account = Account::of(process);
            let is_it = account == self.account;
            is_it
                .then_some(())
                .ok_or_else(|| format!("{account:?}, and before {:?}", self.account))
        });
    }
}

/// Looks until it is so.
fn await_that<E: Debug>(process: &DatapathProcess, mut is_so: impl FnMut() -> Result<(), E>) {
    let deadline = Instant::now() + TIMEOUT;
    while let Err(found) = is_so() {
        if Instant::now() >= deadline {
            panic!("still {found:?}\n{}", Usage::list(process.id()));
        }
        thread::park_timeout(BETWEEN_LOOKS);
    }
}
