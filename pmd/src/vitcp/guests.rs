//! Connections that are no VI's yet, and those that were a VI's and end: so many of each kind.

use std::collections::VecDeque;

use vitcp_lite::machine::passive::PassiveState;

use super::ViTcp;
use super::connection::{Connection, Stage};
use super::counters::Counter;

/// Why a connection is there that is no VI's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guest {
    /// Another end has made it.
    Incoming,
    /// A VI has left it: the other end is given time to read what is on its way.
    Leaving,
}

/// Those of one kind.
#[derive(Debug)]
pub(super) struct Guests {
    /// Number and generation of each, the oldest first; and of some that are none any more.
    order: VecDeque<(u32, u32)>,
    count: u32,
    most: u32,
}

impl Guests {
    pub(super) fn new(most: u32) -> Self {
        Self {
            order: VecDeque::new(),
            count: 0,
            most,
        }
    }
}

impl ViTcp {
    fn guests(&mut self, guest: Guest) -> &mut Guests {
        match guest {
            Guest::Incoming => &mut self.incoming,
            Guest::Leaving => &mut self.leaving,
        }
    }

    /// A place for one more of this kind: where all are taken, that of the oldest for whom nobody here waits. Whoever
    /// comes in and says nothing can so keep nobody else out who speaks at once. False if there is none.
    pub(super) fn make_room(&mut self, guest: Guest) -> bool {
        let guests = self.guests(guest);
        if guests.count < guests.most {
            return true;
        }
        if guest == Guest::Incoming {
            self.counters.count(Counter::DropIncomingFull);
        }
        while let Some((number, generation)) = self.guests(guest).order.pop_front() {
            let connection = self.connection(number);
            if connection.is_some_and(|connection| connection.gives_way(guest, generation)) {
                self.remove(number);
                return true;
            }
        }
        false
    }

    /// This connection takes a place of this kind.
    pub(super) fn admit(&mut self, guest: Guest, number: u32) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        connection.guest = Some(guest);
        let generation = connection.generation;
        let guests = self.guests(guest);
        guests.count += 1;
        guests.order.push_back((number, generation));
        let most = 2 * guests.most as usize + 64;
        if guests.order.len() > most {
            let mut order = core::mem::take(&mut guests.order);
            order.retain(|(number, generation)| {
                self.connection(*number)
                    .is_some_and(|connection| connection.gives_way(guest, *generation))
            });
            self.guests(guest).order = order;
        }
    }

    /// It gives its place back, if it had one.
    pub(super) fn release(&mut self, guest: Option<Guest>) {
        if let Some(guest) = guest {
            self.guests(guest).count -= 1;
        }
    }
}

impl Connection {
    /// Is it that one, still a guest of this kind, and one of which no consumer knows?
    fn gives_way(&self, guest: Guest, generation: u32) -> bool {
        let unknown = match &self.stage {
            Stage::Incoming(_) | Stage::Closing => true,
            Stage::Asking(_) | Stage::Held(_) | Stage::Void | Stage::Connected(_) => false,
        };
        unknown && self.generation == generation && self.guest == Some(guest)
    }

    /// Has it been asked for a proof?
    pub(super) fn is_challenged(&self) -> bool {
        matches!(&self.stage, Stage::Incoming(state) if *state == PassiveState::Challenged)
    }
}
