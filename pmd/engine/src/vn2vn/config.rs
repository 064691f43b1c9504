//! Who a VN_Port is on its link, its timers and its limits.

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcHeader, NPortId};
use fcvi_frame::fcoe::{FCOE_HEADER_BYTES, FCOE_TRAILER_BYTES, MIN_DATA_FIELD_BYTES};
use fcvi_frame::fip::MAX_FCOE_PDU_BYTES;

const NS_PER_MS: u64 = 1_000_000;

/// The smallest FCoE PDU that a port must be able to take: a data field of 256 bytes.
pub(super) const MIN_FCOE_PDU_BYTES: u16 =
    (FCOE_HEADER_BYTES + FcHeader::BYTES + MIN_DATA_FIELD_BYTES + FCOE_TRAILER_BYTES) as u16;

/// What a [`Vn2vn`](crate::vn2vn::Vn2vn) must know before it starts.
///
/// The times are those of VN2VN as Linux has them; shorter ones are for tests. All ports of a
/// link should have the same.
#[derive(Clone, Debug)]
pub struct Vn2vnConfig {
    /// Our Port_Name: not 0, and that of no other port.
    pub port_name: u64,
    /// Our Node_Name.
    pub node_name: u64,
    /// The address of our interface; other VN_Ports of ours may have the same.
    pub enode_mac: MacAddress,
    /// The largest FCoE PDU that we take, that is, the MTU of our interface. Taken as 302 if it
    /// is less and as 2158 if it is more.
    pub max_fcoe_bytes: u16,
    /// The N_Port_ID to try first, such as that of an earlier time: 00.00.01 to 00.ff.fe. Without
    /// one, or with another one, the low 16 bits of the port name.
    pub preferred: Option<NPortId>,
    /// Neighbours, at most; at least 1.
    pub max_neighbours: usize,
    /// Answers that wait to be sent, at most; more are not given. At least 1.
    pub max_answers: usize,
    /// Frames sent in answer to others within a second, at most; more are not given.
    pub max_answers_per_s: u32,
    /// Claims repeated within a second because another port has our N_Port_ID or answers our
    /// probe, at most: a flood of other frames must not take away what defends it.
    pub max_defences_per_s: u32,
    /// The first probe comes after a random time below this.
    pub start_wait_ns: u64,
    /// From the first probe request to the second.
    pub probe_wait_ns: u64,
    /// From the second probe request to the claim, from the claim to the first beacon, from that
    /// to the second; and between two claims that the beacons of unknown ports ask for.
    pub announce_wait_ns: u64,
    /// From one beacon to the next. Not 0.
    pub beacon_interval_ns: u64,
    /// To which a random time below this is added.
    pub beacon_fuzz_ns: u64,
    /// A neighbour of which nothing was heard for so long is gone. Not 0.
    pub neighbour_lifetime_ns: u64,
    /// After so many restarts with another N_Port_ID, the next ones wait ..
    pub quick_restarts: u32,
    /// .. so long before they probe. A port that was up for that long begins to count anew.
    pub restart_pause_ns: u64,
    /// Claims sent to a neighbour to see whether its padded response arrives, for each size.
    pub path_tries: u8,
    /// How long such a response may take.
    pub path_wait_ns: u64,
    /// The FCoE PDU that is tried if the larger one does not arrive; taken as 302 if it is less.
    pub fallback_fcoe_bytes: u16,
}

impl Vn2vnConfig {
    /// The defaults for this port.
    pub fn new(port_name: u64, node_name: u64, enode_mac: MacAddress) -> Self {
        Self {
            port_name,
            node_name,
            enode_mac,
            max_fcoe_bytes: MAX_FCOE_PDU_BYTES,
            preferred: None,
            max_neighbours: 256,
            max_answers: 64,
            max_answers_per_s: 1024,
            max_defences_per_s: 16,
            start_wait_ns: 100 * NS_PER_MS,
            probe_wait_ns: 100 * NS_PER_MS,
            announce_wait_ns: 400 * NS_PER_MS,
            beacon_interval_ns: 8_000 * NS_PER_MS,
            beacon_fuzz_ns: 100 * NS_PER_MS,
            neighbour_lifetime_ns: 20_000 * NS_PER_MS,
            quick_restarts: 10,
            restart_pause_ns: 10_000 * NS_PER_MS,
            path_tries: 5,
            path_wait_ns: 100 * NS_PER_MS,
            fallback_fcoe_bytes: 1_500,
        }
    }

    /// `max_fcoe_bytes` within its limits.
    pub(super) fn fcoe_bytes(&self) -> u16 {
        self.max_fcoe_bytes
            .clamp(MIN_FCOE_PDU_BYTES, MAX_FCOE_PDU_BYTES)
    }

    /// `fallback_fcoe_bytes`, but what every port must take.
    pub(super) fn fallback(&self) -> u16 {
        self.fallback_fcoe_bytes.max(MIN_FCOE_PDU_BYTES)
    }

    /// A neighbour that was silent for so long missed a beacon.
    pub(super) fn missed_beacon_ns(&self) -> u64 {
        self.beacon_interval_ns
            .saturating_add(self.beacon_fuzz_ns)
            .saturating_add(self.announce_wait_ns)
    }
}

/// Whether a VN2VN port can have this N_Port_ID: 00.00.01 to 00.ff.fe.
pub(super) fn is_vn2vn_id(id: NPortId) -> bool {
    (1..=0xFFFE).contains(&id.get())
}

/// An N_Port_ID from 16 bits; 00.00.01 for the two that are never used.
pub(super) fn vn2vn_id(low: u16) -> NPortId {
    let low = if matches!(low, 0 | 0xFFFF) { 1 } else { low };
    let [a, b] = low.to_be_bytes();
    NPortId::from_bytes([0, a, b])
}
