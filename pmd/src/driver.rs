//! The backend of an open NIC, accessed under its turn: the protocol engine of this process, or an
//! attachment to the datapath process that has the engine.

use pmd_port::WakeSource;
use vi_engine::ViIndex;

use crate::attach::Attachment;
use crate::doorbell::Doorbells;
use crate::poller::Poller;
use crate::waiters::Event;

/// The backend that does the work of a NIC's turn.
#[allow(
    clippy::large_enum_variant,
    reason = "one for each open NIC, in place; the engine's is used for every message"
)]
pub(crate) enum Driver {
    /// Port and engine are in this process.
    Engine(Poller),
    /// Port and engine are in a datapath process.
    Process(Box<Attachment>),
}

impl Driver {
    /// Returns the engine's poller, if it is in this process.
    #[inline]
    pub(crate) fn engine(&self) -> Option<&Poller> {
        match self {
            Self::Engine(poller) => Some(poller),
            Self::Process(_) => None,
        }
    }

    /// Returns the engine's poller, if it is in this process.
    #[inline]
    pub(crate) fn engine_mut(&mut self) -> Option<&mut Poller> {
        match self {
            Self::Engine(poller) => Some(poller),
            Self::Process(_) => None,
        }
    }

    /// Returns the attachment to the process that has the engine, if it is not this one.
    pub(crate) fn attachment(&mut self) -> Option<&mut Attachment> {
        match self {
            Self::Engine(_) => None,
            Self::Process(attachment) => Some(attachment),
        }
    }

    /// Runs one turn of bounded work. Returns true if anything was done.
    #[inline]
    pub(crate) fn turn(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::Engine(poller) => poller.turn(doorbells),
            Self::Process(attachment) => attachment.turn(doorbells),
        }
    }

    /// Runs a turn with clock and housekeeping: before a thread sleeps on the port.
    pub(crate) fn long_turn(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::Engine(poller) => poller.long_turn(doorbells),
            Self::Process(attachment) => attachment.turn(doorbells),
        }
    }

    /// Returns true at intervals of idle turns, if the work is done by another process, which may need
    /// the core.
    #[inline]
    pub(crate) fn should_yield(&mut self) -> bool {
        match self {
            Self::Engine(_) => false,
            Self::Process(attachment) => attachment.should_yield(),
        }
    }

    /// Sends what was just posted on this VI, at once or in a later burst; what does not fit stays queued.
    #[inline]
    pub(crate) fn kick(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        match self {
            Self::Engine(poller) => poller.kick(vi),
            Self::Process(attachment) => attachment.kick(vi, doorbells),
        }
    }

    /// Fails a VI if it is marked as broken.
    pub(crate) fn fail_broken(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        match self {
            Self::Engine(poller) => poller.fail_broken(vi),
            Self::Process(attachment) => attachment.kick(vi, doorbells),
        }
    }

    /// Returns true while frames or messages are delayed for a burst.
    #[inline]
    pub(crate) fn has_coalesced(&self) -> bool {
        self.engine().is_some_and(Poller::has_coalesced)
    }

    /// Returns true while posted sends are delayed, for a burst or by TCP (corked).
    #[inline]
    pub(crate) fn has_delayed_sends(&self) -> bool {
        self.engine()
            .is_some_and(|poller| poller.has_coalesced() || poller.has_corked())
    }

    /// Sends all delayed frames and messages.
    pub(crate) fn send_coalesced(&mut self) {
        if let Self::Engine(poller) = self {
            poller.send_all();
        }
    }

    /// Takes the events since the last call for which threads may wait.
    #[inline]
    pub(crate) fn take_pending_events(&mut self) -> Event {
        match self {
            Self::Engine(poller) => poller.path.take_pending_events(),
            Self::Process(attachment) => core::mem::take(&mut attachment.pending_events),
        }
    }

    /// Does the regular work that is not part of a turn.
    pub(crate) fn upkeep(&mut self) {
        match self {
            Self::Engine(poller) => poller.path.port.upkeep(),
            Self::Process(attachment) => attachment.upkeep(),
        }
    }

    /// Arms the port: returns the wake source that is signalled when anything arrives.
    pub(crate) fn arm(&mut self) -> WakeSource {
        match self {
            Self::Engine(poller) => poller.path.port.arm(),
            Self::Process(attachment) => attachment.arm(),
        }
    }

    /// Disarms the port: no thread sleeps on it.
    pub(crate) fn disarm(&mut self) {
        match self {
            Self::Engine(poller) => poller.path.port.disarm(),
            Self::Process(attachment) => attachment.disarm(),
        }
    }

    /// Returns the wake source on which the NIC's thread sleeps, if it does.
    #[inline]
    pub(crate) fn armed(&mut self) -> &mut Option<WakeSource> {
        match self {
            Self::Engine(poller) => &mut poller.armed,
            Self::Process(attachment) => &mut attachment.armed,
        }
    }

    /// Reads the clock, after a time in which no thread polled.
    pub(crate) fn refresh_clock(&mut self) {
        if let Self::Engine(poller) = self {
            poller.clock.now_ns();
        }
    }

    /// Returns the time until the next timer, in nanoseconds; `None` without one.
    pub(crate) fn until_timer_ns(&mut self) -> Option<u64> {
        let Self::Engine(poller) = self else {
            return None;
        };
        let now_ns = poller.clock.now_ns();
        Some(self.next_timer_ns()?.saturating_sub(now_ns))
    }

    /// Returns when the next timer is due, in nanoseconds of the NIC's clock; `None` without one.
    pub(crate) fn next_timer_ns(&self) -> Option<u64> {
        let poller = self.engine()?;
        let discovery = poller.discovery.as_ref().and_then(|d| d.poll_timeout());
        let timers = [poller.engine.poll_timeout(), discovery];
        timers.into_iter().flatten().min()
    }

    /// Returns true while frames or descriptors wait for room in the port.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Engine(poller) => poller.has_unsent(),
            Self::Process(attachment) => attachment.has_unsent(),
        }
    }

    /// Logs out of the network in order, when the NIC is closed.
    pub(crate) fn leave_network(&mut self) {
        match self {
            Self::Engine(poller) => poller.leave_network(),
            // The datapath process stays in its network.
            Self::Process(_) => {}
        }
    }
}
