//! Openings, tags, regions, completion queues, VIs.

use vipl::{
    CqHandle, ErrorDescriptor, MemAttributes, MemoryHandle, NicHandle, PtagHandle, ViAttributes,
    ViHandle, ViInfo, provider as vip,
};

use super::notices::places_of;
use super::{Checked, Player, choose};
use crate::model::{CqFacts, PAGE_BYTES, Place, Region, Told, Verdict, ViFacts};
use crate::oracle::Violation;
use crate::program::{Mistake, Pick, RegionShape, ViShape};

/// Openings of one end, at most.
const MAX_OPENINGS: usize = 3;

impl Player {
    pub(super) fn open_nic(&mut self, end: usize) -> Checked {
        if self.tables.ends[end].nics.len() >= MAX_OPENINGS {
            return Ok(());
        }
        self.oracle.work_on(&self.tables);
        let outcome = vip::open_nic_with(&self.configs[end]);
        self.certain(
            || format!("open NIC of end {end}"),
            &outcome,
            &Verdict::default(),
        )?;
        let Ok(nic) = outcome else { return Ok(()) };
        let heard = self.heard.clone();
        let handler = Box::new(move |error: &ErrorDescriptor| {
            let told = Told {
                vi: error.vi.map_or(0, ViHandle::into_raw),
                code: error.code as u32,
                resource: error.resource as u32,
                descriptor: error.descriptor as u64,
            };
            heard.lock().expect("no handler panics").push(told);
        });
        let set = vip::error_callback(nic, Some(handler));
        self.certain(|| "set handler".into(), &set, &Verdict::default())?;
        self.tables.ends[end].nics.push(nic.into_raw());
        Ok(())
    }

    pub(super) fn close_nic(&mut self, end: usize, pick: Pick) -> Checked {
        let (end, nic) = self.pick_nic(end, pick);
        // What one that is full drops depends on the order in which the VIs are released.
        let vis = self.tables.vis.values();
        let vis = vis.filter(|vi| vi.nic == nic.into_raw());
        let cqs: Vec<u64> = vis
            .flat_map(|vi| [vi.send_cq, vi.recv_cq])
            .flatten()
            .collect();
        for cq in cqs {
            while self.cq_done_of(cq, false)? {}
        }
        self.oracle.work_on(&self.tables);
        let verdict = self.tables.on_nic(end, nic.into_raw());
        let outcome = vip::close_nic(nic);
        self.certain(
            || format!("close NIC {:#x}", nic.into_raw()),
            &outcome,
            &verdict,
        )?;
        if outcome.is_ok() {
            self.forget_nic(end, nic.into_raw())?;
        } else if let Err(error) = vip::query_nic(nic) {
            // A handle that is no good stays so.
            let refused = Err::<(), _>(error);
            self.certain(|| "query NIC".into(), &refused, &verdict)?;
        }
        Ok(())
    }

    /// An opening is closed: so is all that it owned (VIPL 3.1.2).
    fn forget_nic(&mut self, end: usize, nic: u64) -> Checked {
        let table = &mut self.tables.ends[end];
        table.nics.retain(|open| *open != nic);
        let down = table.nics.is_empty();
        let of_nic = |vi: &&u64| self.tables.vis[*vi].nic == nic;
        let vis: Vec<u64> = self.tables.vis.keys().filter(of_nic).copied().collect();
        self.hear_last_of(&vis)?;
        let tables = &self.tables;
        self.oracle.change(|state| {
            for vi in &vis {
                if down {
                    state.cut(*vi);
                }
                state.disconnect(tables, *vi);
            }
        });
        // Its completion queues end as well, though one that VIs of other openings use goes on taking entries.
        let cqs = self.tables.cqs.iter().filter(|(_, cq)| cq.nic == nic);
        let cqs = cqs.map(|(handle, _)| Place::Cq(*handle));
        let places: Vec<Place> = vis
            .iter()
            .flat_map(|vi| places_of(*vi))
            .chain(cqs)
            .collect();
        self.places_end(&places)?;
        for vi in &vis {
            self.abandon_descriptors(*vi);
            let tables = &self.tables;
            self.oracle.change(|state| state.release_vi(tables, *vi));
        }
        self.end_requests_of(nic, &vis)?;
        for vi in &vis {
            self.tables.vis.remove(vi);
        }
        self.stale.vis.extend(vis);
        let table = &mut self.tables.ends[end];
        let gone = table.tags.extract_if(.., |_, owner| *owner == nic);
        self.stale.tags.extend(gone.map(|(tag, _)| tag));
        let gone = table.regions.extract_if(.., |_, region| region.nic == nic);
        self.stale
            .regions
            .extend(gone.map(|(handle, region)| (region.address, handle)));
        let before: Vec<u64> = self.tables.cqs.keys().copied().collect();
        self.tables.forget_orphaned_cqs();
        self.forget_cqs(&before)?;
        self.stale.nics.push(nic);
        Ok(())
    }

    fn forget_cqs(&mut self, before: &[u64]) -> Checked {
        for cq in before {
            if !self.tables.cqs.contains_key(cq) {
                self.places_end(&[Place::Cq(*cq)])?;
                self.oracle.change(|state| {
                    state.cqs.remove(cq);
                });
                self.stale.cqs.push(*cq);
            }
        }
        Ok(())
    }

    /// What was told of VIs whose handler is gone must have been true; the rest of it is not told any more.
    fn hear_last_of(&mut self, vis: &[u64]) -> Checked {
        let mut heard = self.heard.lock().expect("no handler panics");
        let of_them: Vec<Told> = heard
            .iter()
            .filter(|t| vis.contains(&t.vi))
            .copied()
            .collect();
        heard.retain(|told| !vis.contains(&told.vi));
        drop(heard);
        let what = || format!("asynchronous errors before the NIC was closed: {of_them:?}");
        self.oracle.see(what, |state| {
            let fits = of_them.iter().all(|told| {
                let times = of_them.iter().filter(|t| *t == told).count() as u32;
                state.told.get(told).is_some_and(|may| times <= *may)
            });
            fits.then(|| state.clone()).into_iter().collect()
        })
    }

    pub(super) fn query_nic(&mut self, end: usize, pick: Pick) -> Checked {
        let (end, nic) = self.pick_nic(end, pick);
        let verdict = self.tables.on_nic(end, nic.into_raw());
        let outcome = vip::query_nic(nic).map(|attributes| attributes.name);
        self.certain(
            || format!("query NIC {:#x}", nic.into_raw()),
            &outcome,
            &verdict,
        )
    }

    pub(super) fn create_tag(&mut self, end: usize, pick: Pick) -> Checked {
        let (end, nic) = self.pick_nic(end, pick);
        let verdict = self.tables.create_tag(end, nic.into_raw());
        let outcome = vip::create_ptag(nic);
        self.certain(|| format!("create tag at end {end}"), &outcome, &verdict)?;
        if let Ok(tag) = outcome {
            let table = &mut self.tables.ends[end].tags;
            if tag.into_raw() == 0 || table.insert(tag.into_raw(), nic.into_raw()).is_some() {
                return Err(Violation("the tag was there already".into()));
            }
        }
        Ok(())
    }

    /// A tag of this end, or a handle that is none.
    pub(super) fn pick_tag(&self, end: usize, pick: Pick) -> PtagHandle {
        let own: Vec<u64> = self.tables.ends[end].tags.keys().copied().collect();
        let foreign: Vec<u64> = self.tables.ends[1 - end].tags.keys().copied().collect();
        let tag = if pick.wrong || own.is_empty() {
            choose(pick, &[&self.stale.tags, &foreign]).unwrap_or(0x5FFF_0000_0100_0001)
        } else {
            // The first ones most often, so that VIs and regions fit together.
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
        self.certain(
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

    /// Where a region is to be, and whether the memory is there and can be written.
    fn region_range(&self, end: usize, shape: &RegionShape) -> (u64, u64, bool, bool) {
        let arena = &self.arenas[end];
        let (base, all_end) = arena.writable();
        match shape.mistake {
            Mistake::Attribute => return (base, 0, true, true),
            Mistake::Address => return (arena.hole() - 10, 20, false, false),
            _ => {}
        }
        if shape.read_only {
            return (arena.read_only() + 5, PAGE_BYTES - 5, true, false);
        }
        if shape.whole {
            return (base, all_end - base, true, true);
        }
        let from = base + u64::from(shape.dice) % (all_end - base);
        let most = (all_end - from).min(40 * PAGE_BYTES);
        let length = 1 + u64::from(shape.dice >> 7) % most;
        (from, length, true, true)
    }

    pub(super) fn register(&mut self, end: usize, nic: Pick, shape: &RegionShape) -> Checked {
        let range = self.region_range(end, shape);
        let tag = self.pick_tag(end, shape.tag);
        let (end, nic) = self.pick_nic(end, nic);
        self.register_range((end, nic), range, tag, shape)
    }

    /// All memory that a VI's program can write, with the tag of the VI and all rights.
    pub(super) fn register_all(&mut self, facts: &ViFacts) -> Checked {
        let nic = NicHandle::from_raw(facts.nic);
        let (base, end) = self.arenas[facts.end].writable();
        let shape = RegionShape {
            rdma_write: true,
            rdma_read: true,
            ..RegionShape::default()
        };
        let range = (base, end - base, true, true);
        self.register_range(
            (facts.end, nic),
            range,
            PtagHandle::from_raw(facts.tag),
            &shape,
        )
    }

    fn register_range(
        &mut self,
        (end, nic): (usize, NicHandle),
        (address, length_bytes, mapped, writable): (u64, u64, bool, bool),
        tag: PtagHandle,
        shape: &RegionShape,
    ) -> Checked {
        let attributes = MemAttributes {
            ptag: Some(tag),
            rdma_write: shape.rdma_write,
            rdma_read: shape.rdma_read,
        };
        let place = (end, nic.into_raw());
        let verdict = self
            .tables
            .register(place, length_bytes, &attributes, mapped);
        self.oracle.work_on(&self.tables);
        // SAFETY: the arena stays mapped until every opening is closed; the program expects it to be written.
        let outcome = unsafe { vip::register_mem(nic, address, length_bytes, &attributes) };
        let call =
            || format!("register {address:#x}+{length_bytes:#x} {attributes:?} at end {end}");
        self.certain(call, &outcome, &verdict)?;
        let Ok(MemoryHandle(handle)) = outcome else {
            return Ok(());
        };
        let region = Region {
            nic: nic.into_raw(),
            address,
            base: address / PAGE_BYTES * PAGE_BYTES,
            end: (address + length_bytes).div_ceil(PAGE_BYTES) * PAGE_BYTES,
            tag: tag.into_raw(),
            rdma_write: shape.rdma_write,
            rdma_read: shape.rdma_read,
            writable,
        };
        let regions = &mut self.tables.ends[end].regions;
        if handle == 0 || regions.insert(handle, region).is_some() {
            return Err(Violation(format!("the handle {handle:#x} is in use, or 0")));
        }
        Ok(())
    }

    /// Address and handle of a region, or of none.
    pub(super) fn pick_region(
        &self,
        end: usize,
        pick: Pick,
        mistake: Mistake,
    ) -> (u64, MemoryHandle) {
        let own = &self.tables.ends[end].regions;
        let (address, handle) = if pick.wrong || own.is_empty() {
            let stale = &self.stale.regions;
            let place = (pick.number as usize).checked_rem(stale.len());
            place.map_or((self.arenas[end].writable().0, 0), |at| stale[at])
        } else {
            let place = pick.number as usize % own.len();
            let (handle, region) = own.iter().nth(place).expect("there is one");
            (region.address, *handle)
        };
        let off = u64::from(mistake == Mistake::Address);
        (address + off, MemoryHandle(handle))
    }

    pub(super) fn deregister(
        &mut self,
        end: usize,
        nic: Pick,
        region: Pick,
        mistake: Mistake,
    ) -> Checked {
        let (address, handle) = self.pick_region(end, region, mistake);
        let (end, nic) = self.pick_nic(end, nic);
        let place = (end, nic.into_raw());
        let verdict = self.tables.on_region(place, address, handle.0);
        self.oracle.work_on(&self.tables);
        let outcome = vip::deregister_mem(nic, address, handle);
        self.certain(
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
        mistake: Mistake,
    ) -> Checked {
        let (address, handle) = self.pick_region(end, region, mistake);
        let (end, nic) = self.pick_nic(end, nic);
        self.query_this_mem((end, nic), address, handle)
    }

    pub(super) fn query_this_mem(
        &mut self,
        (end, nic): (usize, NicHandle),
        address: u64,
        handle: MemoryHandle,
    ) -> Checked {
        let place = (end, nic.into_raw());
        let verdict = self.tables.on_region(place, address, handle.0);
        let outcome = vip::query_mem(nic, address, handle);
        self.certain(
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
        self.certain(
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
                .change(|state| state.create_cq(cq.into_raw(), entries));
        }
        Ok(())
    }

    pub(super) fn destroy_cq(&mut self, pick: Pick) -> Checked {
        let cq = self.pick_cq(pick);
        self.destroy_this_cq(cq)
    }

    pub(super) fn destroy_this_cq(&mut self, cq: u64) -> Checked {
        let verdict = self.tables.destroy_cq(cq);
        self.oracle.work_on(&self.tables);
        let outcome = vip::destroy_cq(CqHandle::from_raw(cq));
        self.certain(|| format!("destroy CQ {cq:#x}"), &outcome, &verdict)?;
        if outcome.is_ok() {
            self.places_end(&[Place::Cq(cq)])?;
            self.tables.cqs.remove(&cq);
            self.forget_cqs(&[cq])?;
        }
        Ok(())
    }

    pub(super) fn create_vi(&mut self, end: usize, nic: Pick, shape: &ViShape) -> Checked {
        let tag = self.pick_tag(end, shape.tag);
        let (end, nic) = self.pick_nic(end, nic);
        let attributes = self.wanted(shape, tag);
        let cqs = [shape.send_cq, shape.recv_cq].map(|pick| self.cq_for(end, pick?));
        let place = (end, nic.into_raw());
        let verdict = self.tables.create_vi(place, &attributes, cqs);
        let [send_cq, recv_cq] = cqs.map(|cq| cq.map(CqHandle::from_raw));
        let outcome = vip::create_vi(nic, &attributes, send_cq, recv_cq);
        self.certain(
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
            .change(|state| state.create_vi(tables, vi.into_raw()));
        Ok(())
    }

    /// A completion queue of this end, a handle that is none of it, or none.
    fn cq_for(&self, end: usize, pick: Pick) -> Option<u64> {
        let of = |end: usize| -> Vec<u64> {
            let of_end = self.tables.cqs.iter().filter(|(_, cq)| cq.end == end);
            of_end.map(|(handle, _)| *handle).collect()
        };
        let (own, foreign) = (of(end), of(1 - end));
        if pick.wrong {
            return choose(pick, &[&self.stale.cqs, &foreign]);
        }
        choose(pick, &[&own])
    }

    pub(super) fn destroy_vi(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_vi(pick);
        self.destroy_this_vi(vi)
    }

    pub(super) fn destroy_this_vi(&mut self, vi: u64) -> Checked {
        self.oracle.work_on(&self.tables);
        let outcome = vip::destroy_vi(ViHandle::from_raw(vi));
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("destroy", vi, &outcome);
        }
        self.note(|| format!("destroy VI {vi:#x} -> {outcome:?}"));
        let what = || format!("destroy VI {vi:#x} -> {outcome:?}");
        self.oracle.see(what, |state| {
            let fits = state.destroy_vi(vi).fits(&outcome);
            fits.then(|| state.clone()).into_iter().collect()
        })?;
        if outcome.is_ok() {
            self.places_end(&places_of(vi))?;
            self.oracle.change(|state| {
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

    /// Calls on a VI handle that is no good (VIPL 3.2.2).
    pub(super) fn unknown_vi<T: core::fmt::Debug>(
        &mut self,
        call: &str,
        vi: u64,
        outcome: &vipl::Result<T>,
    ) -> Checked {
        let verdict = Verdict::default().refuse_if(true, vipl::VipError::InvalidParameter);
        self.certain(|| format!("{call} of no VI {vi:#x}"), outcome, &verdict)
    }

    pub(super) fn query_vi(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_vi(pick);
        self.query_this_vi(vi)
    }

    pub(super) fn query_this_vi(&mut self, vi: u64) -> Checked {
        self.oracle.work_on(&self.tables);
        let outcome = vip::query_vi(ViHandle::from_raw(vi));
        let Some(facts) = self.tables.vis.get(&vi) else {
            return self.unknown_vi("query", vi, &outcome);
        };
        let attributes = facts.attributes;
        let info = outcome.map_err(|error| Violation(format!("query VI {vi:#x} -> {error:?}")))?;
        self.note(|| format!("query VI {vi:#x} -> {info:?}"));
        self.see_info(vi, &info, attributes)
    }

    fn see_info(&mut self, vi: u64, info: &ViInfo, attributes: ViAttributes) -> Checked {
        if info.attributes != attributes {
            return Err(Violation(format!("{info:?}, must have {attributes:?}")));
        }
        self.oracle.see(
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

    /// An opening of this end that is good, to take things down with.
    pub(super) fn any_nic(&self, end: usize) -> Option<NicHandle> {
        let nics = &self.tables.ends[end].nics;
        nics.first().map(|nic| NicHandle::from_raw(*nic))
    }
}
