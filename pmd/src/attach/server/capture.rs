//! Frames of a NIC for an operator, as a pcapng file that the operator writes.
//!
//! The process gives the operator a stream of its own making and nothing else: it never touches
//! a file of somebody's choice, whose limits, place or fullness could stop or end it.

use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use pmd_port::Capabilities;
use pmd_port::layer::pcapng::format;

use super::{PATIENCE, Served, Server, out_of_descriptors, refuse, turn_away};
use crate::attach::doors;
use crate::attach::message::{CaptureOrder, Reply};
use crate::attach::socket::{Peer, Socket};
use crate::driver::Driver;
use crate::sync::Ordering;
use crate::sys;
use crate::tap::filter::Filter;
use crate::tap::{self, Taker};

/// What a ring may take of the process's memory.
const BUFFER_BYTES: core::ops::RangeInclusive<u64> = 1 << 16..=64 << 20;
/// Bytes that go to the operator at a time, about.
const CHUNK_BYTES: usize = 256 << 10;
/// The shortest length that frames can be cut to: the FC header fits.
const SHORTEST_BYTES: usize = 52;
/// How often the ring is looked at while nothing comes. The poller wakes nobody.
const PAUSE: Duration = Duration::from_millis(5);
/// How often it is seen that the process ends while the operator does not read.
const GLANCE: Duration = Duration::from_millis(100);

/// How many captures run.
#[derive(Default)]
pub(super) struct Captures {
    running: Mutex<usize>,
    ended: Condvar,
}

impl Captures {
    /// Counts one until what it gives is dropped.
    fn begin(&self) -> Running<'_> {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Running(self)
    }

    /// Waits until none runs, but not for ever.
    pub(super) fn wait_for_end(&self, limit: Duration) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .ended
            .wait_timeout_while(running, limit, |running| *running > 0);
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            log::warn!("a capture is cut short: nobody reads it");
        }
    }
}

struct Running<'a>(&'a Captures);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self
            .0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

/// A tap in a NIC, taken out on drop.
struct InPlace<'a> {
    served: &'a Served,
    taker: Taker,
}

impl InPlace<'_> {
    /// From now on no frame comes any more.
    fn take_out(&self) {
        let mut held = self.served.device.hold();
        if let Some(poller) = held.as_mut().and_then(Driver::engine_mut) {
            let tap = &mut poller.path.tap;
            // The NIC may have been brought up anew meanwhile, and have another one.
            let ours = tap.take_if(|tap| tap.is_of(&self.taker));
            drop(held);
            drop(ours);
        }
    }
}

impl Drop for InPlace<'_> {
    fn drop(&mut self) {
        self.take_out();
    }
}

impl Server {
    /// A capture, from its order to its end: the operator's, or its `most_frames`.
    pub(super) fn capture(
        &self,
        socket: &Socket,
        peer: Peer,
        order: &CaptureOrder,
    ) -> io::Result<()> {
        // Frames hold what all applications say: being allowed to attach is not enough.
        if peer.uid != 0 && peer.uid != geteuid().as_raw() {
            let text =
                "only root and the user of fcvi-pmd may capture: frames hold messages of all";
            return refuse(socket, format!("user {}: {text}", peer.uid));
        }
        let Some(served) = self.named(&order.device) else {
            return turn_away(socket, self.unknown_nic(&order.device));
        };
        let filter = match Filter::parse(&order.filter) {
            Ok(filter) => filter,
            Err(why) => return refuse(socket, format!("filter: {why}")),
        };
        let running = self.captures.begin();
        let (mut tap, head) = match put_in(served, filter, order) {
            Ok(put) => put,
            Err(why) => return refuse(socket, why),
        };
        let (mut stream, theirs) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => return refuse(socket, out_of_descriptors(&error)),
        };
        stream.set_write_timeout(Some(GLANCE))?;
        let name = &served.config.name;
        let begun = Reply::Capturing {
            nic: name.clone(),
            shortcut: served.config.shortcut,
        };
        socket.send(&begun, &[theirs.as_raw_fd()])?;
        drop(theirs);
        let (pid, uid) = (peer.pid, peer.uid);
        let line = format_args!("NIC {name}: process {pid} of user {uid} captures");
        doors::say(log::Level::Info, line);
        let outcome = self.carry(socket, &mut stream, &mut tap, (head, order.most_frames));
        tap.take_out();
        let dropped = tap.taker.dropped();
        let outcome = outcome.and_then(|frames| {
            let line = format_args!("NIC {name}: {frames} frames were captured, {dropped} dropped");
            doors::say(log::Level::Info, line);
            stream.shutdown(Shutdown::Write)?;
            socket.send(&Reply::Captured { frames, dropped }, &[])
        });
        if let Err(error) = &outcome {
            let line = format_args!("NIC {name}: the capture of process {pid} ends: {error}");
            doors::say(log::Level::Info, line);
        }
        drop(running);
        outcome
    }

    /// Carries frames from the tap to the operator; how many.
    fn carry(
        &self,
        socket: &Socket,
        stream: &mut UnixStream,
        tap: &mut InPlace<'_>,
        (mut chunk, most_frames): (Vec<u8>, u64),
    ) -> io::Result<u64> {
        let event = sys::Event::new()?;
        let mut frames = 0;
        loop {
            if socket.is_over() || self.over.load(Ordering::SeqCst) {
                tap.take_out();
            }
            // Seen before the ring is looked at: what is in it then is all.
            let over = tap.taker.is_over();
            while frames < most_frames && chunk.len() < CHUNK_BYTES {
                let taken = tap.taker.take(|taken| {
                    let (way, time_ns) = (taken.direction, taken.time_ns);
                    format::frame(&mut chunk, taken.kept(), taken.seen_bytes, way, time_ns);
                });
                if taken.is_none() {
                    break;
                }
                frames += 1;
            }
            if !chunk.is_empty() {
                self.write(stream, &chunk)?;
                chunk.clear();
            } else if over {
                return Ok(frames);
            } else {
                event.sleep_beside(&[socket.fd()], PAUSE);
            }
            if frames >= most_frames {
                return Ok(frames);
            }
        }
    }

    /// Writes to the operator, who may be slow, but not while the process ends.
    fn write(&self, stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
        let mut ending: Option<Instant> = None;
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.over.load(Ordering::SeqCst)
                        && ending.get_or_insert_with(Instant::now).elapsed() > PATIENCE / 2
                    {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Puts a tap into a NIC; gives its other end and the head of the file.
fn put_in<'a>(
    served: &'a Served,
    filter: Filter,
    order: &CaptureOrder,
) -> Result<(InPlace<'a>, Vec<u8>), String> {
    let name = &served.config.name;
    let is_taken = || format!("NIC {name} is captured already: end the other capture");
    let port: Capabilities = {
        let held = served.device.hold();
        let poller = held.as_ref().and_then(Driver::engine);
        let poller = poller.ok_or_else(|| format!("NIC {name} is down"))?;
        // Before a buffer is made in vain.
        if poller.path.tap.is_some() {
            return Err(is_taken());
        }
        poller.path.port.capabilities().clone()
    };
    let longest_bytes = match order.longest_bytes as usize {
        0 => port.max_frame_bytes,
        bytes => bytes.max(SHORTEST_BYTES).min(port.max_frame_bytes),
    };
    let room = order
        .buffer_bytes
        .clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
    // All memory is there before the NIC's turn is ours.
    let (tap, taker) = tap::tap(filter, longest_bytes, room as usize);
    let tap = Box::new(tap);
    let mut head = Vec::with_capacity(CHUNK_BYTES * 2);
    format::head(&mut head, &port, longest_bytes as u32);
    let mut held = served.device.hold();
    let poller = held.as_mut().and_then(Driver::engine_mut);
    let poller = poller.ok_or_else(|| format!("NIC {name} is down"))?;
    if poller.path.tap.is_some() {
        return Err(is_taken());
    }
    poller.path.tap = Some(tap);
    drop(held);
    Ok((InPlace { served, taker }, head))
}
