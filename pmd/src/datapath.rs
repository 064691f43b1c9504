//! What the protocol engine asks for, done: queues, memory, port.
//!
//! Everything here runs under the NIC's turn.

use std::collections::VecDeque;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fcoe::Eof;
use pmd_port::layer::FailedPort;
use pmd_port::{Mbuf, MbufBatch, Port};
use vi_engine::{Transmit, ViIndex};

use crate::cq::Entry;
use crate::descriptor::{ControlSegment, control, status};
use crate::events::{AsyncEvent, ErrorCode, EventQueue, ResourceCode};
use crate::memory::table::RegionTable;
use crate::memory::{Access, TagCheck};
use crate::post::{Cursor, SlotCursor};
use crate::queue::{Slot, WorkQueue};
use crate::sleepers::Event;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::RandomWords;
use crate::vi::{CqShared, ViShared};
use crate::workbench::Workbench;

mod host;
mod reads;
#[cfg(test)]
mod tests;

/// Where the completions of a work queue are told.
#[derive(Clone, Copy)]
pub(crate) struct Reports {
    pub(crate) cq: Option<&'static CqShared>,
    /// What those sleep for who wait for them.
    event: Event,
}

impl Reports {
    fn of(cq: Option<&'static CqShared>, vi: ViIndex, side: Side) -> Self {
        let event = match cq {
            Some(cq) => cq.event(),
            None => Event::on_work_queue(vi.0, side == Side::Receive),
        };
        Self { cq, event }
    }
}

/// A VI as the poller knows it.
pub(crate) struct ViPath {
    pub(crate) shared: &'static ViShared,
    pub(crate) handle: u64,
    pub(crate) tag: TagCheck,
    pub(crate) send_reports: Reports,
    pub(crate) recv_reports: Reports,
    send_cursor: Cursor,
    recv_cursor: SlotCursor,
    /// Descriptors at the head of the send queue that were sent and are not complete.
    in_flight: u32,
    /// Descriptors at the head of the receive queue that messages have claimed.
    claimed: u32,
    /// In the run queue.
    pub(crate) queued: bool,
    read_cursor: SlotCursor,
    again_cursor: SlotCursor,
}

impl ViPath {
    pub(crate) fn new(
        shared: &'static ViShared,
        handle: u64,
        tag: TagCheck,
        send_cq: Option<&'static CqShared>,
        recv_cq: Option<&'static CqShared>,
    ) -> Self {
        Self {
            shared,
            handle,
            tag,
            send_reports: Reports::of(send_cq, shared.index, Side::Send),
            recv_reports: Reports::of(recv_cq, shared.index, Side::Receive),
            send_cursor: Cursor::default(),
            recv_cursor: SlotCursor::default(),
            in_flight: 0,
            claimed: 0,
            queued: false,
            read_cursor: SlotCursor::default(),
            again_cursor: SlotCursor::default(),
        }
    }
}

/// Counters of the data path itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathCounters {
    /// Completion queue entries lost because nobody collected older ones.
    pub(crate) cq_overruns: u64,
    /// Descriptors whose memory was deregistered before they completed.
    pub(crate) lost_descriptors: u64,
    /// Frames that the port had no room for at once.
    pub(crate) tx_no_room: u64,
}

/// Queues, memory and port of one NIC.
pub(crate) struct Datapath {
    pub(crate) port: Box<dyn Port>,
    /// The port before, once it failed.
    failed_port: Option<Box<dyn Port>>,
    pub(crate) regions: &'static RegionTable,
    pub(crate) events: &'static EventQueue,
    pub(crate) vis: Vec<Option<ViPath>>,
    pub(crate) batch: MbufBatch,
    /// A burst of one frame costs the port no more than its share of a larger burst:
    /// frames are given to it at once.
    send_alone: bool,
    /// What happened in this turn that somebody may sleep for.
    pub(crate) happened: Event,
    /// VIs that have something to send.
    pub(crate) run: VecDeque<ViIndex>,
    /// VIs that must go to the Error state when the engine is done with its verb.
    pub(crate) failed: Vec<ViIndex>,
    /// VIs that went to the Error state: what is posted there is flushed.
    pub(crate) errored: VecDeque<ViIndex>,
    pub(crate) counters: PathCounters,
    random: RandomWords,
    workbench: Box<Workbench>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Send,
    Receive,
}

impl Datapath {
    pub(crate) fn new(
        port: Box<dyn Port>,
        regions: &'static RegionTable,
        events: &'static EventQueue,
        max_vi: u32,
    ) -> Self {
        Self {
            send_alone: port.capabilities().send_alone,
            port,
            failed_port: None,
            regions,
            events,
            vis: (0..max_vi).map(|_| None).collect(),
            batch: MbufBatch::new(),
            happened: Event::NONE,
            run: VecDeque::with_capacity(max_vi as usize),
            failed: Vec::with_capacity(max_vi as usize),
            errored: VecDeque::with_capacity(max_vi as usize),
            counters: PathCounters::default(),
            random: RandomWords::default(),
            workbench: Workbench::new(),
        }
    }

    #[inline]
    pub(crate) fn vi(&mut self, vi: ViIndex) -> Option<&mut ViPath> {
        self.vis.get_mut(vi.0 as usize)?.as_mut()
    }

    /// Has the VI served when its turn comes.
    #[inline]
    pub(crate) fn enqueue(&mut self, vi: ViIndex) {
        if let Some(path) = self.vi(vi)
            && !path.queued
        {
            path.queued = true;
            self.run.push_back(vi);
        }
    }

    /// Gives what is in the batch to the port. What it does not take stays.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.port.tx_burst(&mut self.batch);
        }
    }

    /// Puts a port in the place of the one that failed that carries nothing. The failed one is
    /// closed with the NIC. No received buffer is out.
    #[cold]
    pub(crate) fn fail_port(&mut self) {
        while let Some(mbuf) = self.batch.pop() {
            self.port.free(mbuf);
        }
        self.port.disarm();
        let successor = Box::new(FailedPort::after(self.port.as_ref()));
        self.failed_port = Some(core::mem::replace(&mut self.port, successor));
    }

    /// A buffer towards a station, if there is room in the port and in the batch.
    #[inline]
    fn buffer(&mut self, dst: MacAddress) -> Option<Mbuf> {
        if self.batch.room() == 0 {
            self.flush();
            if self.batch.room() == 0 {
                self.counters.tx_no_room += 1;
                return None;
            }
        }
        if let Some(mbuf) = self.port.alloc(dst.0) {
            return Some(mbuf);
        }
        self.flush();
        let mbuf = self.port.alloc(dst.0);
        if mbuf.is_none() {
            self.counters.tx_no_room += 1;
        }
        mbuf
    }

    #[inline]
    fn push(&mut self, mbuf: Mbuf) {
        if let Err(mbuf) = self.batch.push(mbuf) {
            // `buffer` made sure that there is room.
            self.port.free(mbuf);
        }
    }

    /// Sends one frame of this VI, which `build` puts together; it gives the frame's bytes.
    #[inline(always)]
    fn transmit(
        &mut self,
        vi: ViIndex,
        dst: MacAddress,
        build: impl FnOnce(&mut Workbench, &mut ViPath, &RegionTable) -> Option<usize>,
    ) -> Transmit {
        let Some(mbuf) = self.buffer(dst) else {
            return Transmit::NoRoom;
        };
        let Self {
            vis,
            regions,
            workbench,
            ..
        } = self;
        let path = vis.get_mut(vi.0 as usize).and_then(Option::as_mut);
        let built = path.and_then(|path| build(workbench, path, regions));
        self.transmit_built(mbuf, built)
    }

    /// Sends the frame of so many bytes that lies on the workbench; `None`: there is none.
    #[inline(always)]
    fn transmit_built(&mut self, mut mbuf: Mbuf, built: Option<usize>) -> Transmit {
        let Some(bytes) = built.filter(|bytes| *bytes <= mbuf.capacity()) else {
            self.port.free(mbuf);
            return Transmit::Fault;
        };
        mbuf.set_len(bytes);
        self.push(mbuf);
        // The copy comes last: what follows a store into a shared ring waits for its
        // cache line if it has to read back anything that was just written.
        if let Some(mbuf) = self.batch.back_mut() {
            self.workbench.copy_to(mbuf.buffer_mut(), bytes);
        }
        if self.send_alone {
            self.flush();
        }
        Transmit::Sent
    }

    /// Sends one frame of another kind, written straight into the port's buffer. What there is no
    /// room for is lost on the way.
    pub(crate) fn transmit_other(
        &mut self,
        dst: MacAddress,
        emit: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Transmit {
        let Some(mut mbuf) = self.buffer(dst) else {
            return Transmit::NoRoom;
        };
        let Some(bytes) = emit(mbuf.buffer_mut()) else {
            self.port.free(mbuf);
            return Transmit::Fault;
        };
        mbuf.set_len(bytes);
        self.push(mbuf);
        Transmit::Sent
    }

    /// Completes the head of a queue: the descriptor's own fields, the slot, the CQ.
    #[inline]
    fn complete(
        &mut self,
        vi: ViIndex,
        side: Side,
        word: u32,
        length_bytes: u32,
        immediate: Option<u32>,
    ) {
        let Some(path) = self.vis.get_mut(vi.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let (queue, reports): (&WorkQueue, _) = match side {
            Side::Send => {
                path.in_flight = path.in_flight.saturating_sub(1);
                (&path.shared.send, path.send_reports)
            }
            Side::Receive => {
                path.claimed = path.claimed.saturating_sub(1);
                (&path.shared.recv, path.recv_reports)
            }
        };
        // SAFETY: we run under the turn; the reference ends with the completion below.
        let Some(slot) = (unsafe { queue.head() }) else {
            return;
        };
        let word = word | status::DONE;
        slot.status = word;
        let there = slot.epoch == self.regions.epoch()
            || self.regions.check(
                slot.handle,
                path.tag,
                slot.address,
                crate::descriptor::CONTROL_BYTES,
                Access::Write,
            );
        let lost = (!there).then_some(slot.address);
        if there {
            // SAFETY: checked in this turn, and deregistration needs the turn.
            unsafe { write_completion(slot.address, word, length_bytes, immediate) };
        }
        let sequence = queue.complete_head();
        self.happened |= reports.event;
        if let Some(cq) = reports.cq {
            let entry = Entry {
                vi: path.handle,
                sequence,
                receive: side == Side::Receive,
            };
            self.add_entry(cq, entry);
        }
        if let Some(descriptor) = lost {
            self.tell_lost(vi, descriptor, word);
        }
    }

    /// The memory of a descriptor that completed is gone: an error tells it (VIPL 3.8.1). Comes
    /// after the completion, so that whoever hears of it finds that on the queue.
    #[cold]
    fn tell_lost(&mut self, vi: ViIndex, descriptor: u64, word: u32) {
        self.counters.lost_descriptors += 1;
        self.failed.push(vi);
        let Some(path) = self.vis.get(vi.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        self.events.push(AsyncEvent {
            vi: path.handle,
            instance: path.shared.instance(),
            descriptor,
            op_code: (word & status::OP_MASK) >> 16,
            resource: ResourceCode::Descriptor,
            code: ErrorCode::CompProt,
        });
    }

    #[inline]
    fn add_entry(&mut self, cq: &'static CqShared, entry: Entry) {
        // SAFETY: we run under the turn.
        if unsafe { cq.ring.add(entry) } {
            return;
        }
        let keep = |e: &Entry| crate::vi::entry_is_live(e);
        // SAFETY: we run under the turn.
        let made_room = unsafe { cq.ring.compact(keep) };
        // SAFETY: we run under the turn.
        if !(made_room && unsafe { cq.ring.add(entry) }) {
            self.counters.cq_overruns += 1;
            cq.ring.overruns.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush_queue(&mut self, vi: ViIndex, side: Side) {
        loop {
            let Some(path) = self.vi(vi) else {
                return;
            };
            let queue = match side {
                Side::Send => &path.shared.send,
                Side::Receive => &path.shared.recv,
            };
            // SAFETY: we run under the turn; the reference is not kept.
            let Some(slot) = (unsafe { queue.head() }) else {
                return;
            };
            let op = match side {
                Side::Send => send_op(slot),
                Side::Receive => status::OP_RECEIVE,
            };
            self.complete(vi, side, status::DESC_FLUSHED_ERROR | op, 0, None);
        }
    }
}

#[inline]
fn eof(last: bool) -> Eof {
    if last { Eof::T } else { Eof::N }
}

/// The completed-operation code of a posted send descriptor.
#[inline]
fn send_op(slot: &Slot) -> u32 {
    match slot.control & control::OP_MASK {
        control::OP_RDMA_WRITE => status::OP_RDMA_WRITE,
        control::OP_RDMA_READ => status::OP_RDMA_READ,
        _ => status::OP_SEND,
    }
}

/// Writes the fields that the provider returns, the status last.
///
/// # Safety
/// `address` is that of a descriptor inside a registered, writable region.
#[inline]
unsafe fn write_completion(address: u64, word: u32, length_bytes: u32, immediate: Option<u32>) {
    let control = address as *mut ControlSegment;
    if let Some(immediate) = immediate {
        // SAFETY: a field of the control segment that the caller vouches for.
        let field = unsafe { &raw mut (*control).immediate_data };
        // SAFETY: as above.
        unsafe { field.write_volatile(immediate) };
    }
    // SAFETY: as above.
    let length = unsafe { &raw mut (*control).length };
    // SAFETY: as above.
    unsafe { length.write_volatile(length_bytes) };
    // SAFETY: as above.
    let field = unsafe { &raw mut (*control).status };
    // SAFETY: an aligned word of the control segment.
    let status = unsafe { AtomicU32::from_ptr(field) };
    // Release: its partner is the application's load of the status it polls.
    status.store(word, Ordering::Release);
}
