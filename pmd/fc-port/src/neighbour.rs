//! Another N_Port of the link.

use fcvi_frame::fc::NPortId;
use fcvi_frame::{MacAddress, fcoe};

/// Another N_Port of the link, as discovery finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its N_Port_ID.
    pub id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// MAC address of its interface, to which FIP frames are sent.
    pub enode_mac: MacAddress,
    /// Maximum FCoE PDU that it accepts, from the FCoE header on, as it advertises; at most 2158.
    pub max_fcoe_bytes: u16,
    /// Largest FCoE PDU that is known to arrive from it, and that both accept; `None` while none is
    /// known.
    pub path_fcoe_bytes: Option<u16>,
    /// It advertises the FC-4 protocol of this port.
    pub supports_fc4: bool,
}

impl Neighbour {
    /// Returns the longest data field of an FC frame between us in bytes: of the size that is known
    /// to arrive from it or, until that is known, of the size that it accepts.
    #[must_use]
    pub fn data_field_bytes(&self) -> u16 {
        let pdu_bytes = self.path_fcoe_bytes.unwrap_or(self.max_fcoe_bytes);
        fcoe::data_field_for_mtu(usize::from(pdu_bytes)) as u16
    }
}
