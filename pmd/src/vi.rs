//! VIs and completion queues: process-wide handles, and the objects that they name. Objects are never
//! freed, only retired, so that a stale handle is detected.

use std::sync::{Mutex, OnceLock, PoisonError};

use vi_engine::ViIndex;
use vi_types::{ViAttributes, ViState};

use crate::biased_lock::{BiasedGuard, Unbias};
use crate::cq::CompletionRing;
use crate::device::{Device, device_of};
use crate::notify::{CqSource, NotifySlot, ViNotify};
use crate::queue::{PostEnd, ReapEnd, WorkQueue};
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::waiters::Event;

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Nic = 1,
    Vi = 2,
    Cq = 3,
    Conn = 4,
    Ptag = 5,
}

/// A handle in parts, packed as `kind 4 | device 12 | generation 24 | index 24` bits; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawHandle {
    pub(crate) kind: u8,
    pub(crate) device: u16,
    pub(crate) generation: u32,
    pub(crate) index: u32,
}

/// Generations and indices are 24 bits wide.
pub(crate) const FIELD_MASK: u32 = 0x00FF_FFFF;

impl RawHandle {
    #[inline]
    pub(crate) const fn unpack(raw: u64) -> Self {
        Self {
            kind: (raw >> 60) as u8,
            device: (raw >> 48) as u16 & 0xFFF,
            generation: (raw >> 24) as u32 & FIELD_MASK,
            index: raw as u32 & FIELD_MASK,
        }
    }

    pub(crate) const fn pack(kind: HandleKind, device: u16, generation: u32, index: u32) -> u64 {
        ((kind as u64) << 60)
            | ((device as u64 & 0xFFF) << 48)
            | ((generation as u64 & FIELD_MASK as u64) << 24)
            | (index as u64 & FIELD_MASK as u64)
    }
}

/// A VI.
pub(crate) struct ViShared {
    pub(crate) device: &'static Device,
    pub(crate) index: ViIndex,
    /// The handle while the VI exists, else 0.
    live: AtomicU64,
    generation: AtomicU32,
    nic_handle: AtomicU64,
    state: AtomicU8,
    /// A failed post has broken the VI; the poller moves it to Error.
    pub(crate) broken: AtomicBool,
    /// The number of connection calls that wait for their outcome; changed under the backend lock.
    pub(crate) connecting: AtomicU32,
    pub(crate) tag: AtomicU32,
    pub(crate) max_transfer_bytes: AtomicU32,
    /// The poller is to be notified of posted receives: the peer waits for them.
    pub(crate) notify_receives: AtomicBool,
    /// RDMA reads can be posted; false at Unreliable Delivery.
    pub(crate) reads: AtomicBool,
    pub(crate) send_cq: AtomicU64,
    pub(crate) recv_cq: AtomicU64,
    /// The handle of the VI in the datapath process, or 0.
    pub(crate) remote: AtomicU64,
    /// The number of disconnects by this side since the VI was created; for an attached application.
    pub(crate) disconnects: AtomicU32,
    pub(crate) settings: Mutex<ViAttributes>,
    pub(crate) send: WorkQueue,
    pub(crate) recv: WorkQueue,
    /// Boxed, so that the fields of the data path are close together.
    pub(crate) notify: Box<ViNotify>,
}

impl ViShared {
    /// Creates a VI with queues of this depth; `None` if there is no memory.
    pub(crate) fn new(device: &'static Device, index: u32, depth: u32) -> Option<Self> {
        Some(Self {
            device,
            index: ViIndex(index),
            live: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            nic_handle: AtomicU64::new(0),
            state: AtomicU8::new(ViState::Idle as u8),
            broken: AtomicBool::new(false),
            connecting: AtomicU32::new(0),
            tag: AtomicU32::new(0),
            max_transfer_bytes: AtomicU32::new(0),
            notify_receives: AtomicBool::new(false),
            reads: AtomicBool::new(false),
            send_cq: AtomicU64::new(0),
            recv_cq: AtomicU64::new(0),
            remote: AtomicU64::new(0),
            disconnects: AtomicU32::new(0),
            settings: Mutex::new(ViAttributes::default()),
            send: WorkQueue::new(depth)?,
            recv: WorkQueue::new(depth)?,
            notify: Box::new(ViNotify::new()),
        })
    }

    /// Reads and clears the mark of a post that broke the VI. The caller holds the backend lock.
    #[inline]
    pub(crate) fn take_broken(&self) -> bool {
        // Acquire: partner of the Release store of the thread that posted.
        let is_broken = self.broken.load(Ordering::Acquire);
        if is_broken {
            self.broken.store(false, Ordering::Relaxed);
        }
        is_broken
    }

    /// Makes the object live under a new handle, which is returned.
    pub(crate) fn revive(&self, nic_handle: u64) -> u64 {
        let generation = next_generation(&self.generation);
        let handle = RawHandle::pack(
            HandleKind::Vi,
            self.device.number(),
            generation,
            self.index.0,
        );
        self.nic_handle.store(nic_handle, Ordering::Relaxed);
        self.state.store(ViState::Idle as u8, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
        self.disconnects.store(0, Ordering::Relaxed);
        // Release: partner of the Acquire load in `is_live`.
        self.live.store(handle, Ordering::Release);
        handle
    }

    /// Invalidates the handle.
    pub(crate) fn retire(&self) {
        self.live.store(0, Ordering::Release);
    }

    /// Reverts [`Self::retire`].
    pub(crate) fn resume(&self, handle: u64) {
        self.live.store(handle, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_live(&self, handle: u64) -> bool {
        self.live.load(Ordering::Acquire) == handle
    }

    pub(crate) fn live_handle(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn nic_handle(&self) -> u64 {
        self.nic_handle.load(Ordering::Relaxed)
    }

    pub(crate) fn set_state(&self, state: ViState) {
        // Release: partner of the Acquire load in `state`.
        self.state.store(state as u8, Ordering::Release);
    }

    #[inline]
    pub(crate) fn state(&self) -> ViState {
        // Only `set_state` writes it.
        ViState::from_number(self.state.load(Ordering::Acquire)).unwrap_or(ViState::Idle)
    }

    /// Locks out all other threads from posting and reaping, until the result is dropped.
    pub(crate) fn close_ends(&self) -> ClosedEnds<'_> {
        let mut unbias = Unbias::default();
        self.unbias_ends(&mut unbias);
        drop(unbias);
        ClosedEnds {
            _post: [self.send.post_end.lock(), self.recv.post_end.lock()],
            _reap: [self.send.reap_end.lock(), self.recv.reap_end.lock()],
        }
    }

    /// Collects the biases that [`Self::close_ends`] ends, so that one barrier serves many VIs.
    pub(crate) fn unbias_ends<'a>(&'a self, unbias: &mut Unbias<'a>) {
        for queue in [&self.send, &self.recv] {
            unbias.add(&queue.post_end);
            unbias.add(&queue.reap_end);
        }
    }

    pub(crate) fn settings(&self) -> ViAttributes {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks of all ends of a VI's queues.
pub(crate) struct ClosedEnds<'a> {
    _post: [BiasedGuard<'a, PostEnd>; 2],
    _reap: [BiasedGuard<'a, ReapEnd>; 2],
}

fn next_generation(cell: &AtomicU32) -> u32 {
    let mut generation = (cell.load(Ordering::Relaxed) + 1) & FIELD_MASK;
    if generation == 0 {
        generation = 1;
    }
    cell.store(generation, Ordering::Relaxed);
    generation
}

/// A completion queue.
pub(crate) struct CqShared {
    pub(crate) device: &'static Device,
    index: u32,
    live: AtomicU64,
    generation: AtomicU32,
    nic_handle: AtomicU64,
    /// The number of attached work queues.
    pub(crate) attached: AtomicU32,
    pub(crate) ring: CompletionRing,
    pub(crate) notify: Box<NotifySlot<CqSource>>,
}

impl CqShared {
    pub(crate) fn new(device: &'static Device, index: u32) -> Self {
        Self {
            device,
            index,
            live: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            nic_handle: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            ring: CompletionRing::new(),
            notify: Box::new(NotifySlot::new()),
        }
    }

    pub(crate) fn revive(&self, nic_handle: u64) -> u64 {
        let generation = next_generation(&self.generation);
        let handle = RawHandle::pack(HandleKind::Cq, self.device.number(), generation, self.index);
        self.nic_handle.store(nic_handle, Ordering::Relaxed);
        self.attached.store(0, Ordering::Relaxed);
        self.live.store(handle, Ordering::Release);
        handle
    }

    pub(crate) fn retire(&self) {
        self.live.store(0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_live(&self, handle: u64) -> bool {
        self.live.load(Ordering::Acquire) == handle
    }

    pub(crate) fn live_handle(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(crate) fn nic_handle(&self) -> u64 {
        self.nic_handle.load(Ordering::Relaxed)
    }

    /// Returns the event of a new entry.
    pub(crate) fn event(&self) -> Event {
        Event::on_completion_queue(self.index)
    }

    /// Returns the number of entries for all descriptors that can be posted on the attached work queues.
    pub(crate) fn needed_entries(&self) -> u32 {
        let depth = self.device.config.max_descriptors_per_queue;
        let queues = self.attached.load(Ordering::Relaxed);
        queues.saturating_mul(depth.next_power_of_two())
    }
}

/// A table of objects that are created on first use and kept until the process ends.
pub(crate) struct ObjectTable<T: 'static> {
    slots: Box<[OnceLock<Box<T>>]>,
}

impl<T> ObjectTable<T> {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.get().map(|boxed| &**boxed)
    }

    /// Returns the object in a slot below [`Self::len`], created by `make` on first use; `None` if `make`
    /// fails.
    pub(crate) fn get_or_make(&self, index: u32, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        let slot = self.slots.get(index as usize)?;
        if slot.get().is_none() {
            // If another thread was first, its object is used and this one dropped.
            let _ = slot.set(Box::new(make()?));
        }
        slot.get().map(|boxed| &**boxed)
    }

    pub(crate) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|p| p.get().map(|b| &**b))
    }
}

/// Returns the object that has or had this handle: the caller must check that it is live.
#[inline]
pub(crate) fn vi_at(handle: u64) -> Option<&'static ViShared> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != HandleKind::Vi as u8 {
        return None;
    }
    device_of(raw.device)?.vis.get(raw.index)
}

/// Returns the VI with this handle.
#[inline]
pub(crate) fn vi_of(handle: u64) -> Option<&'static ViShared> {
    vi_at(handle).filter(|vi| vi.is_live(handle))
}

/// Returns the object that has or had this handle: the caller must check that it is live.
#[inline]
pub(crate) fn cq_at(handle: u64) -> Option<&'static CqShared> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != HandleKind::Cq as u8 {
        return None;
    }
    device_of(raw.device)?.cqs.get(raw.index)
}

/// Returns the completion queue with this handle.
#[inline]
pub(crate) fn cq_of(handle: u64) -> Option<&'static CqShared> {
    cq_at(handle).filter(|cq| cq.is_live(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_unpacks_to_packed_parts() {
        let raw = RawHandle::pack(HandleKind::Conn, 0xABC, 0x12_3456, 0x00F0_0001);
        let handle = RawHandle::unpack(raw);
        assert_eq!(handle.kind, HandleKind::Conn as u8);
        assert_eq!(handle.device, 0xABC);
        assert_eq!(handle.generation, 0x12_3456);
        assert_eq!(handle.index, 0x00F0_0001);
    }
}
