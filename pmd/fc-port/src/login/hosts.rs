//! Host addresses, and the N_Ports that answered for them.
//!
//! A host has one N_Port per process, and each of them answers for itself.

use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::config::LoginConfig;
use super::context::Context;
use super::counters::LoginCounter;
use super::event::LoginEvent;

/// The table of host addresses that are being resolved is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHosts;

impl std::fmt::Display for TooManyHosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("too many host addresses are being resolved")
    }
}

impl std::error::Error for TooManyHosts {}

/// Resolution of one host address.
#[derive(Clone, Debug)]
struct HostEntry {
    host: HostAddress,
    /// Ports that answered; never more than allocated at construction.
    ports: Vec<NPortId>,
    /// Number of ports that were reported.
    reported: usize,
    /// The end of the resolution was reported.
    end_reported: bool,
    stage: Stage,
    /// Deadline of the stage.
    deadline_ns: Option<u64>,
    unsent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The slot is free.
    Free,
    /// FARP-REQ was sent, and retried this often.
    Resolving { tries: u8 },
    /// The resolution ended; its ports are valid until the deadline.
    Resolved,
}

/// Result of a FARP-REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FarpResult {
    /// The port was added, or is known.
    Added,
    /// The host has the maximum number of ports.
    Full,
    /// The host is not being resolved.
    NotRequested,
}

/// The table of host addresses.
#[derive(Debug)]
pub(super) struct Hosts {
    all: Vec<HostEntry>,
}

impl Hosts {
    pub(super) fn new(config: &LoginConfig) -> Self {
        let free = || HostEntry {
            host: HostAddress::default(),
            ports: Vec::with_capacity(usize::from(config.max_ports_per_host)),
            reported: 0,
            end_reported: false,
            stage: Stage::Free,
            deadline_ns: None,
            unsent: false,
        };
        Self {
            all: (0..config.max_hosts).map(|_| free()).collect(),
        }
    }

    /// Starts the resolution of a host, and reports again what is known of it. If the table is full,
    /// a resolution that ended is evicted for it, the oldest first.
    pub(super) fn resolve(
        &mut self,
        context: &Context,
        host: HostAddress,
    ) -> Result<(), TooManyHosts> {
        let same = |h: &HostEntry| h.stage != Stage::Free && h.host == host;
        let same = self.all.iter().position(same);
        let free = || self.all.iter().position(|h| h.stage == Stage::Free);
        let oldest = || {
            let known = self.all.iter().enumerate();
            let known = known.filter(|(_, h)| h.stage == Stage::Resolved && h.end_reported);
            known.min_by_key(|(_, h)| h.deadline_ns).map(|(at, _)| at)
        };
        let at = same.or_else(free).or_else(oldest).ok_or(TooManyHosts)?;
        let entry = &mut self.all[at];
        if same.is_none() {
            let config = &context.config;
            let is_own = Some(host) == config.host && config.max_ports_per_host > 0;
            entry.release();
            entry.host = host;
            entry.ports.extend(context.id.filter(|_| is_own));
        }
        entry.reported = 0;
        entry.end_reported = false;
        if !matches!(entry.stage, Stage::Resolving { .. }) {
            entry.start(context);
        }
        Ok(())
    }

    /// Restarts all resolutions and forgets all ports but ours, because our N_Port_ID changed.
    pub(super) fn restart(&mut self, context: &Context) {
        for host in &mut self.all {
            host.ports.clear();
            host.reported = 0;
            match host.stage {
                Stage::Resolving { .. } => host.start(context),
                Stage::Resolved if host.end_reported => host.release(),
                Stage::Free | Stage::Resolved => {}
            }
        }
        if let (Some(id), Some(host)) = (context.id, context.config.host) {
            self.add_port(context, host, id);
        }
    }

    /// Returns the next host for which FARP-REQ is due; it counts as sent.
    pub(super) fn take_unsent(&mut self) -> Option<HostAddress> {
        let host = self.all.iter_mut().find(|host| host.unsent)?;
        host.unsent = false;
        Some(host.host)
    }

    /// Adds a port that answered for this host.
    pub(super) fn add_port(
        &mut self,
        context: &Context,
        host: HostAddress,
        id: NPortId,
    ) -> FarpResult {
        let max_ports = usize::from(context.config.max_ports_per_host);
        let known = |h: &&mut HostEntry| h.stage != Stage::Free && h.host == host;
        match self.all.iter_mut().find(known) {
            None => FarpResult::NotRequested,
            Some(host) if host.ports.contains(&id) => FarpResult::Added,
            Some(host) if host.ports.len() >= max_ports => FarpResult::Full,
            Some(host) => {
                host.ports.push(id);
                FarpResult::Added
            }
        }
    }

    /// Removes a port that is no neighbour any more.
    pub(super) fn port_gone(&mut self, id: NPortId) {
        for host in &mut self.all {
            if let Some(at) = host.ports.iter().position(|port| *port == id) {
                host.ports.remove(at);
                host.reported -= usize::from(at < host.reported);
            }
        }
    }

    /// Handles timeouts.
    pub(super) fn timeout(&mut self, context: &mut Context) {
        let now_ns = context.now_ns;
        let due = |host: &&mut HostEntry| host.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns);
        for host in self.all.iter_mut().filter(due) {
            match host.stage {
                Stage::Resolving { tries }
                    if tries < context.config.farp_retries && host.ports.is_empty() =>
                {
                    host.start(context);
                    host.stage = Stage::Resolving { tries: tries + 1 };
                    context.counters.count(LoginCounter::Retries);
                }
                Stage::Resolving { .. } => {
                    host.stage = Stage::Resolved;
                    // Without ports nothing is kept after the end was reported.
                    let lifetime_ns = context.config.farp_lifetime_ns;
                    host.deadline_ns = (!host.ports.is_empty()).then(|| context.after(lifetime_ns));
                    host.unsent = false;
                    if host.ports.is_empty() {
                        context.counters.count(LoginCounter::Unresolved);
                    }
                }
                Stage::Resolved if host.end_reported => host.release(),
                Stage::Free | Stage::Resolved => host.deadline_ns = None,
            }
        }
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = u64> + '_ {
        self.all.iter().filter_map(|host| host.deadline_ns)
    }

    /// Returns the next event: a port of a host, or the end of its resolution.
    pub(super) fn event(&mut self) -> Option<LoginEvent> {
        for entry in &mut self.all {
            let host = entry.host;
            if let Some(id) = entry.ports.get(entry.reported).copied() {
                entry.reported += 1;
                return Some(LoginEvent::Resolved { host, id: Some(id) });
            }
            if entry.stage == Stage::Resolved && !entry.end_reported {
                entry.end_reported = true;
                if entry.ports.is_empty() || entry.deadline_ns.is_none() {
                    entry.release();
                }
                return Some(LoginEvent::Resolved { host, id: None });
            }
        }
        None
    }

    /// Reports whether this host is being resolved.
    pub(super) fn is_resolving(&self, host: HostAddress) -> bool {
        let asked = |h: &HostEntry| h.host == host && matches!(h.stage, Stage::Resolving { .. });
        self.all.iter().any(asked)
    }

    /// Returns the ports that answered for this host.
    pub(super) fn ports(&self, host: HostAddress) -> &[NPortId] {
        let known = |h: &&HostEntry| h.stage != Stage::Free && h.host == host;
        self.all.iter().find(known).map_or(&[], |h| &h.ports)
    }
}

impl HostEntry {
    /// Starts the resolution, which waits until we have an N_Port_ID.
    fn start(&mut self, context: &Context) {
        let deadline_ns = context.after(context.config.farp_timeout_ns);
        self.stage = Stage::Resolving { tries: 0 };
        self.deadline_ns = context.id.map(|_| deadline_ns);
        self.unsent = true;
    }

    fn release(&mut self) {
        self.stage = Stage::Free;
        self.ports.clear();
        self.reported = 0;
        self.end_reported = false;
        self.deadline_ns = None;
        self.unsent = false;
    }
}
