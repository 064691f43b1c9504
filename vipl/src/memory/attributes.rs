//! The attributes of registered memory changed after its registration [VIPL 3.7.4].

use std::sync::Arc;

use super::{MemoryRegion, RdmaAccess, RdmaRegion, RegionShared};
use crate::nic::Ptag;
use crate::{MemAttributes, Result, VipError, provider};

impl RegionShared {
    fn set(&self, ptag: &Ptag, access: RdmaAccess) -> Result<()> {
        let attributes = MemAttributes {
            ptag: Some(ptag.handle()),
            rdma_write: access.write,
            rdma_read: access.read,
        };
        let address = self.address_bits();
        provider::set_mem_attributes(self.nic.handle(), address, self.handle, &attributes)
    }

    fn set_ptag(&mut self, ptag: &Ptag) -> Result<()> {
        let now = provider::query_mem(self.nic.handle(), self.address_bits(), self.handle)?;
        let access = RdmaAccess {
            write: now.rdma_write,
            read: now.rdma_read,
        };
        self.set(ptag, access)?;
        self.ptag = ptag.clone();
        Ok(())
    }
}

impl MemoryRegion {
    /// Gives the region another tag, before it is cut into buffers; VIs of the old one cannot use it any more.
    ///
    /// # Errors
    /// [`VipError::InvalidPtag`] for a tag of another NIC, [`VipError::InvalidParameter`] when the NIC was closed
    /// underneath. The region keeps its tag then.
    pub fn set_ptag(&mut self, ptag: &Ptag) -> Result<()> {
        // A region that is not cut yet is nobody else's.
        Arc::get_mut(&mut self.shared)
            .ok_or(VipError::ErrorResource)?
            .set_ptag(ptag)
    }
}

impl RdmaRegion {
    /// Changes what peers may do with the region. What is taken away is refused from the moment this returns, also the
    /// rest of a write that has begun to arrive.
    ///
    /// # Errors
    /// [`VipError::InvalidRdmaRead`] when `access.read` is not supported, [`VipError::InvalidParameter`] when the NIC
    /// was closed underneath. Nothing changes then.
    pub fn set_access(&self, access: RdmaAccess) -> Result<()> {
        self.shared.set(self.shared.ptag(), access)
    }

    /// Gives the region another tag: peers reach it over VIs of that tag only.
    ///
    /// # Errors
    /// As [`MemoryRegion::set_ptag`].
    pub fn set_ptag(&mut self, ptag: &Ptag) -> Result<()> {
        Arc::get_mut(&mut self.shared)
            .ok_or(VipError::ErrorResource)?
            .set_ptag(ptag)
    }
}
