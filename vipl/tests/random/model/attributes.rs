//! Changes of attributes and sizes, and discovery of hosts (VIPL 3.6.3, 3.7.2, 3.7.4, 3.7.6).

use vipl::{MemAttributes, ViAttributes, ViState, VipError};

use super::calls::Verdict;
use super::state::{Cq, State};
use super::tables::Tables;

impl Tables {
    /// VIPL 3.6.3. The size is a minimum: it may be smaller than the number of queued entries.
    pub(crate) fn resize_cq(&self, cq: u64, entries: u64) -> Verdict {
        let known = self.cqs.contains_key(&cq);
        Verdict::default()
            .refuse_if(!known || entries == 0, VipError::InvalidParameter)
            .refuse_if(entries > self.limits.cq_entries, VipError::ErrorResource)
    }

    /// VIPL 3.7.4.
    pub(crate) fn set_mem(
        &self,
        owner: (usize, u64),
        (address, handle): (u64, u32),
        attributes: &MemAttributes,
    ) -> Verdict {
        let tag = attributes.ptag.map_or(0, |tag| tag.into_raw());
        let reads = self.limits.rdma_read_levels != 0;
        self.on_region(owner, address, handle)
            .refuse_if(
                !self.ends[owner.0].tags.contains_key(&tag),
                VipError::InvalidPtag,
            )
            .refuse_if(attributes.rdma_read && !reads, VipError::InvalidRdmaRead)
    }

    /// Returns whether a NIC of this endpoint discovers the other one within `hops` (VIPL 3.7.6). Both have the same
    /// host address, and are one hop apart.
    pub(crate) fn discovers_other(&self, end: usize, hops: u64) -> bool {
        self.limits.discovers && hops > 0 && !self.ends[1 - end].nics.is_empty()
    }
}

impl State {
    /// VIPL 3.6.1.
    pub(crate) fn create_cq(&mut self, cq: u64, entries: u64) {
        let capacity = (entries as usize).next_power_of_two();
        self.cqs.insert(cq, Cq::new(capacity));
    }

    /// VIPL 3.6.3; no entry is lost.
    pub(crate) fn set_cq(&mut self, tables: &Tables, cq: u64, entries: u64) {
        if let Some(found) = self.cqs.get_mut(&cq) {
            let needed = tables.attached_descriptors(cq).max(found.len());
            found.capacity = needed.max(entries as usize).next_power_of_two();
        }
    }

    /// Increases the capacity to all descriptors that can be posted on the attached work queues.
    pub(super) fn attach(&mut self, tables: &Tables, cq: u64) {
        if let Some(found) = self.cqs.get_mut(&cq) {
            let needed = tables.attached_descriptors(cq).next_power_of_two();
            found.capacity = found.capacity.max(needed);
        }
    }

    /// VIPL 3.7.2.
    pub(crate) fn set_vi(&self, tables: &Tables, vi: u64, attributes: &ViAttributes) -> Verdict {
        let busy = self.vis[&vi].state != ViState::Idle;
        let verdict = Verdict::default().refuse_if(busy, VipError::InvalidState);
        tables.vi_attributes(verdict, tables.vis[&vi].end, attributes)
    }
}
