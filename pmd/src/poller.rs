//! The one poll loop: frames in, timers, doorbells, frames out.

use std::time::Instant;

use pmd_port::{BURST, MbufBatch, PortEvent, PortFailure, WakeSource};
use vi_engine::{EndpointState, Engine, Host, Pumped, ViIndex};

use crate::clock::Clock;
use crate::coalesce::Coalescer;
use crate::datapath::Datapath;
use crate::discovery::Discovery;
use crate::doorbell::Doorbells;
use crate::neighbours::Neighbours;
use crate::open::Claim;
use crate::transport::Transport;

mod port_events;

/// VIs that are served in one turn.
const TURN_BUDGET_VIS: usize = 16;
/// Timers that are served in one turn.
const TIMER_BUDGET: u32 = 64;

/// Turns between two looks at clock, timers and stations.
const HOUSEKEEPING_TURNS: u64 = 32;

/// Looks after the house between two readings of the clock while the NIC is polled without
/// pause: some microseconds. However rarely a program polls, the NIC's thread has the clock
/// read with each upkeep.
const HOUSEKEEPING_LOOKS: u32 = 4;
/// Where time is measured: turns that find nothing between two readings, about a microsecond.
const IDLE_TURNS: u32 = 16;

/// One turn in so many is timed: a prime, so that it is not always a turn that looks after the
/// house, nor always the same one of a program's rhythm.
const TURNS_PER_TIMED: u64 = 61;

/// Looks for frames in one turn that finds none.
const RX_LOOKS: u32 = 4;

/// All state of a NIC that one thread at a time works on.
pub(crate) struct Poller {
    pub(crate) engine: Transport,
    pub(crate) path: Datapath,
    pub(crate) neighbours: Neighbours,
    /// `None` where the network is known.
    pub(crate) discovery: Option<Box<Discovery>>,
    pub(crate) clock: Clock,
    pub(crate) coalescer: Coalescer,
    rx: MbufBatch,
    /// Messages that were posted and wait for others, where a system call takes them all.
    waiting: usize,
    port_events: Vec<PortEvent>,
    /// The NIC's thread sleeps on this until a frame comes.
    pub(crate) armed: Option<WakeSource>,
    /// Recovery measures time.
    timed: bool,
    /// The turn before did something: the time that the clock read last is over.
    worked: bool,
    /// Why the port carries nothing any more.
    pub(crate) failure: Option<PortFailure>,
    /// It was logged that memory for a ring could not be had.
    ring_failure_told: bool,
    /// Turns taken, and turns that did something.
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    /// Of some busy turns, how many they were and how long they took.
    pub(crate) timed_turns: u64,
    pub(crate) timed_ns: u64,
    /// What keeps our N_Port_ID ours.
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
            timed: engine
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
            ring_failure_told: false,
            turns: 0,
            busy_turns: 0,
            timed_turns: 0,
            timed_ns: 0,
            _claim: claim,
        }
    }

    /// One turn of bounded work. True if anything was done.
    ///
    /// Receiving comes last, so that nothing stands between a message that arrives
    /// and the call that waits for it.
    #[inline]
    pub(crate) fn turn(&mut self, doorbells: &Doorbells) -> bool {
        if self.turns.is_multiple_of(TURNS_PER_TIMED) {
            return self.timed_turn(doorbells);
        }
        self.take_turn(doorbells)
    }

    /// One turn of which it is known how long it took.
    #[inline(never)]
    fn timed_turn(&mut self, doorbells: &Doorbells) -> bool {
        let begun = Instant::now();
        let worked = self.take_turn(doorbells);
        if worked {
            self.timed_turns += 1;
            self.timed_ns += begun.elapsed().as_nanos() as u64;
        }
        worked
    }

    #[inline]
    fn take_turn(&mut self, doorbells: &Doorbells) -> bool {
        self.turns += 1;
        self.path.mover.begin_turn();
        if self.has_coalesced() {
            self.send_coalesced();
        }
        let mut worked = false;
        self.free_received();
        if self.turns.is_multiple_of(HOUSEKEEPING_TURNS) {
            worked = self.keep_house();
        }
        if self.timed {
            worked |= self.keep_time();
        }
        let now_ns = self.clock.last_ns();
        doorbells.drain(|vi| self.path.enqueue(ViIndex(vi)));
        if !self.path.clients.is_empty() {
            worked |= self.path.take_submissions();
        }
        if !self.path.run.is_empty() {
            worked |= self.serve(now_ns);
            self.settle(now_ns);
        }
        self.worked = self.receive(now_ns) || worked;
        if !self.path.clients.is_empty() {
            self.path.settle_clients();
        }
        self.busy_turns += u64::from(self.worked);
        self.worked
    }

    /// A turn that looks at everything: before a thread goes to sleep on the port.
    pub(crate) fn long_turn(&mut self, doorbells: &Doorbells) -> bool {
        self.clock.now_ns();
        self.turns = (self.turns + 1).next_multiple_of(HOUSEKEEPING_TURNS) - 1;
        if let Transport::ViTcp(tcp) = &mut self.engine {
            tcp.look_at_all_next();
        }
        self.turn(doorbells)
    }

    /// True while something waits for room in the port.
    pub(crate) fn has_unsent(&self) -> bool {
        let streams = match &self.engine {
            Transport::FcVi(_) => false,
            Transport::ViTcp(tcp) => tcp.has_more(),
        };
        streams || !self.path.run.is_empty() || !self.path.batch.is_empty()
    }

    /// Reads the clock, unless the turn before found nothing: that took no time worth reading.
    /// True if a timer was due. Apart, so that a turn without recovery stays small.
    #[inline(never)]
    fn keep_time(&mut self) -> bool {
        let now_ns = if self.worked {
            self.clock.now_ns()
        } else {
            self.clock.look_ns(IDLE_TURNS)
        };
        let due = self.serve_timers(now_ns);
        if due {
            self.settle(now_ns);
        }
        due
    }

    /// True if a timer was due.
    #[inline]
    fn serve_timers(&mut self, now_ns: u64) -> bool {
        let due = self.engine.poll_timeout().is_some_and(|at| at <= now_ns);
        if due {
            self.engine
                .handle_timeout(now_ns, TIMER_BUDGET, &mut self.path);
        }
        due
    }

    /// Clock, timers, stations, VIs in trouble.
    fn keep_house(&mut self) -> bool {
        let now_ns = self.clock.look_ns(HOUSEKEEPING_LOOKS);
        let mut worked = self.serve_timers(now_ns);
        let has_stranger = self.engine.fc_vi().is_some_and(Engine::has_stranger);
        if (self.discovery.as_ref()).is_some_and(|d| has_stranger || d.is_due(now_ns)) {
            self.serve_discovery(now_ns);
            worked = true;
        }
        worked |= self.serve_port_events(now_ns);
        if !self.path.errored.is_empty() {
            self.flush_one_errored();
        }
        self.settle(now_ns);
        worked
    }

    /// Ends what the engine's verbs left: VIs to fail, frames in the batch.
    #[inline]
    fn settle(&mut self, now_ns: u64) {
        if !self.path.failed.is_empty() {
            self.fail_vis(now_ns);
        }
        self.path.flush();
    }

    /// Gives the buffers of the last burst back to the port.
    #[inline]
    fn free_received(&mut self) {
        while let Some(mbuf) = self.rx.pop() {
            self.path.port.free(mbuf);
        }
    }

    /// Handles what came. The buffers go back to the port in the next turn.
    #[inline]
    fn receive(&mut self, now_ns: u64) -> bool {
        let engine = match &mut self.engine {
            Transport::FcVi(engine) => engine,
            Transport::ViTcp(_) => return self.receive_streams(now_ns),
        };
        // A few quick looks: a frame that is just arriving is found sooner than by whole
        // turns, and the caller has nothing better to do than to wait for it.
        let mut looks = RX_LOOKS;
        while self.path.port.rx_burst(&mut self.rx, BURST) == 0 {
            looks -= 1;
            if looks == 0 {
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
                && discovery.takes(now_ns, mbuf.bytes())
            {
                discovered = true;
                continue;
            }
            engine.handle_frame(now_ns, mbuf.bytes(), &mut self.path);
            // The frames behind it in the burst find the VI in the Error state.
            while let Some(vi) = self.path.failed.pop() {
                engine.fail_vi(now_ns, vi, &mut self.path);
            }
        }
        if discovered {
            self.serve_discovery(now_ns);
        }
        if self.path.run.len() > waiting {
            // A peer waits for what it read, or a descriptor for the end of another one.
            self.serve(now_ns);
        }
        self.settle(now_ns);
        true
    }

    /// Handles what came through sockets.
    #[inline(never)]
    fn receive_streams(&mut self, now_ns: u64) -> bool {
        self.coalescer.turned();
        let corked = self.has_corked();
        let push_ns = if corked { self.read_clock() } else { now_ns };
        let Transport::ViTcp(tcp) = &mut self.engine else {
            return false;
        };
        if corked {
            tcp.push(push_ns, false);
        }
        let worked = tcp.look(now_ns, &mut self.path);
        if !self.path.run.is_empty() {
            // A peer waits for an acknowledgement or for what it read.
            self.serve(now_ns);
        }
        self.settle(now_ns);
        worked
    }

    /// Serves VIs that have something to send. True if a descriptor or frame moved on.
    fn serve(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        for _ in 0..self.path.run.len().min(TURN_BUDGET_VIS) {
            let Some(vi) = self.path.run.pop() else {
                break;
            };
            // Before it is served: the engine may ask for it again meanwhile.
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
        self.settle(now_ns);
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

    /// Sends what was just posted on this VI, at once or in a burst with what follows; what does not fit waits its turn.
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
            self.coalescer.answers();
        }
        let waiting = self.path.batch.len();
        let now_ns = if self.coalescer.wants_time(waiting) || (self.timed && waiting == 0) {
            self.read_clock()
        } else {
            self.clock.last_ns()
        };
        if self.pump(now_ns, vi) != Pumped::Idle {
            self.path.enqueue(vi);
        }
        let frames = self.path.batch.len();
        if !self.coalescer.waits(now_ns, frames) {
            self.path.flush();
            if frames > 1 {
                // A long burst takes its time, which is none in which nothing was sent.
                let now_ns = self.read_clock();
                self.coalescer.sent(now_ns, frames);
            }
        }
    }

    /// Leaves what was just posted to a later turn, but not what is flushed: its post returns with it complete
    /// (VIPL 2.4, 3.3.5).
    fn enqueue_posted(&mut self, vi: ViIndex) {
        if self.engine.state(vi) == Some(EndpointState::Connected) {
            self.path.enqueue(vi);
        } else {
            self.flush_unconnected(vi);
        }
    }

    /// As [`Poller::kick`] where a system call takes what is posted: messages wait for each other,
    /// and go with one.
    fn kick_stream(&mut self, vi: ViIndex) {
        if !self.path.has_unsent(vi) {
            self.tell_receive(vi);
            return;
        }
        if core::mem::take(&mut self.path.arrived) {
            self.coalescer.answers();
        }
        let waiting = self.waiting;
        let now_ns = if self.coalescer.wants_time(waiting) {
            self.read_clock()
        } else {
            self.clock.last_ns()
        };
        self.waiting += 1;
        if self.coalescer.waits(now_ns, self.waiting) {
            self.enqueue_posted(vi);
            return;
        }
        self.waiting = 0;
        // Nobody else has a turn to wait for.
        let alone = self.path.run.is_empty();
        if !alone || self.pump(now_ns, vi) != Pumped::Idle {
            self.path.enqueue(vi);
        }
        if !alone {
            self.serve(now_ns);
        }
        self.settle(now_ns);
    }

    /// A receive was posted of which the peer may have to hear: it is no message that others wait
    /// for, nor an answer.
    fn tell_receive(&mut self, vi: ViIndex) {
        let now_ns = self.clock.last_ns();
        // What waits goes first, and says it.
        let alone = self.waiting == 0 && self.path.run.is_empty();
        if !alone || self.pump(now_ns, vi) != Pumped::Idle {
            self.path.enqueue(vi);
        }
        self.settle(now_ns);
    }

    /// Do messages or frames wait for others?
    #[inline]
    pub(crate) fn has_coalesced(&self) -> bool {
        !self.path.batch.is_empty() || self.waiting > 0
    }

    /// Does TCP keep back what was sent?
    #[inline]
    pub(crate) fn has_corked(&self) -> bool {
        matches!(&self.engine, Transport::ViTcp(tcp) if tcp.has_corked())
    }

    /// Sends the frames and messages that wait for others.
    #[inline]
    fn send_coalesced(&mut self) {
        self.path.flush();
        let now_ns = self.read_clock();
        let waiting = core::mem::take(&mut self.waiting);
        self.coalescer.sent(now_ns, waiting);
        if waiting > 0 {
            self.serve(now_ns);
            self.settle(now_ns);
        }
    }

    /// As [`Poller::send_coalesced`], for whoever makes no other call soon: nothing is kept back.
    pub(crate) fn send_all(&mut self) {
        self.send_coalesced();
        if let Transport::ViTcp(tcp) = &mut self.engine {
            tcp.push(0, true);
        }
    }

    /// Now. A turn that follows need not ask again.
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

    /// One VI a turn: bounded work however many are in the Error state.
    fn flush_one_errored(&mut self) {
        let Some(vi) = self.path.errored.pop_front() else {
            return;
        };
        if self.flush_unconnected(vi) == Some(EndpointState::Error) {
            self.path.errored.push_back(vi);
        }
    }

    /// Gives back what is posted where the VI's state lets nothing be processed: sends
    /// outside Connected, receives in Error.
    pub(crate) fn flush_unconnected(&mut self, vi: ViIndex) -> Option<EndpointState> {
        let state = self.engine.state(vi)?;
        if state != EndpointState::Connected {
            self.path.flush_sends(vi);
        }
        if state == EndpointState::Error {
            self.path.flush_receives(vi);
        }
        Some(state)
    }
}

impl Drop for Poller {
    /// A port that is closed while its buffers are out keeps their memory.
    fn drop(&mut self) {
        self.free_received();
        self.path.free_unsent();
    }
}
