//! Regions come and go: this program's own, those of applications that it serves, and those whose
//! handles the process that serves it has given.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::holdings::{Holdings, TagUses};
use super::{
    CHUNK, Entry, RDMA_READ, RDMA_WRITE, RegionAttributes, RegionError, RegionTable, RegionUsage,
    WRITABLE, grant,
};
use crate::memory::locked::{self, NotLocked};
use crate::memory::pages::{self, LockPolicy};
use crate::memory::place::{ClientMemory, Owner, Place};
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sync::{AtomicPtr, Ordering, fence};

mod admission;

/// A thread that has ended a region over there ends it here within so long, however busy the
/// machine is.
const PATIENCE: Duration = Duration::from_secs(5);

/// What only registration and deregistration need.
#[derive(Default)]
struct Registration {
    generation: u16,
    live: bool,
    /// Stands in the list of places that were used.
    listed: bool,
    locked: bool,
    instance: u64,
    /// Where it stands among the regions of its opening.
    at: u32,
    tag: u32,
    owner: Owner,
    address: u64,
    base: u64,
    end: u64,
    /// Of an application's memory. The table of places points to it.
    place: Option<Arc<Place>>,
}

/// The generation of a new region: the random bits, but never 0, nor that of the region before it
/// in the same place (ADR 0041). The two that stand in for these are as hard to predict.
fn next_generation(random: u16, before: u16) -> u16 {
    let candidates = [random, !random, !random ^ 1];
    let fits = |generation: &u16| *generation != 0 && *generation != before;
    candidates.into_iter().find(fits).unwrap_or(1)
}

#[derive(Default)]
pub(super) struct Control {
    entries: Vec<Registration>,
    /// Places that were used, the longest unused first: a stale handle stays stale longest.
    free: VecDeque<u32>,
    usage: RegionUsage,
    holdings: Holdings,
    tags: TagUses,
}

/// What a region leaves that was removed: memory that is unmapped when this is dropped, which
/// may take long. The caller drops it when it holds nothing that others wait for.
#[derive(Debug)]
#[must_use]
pub(crate) struct Removed(#[allow(dead_code, reason = "owned until dropped")] Option<Arc<Place>>);

/// A range to be registered, and its pages.
#[derive(Clone, Copy)]
struct Span {
    address: u64,
    base: u64,
    end: u64,
}

impl Span {
    fn bytes(self) -> u64 {
        self.end - self.base
    }
}

/// A region that may be registered.
struct Prepared {
    owner: Owner,
    writable: bool,
    locked: bool,
    /// Why not, where it was tried.
    not_locked: Option<NotLocked>,
    place: Option<Arc<Place>>,
}

impl RegionTable {
    fn lock_control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a range for an instance of the NIC; returns its handle, never 0. `random`: 16
    /// bits that no peer can predict, new for each registration. `admit` gives
    /// its attributes or refuses it, in one step with the registration as [`Self::end_tag`] and
    /// [`Self::deregister_some`] see it.
    pub(crate) fn register<E: From<RegionError>>(
        &self,
        instance: u64,
        address: u64,
        length_bytes: u64,
        random: u16,
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<u32, E> {
        let span = self.span(address, length_bytes)?;
        self.lock_control().reserve(span.bytes(), &self.limits)?;
        // Faulting in and locking may take long: not under a lock that others want who
        // hold the NIC's turn.
        let prepared = self.prepare(span);
        let mut control = self.lock_control();
        let (prepared, attributes) = control.admit(span, prepared, (instance, 1), admit)?;
        let handle = control.take_handle(random);
        self.enter(&mut control, instance, span, handle, prepared, attributes);
        Ok(handle)
    }

    /// Registers a range under a handle that the datapath process assigned, with its bounce buffer
    /// if it has one; otherwise as [`Self::register`]. Another region may have its place still: it ended over there, and
    /// the thread that ended it is about to end it here. So the caller holds nothing that this
    /// one needs, the NIC's turn above all.
    ///
    /// # Errors
    /// [`RegionError::Invalid`] also if the handle is taken or none that a table gives,
    /// [`RegionError::Resource`] if it lies beyond this table's limit.
    pub(crate) fn adopt<E: From<RegionError>>(
        &self,
        instance: u64,
        handle: u32,
        (address, length_bytes): (u64, u64),
        bounce_buffer: Option<Arc<Place>>,
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<(), E> {
        let span = self.span(address, length_bytes)?;
        if handle >> 16 == 0 {
            return Err(RegionError::Invalid.into());
        }
        let regions = self.limits.regions;
        if handle & 0xFFFF >= regions {
            let reached = LimitReached::all_in_use(Limit::MaxRegions, regions, LimitOf::Nic);
            return Err(RegionError::Resource(reached).into());
        }
        self.lock_control().reserve(span.bytes(), &self.limits)?;
        let prepared = self.prepare(span).map(|prepared| Prepared {
            place: bounce_buffer,
            ..prepared
        });
        let is_leaving = |control: &mut Control| control.is_taken(handle) && !control.has(handle);
        let (mut control, _) = self
            .gone
            .wait_timeout_while(self.lock_control(), PATIENCE, is_leaving)
            .unwrap_or_else(PoisonError::into_inner);
        let taken = control.is_taken(handle);
        let places = (handle & 0xFFFF) as usize + 1;
        let missing = places.saturating_sub(control.entries.len());
        let (prepared, attributes) = control.admit(span, prepared, (instance, missing), || {
            if taken {
                return Err(RegionError::Invalid.into());
            }
            admit()
        })?;
        control.take_place_of(handle);
        self.enter(&mut control, instance, span, handle, prepared, attributes);
        Ok(())
    }

    /// Registers a range of an application's memory; as [`Self::register`] else. Nothing is done
    /// to the pages, which are the application's business.
    ///
    /// # Errors
    /// [`RegionError::Invalid`] also if less is mapped than the pages of the range.
    pub(crate) fn register_for<E: From<RegionError>>(
        &self,
        instance: u64,
        memory: ClientMemory,
        (address, length_bytes): (u64, u64),
        random: u16,
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<u32, E> {
        let span = self.span(address, length_bytes)?;
        if let Place::Mapped(mapped) = &memory.place
            && mapped.len_bytes() < span.bytes()
        {
            return Err(RegionError::Invalid.into());
        }
        let mut control = self.lock_control();
        control.reserve(span.bytes(), &self.limits)?;
        let prepared = Prepared {
            owner: memory.owner,
            writable: memory.writable,
            locked: false,
            not_locked: None,
            place: Some(Arc::new(memory.place)),
        };
        let (prepared, attributes) = control.admit(span, Ok(prepared), (instance, 1), admit)?;
        let handle = control.take_handle(random);
        self.enter(&mut control, instance, span, handle, prepared, attributes);
        Ok(handle)
    }

    /// May the pages of a range that is about to be registered be written? They are faulted in.
    ///
    /// # Errors
    /// Those of [`Self::register`] that are about the range alone.
    pub(crate) fn look(&self, address: u64, length_bytes: u64) -> Result<bool, RegionError> {
        let Span { base, end, .. } = self.span(address, length_bytes)?;
        pages::writable(base, end).ok_or(RegionError::Invalid)
    }

    fn span(&self, address: u64, length_bytes: u64) -> Result<Span, RegionError> {
        if length_bytes == 0 {
            return Err(RegionError::Invalid);
        }
        let (base, end) = pages::page_range(address, length_bytes).ok_or(RegionError::Invalid)?;
        let span = Span { address, base, end };
        // Before the pages are looked at: who asks for more than there can be, hears of that.
        let limits = [
            (
                Limit::MaxRegionBytes,
                self.limits.region_bytes,
                length_bytes,
            ),
            (Limit::MaxRegisteredBytes, self.limits.bytes, span.bytes()),
        ];
        for (limit, value, wanted) in limits {
            if wanted > value {
                let exceeded = LimitReached::exceeded(limit, value, wanted);
                return Err(RegionError::Resource(exceeded));
            }
        }
        Ok(span)
    }

    /// Faults the pages in and locks them.
    fn prepare(&self, span: Span) -> Result<Prepared, RegionError> {
        let Span { base, end, .. } = span;
        let writable = pages::writable(base, end).ok_or(RegionError::Invalid)?;
        let mut not_locked = None;
        if self.limits.lock != LockPolicy::Never {
            not_locked = locked::lock(base, end).err();
        }
        if let Some(why) = not_locked
            && self.limits.lock == LockPolicy::Required
        {
            return Err(RegionError::Resource(why.into()));
        }
        Ok(Prepared {
            owner: Owner::PROGRAM,
            writable,
            locked: self.limits.lock != LockPolicy::Never && not_locked.is_none(),
            not_locked,
            place: None,
        })
    }

    /// Enters a region under a handle whose place is free.
    fn enter(
        &self,
        control: &mut Control,
        instance: u64,
        span: Span,
        handle: u32,
        region: Prepared,
        attributes: RegionAttributes,
    ) {
        if let Some(why) = region.not_locked {
            if control.usage.unlocked == 0 {
                let why = ResourceError::from(why);
                log::warn!("registered memory is used without being locked: {why}");
            }
            control.usage.unlocked += 1;
        }
        let index = (handle & 0xFFFF) as usize;
        let at = control.holdings.add(instance, index as u32);
        control.tags.add(attributes.tag);
        let entry = &mut control.entries[index];
        *entry = Registration {
            generation: (handle >> 16) as u16,
            live: true,
            listed: entry.listed,
            locked: region.locked,
            instance,
            at,
            tag: attributes.tag,
            owner: region.owner,
            address: span.address,
            base: span.base,
            end: span.end,
            place: region.place,
        };
        if let Some(place) = &entry.place {
            if matches!(**place, Place::BounceBuffer(_)) {
                self.bounce_buffers.fetch_add(1, Ordering::Relaxed);
            }
            self.set_place(index, Arc::as_ptr(place).cast_mut());
        }
        let grant = grant(attributes, region.owner, region.writable);
        self.publish(handle, grant, (span.base, span.end));
    }

    /// Published by the Release store of the entry's key, as the entry is.
    fn set_place(&self, index: usize, place: *mut Place) {
        let places = self.places[index / CHUNK].get_or_init(|| {
            Box::new(core::array::from_fn(|_| {
                AtomicPtr::new(core::ptr::null_mut())
            }))
        });
        places[index % CHUNK].store(place, Ordering::Relaxed);
    }

    fn publish(&self, handle: u32, grant: u64, (base, end): (u64, u64)) {
        let index = (handle & 0xFFFF) as usize;
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| Box::new(core::array::from_fn(|_| Entry::default())));
        let entry = &chunk[index % CHUNK];
        entry.grant.store(grant, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.end.store(end, Ordering::Relaxed);
        // Release: partner of the Acquire load in `view`.
        entry.key.store(handle, Ordering::Release);
    }

    /// Ends a registration of this owner, given the address it was registered with. The caller
    /// holds the NIC's turn, and drops what it gets when it does not any more.
    pub(crate) fn deregister(&self, owner: Owner, address: u64, handle: u32) -> Option<Removed> {
        let mut control = self.lock_control();
        if !control.registered(owner, address, handle) {
            return None;
        }
        let removed = self.remove(&mut control, (handle & 0xFFFF) as usize);
        self.have_removed();
        Some(removed)
    }

    /// Takes a region out of the table; [`Self::have_removed`] follows.
    fn remove(&self, control: &mut Control, index: usize) -> Removed {
        if let Some(chunk) = self.chunks[index / CHUNK].get() {
            chunk[index % CHUNK].key.store(0, Ordering::Relaxed);
            // Release fence: partner of the Acquire fence in `view`.
            fence(Ordering::Release);
        }
        let gone = &control.entries[index];
        control.tags.remove(gone.tag);
        let at = gone.at;
        if let Some(moved) = control.holdings.remove(gone.instance, at) {
            control.entries[moved as usize].at = at;
        }
        let gone = &mut control.entries[index];
        gone.live = false;
        if !gone.listed {
            gone.listed = true;
            control.free.push_back(index as u32);
        }
        control.usage.regions -= 1;
        control.usage.bytes -= gone.end - gone.base;
        if gone.locked {
            locked::unlock(gone.base, gone.end);
        }
        let place = gone.place.take();
        if let Some(place) = &place {
            if matches!(**place, Place::BounceBuffer(_)) {
                self.bounce_buffers.fetch_sub(1, Ordering::Relaxed);
            }
            self.set_place(index, core::ptr::null_mut());
        }
        Removed(place)
    }

    /// Regions have gone: those who check posts and those who wait for a place learn of it.
    fn have_removed(&self) {
        self.begin_epoch();
        self.gone.notify_all();
    }

    /// Replaces the attributes of a region of this owner, given the address it was registered
    /// with; false if there is none. The caller holds the NIC's turn: what the poll loop places
    /// or gathers afterwards is checked against the new ones. Whether the pages can be written
    /// stays.
    pub(crate) fn set(
        &self,
        owner: Owner,
        address: u64,
        handle: u32,
        attributes: RegionAttributes,
    ) -> bool {
        let mut control = self.lock_control();
        if !control.registered(owner, address, handle) {
            return false;
        }
        let index = (handle & 0xFFFF) as usize;
        let Some(entry) = self
            .chunks
            .get(index / CHUNK)
            .and_then(OnceLock::get)
            .and_then(|chunk| chunk.get(index % CHUNK))
        else {
            return false;
        };
        // Relaxed: one word, changed under the lock only; posts that race see either, and the
        // epoch below has theirs looked up again.
        let writable = entry.grant.load(Ordering::Relaxed) & u64::from(WRITABLE) != 0;
        entry
            .grant
            .store(grant(attributes, owner, writable), Ordering::Relaxed);
        self.begin_epoch();
        let before = core::mem::replace(&mut control.entries[index].tag, attributes.tag);
        control.tags.remove(before);
        control.tags.add(attributes.tag);
        true
    }

    /// Ends registrations of an instance, no more than so many; none, if none are left. The
    /// caller holds the NIC's turn, and drops what it gets when it does not any more.
    pub(crate) fn deregister_some(&self, instance: u64, limit: usize) -> Vec<Removed> {
        let mut control = self.lock_control();
        let mut removed = Vec::new();
        while removed.len() < limit
            && let Some(place) = control.holdings.any_of(instance)
        {
            removed.push(self.remove(&mut control, place as usize));
        }
        if !removed.is_empty() {
            self.have_removed();
        }
        removed
    }

    /// The attributes of a region of this owner, given the address it was registered with.
    pub(crate) fn query(
        &self,
        owner: Owner,
        address: u64,
        handle: u32,
    ) -> Option<RegionAttributes> {
        let control = self.lock_control();
        if !control.registered(owner, address, handle) {
            return None;
        }
        let grant = self.view(handle)?.grant;
        Some(RegionAttributes {
            tag: (grant >> 32) as u32,
            rdma_write: grant & u64::from(RDMA_WRITE) != 0,
            rdma_read: grant & u64::from(RDMA_READ) != 0,
        })
    }

    /// A VI has this tag from now on. The caller holds the NIC's turn.
    pub(crate) fn use_tag(&self, tag: u32) {
        self.lock_control().tags.add(tag);
    }

    /// A VI has this tag no more. The caller holds the NIC's turn.
    pub(crate) fn release_tag(&self, tag: u32) {
        self.lock_control().tags.remove(tag);
    }

    /// Ends a tag by `end`, unless a region is registered with it or a VI has it: then false. A
    /// registration that is under way finds that it ended.
    pub(crate) fn end_tag(&self, tag: u32, end: impl FnOnce()) -> bool {
        let control = self.lock_control();
        let used = control.tags.of(tag) != 0;
        if !used {
            end();
        }
        !used
    }

    /// Does this region have a bounce buffer?
    pub(crate) fn has_bounce_buffer(&self, handle: u32) -> bool {
        let control = self.lock_control();
        let entry = control.entries.get((handle & 0xFFFF) as usize);
        control.has(handle)
            && entry
                .is_some_and(|entry| matches!(entry.place.as_deref(), Some(Place::BounceBuffer(_))))
    }

    pub(crate) fn usage(&self) -> RegionUsage {
        self.lock_control().usage
    }
}

impl Control {
    /// Does the handle name a region of this owner that was registered with this address?
    fn registered(&self, owner: Owner, address: u64, handle: u32) -> bool {
        self.entries
            .get((handle & 0xFFFF) as usize)
            .is_some_and(|entry| {
                entry.live
                    && u32::from(entry.generation) == handle >> 16
                    && entry.owner == owner
                    && entry.address == address
            })
    }

    /// Is this the handle of a region?
    fn has(&self, handle: u32) -> bool {
        let entry = self.entries.get((handle & 0xFFFF) as usize);
        entry.is_some_and(|entry| entry.live && u32::from(entry.generation) == handle >> 16)
    }

    /// Is there a region in the place of this handle?
    fn is_taken(&self, handle: u32) -> bool {
        let entry = self.entries.get((handle & 0xFFFF) as usize);
        entry.is_some_and(|entry| entry.live)
    }

    /// A new handle, whose place is free.
    fn take_handle(&mut self, random: u16) -> u32 {
        let index = self.take_index();
        let before = self.entries[index as usize].generation;
        (u32::from(next_generation(random, before)) << 16) | index
    }

    fn take_index(&mut self) -> u32 {
        while let Some(index) = self.free.pop_front() {
            let entry = &mut self.entries[index as usize];
            entry.listed = false;
            // One that was adopted stands here until its turn comes.
            if !entry.live {
                return index;
            }
        }
        self.entries.push(Registration::default());
        self.entries.len() as u32 - 1
    }

    /// Makes room up to the place of a handle. The places before it are free.
    fn take_place_of(&mut self, handle: u32) {
        let index = handle & 0xFFFF;
        for before in self.entries.len() as u32..=index {
            self.entries.push(Registration {
                listed: before < index,
                ..Registration::default()
            });
            if before < index {
                self.free.push_back(before);
            }
        }
    }

    /// What is said of openings and tags, and what the entries say, for these openings and tags.
    #[cfg(test)]
    pub(super) fn assert_holdings(&self, instances: &[u64], tags: &[u32]) {
        for instance in instances {
            let of_it =
                |(_, entry): &(usize, &Registration)| entry.live && entry.instance == *instance;
            let entries = self.entries.iter().enumerate().filter(of_it);
            let found: Vec<_> = entries.map(|(index, _)| index as u32).collect();
            let mut said = self.holdings.of(*instance);
            for (at, place) in said.iter().enumerate() {
                assert_eq!(self.entries[*place as usize].at as usize, at);
            }
            said.sort_unstable();
            assert_eq!(said, found, "regions of {instance}");
        }
        for tag in tags {
            let has_it = |entry: &&Registration| entry.live && entry.tag == *tag;
            let found = self.entries.iter().filter(has_it).count();
            assert_eq!(self.tags.of(*tag) as usize, found, "uses of {tag}");
        }
    }

    #[cfg(test)]
    pub(super) fn regions_of(&self, instance: u64) -> usize {
        self.holdings.of(instance).len()
    }

    #[cfg(test)]
    pub(super) fn places_used(&self) -> (usize, usize) {
        (self.entries.len(), self.free.len())
    }
}
