//! The poller of a NIC: receives, serves timers and doorbells, and transmits, in poll iterations of bounded work.

use std::time::Instant;

use pmd_port::{PortEvent, PortFailure, WakeSource};
use vi_core::doorbell::Doorbells;

use vi_types::{Pumped, QueueIo};
use vi_types::{ViIndex, ViState};

use crate::clock::Clock;
use crate::coalesce::Coalescer;
use crate::datapath::Datapath;
use crate::open::Claim;
use crate::transport::{Polled, Transport};

mod backend;
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

/// The poller of a NIC with this transport, owned by the thread that holds the backend lock.
pub(crate) struct Poller<T: Polled> {
    pub(crate) transport: T,
    pub(crate) state: PollState,
}

/// The state of a poller besides its transport.
pub(crate) struct PollState {
    pub(crate) path: Datapath,
    pub(crate) clock: Clock,
    pub(crate) coalescer: Coalescer,
    /// Posted messages that are delayed to be sent by one system call.
    waiting: usize,
    port_events: Vec<PortEvent>,
    /// The wake source on which the NIC's thread sleeps until a frame arrives.
    armed: Option<WakeSource>,
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

impl PollState {
    pub(crate) fn new(path: Datapath, coalescer: Coalescer, claim: Option<Claim>) -> Self {
        Self {
            path,
            clock: Clock::new(),
            coalescer,
            waiting: 0,
            port_events: Vec::with_capacity(64),
            armed: None,
            worked: true,
            failure: None,
            ring_failure_logged: false,
            polls: 0,
            busy_polls: 0,
            timed_polls: 0,
            timed_ns: 0,
            _claim: claim,
        }
    }

    /// Reads the clock. The next poll need not read it again.
    #[inline]
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.worked = false;
        self.clock.now_ns()
    }

    /// Returns the time for sending what was just posted, `waiting` messages or frames after the last burst: the clock
    /// is read if the coalescer or the transport needs it.
    #[inline]
    pub(crate) fn time_of_send(&mut self, waiting: usize, needs_time: bool) -> u64 {
        if core::mem::take(&mut self.path.arrived) {
            self.coalescer.on_receive();
        }
        if self.coalescer.needs_time(waiting) || needs_time {
            self.read_clock()
        } else {
            self.clock.last_ns()
        }
    }

    /// Passes the batch to the port, unless it is to wait for further frames.
    #[inline]
    pub(crate) fn flush_burst(&mut self, now_ns: u64) {
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

    /// Adds a posted message to those that are delayed. Returns the time if they are to be sent now; none is delayed
    /// then.
    #[inline]
    pub(crate) fn delay_message(&mut self) -> Option<u64> {
        let now_ns = self.time_of_send(self.waiting, false);
        self.waiting += 1;
        if self.coalescer.should_wait(now_ns, self.waiting) {
            return None;
        }
        self.waiting = 0;
        Some(now_ns)
    }

    /// Returns true while posted messages are delayed.
    pub(crate) fn has_delayed_messages(&self) -> bool {
        self.waiting > 0
    }

    /// Returns true while messages or frames are delayed for a burst.
    #[inline]
    fn has_coalesced(&self) -> bool {
        !self.path.batch.is_empty() || self.waiting > 0
    }

    /// Flushes descriptors that the VI's state does not allow to be processed: sends outside
    /// Connected, receives in Error. Returns the state.
    pub(crate) fn flush_unconnected(
        &mut self,
        transport: &dyn Transport,
        vi: ViIndex,
    ) -> Option<ViState> {
        let state = transport.state(vi)?;
        if state != ViState::Connected {
            self.path.flush_sends(vi);
        }
        if state == ViState::Error {
            self.path.flush_receives(vi);
        }
        Some(state)
    }
}

impl<T: Polled> Poller<T> {
    pub(crate) fn new(transport: T, state: PollState) -> Self {
        Self { transport, state }
    }

    /// Runs one poll iteration, of bounded work. Returns true if anything was done.
    ///
    /// Receiving is last, so that the waiting call sees a message without further delay.
    #[inline]
    pub(crate) fn poll(&mut self, doorbells: &Doorbells) -> bool {
        if self.state.polls.is_multiple_of(POLLS_PER_SAMPLE) {
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
            self.state.timed_polls += 1;
            self.state.timed_ns += begun.elapsed().as_nanos() as u64;
        }
        worked
    }

    #[inline]
    fn poll_once(&mut self, doorbells: &Doorbells) -> bool {
        self.state.polls += 1;
        self.state.path.mover.begin_poll();
        if self.state.has_coalesced() {
            self.send_coalesced();
        }
        let mut worked = false;
        self.transport.release_received(&mut self.state.path);
        if self.state.polls.is_multiple_of(HOUSEKEEPING_POLLS) {
            worked = self.housekeeping();
        }
        if self.transport.needs_time() {
            worked |= self.tick();
        }
        let now_ns = self.state.clock.last_ns();
        doorbells.drain(|vi| self.state.path.enqueue(ViIndex(vi)));
        if self.state.path.served.is_some() {
            worked |= self.state.path.take_submissions();
        }
        if !self.state.path.run.is_empty() {
            worked |= self.serve(now_ns);
            self.fail_and_flush(now_ns);
        }
        self.state.worked = T::receive(self, now_ns) || worked;
        if self.state.path.has_deliveries() {
            self.state.worked |= self.state.path.deliver_completions();
        }
        self.state.busy_polls += u64::from(self.state.worked);
        self.state.worked
    }

    /// Reads the clock, unless the previous poll was idle and so took negligible time, and serves
    /// timers. Returns true if a timer was due. Not inlined: a poll without recovery stays small.
    #[inline(never)]
    fn tick(&mut self) -> bool {
        let now_ns = if self.state.worked {
            self.state.clock.now_ns()
        } else {
            self.state.clock.coarse_ns(IDLE_POLLS)
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
        let due = self.transport.poll_timeout().is_some_and(|at| at <= now_ns);
        if due {
            self.transport
                .handle_timeout(now_ns, TIMER_BUDGET, &mut self.state.path);
        }
        due
    }

    /// Serves clock, timers, discovery, port events and VIs in the Error state.
    fn housekeeping(&mut self) -> bool {
        let now_ns = self.state.clock.coarse_ns(HOUSEKEEPING_CLOCK_CALLS);
        let mut worked = self.serve_timers(now_ns);
        worked |= self.transport.housekeeping(now_ns, &mut self.state.path);
        worked |= self.state.serve_port_events(&mut self.transport, now_ns);
        if !self.state.path.errored.is_empty() {
            self.flush_one_errored();
        }
        self.fail_and_flush(now_ns);
        worked
    }

    /// Completes a call of the transport: fails the VIs that it marked, and flushes the batch.
    #[inline]
    pub(crate) fn fail_and_flush(&mut self, now_ns: u64) {
        if !self.state.path.failed.is_empty() {
            self.fail_vis(now_ns);
        }
        self.state.path.flush();
    }

    /// Serves VIs that have something to send. Returns true if a descriptor or frame made progress.
    pub(crate) fn serve(&mut self, now_ns: u64) -> bool {
        let mut worked = false;
        for _ in 0..self.state.path.run.len().min(POLL_BUDGET_VIS) {
            let Some(vi) = self.state.path.run.pop() else {
                break;
            };
            // Before it is served: the transport may queue it again meanwhile.
            if let Some(path) = self.state.path.vi(vi) {
                path.queued = false;
            }
            let pumped = self.pump(now_ns, vi);
            worked |= pumped != Pumped::Blocked;
            if pumped != Pumped::Idle {
                self.state.path.enqueue(vi);
            }
        }
        worked
    }

    #[inline]
    pub(crate) fn pump(&mut self, now_ns: u64, vi: ViIndex) -> Pumped {
        let Some(path) = self.state.path.vi(vi) else {
            return Pumped::Idle;
        };
        if path.shared.take_broken() {
            self.transport.fail_vi(now_ns, vi, &mut self.state.path);
        }
        let pumped = self.transport.pump(now_ns, vi, &mut self.state.path);
        if !self.state.path.failed.is_empty() {
            self.fail_vis(now_ns);
        }
        pumped
    }

    /// Leaves what was just posted to a later poll. What is to be flushed is completed before the post returns
    /// (VIPL 2.4, 3.3.5).
    pub(crate) fn enqueue_posted(&mut self, vi: ViIndex) {
        if self.transport.state(vi) == Some(ViState::Connected) {
            self.state.path.enqueue(vi);
        } else {
            self.state.flush_unconnected(&self.transport, vi);
        }
    }

    /// Sends the frames and messages that are delayed for a burst.
    #[inline]
    fn send_coalesced(&mut self) {
        let state = &mut self.state;
        state.path.flush();
        let now_ns = state.read_clock();
        let waiting = core::mem::take(&mut state.waiting);
        state.coalescer.on_sent(now_ns, waiting);
        if waiting > 0 {
            self.serve(now_ns);
            self.fail_and_flush(now_ns);
        }
    }

    #[cold]
    fn fail_vis(&mut self, now_ns: u64) {
        while let Some(vi) = self.state.path.failed.pop() {
            self.transport.fail_vi(now_ns, vi, &mut self.state.path);
        }
    }

    /// Flushes one VI in the Error state: bounded work however many there are.
    fn flush_one_errored(&mut self) {
        let Some(vi) = self.state.path.errored.pop_front() else {
            return;
        };
        if self.state.flush_unconnected(&self.transport, vi) == Some(ViState::Error) {
            self.state.path.errored.push_back(vi);
        }
    }
}

impl<T: Polled> Drop for Poller<T> {
    /// Returns all buffers: a port that is closed with buffers outstanding keeps their memory.
    fn drop(&mut self) {
        self.transport.release_received(&mut self.state.path);
        self.state.path.free_unsent();
    }
}
