//! What the protocol engine asks for, done: queues, memory, port.
//!
//! Everything here runs under the NIC's turn.

use std::collections::VecDeque;

use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fcoe::Eof;
use pmd_port::layer::FailedPort;
use pmd_port::{Mbuf, MbufBatch, MtuChange, Port};
use vi_engine::{Transmit, ViIndex};

use crate::attach::client::{Client, ClientId, Clients};
use crate::completion::{Ending, Reports, add_entry, complete_head, lost_descriptor};
use crate::cq::Entry;
use crate::descriptor::{send_operation, status};
use crate::events::EventQueue;
use crate::memory::TagCheck;
use crate::memory::place::Owner;
use crate::memory::table::RegionTable;
use crate::memory::transfer::Mover;
use crate::post::{Cursor, SlotCursor};
use crate::queue::{Slot, WorkQueue};
use crate::sleepers::Event;
use crate::sys::RandomWords;
use crate::tap::Tap;
use crate::vi::{CqShared, ViShared};
use crate::workbench::Workbench;

mod clients;
mod host;
mod local;
mod mtu;
mod reads;
mod run_queue;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use run_queue::{OWN_LANE, RunQueue};

/// A VI as the poller knows it.
pub(crate) struct ViPath {
    pub(crate) shared: &'static ViShared,
    pub(crate) handle: u64,
    pub(crate) tag: TagCheck,
    /// The application whose it is, in a datapath process.
    pub(crate) client: Option<ClientId>,
    /// Whose memory it uses.
    owner: Owner,
    /// What its application was told of.
    pub(crate) traffic: Traffic,
    /// Its application has not been told of all that is complete on its send and receive queue.
    pub(crate) untold: [bool; 2],
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
            client: None,
            owner: Owner::PROGRAM,
            untold: [false; 2],
            traffic: Traffic::default(),
            send_reports: Reports::of(send_cq, shared.index.0, false),
            recv_reports: Reports::of(recv_cq, shared.index.0, true),
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

impl ViPath {
    /// From now on the VI is an application's, and its memory too.
    pub(crate) fn serve(&mut self, client: ClientId, owner: Owner) {
        self.client = Some(client);
        self.owner = owner;
        self.show(self.tag);
    }

    /// Is a receive posted that no message has claimed?
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.shared.recv.depth() > self.claimed
    }

    /// From now on the VI shows this tag to regions.
    pub(crate) fn show(&mut self, tag: TagCheck) {
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
    /// Frames that the port had no room for at once.
    pub(crate) tx_no_room: u64,
    /// Connections that were lost while the interface's MTU was lower than the port's frames.
    pub(crate) breaks_by_mtu: u64,
}

/// Where the memory of a VI is found, and how bytes get there and back.
struct Memory<'a> {
    regions: &'a RegionTable,
    mover: &'a mut Mover,
}

/// Queues, memory and port of one NIC.
pub(crate) struct Datapath {
    pub(crate) port: Box<dyn Port>,
    /// The interface's MTU is lower than the port's frames.
    pub(crate) lowered_mtu: Option<MtuChange>,
    /// The port before, once it failed.
    failed_port: Option<Box<dyn Port>>,
    pub(crate) regions: &'static RegionTable,
    pub(crate) events: &'static EventQueue,
    pub(crate) vis: Vec<Option<ViPath>>,
    pub(crate) batch: MbufBatch,
    /// A burst of one frame costs the port no more than its share of a larger burst:
    /// frames are given to it at once.
    send_alone: bool,
    /// Something of a message came here since the last burst that was posted went.
    pub(crate) arrived: bool,
    /// What happened in this turn that somebody may sleep for.
    pub(crate) happened: Event,
    /// VIs that have something to send.
    pub(crate) run: RunQueue,
    /// VIs that must go to the Error state when the engine is done with its verb.
    pub(crate) failed: Vec<ViIndex>,
    /// VIs that went to the Error state: what is posted there is flushed.
    pub(crate) errored: VecDeque<ViIndex>,
    pub(crate) counters: PathCounters,
    /// The applications that are served, in a datapath process.
    pub(crate) clients: Clients,
    /// An operator looks at the frames.
    pub(crate) tap: Option<Box<Tap>>,
    random: RandomWords,
    workbench: Box<Workbench>,
    /// For VIs whose memory is an application's.
    pub(crate) mover: Mover,
}

/// One of the two work queues of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// The lane of an application.
#[inline]
fn lane_of(id: ClientId) -> u32 {
    id.0 + 1
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
            lowered_mtu: None,
            failed_port: None,
            regions,
            events,
            vis: (0..max_vi).map(|_| None).collect(),
            batch: MbufBatch::new(),
            arrived: false,
            happened: Event::NONE,
            run: RunQueue::new(max_vi as usize),
            failed: Vec::with_capacity(max_vi as usize),
            errored: VecDeque::with_capacity(max_vi as usize),
            counters: PathCounters::default(),
            clients: Clients::default(),
            tap: None,
            random: RandomWords::default(),
            workbench: Workbench::new(),
            mover: Mover::new(),
        }
    }

    /// Begins to serve an application.
    pub(crate) fn add_client(&mut self, client: Client) -> ClientId {
        let share = client.share();
        let id = self.clients.add(client);
        self.run.open(lane_of(id), share);
        id
    }

    #[inline]
    pub(crate) fn vi(&mut self, vi: ViIndex) -> Option<&mut ViPath> {
        self.vis.get_mut(vi.0 as usize)?.as_mut()
    }

    /// What happened since the last time that somebody may sleep for.
    #[inline]
    pub(crate) fn take_happened(&mut self) -> Event {
        core::mem::take(&mut self.happened)
    }

    /// Has the VI served when its turn comes.
    #[inline]
    pub(crate) fn enqueue(&mut self, vi: ViIndex) {
        if let Some(path) = self.vi(vi)
            && !path.queued
        {
            path.queued = true;
            let lane = path.client.map_or(OWN_LANE, lane_of);
            self.run.push(lane, vi);
        }
    }

    /// Gives what is in the batch to the port. What it does not take stays.
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

    /// Gives the buffers of frames that were not sent back to the port.
    pub(crate) fn free_unsent(&mut self) {
        while let Some(mbuf) = self.batch.pop() {
            self.port.free(mbuf);
        }
    }

    /// Puts a port in the place of the one that failed that carries nothing. The failed one is
    /// closed with the NIC. No received buffer is out.
    #[cold]
    pub(crate) fn fail_port(&mut self) {
        self.free_unsent();
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
        build: impl FnOnce(&mut Workbench, &mut ViPath, Memory<'_>) -> Option<usize>,
    ) -> Transmit {
        let Some(mbuf) = self.buffer(dst) else {
            return Transmit::NoRoom;
        };
        let Self {
            vis,
            regions,
            workbench,
            mover,
            ..
        } = self;
        let path = vis.get_mut(vi.0 as usize).and_then(Option::as_mut);
        let built = path.and_then(|path| build(workbench, path, Memory { regions, mover }));
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

    /// Completes the head of a queue.
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
        let ending = Ending {
            word: word | status::DONE,
            length_bytes,
            immediate,
        };
        if let Some(client) = path.client {
            self.clients.complete(client, path, side, ending);
            return;
        }
        // SAFETY: we run under the turn, and have no reference to a slot.
        let completed = unsafe { complete_head(queue, self.regions, path.tag, ending) };
        let Some((sequence, lost)) = completed else {
            return;
        };
        self.happened |= reports.event;
        if let Some(cq) = reports.cq {
            let entry = Entry {
                vi: path.handle,
                sequence,
                receive: side == Side::Receive,
            };
            // SAFETY: we run under the turn.
            unsafe { add_entry(cq, entry) };
        }
        if let Some(descriptor) = lost {
            self.tell_lost(vi, side, descriptor, ending.word);
        }
    }

    /// The memory of a descriptor that completed is gone: an error tells it (VIPL 3.8.1). Comes
    /// after the completion, so that whoever hears of it finds that on the queue.
    #[cold]
    fn tell_lost(&mut self, vi: ViIndex, side: Side, descriptor: u64, word: u32) {
        self.counters.lost_descriptors += 1;
        self.failed.push(vi);
        let Some(path) = self.vis.get(vi.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        let receive = side == Side::Receive;
        let error = lost_descriptor(path.handle, path.shared, receive, descriptor, word);
        self.events.push(error);
    }

    pub(crate) fn flush_queue(&mut self, vi: ViIndex, side: Side) {
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
                Side::Send => send_operation(slot.control),
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
