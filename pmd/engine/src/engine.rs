//! The tables of one N_Port, and the verbs that the poll loop calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;

use crate::accept::{Incoming, Listener};
use crate::closing::Closing;
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::dead::Dead;
use crate::endpoint::{Endpoint, EndpointState, Phase, ViParams};
use crate::exchange::ExchangePool;
use crate::handles::{Handles, place_mask};
use crate::host::Host;
use crate::liveness::Peer;
use crate::logins::Logins;
use crate::misses::PeerMisses;
use crate::receive::PeerKey;
use crate::timer::{TimerKey, TimerTable};

/// The number of a VI in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViIndex(pub u32);

impl ViIndex {
    #[inline]
    pub(crate) const fn slot(self) -> usize {
        self.0 as usize
    }
}

/// The protocol state of one N_Port.
///
/// Verbs: [`Engine::handle_frame`], [`Engine::handle_timeout`], [`Engine::pump`],
/// and the commands `connect`, `connect_peer`, `accept`, `reject`, `disconnect`, `listen`.
/// [`Engine::poll_timeout`] says when it wants to be called next.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) mac: MacAddress,
    pub(crate) endpoints: Vec<Option<Endpoint>>,
    /// Places in `endpoints` without a VI: the first of them is taken next.
    pub(crate) free: BinaryHeap<Reverse<u32>>,
    pub(crate) exchanges: ExchangePool,
    pub(crate) handles: Handles,
    /// The bits of a handle that name a place in `endpoints`.
    pub(crate) place_mask: u32,
    /// S_ID and connection ID.
    pub(crate) dead_requests: Dead<(NPortId, u32)>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) incoming: Vec<Option<Incoming>>,
    pub(crate) closing: Vec<Option<Closing>>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) misses: PeerMisses<PeerKey>,
    pub(crate) timers: TimerTable,
    pub(crate) counters: Counters,
    pub(crate) next_connection_id: u32,
    pub(crate) next_listener: u64,
    pub(crate) next_peer_request: u64,
    pub(crate) next_generation: u32,
    pub(crate) probing: bool,
    /// `None` where every port may connect.
    pub(crate) logins: Option<Logins>,
}

impl Engine {
    /// An N_Port without VIs. `first` seeds connection IDs and OX_IDs: 64 random bits.
    pub fn new(config: EngineConfig, first: u64) -> Self {
        let max_vi = config.max_vi.min(0xFFFF) as usize;
        Self {
            mac: MacAddress::vn2vn(config.n_port_id),
            endpoints: (0..max_vi).map(|_| None).collect(),
            free: (0..max_vi as u32).map(Reverse).collect(),
            exchanges: ExchangePool::new(config.r_a_tov_ns, (first >> 32) as u16),
            handles: Handles::new(max_vi, config.r_a_tov_ns),
            place_mask: place_mask(max_vi),
            dead_requests: Dead::new(config.r_a_tov_ns),
            listeners: Vec::new(),
            incoming: Vec::with_capacity(config.max_incoming as usize),
            closing: Vec::with_capacity(config.max_closing as usize),
            peers: Vec::new(),
            misses: PeerMisses::new(config.miss_limits),
            timers: TimerTable::new(
                max_vi,
                config.max_incoming as usize,
                config.max_closing as usize,
            ),
            counters: Counters::default(),
            next_connection_id: first as u32,
            next_listener: 0,
            next_peer_request: 0,
            next_generation: (first >> 16) as u32,
            probing: false,
            logins: None,
            config,
        }
    }

    /// Who this N_Port is, and its limits.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// OX_IDs of exchanges that have not ended, and of those that were given up less than
    /// R_A_TOV ago.
    pub fn exchange_usage(&self) -> (usize, usize) {
        self.exchanges.usage()
    }

    /// Adds an Idle VI; `None` if all places are taken.
    pub fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        let Reverse(slot) = self.free.pop()?;
        self.endpoints[slot as usize] = Some(Endpoint::new(params));
        Some(ViIndex(slot))
    }

    /// Replaces the consumer's choices for a VI; only for an Idle one. False if they stay.
    pub fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.params = params;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Sets the user whose VI it is. VIs of one user do not limit each other's misses over more
    /// than one connection: their programs can reach each other's memory anyway.
    pub fn set_user(&mut self, vi: ViIndex, user: u32) {
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.user = user;
        }
    }

    /// RDMA accesses of the peer that were refused on this VI's connection, or its last one.
    #[must_use]
    pub fn refused_accesses(&self, vi: ViIndex) -> u32 {
        self.endpoint(vi).map_or(0, |ep| ep.rx.misses.refused())
    }

    /// Removes a VI; only an Idle one can go. False if it stays.
    pub fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let idle = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::Idle));
        if idle {
            self.endpoints[vi.slot()] = None;
            self.free.push(Reverse(vi.0));
            self.timers.clear(TimerKey::Receive(vi.0));
            self.timers.clear(TimerKey::Connect(vi.0));
            self.timers.clear(TimerKey::Answer(vi.0));
            self.timers.clear(TimerKey::Acknowledge(vi.0));
            self.timers.clear(TimerKey::Recover(vi.0));
        }
        idle
    }

    /// The N_Port at the other end of a VI's connection; `None` without one.
    #[must_use]
    pub fn peer(&self, vi: ViIndex) -> Option<NPortId> {
        let endpoint = self.endpoints.get(vi.0 as usize)?.as_ref()?;
        let peer = match endpoint.shortcut {
            Some(_) => self.config.n_port_id,
            None => endpoint.peer,
        };
        (endpoint.state() == EndpointState::Connected).then_some(peer)
    }

    /// The state of a VI.
    pub fn state(&self, vi: ViIndex) -> Option<EndpointState> {
        self.endpoint(vi).map(Endpoint::state)
    }

    /// When [`Engine::handle_timeout`] wants to be called.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Does what time wants done, at most `budget` things. True if more is due.
    pub fn handle_timeout<H: Host>(&mut self, now_ns: u64, budget: u32, host: &mut H) -> bool {
        for _ in 0..budget {
            let Some(key) = self.timers.pop_due(now_ns) else {
                return false;
            };
            match key {
                TimerKey::Receive(slot) => self.receive_timeout(now_ns, ViIndex(slot), host),
                TimerKey::Connect(slot) => self.connect_timeout(now_ns, ViIndex(slot), host),
                TimerKey::Answer(slot) => self.answer_timeout(now_ns, ViIndex(slot), host),
                TimerKey::Acknowledge(slot) => {
                    self.acknowledge_timeout(now_ns, ViIndex(slot), host);
                }
                TimerKey::Recover(slot) => self.recover_timeout(now_ns, ViIndex(slot), host),
                TimerKey::Incoming(index) => self.incoming_timeout(index),
                TimerKey::Closing(index) => self.closing_timeout(now_ns, index, host),
                TimerKey::Liveness => self.liveness_timeout(now_ns, host),
            }
        }
        self.timers.next().is_some_and(|at| at <= now_ns)
    }
}
