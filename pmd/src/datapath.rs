//! The data path of a NIC: carries out the protocol engine's operations on queues, memory and port.
//!
//! Everything here runs while the caller holds the NIC's backend lock.

use std::collections::VecDeque;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::frame::Payload;
use pmd_port::layer::FailedPort;
use pmd_port::{Mbuf, MbufBatch, MtuChange, Port};
use vi_core::completion::{
    CompletionStatus, CompletionTarget, add_entry, complete_head, lost_descriptor,
};
use vi_core::cq::RingEntry;
use vi_core::descriptor::send_operation;
use vi_core::events::EventQueue;
use vi_core::memory::TagCheck;
use vi_core::memory::backing::Owner;
use vi_core::memory::table::RegionTable;
use vi_core::memory::transfer::Mover;
use vi_core::nic_shared::NicShared;
use vi_core::posted_descriptor::{Cursor, SlotCursor};
use vi_core::queue::{Slot, WorkQueue};
use vi_core::sys::RandomWords;
use vi_core::vi::{CqShared, ViShared};
use vi_core::waiters::Event;
use vi_engine::{DataFrame, Transmit};
use vi_types::{QueueKind, ViIndex, status};

use crate::call_waiters::CallWaiters;
use crate::payload_buffer::PayloadBuffer;
use crate::tap::Tap;

mod client_memory;
mod direct_access;
mod engine_io;
mod one_step;
mod reads;
mod rendezvous;
mod run_queue;
mod served;
mod shortcut;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use direct_access::DirectPath;
pub(crate) use direct_access::DirectStation;
use run_queue::{OWN_LANE, RunQueue};
pub(crate) use served::{ClientId, ServedApplications, ServedQueues};

/// The poller's state of a VI.
pub(crate) struct ViPath {
    pub(crate) shared: &'static ViShared,
    pub(crate) handle: u64,
    pub(crate) tag: TagCheck,
    /// The application that owns the VI, in a datapath process.
    pub(crate) client: Option<ClientId>,
    /// The owner of the memory that the VI uses.
    owner: Owner,
    /// Messages that were reported to its application.
    pub(crate) traffic: Traffic,
    /// For the send and the receive queue: completions are still to be reported to the application.
    pub(crate) pending_completions: [bool; 2],
    pub(crate) send_target: CompletionTarget,
    pub(crate) recv_target: CompletionTarget,
    send_cursor: Cursor,
    recv_cursor: SlotCursor,
    /// Descriptors at the head of the send queue that are sent and not complete.
    in_flight: u32,
    /// Descriptors at the head of the receive queue that messages have claimed.
    claimed: u32,
    /// The VI is in the run queue.
    pub(crate) queued: bool,
    read_cursor: SlotCursor,
    again_cursor: SlotCursor,
    /// The peer's memory can be accessed directly.
    direct: Option<DirectPath>,
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
            client: None,
            owner: Owner::PROGRAM,
            pending_completions: [false; 2],
            traffic: Traffic::default(),
            send_target: CompletionTarget::of(send_cq, shared.index.0, false),
            recv_target: CompletionTarget::of(recv_cq, shared.index.0, true),
            send_cursor: Cursor::default(),
            recv_cursor: SlotCursor::default(),
            in_flight: 0,
            claimed: 0,
            queued: false,
            read_cursor: SlotCursor::default(),
            again_cursor: SlotCursor::default(),
            direct: None,
        }
    }
}

impl ViPath {
    /// Assigns the VI and its memory to an application.
    pub(crate) fn serve(&mut self, client: ClientId, owner: Owner) {
        self.client = Some(client);
        self.owner = owner;
        self.set_tag(self.tag);
    }

    /// Returns true if a receive is posted that no message has claimed.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.shared.recv.depth() > self.claimed
    }

    /// Sets the protection tag with which regions are checked.
    pub(crate) fn set_tag(&mut self, tag: TagCheck) {
        self.tag = TagCheck::of(self.owner, tag.number());
    }
}

/// Messages of a VI that completed without an error: sent and received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) messages: [u64; 2],
    pub(crate) bytes: [u64; 2],
}

/// Counters of the data path itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathCounters {
    /// Descriptors whose memory was deregistered before they completed.
    pub(crate) lost_descriptors: u64,
    /// Attempts to send a frame for which the port had no room.
    pub(crate) tx_no_room: u64,
    /// Connections lost while the interface's MTU was lower than the port's frames.
    pub(crate) breaks_by_mtu: u64,
    /// Messages that were sent without a place on the send queue.
    pub(crate) sent_in_one_step: u64,
}

/// How many buffers ahead of the one that is written memory is prefetched. Not the next one, which
/// its receiver may poll.
const PREFETCHED_BUFFERS: usize = 2;

/// Access to the memory of a VI.
struct Memory<'a> {
    regions: &'a RegionTable,
    mover: &'a mut Mover,
}

/// Queues, memory and port of one NIC.
pub(crate) struct Datapath {
    pub(crate) port: Box<dyn Port>,
    /// The interface's MTU is lower than the port's frames.
    pub(crate) lowered_mtu: Option<MtuChange>,
    /// The port that failed, if one did.
    failed_port: Option<Box<dyn Port>>,
    pub(crate) regions: &'static RegionTable,
    pub(crate) events: &'static EventQueue,
    pub(crate) vis: Vec<Option<ViPath>>,
    pub(crate) batch: MbufBatch,
    /// A burst of one frame costs the port no more than its share of a larger burst: frames are
    /// passed to it at once.
    send_alone: bool,
    /// Distance in bytes from one of the port's buffers to a later one, which is prefetched.
    prefetch_bytes: usize,
    /// Message data arrived since the last posted burst was sent.
    pub(crate) arrived: bool,
    /// Events of this poll for which threads may wait.
    pub(crate) pending_events: Event,
    /// VIs that have something to send.
    pub(crate) run: RunQueue,
    /// VIs to move to the Error state when the engine returns.
    pub(crate) failed: Vec<ViIndex>,
    /// VIs in the Error state: what is posted on them is flushed.
    pub(crate) errored: VecDeque<ViIndex>,
    pub(crate) counters: PathCounters,
    /// The attached applications, in a datapath process from the first attachment on.
    pub(crate) served: Option<Box<dyn ServedApplications>>,
    /// Calls of applications that wait.
    pub(crate) calls: CallWaiters,
    /// Completions, errors or waiting calls of applications are left for the next poll.
    pub(crate) has_undelivered: bool,
    /// The frame capture of an operator.
    pub(crate) tap: Option<Box<Tap>>,
    random: RandomWords,
    payload_buffer: PayloadBuffer,
    /// Copies for VIs whose memory belongs to an application.
    pub(crate) mover: Mover,
    /// Direct access to the memory of other stations.
    direct: Option<Box<DirectStation>>,
}

#[inline]
fn path_of(vis: &mut [Option<ViPath>], vi: ViIndex) -> Option<&mut ViPath> {
    vis.get_mut(vi.0 as usize)?.as_mut()
}

/// Adds the VI to the run queue, unless it is there.
#[inline]
fn enqueue(vis: &mut [Option<ViPath>], run: &mut RunQueue, vi: ViIndex) {
    if let Some(path) = path_of(vis, vi)
        && !path.queued
    {
        path.queued = true;
        let lane = path.client.map_or(OWN_LANE, ClientId::lane);
        run.push(lane, vi);
    }
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
            prefetch_bytes: port.capabilities().next_buffer_bytes * PREFETCHED_BUFFERS,
            port,
            lowered_mtu: None,
            failed_port: None,
            regions,
            events,
            vis: (0..max_vi).map(|_| None).collect(),
            batch: MbufBatch::new(),
            arrived: false,
            pending_events: Event::NONE,
            run: RunQueue::new(max_vi as usize),
            failed: Vec::with_capacity(max_vi as usize),
            errored: VecDeque::with_capacity(max_vi as usize),
            counters: PathCounters::default(),
            served: None,
            calls: CallWaiters::default(),
            has_undelivered: false,
            tap: None,
            random: RandomWords::default(),
            payload_buffer: PayloadBuffer::new(),
            mover: Mover::default(),
            direct: None,
        }
    }

    #[inline]
    pub(crate) fn vi(&mut self, vi: ViIndex) -> Option<&mut ViPath> {
        path_of(&mut self.vis, vi)
    }

    /// Returns true if the send queue has an unsent descriptor.
    #[inline]
    pub(crate) fn has_unsent(&mut self, vi: ViIndex) -> bool {
        self.vi(vi)
            .is_some_and(|path| path.shared.send.depth() > path.in_flight)
    }

    /// Splits the data path into a VI and the access to its memory.
    #[inline(always)]
    fn parts(&mut self, vi: ViIndex) -> (Option<&mut ViPath>, Memory<'_>) {
        let memory = Memory {
            regions: self.regions,
            mover: &mut self.mover,
        };
        (path_of(&mut self.vis, vi), memory)
    }

    /// Takes the events since the last call for which threads may wait.
    #[inline]
    pub(crate) fn take_pending_events(&mut self) -> Event {
        core::mem::take(&mut self.pending_events)
    }

    /// Adds the VI to the run queue, unless it is there.
    #[inline]
    pub(crate) fn enqueue(&mut self, vi: ViIndex) {
        enqueue(&mut self.vis, &mut self.run, vi);
    }

    /// Passes the batch to the port. Frames that the port does not accept stay.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if !self.batch.is_empty() {
            match &mut self.tap {
                None => {
                    self.port.tx_burst(&mut self.batch);
                }
                Some(tap) => tap.send(self.port.as_mut(), &mut self.batch),
            }
        }
    }

    /// Returns the buffers of unsent frames to the port.
    pub(crate) fn free_unsent(&mut self) {
        self.port.free_burst(&mut self.batch);
    }

    /// Replaces the failed port by one that drops all frames. The failed port is closed with the
    /// NIC. No received buffer may be outstanding.
    #[cold]
    pub(crate) fn fail_port(&mut self) {
        self.free_unsent();
        self.leave_stations();
        self.port.disarm();
        let successor = Box::new(FailedPort::after(self.port.as_ref()));
        self.failed_port = Some(core::mem::replace(&mut self.port, successor));
    }

    /// Allocates a buffer towards a station, if the port and the batch have room.
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

    /// Sends one data frame of this VI, whose payload `find` returns; `None`: its memory is no longer
    /// valid.
    #[inline(always)]
    fn transmit(
        &mut self,
        vi: ViIndex,
        frame: DataFrame<'_>,
        find: impl for<'b> FnOnce(&'b mut PayloadBuffer, &mut ViPath, Memory<'_>) -> Option<Payload<'b>>,
    ) -> Transmit {
        let Some(mut mbuf) = self.buffer(frame.template.dst()) else {
            return Transmit::NoRoom;
        };
        let Self {
            vis,
            regions,
            payload_buffer,
            mover,
            ..
        } = self;
        let memory = Memory { regions, mover };
        let payload = path_of(vis, vi).and_then(|path| find(payload_buffer, path, memory));
        let emitted = payload.and_then(|payload| {
            let frame = frame.with_payload(payload, self.prefetch_bytes);
            frame.emit(mbuf.buffer_mut()).ok()
        });
        self.push(mbuf, emitted)
    }

    /// Sends one frame, which `emit` writes into the port's buffer.
    #[inline]
    pub(crate) fn transmit_other(
        &mut self,
        dst: MacAddress,
        emit: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Transmit {
        let Some(mut mbuf) = self.buffer(dst) else {
            return Transmit::NoRoom;
        };
        let emitted = emit(mbuf.buffer_mut());
        self.push(mbuf, emitted)
    }

    /// Passes a frame of this length to the port, or adds it to the batch; `None`: it could not be written.
    #[inline(always)]
    fn push(&mut self, mut mbuf: Mbuf, emitted: Option<usize>) -> Transmit {
        let Some(bytes) = emitted else {
            self.port.free(mbuf);
            return Transmit::Fault;
        };
        mbuf.set_len(bytes);
        if self.send_alone && self.batch.is_empty() && self.tap.is_none() {
            if let Err(unsent) = self.port.tx_one(mbuf) {
                self.add_to_batch(unsent);
            }
            return Transmit::Sent;
        }
        self.add_to_batch(mbuf);
        if self.send_alone {
            self.flush();
        }
        Transmit::Sent
    }

    #[inline]
    fn add_to_batch(&mut self, mbuf: Mbuf) {
        if let Err(mbuf) = self.batch.push(mbuf) {
            // Not reached: `buffer` has checked the room.
            self.port.free(mbuf);
        }
    }

    /// Completes the head of a work queue.
    #[inline]
    fn complete(
        &mut self,
        vi: ViIndex,
        kind: QueueKind,
        word: u32,
        length_bytes: u32,
        immediate: Option<u32>,
    ) {
        let Some(path) = path_of(&mut self.vis, vi) else {
            return;
        };
        let (queue, target): (&WorkQueue, _) = match kind {
            QueueKind::Send => {
                path.in_flight = path.in_flight.saturating_sub(1);
                (&path.shared.send, path.send_target)
            }
            QueueKind::Receive => {
                path.claimed = path.claimed.saturating_sub(1);
                (&path.shared.recv, path.recv_target)
            }
        };
        let completion = CompletionStatus {
            word: word | status::DONE,
            length_bytes,
            immediate,
        };
        if let Some(client) = path.client
            && let Some(served) = &mut self.served
        {
            served.complete(client, path, kind, completion);
            return;
        }
        // SAFETY: we hold the backend lock, and have no reference to a slot.
        let completed = unsafe { complete_head(queue, self.regions, path.tag, completion) };
        let Some((sequence, lost)) = completed else {
            return;
        };
        let handle = path.handle;
        self.announce(handle, target, kind, sequence);
        if let Some(descriptor) = lost {
            self.report_lost(vi, kind, descriptor, completion.word);
        }
    }

    /// Announces the completion of this descriptor of a queue.
    #[inline]
    fn announce(&mut self, vi: u64, target: CompletionTarget, kind: QueueKind, sequence: u32) {
        self.pending_events |= target.event;
        if let Some(cq) = target.cq {
            let entry = RingEntry {
                vi,
                sequence,
                receive: kind == QueueKind::Receive,
            };
            // SAFETY: we hold the backend lock.
            unsafe { add_entry(cq, entry) };
        }
    }

    /// Reports that the memory of a completed descriptor was deregistered (VIPL 3.8.1). Called after
    /// the completion, so that an error handler finds the completion on the queue.
    #[cold]
    fn report_lost(&mut self, vi: ViIndex, kind: QueueKind, descriptor: u64, word: u32) {
        self.counters.lost_descriptors += 1;
        self.failed.push(vi);
        let Some(path) = self.vis.get(vi.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        let receive = kind == QueueKind::Receive;
        let error = lost_descriptor(path.handle, path.shared, receive, descriptor, word);
        self.events.push(error);
    }

    /// Counts and logs a connection that was lost while the MTU is too low.
    #[cold]
    fn note_break_by_mtu(&mut self, nic: &NicShared, vi: u64) {
        self.counters.breaks_by_mtu += 1;
        let interface = &self.port.capabilities().device;
        let line =
            format_args!("VI {vi:#x}: connection lost while the MTU of {interface} is too low");
        nic.log_limited(log::Level::Warn, line);
    }

    pub(crate) fn flush_queue(&mut self, vi: ViIndex, kind: QueueKind) {
        loop {
            let Some(path) = self.vi(vi) else {
                return;
            };
            let queue = match kind {
                QueueKind::Send => &path.shared.send,
                QueueKind::Receive => &path.shared.recv,
            };
            // SAFETY: we hold the backend lock; the reference is not kept.
            let Some(slot) = (unsafe { queue.head() }) else {
                return;
            };
            let op = match kind {
                QueueKind::Send => send_operation(slot.control),
                QueueKind::Receive => status::OP_RECEIVE,
            };
            self.complete(vi, kind, status::DESC_FLUSHED_ERROR | op, 0, None);
        }
    }
}
