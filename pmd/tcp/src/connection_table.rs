//! The TCP connections of a NIC by number, and those with work for the next polls.

use std::collections::VecDeque;
use std::io;

use vi_types::{ConnId, ViIndex};

use super::connection::{Connection, Stage};
use super::context::Context;
use super::counters::Counter;
use super::epoll_set::EpollSet;
use super::handshakes::Handshakes;
use super::shared_listener::LISTENER_GENERATION;
use super::timers::TimerKey;
use super::unbound::{Unbound, UnboundQueues};
use vitcp_lite::Source;
use vitcp_lite::transfer::{CORK_NS, CORK_POLLS, StreamIo};

/// Polls after its last data in which a connection is read without epoll.
pub(super) const HOT_POLLS: u32 = 4096;
/// Consecutive polls with data, from this connection only, after which it is unregistered from epoll: the
/// kernel's wakeup of a registered socket adds to the latency of each message.
const UNREGISTER_AFTER: u32 = 64;

/// Connections with data that TCP holds back.
#[derive(Debug, Default)]
pub(super) struct Corked {
    numbers: Vec<u32>,
    /// Polls since the last write.
    polls_since_write: u32,
}

impl Corked {
    /// Notes a write; `corked`: the connection, if TCP holds its data back from now on.
    #[inline]
    pub(super) fn note_write(&mut self, corked: Option<u32>) {
        self.polls_since_write = 0;
        if let Some(number) = corked
            && !self.numbers.contains(&number)
        {
            self.numbers.push(number);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Checks whether data is held back that was written just before this poll.
    #[inline]
    pub(super) fn was_just_written(&self) -> bool {
        !self.is_empty() && self.polls_since_write == 1
    }
}

/// The hot connection: the one with the most recent data is likely to receive more, so every poll reads it directly,
/// without epoll. While it is the only active one, it is not even registered with epoll.
#[derive(Debug, Default)]
struct HotConnection {
    /// Its number, and the remaining polls that read it without epoll.
    current: Option<(u32, u32)>,
    /// Consecutive polls with data from it only.
    consecutive_hits: u32,
    /// The connection that is not registered with epoll.
    unregistered: Option<u32>,
}

/// The TCP connections of a NIC.
pub(super) struct ConnectionTable {
    slots: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    next_generation: u32,
    pub(super) unbound: UnboundQueues,
    pub(super) epoll: EpollSet,
    /// Connections that are readable, or writable again.
    ready: VecDeque<u32>,
    hot: HotConnection,
    pub(super) corked: Corked,
    pub(super) handshakes: Handshakes,
}

impl ConnectionTable {
    /// Creates an empty table.
    ///
    /// # Errors
    /// The error of `epoll_create1`.
    pub(super) fn new(context: &Context) -> io::Result<Self> {
        let settings = &context.settings;
        Ok(Self {
            slots: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            unbound: UnboundQueues::new(settings.max_incoming, settings.max_vi),
            epoll: EpollSet::new()?,
            ready: VecDeque::new(),
            hot: HotConnection::default(),
            corked: Corked::default(),
            handshakes: Handshakes::new(settings.handshake_limits),
        })
    }

    pub(super) fn get(&self, number: u32) -> Option<&Connection> {
        self.slots.get(number as usize)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Connection> {
        self.slots.get_mut(number as usize)?.as_deref_mut()
    }

    /// Returns the connection of a request if it still exists.
    pub(super) fn of(&self, conn: ConnId) -> Option<&Connection> {
        self.get(conn.index())
            .filter(|connection| connection.generation == conn.generation())
    }

    /// As [`ConnectionTable::of`].
    pub(super) fn of_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.get_mut(conn.index())
            .filter(|connection| connection.generation == conn.generation())
    }

    /// Returns the numbers that connections may have.
    pub(super) fn numbers(&self) -> core::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    /// Takes a connection out of the table, so that the other tables can be borrowed.
    pub(super) fn take(&mut self, number: u32) -> Option<Box<Connection>> {
        self.slots.get_mut(number as usize)?.take()
    }

    /// Puts a connection back into the table.
    pub(super) fn put(&mut self, number: u32, connection: Box<Connection>) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            *slot = Some(connection);
        }
    }

    /// Adds a TCP connection to the table, and registers it with epoll. Returns its number.
    pub(super) fn add(&mut self, make: impl FnOnce(u32) -> Connection) -> io::Result<u32> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.slots.push(None);
                let count = self.slots.len();
                // Each connection is in these at most once, so that no message allocates.
                self.ready.reserve(count.saturating_sub(self.ready.len()));
                let corked = &mut self.corked.numbers;
                corked.reserve(count.saturating_sub(corked.len()));
                (count - 1) as u32
            }
        };
        self.next_generation = self.next_generation.wrapping_add(1) % LISTENER_GENERATION;
        let connection = Box::new(make(self.next_generation));
        let data = connection.epoll_data(number);
        if let Err(error) = self.epoll.add(&connection.stream, data) {
            self.free.push(number);
            return Err(error);
        }
        self.put(number, connection);
        Ok(number)
    }

    /// Closes a TCP connection and frees its slot.
    pub(super) fn remove(&mut self, number: u32, context: &mut Context) {
        if let Some(connection) = self.take(number) {
            if connection.stream.is_foreign() {
                // Another process may keep the socket open, so closing it here does not unregister it.
                self.epoll.remove(&connection.stream);
            }
            self.unbound.release(connection.unbound);
            if connection.handshake_waits {
                let source = Source::host(connection.remote);
                self.handshakes.cancel(source, number);
            }
            context.timers.clear(TimerKey::Connection(number));
            self.free.push(number);
            self.ready.retain(|queued| *queued != number);
        }
        if self.hot() == Some(number) {
            self.hot.current = None;
        }
        if self.hot.unregistered == Some(number) {
            self.hot.unregistered = None;
        }
    }

    /// Queues a connection for one of the next polls.
    pub(super) fn queue(&mut self, number: u32) {
        if let Some(connection) = self.get_mut(number)
            && !core::mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Returns the number of queued connections.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Takes the connection that was queued first.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Puts the connection that [`ConnectionTable::next_ready`] returned behind all others.
    pub(super) fn requeue(&mut self, number: u32) {
        self.ready.push_back(number);
    }

    /// Checks whether another connection than the hot one is queued.
    pub(super) fn has_other_ready(&self) -> bool {
        let hot = self.hot();
        self.ready.iter().any(|number| Some(*number) != hot)
    }

    /// Returns the number of the hot connection.
    pub(super) fn hot(&self) -> Option<u32> {
        self.hot.current.map(|(number, _)| number)
    }

    /// Returns whether the hot connection had data within the last `polls` polls.
    pub(super) fn was_hot_within(&self, polls: u32) -> bool {
        (self.hot.current).is_some_and(|(_, left)| left > HOT_POLLS - polls)
    }

    /// Returns the hot connection if this poll is to read it without epoll.
    pub(super) fn begin_hot_turn(&mut self) -> Option<u32> {
        let (number, left) = self.hot.current?;
        match left.checked_sub(1) {
            Some(left) => self.hot.current = Some((number, left)),
            None => {
                self.register_all();
                self.hot.current = None;
            }
        }
        let connection = self.get_mut(number).filter(|hot| !hot.queued)?;
        connection.may_read = true;
        Some(number)
    }

    /// Makes a connection with new data the hot one.
    pub(super) fn note_activity(&mut self, number: u32) {
        if self.hot() != Some(number) {
            self.register_all();
        }
        let hot = &mut self.hot;
        hot.current = Some((number, HOT_POLLS));
        hot.consecutive_hits = hot.consecutive_hits.saturating_add(1);
        if hot.consecutive_hits >= UNREGISTER_AFTER
            && hot.unregistered.is_none()
            && let Some(connection) = self.get(number)
            && connection.may_write
        {
            self.epoll.remove(&connection.stream);
            self.hot.unregistered = Some(number);
        }
    }

    /// Registers the unregistered connection with epoll, which then reports its pending events, too.
    pub(super) fn register_all(&mut self) {
        self.hot.consecutive_hits = 0;
        let Some(number) = self.hot.unregistered.take() else {
            return;
        };
        let Some(connection) = self.get(number) else {
            return;
        };
        let data = connection.epoll_data(number);
        if let Err(error) = self.epoll.add(&connection.stream, data) {
            log::debug!("vi-tcp: epoll registration failed: {error}");
            self.hot.unregistered = Some(number);
        }
    }

    /// As [`ConnectionTable::register_all`], if this connection is the unregistered one.
    pub(super) fn reregister(&mut self, number: u32) {
        if self.hot.unregistered == Some(number) {
            self.register_all();
        }
    }

    /// Queues the unregistered connection if it is not hot any more and its registration fails for want
    /// of memory. A hot one is read with every poll.
    pub(super) fn poll_unregistered(&mut self, path: &mut impl StreamIo) {
        let hot = self.hot();
        let unregistered = self.hot.unregistered;
        let Some(number) = unregistered.filter(|number| Some(*number) != hot) else {
            return;
        };
        self.register_all();
        if self.hot.unregistered.is_some()
            && let Some(connection) = self.get_mut(number)
        {
            (connection.may_read, connection.may_write) = (true, true);
            if let Some(vi) = connection.vi() {
                path.resume(vi);
            }
            self.queue(number);
        }
    }

    /// Has TCP send the data that it has held back for [`CORK_NS`]; with `all` any.
    pub(super) fn push(&mut self, now_ns: u64, all: bool) {
        let Self { slots, corked, .. } = self;
        corked.polls_since_write += 1;
        let all = all || corked.polls_since_write >= CORK_POLLS;
        corked.numbers.retain(|number| {
            let connection = slots.get_mut(*number as usize);
            let Some(connection) = connection.and_then(Option::as_mut) else {
                return false;
            };
            let tx = &mut connection.transfer.tx;
            if !all && tx.corked && now_ns < tx.pushed_ns + CORK_NS {
                return true;
            }
            if core::mem::take(&mut tx.corked) {
                connection.stream.push();
            }
            false
        });
    }

    /// Has a connection wait for a turn of its handshake.
    pub(super) fn wait_for_handshake(&mut self, now_ns: u64, number: u32, context: &mut Context) {
        let Some(connection) = self.get_mut(number) else {
            return;
        };
        if core::mem::replace(&mut connection.handshake_waits, true) {
            return;
        }
        if connection.handshake_started {
            self.handshakes.resume(number);
            return;
        }
        let source = Source::host(connection.remote);
        if self.handshakes.wait(now_ns, source, number) {
            context.count(Counter::TlsHandshakesDelayed);
        }
    }

    /// Ensures space for one more connection of this kind; at the limit it evicts the oldest one that is evictable.
    /// So silent connections cannot lock out peers that send their request at once. Returns false if none is.
    pub(super) fn ensure_space(&mut self, kind: Unbound, context: &mut Context) -> bool {
        if self.unbound.has_space(kind) {
            return true;
        }
        if kind == Unbound::Pending {
            context.count(Counter::DropIncomingFull);
        }
        while let Some((number, generation)) = self.unbound.pop_oldest(kind) {
            let connection = self.get(number);
            if connection.is_some_and(|connection| connection.is_evictable(kind, generation)) {
                self.remove(number, context);
                return true;
            }
        }
        false
    }

    /// Counts a connection towards the limit of this kind.
    pub(super) fn admit(&mut self, kind: Unbound, number: u32) {
        let Some(connection) = self.slots.get_mut(number as usize) else {
            return;
        };
        let Some(connection) = connection.as_deref_mut() else {
            return;
        };
        connection.unbound = Some(kind);
        let generation = connection.generation;
        let slots = &self.slots;
        self.unbound
            .add(kind, (number, generation), |number, generation| {
                let connection = slots.get(number as usize).and_then(Option::as_deref);
                connection.is_some_and(|connection| connection.is_evictable(kind, generation))
            });
    }

    /// Returns the VI of this NIC at the remote end of a connection, if there is one. Finds its connection by the
    /// swapped addresses, which are unique on this host.
    pub(super) fn local_peer_of(&self, connection: &Connection) -> Option<ViIndex> {
        let addresses = (connection.remote, connection.local);
        let mut all = self.slots.iter().flatten();
        match all
            .find(|other| (other.local, other.remote) == addresses)?
            .stage
        {
            Stage::Requesting(vi) | Stage::Connected(vi) => Some(vi),
            Stage::Incoming(_) | Stage::RequestReceived(_) | Stage::PeerGone | Stage::Closing => {
                None
            }
        }
    }
}
