//! Captures frames of a NIC for an operator, who writes them to a pcapng file.
//!
//! The process writes to a stream that it has created itself, and never to a file that the operator chooses: a full
//! file system or a size limit could block or end the process.

use std::io::{self, ErrorKind, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fcvi_frame::NPortId;
use nix::unistd::geteuid;
use pmd_port::Capabilities;
use pmd_port::layer::pcapng::format;
use vi_core::sync::Ordering;
use vi_core::sys;

use super::{ServedNic, Server, TIMEOUT, out_of_descriptors};
use crate::attach::limiters;
use crate::attach::message::{CaptureParameters, Reply};
use crate::nic_backend::Backend;
use crate::tap::{self, Tap, TapReader};
use vi_core::control_socket::{Peer, Socket};

#[cfg(test)]
mod tests;

/// Permitted sizes of the ring.
const BUFFER_BYTES: core::ops::RangeInclusive<u64> = 1 << 16..=64 << 20;
/// Approximate number of bytes in a write to the operator.
const CHUNK_BYTES: usize = 256 << 10;
/// The shortest length to which frames can be truncated: the FC header fits.
const MIN_SNAPLEN_BYTES: usize = 52;
/// Interval at which an empty ring is polled: the poller does not wake the thread.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval at which a blocked write checks whether the process is stopping.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The number of running captures.
#[derive(Default)]
pub(super) struct Captures {
    running: Mutex<usize>,
    ended: Condvar,
}

impl Captures {
    /// Counts a capture until the result is dropped.
    fn begin(&self) -> RunningCapture<'_> {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        RunningCapture(self)
    }

    /// Waits until no capture runs, for `limit` at most.
    pub(super) fn wait_for_end(&self, limit: Duration) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .ended
            .wait_timeout_while(running, limit, |running| *running > 0);
        if waited.is_ok_and(|(_, waited)| waited.timed_out()) {
            log::warn!("capture: truncated at shutdown: the operator does not read it");
        }
    }
}

struct RunningCapture<'a>(&'a Captures);

impl Drop for RunningCapture<'_> {
    fn drop(&mut self) {
        *self
            .0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.ended.notify_all();
    }
}

/// A tap installed in a NIC; removed on drop.
struct InstalledTap<'a> {
    served: &'a ServedNic,
    reader: TapReader,
}

impl InstalledTap<'_> {
    /// Removes the tap: no more frames are captured.
    fn remove(&self) {
        let mut held = self.served.device.lock();
        if let Some(poller) = held.as_mut().and_then(Backend::state_mut) {
            let tap = &mut poller.path.tap;
            // The NIC may have been reopened meanwhile, and have another tap.
            let ours = tap.take_if(|tap| tap.is_read_by(&self.reader));
            drop(held);
            drop(ours);
        }
    }
}

impl Drop for InstalledTap<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Server {
    /// Runs a capture until the operator ends it or `max_frames` are captured.
    pub(super) fn capture(
        &self,
        socket: &Arc<Socket>,
        peer: Peer,
        parameters: &CaptureParameters,
    ) -> io::Result<()> {
        // Frames contain messages of all applications: permission to attach is not sufficient.
        if peer.uid != 0 && peer.uid != geteuid().as_raw() {
            let text = "only root and the user of fcvi-pmd may capture: \
                        frames contain messages of all users";
            return self.refuse(socket, format!("user {}: {text}", peer.uid));
        }
        let Some(served) = self.nic(&parameters.device) else {
            return self.reject(socket, self.unknown_nic(&parameters.device));
        };
        let running = self.captures.begin();
        let (mut tap, head) = match install_tap(served, socket, parameters) {
            Ok(installed) => installed,
            Err(why) => return self.refuse(socket, why),
        };
        let (mut stream, operator_stream) = match UnixStream::pair() {
            Ok(pair) => pair,
            Err(error) => return self.refuse(socket, out_of_descriptors(&error)),
        };
        stream.set_write_timeout(Some(STOP_CHECK_INTERVAL))?;
        let name = &served.config.name;
        let started = Reply::Capturing {
            nic: name.clone(),
            shortcut: served.config.fc_vi.shortcut,
        };
        socket.send(&started, &[operator_stream.as_raw_fd()])?;
        drop(operator_stream);
        let (pid, uid) = (peer.pid, peer.uid);
        let line = format_args!("NIC {name}: capture started pid={pid} uid={uid}");
        limiters::log_limited(log::Level::Info, line);
        let outcome = self.forward(socket, &mut stream, &mut tap, (head, parameters.max_frames));
        tap.remove();
        let dropped = tap.reader.dropped();
        let outcome = outcome.and_then(|frames| {
            let line = format_args!(
                "NIC {name}: capture ended pid={pid} frames={frames} dropped={dropped}"
            );
            limiters::log_limited(log::Level::Info, line);
            stream.shutdown(Shutdown::Write)?;
            socket.send(&Reply::Captured { frames, dropped }, &[])
        });
        if let Err(error) = &outcome {
            let line = format_args!("NIC {name}: capture failed: {error} pid={pid}");
            limiters::log_limited(log::Level::Info, line);
        }
        drop(running);
        outcome
    }

    /// Forwards frames from the tap to the operator, and returns their number.
    fn forward(
        &self,
        socket: &Socket,
        stream: &mut UnixStream,
        tap: &mut InstalledTap<'_>,
        (mut chunk, max_frames): (Vec<u8>, u64),
    ) -> io::Result<u64> {
        let event = sys::EventFd::new()?;
        let mut frames = 0;
        loop {
            if socket.is_closed() || self.stopping.load(Ordering::SeqCst) {
                tap.remove();
            }
            // Checked before the ring is read: then the ring contains all remaining frames.
            let over = tap.reader.is_closed();
            while frames < max_frames && chunk.len() < CHUNK_BYTES {
                let taken = tap.reader.take(|taken| {
                    let (way, time_ns) = (taken.direction, taken.time_ns);
                    format::frame(&mut chunk, taken.kept(), taken.original_bytes, way, time_ns);
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
                event.sleep_with(&[socket.fd()], POLL_INTERVAL);
            }
            if frames >= max_frames {
                return Ok(frames);
            }
        }
    }

    /// Writes to the operator, and waits for a slow one, but not for long while the process is stopping.
    fn write(&self, stream: &mut UnixStream, mut bytes: &[u8]) -> io::Result<()> {
        let mut stopping_since: Option<Instant> = None;
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.stopping.load(Ordering::SeqCst)
                        && stopping_since.get_or_insert_with(Instant::now).elapsed() > TIMEOUT / 2
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

/// Installs a tap for an operator in a NIC, in place of one whose operator has ended; also returns the header of the
/// file.
fn install_tap<'a>(
    served: &'a ServedNic,
    operator: &Arc<Socket>,
    parameters: &CaptureParameters,
) -> Result<(InstalledTap<'a>, Vec<u8>), String> {
    let name = &served.config.name;
    let in_use = || format!("NIC {name}: another capture is running: end it");
    let (port, previous): (Capabilities, _) = {
        let held = served.device.lock();
        let poller = held.as_ref().and_then(Backend::state);
        let poller = poller.ok_or_else(|| format!("NIC {name} is down"))?;
        let previous = poller
            .path
            .tap
            .as_ref()
            .map(|tap| Arc::clone(tap.operator()));
        (poller.path.port.capabilities().clone(), previous)
    };
    // Before a buffer is allocated, and without the backend lock, since it is a system call.
    if previous
        .as_ref()
        .is_some_and(|operator| !operator.is_closed())
    {
        return Err(in_use());
    }
    let snaplen_bytes = match parameters.snaplen_bytes as usize {
        0 => port.max_frame_bytes,
        bytes => bytes.max(MIN_SNAPLEN_BYTES).min(port.max_frame_bytes),
    };
    let room_bytes = parameters
        .buffer_bytes
        .clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
    // All memory is allocated before the backend lock of the NIC is taken.
    let n_port_id = parameters.n_port_id.map(NPortId::from_bytes);
    let (tap, reader) = tap::tap(
        Arc::clone(operator),
        n_port_id,
        snaplen_bytes,
        room_bytes as usize,
    );
    let tap = Box::new(tap);
    let mut head = Vec::with_capacity(CHUNK_BYTES * 2);
    format::head(&mut head, &port, snaplen_bytes as u32);
    let mut held = served.device.lock();
    let poller = held.as_mut().and_then(Backend::state_mut);
    let poller = poller.ok_or_else(|| format!("NIC {name} is down"))?;
    let began_meanwhile = |tap: &Tap| {
        !previous
            .iter()
            .any(|ended| Arc::ptr_eq(ended, tap.operator()))
    };
    if poller.path.tap.as_deref().is_some_and(began_meanwhile) {
        return Err(in_use());
    }
    let ended = poller.path.tap.replace(tap);
    drop(held);
    drop(ended);
    Ok((InstalledTap { served, reader }, head))
}
