//! System management: discovery of other nodes.

use pmd::nic;

use crate::types::{HostAddress, NicHandle, Result};

/// Returns the distinct host addresses of the nodes that the NIC has discovered on its network
/// within `number_of_hops` hops (VIPL 3.7.6, `VIP_SMI_AUTODISCOVERY`).
///
/// All nodes are one hop away; for 0 hops the list is empty. On shared memory the local host is
/// listed while another of its programs has joined the segment. On networks without discovery the
/// configured neighbours are listed.
///
/// # Errors
/// `InvalidParameter` for a NIC that is not open.
pub fn autodiscovery(nic_handle: NicHandle, number_of_hops: u64) -> Result<Vec<HostAddress>> {
    let mut found = nic::discovered_hosts(nic_handle.into_raw())?;
    if number_of_hops == 0 {
        found.clear();
    }
    Ok(found)
}
