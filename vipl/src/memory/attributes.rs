//! Changes of the attributes of registered memory [VIPL 3.7.4].

use std::sync::Arc;

use super::{MemoryRegion, RdmaAccess, RdmaRegion, RegionShared};
use crate::nic::Ptag;
use crate::{MemAttributes, Result, VipError, provider};

impl RegionShared {
    /// Sets tag and access of the registration.
    ///
    /// # Safety
    /// If `access` allows peers anything, the type that contains the region lends no slices of it.
    unsafe fn set(&self, ptag: &Ptag, access: RdmaAccess) -> Result<()> {
        let attributes = MemAttributes {
            ptag: Some(ptag.handle()),
            rdma_write: access.write,
            rdma_read: access.read,
        };
        let (nic, address) = (self.nic.handle(), self.address_bits());
        // SAFETY: this value owns the memory; the peers' access is the caller's obligation.
        unsafe { provider::set_mem_attributes(nic, address, self.handle, &attributes) }
    }

    /// Replaces the tag of the region. The caller passes `access`, so that a concurrent change cannot determine it.
    ///
    /// # Safety
    /// As for [`Self::set`].
    unsafe fn set_ptag(&mut self, ptag: &Ptag, access: RdmaAccess) -> Result<()> {
        // SAFETY: the caller's obligation.
        unsafe { self.set(ptag, access) }?;
        self.ptag = ptag.clone();
        Ok(())
    }
}

impl MemoryRegion {
    /// Replaces the tag of the region before it is split into buffers. VIs with the old tag can no longer use it.
    ///
    /// # Errors
    /// [`VipError::InvalidPtag`] for a tag of another NIC, [`VipError::InvalidParameter`] when the NIC was closed by
    /// its handle. The tag is unchanged then.
    pub fn set_ptag(&mut self, ptag: &Ptag) -> Result<()> {
        // A region that is not split has one owner.
        let shared = Arc::get_mut(&mut self.shared).ok_or(VipError::ErrorResource)?;
        // SAFETY: peers have no access.
        unsafe { shared.set_ptag(ptag, RdmaAccess::default()) }
    }
}

impl RdmaRegion {
    /// Changes the peers' access to the region. Revoked access is refused as soon as this returns, also for the
    /// remaining frames of a write that has been received in part.
    ///
    /// # Errors
    /// [`VipError::InvalidRdmaRead`] when `access.read` is not supported, [`VipError::InvalidParameter`] when the NIC
    /// was closed by its handle. Nothing is changed then.
    pub fn set_access(&self, access: RdmaAccess) -> Result<()> {
        // SAFETY: an `RdmaRegion` lends no slices.
        unsafe { self.shared.set(self.shared.ptag(), access) }
    }

    /// Replaces the tag of the region: peers can access it only over VIs with that tag.
    ///
    /// # Errors
    /// As [`MemoryRegion::set_ptag`].
    pub fn set_ptag(&mut self, ptag: &Ptag) -> Result<()> {
        let current = self.attributes()?;
        let access = RdmaAccess {
            write: current.rdma_write,
            read: current.rdma_read,
        };
        let shared = Arc::get_mut(&mut self.shared).ok_or(VipError::ErrorResource)?;
        // SAFETY: as in `set_access`.
        unsafe { shared.set_ptag(ptag, access) }
    }
}
