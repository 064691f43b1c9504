//! The attributes of a VI changed after it was made [VIPL 3.7.2].

use super::Vi;
use crate::nic::Ptag;
use crate::{ReliabilityLevel, Result, ViAttributes, VipError, provider};

/// Attributes that a VI is to have, begun by [`Vi::change`]; those that are not named stay.
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
    /// Begins a change of attributes. Nobody else uses the VI meanwhile, so that a post meets the old ones or the new
    /// ones.
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
    /// The tag that descriptors and buffers of this VI carry from now on.
    pub fn ptag(mut self, ptag: &Ptag) -> Self {
        self.ptag = Some(ptag.clone());
        self
    }

    /// The reliability level. Both ends of a connection must agree.
    pub fn reliability(mut self, level: ReliabilityLevel) -> Self {
        self.reliability = Some(level);
        self
    }

    /// The longest message in bytes. Both ends of a connection must agree.
    pub fn max_transfer_bytes(mut self, bytes: u64) -> Self {
        self.max_transfer_bytes = Some(bytes);
        self
    }

    /// Whether the peer may write into this program's memory over this VI.
    pub fn rdma_write(mut self, enabled: bool) -> Self {
        self.rdma_write = Some(enabled);
        self
    }

    /// Whether the peer may read this program's memory over this VI.
    pub fn rdma_read(mut self, enabled: bool) -> Self {
        self.rdma_read = Some(enabled);
        self
    }

    /// Changes all of them, or none.
    ///
    /// # Errors
    /// [`VipError::InvalidState`] unless the VI is idle, or when the tag is to change while receives are posted, whose
    /// memory it would put out of reach; [`VipError::InvalidReliabilityLevel`], [`VipError::InvalidMtu`] and
    /// [`VipError::InvalidRdmaRead`] for what this NIC does not support; [`VipError::InvalidPtag`] for a tag of another
    /// NIC; [`VipError::InvalidParameter`] when the NIC was closed underneath.
    pub fn apply(self) -> Result<()> {
        let info = self.vi.info()?;
        let now = info.attributes;
        let ptag = self.ptag.unwrap_or_else(|| self.vi.ptag.clone());
        let wanted = ViAttributes {
            reliability: self.reliability.map_or(now.reliability, |l| l as u16),
            max_transfer_bytes: self.max_transfer_bytes.unwrap_or(now.max_transfer_bytes),
            qos: now.qos,
            ptag: Some(ptag.handle()),
            rdma_write: self.rdma_write.unwrap_or(now.rdma_write),
            rdma_read: self.rdma_read.unwrap_or(now.rdma_read),
        };
        // Nobody posts or takes back while we have the VI to ourselves.
        if !info.recv_queue_empty && ptag != self.vi.ptag {
            return Err(VipError::InvalidState);
        }
        provider::set_vi_attributes(self.vi.handle, &wanted)?;
        self.vi.ptag = ptag;
        Ok(())
    }
}
