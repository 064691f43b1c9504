//! Host addresses, and the N_Ports that answered for them.
//!
//! A host has as many N_Ports as it has programs, and each of them answers for itself.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::fc::NPortId;

use super::config::LoginConfig;

/// One host address.
#[derive(Clone, Debug)]
struct Host {
    host: HostAddress,
    /// Who answered; never more than there was room for at the start.
    ports: Vec<NPortId>,
    /// How many of them were told.
    told: usize,
    /// The question is over, and that was told.
    end_told: bool,
    stage: Stage,
    /// When the stage is over.
    deadline_ns: Option<u64>,
    unsent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The place is free.
    Free,
    /// FARP-REQ was sent again so many times.
    Asking { tries: u8 },
    /// The question is over; the answers, if there are any, are believed until the deadline.
    Known,
}

/// What came of a FARP-REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// A port more, or one that was known.
    Port,
    /// There is no room for so many ports.
    Full,
    /// Nobody asked for this host.
    NotAsked,
}

/// The table of host addresses.
#[derive(Debug)]
pub(super) struct Hosts {
    all: Vec<Host>,
    max_ports: usize,
    timeout_ns: u64,
    retries: u8,
    lifetime_ns: u64,
}

impl Hosts {
    pub(super) fn new(config: &LoginConfig) -> Self {
        let max_ports = usize::from(config.max_ports_per_host);
        let free = || Host {
            host: HostAddress::default(),
            ports: Vec::with_capacity(max_ports),
            told: 0,
            end_told: false,
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

    /// Asks for a host, and tells again what is known of it. `own`: our N_Port_ID if the host is
    /// ours. False if there is no room: what is merely known makes room, the oldest first.
    pub(super) fn ask(
        &mut self,
        now_ns: u64,
        host: HostAddress,
        has_id: bool,
        own: Option<NPortId>,
    ) -> bool {
        let same = |h: &Host| h.stage != Stage::Free && h.host == host;
        let same = self.all.iter().position(same);
        let free = || self.all.iter().position(|h| h.stage == Stage::Free);
        let oldest = || {
            let known = self.all.iter().enumerate();
            let known = known.filter(|(_, h)| h.stage == Stage::Known && h.end_told);
            known.min_by_key(|(_, h)| h.deadline_ns).map(|(at, _)| at)
        };
        let Some(at) = same.or_else(free).or_else(oldest) else {
            return false;
        };
        let deadline_ns = has_id.then(|| now_ns.saturating_add(self.timeout_ns));
        let place = &mut self.all[at];
        if same.is_none() {
            place.release();
            place.host = host;
            place.ports.extend(own.filter(|_| self.max_ports > 0));
        }
        place.told = 0;
        place.end_told = false;
        if !matches!(place.stage, Stage::Asking { .. }) {
            place.stage = Stage::Asking { tries: 0 };
            place.deadline_ns = deadline_ns;
            place.unsent = true;
        }
        true
    }

    /// Everything that is asked for is asked for anew, and what is known is forgotten: our
    /// N_Port_ID is another one.
    pub(super) fn restart(&mut self, now_ns: u64, has_id: bool) {
        for host in &mut self.all {
            host.ports.clear();
            host.told = 0;
            match host.stage {
                Stage::Asking { .. } => {
                    host.stage = Stage::Asking { tries: 0 };
                    host.deadline_ns = has_id.then(|| now_ns.saturating_add(self.timeout_ns));
                    host.unsent = true;
                }
                Stage::Known if host.end_told => host.release(),
                Stage::Free | Stage::Known => {}
            }
        }
    }

    /// The next host that is to be asked for.
    pub(super) fn unsent(&self) -> Option<HostAddress> {
        let host = self.all.iter().find(|host| host.unsent);
        host.map(|host| host.host)
    }

    /// The FARP-REQ for this host was handed out, or could not be.
    pub(super) fn sent(&mut self, host: HostAddress) {
        if let Some(host) = self.get_mut(host) {
            host.unsent = false;
        }
    }

    /// A port said that it is one of this host's.
    pub(super) fn learn(&mut self, host: HostAddress, id: NPortId) -> Learned {
        let max_ports = self.max_ports;
        match self.get_mut(host) {
            None => Learned::NotAsked,
            Some(host) if host.ports.contains(&id) => Learned::Port,
            Some(host) if host.ports.len() >= max_ports => Learned::Full,
            Some(host) => {
                host.ports.push(id);
                Learned::Port
            }
        }
    }

    /// A port is no neighbour any more.
    pub(super) fn port_gone(&mut self, id: NPortId) {
        for host in &mut self.all {
            if let Some(at) = host.ports.iter().position(|port| *port == id) {
                host.ports.remove(at);
                host.told -= usize::from(at < host.told);
            }
        }
    }

    /// Returns how many requests are repeated, and how many hosts nobody answered for.
    pub(super) fn timeout(&mut self, now_ns: u64) -> (usize, usize) {
        let (mut again, mut nobody) = (0, 0);
        let (timeout_ns, lifetime_ns, retries) = (self.timeout_ns, self.lifetime_ns, self.retries);
        let due = |host: &&mut Host| host.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns);
        for host in self.all.iter_mut().filter(due) {
            match host.stage {
                Stage::Asking { tries } if tries < retries && host.ports.is_empty() => {
                    host.stage = Stage::Asking { tries: tries + 1 };
                    host.deadline_ns = Some(now_ns.saturating_add(timeout_ns));
                    host.unsent = true;
                    again += 1;
                }
                Stage::Asking { .. } => {
                    host.stage = Stage::Known;
                    // Without an answer there is nothing to keep once its end was told.
                    host.deadline_ns =
                        (!host.ports.is_empty()).then(|| now_ns.saturating_add(lifetime_ns));
                    host.unsent = false;
                    nobody += usize::from(host.ports.is_empty());
                }
                Stage::Known if host.end_told => host.release(),
                Stage::Free | Stage::Known => host.deadline_ns = None,
            }
        }
        (again, nobody)
    }

    pub(super) fn deadlines(&self) -> impl Iterator<Item = u64> + '_ {
        self.all.iter().filter_map(|host| host.deadline_ns)
    }

    /// The next thing to tell: a port of a host, or that the question is over.
    pub(super) fn news(&mut self) -> Option<(HostAddress, Option<NPortId>)> {
        for host in &mut self.all {
            if let Some(id) = host.ports.get(host.told) {
                host.told += 1;
                return Some((host.host, Some(*id)));
            }
            if host.stage == Stage::Known && !host.end_told {
                let over = (host.host, None);
                host.end_told = true;
                if host.ports.is_empty() || host.deadline_ns.is_none() {
                    host.release();
                }
                return Some(over);
            }
        }
        None
    }

    /// Whether the question for this host is open.
    pub(super) fn is_asking(&self, host: HostAddress) -> bool {
        let asked = |h: &Host| h.host == host && matches!(h.stage, Stage::Asking { .. });
        self.all.iter().any(asked)
    }

    /// The ports that answered for this host.
    pub(super) fn ports(&self, host: HostAddress) -> &[NPortId] {
        let known = |h: &&Host| h.stage != Stage::Free && h.host == host;
        self.all.iter().find(known).map_or(&[], |h| &h.ports)
    }

    fn get_mut(&mut self, host: HostAddress) -> Option<&mut Host> {
        let known = |h: &&mut Host| h.stage != Stage::Free && h.host == host;
        self.all.iter_mut().find(known)
    }
}

impl Host {
    fn release(&mut self) {
        self.stage = Stage::Free;
        self.ports.clear();
        self.told = 0;
        self.end_told = false;
        self.deadline_ns = None;
        self.unsent = false;
    }
}
