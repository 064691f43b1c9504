//! The backend of an open NIC, accessed under its lock: a poller of this process with its transport, or an attachment
//! to the datapath process that has the poller.

use core::ops::{Deref, DerefMut};

use pmd_port::WakeSource;
use vi_core::doorbell::Doorbells;
use vi_core::memory::direct_access::MappedFile;
use vi_core::posted_descriptor::OneSegmentSend;
use vi_core::queue::IdleSlot;
use vi_core::vi::{CqShared, ViShared};
use vi_core::waiters::Event;
use vi_types::ViIndex;

use crate::attach::Attachment;
use crate::poller::{PollState, Poller};
use crate::transport::{FcVi, Transport};
use crate::wait_policy::YieldPolicy;
use vi_tcp::ViTcp;

/// What a backend does, whichever it is.
pub(crate) trait NicBackend {
    /// Runs one poll iteration, of bounded work. Returns true if anything was done.
    fn poll(&mut self, doorbells: &Doorbells) -> bool;

    /// Runs a poll iteration with clock and housekeeping: before a thread sleeps on the port.
    fn poll_thoroughly(&mut self, doorbells: &Doorbells) -> bool {
        self.poll(doorbells)
    }

    /// Returns true at intervals of idle polls, if the work is done by another process, which may need
    /// the core.
    fn should_yield(&mut self, _policy: &YieldPolicy) -> bool {
        false
    }

    /// Sends what was just posted on this VI, at once or in a later burst; what does not fit stays queued.
    fn kick(&mut self, vi: ViIndex, doorbells: &Doorbells);

    /// Moves a VI that a post has marked as broken to Error; called by the thread that posted.
    fn fail_broken(&mut self, vi: ViIndex, doorbells: &Doorbells);

    /// Returns true while frames or messages are delayed for a burst.
    fn has_coalesced(&self) -> bool {
        false
    }

    /// Returns true while posted sends are delayed, for a burst or by TCP (corked).
    fn has_delayed_sends(&self) -> bool {
        false
    }

    /// Sends all delayed frames and messages: for a caller that makes no other call soon.
    fn send_delayed(&mut self) {}

    /// Takes the events since the last call for which threads may wait.
    fn take_pending_events(&mut self) -> Event;

    /// Does the regular work that is not part of a poll iteration. Returns mappings that are not needed any more: the
    /// caller drops them after it has released the backend lock, since unmapping may take long.
    #[must_use]
    fn upkeep(&mut self) -> Vec<MappedFile>;

    /// Arms the port: returns the wake source that is signalled when anything arrives.
    fn arm(&mut self) -> WakeSource;

    /// Disarms the port: no thread sleeps on it.
    fn disarm(&mut self);

    /// Returns the wake source on which the NIC's thread sleeps, if it does.
    fn armed(&mut self) -> &mut Option<WakeSource>;

    /// Reads the clock, after a time in which no thread polled.
    fn refresh_clock(&mut self) {}

    /// Returns when the next timer is due, in nanoseconds of the NIC's clock; `None` without one.
    fn next_timer_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the time until the next timer, in nanoseconds; `None` without one.
    fn until_timer_ns(&mut self) -> Option<u64> {
        None
    }

    /// Returns true while completions, errors or waiting calls of applications are left for the next poll.
    fn has_undelivered(&self) -> bool {
        false
    }

    /// Returns true while frames or descriptors wait for room in the port.
    fn has_unsent(&self) -> bool;

    /// Logs out of the network in order, when the NIC is closed. A datapath process stays in its network.
    fn leave_network(&mut self) {}

    /// Returns transport and state of the poller, if it is in this process.
    fn local(&self) -> Option<(&dyn Transport, &PollState)> {
        None
    }

    /// Returns transport and state of the poller, if it is in this process.
    fn local_mut(&mut self) -> Option<(&mut dyn Transport, &mut PollState)> {
        None
    }

    /// Returns the attachment to the process that has the poller, if it is not this one.
    fn attachment(&mut self) -> Option<&mut Attachment> {
        None
    }

    /// Ends the connection of a VI, if it has one, and flushes its queues.
    fn end_connection(&mut self, vi: &ViShared);

    /// Destroys an Idle VI; returns false if it is not Idle.
    fn destroy_vi(&mut self, vi: ViIndex) -> bool;

    /// Removes a destroyed VI; returns its completion queues.
    fn remove_vi(&mut self, vi: ViIndex) -> [Option<&'static CqShared>; 2];
}

/// The backend of an open NIC. Its own methods are those of the data path, which are called for every message and
/// inlined; for all others it is a [`NicBackend`].
#[allow(
    clippy::large_enum_variant,
    reason = "one for each open NIC, in place; the engine's is used for every message"
)]
pub(crate) enum Backend {
    /// Port and engine are in this process.
    FcVi(Poller<FcVi>),
    /// The sockets are in this process.
    ViTcp(Box<Poller<ViTcp>>),
    /// The poller is in a datapath process.
    Attached(Box<Attachment>),
}

impl Deref for Backend {
    type Target = dyn NicBackend;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::FcVi(poller) => poller,
            Self::ViTcp(poller) => poller.as_ref(),
            Self::Attached(attachment) => attachment.as_ref(),
        }
    }
}

impl DerefMut for Backend {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::FcVi(poller) => poller,
            Self::ViTcp(poller) => poller.as_mut(),
            Self::Attached(attachment) => attachment.as_mut(),
        }
    }
}

impl Backend {
    /// As [`NicBackend::poll`].
    #[inline]
    pub(crate) fn poll(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::FcVi(poller) => poller.poll(doorbells),
            Self::ViTcp(poller) => poller.poll(doorbells),
            Self::Attached(attachment) => attachment.poll(doorbells),
        }
    }

    /// As [`NicBackend::kick`].
    #[inline]
    pub(crate) fn kick(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        match self {
            Self::FcVi(poller) => poller.kick(vi, doorbells),
            Self::ViTcp(poller) => poller.kick(vi, doorbells),
            Self::Attached(attachment) => attachment.kick(vi, doorbells),
        }
    }

    /// As [`Poller::send_in_one_step`]; false for transports that send from the queue only.
    #[inline]
    pub(crate) fn send_in_one_step(
        &mut self,
        vi: ViIndex,
        send: &OneSegmentSend,
        slot: IdleSlot<'_>,
        context: usize,
    ) -> bool {
        match self {
            Self::FcVi(poller) => poller.send_in_one_step(vi, send, slot, context),
            Self::ViTcp(_) | Self::Attached(_) => false,
        }
    }

    /// As [`NicBackend::should_yield`].
    #[inline]
    pub(crate) fn should_yield(&mut self, policy: &YieldPolicy) -> bool {
        match self {
            Self::FcVi(_) | Self::ViTcp(_) => false,
            Self::Attached(attachment) => attachment.should_yield(policy),
        }
    }

    /// As [`NicBackend::has_coalesced`].
    #[inline]
    pub(crate) fn has_coalesced(&self) -> bool {
        match self {
            Self::FcVi(poller) => poller.has_coalesced(),
            Self::ViTcp(poller) => poller.has_coalesced(),
            Self::Attached(_) => false,
        }
    }

    /// As [`NicBackend::has_delayed_sends`].
    #[inline]
    pub(crate) fn has_delayed_sends(&self) -> bool {
        match self {
            Self::FcVi(poller) => poller.has_delayed_sends(),
            Self::ViTcp(poller) => poller.has_delayed_sends(),
            Self::Attached(_) => false,
        }
    }

    /// As [`NicBackend::take_pending_events`].
    #[inline]
    pub(crate) fn take_pending_events(&mut self) -> Event {
        match self {
            Self::FcVi(poller) => poller.take_pending_events(),
            Self::ViTcp(poller) => poller.take_pending_events(),
            Self::Attached(attachment) => attachment.take_pending_events(),
        }
    }

    /// As [`NicBackend::armed`].
    #[inline]
    pub(crate) fn armed(&mut self) -> &mut Option<WakeSource> {
        match self {
            Self::FcVi(poller) => poller.armed(),
            Self::ViTcp(poller) => poller.armed(),
            Self::Attached(attachment) => attachment.armed(),
        }
    }

    /// Returns the state of the poller, if it is in this process.
    pub(crate) fn state(&self) -> Option<&PollState> {
        Some(self.local()?.1)
    }

    /// Returns the state of the poller, if it is in this process.
    pub(crate) fn state_mut(&mut self) -> Option<&mut PollState> {
        Some(self.local_mut()?.1)
    }
}
