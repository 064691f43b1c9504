//! The backend of an open NIC, accessed under its lock: the protocol engine of this process, or an
//! attachment to the datapath process that has the engine.

use pmd_port::WakeSource;
use vi_core::doorbell::Doorbells;
use vi_core::waiters::Event;
use vi_types::ViIndex;

use crate::attach::Attachment;
use crate::poller::Poller;
use crate::yield_policy::YieldPolicy;

/// The backend that does the work of a poll iteration.
#[allow(
    clippy::large_enum_variant,
    reason = "one for each open NIC, in place; the engine's is used for every message"
)]
pub(crate) enum Backend {
    /// Port and engine are in this process.
    Local(Poller),
    /// Port and engine are in a datapath process.
    Attached(Box<Attachment>),
}

impl Backend {
    /// Returns the engine's poller, if it is in this process.
    #[inline]
    pub(crate) fn poller(&self) -> Option<&Poller> {
        match self {
            Self::Local(poller) => Some(poller),
            Self::Attached(_) => None,
        }
    }

    /// Returns the engine's poller, if it is in this process.
    #[inline]
    pub(crate) fn poller_mut(&mut self) -> Option<&mut Poller> {
        match self {
            Self::Local(poller) => Some(poller),
            Self::Attached(_) => None,
        }
    }

    /// Returns the attachment to the process that has the engine, if it is not this one.
    pub(crate) fn attachment(&mut self) -> Option<&mut Attachment> {
        match self {
            Self::Local(_) => None,
            Self::Attached(attachment) => Some(attachment),
        }
    }

    /// Runs one poll iteration, of bounded work. Returns true if anything was done.
    #[inline]
    pub(crate) fn poll(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::Local(poller) => poller.poll(doorbells),
            Self::Attached(attachment) => attachment.poll(doorbells),
        }
    }

    /// Runs a poll iteration with clock and housekeeping: before a thread sleeps on the port.
    pub(crate) fn poll_thoroughly(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::Local(poller) => poller.poll_thoroughly(doorbells),
            Self::Attached(attachment) => attachment.poll(doorbells),
        }
    }

    /// Returns true at intervals of idle polls, if the work is done by another process, which may need
    /// the core.
    #[inline]
    pub(crate) fn should_yield(&mut self, policy: &YieldPolicy) -> bool {
        match self {
            Self::Local(_) => false,
            Self::Attached(attachment) => attachment.should_yield(policy),
        }
    }

    /// Sends what was just posted on this VI, at once or in a later burst; what does not fit stays queued.
    #[inline]
    pub(crate) fn kick(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        match self {
            Self::Local(poller) => poller.kick(vi),
            Self::Attached(attachment) => attachment.kick(vi, doorbells),
        }
    }

    /// Fails a VI if it is marked as broken.
    pub(crate) fn fail_broken(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        match self {
            Self::Local(poller) => poller.fail_broken(vi),
            Self::Attached(attachment) => attachment.kick(vi, doorbells),
        }
    }

    /// Returns true while frames or messages are delayed for a burst.
    #[inline]
    pub(crate) fn has_coalesced(&self) -> bool {
        self.poller().is_some_and(Poller::has_coalesced)
    }

    /// Returns true while posted sends are delayed, for a burst or by TCP (corked).
    #[inline]
    pub(crate) fn has_delayed_sends(&self) -> bool {
        self.poller()
            .is_some_and(|poller| poller.has_coalesced() || poller.has_corked())
    }

    /// Sends all delayed frames and messages.
    pub(crate) fn send_coalesced(&mut self) {
        if let Self::Local(poller) = self {
            poller.send_all();
        }
    }

    /// Takes the events since the last call for which threads may wait.
    #[inline]
    pub(crate) fn take_pending_events(&mut self) -> Event {
        match self {
            Self::Local(poller) => poller.path.take_pending_events(),
            Self::Attached(attachment) => core::mem::take(&mut attachment.pending_events),
        }
    }

    /// Does the regular work that is not part of a poll iteration.
    pub(crate) fn upkeep(&mut self) {
        match self {
            Self::Local(poller) => poller.path.port.upkeep(),
            Self::Attached(attachment) => attachment.upkeep(),
        }
    }

    /// Arms the port: returns the wake source that is signalled when anything arrives.
    pub(crate) fn arm(&mut self) -> WakeSource {
        match self {
            Self::Local(poller) => poller.path.port.arm(),
            Self::Attached(attachment) => attachment.arm(),
        }
    }

    /// Disarms the port: no thread sleeps on it.
    pub(crate) fn disarm(&mut self) {
        match self {
            Self::Local(poller) => poller.path.port.disarm(),
            Self::Attached(attachment) => attachment.disarm(),
        }
    }

    /// Returns the wake source on which the NIC's thread sleeps, if it does.
    #[inline]
    pub(crate) fn armed(&mut self) -> &mut Option<WakeSource> {
        match self {
            Self::Local(poller) => &mut poller.armed,
            Self::Attached(attachment) => &mut attachment.armed,
        }
    }

    /// Reads the clock, after a time in which no thread polled.
    pub(crate) fn refresh_clock(&mut self) {
        if let Self::Local(poller) = self {
            poller.clock.now_ns();
        }
    }

    /// Returns the time until the next timer, in nanoseconds; `None` without one.
    pub(crate) fn until_timer_ns(&mut self) -> Option<u64> {
        let Self::Local(poller) = self else {
            return None;
        };
        let now_ns = poller.clock.now_ns();
        Some(self.next_timer_ns()?.saturating_sub(now_ns))
    }

    /// Returns when the next timer is due, in nanoseconds of the NIC's clock; `None` without one.
    pub(crate) fn next_timer_ns(&self) -> Option<u64> {
        let poller = self.poller()?;
        let discovery = poller.discovery.as_ref().and_then(|d| d.poll_timeout());
        let timers = [poller.engine.poll_timeout(), discovery];
        timers.into_iter().flatten().min()
    }

    /// Returns true while completions, errors or waiting calls of applications are left for the next poll.
    pub(crate) fn has_undelivered(&self) -> bool {
        self.poller()
            .is_some_and(|poller| poller.path.has_undelivered)
    }

    /// Returns true while frames or descriptors wait for room in the port.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Local(poller) => poller.has_unsent(),
            Self::Attached(attachment) => attachment.has_unsent(),
        }
    }

    /// Logs out of the network in order, when the NIC is closed.
    pub(crate) fn leave_network(&mut self) {
        match self {
            Self::Local(poller) => poller.leave_network(),
            // The datapath process stays in its network.
            Self::Attached(_) => {}
        }
    }
}
