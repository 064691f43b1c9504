//! Two ports of one process, connected by a ring in each direction: DPDK's `net_ring` over our rings.

use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::{Arc, Mutex, Weak};

use dpdk_sys::{
    RING_F_SC_DEQ, RING_F_SP_ENQ, rte_eth_from_rings, rte_ring, rte_ring_create, rte_ring_free,
};

use super::config::{DpdkError, FailureDetail};
use super::eal;
use super::log::{self, Mark};
use super::pool::Pool;
use crate::sync::mapped::{AtomicBool, AtomicU32, Ordering};

/// A ring, freed on drop, when no port uses it any more.
#[derive(Debug)]
struct Ring(NonNull<rte_ring>);

// SAFETY: an rte_ring supports one producer and one consumer thread.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(name: &str, frames: u32) -> Result<Self, FailureDetail> {
        let mark = log::mark();
        let name = CString::new(name).unwrap_or_default();
        // One slot of a ring stays empty.
        let slots = (frames + 1).next_power_of_two();
        // SAFETY: EAL runs, and the NUL-terminated name is copied.
        let ring =
            unsafe { rte_ring_create(name.as_ptr(), slots, 0, RING_F_SP_ENQ | RING_F_SC_DEQ) };
        NonNull::new(ring)
            .map(Self)
            .ok_or_else(|| eal::last_failure(mark))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: created by `rte_ring_create`; the ports that used it are closed, since they hold the `RingPair`.
        unsafe { rte_ring_free(self.0.as_ptr()) };
    }
}

/// The two rings and the pool that connect two ports.
#[derive(Debug)]
pub(super) struct RingPair {
    name: String,
    /// The ring to each endpoint. Frames left in a ring are freed with the pool.
    rings: [Ring; 2],
    open: [AtomicBool; 2],
    pool: Arc<Pool>,
}

/// One endpoint of a pair of rings, in use by one port.
#[derive(Debug)]
pub(super) struct RingEndpoint {
    pair: Arc<RingPair>,
    index: usize,
}

/// The pairs with an open endpoint.
static PAIRS: Mutex<Vec<Weak<RingPair>>> = Mutex::new(Vec::new());

fn pairs() -> std::sync::MutexGuard<'static, Vec<Weak<RingPair>>> {
    PAIRS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl RingEndpoint {
    /// Opens a free endpoint of the pair of this name. If there is no such pair, creates it with rings for `frames`
    /// frames and a pool for both endpoints.
    pub(super) fn open(
        name: &str,
        frames: u32,
        pool: impl FnOnce() -> Result<Pool, DpdkError>,
    ) -> Result<Self, DpdkError> {
        let mut pairs = pairs();
        pairs.retain(|pair| pair.strong_count() > 0);
        let found = pairs.iter().filter_map(Weak::upgrade);
        let pair = match found.into_iter().find(|pair| pair.name == name) {
            Some(pair) => pair,
            None => {
                static COUNT: AtomicU32 = AtomicU32::new(0);
                // Relaxed: only uniqueness matters.
                let number = COUNT.fetch_add(1, Ordering::Relaxed);
                let ring = |index| {
                    Ring::new(&format!("viaduct-{number}-{index}"), frames).map_err(|detail| {
                        DpdkError::Dpdk {
                            call: "creating a ring",
                            detail,
                        }
                    })
                };
                let pair = Arc::new(RingPair {
                    name: name.to_owned(),
                    rings: [ring(0)?, ring(1)?],
                    open: [AtomicBool::new(false), AtomicBool::new(false)],
                    pool: Arc::new(pool()?),
                });
                pairs.push(Arc::downgrade(&pair));
                pair
            }
        };
        // Acquire and Release: partners are each other, and the store in `drop`. The next owner of an endpoint sees the
        // ring as the previous one left it.
        let free = (0..2).find(|&index| !pair.open[index].swap(true, Ordering::AcqRel));
        match free {
            Some(index) => Ok(Self { pair, index }),
            None => Err(DpdkError::DeviceTaken {
                device: format!("ring:{name}"),
            }),
        }
    }

    /// Returns DPDK's name of the port at this endpoint.
    fn port_name(&self) -> String {
        format!("{}-{}", self.pair.name, self.index)
    }

    /// Creates the port at this endpoint; returns its number.
    pub(super) fn create_port(&self, mark: Mark) -> Result<u16, DpdkError> {
        let failed = |detail| DpdkError::Dpdk {
            call: "creating a port from two rings",
            detail,
        };
        let name = CString::new(self.port_name()).unwrap_or_default();
        let to_us = [self.pair.rings[self.index].0.as_ptr()];
        let to_peer = [self.pair.rings[1 - self.index].0.as_ptr()];
        // SAFETY: EAL runs, this thread holds its control lock, the name and the arrays are copied, and the rings
        // outlive the port, whose owner keeps this endpoint.
        let port =
            unsafe { rte_eth_from_rings(name.as_ptr(), to_us.as_ptr(), 1, to_peer.as_ptr(), 1, 0) };
        u16::try_from(port).map_err(|_| failed(eal::last_failure(mark)))
    }

    /// Returns the pool of both endpoints.
    pub(super) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pair.pool)
    }

    /// True if the other endpoint has a port.
    #[inline]
    pub(super) fn has_peer(&self) -> bool {
        // Acquire: partner is the swap in `open`.
        self.pair.open[1 - self.index].load(Ordering::Acquire)
    }
}

impl Drop for RingEndpoint {
    fn drop(&mut self) {
        // Release: partner is the swap in `open`.
        self.pair.open[self.index].store(false, Ordering::Release);
    }
}
