//! Host addresses, and the N_Ports that answered for them.
//!
//! A host has one N_Port per process, and each of them answers for itself.

use fcvi_frame::fc::NPortId;
use vi_types::HostAddress;

use super::config::LoginConfig;

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
    max_ports: usize,
    timeout_ns: u64,
    retries: u8,
    lifetime_ns: u64,
}

impl Hosts {
    pub(super) fn new(config: &LoginConfig) -> Self {
        let max_ports = usize::from(config.max_ports_per_host);
        let free = || HostEntry {
            host: HostAddress::default(),
            ports: Vec::with_capacity(max_ports),
            reported: 0,
            end_reported: false,
            stage: Stage::Free,
            deadline_ns: None,
            unsent: false,
        };
        Self {
            all: (0..config.max_hosts).map(|_| free()).collect(),
            max_ports,
            timeout_ns: config.farp_timeout_ns,
            retries: config.farp_retries,
            lifetime_ns: config.farp_lifetime_ns,
        }
    }

    /// Starts the resolution of a host, and reports again what is known of it. `own`: our N_Port_ID
    /// if the host is ours. Returns false if the table is full; a resolution that ended is evicted
    /// for it, the oldest first.
    pub(super) fn resolve(
        &mut self,
        now_ns: u64,
        host: HostAddress,
        has_id: bool,
        own: Option<NPortId>,
    ) -> bool {
        let same = |h: &HostEntry| h.stage != Stage::Free && h.host == host;
        let same = self.all.iter().position(same);
        let free = || self.all.iter().position(|h| h.stage == Stage::Free);
        let oldest = || {
            let known = self.all.iter().enumerate();
            let known = known.filter(|(_, h)| h.stage == Stage::Resolved && h.end_reported);
            known.min_by_key(|(_, h)| h.deadline_ns).map(|(at, _)| at)
        };
        let Some(at) = same.or_else(free).or_else(oldest) else {
            return false;
        };
        let deadline_ns = has_id.then(|| now_ns.saturating_add(self.timeout_ns));
        let entry = &mut self.all[at];
        if same.is_none() {
            entry.release();
            entry.host = host;
            entry.ports.extend(own.filter(|_| self.max_ports > 0));
        }
        entry.reported = 0;
        entry.end_reported = false;
        if !matches!(entry.stage, Stage::Resolving { .. }) {
            entry.stage = Stage::Resolving { tries: 0 };
            entry.deadline_ns = deadline_ns;
            entry.unsent = true;
        }
        true
    }

    /// Restarts all resolutions and forgets all ports, because our N_Port_ID changed.
    pub(super) fn restart(&mut self, now_ns: u64, has_id: bool) {
        for host in &mut self.all {
            host.ports.clear();
            host.reported = 0;
            match host.stage {
                Stage::Resolving { .. } => {
                    host.stage = Stage::Resolving { tries: 0 };
                    host.deadline_ns = has_id.then(|| now_ns.saturating_add(self.timeout_ns));
                    host.unsent = true;
                }
                Stage::Resolved if host.end_reported => host.release(),
                Stage::Free | Stage::Resolved => {}
            }
        }
    }

    /// Returns the next host for which FARP-REQ is due.
    pub(super) fn unsent(&self) -> Option<HostAddress> {
        let host = self.all.iter().find(|host| host.unsent);
        host.map(|host| host.host)
    }

    /// Notes that the FARP-REQ for this host was handed out, or could not be.
    pub(super) fn sent(&mut self, host: HostAddress) {
        if let Some(host) = self.get_mut(host) {
            host.unsent = false;
        }
    }

    /// Adds a port that answered for this host.
    pub(super) fn add_port(&mut self, host: HostAddress, id: NPortId) -> FarpResult {
        let max_ports = self.max_ports;
        match self.get_mut(host) {
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

    /// Handles timeouts. Returns how many requests are retried, and how many hosts no port answered
    /// for.
    pub(super) fn timeout(&mut self, now_ns: u64) -> (usize, usize) {
        let (mut retried, mut unanswered) = (0, 0);
        let (timeout_ns, lifetime_ns, retries) = (self.timeout_ns, self.lifetime_ns, self.retries);
        let due = |host: &&mut HostEntry| host.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns);
        for host in self.all.iter_mut().filter(due) {
            match host.stage {
                Stage::Resolving { tries } if tries < retries && host.ports.is_empty() => {
                    host.stage = Stage::Resolving { tries: tries + 1 };
                    host.deadline_ns = Some(now_ns.saturating_add(timeout_ns));
                    host.unsent = true;
                    retried += 1;
                }
                Stage::Resolving { .. } => {
                    host.stage = Stage::Resolved;
                    // Without ports nothing is kept after the end was reported.
                    host.deadline_ns =
                        (!host.ports.is_empty()).then(|| now_ns.saturating_add(lifetime_ns));
                    host.unsent = false;
                    unanswered += usize::from(host.ports.is_empty());
                }
                Stage::Resolved if host.end_reported => host.release(),
                Stage::Free | Stage::Resolved => host.deadline_ns = None,
            }
        }
        (retried, unanswered)
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = u64> + '_ {
        self.all.iter().filter_map(|host| host.deadline_ns)
    }

    /// Returns the next event: a port of a host, or `None` at the end of its resolution.
    pub(super) fn next_event(&mut self) -> Option<(HostAddress, Option<NPortId>)> {
        for host in &mut self.all {
            if let Some(id) = host.ports.get(host.reported) {
                host.reported += 1;
                return Some((host.host, Some(*id)));
            }
            if host.stage == Stage::Resolved && !host.end_reported {
                let over = (host.host, None);
                host.end_reported = true;
                if host.ports.is_empty() || host.deadline_ns.is_none() {
                    host.release();
                }
                return Some(over);
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

    fn get_mut(&mut self, host: HostAddress) -> Option<&mut HostEntry> {
        let known = |h: &&mut HostEntry| h.stage != Stage::Free && h.host == host;
        self.all.iter_mut().find(known)
    }
}

impl HostEntry {
    fn release(&mut self) {
        self.stage = Stage::Free;
        self.ports.clear();
        self.reported = 0;
        self.end_reported = false;
        self.deadline_ns = None;
        self.unsent = false;
    }
}
