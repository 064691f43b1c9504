//! Identity, timers and limits of a VN_Port.

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcHeader, NPortId};
use fcvi_frame::fcoe::{FCOE_HEADER_BYTES, FCOE_TRAILER_BYTES, MIN_DATA_FIELD_BYTES};
use fcvi_frame::fip::MAX_FCOE_PDU_BYTES;

use crate::Fc4;
use crate::time::NS_PER_MS;

/// Minimum FCoE PDU that a port must support: a data field of 256 bytes.
pub(super) const MIN_FCOE_PDU_BYTES: u16 =
    (FCOE_HEADER_BYTES + FcHeader::BYTES + MIN_DATA_FIELD_BYTES + FCOE_TRAILER_BYTES) as u16;

/// Configuration of a [`Vn2vn`](crate::vn2vn::Vn2vn).
///
/// The times are those of VN2VN as Linux has them; shorter ones are for tests. All ports of a link
/// should use the same.
#[derive(Clone, Debug)]
pub struct Vn2vnConfig {
    /// Our Port_Name: not 0, and unique.
    pub port_name: u64,
    /// Our Node_Name.
    pub node_name: u64,
    /// The FC-4 protocol that claims advertise.
    pub fc4: Fc4,
    /// MAC address of our interface; other VN_Ports of this host may use the same.
    pub enode_mac: MacAddress,
    /// Maximum FCoE PDU that we accept, that is, the MTU of our interface. Clamped to 302..=2158.
    pub max_fcoe_bytes: u16,
    /// The N_Port_ID to try first, such as that of an earlier run: 00.00.01 to 00.ff.fe. Without
    /// one, or with an invalid one, the low 16 bits of the port name.
    pub preferred: Option<NPortId>,
    /// Maximum neighbours; at least 1.
    pub max_neighbours: usize,
    /// Maximum queued answers, half of them for ports that are not logged in; further ones are
    /// dropped. At least 1.
    pub max_answers: usize,
    /// Maximum answers per second to ports that are not logged in: of those to probes, and of the
    /// others; further ones are dropped.
    pub max_answers_per_s: u32,
    /// Maximum answers per second to each pinned neighbour, in addition.
    pub max_answers_per_pinned_s: u32,
    /// Maximum claims per second in defence of our N_Port_ID, against ports that have it or reply
    /// to our probe. Separate, so that a flood of other frames does not prevent the defence.
    pub max_defences_per_s: u32,
    /// Maximum random delay before the first probe.
    pub start_wait_ns: u64,
    /// Interval between the first and second probe request.
    pub probe_wait_ns: u64,
    /// Interval from the second probe request to the claim, to the first beacon, and to the second;
    /// also between two claims that beacons of unknown ports cause.
    pub announce_wait_ns: u64,
    /// Interval between beacons. Not 0.
    pub beacon_interval_ns: u64,
    /// Maximum random time added to that interval.
    pub beacon_fuzz_ns: u64,
    /// Time without a frame after which a neighbour is gone. Not 0.
    pub neighbour_lifetime_ns: u64,
    /// Restarts with another N_Port_ID that are not delayed.
    pub quick_restarts: u32,
    /// Delay of further restarts before they probe. A port that was up for this long starts
    /// counting anew.
    pub restart_pause_ns: u64,
    /// Claims sent to a neighbour to test whether its padded response arrives, for each size.
    pub path_tries: u8,
    /// Timeout of such a response.
    pub path_wait_ns: u64,
    /// FCoE PDU that is tried if the larger one does not arrive; at least 302.
    pub fallback_fcoe_bytes: u16,
}

impl Vn2vnConfig {
    /// Returns the defaults for this port.
    pub fn new(port_name: u64, node_name: u64, fc4: Fc4, enode_mac: MacAddress) -> Self {
        Self {
            port_name,
            node_name,
            fc4,
            enode_mac,
            max_fcoe_bytes: MAX_FCOE_PDU_BYTES,
            preferred: None,
            max_neighbours: 256,
            max_answers: 64,
            max_answers_per_s: 1024,
            max_answers_per_pinned_s: 16,
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

    /// Returns `max_fcoe_bytes` within its limits.
    pub(super) fn fcoe_bytes(&self) -> u16 {
        self.max_fcoe_bytes
            .clamp(MIN_FCOE_PDU_BYTES, MAX_FCOE_PDU_BYTES)
    }

    /// Returns `fallback_fcoe_bytes`, but at least what every port must support.
    pub(super) fn fallback(&self) -> u16 {
        self.fallback_fcoe_bytes.max(MIN_FCOE_PDU_BYTES)
    }

    /// Returns the silence after which a neighbour has missed a beacon.
    pub(super) fn missed_beacon_ns(&self) -> u64 {
        self.beacon_interval_ns
            .saturating_add(self.beacon_fuzz_ns)
            .saturating_add(self.announce_wait_ns)
    }
}

/// Reports whether a VN2VN port can have this N_Port_ID: 00.00.01 to 00.ff.fe.
pub(super) fn is_vn2vn_id(id: NPortId) -> bool {
    (1..=0xFFFE).contains(&id.get())
}

/// Returns an N_Port_ID from 16 bits; 00.00.01 for the two reserved values.
pub(super) fn vn2vn_id(low: u16) -> NPortId {
    let low = if matches!(low, 0 | 0xFFFF) { 1 } else { low };
    let [a, b] = low.to_be_bytes();
    NPortId::from_bytes([0, a, b])
}
