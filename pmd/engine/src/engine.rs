//! The protocol state of one N_Port, and the verbs that the poll loop calls.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use vi_types::ViState;

pub use vi_types::ViIndex;

use crate::accept::{Incoming, Listener};
use crate::config::EngineConfig;
use crate::connection_ids::ConnectionIds;
use crate::counters::Counters;
use crate::endpoint::{Endpoint, Phase, ViParams};
use crate::engine_io::EngineIo;
use crate::exchange::ExchangePool;
use crate::handles::{Handles, permute, slot_mask};
use crate::liveness::Peer;
use crate::logged_in_ports::LoggedInPorts;
use crate::misses::PeerMisses;
use crate::pending_disconnects::PendingDisconnect;
use crate::quarantine::RequestQuarantine;
use crate::receive::PeerKey;
use crate::timer::{TimerKey, TimerTable};

/// The protocol state of one N_Port.
///
/// Verbs: [`Engine::handle_frame`], [`Engine::handle_timeout`], [`Engine::pump`], and the commands
/// `connect`, `connect_peer`, `accept`, `reject`, `disconnect`, `listen`. [`Engine::poll_timeout`]
/// returns the next deadline.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) mac: MacAddress,
    pub(crate) endpoints: Vec<Option<Endpoint>>,
    /// Free slots of `endpoints`: the lowest one is used first.
    pub(crate) free: BinaryHeap<Reverse<u32>>,
    pub(crate) exchanges: ExchangePool,
    pub(crate) handles: Handles,
    /// The bits of a handle that name a slot of `endpoints`.
    pub(crate) slot_mask: u32,
    pub(crate) quarantine: RequestQuarantine,
    /// VIs by S_ID and connection ID of the request that they have accepted. Each received request
    /// is looked up here, and may be forged: a search of all VIs would take too long.
    pub(crate) accepted: HashMap<(NPortId, u32), ViIndex>,
    /// VIs with a peer request, and some that had one.
    pub(crate) peer_requesters: Vec<ViIndex>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) incoming: Vec<Option<Incoming>>,
    pub(crate) pending_disconnects: Vec<Option<PendingDisconnect>>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) misses: PeerMisses<PeerKey>,
    pub(crate) timers: TimerTable,
    pub(crate) counters: Counters,
    pub(crate) connection_ids: ConnectionIds,
    pub(crate) next_listener: u64,
    pub(crate) next_peer_request: u64,
    pub(crate) next_generation: u32,
    pub(crate) probing: bool,
    /// The next peer whose liveness is checked.
    pub(crate) next_check: usize,
    /// `None` if every port may connect.
    pub(crate) logged_in_ports: Option<LoggedInPorts>,
}

impl Engine {
    /// Creates an N_Port without VIs. `secret`: 64 random bits, from which connection IDs and the
    /// first OX_ID are derived.
    pub fn new(config: EngineConfig, secret: u64) -> Self {
        let max_vi = config.max_vi.min(0xFFFF) as usize;
        // What others see must not reveal the key of the connection IDs.
        let first = |number| permute(!secret, number, u32::BITS);
        Self {
            mac: MacAddress::vn2vn(config.n_port_id),
            endpoints: (0..max_vi).map(|_| None).collect(),
            free: (0..max_vi as u32).map(Reverse).collect(),
            exchanges: ExchangePool::new(config.r_a_tov_ns, first(0) as u16),
            handles: Handles::new(max_vi, config.r_a_tov_ns),
            slot_mask: slot_mask(max_vi),
            quarantine: RequestQuarantine::new(config.r_a_tov_ns),
            // At most half full, it rehashes in place.
            accepted: HashMap::with_capacity(2 * max_vi),
            peer_requesters: Vec::new(),
            listeners: Vec::new(),
            incoming: Vec::with_capacity(config.max_incoming as usize),
            pending_disconnects: Vec::with_capacity(config.max_pending_disconnects as usize),
            peers: Vec::new(),
            misses: PeerMisses::new(config.miss_limits),
            timers: TimerTable::new(
                max_vi,
                config.max_incoming as usize,
                config.max_pending_disconnects as usize,
            ),
            counters: Counters::default(),
            connection_ids: ConnectionIds::new(secret),
            next_listener: 0,
            next_peer_request: 0,
            next_generation: first(1),
            probing: false,
            next_check: 0,
            logged_in_ports: None,
            config,
        }
    }

    /// Returns the identity and limits of this N_Port.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the numbers of OX_IDs in use and in quarantine.
    pub fn exchange_usage(&self) -> (usize, usize) {
        self.exchanges.usage()
    }

    /// Adds an Idle VI; `None` if all slots are used.
    pub fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        let Reverse(slot) = self.free.pop()?;
        self.endpoints[slot as usize] = Some(Endpoint::new(params));
        Some(ViIndex(slot))
    }

    /// Replaces the attributes of an Idle VI. Returns false for any other VI.
    pub fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.params = params;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Sets the user that owns the VI. Misses between VIs of one user are limited per connection
    /// only: their processes can access each other's memory anyway.
    pub fn set_user(&mut self, vi: ViIndex, user: u32) {
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.user = user;
        }
    }

    /// Returns the number of refused RDMA accesses of the peer on this VI's current or last
    /// connection.
    #[must_use]
    pub fn refused_accesses(&self, vi: ViIndex) -> u32 {
        self.endpoint(vi).map_or(0, |ep| ep.rx.misses.refused())
    }

    /// Removes an Idle VI. Returns false for any other VI.
    pub fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let idle = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::Idle));
        if idle {
            self.endpoints[vi.slot()] = None;
            self.free.push(Reverse(vi.0));
            self.timers.clear(TimerKey::Receive(vi.0));
            self.timers.clear(TimerKey::Connect(vi.0));
            self.timers.clear(TimerKey::Response(vi.0));
            self.timers.clear(TimerKey::Acknowledge(vi.0));
            self.timers.clear(TimerKey::Recover(vi.0));
        }
        idle
    }

    /// Returns the N_Port of a connected VI's peer; `None` without a connection.
    #[must_use]
    pub fn peer(&self, vi: ViIndex) -> Option<NPortId> {
        let endpoint = self.endpoints.get(vi.0 as usize)?.as_ref()?;
        let peer = match endpoint.shortcut {
            Some(_) => self.config.n_port_id,
            None => endpoint.peer,
        };
        (endpoint.state() == ViState::Connected).then_some(peer)
    }

    /// Returns the state of a VI.
    pub fn state(&self, vi: ViIndex) -> Option<ViState> {
        self.endpoint(vi).map(Endpoint::state)
    }

    /// Returns the time at which [`Engine::handle_timeout`] is to be called.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Handles up to `budget` expired timers. Returns true if more have expired.
    pub fn handle_timeout<I: EngineIo>(&mut self, now_ns: u64, budget: u32, io: &mut I) -> bool {
        for _ in 0..budget {
            let Some(key) = self.timers.pop_due(now_ns) else {
                return false;
            };
            match key {
                TimerKey::Receive(slot) => self.receive_timeout(now_ns, ViIndex(slot), io),
                TimerKey::Connect(slot) => self.connect_timeout(now_ns, ViIndex(slot), io),
                TimerKey::Response(slot) => self.response_timeout(now_ns, ViIndex(slot), io),
                TimerKey::Acknowledge(slot) => {
                    self.acknowledge_timeout(now_ns, ViIndex(slot), io);
                }
                TimerKey::Recover(slot) => self.recover_timeout(now_ns, ViIndex(slot), io),
                TimerKey::Incoming(index) => self.incoming_timeout(index),
                TimerKey::Disconnect(index) => self.disconnect_timeout(now_ns, index, io),
                TimerKey::Liveness => self.liveness_timeout(now_ns, io),
            }
        }
        self.timers.next().is_some_and(|at| at <= now_ns)
    }
}
