//! VI/TCP (docs/spec/vitcp.md): VIs over TCP connections, polled by the NIC's loop.
//!
//! | room | what is in it |
//! | --- | --- |
//! | this file | [`ViTcp`]: the tables, and one look at the sockets |
//! | `socket` | system calls on sockets |
//! | `secure`, `credentials` | TLS in front of them |
//! | `warm` | the connection that brought something last: read without being asked after |
//! | `connection` | one TCP connection, one VI: what is known of them |
//! | `establish`, `active`, `passive`, `crossing` | connections made: commands, the asking end, the asked end, peers that ask each other |
//! | `choices` | what VIs want of connections beyond the guide |
//! | `keys`, `challenge` | keys that are shared with other hosts, and who has to prove to have one |
//! | `door` | one TCP port for all programs of a host |
//! | `guests` | places of connections that are no VI's yet, or none any more |
//! | `closing` | connections ended |
//! | `transmit`, `gather` | descriptors cut into segments, and one system call's worth of them |
//! | `receive` | segments matched to messages, placed, completed |
//! | `in_flight` | descriptors that were sent and are not complete |
//! | `port` | what stands for the sockets where the poller wants a port |
//! | `timers`, `counters` | what is to be done later; what happened |
//!
//! The formats and the machines of connection establishment are in `vitcp-lite`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;

use vi_engine::{ConnId, EndpointState, Host, ViIndex, ViParams};

use fcvi_frame::connect::HostAddress;
use pmd_port::PortStats;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use crate::choices::ViChoices;
use crate::datapath::Datapath;
use crate::datapath::stream::Pieces;

mod active;
mod challenge;
mod choices;
mod closing;
mod connection;
mod counters;
mod credentials;
mod crossing;
mod door;
mod establish;
mod gather;
mod guests;
mod in_flight;
mod keys;
mod passive;
mod port;
mod receive;
mod secure;
mod socket;
mod timers;
mod transmit;
mod warm;

pub(crate) use counters::Counters;
pub(crate) use credentials::Credentials;
pub(crate) use keys::Keys;
pub(crate) use port::StreamPort;

use closing::Ending;
use connection::{Connection, Endpoint, Phase, Stage};
use counters::Counter;
use door::{DOORS, Door};
use establish::Listener;
use gather::Gather;
use guests::Guests;
use receive::Receiver;
use secure::is_for_next;
use socket::{End, Habits, Watch, is_for_later};
use timers::{Key, Timers};
use warm::WARM_LOOKS;

/// User bytes in a segment of a send, at most.
pub(crate) const NATIVE_MTU_BYTES: u32 = 65_535 - SEGMENT_HEADER_BYTES as u32;

/// Bytes that are read at once, but for those that go to their place directly.
const BUFFER_BYTES: usize = 128 << 10;
/// Behind bytes that go to their place directly, so many more are read: the next headers.
const BEHIND_BYTES: usize = 4 << 10;
/// Pieces of memory into which is read at once.
const MAX_PIECES: usize = 64;
/// Connections that one look serves, and system calls for each.
const CONNECTIONS_AT_ONCE: usize = 32;
const READS_AT_ONCE: u32 = 4;
/// System calls in vain before a look is over.
const QUICK_READS: u32 = 3;
/// So many looks in a row are left out behind calls of a stream.
const LOOKS_LEFT_OUT: u32 = 2;
/// Connections that come in, in one look.
const ACCEPTS_AT_ONCE: u32 = 32;
/// While it brought something in the last so many, the others are asked after more and more rarely
/// as long as they bring nothing; otherwise at every few looks.
const BUSY_LOOKS: u32 = 16;
const LOOKS_BETWEEN: core::ops::RangeInclusive<u32> = 4..=32;

/// What a NIC's configuration says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) host: HostAddress,
    pub(crate) port: u16,
    pub(crate) max_vi: u32,
    /// Connections that are no VI's, at most.
    pub(crate) max_incoming: u32,
    /// Descriptors in flight of a VI, at most.
    pub(crate) max_in_flight: u32,
    /// RDMA reads of a peer that a VI serves at a time.
    pub(crate) max_reads: u16,
    /// How long an answer may take, and a Connect Request on a connection that came in.
    pub(crate) answer_ns: u64,
    /// A request that found nobody is made again after so long at first.
    pub(crate) retry_ns: u64,
    pub(crate) probe_ms: u64,
    /// New VIs want descriptor flow control.
    pub(crate) flow_control: bool,
    /// A peer that knows of fewer receives is told of new ones at once.
    pub(crate) credits_low: u16,
}

/// The VIs of a NIC, and their TCP connections.
pub(crate) struct ViTcp {
    settings: Settings,
    /// Connections are of TLS, with these.
    credentials: Option<Credentials>,
    /// Without any, everybody is spoken with.
    keys: Option<Keys>,
    endpoints: Vec<Option<Endpoint>>,
    /// Places in `endpoints` without a VI: the first of them is taken next.
    free: BinaryHeap<Reverse<u32>>,
    connections: Vec<Option<Box<Connection>>>,
    free_connections: Vec<u32>,
    next_generation: u32,
    /// Connections that are no VI's yet, and those that are none any more.
    incoming: Guests,
    leaving: Guests,
    watch: Watch,
    door: Door,
    /// Connections that have something to be read, or new room.
    ready: VecDeque<u32>,
    /// The connection that brought something last, and the looks left in which it is read first.
    warm: Option<(u32, u32)>,
    /// How many times in a row it was that one.
    in_a_row: u32,
    /// The connection of which the system does not tell.
    untold: Option<u32>,
    /// Looks since all of them were asked after, and how many may be.
    looks: u32,
    looks_between: u32,
    /// Looks that were left out one after the other, since something was just sent.
    looks_left_out: u32,
    /// Connections of which TCP keeps something back.
    corked: Vec<u32>,
    /// Looks since anything was written.
    corked_looks: u32,
    timers: Timers,
    listeners: Vec<Listener>,
    next_listener: u64,
    next_peer_request: u64,
    /// Requests of peers that waited for the answer to one of ours.
    ask_again: Vec<ConnId>,
    buffer: Box<[u8]>,
    pieces: Pieces,
    gather: Gather,
    counters: Counters,
}

impl ViTcp {
    /// A NIC without VIs.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new(
        settings: Settings,
        credentials: Option<Credentials>,
        keys: Option<Keys>,
    ) -> io::Result<Self> {
        let max_vi = settings.max_vi;
        Ok(Self {
            endpoints: (0..max_vi).map(|_| None).collect(),
            free: (0..max_vi).map(Reverse).collect(),
            connections: Vec::new(),
            free_connections: Vec::new(),
            next_generation: 0,
            incoming: Guests::new(settings.max_incoming),
            leaving: Guests::new(max_vi),
            watch: Watch::new()?,
            door: Door::new(),
            ready: VecDeque::new(),
            warm: None,
            in_a_row: 0,
            untold: None,
            looks: 0,
            looks_left_out: 0,
            looks_between: *LOOKS_BETWEEN.start(),
            corked: Vec::new(),
            corked_looks: 0,
            timers: Timers::default(),
            listeners: Vec::new(),
            next_listener: 0,
            next_peer_request: 0,
            ask_again: Vec::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            pieces: Pieces::with_capacity(MAX_PIECES),
            gather: Gather::new(),
            counters: Counters::default(),
            settings,
            credentials,
            keys,
        })
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What its connections carried, in the place of what a port carries: segments, and bytes of TCP.
    pub(crate) fn add_traffic(&self, stats: &mut PortStats) {
        let of = |counter| self.counters.get(counter);
        stats.rx_frames += of(Counter::RxSegments);
        stats.rx_bytes += of(Counter::RxBytes);
        stats.tx_frames += of(Counter::TxSegments);
        stats.tx_bytes += of(Counter::TxBytes);
    }

    /// The port that stands for the sockets of this NIC.
    pub(crate) fn port(&self) -> StreamPort {
        let device = self.own_end().address().to_string();
        StreamPort::new(device, self.watch.descriptor())
    }

    fn own_end(&self) -> End {
        End {
            host: self.settings.host.0,
            port: self.settings.port,
        }
    }

    fn habits(&self) -> Habits {
        Habits {
            probe: core::time::Duration::from_millis(self.settings.probe_ms),
        }
    }

    /// Adds an Idle VI; `None` if all places are taken, or the port cannot be listened at.
    pub(crate) fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        if !self.open_door() {
            return None;
        }
        let Reverse(slot) = self.free.pop()?;
        let choices = ViChoices {
            flow_control: self.settings.flow_control,
            ..ViChoices::default()
        };
        *self.endpoints.get_mut(slot as usize)? = Some(Endpoint::new(params, choices));
        Some(ViIndex(slot))
    }

    /// Removes a VI; only an Idle one can go. False if it stays.
    pub(crate) fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        let idle = self.state(vi) == Some(EndpointState::Idle);
        if idle && let Some(place) = self.endpoints.get_mut(vi.0 as usize) {
            *place = None;
            self.free.push(Reverse(vi.0));
            self.timers.clear(Key::Request(vi.0));
            self.timers.clear(Key::Answer(vi.0));
        }
        idle
    }

    /// Replaces the consumer's choices for a VI; only for an Idle one. False if they stay.
    pub(crate) fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self.endpoint_mut(vi) {
            Some(ep) if matches!(ep.phase, Phase::Idle) => {
                ep.params = params;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The state of a VI.
    pub(crate) fn state(&self, vi: ViIndex) -> Option<EndpointState> {
        self.endpoint(vi).map(Endpoint::state)
    }

    /// The host at the other end of a VI's connection.
    pub(crate) fn peer(&self, vi: ViIndex) -> Option<HostAddress> {
        match self.endpoint(vi)?.phase {
            Phase::Connected(number) => {
                let connection = self.connections.get(number as usize)?.as_ref()?;
                Some(HostAddress(connection.far.host))
            }
            Phase::Idle | Phase::Asking(_) | Phase::Error => None,
        }
    }

    fn endpoint(&self, vi: ViIndex) -> Option<&Endpoint> {
        self.endpoints.get(vi.0 as usize)?.as_ref()
    }

    fn endpoint_mut(&mut self, vi: ViIndex) -> Option<&mut Endpoint> {
        self.endpoints.get_mut(vi.0 as usize)?.as_mut()
    }

    fn connection(&self, number: u32) -> Option<&Connection> {
        self.connections.get(number as usize)?.as_deref()
    }

    fn connection_mut(&mut self, number: u32) -> Option<&mut Connection> {
        self.connections.get_mut(number as usize)?.as_deref_mut()
    }

    /// Takes a connection out of its place, so that the tables can be used beside it.
    fn take(&mut self, number: u32) -> Option<Box<Connection>> {
        self.connections.get_mut(number as usize)?.take()
    }

    /// Puts it back.
    fn put(&mut self, number: u32, connection: Box<Connection>) {
        if let Some(place) = self.connections.get_mut(number as usize) {
            *place = Some(connection);
        }
    }

    /// Gives a TCP connection a place, and watches it.
    fn add(&mut self, make: impl FnOnce(u32) -> Connection) -> io::Result<u32> {
        let number = match self.free_connections.pop() {
            Some(number) => number,
            None => {
                self.connections.push(None);
                (self.connections.len() - 1) as u32
            }
        };
        self.next_generation = self.next_generation.wrapping_add(1) % DOORS;
        let connection = Box::new(make(self.next_generation));
        let watched = connection.watched_as(number);
        if let Err(error) = self.watch.add(&connection.stream, watched) {
            self.free_connections.push(number);
            return Err(error);
        }
        self.put(number, connection);
        Ok(number)
    }

    /// Closes a TCP connection and frees its place.
    fn remove(&mut self, number: u32) {
        if let Some(connection) = self.take(number) {
            self.release(connection.guest);
            self.timers.clear(Key::Connection(number));
            self.free_connections.push(number);
        }
        if self.warm.is_some_and(|(warm, _)| warm == number) {
            self.warm = None;
        }
        if self.untold == Some(number) {
            self.untold = None;
        }
    }

    /// Has a connection served in one of the next looks.
    fn queue(&mut self, number: u32) {
        if let Some(connection) = self.connection_mut(number)
            && !core::mem::replace(&mut connection.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// When [`ViTcp::handle_timeout`] wants to be called.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.timers.next()
    }

    /// Is anything left of what a look found?
    pub(crate) fn has_more(&self) -> bool {
        !self.ready.is_empty()
            || self.has_corked()
            || !self.ask_again.is_empty()
            || self.door.has_backs()
    }

    /// The next look is at all sockets.
    pub(crate) fn look_at_all_next(&mut self) {
        self.watch_all();
        self.looks = u32::MAX;
    }

    /// Looks at the sockets and handles what came. True if anything did.
    pub(crate) fn look(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        if self.has_corked() && self.corked_looks == 1 && self.looks_left_out < LOOKS_LEFT_OUT {
            // More is about to be posted, or else this is looked at again soon.
            self.looks_left_out += 1;
            return false;
        }
        self.looks_left_out = 0;
        let mut worked = self.look_at_warm(now_ns, path);
        self.looks = self.looks.saturating_add(1);
        let busy = (self.warm).is_some_and(|(_, left)| left > WARM_LOOKS - BUSY_LOOKS);
        let most = match busy {
            true => self.looks_between,
            false => *LOOKS_BETWEEN.start(),
        };
        // What was found is more pressing, for a while.
        let late = match worked {
            true => 2 * most,
            false => most,
        };
        if self.warm.is_none() || self.looks >= late {
            self.looks = 0;
            worked |= self.look_at_all(now_ns, path);
            let warm = self.warm.map(|(number, _)| number);
            let others = self.ready.iter().any(|number| Some(*number) != warm);
            self.looks_between = match others {
                true => *LOOKS_BETWEEN.start(),
                false => (2 * self.looks_between).min(*LOOKS_BETWEEN.end()),
            };
        }
        for _ in 0..self.ready.len().min(CONNECTIONS_AT_ONCE) {
            let Some(number) = self.ready.pop_front() else {
                break;
            };
            worked |= self.serve(now_ns, number, path);
        }
        if !self.ask_again.is_empty() {
            worked |= self.ask_crossed_again(now_ns, path);
        }
        if self.door.has_backs() {
            worked |= self.take_backs(now_ns, path);
        }
        worked
    }

    /// Reads what came; a few times if nothing did and the program does nothing but wait for it: so
    /// it is found sooner than by whole turns.
    fn receive(receiver: &mut Receiver<'_>, pieces: &Pieces) -> io::Result<usize> {
        let tx = &receiver.connection.tx;
        let mut tries = match tx.streams || !receiver.connection.may_write {
            true => 1,
            false => QUICK_READS,
        };
        loop {
            tries -= 1;
            // SAFETY: the first pieces were found writable in this turn, which we run under; the last
            // one is of our buffer, to which there is no other reference.
            match unsafe { receiver.connection.stream.receive(pieces) } {
                Err(error) if tries > 0 && is_for_later(&error) => {}
                result => return result,
            }
        }
    }

    /// Asks the system which sockets something happened on. True if the door was one of them.
    pub(crate) fn look_at_all(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        self.look_at_untold(path);
        let mut door = false;
        for at in 0..self.watch.look() {
            let Some(seen) = self.watch.seen(at) else {
                break;
            };
            let number = seen.number as u32;
            let generation = (seen.number >> 32) as u32;
            if generation == DOORS {
                self.serve_door(now_ns, number, path);
                door = true;
                continue;
            }
            let Some(connection) = self.connection_mut(number) else {
                continue;
            };
            if connection.generation != generation {
                continue;
            }
            connection.may_read |= seen.readable;
            connection.over |= seen.over;
            let flushed = seen.writable && connection.stream.flush();
            let room = flushed && !core::mem::replace(&mut connection.may_write, true);
            if room && let Some(vi) = connection.vi() {
                path.resume(vi);
            }
            let waits = !matches!(connection.stage, Stage::Connected(_));
            if seen.readable || (room && waits) {
                self.queue(number);
            }
        }
        door
    }

    /// Serves one connection. True if anything came, or it went on.
    fn serve(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
        let Some(mut connection) = self.take(number) else {
            return false;
        };
        connection.queued = false;
        let Stage::Connected(vi) = connection.stage else {
            self.put(number, connection);
            return self.serve_stranger(now_ns, number, path);
        };
        let Some(mut params) = self.endpoint(vi).map(|ep| ep.params) else {
            self.put(number, connection);
            return false;
        };
        params.max_transfer_bytes = connection.max_transfer_bytes;
        let mut came = false;
        let mut ending = None;
        for _ in 0..READS_AT_ONCE {
            if !connection.may_read {
                break;
            }
            match self.read(vi, params, &mut connection, path) {
                Ok(something) => came |= something,
                Err(why) => {
                    ending = Some(why);
                    break;
                }
            }
        }
        let more = connection.may_read;
        self.put(number, connection);
        if let Some(ending) = ending {
            self.end(now_ns, vi, number, ending, path);
            return true;
        }
        if more {
            self.queue(number);
        }
        if came {
            self.warmed(number);
        }
        came
    }

    /// One system call's worth of what came for a VI. True if anything did.
    fn read(
        &mut self,
        vi: ViIndex,
        params: ViParams,
        connection: &mut Connection,
        path: &mut Datapath,
    ) -> Result<bool, Ending> {
        let mut receiver = Receiver {
            vi,
            params,
            connection,
            path,
            counters: &mut self.counters,
        };
        self.pieces.clear();
        let direct = receiver.direct(&mut self.pieces);
        let room = match direct {
            0 => BUFFER_BYTES,
            _ => BEHIND_BYTES,
        };
        let behind = self.buffer.as_mut_ptr().expose_provenance() as u64;
        self.pieces.push(behind, room);
        let got = match Self::receive(&mut receiver, &self.pieces) {
            Ok(0) => return Err(Ending::Left),
            Ok(got) => got,
            Err(error) if is_for_later(&error) => {
                receiver.connection.may_read = false;
                return match receiver.connection.lost {
                    true => Err(Ending::Lost),
                    false => Ok(false),
                };
            }
            Err(error) if is_for_next(&error) => return Ok(false),
            Err(error) => return Err(Ending::of_error(&error)),
        };
        receiver.counters.count(Counter::RxCalls);
        receiver.counters.add(Counter::RxBytes, got as u64);
        let whole = direct as usize + room;
        // Less than was asked for: nothing is left. What comes now is told of, but for an end of
        // which that was told already.
        let connection = &mut *receiver.connection;
        let ends = connection.over || connection.lost;
        connection.may_read = got == whole || ends || connection.stream.has_more();
        let placed = got.min(direct as usize);
        if placed > 0 {
            receiver.placed(placed as u32)?;
        }
        match self.buffer.get(..got - placed) {
            Some(bytes) => receiver.feed(bytes)?,
            None => return Err(Ending::Protocol(Counter::DropMalformed)),
        }
        Ok(true)
    }

    /// Does what time wants done, at most `budget` things.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath) {
        for _ in 0..budget {
            match self.timers.pop_due(now_ns) {
                None => return,
                Some(Key::Connection(number)) => self.connection_timeout(number),
                Some(Key::Request(slot)) => self.request_timeout(now_ns, ViIndex(slot), path),
                Some(Key::Answer(slot)) => self.answer_timeout(now_ns, ViIndex(slot), path),
                Some(Key::Door) => self.try_door_again(now_ns),
            }
        }
    }
}
