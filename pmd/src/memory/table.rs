//! Memory handles to regions.
//!
//! Lookups take no lock. An entry is valid while its key equals the handle: it
//! is written while the key is 0 and published with a Release store; a reader
//! loads the key (Acquire), the fields, and the key again. Handles carry a
//! generation, so that a stale one does not name the region that took its place.
//! Whoever removes an entry holds the NIC's turn, so the poll loop never sees
//! one go in the middle of a turn.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::memory::locked;
use crate::memory::pages::{self, LockPolicy};
use crate::memory::{Access, TagCheck};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

const CHUNK: usize = 512;
const RDMA_WRITE: u32 = 1;
const RDMA_READ: u32 = 2;
const WRITABLE: u32 = 4;

/// Consumer's choices for a region (VIPL 4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionAttributes {
    /// Number of the protection tag; 0 for none.
    pub tag: u32,
    /// Peers may write.
    pub rdma_write: bool,
    /// Peers may read.
    pub rdma_read: bool,
}

/// Why a registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionError {
    /// Length zero, or the range is not mapped.
    Invalid,
    /// A limit was reached, or pages could not be locked.
    Resource,
}

/// What is registered at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionUsage {
    /// Regions.
    pub regions: u64,
    /// Bytes, page-granular.
    pub bytes: u64,
    /// Registrations whose pages could not be locked, since the NIC was opened.
    pub unlocked: u64,
}

#[derive(Default)]
struct Entry {
    /// The handle while the entry is valid, else 0.
    key: AtomicU32,
    /// Tag and rights in one word, so that a change of both is seen whole.
    grant: AtomicU64,
    base: AtomicU64,
    end: AtomicU64,
}

/// What only registration and deregistration need.
#[derive(Clone, Copy, Default)]
struct Owner {
    generation: u16,
    live: bool,
    locked: bool,
    instance: u64,
    address: u64,
    base: u64,
    end: u64,
}

struct Control {
    owners: Vec<Owner>,
    /// Places that were used, the longest unused first: a stale handle stays stale longest.
    free: VecDeque<u32>,
    usage: RegionUsage,
}

/// Limits of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionLimits {
    pub(crate) regions: u32,
    pub(crate) bytes: u64,
    /// Of one region.
    pub(crate) region_bytes: u64,
    pub(crate) lock: LockPolicy,
}

/// The regions of one NIC in this process.
pub(crate) struct RegionTable {
    /// Changes when a region or its attributes go, or those of a VI: what was valid before
    /// must be looked up again.
    epoch: AtomicU32,
    chunks: Box<[OnceLock<Box<[Entry; CHUNK]>>]>,
    control: Mutex<Control>,
    limits: RegionLimits,
}

/// A valid region as the data path sees it.
#[derive(Clone, Copy)]
struct View {
    tag: u32,
    rights: u32,
    base: u64,
    end: u64,
}

/// Tag and rights as they stand in an entry: `tag 32 | rights 32`.
fn grant(attributes: RegionAttributes, writable: bool) -> u64 {
    let mut rights = 0;
    for (on, bit) in [
        (attributes.rdma_write, RDMA_WRITE),
        (attributes.rdma_read, RDMA_READ),
        (writable, WRITABLE),
    ] {
        if on {
            rights |= bit;
        }
    }
    u64::from(attributes.tag) << 32 | u64::from(rights)
}

impl RegionTable {
    pub(crate) fn new(limits: RegionLimits) -> Self {
        let regions = limits.regions.min(0xFFFF) as usize;
        Self {
            epoch: AtomicU32::new(1),
            chunks: (0..regions.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            control: Mutex::new(Control {
                owners: Vec::new(),
                free: VecDeque::new(),
                usage: RegionUsage::default(),
            }),
            limits: RegionLimits {
                regions: regions as u32,
                ..limits
            },
        }
    }

    /// The epoch that a check which starts now is good for.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        // Acquire: partner of the AcqRel addition in `begin_epoch`.
        self.epoch.load(Ordering::Acquire)
    }

    /// Has everything that was found valid looked up again before its next use. The caller
    /// has changed what checks depend on, and holds the NIC's turn.
    pub(crate) fn begin_epoch(&self) {
        // AcqRel: whoever sees the new epoch sees what was changed before.
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    fn view(&self, handle: u32) -> Option<View> {
        let index = (handle & 0xFFFF) as usize;
        let entry = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        // Acquire: partner of the Release store in `publish`.
        if handle == 0 || entry.key.load(Ordering::Acquire) != handle {
            return None;
        }
        let grant = entry.grant.load(Ordering::Relaxed);
        let view = View {
            tag: (grant >> 32) as u32,
            rights: grant as u32,
            base: entry.base.load(Ordering::Relaxed),
            end: entry.end.load(Ordering::Relaxed),
        };
        // Acquire fence: partner of the Release fence in `remove`; with the second
        // load it shows that no other region was written here meanwhile.
        fence(Ordering::Acquire);
        (entry.key.load(Ordering::Relaxed) == handle).then_some(view)
    }

    /// May the range be used so? Sums are checked: nothing wraps.
    #[inline]
    pub(crate) fn check(
        &self,
        handle: u32,
        tag: TagCheck,
        address: u64,
        length_bytes: u64,
        access: Access,
    ) -> bool {
        let Some(view) = self.view(handle) else {
            return false;
        };
        let Some(end) = address.checked_add(length_bytes) else {
            return false;
        };
        let tag_fits = match tag {
            TagCheck::Tag(tag) => tag == view.tag,
            TagCheck::Lenient => true,
        };
        let needs = match access {
            Access::Read => 0,
            Access::Write => WRITABLE,
            Access::RemoteWrite => WRITABLE | RDMA_WRITE,
            Access::RemoteRead => RDMA_READ,
        };
        tag_fits && view.base <= address && end <= view.end && view.rights & needs == needs
    }

    fn lock_control(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a range for an instance of the NIC; returns its handle, never 0. `admit` gives
    /// its attributes or refuses it, in one step with the registration as [`Self::end_tag`] and
    /// [`Self::deregister_all`] see it.
    pub(crate) fn register<E: From<RegionError>>(
        &self,
        instance: u64,
        address: u64,
        length_bytes: u64,
        seed: u16,
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<u32, E> {
        if length_bytes == 0 {
            return Err(RegionError::Invalid.into());
        }
        let (base, end) = pages::page_range(address, length_bytes).ok_or(RegionError::Invalid)?;
        if length_bytes > self.limits.region_bytes {
            return Err(RegionError::Resource.into());
        }
        self.lock_control().reserve(end - base, &self.limits)?;
        // Faulting in and locking may take long: not under a lock that others want who
        // hold the NIC's turn.
        let prepared = self.prepare(base, end);
        let mut control = self.lock_control();
        let admitted = prepared
            .map_err(E::from)
            .and_then(|(writable, locked)| match admit() {
                Ok(attributes) => Ok((writable, locked, attributes)),
                Err(refused) => {
                    if locked {
                        locked::unlock(base, end);
                    }
                    Err(refused)
                }
            });
        let (writable, locked, attributes) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                control.give_up(end - base);
                return Err(error);
            }
        };
        if !locked && self.limits.lock != LockPolicy::Never {
            if control.usage.unlocked == 0 {
                log::warn!(
                    "registered memory could not be locked (RLIMIT_MEMLOCK); it is used unlocked"
                );
            }
            control.usage.unlocked += 1;
        }
        let index = control.take_index(seed);
        let owner = &mut control.owners[index as usize];
        owner.generation = owner.generation.checked_add(1).unwrap_or(1);
        *owner = Owner {
            generation: owner.generation,
            live: true,
            locked,
            instance,
            address,
            base,
            end,
        };
        let handle = (u32::from(owner.generation) << 16) | index;
        self.publish(index, handle, attributes, writable, (base, end));
        Ok(handle)
    }

    /// Faults the pages in and locks them: are they writable, are they locked?
    fn prepare(&self, base: u64, end: u64) -> Result<(bool, bool), RegionError> {
        let writable = pages::writable(base, end).ok_or(RegionError::Invalid)?;
        let locked = self.limits.lock != LockPolicy::Never && locked::lock(base, end);
        if !locked && self.limits.lock == LockPolicy::Required {
            return Err(RegionError::Resource);
        }
        Ok((writable, locked))
    }

    fn publish(
        &self,
        index: u32,
        handle: u32,
        attributes: RegionAttributes,
        writable: bool,
        (base, end): (u64, u64),
    ) {
        let chunk = self.chunks[index as usize / CHUNK]
            .get_or_init(|| Box::new(core::array::from_fn(|_| Entry::default())));
        let entry = &chunk[index as usize % CHUNK];
        let grant = grant(attributes, writable);
        entry.grant.store(grant, Ordering::Relaxed);
        entry.base.store(base, Ordering::Relaxed);
        entry.end.store(end, Ordering::Relaxed);
        // Release: partner of the Acquire load in `view`.
        entry.key.store(handle, Ordering::Release);
    }

    /// Ends a registration. The caller holds the NIC's turn.
    pub(crate) fn deregister(&self, address: u64, handle: u32) -> bool {
        let mut control = self.lock_control();
        if !control.registered(address, handle) {
            return false;
        }
        self.remove(&mut control, handle);
        true
    }

    fn remove(&self, control: &mut Control, handle: u32) {
        let index = (handle & 0xFFFF) as usize;
        if let Some(chunk) = self.chunks[index / CHUNK].get() {
            chunk[index % CHUNK].key.store(0, Ordering::Relaxed);
            // Release fence: partner of the Acquire fence in `view`.
            fence(Ordering::Release);
        }
        self.begin_epoch();
        let gone = control.owners[index];
        control.owners[index].live = false;
        control.free.push_back(index as u32);
        control.usage.regions -= 1;
        control.usage.bytes -= gone.end - gone.base;
        if gone.locked {
            locked::unlock(gone.base, gone.end);
        }
    }

    /// Replaces the attributes of a region, given the address it was registered with; false if
    /// there is none. The caller holds the NIC's turn: what the poll loop places or gathers
    /// afterwards is checked against the new ones. Whether the pages can be written stays.
    pub(crate) fn set(&self, address: u64, handle: u32, attributes: RegionAttributes) -> bool {
        let mut control = self.lock_control();
        if !control.registered(address, handle) {
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
        let writable = entry.grant.load(Ordering::Relaxed) as u32 & WRITABLE != 0;
        entry
            .grant
            .store(grant(attributes, writable), Ordering::Relaxed);
        self.begin_epoch();
        true
    }

    /// Ends every registration of an instance. The caller holds the NIC's turn.
    pub(crate) fn deregister_all(&self, instance: u64) {
        let mut control = self.lock_control();
        for index in 0..control.owners.len() {
            let owner = control.owners[index];
            if owner.live && owner.instance == instance {
                let handle = (u32::from(owner.generation) << 16) | index as u32;
                self.remove(&mut control, handle);
            }
        }
    }

    /// The attributes of a region, given the address it was registered with.
    pub(crate) fn query(&self, address: u64, handle: u32) -> Option<RegionAttributes> {
        let mut control = self.lock_control();
        if !control.registered(address, handle) {
            return None;
        }
        let view = self.view(handle)?;
        Some(RegionAttributes {
            tag: view.tag,
            rdma_write: view.rights & RDMA_WRITE != 0,
            rdma_read: view.rights & RDMA_READ != 0,
        })
    }

    /// Ends a tag by `end`, unless a region is registered with it: then false. A registration
    /// that is under way finds that it ended.
    pub(crate) fn end_tag(&self, tag: u32, end: impl FnOnce()) -> bool {
        let control = self.lock_control();
        let used = self.uses_tag(&control, tag);
        if !used {
            end();
        }
        !used
    }

    fn uses_tag(&self, control: &Control, tag: u32) -> bool {
        control.owners.iter().enumerate().any(|(index, owner)| {
            let handle = (u32::from(owner.generation) << 16) | index as u32;
            owner.live && self.view(handle).is_some_and(|view| view.tag == tag)
        })
    }

    pub(crate) fn usage(&self) -> RegionUsage {
        self.lock_control().usage
    }
}

impl Control {
    /// Counts a region that is about to be registered, if the limits allow it.
    fn reserve(&mut self, bytes: u64, limits: &RegionLimits) -> Result<(), RegionError> {
        if self.usage.regions >= u64::from(limits.regions)
            || self.usage.bytes.saturating_add(bytes) > limits.bytes
        {
            return Err(RegionError::Resource);
        }
        self.usage.regions += 1;
        self.usage.bytes += bytes;
        Ok(())
    }

    /// Takes back what [`Control::reserve`] counted.
    fn give_up(&mut self, bytes: u64) {
        self.usage.regions -= 1;
        self.usage.bytes -= bytes;
    }

    fn owner(&mut self, handle: u32) -> Option<Owner> {
        let owner = *self.owners.get((handle & 0xFFFF) as usize)?;
        (owner.live && u32::from(owner.generation) == handle >> 16).then_some(owner)
    }

    /// Does the handle name a region that was registered with this address?
    fn registered(&mut self, address: u64, handle: u32) -> bool {
        self.owner(handle)
            .is_some_and(|owner| owner.address == address)
    }

    fn take_index(&mut self, seed: u16) -> u32 {
        self.free.pop_front().unwrap_or_else(|| {
            self.owners.push(Owner {
                generation: seed,
                ..Owner::default()
            });
            self.owners.len() as u32 - 1
        })
    }
}

#[cfg(test)]
mod tests;
