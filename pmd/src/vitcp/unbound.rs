//! Limits on connections without a VI: pending ones, which were accepted, and draining ones, which their VI
//! has left.

use std::collections::VecDeque;

use vitcp_lite::machine::responder::ResponderState;

use super::ViTcp;
use super::connection::{Connection, Stage};
use super::counters::Counter;

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
pub(super) struct UnboundQueue {
    /// Number and generation, oldest first. May include connections that are gone or bound.
    order: VecDeque<(u32, u32)>,
    count: u32,
    limit: u32,
}

impl UnboundQueue {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            order: VecDeque::new(),
            count: 0,
            limit,
        }
    }
}

impl ViTcp {
    fn unbound_queue(&mut self, unbound: Unbound) -> &mut UnboundQueue {
        match unbound {
            Unbound::Pending => &mut self.pending,
            Unbound::Draining => &mut self.draining,
        }
    }

    /// Ensures space for one more connection of this kind; at the limit it evicts the oldest one that is evictable.
    /// So silent connections cannot lock out peers that send their request at once. Returns false if none is.
    pub(super) fn ensure_space(&mut self, unbound: Unbound) -> bool {
        let queue = self.unbound_queue(unbound);
        if queue.count < queue.limit {
            return true;
        }
        if unbound == Unbound::Pending {
            self.counters.count(Counter::DropIncomingFull);
        }
        while let Some((number, generation)) = self.unbound_queue(unbound).order.pop_front() {
            let connection = self.connection(number);
            if connection.is_some_and(|connection| connection.is_evictable(unbound, generation)) {
                self.remove(number);
                return true;
            }
        }
        false
    }

    /// Counts a connection towards the limit of this kind.
    pub(super) fn admit(&mut self, unbound: Unbound, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        connection.unbound = Some(unbound);
        let generation = connection.generation;
        let queue = self.unbound_queue(unbound);
        queue.count += 1;
        queue.order.push_back((number, generation));
        let max_entries = 2 * queue.limit as usize + 64;
        if queue.order.len() > max_entries {
            let mut order = core::mem::take(&mut queue.order);
            order.retain(|(number, generation)| {
                self.connection(*number)
                    .is_some_and(|connection| connection.is_evictable(unbound, *generation))
            });
            self.unbound_queue(unbound).order = order;
        }
    }

    /// Removes a connection from the count of its kind, if it has one.
    pub(super) fn release_unbound(&mut self, unbound: Option<Unbound>) {
        if let Some(unbound) = unbound {
            self.unbound_queue(unbound).count -= 1;
        }
    }
}

impl Connection {
    /// Checks that it has this generation and kind, and that no consumer knows of it.
    fn is_evictable(&self, unbound: Unbound, generation: u32) -> bool {
        let is_unknown = match &self.stage {
            Stage::Incoming(_) | Stage::Closing => true,
            Stage::Requesting(_)
            | Stage::RequestReceived(_)
            | Stage::PeerGone
            | Stage::Connected(_) => false,
        };
        is_unknown && self.generation == generation && self.unbound == Some(unbound)
    }

    /// Checks whether a challenge was sent on it.
    pub(super) fn is_challenged(&self) -> bool {
        matches!(&self.stage, Stage::Incoming(state) if *state == ResponderState::Challenged)
    }
}
