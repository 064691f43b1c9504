//! What is left to do when a region was removed from the table.

use std::sync::Arc;
use std::time::Instant;

use crate::memory::backing::Backing;
use crate::memory::direct_access::{AccessInProgress, Revoked, WAIT_LIMIT};

/// A removed region, or rights to a region that were removed. The caller releases its locks and the backend lock before it calls [`Self::finish`].
#[derive(Debug)]
#[must_use]
pub struct Removed {
    pub(super) backing: Option<Arc<Backing>>,
    pub(super) revoked: Option<Revoked>,
}

impl Removed {
    /// Unmaps the memory if it is a client's, which may take long, and waits until no other station accesses it
    /// directly any more.
    ///
    /// # Errors
    /// Another station has begun an access that does not end.
    pub fn finish(self) -> Result<(), AccessInProgress> {
        self.finish_until(Instant::now() + WAIT_LIMIT)
    }

    /// As [`Self::finish`], for several regions; waits until a common time.
    ///
    /// # Errors
    /// Of one of the regions.
    pub fn finish_all(removed: Vec<Self>) -> Result<(), AccessInProgress> {
        let deadline = Instant::now() + WAIT_LIMIT;
        let mut result = Ok(());
        for region in removed {
            result = result.and(region.finish_until(deadline));
        }
        result
    }

    fn finish_until(self, deadline: Instant) -> Result<(), AccessInProgress> {
        drop(self.backing);
        self.revoked
            .map_or(Ok(()), |revoked| revoked.wait_until(deadline))
    }
}
