//! What stands behind the turn of an open NIC: the protocol engine of this process, or the way
//! to the datapath process that has it.

use pmd_port::WakeSource;
use vi_engine::ViIndex;

use crate::attach::Attachment;
use crate::doorbell::Doorbells;
use crate::poller::Poller;
use crate::sleepers::Event;

/// Who does the work of a NIC's turn.
#[allow(
    clippy::large_enum_variant,
    reason = "one for each open NIC, in place; the engine's is used for every message"
)]
pub(crate) enum Driver {
    /// Port and engine are ours.
    Engine(Poller),
    /// They are another process's.
    Process(Box<Attachment>),
}

impl Driver {
    /// The engine's poller, if it is in this process.
    #[inline]
    pub(crate) fn engine(&self) -> Option<&Poller> {
        match self {
            Self::Engine(poller) => Some(poller),
            Self::Process(_) => None,
        }
    }

    /// The engine's poller, if it is in this process.
    #[inline]
    pub(crate) fn engine_mut(&mut self) -> Option<&mut Poller> {
        match self {
            Self::Engine(poller) => Some(poller),
            Self::Process(_) => None,
        }
    }

    /// The way to the process that has the engine.
    pub(crate) fn attachment(&mut self) -> Option<&mut Attachment> {
        match self {
            Self::Engine(_) => None,
            Self::Process(attachment) => Some(attachment),
        }
    }

    /// One turn of bounded work. True if anything was done.
    #[inline]
    pub(crate) fn turn(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::Engine(poller) => poller.turn(doorbells),
            Self::Process(attachment) => attachment.turn(doorbells),
        }
    }

    /// A turn that looks at everything: before a thread goes to sleep on the port.
    pub(crate) fn long_turn(&mut self, doorbells: &Doorbells) -> bool {
        match self {
            Self::Engine(poller) => poller.long_turn(doorbells),
            Self::Process(attachment) => attachment.turn(doorbells),
        }
    }

    /// True now and then while turns find nothing and the work is done elsewhere: somebody else
    /// may want the core.
    #[inline]
    pub(crate) fn gives_way(&mut self) -> bool {
        match self {
            Self::Engine(_) => false,
            Self::Process(attachment) => attachment.gives_way(),
        }
    }

    /// Sends what was just posted on this VI, at once or in a burst with what follows; what does not fit waits its turn.
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

    /// Do frames or messages wait for others?
    #[inline]
    pub(crate) fn has_coalesced(&self) -> bool {
        self.engine().is_some_and(Poller::has_coalesced)
    }

    /// Does anything that was posted wait, here or in TCP, for what is posted next?
    #[inline]
    pub(crate) fn keeps_back(&self) -> bool {
        self.engine()
            .is_some_and(|poller| poller.has_coalesced() || poller.has_corked())
    }

    /// Sends what waits for others.
    pub(crate) fn send_coalesced(&mut self) {
        if let Self::Engine(poller) = self {
            poller.send_all();
        }
    }

    /// What happened since the last time that somebody may sleep for.
    #[inline]
    pub(crate) fn take_happened(&mut self) -> Event {
        match self {
            Self::Engine(poller) => poller.path.take_happened(),
            Self::Process(attachment) => core::mem::take(&mut attachment.happened),
        }
    }

    /// Regular work that is no part of a turn.
    pub(crate) fn upkeep(&mut self) {
        match self {
            Self::Engine(poller) => poller.path.port.upkeep(),
            Self::Process(attachment) => attachment.upkeep(),
        }
    }

    /// From now on whatever comes wakes who sleeps on this.
    pub(crate) fn arm(&mut self) -> WakeSource {
        match self {
            Self::Engine(poller) => poller.path.port.arm(),
            Self::Process(attachment) => attachment.arm(),
        }
    }

    /// Nobody sleeps any more.
    pub(crate) fn disarm(&mut self) {
        match self {
            Self::Engine(poller) => poller.path.port.disarm(),
            Self::Process(attachment) => attachment.disarm(),
        }
    }

    /// What the NIC's thread sleeps on, while it does.
    #[inline]
    pub(crate) fn armed(&mut self) -> &mut Option<WakeSource> {
        match self {
            Self::Engine(poller) => &mut poller.armed,
            Self::Process(attachment) => &mut attachment.armed,
        }
    }

    /// Nobody has polled for a while: the time that was read last is old.
    pub(crate) fn refresh_clock(&mut self) {
        if let Self::Engine(poller) = self {
            poller.clock.now_ns();
        }
    }

    /// How long until the next timer, in nanoseconds; `None` without one.
    pub(crate) fn until_timer_ns(&mut self) -> Option<u64> {
        let Self::Engine(poller) = self else {
            return None;
        };
        let now_ns = poller.clock.now_ns();
        Some(self.next_timer_ns()?.saturating_sub(now_ns))
    }

    /// When the next timer is due, by the NIC's clock; `None` without one.
    pub(crate) fn next_timer_ns(&self) -> Option<u64> {
        let poller = self.engine()?;
        let discovery = poller.discovery.as_ref().and_then(|d| d.poll_timeout());
        let timers = [poller.engine.poll_timeout(), discovery];
        timers.into_iter().flatten().min()
    }

    /// True while something waits for room in the port.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Engine(poller) => poller.has_unsent(),
            Self::Process(attachment) => attachment.has_unsent(),
        }
    }

    /// Leaves the network in order, as the NIC goes down.
    pub(crate) fn leave_network(&mut self) {
        match self {
            Self::Engine(poller) => poller.leave_network(),
            // The process stays in its network.
            Self::Process(_) => {}
        }
    }
}
