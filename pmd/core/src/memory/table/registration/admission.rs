//! Checks limits and reserves memory for a new region.

use std::collections::TryReserveError;

use vi_types::{Limit, LimitOf, LimitReached, ResourceError};

use super::{Control, Prepared, Span};
use crate::memory::backing::Backing;
use crate::memory::page_locks;
use crate::memory::table::{RegionAttributes, RegionError, RegionLimits};

/// Memory of a region, as it counts towards the registered bytes of the NIC.
#[derive(Clone, Copy)]
pub(super) enum RegisteredMemory {
    /// Memory of which each region counts.
    Pages { bytes: u64 },
    /// A mapped file, which counts once as a whole, however many regions are in it.
    File { mapping: u64, bytes: u64 },
}

impl RegisteredMemory {
    pub(super) fn of(span: Span, backing: Option<&Backing>) -> Self {
        match backing {
            Some(Backing::Mapped(memory)) => {
                let (mapping, bytes) = memory.mapping();
                Self::File { mapping, bytes }
            }
            // The range of a bounce buffer counts in the program; the datapath process maps the buffer.
            Some(Backing::Foreign(_) | Backing::BounceBuffer(_) | Backing::Private) | None => {
                Self::Pages {
                    bytes: span.bytes(),
                }
            }
        }
    }
}

fn no_memory(_: TryReserveError) -> RegionError {
    RegionError::Resource(ResourceError::OutOfMemory)
}

impl Control {
    /// Counts a region that is about to be registered, within the limits.
    pub(super) fn reserve(
        &mut self,
        memory: RegisteredMemory,
        limits: &RegionLimits,
    ) -> Result<(), RegionError> {
        if self.usage.regions >= u64::from(limits.regions) {
            let (limit, value) = (Limit::MaxRegions, limits.regions);
            let reached = LimitReached::all_in_use(limit, value, LimitOf::Nic);
            return Err(RegionError::Resource(reached));
        }
        let bytes = match memory {
            RegisteredMemory::Pages { bytes } => bytes,
            RegisteredMemory::File { mapping, .. }
                if self.regions_in_files.contains_key(&mapping) =>
            {
                0
            }
            RegisteredMemory::File { bytes, .. } => bytes,
        };
        if self.usage.bytes.saturating_add(bytes) > limits.bytes {
            return Err(RegionError::Resource(ResourceError::Limit(LimitReached {
                limit: Limit::MaxRegisteredBytes,
                value: limits.bytes,
                in_use: self.usage.bytes,
                wanted: bytes,
                of: LimitOf::Nic,
            })));
        }
        if let RegisteredMemory::File { mapping, .. } = memory {
            self.regions_in_files.try_reserve(1).map_err(no_memory)?;
            *self.regions_in_files.entry(mapping).or_default() += 1;
        }
        self.usage.regions += 1;
        self.usage.bytes += bytes;
        Ok(())
    }

    /// Uncounts a region that [`Self::reserve`] counted.
    pub(super) fn release(&mut self, memory: RegisteredMemory) {
        self.usage.regions -= 1;
        match memory {
            RegisteredMemory::Pages { bytes } => self.usage.bytes -= bytes,
            RegisteredMemory::File { mapping, bytes } => {
                if let Some(regions) = self.regions_in_files.get_mut(&mapping) {
                    *regions -= 1;
                    if *regions == 0 {
                        self.regions_in_files.remove(&mapping);
                        self.usage.bytes -= bytes;
                    }
                }
            }
        }
    }

    /// Reserves memory for a region of a NIC handle and this many new table entries.
    pub(super) fn try_reserve(
        &mut self,
        nic_handle: u64,
        entries: usize,
    ) -> Result<(), RegionError> {
        let mut reserve = || {
            self.entries.try_reserve(entries)?;
            self.free.try_reserve(entries)?;
            self.tags.try_reserve()?;
            self.by_nic_handle.try_reserve(nic_handle)
        };
        reserve().map_err(no_memory)
    }

    /// Calls `admit` and reserves memory for the region and this many new table entries. On an error it undoes
    /// everything since [`Control::reserve`].
    pub(super) fn admit<E: From<RegionError>>(
        &mut self,
        span: Span,
        memory: RegisteredMemory,
        prepared: Result<Prepared, RegionError>,
        (nic_handle, entries): (u64, usize),
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<(Prepared, RegionAttributes), E> {
        let admit = || {
            self.try_reserve(nic_handle, entries)?;
            admit()
        };
        let admitted = prepared
            .map_err(E::from)
            .and_then(|prepared| match admit() {
                Ok(attributes) => Ok((prepared, attributes)),
                Err(refused) => {
                    if prepared.locked {
                        page_locks::unlock(span.base, span.end);
                    }
                    Err(refused)
                }
            });
        if admitted.is_err() {
            self.release(memory);
        }
        admitted
    }
}
