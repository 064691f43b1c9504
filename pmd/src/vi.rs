//! VIs and completion queues as programs hold them: process-wide handles to
//! objects that are never freed, only retired, so that a stale handle finds
//! something that says so.

use std::sync::{Mutex, OnceLock, PoisonError};

use vi_engine::{EndpointState, ViIndex};

use crate::cq::CompletionRing;
use crate::device::{Device, device_of};
use crate::notify::{CqSource, NotifySlot, ViNotify};
use crate::queue::{PostEnd, ReapEnd, WorkQueue};
use crate::sleepers::Event;
use crate::sync::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::token::{Held, Unbias};

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Nic = 1,
    Vi = 2,
    Cq = 3,
    Conn = 4,
    Ptag = 5,
}

/// `kind 4 | device 12 | generation 24 | index 24`; never 0.
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

    pub(crate) const fn pack(kind: Kind, device: u16, generation: u32, index: u32) -> u64 {
        ((kind as u64) << 60)
            | ((device as u64 & 0xFFF) << 48)
            | ((generation as u64 & FIELD_MASK as u64) << 24)
            | (index as u64 & FIELD_MASK as u64)
    }
}

/// Attributes of a VI as the consumer gave them (VIPL 4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ViSettings {
    /// Reliability level bit.
    pub reliability: u16,
    /// Longest message in bytes.
    pub max_transfer_bytes: u64,
    /// Quality of service; only 0, for none, is supported.
    pub qos: u64,
    /// Handle of the protection tag; 0 for none.
    pub ptag: u64,
    /// RDMA writes of the peer are accepted.
    pub rdma_write: bool,
    /// RDMA reads of the peer are accepted.
    pub rdma_read: bool,
}

/// A VI.
pub(crate) struct ViShared {
    pub(crate) device: &'static Device,
    pub(crate) index: ViIndex,
    /// The handle while the VI exists, else 0.
    live: AtomicU64,
    generation: AtomicU32,
    instance: AtomicU64,
    state: AtomicU8,
    /// A post failed in a way that breaks the VI; the poller does it.
    pub(crate) broken: AtomicBool,
    /// Connection calls that have not collected their outcome yet; changed in the turn.
    pub(crate) connecting: AtomicU32,
    pub(crate) tag: AtomicU32,
    pub(crate) max_transfer_bytes: AtomicU32,
    /// The peer waits for receives: the poller wants to hear of those that are posted.
    pub(crate) tells_receives: AtomicBool,
    /// RDMA reads can be posted: not at Unreliable Delivery.
    pub(crate) reads: AtomicBool,
    pub(crate) send_cq: AtomicU64,
    pub(crate) recv_cq: AtomicU64,
    /// The handle that the datapath process has for it, if there is one.
    pub(crate) remote: AtomicU64,
    /// How often its connection was ended from this side; for an application that is served.
    pub(crate) disconnects: AtomicU32,
    pub(crate) settings: Mutex<ViSettings>,
    pub(crate) send: WorkQueue,
    pub(crate) recv: WorkQueue,
    /// Apart, so that what the data path reads lies close together.
    pub(crate) notify: Box<ViNotify>,
}

impl ViShared {
    /// A VI with queues of this depth; `None` if there is no memory.
    pub(crate) fn new(device: &'static Device, index: u32, depth: u32) -> Option<Self> {
        Some(Self {
            device,
            index: ViIndex(index),
            live: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            instance: AtomicU64::new(0),
            state: AtomicU8::new(EndpointState::Idle as u8),
            broken: AtomicBool::new(false),
            connecting: AtomicU32::new(0),
            tag: AtomicU32::new(0),
            max_transfer_bytes: AtomicU32::new(0),
            tells_receives: AtomicBool::new(false),
            reads: AtomicBool::new(false),
            send_cq: AtomicU64::new(0),
            recv_cq: AtomicU64::new(0),
            remote: AtomicU64::new(0),
            disconnects: AtomicU32::new(0),
            settings: Mutex::new(ViSettings::default()),
            send: WorkQueue::new(depth)?,
            recv: WorkQueue::new(depth)?,
            notify: Box::new(ViNotify::new()),
        })
    }

    /// Reads and clears the mark of a post that broke the VI; with the lock held.
    #[inline]
    pub(crate) fn take_broken(&self) -> bool {
        // Acquire: partner of the Release store of the thread that posted.
        let is_broken = self.broken.load(Ordering::Acquire);
        if is_broken {
            self.broken.store(false, Ordering::Relaxed);
        }
        is_broken
    }

    /// Brings the object to life under a new handle.
    pub(crate) fn revive(&self, instance: u64) -> u64 {
        let generation = next_generation(&self.generation);
        let handle = RawHandle::pack(Kind::Vi, self.device.number(), generation, self.index.0);
        self.instance.store(instance, Ordering::Relaxed);
        self.state
            .store(EndpointState::Idle as u8, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
        self.disconnects.store(0, Ordering::Relaxed);
        // Release: partner of the Acquire load in `is_live`.
        self.live.store(handle, Ordering::Release);
        handle
    }

    pub(crate) fn retire(&self) {
        self.live.store(0, Ordering::Release);
    }

    /// Takes [`Self::retire`] back.
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

    pub(crate) fn instance(&self) -> u64 {
        self.instance.load(Ordering::Relaxed)
    }

    /// Release: partner of the Acquire load in `state`.
    pub(crate) fn set_state(&self, state: EndpointState) {
        self.state.store(state as u8, Ordering::Release);
    }

    #[inline]
    pub(crate) fn state(&self) -> EndpointState {
        match self.state.load(Ordering::Acquire) {
            1 => EndpointState::Connected,
            2 => EndpointState::ConnectPending,
            3 => EndpointState::Error,
            _ => EndpointState::Idle,
        }
    }

    /// Keeps everybody from posting and reaping.
    pub(crate) fn close_ends(&self) -> ClosedEnds<'_> {
        let mut unbias = Unbias::default();
        self.unbias_ends(&mut unbias);
        drop(unbias);
        ClosedEnds {
            _post: [self.send.post_end.hold(), self.recv.post_end.hold()],
            _reap: [self.send.reap_end.hold(), self.recv.reap_end.hold()],
        }
    }

    /// Before [`Self::close_ends`] of many VIs: what that costs each time is paid once for all.
    pub(crate) fn unbias_ends<'a>(&'a self, unbias: &mut Unbias<'a>) {
        for queue in [&self.send, &self.recv] {
            unbias.add(&queue.post_end);
            unbias.add(&queue.reap_end);
        }
    }

    pub(crate) fn settings(&self) -> ViSettings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All ends of a VI's queues, held.
pub(crate) struct ClosedEnds<'a> {
    _post: [Held<'a, PostEnd>; 2],
    _reap: [Held<'a, ReapEnd>; 2],
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
    instance: AtomicU64,
    /// Work queues attached.
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
            instance: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            ring: CompletionRing::new(),
            notify: Box::new(NotifySlot::new()),
        }
    }

    pub(crate) fn revive(&self, instance: u64) -> u64 {
        let generation = next_generation(&self.generation);
        let handle = RawHandle::pack(Kind::Cq, self.device.number(), generation, self.index);
        self.instance.store(instance, Ordering::Relaxed);
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

    pub(crate) fn instance(&self) -> u64 {
        self.instance.load(Ordering::Relaxed)
    }

    /// What those sleep for who wait for an entry.
    pub(crate) fn event(&self) -> Event {
        Event::on_completion_queue(self.index)
    }

    /// Entries for every descriptor that can be posted on the attached work queues.
    pub(crate) fn needed_entries(&self) -> u32 {
        let depth = self.device.config.max_descriptors_per_queue;
        let queues = self.attached.load(Ordering::Relaxed);
        queues.saturating_mul(depth.next_power_of_two())
    }
}

/// Objects that are made when first needed and then kept for the life of the process.
pub(crate) struct Shelf<T: 'static> {
    places: Box<[OnceLock<Box<T>>]>,
}

impl<T> Shelf<T> {
    pub(crate) fn new(places: u32) -> Self {
        Self {
            places: (0..places).map(|_| OnceLock::new()).collect(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.places.get(index as usize)?.get().map(|boxed| &**boxed)
    }

    /// The object in a place below [`Self::len`]; `None` if there is none and `make` gives none.
    pub(crate) fn get_or_make(&self, index: u32, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        let place = self.places.get(index as usize)?;
        if place.get().is_none() {
            // Another thread may be first: then this one goes.
            let _ = place.set(Box::new(make()?));
        }
        place.get().map(|boxed| &**boxed)
    }

    pub(crate) fn len(&self) -> u32 {
        self.places.len() as u32
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|p| p.get().map(|b| &**b))
    }
}

/// The object that has or had this handle: the caller still asks it whether it is live.
#[inline]
pub(crate) fn vi_at(handle: u64) -> Option<&'static ViShared> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != Kind::Vi as u8 {
        return None;
    }
    device_of(raw.device)?.vis.get(raw.index)
}

/// The VI of a handle.
#[inline]
pub(crate) fn vi_of(handle: u64) -> Option<&'static ViShared> {
    vi_at(handle).filter(|vi| vi.is_live(handle))
}

/// The object that has or had this handle: the caller still asks it whether it is live.
#[inline]
pub(crate) fn cq_at(handle: u64) -> Option<&'static CqShared> {
    let raw = RawHandle::unpack(handle);
    if raw.kind != Kind::Cq as u8 {
        return None;
    }
    device_of(raw.device)?.cqs.get(raw.index)
}

/// The completion queue of a handle.
#[inline]
pub(crate) fn cq_of(handle: u64) -> Option<&'static CqShared> {
    cq_at(handle).filter(|cq| cq.is_live(handle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_unpack_to_what_was_packed() {
        let raw = RawHandle::pack(Kind::Conn, 0xABC, 0x12_3456, 0x00F0_0001);
        let handle = RawHandle::unpack(raw);
        assert_eq!(handle.kind, Kind::Conn as u8);
        assert_eq!(handle.device, 0xABC);
        assert_eq!(handle.generation, 0x12_3456);
        assert_eq!(handle.index, 0x00F0_0001);
    }
}
