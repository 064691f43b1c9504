//! Registration and deregistration of regions: of this program, of applications that it serves, and
//! regions under handles that a datapath process assigned.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use vi_types::{Limit, LimitOf, LimitReached, LockPolicy, ResourceError};

use super::ownership::{NicHandleRegions, TagUseCounts};
use super::removed::Removed;
use super::{
    CHUNK, RDMA_READ, RDMA_WRITE, RegionAttributes, RegionEntry, RegionError, RegionTable,
    RegionUsage, WRITABLE, grant,
};
use crate::memory::backing::{Backing, ClientMemory, Owner};
use crate::memory::direct_access::SharablePages;
use crate::memory::page_locks::{self, LockError};
use crate::memory::pages;
use crate::sync::{AtomicPtr, Ordering};

mod admission;

use admission::RegisteredMemory;

/// Timeout for the local deregistration of a region that another thread has deregistered in the datapath process;
/// generous for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Data of a region that only registration and deregistration need.
#[derive(Default)]
struct Registration {
    generation: u16,
    live: bool,
    /// The index is in the free list.
    in_free_list: bool,
    locked: bool,
    nic_handle: u64,
    /// Position in the list of its NIC handle.
    position: u32,
    tag: u32,
    owner: Owner,
    address: u64,
    base: u64,
    end: u64,
    /// Backing, if it is not memory of this program; the table of backings points to it.
    backing: Option<Arc<Backing>>,
    /// Its pages, if other stations of the segment can map them.
    sharable: Option<SharablePages>,
}

/// Returns the generation of a new region: the random bits, but never 0, nor the previous generation at
/// the same index (ADR 0041). The two substitutes are as hard to predict.
fn next_generation(random: u16, previous: u16) -> u16 {
    let candidates = [random, !random, !random ^ 1];
    let fits = |generation: &u16| *generation != 0 && *generation != previous;
    candidates.into_iter().find(fits).unwrap_or(1)
}

#[derive(Default)]
pub(super) struct Control {
    entries: Vec<Registration>,
    /// Free indices, the least recently used first, so that stale handles stay invalid as long as possible.
    free: VecDeque<u32>,
    usage: RegionUsage,
    /// The number of regions in each mapped file, by the address of the mapping.
    regions_in_files: HashMap<u64, u32>,
    by_nic_handle: NicHandleRegions,
    tags: TagUseCounts,
}

/// A range to register, and its pages.
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

/// A region that is ready for registration.
struct Prepared {
    owner: Owner,
    writable: bool,
    locked: bool,
    /// The error of locking, if it failed.
    not_locked: Option<LockError>,
    backing: Option<Arc<Backing>>,
    sharable: Option<SharablePages>,
}

impl RegionTable {
    fn lock_control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a range for a NIC handle; returns the memory handle, never 0. `random`: 16 bits
    /// that peers cannot predict, new for each registration. `admit` returns the attributes or
    /// refuses the registration, atomically with respect to [`Self::end_tag`] and
    /// [`Self::deregister_some`].
    pub fn register<E: From<RegionError>>(
        &self,
        nic_handle: u64,
        address: u64,
        length_bytes: u64,
        random: u16,
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<u32, E> {
        let span = self.span(address, length_bytes)?;
        let memory = RegisteredMemory::of(span, None);
        self.lock_control().reserve(memory, &self.limits)?;
        // Faulting in and locking may take long: not under a lock that is taken
        // under the NIC's backend lock.
        let prepared = self.prepare(span);
        let mut control = self.lock_control();
        let (prepared, attributes) =
            control.admit(span, memory, prepared, (nic_handle, 1), admit)?;
        let handle = control.take_handle(random);
        self.insert(&mut control, nic_handle, span, handle, prepared, attributes);
        Ok(handle)
    }

    /// Registers a range under a handle that the datapath process assigned, with a backing if the process does not map
    /// it; otherwise as [`Self::register`]. Waits while the index is still used by a region that another
    /// thread has deregistered in the process and not yet here. So the caller holds no lock that this
    /// thread needs, in particular not the NIC's backend lock.
    ///
    /// # Errors
    /// [`RegionError::Invalid`] also if the handle is in use or malformed,
    /// [`RegionError::Resource`] if its index is beyond this table's limit.
    pub fn adopt<E: From<RegionError>>(
        &self,
        nic_handle: u64,
        handle: u32,
        (address, length_bytes): (u64, u64),
        backing: Option<Arc<Backing>>,
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
        let memory = RegisteredMemory::of(span, None);
        self.lock_control().reserve(memory, &self.limits)?;
        let prepared = self.prepare(span).map(|prepared| Prepared {
            backing,
            ..prepared
        });
        let is_being_removed =
            |control: &mut Control| control.is_taken(handle) && !control.has(handle);
        let (mut control, _) = self
            .removed
            .wait_timeout_while(self.lock_control(), TIMEOUT, is_being_removed)
            .unwrap_or_else(PoisonError::into_inner);
        let taken = control.is_taken(handle);
        let needed = (handle & 0xFFFF) as usize + 1;
        let missing = needed.saturating_sub(control.entries.len());
        let (prepared, attributes) =
            control.admit(span, memory, prepared, (nic_handle, missing), || {
                if taken {
                    return Err(RegionError::Invalid.into());
                }
                admit()
            })?;
        control.extend_to(handle);
        self.insert(&mut control, nic_handle, span, handle, prepared, attributes);
        Ok(())
    }

    /// Registers a range of an application's memory; otherwise as [`Self::register`]. Does not fault in or lock
    /// the pages; counts the region if that failed before (`MappedMemory::lock_pages`).
    ///
    /// # Errors
    /// [`RegionError::Invalid`] also if the mapping is shorter than the pages of the range.
    pub fn register_for<E: From<RegionError>>(
        &self,
        nic_handle: u64,
        memory: ClientMemory,
        (address, length_bytes): (u64, u64),
        random: u16,
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<u32, E> {
        let span = self.span(address, length_bytes)?;
        let mut not_locked = None;
        if let Backing::Mapped(mapped) = &memory.backing {
            if mapped.len_bytes() < span.bytes() {
                return Err(RegionError::Invalid.into());
            }
            not_locked = mapped.lock_error().map(LockError::System);
        }
        let counted = RegisteredMemory::of(span, Some(&memory.backing));
        let mut control = self.lock_control();
        control.reserve(counted, &self.limits)?;
        let prepared = Prepared {
            owner: memory.owner,
            writable: memory.writable,
            locked: false,
            not_locked,
            backing: Some(Arc::new(memory.backing)),
            sharable: None,
        };
        let (prepared, attributes) =
            control.admit(span, counted, Ok(prepared), (nic_handle, 1), admit)?;
        let handle = control.take_handle(random);
        self.insert(&mut control, nic_handle, span, handle, prepared, attributes);
        Ok(handle)
    }

    /// Faults in the pages of a range that is about to be registered; returns whether they are writable.
    ///
    /// # Errors
    /// Those of [`Self::register`] that concern the range only.
    pub fn probe_pages(&self, address: u64, length_bytes: u64) -> Result<bool, RegionError> {
        let Span { base, end, .. } = self.span(address, length_bytes)?;
        pages::writable(base, end).ok_or(RegionError::Invalid)
    }

    fn span(&self, address: u64, length_bytes: u64) -> Result<Span, RegionError> {
        if length_bytes == 0 {
            return Err(RegionError::Invalid);
        }
        let (base, end) = pages::page_range(address, length_bytes).ok_or(RegionError::Invalid)?;
        let span = Span { address, base, end };
        // Before the pages are probed, so that an excessive length is reported as a limit.
        let limits = [
            (
                Limit::MaxRegionBytes,
                self.limits.region_bytes,
                length_bytes,
            ),
            (Limit::MaxRegisteredBytes, self.limits.bytes, span.bytes()),
        ];
        for (limit, value, requested) in limits {
            if requested > value {
                let exceeded = LimitReached::exceeded(limit, value, requested);
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
            not_locked = page_locks::lock(base, end).err();
        }
        if let Some(error) = not_locked
            && self.limits.lock == LockPolicy::Required
        {
            return Err(RegionError::Resource(error.into()));
        }
        Ok(Prepared {
            owner: Owner::PROGRAM,
            writable,
            locked: self.limits.lock != LockPolicy::Never && not_locked.is_none(),
            not_locked,
            backing: None,
            sharable: (self.exported()).and_then(|exported| exported.find_pages(base, end)),
        })
    }

    /// Inserts a region under a handle whose index is free.
    fn insert(
        &self,
        control: &mut Control,
        nic_handle: u64,
        span: Span,
        handle: u32,
        region: Prepared,
        attributes: RegionAttributes,
    ) {
        if let Some(error) = region.not_locked {
            if control.usage.unlocked == 0 {
                let error = ResourceError::from(error);
                log::warn!("registered memory is used without being locked: {error}");
            }
            control.usage.unlocked += 1;
        }
        let index = (handle & 0xFFFF) as usize;
        let position = control.by_nic_handle.add(nic_handle, index as u32);
        control.tags.add(attributes.tag);
        let entry = &mut control.entries[index];
        *entry = Registration {
            generation: (handle >> 16) as u16,
            live: true,
            in_free_list: entry.in_free_list,
            locked: region.locked,
            nic_handle,
            position,
            tag: attributes.tag,
            owner: region.owner,
            address: span.address,
            base: span.base,
            end: span.end,
            backing: region.backing,
            sharable: region.sharable,
        };
        if let Some(backing) = &entry.backing {
            if backing.is_unmapped() {
                self.unmapped.fetch_add(1, Ordering::Relaxed);
            }
            self.set_backing(index, Arc::as_ptr(backing).cast_mut());
        }
        let grant = grant(attributes, region.owner, region.writable);
        let sharable = entry.sharable.as_ref();
        self.publish(handle, grant, (span.base, span.end), sharable);
    }

    /// Stores the backing of a region; it is published by the Release store of the entry's key.
    fn set_backing(&self, index: usize, backing: *mut Backing) {
        let backings = self.backings[index / CHUNK].get_or_init(|| {
            Box::new(core::array::from_fn(|_| {
                AtomicPtr::new(core::ptr::null_mut())
            }))
        });
        backings[index % CHUNK].store(backing, Ordering::Relaxed);
    }

    fn publish(
        &self,
        handle: u32,
        grant: u64,
        range: (u64, u64),
        sharable: Option<&SharablePages>,
    ) {
        let index = (handle & 0xFFFF) as usize;
        let chunk = self.chunks[index / CHUNK]
            .get_or_init(|| Box::new(core::array::from_fn(|_| RegionEntry::default())));
        chunk[index % CHUNK].publish(handle, grant, range);
        if let Some((exported, pages)) = self.exported().zip(sharable) {
            exported.publish(handle, grant, range, pages);
        }
    }

    /// Deregisters a region of this owner, given the address it was registered with. The caller
    /// holds the NIC's backend lock, and finishes the result after releasing it.
    pub fn deregister(&self, owner: Owner, address: u64, handle: u32) -> Option<Removed> {
        let mut control = self.lock_control();
        if !control.registered(owner, address, handle) {
            return None;
        }
        let removed = self.remove(&mut control, (handle & 0xFFFF) as usize);
        self.notify_removed();
        Some(removed)
    }

    /// Removes a region from the table; the caller then calls [`Self::notify_removed`].
    fn remove(&self, control: &mut Control, index: usize) -> Removed {
        if let Some(chunk) = self.chunks[index / CHUNK].get() {
            chunk[index % CHUNK].clear();
        }
        let entry = &control.entries[index];
        let handle = u32::from(entry.generation) << 16 | index as u32;
        let exported = self.exported();
        let revoked = exported.and_then(|exported| exported.revoke(handle));
        control.tags.remove(entry.tag);
        let position = entry.position;
        if let Some(moved) = control.by_nic_handle.remove(entry.nic_handle, position) {
            control.entries[moved as usize].position = position;
        }
        let entry = &mut control.entries[index];
        entry.live = false;
        if !entry.in_free_list {
            entry.in_free_list = true;
            control.free.push_back(index as u32);
        }
        let span = Span {
            address: entry.address,
            base: entry.base,
            end: entry.end,
        };
        if entry.locked {
            page_locks::unlock(entry.base, entry.end);
        }
        let backing = entry.backing.take();
        entry.sharable = None;
        control.release(RegisteredMemory::of(span, backing.as_deref()));
        if let Some(backing) = &backing {
            if backing.is_unmapped() {
                self.unmapped.fetch_sub(1, Ordering::Relaxed);
            }
            self.set_backing(index, core::ptr::null_mut());
        }
        Removed { backing, revoked }
    }

    /// Invalidates checks of posts, and wakes threads that wait for an index, after regions were removed.
    fn notify_removed(&self) {
        self.begin_epoch();
        self.removed.notify_all();
    }

    /// Replaces the attributes of a region of this owner, given the address it was registered with; returns `None` if
    /// there is none, else the removed rights, which the caller finishes as those of [`Self::deregister`]. It holds the
    /// NIC's backend lock: later accesses of the poll loop are checked against the new attributes. Whether the pages are
    /// writable does not change.
    pub fn set(
        &self,
        owner: Owner,
        address: u64,
        handle: u32,
        attributes: RegionAttributes,
    ) -> Option<Removed> {
        let mut control = self.lock_control();
        if !control.registered(owner, address, handle) {
            return None;
        }
        let index = (handle & 0xFFFF) as usize;
        let entry = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        // Relaxed: changed under the lock only.
        let writable = entry.grant.load(Ordering::Relaxed) & u64::from(WRITABLE) != 0;
        let grant = grant(attributes, owner, writable);
        // The new epoch below invalidates the checks of posts that saw the previous value.
        entry.set_grant(grant);
        let region = &control.entries[index];
        let exported = self.exported().zip(region.sharable.as_ref());
        let revoked = exported.and_then(|(exported, pages)| {
            exported.set_grant(handle, grant, (region.base, region.end), pages)
        });
        self.begin_epoch();
        let previous = core::mem::replace(&mut control.entries[index].tag, attributes.tag);
        control.tags.remove(previous);
        control.tags.add(attributes.tag);
        Some(Removed {
            backing: None,
            revoked,
        })
    }

    /// Deregisters up to `limit` regions of a NIC handle; returns fewer if no more are left. The
    /// caller holds the NIC's backend lock, and finishes the results after releasing it.
    pub fn deregister_some(&self, nic_handle: u64, limit: usize) -> Vec<Removed> {
        let mut control = self.lock_control();
        let mut removed = Vec::new();
        while removed.len() < limit
            && let Some(index) = control.by_nic_handle.any_of(nic_handle)
        {
            removed.push(self.remove(&mut control, index as usize));
        }
        if !removed.is_empty() {
            self.notify_removed();
        }
        removed
    }

    /// Returns the attributes of a region of this owner, given the address it was registered with.
    pub fn query(&self, owner: Owner, address: u64, handle: u32) -> Option<RegionAttributes> {
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

    /// Counts a VI that uses this tag. The caller holds the NIC's backend lock.
    pub fn use_tag(&self, tag: u32) {
        self.lock_control().tags.add(tag);
    }

    /// Releases the tag of a VI. The caller holds the NIC's backend lock.
    pub fn release_tag(&self, tag: u32) {
        self.lock_control().tags.remove(tag);
    }

    /// Destroys a tag by calling `end`; returns false without the call while a region or VI uses the tag. A
    /// concurrent registration finds the tag destroyed.
    pub fn end_tag(&self, tag: u32, end: impl FnOnce()) -> bool {
        let control = self.lock_control();
        let used = control.tags.of(tag) != 0;
        if !used {
            end();
        }
        !used
    }

    /// Returns whether this region has a bounce buffer.
    pub fn has_bounce_buffer(&self, handle: u32) -> bool {
        let control = self.lock_control();
        let entry = control.entries.get((handle & 0xFFFF) as usize);
        control.has(handle)
            && entry.is_some_and(|entry| {
                matches!(entry.backing.as_deref(), Some(Backing::BounceBuffer(_)))
            })
    }

    /// Returns the current use.
    pub fn usage(&self) -> RegionUsage {
        self.lock_control().usage
    }
}

impl Control {
    /// Returns whether the handle names a region of this owner that was registered with this address.
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

    /// Returns whether the handle names a region.
    fn has(&self, handle: u32) -> bool {
        let entry = self.entries.get((handle & 0xFFFF) as usize);
        entry.is_some_and(|entry| entry.live && u32::from(entry.generation) == handle >> 16)
    }

    /// Returns whether the index of this handle is in use.
    fn is_taken(&self, handle: u32) -> bool {
        let entry = self.entries.get((handle & 0xFFFF) as usize);
        entry.is_some_and(|entry| entry.live)
    }

    /// Allocates a handle with a free index.
    fn take_handle(&mut self, random: u16) -> u32 {
        let index = self.take_index();
        let previous = self.entries[index as usize].generation;
        (u32::from(next_generation(random, previous)) << 16) | index
    }

    fn take_index(&mut self) -> u32 {
        while let Some(index) = self.free.pop_front() {
            let entry = &mut self.entries[index as usize];
            entry.in_free_list = false;
            // Adopted regions stay in the list until they are popped.
            if !entry.live {
                return index;
            }
        }
        self.entries.push(Registration::default());
        self.entries.len() as u32 - 1
    }

    /// Extends the table up to the index of a handle; the new indices before it are free.
    fn extend_to(&mut self, handle: u32) {
        let index = handle & 0xFFFF;
        for new in self.entries.len() as u32..=index {
            self.entries.push(Registration {
                in_free_list: new < index,
                ..Registration::default()
            });
            if new < index {
                self.free.push_back(new);
            }
        }
    }

    /// Asserts that the indices by NIC handle and tag are consistent with the entries.
    #[cfg(test)]
    pub(super) fn assert_consistent(&self, nic_handles: &[u64], tags: &[u32]) {
        for nic_handle in nic_handles {
            let of_it =
                |(_, entry): &(usize, &Registration)| entry.live && entry.nic_handle == *nic_handle;
            let entries = self.entries.iter().enumerate().filter(of_it);
            let found: Vec<_> = entries.map(|(index, _)| index as u32).collect();
            let mut indexed = self.by_nic_handle.of(*nic_handle);
            for (position, index) in indexed.iter().enumerate() {
                assert_eq!(self.entries[*index as usize].position as usize, position);
            }
            indexed.sort_unstable();
            assert_eq!(indexed, found, "regions of {nic_handle}");
        }
        for tag in tags {
            let has_it = |entry: &&Registration| entry.live && entry.tag == *tag;
            let found = self.entries.iter().filter(has_it).count();
            assert_eq!(self.tags.of(*tag) as usize, found, "uses of {tag}");
        }
    }

    #[cfg(test)]
    pub(super) fn regions_of(&self, nic_handle: u64) -> usize {
        self.by_nic_handle.of(nic_handle).len()
    }

    #[cfg(test)]
    pub(super) fn index_counts(&self) -> (usize, usize) {
        (self.entries.len(), self.free.len())
    }
}
