//! The part of a NIC that its queues and its backend use: limits, tables, doorbells, waiters and errors.

use std::fmt::Arguments;

use crate::doorbell::Doorbells;
use crate::events::EventQueue;
use crate::handle::{HandleKind, RawHandle};
use crate::log_limiter::LogLimiter;
use crate::memory::table::{RegionLimits, RegionTable};
use crate::object_table::ObjectTable;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::vi::{CqShared, ViShared};
use crate::waiters::{Event, Waiters};

/// Limits and rules of a NIC.
#[derive(Clone, Copy, Debug)]
pub struct NicLimits {
    /// Number of VIs.
    pub max_vi: u32,
    /// Number of completion queues.
    pub max_cq: u32,
    /// Descriptors on a work queue.
    pub max_descriptors_per_queue: u32,
    /// Segments of a descriptor, including the address segment.
    pub max_segments_per_descriptor: u32,
    /// Pending notify requests of a queue.
    pub max_notifies_per_queue: u32,
    /// Threads that call notify handlers.
    pub max_notify_threads: u32,
    /// Log lines per second that peers or applications can cause.
    pub max_log_lines_per_second: u32,
    /// Registered memory.
    pub regions: RegionLimits,
    /// VIs and regions may have no protection tag.
    pub is_lenient: bool,
}

/// The part of a NIC that its queues and its backend use. It exists until the process ends.
pub struct NicShared {
    /// Number of the NIC in this process, which is part of handles.
    pub number: u16,
    /// Name of the NIC.
    pub name: String,
    /// Limits and rules.
    pub limits: NicLimits,
    /// Doorbells of VIs.
    pub doorbells: Doorbells,
    /// Registered memory.
    pub regions: RegionTable,
    /// Asynchronous errors.
    pub events: EventQueue,
    /// VIs by index.
    pub vis: ObjectTable<ViShared>,
    /// Completion queues by index.
    pub cqs: ObjectTable<CqShared>,
    /// Threads that wait for events.
    pub waiters: Waiters,
    /// Log lines that peers or applications can cause.
    pub log_limiter: LogLimiter,
    /// Number of threads that call notify handlers.
    pub notify_threads: AtomicU32,
    /// Number of entries that full completion queues have dropped.
    cq_overruns: AtomicU64,
}

impl NicShared {
    /// Creates a NIC without VIs.
    pub fn new(number: u16, name: String, limits: NicLimits) -> Self {
        Self {
            number,
            name,
            limits,
            doorbells: Doorbells::new(),
            regions: RegionTable::new(limits.regions),
            events: EventQueue::new(limits.max_vi),
            vis: ObjectTable::new(limits.max_vi),
            cqs: ObjectTable::new(limits.max_cq),
            waiters: Waiters::new(),
            log_limiter: LogLimiter::new(limits.max_log_lines_per_second),
            notify_threads: AtomicU32::new(0),
            cq_overruns: AtomicU64::new(0),
        }
    }

    /// Returns the VI that has or had this handle: the caller must check that it is live.
    #[inline]
    pub fn vi_at(&self, handle: RawHandle) -> Option<&ViShared> {
        if handle.kind != HandleKind::Vi as u8 {
            return None;
        }
        self.vis.get(handle.index)
    }

    /// Returns the completion queue that has or had this handle: the caller must check that it is live.
    #[inline]
    pub fn cq_at(&self, handle: RawHandle) -> Option<&CqShared> {
        if handle.kind != HandleKind::Cq as u8 {
            return None;
        }
        self.cqs.get(handle.index)
    }

    /// Wakes the threads that wait for any of these events; returns their number.
    #[inline]
    pub fn notify(&self, events: Event) -> usize {
        if events.is_none() {
            return 0;
        }
        self.waiters.notify(events)
    }

    /// Wakes all waiters.
    #[cold]
    pub fn wake_all_waiters(&self) {
        self.waiters.wake(Event::ALL);
    }

    /// Logs a line that a peer or an application can cause.
    pub fn log_limited(&self, level: log::Level, line: Arguments<'_>) {
        let subject = format!("NIC {}", self.name);
        self.log_limiter.log(level, &subject, line);
    }

    /// Counts entries that a full completion queue has dropped; logs the first time.
    #[cold]
    pub(crate) fn count_cq_overruns(&self, entries: u64) {
        if self.cq_overruns.fetch_add(entries, Ordering::Relaxed) == 0 {
            let line = "completion queue full: entries whose descriptor was reaped from its work queue are \
                        dropped, counted as cq_overruns; logged once";
            self.log_limited(log::Level::Warn, format_args!("{line}"));
        }
    }

    /// Returns the number of entries that full completion queues have dropped.
    pub fn cq_overruns(&self) -> u64 {
        self.cq_overruns.load(Ordering::Relaxed)
    }

    /// Invalidates the handles of all VIs and completion queues, in a forked child.
    pub fn retire_all(&self) {
        for vi in self.vis.iter() {
            vi.retire();
        }
        for cq in self.cqs.iter() {
            cq.retire();
        }
    }
}
