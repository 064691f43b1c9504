//! Changes of the attributes of a VI [VIPL 3.7.2].

use super::Vi;
use crate::nic::Ptag;
use crate::{ReliabilityLevel, Result, ViAttributes, VipError, provider};

/// A change of attributes, returned by [`Vi::change`]; attributes that are not set keep their values.
#[derive(Debug)]
#[must_use = "nothing is changed before `apply`"]
pub struct ViChange<'a> {
    vi: &'a mut Vi,
    ptag: Option<Ptag>,
    reliability: Option<ReliabilityLevel>,
    max_transfer_bytes: Option<u64>,
    rdma_write: Option<bool>,
    rdma_read: Option<bool>,
}

impl Vi {
    /// Begins a change of attributes. The exclusive borrow prevents concurrent posts, which see either the old or the
    /// new attributes.
    pub fn change(&mut self) -> ViChange<'_> {
        ViChange {
            vi: self,
            ptag: None,
            reliability: None,
            max_transfer_bytes: None,
            rdma_write: None,
            rdma_read: None,
        }
    }
}

impl ViChange<'_> {
    /// Sets the protection tag of descriptors and buffers.
    pub fn ptag(mut self, ptag: &Ptag) -> Self {
        self.ptag = Some(ptag.clone());
        self
    }

    /// Sets the reliability level. It must be the same at both ends of a connection.
    pub fn reliability(mut self, level: ReliabilityLevel) -> Self {
        self.reliability = Some(level);
        self
    }

    /// Sets the maximum message length in bytes. It must be the same at both ends of a connection.
    pub fn max_transfer_bytes(mut self, bytes: u64) -> Self {
        self.max_transfer_bytes = Some(bytes);
        self
    }

    /// Sets whether the peer may write into this program's memory over this VI.
    pub fn rdma_write(mut self, enabled: bool) -> Self {
        self.rdma_write = Some(enabled);
        self
    }

    /// Sets whether the peer may read this program's memory over this VI.
    pub fn rdma_read(mut self, enabled: bool) -> Self {
        self.rdma_read = Some(enabled);
        self
    }

    /// Changes all attributes that were set, or none.
    ///
    /// # Errors
    /// [`VipError::InvalidState`] unless the VI is idle, or when the tag is to change while receives are posted, whose
    /// memory the VI could no longer use; [`VipError::InvalidReliabilityLevel`], [`VipError::InvalidMtu`] and
    /// [`VipError::InvalidRdmaRead`] for attributes that this NIC does not support; [`VipError::InvalidPtag`] for a tag
    /// of another NIC; [`VipError::InvalidParameter`] when the NIC was closed by its handle.
    pub fn apply(self) -> Result<()> {
        let info = self.vi.info()?;
        let current = info.attributes;
        let ptag = self.ptag.unwrap_or_else(|| self.vi.ptag.clone());
        let wanted = ViAttributes {
            reliability: self
                .reliability
                .map_or(current.reliability, ReliabilityLevel::bit),
            max_transfer_bytes: self
                .max_transfer_bytes
                .unwrap_or(current.max_transfer_bytes),
            qos: current.qos,
            ptag: Some(ptag.handle()),
            rdma_write: self.rdma_write.unwrap_or(current.rdma_write),
            rdma_read: self.rdma_read.unwrap_or(current.rdma_read),
        };
        // The exclusive borrow excludes concurrent posts and completions.
        if !info.recv_queue_empty && ptag != self.vi.ptag {
            return Err(VipError::InvalidState);
        }
        provider::set_vi_attributes(self.vi.handle, &wanted)?;
        self.vi.ptag = ptag;
        Ok(())
    }
}
