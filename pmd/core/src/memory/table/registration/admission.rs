//! Checks limits and reserves memory for a new region.

use std::collections::TryReserveError;

use vi_types::{Limit, LimitOf, LimitReached, ResourceError};

use super::{Control, Prepared, Span};
use crate::memory::page_locks;
use crate::memory::table::{RegionAttributes, RegionError, RegionLimits};

impl Control {
    /// Counts a region that is about to be registered, within the limits.
    pub(super) fn reserve(&mut self, bytes: u64, limits: &RegionLimits) -> Result<(), RegionError> {
        if self.usage.regions >= u64::from(limits.regions) {
            let (limit, value) = (Limit::MaxRegions, limits.regions);
            let reached = LimitReached::all_in_use(limit, value, LimitOf::Nic);
            return Err(RegionError::Resource(reached));
        }
        if self.usage.bytes.saturating_add(bytes) > limits.bytes {
            return Err(RegionError::Resource(ResourceError::Limit(LimitReached {
                limit: Limit::MaxRegisteredBytes,
                value: limits.bytes,
                in_use: self.usage.bytes,
                wanted: bytes,
                of: LimitOf::Nic,
            })));
        }
        self.usage.regions += 1;
        self.usage.bytes += bytes;
        Ok(())
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
        let no_memory = |_: TryReserveError| RegionError::Resource(ResourceError::OutOfMemory);
        reserve().map_err(no_memory)
    }

    /// Calls `admit` and reserves memory for the region and this many new table entries. On an error it undoes
    /// everything since [`Control::reserve`].
    pub(super) fn admit<E: From<RegionError>>(
        &mut self,
        span: Span,
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
            self.usage.regions -= 1;
            self.usage.bytes -= span.bytes();
        }
        admitted
    }
}
