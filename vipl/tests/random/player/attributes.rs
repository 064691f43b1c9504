//! Changes of attributes and sizes, and discovery of hosts.

use vipl::{
    CqHandle, HostAddress, MemAttributes, PtagHandle, ViAttributes, ViHandle, provider as vip,
};

use super::{Checked, Player};
use crate::common::raw::set_mem_attributes;
use crate::model::Cq;
use crate::oracle::Violation;
use crate::program::{Fault, Pick, RegionSpec, ViSpec};

impl Player {
    pub(super) fn resize_cq(&mut self, pick: Pick, entries: u64) -> Checked {
        let cq = self.pick_cq(pick);
        self.oracle.explore(&self.tables);
        let verdict = self.tables.resize_cq(cq, entries);
        let outcome = vip::resize_cq(CqHandle::from_raw(cq), entries);
        self.check_result(
            || format!("resize CQ {cq:#x} to {entries}"),
            &outcome,
            &verdict,
        )?;
        if outcome.is_err() {
            return Ok(());
        }
        let queued = self.oracle.any().cqs.get(&cq).map_or(0, Cq::len);
        if (entries as usize) < queued {
            self.count("resized to less than is queued".into());
        }
        let tables = &self.tables;
        self.oracle.apply(|state| state.set_cq(tables, cq, entries));
        Ok(())
    }

    /// The attributes of a VI to be created or changed.
    pub(super) fn wanted(&self, spec: &ViSpec, tag: PtagHandle) -> ViAttributes {
        let mut attributes = ViAttributes {
            reliability: spec.level,
            max_transfer_bytes: spec.max_transfer_bytes,
            qos: 0,
            ptag: Some(tag),
            rdma_write: spec.rdma_write,
            rdma_read: spec.rdma_read,
        };
        match spec.fault {
            Some(0) => attributes.reliability = 3,
            Some(1) => attributes.max_transfer_bytes = 0,
            Some(2) => attributes.max_transfer_bytes = self.tables.limits.transfer_bytes + 1,
            Some(3) => attributes.qos = 1,
            Some(_) | None => {}
        }
        attributes
    }

    pub(super) fn set_vi(&mut self, pick: Pick, spec: &ViSpec) -> Checked {
        let vi = self.pick_idle_vi(pick);
        let end = self.tables.vis.get(&vi).map_or(0, |facts| facts.end);
        let tag = self.pick_tag(end, spec.tag);
        let attributes = self.wanted(spec, tag);
        self.oracle.explore(&self.tables);
        let outcome = vip::set_vi_attributes(ViHandle::from_raw(vi), &attributes);
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("set attributes", vi, &outcome);
        }
        let text = format!("set VI {vi:#x} to {attributes:?} -> {outcome:?}");
        self.note(|| text.clone());
        let tables = &self.tables;
        self.oracle.observe(
            || text,
            |state| {
                let fits = state.set_vi(tables, vi, &attributes).fits(&outcome);
                fits.then(|| state.clone()).into_iter().collect()
            },
        )?;
        if outcome.is_ok()
            && let Some(facts) = self.tables.vis.get_mut(&vi)
        {
            facts.attributes = attributes;
            facts.tag = tag.into_raw();
            self.count("VI set".into());
        }
        // All attributes are changed, or none.
        self.query_this_vi(vi)
    }

    pub(super) fn set_mem(
        &mut self,
        end: usize,
        nic: Pick,
        region: Pick,
        spec: &RegionSpec,
    ) -> Checked {
        // A change during a transfer of the region is undefined.
        self.quiesce()?;
        let (address, handle) = self.pick_region(end, region, spec.fault);
        let tag = self.pick_tag(end, spec.tag);
        let (end, nic) = self.pick_nic(end, nic);
        let attributes = MemAttributes {
            ptag: Some(tag),
            rdma_write: spec.rdma_write,
            rdma_read: spec.rdma_read,
        };
        let owner = (end, nic.into_raw());
        let verdict = self.tables.set_mem(owner, (address, handle.0), &attributes);
        let outcome = set_mem_attributes(nic, address, handle, &attributes);
        self.check_result(
            || format!("set memory {:#x} at end {end} to {attributes:?}", handle.0),
            &outcome,
            &verdict,
        )?;
        if outcome.is_ok()
            && let Some(region) = self.tables.ends[end].regions.get_mut(&handle.0)
        {
            region.tag = tag.into_raw();
            region.rdma_write = attributes.rdma_write;
            region.rdma_read = attributes.rdma_read;
            self.count("memory set".into());
        }
        // All attributes are changed, or none.
        let off = u64::from(spec.fault == Fault::Address);
        self.query_this_mem((end, nic), address - off, handle)
    }

    pub(super) fn discover(&mut self, end: usize, nic: Pick, hops: u64) -> Checked {
        let (end, nic) = self.pick_nic(end, nic);
        let verdict = self.tables.on_nic(end, nic.into_raw());
        let outcome = vip::autodiscovery(nic, hops);
        self.check_result(
            || format!("discover from end {end} within {hops}"),
            &outcome,
            &verdict,
        )?;
        let Ok(found) = outcome else { return Ok(()) };
        let must = match self.tables.discovers_other(end, hops) {
            true => vec![HostAddress(self.host)],
            false => Vec::new(),
        };
        if found != must {
            return Err(Violation(format!("{found:?}, must be {must:?}")));
        }
        self.count(format!("found: {}", found.len()));
        Ok(())
    }
}
