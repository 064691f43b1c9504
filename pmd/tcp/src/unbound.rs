//! Limits on connections without a VI: pending ones, which were accepted, and draining ones, which their VI
//! has left.

use std::collections::VecDeque;

/// Kind of a connection without a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbound {
    /// Accepted, and not bound to a VI yet.
    Pending,
    /// Left by its VI: the peer has time to read the data in flight.
    Draining,
}

/// The connections of one kind.
#[derive(Debug)]
struct UnboundQueue {
    /// Number and generation, oldest first. May include connections that are gone or bound.
    order: VecDeque<(u32, u32)>,
    count: u32,
    limit: u32,
}

/// The connections of both kinds.
#[derive(Debug)]
pub(super) struct UnboundQueues {
    pending: UnboundQueue,
    draining: UnboundQueue,
}

impl UnboundQueues {
    pub(super) fn new(max_pending: u32, max_draining: u32) -> Self {
        let queue = |limit| UnboundQueue {
            order: VecDeque::new(),
            count: 0,
            limit,
        };
        Self {
            pending: queue(max_pending),
            draining: queue(max_draining),
        }
    }

    fn queue(&mut self, kind: Unbound) -> &mut UnboundQueue {
        match kind {
            Unbound::Pending => &mut self.pending,
            Unbound::Draining => &mut self.draining,
        }
    }

    /// Checks whether one more is within the limit.
    pub(super) fn has_space(&mut self, kind: Unbound) -> bool {
        let queue = self.queue(kind);
        queue.count < queue.limit
    }

    /// Takes number and generation of the oldest one, which may be gone or bound.
    pub(super) fn pop_oldest(&mut self, kind: Unbound) -> Option<(u32, u32)> {
        self.queue(kind).order.pop_front()
    }

    /// Adds a connection, by number and generation. Forgets those that are not evictable any more if there are many.
    pub(super) fn add(
        &mut self,
        kind: Unbound,
        connection: (u32, u32),
        is_evictable: impl Fn(u32, u32) -> bool,
    ) {
        let queue = self.queue(kind);
        queue.count += 1;
        queue.order.push_back(connection);
        if queue.order.len() > 2 * queue.limit as usize + 64 {
            queue
                .order
                .retain(|(number, generation)| is_evictable(*number, *generation));
        }
    }

    /// Removes a connection from the count of its kind, if it has one.
    pub(super) fn release(&mut self, kind: Option<Unbound>) {
        if let Some(kind) = kind {
            self.queue(kind).count -= 1;
        }
    }
}
