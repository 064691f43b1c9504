//! The poller of a NIC: receives, serves timers and doorbells, and transmits, in poll iterations of bounded work.

use std::time::Instant;

use pmd_port::{BURST, MbufBatch, PortEvent, PortFailure, WakeSource};
use vi_core::doorbell::Doorbells;
use vi_engine::{Engine, EngineIo, Pumped};
use vi_types::{ViIndex, ViState};

use crate::clock::Clock;
use crate::coalesce::Coalescer;
use crate::datapath::Datapath;
use crate::discovery::Discovery;
use crate::neighbours::Neighbours;
use crate::open::Claim;
use crate::transport::Transport;

mod port_events;

/// VIs that are served in one poll.
const POLL_BUDGET_VIS: usize = 16;
/// Timers that are served in one poll.
const TIMER_BUDGET: u32 = 64;

/// Polls between two calls of [`Poller::housekeeping`]: clock, timers, stations.
const HOUSEKEEPING_POLLS: u64 = 32;

/// Housekeeping calls between two readings of the clock while the NIC is polled without pause: some
/// microseconds. For a program that polls rarely, the NIC's thread reads the clock with each upkeep.
const HOUSEKEEPING_CLOCK_CALLS: u32 = 4;
/// With recovery: idle polls between two readings of the clock, about a microsecond.
const IDLE_POLLS: u32 = 16;

/// One poll in this many is timed: a prime, so that the sample does not coincide with housekeeping or
/// with a period of the program.
const POLLS_PER_SAMPLE: u64 = 61;

/// Receive attempts in a poll that finds no frame.
const RX_ATTEMPTS: u32 = 4;

/// The state of a NIC that is owned by the thread that holds the backend lock.
pub(crate) struct Poller {
    pub(crate) engine: Transport,
    pub(crate) path: Datapath,
    pub(crate) neighbours: Neighbours,
    /// `None` where the network is configured.
    pub(crate) discovery: Option<Box<Discovery>>,
    pub(crate) clock: Clock,
    pub(crate) coalescer: Coalescer,
    rx: MbufBatch,
    /// Posted messages that are delayed to be sent by one system call.
    waiting: usize,
    port_events: Vec<PortEvent>,
    /// The wake source on which the NIC's thread sleeps until a frame arrives.
    pub(crate) armed: Option<WakeSource>,
    /// The engine's recovery is on, which needs the time in every poll.
    has_recovery: bool,
    /// The previous poll did work: the last reading of the clock is outdated.
    worked: bool,
    /// The failure of the port, if it failed.
    pub(crate) failure: Option<PortFailure>,
    /// A failed allocation of a ring was logged.
    ring_failure_logged: bool,
    /// Poll iterations, and those that did work (counters `turns` and `busy_turns`).
    pub(crate) polls: u64,
    pub(crate) busy_polls: u64,
    /// Sampled busy polls: their number (counter `timed_turns`) and total duration.
    pub(crate) timed_polls: u64,
    pub(crate) timed_ns: u64,
    /// Holds the claim on the N_Port_ID.
    _claim: Option<Claim>,
}

impl Poller {
    pub(crate) fn new(
        engine: Transport,
        path: Datapath,
        neighbours: Neighbours,
        discovery: Option<Box<Discovery>>,
        coalescer: Coalescer,
        claim: Option<Claim>,
    ) -> Self {
        Self {
            has_recovery: engine
                .fc_vi()
                .is_some_and(|engine| engine.config().recovery.is_some()),
            worked: true,
            engine,
            path,
            neighbours,
            discovery,
            clock: Clock::new(),
            coalescer,
            rx: MbufBatch::new(),
            waiting: 0,
            port_events: Vec::with_capacity(64),
            armed: None,
            failure: None,
            ring_failure_logged: false,
            polls: 0,
            busy_polls: 0,
            timed_polls: 0,
            timed_ns: 0,
            _claim: claim,
        }
    }

    /// Runs one poll iteration, of bounded work. Returns true if anything was done.
    ///
    /// Receiving is last, so that the waiting call sees a message without further delay.
    #[inline]
    pub(crate) fn poll(&mut self, doorbells: &Doorbells) -> bool {
        if self.polls.is_multiple_of(POLLS_PER_SAMPLE) {
            return self.timed_poll(doorbells);
        }
        self.poll_once(doorbells)
    }

    /// Runs one poll iteration and measures its duration.
    #[inline(never)]
    fn timed_poll(&mut self, doorbells: &Doorbells) -> bool {
        let begun = Instant::now();
        let worked = self.poll_once(doorbells);
        if worked {
            self.timed_polls += 1;
            self.timed_ns += begun.elapsed().as_nanos() as u64;
        }
        worked
    }

    #[inline]
    fn poll_once(&mut self, doorbells: &Doorbells) -> bool {
        self.polls += 1;
        self.path.mover.begin_poll();
        if self.has_coalesced() {
            self.send_coalesced();
        }
        let mut worked = false;
        self.free_received();
        if self.polls.is_multiple_of(HOUSEKEEPING_POLLS) {
            worked = self.housekeeping();
        }
        if self.has_recovery {
            worked |= self.tick();
        }
        let now_ns = self.clock.last_ns();
        doorbells.drain(|vi| self.path.enqueue(ViIndex(vi)));
        if !self.path.clients.is_empty() {
            worked |= self.path.take_submissions();
        }
        if !self.path.run.is_empty() {
            worked |= self.serve(now_ns);
            self.fail_and_flush(now_ns);
        }
        self.worked = self.receive(now_ns) || worked;
        if !self.path.clients.is_empty() {
            self.worked |= self.path.deliver_completions();
        }
        self.busy_polls += u64::from(self.worked);
        self.worked
    }

    /// Runs a poll iteration with clock and housekeeping: before a thread sleeps on the port.
    pub(crate) fn poll_thoroughly(&mut self, doorbells: &Doorbells) -> bool {
        self.clock.now_ns();
        self.polls = (self.polls + 1).next_multiple_of(HOUSEKEEPING_POLLS) - 1;
        if let Transport::ViTcp(tcp) = &mut self.engine {
            tcp.poll_epoll_next();
        }
        self.poll(doorbells)
    }

    /// Returns true while frames or descriptors wait for room in the port.
    pub(crate) fn has_unsent(&self) -> bool {
        let streams = match &self.engine {
            Transport::FcVi(_) => false,
            Transport::ViTcp(tcp) => tcp.has_more(),
        };
        streams || !self.path.run.is_empty() || !self.path.batch.is_empty()
    }

    /// Reads the clock, unless the previous poll was idle and so took negligible time, and serves
    /// timers. Returns true if a timer was due. Not inlined: a poll without recovery stays small.
    #[inline(never)]
    fn tick(&mut self) -> bool {
        let now_ns = if self.worked {
            self.clock.now_ns()
        } else {
            self.clock.coarse_ns(IDLE_POLLS)
        };
        let due = self.serve_timers(now_ns);
        if due {
            self.fail_and_flush(now_ns);
        }
        due
    }

    /// Serves timers. Returns true if one was due.
    #[inline]
    fn serve_timers(&mut self, now_ns: u64) -> bool {
        let due = self.engine.poll_timeout().is_some_and(|at| at <= now_ns);
        if due {
            self.engine
                .handle_timeout(now_ns, TIMER_BUDGET, &mut self.path);
        }
        due
    }

    /// Serves clock, timers, discovery, port events and VIs in the Error state.
    fn housekeeping(&mut self) -> bool {
        let now_ns = self.clock.coarse_ns(HOUSEKEEPING_CLOCK_CALLS);
        let mut worked = self.serve_timers(now_ns);
        let has_unlogged_port = self.engine.fc_vi().is_some_and(Engine::has_unlogged_port);
        if (self.discovery.as_ref()).is_some_and(|d| has_unlogged_port || d.is_due(now_ns)) {
            self.serve_discovery(now_ns);
            worked = true;
        }
        worked |= self.serve_port_events(now_ns);
        if !self.path.errored.is_empty() {
            self.flush_one_errored();
        }
        self.fail_and_flush(now_ns);
        worked
    }

    /// Completes a call of the engine: fails the VIs that it marked, and flushes the batch.
    #[inline]
    fn fail_and_flush(&mut self, now_ns: u64) {
        if !self.path.failed.is_empty() {
            self.fail_vis(now_ns);
        }
        self.path.flush();
    }

    /// Returns the buffers of the last burst to the port.
    #[inline]
    fn free_received(&mut self) {
        while let Some(mbuf) = self.rx.pop() {
            self.path.port.free(mbuf);
        }
    }

    /// Receives and handles frames. Their buffers are returned to the port in the next poll.
    #[inline]
    fn receive(&mut self, now_ns: u64) -> bool {
        let engine = match &mut self.engine {
            Transport::FcVi(engine) => engine,
            Transport::ViTcp(_) => return self.receive_streams(now_ns),
        };
        // Several attempts in a row find an arriving frame sooner than whole poll iterations would.
        let mut attempts = RX_ATTEMPTS;
        while self.path.port.rx_burst(&mut self.rx, BURST) == 0 {
            attempts -= 1;
            if attempts == 0 {
                return false;
            }
        }
        if let Some(tap) = &mut self.path.tap {
            tap.received(&self.rx);
        }
        let waiting = self.path.run.len();
        let mut discovered = false;
        for mbuf in self.rx.iter() {
            if let Some(discovery) = &mut self.discovery
                && discovery.handle_frame(now_ns, mbuf.bytes())
            {
                discovered = true;
                continue;
            }
            engine.handle_frame(now_ns, mbuf.bytes(), &mut self.path);
            // So later frames of the burst find the VI in the Error state.
            while let Some(vi) = self.path.failed.pop() {
                engine.fail_vi(now_ns, vi, &mut self.path);
            }
        }
        if discovered {
            self.serve_discovery(now_ns);
        }
        if self.path.run.len() > waiting {
            // A peer waits for an RDMA read, or a descriptor for an earlier one.
            self.serve(now_ns);
        }
        self.fail_and_flush(now_ns);
        true
    }

    /// Receives and handles segments of the sockets.
    #[inline(never)]
    fn receive_streams(&mut self, now_ns: u64) -> bool {
        self.coalescer.on_idle();
        let corked = self.has_corked();
        let push_ns = if corked { self.read_clock() } else { now_ns };
        let Transport::ViTcp(tcp) = &mut self.engine else {
            return false;
        };
        if corked {
            tcp.push(push_ns, false);
        }
        let worked = tcp.poll_sockets(now_ns, &mut self.path);
        if !self.path.run.is_empty() {
            // A peer waits for an acknowledgement or for an RDMA read.
            self.serve(now_ns);
        }
        self.fail_and_flush(now_ns);
        worked
    }

    /// Serves VIs that have something to send. Returns true if a descriptor or frame made progress.
    fn serve(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        for _ in 0..self.path.run.len().min(POLL_BUDGET_VIS) {
            let Some(vi) = self.path.run.pop() else {
                break;
            };
            // Before it is served: the engine may queue it again meanwhile.
            if let Some(path) = self.path.vi(vi) {
                path.queued = false;
            }
            let pumped = self.pump(now_ns, vi);
            worked |= pumped != Pumped::Blocked;
            if pumped != Pumped::Idle {
                self.path.enqueue(vi);
            }
        }
        worked
    }

    /// Moves a VI that a post has marked as broken to Error; called by the thread that posted.
    #[cold]
    pub(crate) fn fail_broken(&mut self, vi: ViIndex) {
        let now_ns = self.clock.now_ns();
        if self
            .path
            .vi(vi)
            .is_some_and(|path| path.shared.take_broken())
        {
            self.engine.fail_vi(now_ns, vi, &mut self.path);
        }
        self.fail_and_flush(now_ns);
    }

    #[inline]
    fn pump(&mut self, now_ns: u64, vi: ViIndex) -> Pumped {
        let Some(path) = self.path.vi(vi) else {
            return Pumped::Idle;
        };
        if path.shared.take_broken() {
            self.engine.fail_vi(now_ns, vi, &mut self.path);
        }
        let pumped = self.engine.pump(now_ns, vi, &mut self.path);
        if !self.path.failed.is_empty() {
            self.fail_vis(now_ns);
        }
        pumped
    }

    /// Sends what was just posted on this VI, at once or in a later burst; what does not fit stays queued.
    #[inline]
    pub(crate) fn kick(&mut self, vi: ViIndex) {
        if self.engine.is_tcp() {
            self.kick_stream(vi);
            return;
        }
        match self.path.vi(vi) {
            None => return,
            Some(path) if path.queued => {
                self.enqueue_posted(vi);
                return;
            }
            Some(_) => {}
        }
        if core::mem::take(&mut self.path.arrived) {
            self.coalescer.on_receive();
        }
        let waiting = self.path.batch.len();
        let now_ns = if self.coalescer.needs_time(waiting) || (self.has_recovery && waiting == 0) {
            self.read_clock()
        } else {
            self.clock.last_ns()
        };
        if self.pump(now_ns, vi) != Pumped::Idle {
            self.path.enqueue(vi);
        }
        let frames = self.path.batch.len();
        if !self.coalescer.should_wait(now_ns, frames) {
            self.path.flush();
            if frames > 1 {
                // Sending a long burst takes time, which must not count as a pause.
                let now_ns = self.read_clock();
                self.coalescer.on_sent(now_ns, frames);
            }
        }
    }

    /// Leaves what was just posted to a later poll. What is to be flushed is completed before the post returns
    /// (VIPL 2.4, 3.3.5).
    fn enqueue_posted(&mut self, vi: ViIndex) {
        if self.engine.state(vi) == Some(ViState::Connected) {
            self.path.enqueue(vi);
        } else {
            self.flush_unconnected(vi);
        }
    }

    /// As [`Poller::kick`] for sockets: messages are delayed so that one system call sends several.
    fn kick_stream(&mut self, vi: ViIndex) {
        if !self.path.has_unsent(vi) {
            self.notify_receive(vi);
            return;
        }
        if core::mem::take(&mut self.path.arrived) {
            self.coalescer.on_receive();
        }
        let waiting = self.waiting;
        let now_ns = if self.coalescer.needs_time(waiting) {
            self.read_clock()
        } else {
            self.clock.last_ns()
        };
        self.waiting += 1;
        if self.coalescer.should_wait(now_ns, self.waiting) {
            self.enqueue_posted(vi);
            return;
        }
        self.waiting = 0;
        // No other VI is queued before it.
        let alone = self.path.run.is_empty();
        if !alone || self.pump(now_ns, vi) != Pumped::Idle {
            self.path.enqueue(vi);
        }
        if !alone {
            self.serve(now_ns);
        }
        self.fail_and_flush(now_ns);
    }

    /// Handles a posted receive that may have to be advertised to the peer: it is not delayed, and
    /// does not count as a send.
    fn notify_receive(&mut self, vi: ViIndex) {
        let now_ns = self.clock.last_ns();
        // Delayed messages are sent first, and carry the advertisement.
        let alone = self.waiting == 0 && self.path.run.is_empty();
        if !alone || self.pump(now_ns, vi) != Pumped::Idle {
            self.path.enqueue(vi);
        }
        self.fail_and_flush(now_ns);
    }

    /// Returns true while messages or frames are delayed for a burst.
    #[inline]
    pub(crate) fn has_coalesced(&self) -> bool {
        !self.path.batch.is_empty() || self.waiting > 0
    }

    /// Returns true while TCP holds sent bytes back (corked).
    #[inline]
    pub(crate) fn has_corked(&self) -> bool {
        matches!(&self.engine, Transport::ViTcp(tcp) if tcp.has_corked())
    }

    /// Sends the frames and messages that are delayed for a burst.
    #[inline]
    fn send_coalesced(&mut self) {
        self.path.flush();
        let now_ns = self.read_clock();
        let waiting = core::mem::take(&mut self.waiting);
        self.coalescer.on_sent(now_ns, waiting);
        if waiting > 0 {
            self.serve(now_ns);
            self.fail_and_flush(now_ns);
        }
    }

    /// As [`Poller::send_coalesced`], and uncorks TCP: for a caller that makes no other call soon.
    pub(crate) fn send_all(&mut self) {
        self.send_coalesced();
        if let Transport::ViTcp(tcp) = &mut self.engine {
            tcp.push(0, true);
        }
    }

    /// Reads the clock. The next poll need not read it again.
    #[inline]
    fn read_clock(&mut self) -> u64 {
        self.worked = false;
        self.clock.now_ns()
    }

    #[cold]
    fn fail_vis(&mut self, now_ns: u64) {
        while let Some(vi) = self.path.failed.pop() {
            self.engine.fail_vi(now_ns, vi, &mut self.path);
        }
    }

    /// Flushes one VI in the Error state: bounded work however many there are.
    fn flush_one_errored(&mut self) {
        let Some(vi) = self.path.errored.pop_front() else {
            return;
        };
        if self.flush_unconnected(vi) == Some(ViState::Error) {
            self.path.errored.push_back(vi);
        }
    }

    /// Flushes descriptors that the VI's state does not allow to be processed: sends outside
    /// Connected, receives in Error. Returns the state.
    pub(crate) fn flush_unconnected(&mut self, vi: ViIndex) -> Option<ViState> {
        let state = self.engine.state(vi)?;
        if state != ViState::Connected {
            self.path.flush_sends(vi);
        }
        if state == ViState::Error {
            self.path.flush_receives(vi);
        }
        Some(state)
    }
}

impl Drop for Poller {
    /// Returns all buffers: a port that is closed with buffers outstanding keeps their memory.
    fn drop(&mut self) {
        self.free_received();
        self.path.free_unsent();
    }
}
