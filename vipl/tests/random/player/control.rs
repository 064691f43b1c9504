//! NIC handles, tags, regions, completion queues, VIs.

use vipl::{
    CqHandle, ErrorDescriptor, MemAttributes, MemoryHandle, NicHandle, PtagHandle, ViAttributes,
    ViHandle, ViInfo, provider as vip,
};

use super::notify::notify_queues_of;
use super::{Checked, Player, choose};
use crate::model::{AsyncError, CqFacts, NotifyQueue, PAGE_BYTES, Region, Verdict, ViFacts};
use crate::oracle::Violation;
use crate::program::{Fault, Pick, RegionSpec, ViSpec};

/// Maximum of NIC handles of one endpoint.
const MAX_NIC_HANDLES: usize = 3;

impl Player {
    pub(super) fn open_nic(&mut self, end: usize) -> Checked {
        if self.tables.ends[end].nics.len() >= MAX_NIC_HANDLES {
            return Ok(());
        }
        self.oracle.explore(&self.tables);
        let outcome = vip::open_nic_with(&self.configs[end]);
        self.check_result(
            || format!("open NIC of end {end}"),
            &outcome,
            &Verdict::default(),
        )?;
        let Ok(nic) = outcome else { return Ok(()) };
        let received = self.received_errors.clone();
        let handler = Box::new(move |error: &ErrorDescriptor| {
            let async_error = AsyncError {
                vi: error.vi.map_or(0, ViHandle::into_raw),
                code: error.code as u32,
                resource: error.resource as u32,
                descriptor: error.descriptor as u64,
            };
            received
                .lock()
                .expect("no handler panics")
                .push(async_error);
        });
        let set = vip::error_callback(nic, Some(handler));
        self.check_result(|| "set handler".into(), &set, &Verdict::default())?;
        self.tables.ends[end].nics.push(nic.into_raw());
        Ok(())
    }

    pub(super) fn close_nic(&mut self, end: usize, pick: Pick) -> Checked {
        let (end, nic) = self.pick_nic(end, pick);
        // Empties the queues: the entries that a full one drops depend on the order in which the VIs are released.
        let vis = self.tables.vis.values();
        let vis = vis.filter(|vi| vi.nic == nic.into_raw());
        let cqs: Vec<u64> = vis
            .flat_map(|vi| [vi.send_cq, vi.recv_cq])
            .flatten()
            .collect();
        for cq in cqs {
            while self.cq_done_of(cq, false)? {}
        }
        self.oracle.explore(&self.tables);
        let verdict = self.tables.on_nic(end, nic.into_raw());
        let outcome = vip::close_nic(nic);
        self.check_result(
            || format!("close NIC {:#x}", nic.into_raw()),
            &outcome,
            &verdict,
        )?;
        if outcome.is_ok() {
            self.forget_nic(end, nic.into_raw())?;
        } else if let Err(error) = vip::query_nic(nic) {
            // An invalid handle stays invalid.
            let refused = Err::<(), _>(error);
            self.check_result(|| "query NIC".into(), &refused, &verdict)?;
        }
        Ok(())
    }

    /// A NIC handle is closed, with all its objects (VIPL 3.1.2).
    fn forget_nic(&mut self, end: usize, nic: u64) -> Checked {
        let table = &mut self.tables.ends[end];
        table.nics.retain(|open| *open != nic);
        let down = table.nics.is_empty();
        let of_nic = |vi: &&u64| self.tables.vis[*vi].nic == nic;
        let vis: Vec<u64> = self.tables.vis.keys().filter(of_nic).copied().collect();
        self.check_last_errors(&vis)?;
        let tables = &self.tables;
        self.oracle.apply(|state| {
            for vi in &vis {
                if down {
                    state.mark_lossy(*vi);
                }
                state.disconnect(tables, *vi);
            }
        });
        // The handlers of its completion queues end; a queue that VIs of other handles use still gets entries.
        let cqs = self.tables.cqs.iter().filter(|(_, cq)| cq.nic == nic);
        let cqs = cqs.map(|(handle, _)| NotifyQueue::Cq(*handle));
        let queues: Vec<NotifyQueue> = vis
            .iter()
            .flat_map(|vi| notify_queues_of(*vi))
            .chain(cqs)
            .collect();
        self.end_notify_queues(&queues)?;
        for vi in &vis {
            self.abandon_descriptors(*vi);
            let tables = &self.tables;
            self.oracle.apply(|state| state.release_vi(tables, *vi));
        }
        self.end_requests_of(nic, &vis)?;
        for vi in &vis {
            self.tables.vis.remove(vi);
        }
        self.stale.vis.extend(vis);
        let table = &mut self.tables.ends[end];
        let removed = table.tags.extract_if(.., |_, owner| *owner == nic);
        self.stale.tags.extend(removed.map(|(tag, _)| tag));
        let removed = table.regions.extract_if(.., |_, region| region.nic == nic);
        self.stale
            .regions
            .extend(removed.map(|(handle, region)| (region.address, handle)));
        let before: Vec<u64> = self.tables.cqs.keys().copied().collect();
        self.tables.forget_orphaned_cqs();
        self.forget_cqs(&before)?;
        self.stale.nics.push(nic);
        Ok(())
    }

    fn forget_cqs(&mut self, before: &[u64]) -> Checked {
        for cq in before {
            if !self.tables.cqs.contains_key(cq) {
                self.end_notify_queues(&[NotifyQueue::Cq(*cq)])?;
                self.oracle.apply(|state| {
                    state.cqs.remove(cq);
                });
                self.stale.cqs.push(*cq);
            }
        }
        Ok(())
    }

    /// Errors that were reported for these VIs must be expected; further ones are not reported after the close.
    fn check_last_errors(&mut self, vis: &[u64]) -> Checked {
        let mut received = self.received_errors.lock().expect("no handler panics");
        let of_them: Vec<AsyncError> = received
            .iter()
            .filter(|t| vis.contains(&t.vi))
            .copied()
            .collect();
        received.retain(|async_error| !vis.contains(&async_error.vi));
        drop(received);
        let what = || format!("asynchronous errors before the NIC was closed: {of_them:?}");
        self.oracle.observe(what, |state| {
            let fits = of_them.iter().all(|async_error| {
                let times = of_them.iter().filter(|t| *t == async_error).count() as u32;
                state
                    .async_errors
                    .get(async_error)
                    .is_some_and(|may| times <= *may)
            });
            fits.then(|| state.clone()).into_iter().collect()
        })
    }

    pub(super) fn query_nic(&mut self, end: usize, pick: Pick) -> Checked {
        let (end, nic) = self.pick_nic(end, pick);
        let verdict = self.tables.on_nic(end, nic.into_raw());
        let outcome = vip::query_nic(nic).map(|attributes| attributes.name);
        self.check_result(
            || format!("query NIC {:#x}", nic.into_raw()),
            &outcome,
            &verdict,
        )
    }

    pub(super) fn create_tag(&mut self, end: usize, pick: Pick) -> Checked {
        let (end, nic) = self.pick_nic(end, pick);
        let verdict = self.tables.create_tag(end, nic.into_raw());
        let outcome = vip::create_ptag(nic);
        self.check_result(|| format!("create tag at end {end}"), &outcome, &verdict)?;
        if let Ok(tag) = outcome {
            let table = &mut self.tables.ends[end].tags;
            if tag.into_raw() == 0 || table.insert(tag.into_raw(), nic.into_raw()).is_some() {
                return Err(Violation("the tag is in use".into()));
            }
        }
        Ok(())
    }

    /// Selects a tag of this endpoint, or an invalid handle.
    pub(super) fn pick_tag(&self, end: usize, pick: Pick) -> PtagHandle {
        let own: Vec<u64> = self.tables.ends[end].tags.keys().copied().collect();
        let foreign: Vec<u64> = self.tables.ends[1 - end].tags.keys().copied().collect();
        let tag = if pick.invalid || own.is_empty() {
            choose(pick, &[&self.stale.tags, &foreign]).unwrap_or(0x5FFF_0000_0100_0001)
        } else {
            // Mostly the first one, so that VIs and regions have the same tag.
            let number = if pick.number & 0x3000 != 0 {
                0
            } else {
                pick.number
            };
            own[number as usize % own.len()]
        };
        PtagHandle::from_raw(tag)
    }

    pub(super) fn destroy_tag(&mut self, end: usize, nic: Pick, tag: Pick) -> Checked {
        let tag = self.pick_tag(end, tag);
        let (end, nic) = self.pick_nic(end, nic);
        let verdict = self.tables.destroy_tag(end, nic.into_raw(), tag.into_raw());
        let outcome = vip::destroy_ptag(nic, tag);
        self.check_result(
            || format!("destroy tag {:#x}", tag.into_raw()),
            &outcome,
            &verdict,
        )?;
        if outcome.is_ok() {
            self.tables.ends[end].tags.remove(&tag.into_raw());
            self.stale.tags.push(tag.into_raw());
        }
        Ok(())
    }

    /// Address and length of a region, and whether its memory is mapped and writable.
    fn region_range(&self, end: usize, spec: &RegionSpec) -> (u64, u64, bool, bool) {
        let arena = &self.arenas[end];
        let (base, all_end) = arena.writable();
        match spec.fault {
            Fault::Attribute => return (base, 0, true, true),
            Fault::Address => return (arena.unmapped() - 10, 20, false, false),
            _ => {}
        }
        if spec.read_only {
            return (arena.read_only() + 5, PAGE_BYTES - 5, true, false);
        }
        if spec.whole {
            return (base, all_end - base, true, true);
        }
        let from = base + u64::from(spec.seed) % (all_end - base);
        let most = (all_end - from).min(40 * PAGE_BYTES);
        let length = 1 + u64::from(spec.seed >> 7) % most;
        (from, length, true, true)
    }

    pub(super) fn register(&mut self, end: usize, nic: Pick, spec: &RegionSpec) -> Checked {
        let range = self.region_range(end, spec);
        let tag = self.pick_tag(end, spec.tag);
        let (end, nic) = self.pick_nic(end, nic);
        self.register_range((end, nic), range, tag, spec)
    }

    /// Registers all writable memory, with the tag of the VI and all rights.
    pub(super) fn register_all(&mut self, facts: &ViFacts) -> Checked {
        let nic = NicHandle::from_raw(facts.nic);
        let (base, end) = self.arenas[facts.end].writable();
        let spec = RegionSpec {
            rdma_write: true,
            rdma_read: true,
            ..RegionSpec::default()
        };
        let range = (base, end - base, true, true);
        self.register_range(
            (facts.end, nic),
            range,
            PtagHandle::from_raw(facts.tag),
            &spec,
        )
    }

    fn register_range(
        &mut self,
        (end, nic): (usize, NicHandle),
        (address, length_bytes, mapped, writable): (u64, u64, bool, bool),
        tag: PtagHandle,
        spec: &RegionSpec,
    ) -> Checked {
        let attributes = MemAttributes {
            ptag: Some(tag),
            rdma_write: spec.rdma_write,
            rdma_read: spec.rdma_read,
        };
        let owner = (end, nic.into_raw());
        let verdict = self
            .tables
            .register(owner, length_bytes, &attributes, mapped);
        self.oracle.explore(&self.tables);
        // SAFETY: the arena stays mapped until all NIC handles are closed; the program expects writes to it.
        let outcome = unsafe { vip::register_mem(nic, address, length_bytes, &attributes) };
        let call =
            || format!("register {address:#x}+{length_bytes:#x} {attributes:?} at end {end}");
        self.check_result(call, &outcome, &verdict)?;
        let Ok(MemoryHandle(handle)) = outcome else {
            return Ok(());
        };
        let region = Region {
            nic: nic.into_raw(),
            address,
            base: address / PAGE_BYTES * PAGE_BYTES,
            end: (address + length_bytes).div_ceil(PAGE_BYTES) * PAGE_BYTES,
            tag: tag.into_raw(),
            rdma_write: spec.rdma_write,
            rdma_read: spec.rdma_read,
            writable,
        };
        let regions = &mut self.tables.ends[end].regions;
        if handle == 0 || regions.insert(handle, region).is_some() {
            return Err(Violation(format!("the handle {handle:#x} is in use, or 0")));
        }
        Ok(())
    }

    /// Selects the address and handle of a region, or invalid ones.
    pub(super) fn pick_region(&self, end: usize, pick: Pick, fault: Fault) -> (u64, MemoryHandle) {
        let own = &self.tables.ends[end].regions;
        let (address, handle) = if pick.invalid || own.is_empty() {
            let stale = &self.stale.regions;
            let index = (pick.number as usize).checked_rem(stale.len());
            index.map_or((self.arenas[end].writable().0, 0), |at| stale[at])
        } else {
            let index = pick.number as usize % own.len();
            let (handle, region) = own.iter().nth(index).expect("a valid index");
            (region.address, *handle)
        };
        let off = u64::from(fault == Fault::Address);
        (address + off, MemoryHandle(handle))
    }

    pub(super) fn deregister(
        &mut self,
        end: usize,
        nic: Pick,
        region: Pick,
        fault: Fault,
    ) -> Checked {
        let (address, handle) = self.pick_region(end, region, fault);
        let (end, nic) = self.pick_nic(end, nic);
        let owner = (end, nic.into_raw());
        let verdict = self.tables.on_region(owner, address, handle.0);
        self.oracle.explore(&self.tables);
        let outcome = vip::deregister_mem(nic, address, handle);
        self.check_result(
            || format!("deregister {:#x} at end {end}", handle.0),
            &outcome,
            &verdict,
        )?;
        if outcome.is_ok() {
            self.tables.ends[end].regions.remove(&handle.0);
            self.stale.regions.push((address, handle.0));
        }
        Ok(())
    }

    pub(super) fn query_mem(
        &mut self,
        end: usize,
        nic: Pick,
        region: Pick,
        fault: Fault,
    ) -> Checked {
        let (address, handle) = self.pick_region(end, region, fault);
        let (end, nic) = self.pick_nic(end, nic);
        self.query_this_mem((end, nic), address, handle)
    }

    pub(super) fn query_this_mem(
        &mut self,
        (end, nic): (usize, NicHandle),
        address: u64,
        handle: MemoryHandle,
    ) -> Checked {
        let owner = (end, nic.into_raw());
        let verdict = self.tables.on_region(owner, address, handle.0);
        let outcome = vip::query_mem(nic, address, handle);
        self.check_result(
            || format!("query memory {:#x} at end {end}", handle.0),
            &outcome,
            &verdict,
        )?;
        let Ok(found) = outcome else { return Ok(()) };
        let region = &self.tables.ends[end].regions[&handle.0];
        let must = MemAttributes {
            ptag: Some(PtagHandle::from_raw(region.tag)),
            rdma_write: region.rdma_write,
            rdma_read: region.rdma_read,
        };
        if found == must {
            Ok(())
        } else {
            Err(Violation(format!("{found:?}, must be {must:?}")))
        }
    }

    pub(super) fn create_cq(&mut self, end: usize, nic: Pick, entries: u64) -> Checked {
        let (end, nic) = self.pick_nic(end, nic);
        let verdict = self.tables.create_cq((end, nic.into_raw()), entries);
        let outcome = vip::create_cq(nic, entries);
        self.check_result(
            || format!("create CQ of {entries} at end {end}"),
            &outcome,
            &verdict,
        )?;
        if let Ok(cq) = outcome {
            let nic = nic.into_raw();
            let facts = CqFacts { end, nic };
            if self.tables.cqs.insert(cq.into_raw(), facts).is_some() {
                return Err(Violation("the handle is in use".into()));
            }
            self.oracle
                .apply(|state| state.create_cq(cq.into_raw(), entries));
        }
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, pick: Pick) -> Checked {
        let cq = self.pick_cq(pick);
        self.destroy_this_cq(cq)
    }

    pub(super) fn destroy_this_cq(&mut self, cq: u64) -> Checked {
        let verdict = self.tables.destroy_cq(cq);
        self.oracle.explore(&self.tables);
        let outcome = vip::destroy_cq(CqHandle::from_raw(cq));
        self.check_result(|| format!("destroy CQ {cq:#x}"), &outcome, &verdict)?;
        if outcome.is_ok() {
            self.end_notify_queues(&[NotifyQueue::Cq(cq)])?;
            self.tables.cqs.remove(&cq);
            self.forget_cqs(&[cq])?;
        }
        Ok(())
    }

    pub(super) fn create_vi(&mut self, end: usize, nic: Pick, spec: &ViSpec) -> Checked {
        let tag = self.pick_tag(end, spec.tag);
        let (end, nic) = self.pick_nic(end, nic);
        let attributes = self.wanted(spec, tag);
        let cqs = [spec.send_cq, spec.recv_cq].map(|pick| self.cq_for(end, pick?));
        let owner = (end, nic.into_raw());
        let verdict = self.tables.create_vi(owner, &attributes, cqs);
        let [send_cq, recv_cq] = cqs.map(|cq| cq.map(CqHandle::from_raw));
        let outcome = vip::create_vi(nic, &attributes, send_cq, recv_cq);
        self.check_result(
            || format!("create VI {attributes:?} {cqs:x?} at end {end}"),
            &outcome,
            &verdict,
        )?;
        let Ok(vi) = outcome else { return Ok(()) };
        let facts = ViFacts {
            end,
            nic: nic.into_raw(),
            tag: tag.into_raw(),
            attributes,
            send_cq: cqs[0],
            recv_cq: cqs[1],
        };
        if self.tables.vis.insert(vi.into_raw(), facts).is_some() {
            return Err(Violation("the handle is in use".into()));
        }
        let tables = &self.tables;
        self.oracle
            .apply(|state| state.create_vi(tables, vi.into_raw()));
        Ok(())
    }

    /// Selects a completion queue of this endpoint, an invalid handle, or none.
    fn cq_for(&self, end: usize, pick: Pick) -> Option<u64> {
        let of = |end: usize| -> Vec<u64> {
            let of_end = self.tables.cqs.iter().filter(|(_, cq)| cq.end == end);
            of_end.map(|(handle, _)| *handle).collect()
        };
        let (own, foreign) = (of(end), of(1 - end));
        if pick.invalid {
            return choose(pick, &[&self.stale.cqs, &foreign]);
        }
        choose(pick, &[&own])
    }

    pub(super) fn destroy_vi(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_vi(pick);
        self.destroy_this_vi(vi)
    }

    pub(super) fn destroy_this_vi(&mut self, vi: u64) -> Checked {
        self.oracle.explore(&self.tables);
        let outcome = vip::destroy_vi(ViHandle::from_raw(vi));
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("destroy", vi, &outcome);
        }
        self.note(|| format!("destroy VI {vi:#x} -> {outcome:?}"));
        let what = || format!("destroy VI {vi:#x} -> {outcome:?}");
        self.oracle.observe(what, |state| {
            let fits = state.destroy_vi(vi).fits(&outcome);
            fits.then(|| state.clone()).into_iter().collect()
        })?;
        if outcome.is_ok() {
            self.end_notify_queues(&notify_queues_of(vi))?;
            self.oracle.apply(|state| {
                state.vis.remove(&vi);
            });
            self.tables.vis.remove(&vi);
            self.stale.vis.push(vi);
            let before: Vec<u64> = self.tables.cqs.keys().copied().collect();
            self.tables.forget_orphaned_cqs();
            self.forget_cqs(&before)?;
        }
        Ok(())
    }

    /// Checks a call with an invalid VI handle (VIPL 3.2.2).
    pub(super) fn unknown_vi<T: core::fmt::Debug>(
        &mut self,
        call: &str,
        vi: u64,
        outcome: &vipl::Result<T>,
    ) -> Checked {
        let verdict = Verdict::default().refuse_if(true, vipl::VipError::InvalidParameter);
        self.check_result(|| format!("{call} of no VI {vi:#x}"), outcome, &verdict)
    }

    pub(super) fn query_vi(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_vi(pick);
        self.query_this_vi(vi)
    }

    pub(super) fn query_this_vi(&mut self, vi: u64) -> Checked {
        self.oracle.explore(&self.tables);
        let outcome = vip::query_vi(ViHandle::from_raw(vi));
        let Some(facts) = self.tables.vis.get(&vi) else {
            return self.unknown_vi("query", vi, &outcome);
        };
        let attributes = facts.attributes;
        let info = outcome.map_err(|error| Violation(format!("query VI {vi:#x} -> {error:?}")))?;
        self.note(|| format!("query VI {vi:#x} -> {info:?}"));
        self.check_info(vi, &info, attributes)
    }

    fn check_info(&mut self, vi: u64, info: &ViInfo, attributes: ViAttributes) -> Checked {
        if info.attributes != attributes {
            return Err(Violation(format!("{info:?}, must have {attributes:?}")));
        }
        self.oracle.observe(
            || format!("VI {vi:#x} is {info:?}"),
            |state| {
                let found = &state.vis[&vi];
                let fits = found.state == info.state
                    && found.send.items.is_empty() == info.send_queue_empty
                    && found.recv.items.is_empty() == info.recv_queue_empty;
                fits.then(|| state.clone()).into_iter().collect()
            },
        )
    }

    /// Returns an open NIC handle of this endpoint, for the teardown.
    pub(super) fn any_nic(&self, end: usize) -> Option<NicHandle> {
        let nics = &self.tables.ends[end].nics;
        nics.first().map(|nic| NicHandle::from_raw(*nic))
    }
}
