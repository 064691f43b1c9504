//! System management: which other nodes there are.

use pmd::nic;

use crate::types::{HostAddress, NicHandle, Result};

/// Host addresses of the nodes that the NIC found on its network within so many hops, each once
/// (VIPL 3.7.6, `VIP_SMI_AUTODISCOVERY`).
///
/// All that a NIC finds is one hop away; within 0 hops there is nobody. On shared memory a node
/// is found while one of its programs is there: our own host while another program of it has
/// joined the segment. On networks without discovery the configured neighbours are told.
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
