//! One look at the sockets: what came is read, and who was served is told.

use std::io;

use vi_engine::{Host, ViIndex, ViParams};

use super::closing::Ending;
use super::connection::{Connection, Stage};
use super::counters::Counter;
use super::door::DOORS;
use super::receive::Receiver;
use super::secure::is_for_next;
use super::socket::is_for_later;
use super::warm::WARM_LOOKS;
use super::{BUFFER_BYTES, LOOKS_BETWEEN, ViTcp};
use crate::datapath::Datapath;
use crate::datapath::stream::Pieces;

/// Behind bytes that go to their place directly, so many more are read: the next headers.
const BEHIND_BYTES: usize = 4 << 10;
/// Connections that one look serves, and system calls for each.
const CONNECTIONS_AT_ONCE: usize = 32;
pub(super) const READS_AT_ONCE: u32 = 4;
/// System calls in vain before a look is over.
const QUICK_READS: u32 = 3;
/// So many looks in a row are left out behind calls of a stream.
const LOOKS_LEFT_OUT: u32 = 2;
/// While a connection brought something in the last so many, the others are asked after more and more
/// rarely as long as they bring nothing; otherwise at every few looks.
const BUSY_LOOKS: u32 = 16;

impl ViTcp {
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
    pub(super) fn serve(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
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
            match self.read(now_ns, (vi, params), &mut connection, path) {
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
        now_ns: u64,
        (vi, params): (ViIndex, ViParams),
        connection: &mut Connection,
        path: &mut Datapath,
    ) -> Result<bool, Ending> {
        let mut receiver = Receiver {
            now_ns,
            vi,
            params,
            connection,
            path,
            misses: &mut self.misses,
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
}
