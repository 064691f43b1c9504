//! Whether there is room for one more region.

use std::collections::TryReserveError;

use super::{Control, Prepared, Span};
use crate::memory::locked;
use crate::memory::table::{RegionAttributes, RegionError, RegionLimits};
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};

impl Control {
    /// Counts a region that is about to be registered, if the limits allow it.
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

    /// Makes room for a region of an opening, in so many places that the table does not have yet.
    pub(super) fn try_reserve(&mut self, instance: u64, places: usize) -> Result<(), RegionError> {
        let mut reserve = || {
            self.entries.try_reserve(places)?;
            self.free.try_reserve(places)?;
            self.tags.try_reserve()?;
            self.holdings.try_reserve(instance)
        };
        let no_memory = |_: TryReserveError| RegionError::Resource(ResourceError::OutOfMemory);
        reserve().map_err(no_memory)
    }

    /// What was prepared and its attributes; or everything is taken back that was done for it
    /// since [`Control::reserve`]. There is room for it, in so many new places, then.
    pub(super) fn admit<E: From<RegionError>>(
        &mut self,
        span: Span,
        prepared: Result<Prepared, RegionError>,
        (instance, places): (u64, usize),
        admit: impl FnOnce() -> Result<RegionAttributes, E>,
    ) -> Result<(Prepared, RegionAttributes), E> {
        let admit = || {
            self.try_reserve(instance, places)?;
            admit()
        };
        let admitted = prepared
            .map_err(E::from)
            .and_then(|prepared| match admit() {
                Ok(attributes) => Ok((prepared, attributes)),
                Err(refused) => {
                    if prepared.locked {
                        locked::unlock(span.base, span.end);
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
