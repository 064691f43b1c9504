//! The attributes of registered memory changed after its registration [VIPL 3.7.4].

use std::sync::Arc;

use super::{MemoryRegion, RdmaAccess, RdmaRegion, RegionShared};
use crate::nic::Ptag;
use crate::{MemAttributes, Result, VipError, provider};

impl RegionShared {
    /// # Safety
    /// The type above the region lends no slices of it, if `access` allows peers anything.
    unsafe fn set(&self, ptag: &Ptag, access: RdmaAccess) -> Result<()> {
        let attributes = MemAttributes {
            ptag: Some(ptag.handle()),
            rdma_write: access.write,
            rdma_read: access.read,
        };
        let (nic, address) = (self.nic.handle(), self.address_bits());
        // SAFETY: the memory is ours, and what peers may do with it is passed on from our caller.
        unsafe { provider::set_mem_attributes(nic, address, self.handle, &attributes) }
    }

    /// Gives the region another tag. Its access is the caller's, so that nobody else's call decides of it.
    ///
    /// # Safety
    /// As for [`Self::set`].
    unsafe fn set_ptag(&mut self, ptag: &Ptag, access: RdmaAccess) -> Result<()> {
        // SAFETY: passed on from our caller.
        unsafe { self.set(ptag, access) }?;
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
        let shared = Arc::get_mut(&mut self.shared).ok_or(VipError::ErrorResource)?;
        // SAFETY: peers are allowed nothing.
        unsafe { shared.set_ptag(ptag, RdmaAccess::default()) }
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
        // SAFETY: an `RdmaRegion` lends no slices.
        unsafe { self.shared.set(self.shared.ptag(), access) }
    }

    /// Gives the region another tag: peers reach it over VIs of that tag only.
    ///
    /// # Errors
    /// As [`MemoryRegion::set_ptag`].
    pub fn set_ptag(&mut self, ptag: &Ptag) -> Result<()> {
        let now = self.attributes()?;
        let access = RdmaAccess {
            write: now.rdma_write,
            read: now.rdma_read,
        };
        let shared = Arc::get_mut(&mut self.shared).ok_or(VipError::ErrorResource)?;
        // SAFETY: as in `set_access`.
        unsafe { shared.set_ptag(ptag, access) }
    }
}
