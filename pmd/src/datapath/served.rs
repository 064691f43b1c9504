//! Applications that a datapath process serves on a NIC, as the data path uses them: by one trait, whose implementation
//! belongs to the server. A program that serves no application has none, and nothing of it.

use std::any::Any;

use vi_core::completion::CompletionStatus;
use vi_core::events::AsyncEvent;
use vi_core::memory::backing::InlineBuffer;
use vi_core::memory::table::RegionTable;
use vi_types::{Claim, QueueIo, QueueKind, ViIndex};

use super::{Datapath, RunQueue, ViPath, enqueue, path_of};

/// Identifies an attached application on one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(pub(crate) u32);

impl ClientId {
    /// Returns the application's lane of the run queue.
    #[inline]
    pub(crate) fn lane(self) -> u32 {
        self.0 + 1
    }
}

/// The applications that are attached to a NIC of a datapath process. Everything is called under the backend lock.
///
/// Any, since the server adds and removes applications in the implementation that it has installed.
pub(crate) trait ServedApplications: Any + Send {
    /// Takes submissions of all applications, of each up to its share, and resets the budgets. True if there was any.
    fn take_submissions(&mut self, queues: &mut ServedQueues<'_>) -> bool;

    /// Takes submissions of one application for a message that finds no receive posted. True if there was any.
    fn take_for_message(&mut self, client: ClientId, queues: &mut ServedQueues<'_>) -> bool;

    /// Completes the head of a queue. The completion is reported at once, or after earlier ones that wait for space.
    fn complete(
        &mut self,
        client: ClientId,
        path: &mut ViPath,
        kind: QueueKind,
        completion: CompletionStatus,
    );

    /// Returns a buffer for the data of a receive that is completed next, and whose completion passes it to the
    /// application; `None` if none is free, or the data does not fit, or the completion cannot be reported at once.
    fn inline_buffer(&mut self, client: ClientId, bytes: u32) -> Option<InlineBuffer>;

    /// Queues an asynchronous error of a VI, which is reported after earlier completions: the VI may be destroyed when
    /// a handler is called.
    fn report_of_vi(&mut self, client: ClientId, path: &ViPath, event: AsyncEvent);

    /// Reports pending completions and errors, to each application within its budget, and wakes those that sleep. True
    /// if any of that is left for the next poll.
    fn deliver(&mut self, vis: &mut [Option<ViPath>]) -> bool;

    /// Drops the pending completions of a VI that is destroyed.
    fn remove_vi(&mut self, client: ClientId, path: &ViPath);

    /// Returns the user of an application.
    fn user(&self, client: ClientId) -> Option<libc::uid_t>;
}

/// The queues of a NIC, to which submissions are added.
pub(crate) struct ServedQueues<'a> {
    vis: &'a mut [Option<ViPath>],
    run: &'a mut RunQueue,
    pub(crate) regions: &'static RegionTable,
    /// Queues to flush afterwards, since their VI's state requires it.
    flush: Vec<(ViIndex, QueueKind)>,
}

impl ServedQueues<'_> {
    #[inline]
    pub(crate) fn vi(&mut self, vi: ViIndex) -> Option<&mut ViPath> {
        path_of(self.vis, vi)
    }

    /// As [`Datapath::enqueue`].
    #[inline]
    pub(crate) fn enqueue(&mut self, vi: ViIndex) {
        enqueue(self.vis, self.run, vi);
    }

    /// Flushes a queue when the submissions are taken.
    pub(crate) fn flush(&mut self, vi: ViIndex, kind: QueueKind) {
        self.flush.push((vi, kind));
    }
}

impl Datapath {
    /// Returns true if completions or calls of applications may be left for the end of a poll. The calls of an
    /// application can outlast it.
    #[inline]
    pub(crate) fn has_deliveries(&self) -> bool {
        self.served.is_some() || self.calls.has_due()
    }

    /// Returns the user of the application that owns a VI, or of this program if no application does.
    pub(crate) fn user_of(&mut self, vi: ViIndex) -> Option<libc::uid_t> {
        match self.vi(vi)?.client {
            Some(client) => self.served.as_ref()?.user(client),
            None => Some(nix::unistd::geteuid().as_raw()),
        }
    }

    /// As [`ServedApplications::take_submissions`].
    #[inline(never)]
    pub(crate) fn take_submissions(&mut self) -> bool {
        self.take(|served, queues| served.take_submissions(queues))
    }

    /// Claims a receive that was submitted before the message was sent, and not taken.
    #[inline(never)]
    pub(super) fn claim_submitted(&mut self, vi: ViIndex) -> Claim {
        let Some(client) = self.vi(vi).and_then(|path| path.client) else {
            return Claim::Empty;
        };
        let taken = self.take(|served, queues| served.take_for_message(client, queues));
        match self.vi(vi) {
            Some(path) if taken && path.has_unclaimed() => self.claim_receive(vi),
            _ => Claim::Empty,
        }
    }

    fn take(
        &mut self,
        take: impl FnOnce(&mut dyn ServedApplications, &mut ServedQueues<'_>) -> bool,
    ) -> bool {
        let Some(served) = self.served.as_deref_mut() else {
            return false;
        };
        let mut queues = ServedQueues {
            vis: &mut self.vis,
            run: &mut self.run,
            regions: self.regions,
            flush: Vec::new(),
        };
        let taken = take(served, &mut queues);
        for (vi, kind) in queues.flush {
            self.flush_queue(vi, kind);
        }
        taken
    }

    /// Reports to the applications at the end of a poll, of bounded work, and wakes their waiting calls. True if any of
    /// that is left for the next poll.
    #[inline(never)]
    pub(crate) fn deliver_completions(&mut self) -> bool {
        let served = self.served.as_deref_mut();
        let mut is_left = served.is_some_and(|served| served.deliver(&mut self.vis));
        is_left |= self.calls.wake_due();
        self.has_undelivered = is_left;
        is_left
    }
}
