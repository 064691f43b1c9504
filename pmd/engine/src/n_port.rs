//! What all endpoints of an N_Port share: its identity, identifiers, timers and tables.

use std::collections::HashMap;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::NPortId;
use vi_types::ViIndex;

use crate::accept::Incoming;
use crate::config::EngineConfig;
use crate::connection_ids::ConnectionIds;
use crate::counters::{Counter, Counters};
use crate::exchange::ExchangePool;
use crate::handles::{Handles, permute, slot_mask};
use crate::liveness::Peer;
use crate::logged_in_ports::LoggedInPorts;
use crate::pending_disconnects::PendingDisconnect;
use crate::quarantine::RequestQuarantine;
use crate::timer::TimerTable;
use vi_types::misses::{MissKey, PeerMisses};

/// Key under which an engine counts the misses of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerKey {
    pub(crate) port: NPortId,
    /// The user of its VI, if that is a VI of the same engine.
    pub(crate) user: Option<u32>,
}

impl MissKey for PeerKey {}

/// The state of one N_Port without its endpoints.
pub(crate) struct NPort {
    pub(crate) config: EngineConfig,
    pub(crate) mac: MacAddress,
    pub(crate) exchanges: ExchangePool,
    pub(crate) handles: Handles,
    /// The bits of a handle that name a slot of the endpoints.
    pub(crate) slot_mask: u32,
    pub(crate) quarantine: RequestQuarantine,
    /// VIs by S_ID and connection ID of the request that they have accepted. Each received request
    /// is looked up here, and may be forged: a search of all VIs would take too long.
    pub(crate) accepted: HashMap<(NPortId, u32), ViIndex>,
    /// VIs with a peer request, and some that had one.
    pub(crate) peer_requesters: Vec<ViIndex>,
    pub(crate) incoming: Vec<Option<Incoming>>,
    pub(crate) pending_disconnects: Vec<Option<PendingDisconnect>>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) misses: PeerMisses<PeerKey>,
    pub(crate) timers: TimerTable,
    pub(crate) counters: Counters,
    pub(crate) connection_ids: ConnectionIds,
    pub(crate) next_peer_request: u64,
    pub(crate) next_generation: u32,
    pub(crate) probing: bool,
    /// The next peer whose liveness is checked.
    pub(crate) next_check: usize,
    /// `None` if every port may connect.
    pub(crate) logged_in_ports: Option<LoggedInPorts>,
}

impl NPort {
    /// Creates the state of an N_Port with `max_vi` endpoints. `secret`: 64 random bits, from which
    /// connection IDs and the first OX_ID are derived.
    pub(crate) fn new(config: EngineConfig, max_vi: usize, secret: u64) -> Self {
        // What others see must not reveal the key of the connection IDs.
        let first = |number| permute(!secret, number, u32::BITS);
        let max_incoming = config.max_incoming as usize;
        let max_disconnects = config.max_pending_disconnects as usize;
        Self {
            mac: MacAddress::vn2vn(config.n_port_id),
            exchanges: ExchangePool::new(config.r_a_tov_ns, first(0) as u16),
            handles: Handles::new(max_vi, config.r_a_tov_ns),
            slot_mask: slot_mask(max_vi),
            quarantine: RequestQuarantine::new(config.r_a_tov_ns),
            // At most half full, it rehashes in place.
            accepted: HashMap::with_capacity(2 * max_vi),
            peer_requesters: Vec::new(),
            incoming: Vec::with_capacity(max_incoming),
            pending_disconnects: Vec::with_capacity(max_disconnects),
            peers: Vec::new(),
            misses: PeerMisses::new(config.miss_limits),
            timers: TimerTable::new(max_vi, max_incoming, max_disconnects),
            counters: Counters::default(),
            connection_ids: ConnectionIds::new(secret),
            next_peer_request: 0,
            next_generation: first(1),
            probing: false,
            next_check: 0,
            logged_in_ports: None,
            config,
        }
    }

    /// Returns the VI whose slot a handle names. The caller checks whether it is its current
    /// handle.
    #[inline]
    pub(crate) fn slot_of(&self, handle: u32) -> ViIndex {
        ViIndex(handle & self.slot_mask)
    }

    /// Reports whether this request was received and is kept, in any state.
    pub(crate) fn has_received(&self, s_id: NPortId, connection_id: u32) -> bool {
        let mut received = self.incoming.iter().flatten();
        received.any(|i| (i.s_id, i.connection_id) == (s_id, connection_id))
    }

    /// Reports whether this port may send us connection IUs; counts a refusal.
    pub(crate) fn may_connect(&mut self, id: NPortId) -> bool {
        let Some(logged_in) = &mut self.logged_in_ports else {
            return true;
        };
        if id == self.config.n_port_id || logged_in.data_field_bytes(id).is_some() {
            return true;
        }
        logged_in.unlogged = Some(id);
        self.counters.count(Counter::DropNotLoggedIn);
        false
    }

    /// Returns the maximum data field of frames to and from this port, in bytes.
    pub(crate) fn data_field_bytes(&self, id: NPortId) -> u16 {
        let own = self.config.data_field_bytes;
        let logged_in = self.logged_in_ports.as_ref();
        let negotiated = logged_in.and_then(|logged_in| logged_in.data_field_bytes(id));
        negotiated.map_or(own, |negotiated| own.min(negotiated))
    }
}
