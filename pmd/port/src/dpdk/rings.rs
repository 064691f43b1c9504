//! Two ports of one process, joined by a ring each way: DPDK's `net_ring` over rings of ours.

use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::{Arc, Mutex, Weak};

use dpdk_sys::{
    RING_F_SC_DEQ, RING_F_SP_ENQ, rte_eth_from_rings, rte_ring, rte_ring_create, rte_ring_free,
};

use super::config::{DpdkError, Said};
use super::eal;
use super::log::{self, Mark};
use super::pool::Pool;
use crate::sync::mapped::{AtomicBool, AtomicU32, Ordering};

/// A ring, freed on drop, when no port is left that uses it.
#[derive(Debug)]
struct Ring(NonNull<rte_ring>);

// SAFETY: a ring is made for two threads, one at each end.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn new(name: &str, frames: u32) -> Result<Self, Said> {
        let mark = log::mark();
        let name = CString::new(name).unwrap_or_default();
        // One slot of a ring stays empty.
        let slots = (frames + 1).next_power_of_two();
        // SAFETY: EAL runs, and the name is a text that is copied.
        let ring =
            unsafe { rte_ring_create(name.as_ptr(), slots, 0, RING_F_SP_ENQ | RING_F_SC_DEQ) };
        NonNull::new(ring)
            .map(Self)
            .ok_or_else(|| eal::said_last(mark))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: made by `rte_ring_create`; the ports that used it are closed, as `Pair` sees to.
        unsafe { rte_ring_free(self.0.as_ptr()) };
    }
}

/// What joins two ports.
#[derive(Debug)]
pub(super) struct Pair {
    name: String,
    /// One towards each end. What stands in one that nobody empties any more goes with the pool.
    rings: [Ring; 2],
    open: [AtomicBool; 2],
    pool: Arc<Pool>,
}

/// One of the two ends.
#[derive(Debug)]
pub(super) struct End {
    pair: Arc<Pair>,
    side: usize,
}

/// The pairs of which an end is open.
static PAIRS: Mutex<Vec<Weak<Pair>>> = Mutex::new(Vec::new());

fn pairs() -> std::sync::MutexGuard<'static, Vec<Weak<Pair>>> {
    PAIRS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl End {
    /// Takes an end of the pair of this name, which is made if there is none; with rings for so many frames and a pool
    /// for both ends.
    pub(super) fn take(
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
                // Relaxed: only has to differ.
                let number = COUNT.fetch_add(1, Ordering::Relaxed);
                let ring = |side| {
                    Ring::new(&format!("viaduct-{number}-{side}"), frames).map_err(|said| {
                        DpdkError::Dpdk {
                            call: "making a ring",
                            said,
                        }
                    })
                };
                let pair = Arc::new(Pair {
                    name: name.to_owned(),
                    rings: [ring(0)?, ring(1)?],
                    open: [AtomicBool::new(false), AtomicBool::new(false)],
                    pool: Arc::new(pool()?),
                });
                pairs.push(Arc::downgrade(&pair));
                pair
            }
        };
        // Acquire and Release: partners are each other, and the store in `drop`. An end's next owner finds the ring as
        // the last one left it.
        let side = (0..2).find(|&side| !pair.open[side].swap(true, Ordering::AcqRel));
        match side {
            Some(side) => Ok(Self { pair, side }),
            None => Err(DpdkError::DeviceTaken {
                device: format!("ring:{name}"),
            }),
        }
    }

    /// DPDK's name for the port at this end.
    fn port_name(&self) -> String {
        format!("{}-{}", self.pair.name, self.side)
    }

    /// Makes the port at this end; returns its number.
    pub(super) fn make_port(&self, mark: Mark) -> Result<u16, DpdkError> {
        let refused = |said| DpdkError::Dpdk {
            call: "making a port of two rings",
            said,
        };
        let name = CString::new(self.port_name()).unwrap_or_default();
        let to_us = [self.pair.rings[self.side].0.as_ptr()];
        let to_peer = [self.pair.rings[1 - self.side].0.as_ptr()];
        // SAFETY: EAL runs, this thread handles devices, the name and the arrays are copied, and the rings outlive the
        // port, whose owner keeps this end.
        let port =
            unsafe { rte_eth_from_rings(name.as_ptr(), to_us.as_ptr(), 1, to_peer.as_ptr(), 1, 0) };
        u16::try_from(port).map_err(|_| refused(eal::said_last(mark)))
    }

    /// The pool of both ends.
    pub(super) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pair.pool)
    }

    /// Is there a port at the other end?
    #[inline]
    pub(super) fn has_peer(&self) -> bool {
        // Acquire: partner is the swap in `take`.
        self.pair.open[1 - self.side].load(Ordering::Acquire)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Release: partner is the swap in `take`.
        self.pair.open[self.side].store(false, Ordering::Release);
    }
}
