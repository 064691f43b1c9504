//! `capture`: captures frames of a running process to a file.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmd::attach::capture::{self, Capture};
use pmd::capture_file;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::cli::CaptureOptions;
use crate::{Error, print_error, snapshot_source};

/// Size of the read buffer.
const CHUNK_BYTES: usize = 256 << 10;

pub(crate) fn run(options: &CaptureOptions, out: &mut impl Write) -> Result<(), Error> {
    let socket = snapshot_source::socket(&options.process)?;
    // Installed before the capture starts: from then on a signal must leave a complete file.
    let (signalled, signal) = UnixStream::pair()?;
    pipe::register(SIGINT, signal.try_clone()?)?;
    pipe::register(SIGTERM, signal)?;
    let mut capture = Capture::start(&socket, &capture_options(options)).map_err(Error::Open)?;
    // Opened after the start: a refused capture does not change the file.
    if options.file == Path::new("-") {
        copy_frames(&mut capture, options.limit, &signalled, |bytes| {
            out.write_all(bytes)?;
            Ok(out.flush()?)
        })?;
    } else {
        let failed = |error| Error::File(options.file.clone(), error);
        let mut file = capture_file::create(&options.file).map_err(failed)?;
        copy_frames(&mut capture, options.limit, &signalled, |bytes| {
            file.write_all(bytes).map_err(failed)
        })?;
    }
    let summary = capture.summary()?;
    print_error(format_args!(
        "{} frames captured, {} dropped by the tap",
        summary.frames, summary.dropped
    ));
    Ok(())
}

fn capture_options(options: &CaptureOptions) -> capture::CaptureOptions {
    capture::CaptureOptions {
        device: options.device.clone(),
        n_port_id: options.n_port_id,
        snaplen_bytes: options.snaplen,
        buffer_bytes: options.buffer << 10,
        max_frames: options.count,
    }
}

/// Passes the captured bytes to `write` until the process ends the capture, a signal arrives or the time limit expires.
fn copy_frames(
    capture: &mut Capture,
    limit: Option<Duration>,
    signalled: &UnixStream,
    mut write: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    if capture.has_shortcut() {
        print_error(format_args!(
            "{}: messages between VIs of this NIC are copied without frames and not captured: \
             set shortcut = false in its configuration to capture them",
            capture.nic()
        ));
    }
    print_error(format_args!("capturing {}; Ctrl-C ends it", capture.nic()));
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut stopped = false;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if !stopped && wait(capture, signalled, deadline)? == WaitResult::Stop {
            stopped = true;
            capture.stop()?;
        }
        match capture.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(bytes) => write(chunk.get(..bytes).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitResult {
    /// Captured bytes can be read.
    Readable,
    /// A signal arrived or the time limit expired.
    Stop,
}

fn wait(
    capture: &Capture,
    signalled: &UnixStream,
    deadline: Option<Instant>,
) -> Result<WaitResult, Error> {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = match left {
            None => PollTimeout::NONE,
            Some(Duration::ZERO) => return Ok(WaitResult::Stop),
            // Rounded up, so that it does not expire early.
            Some(left) => {
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut fds = [
            PollFd::new(signalled.as_fd(), PollFlags::POLLIN),
            PollFd::new(capture.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, limit) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(error) => return Err(Error::Io(error.into())),
        }
        let [signal, _] = fds;
        let is_stop = signal.any().unwrap_or(true);
        return Ok(if is_stop {
            WaitResult::Stop
        } else {
            WaitResult::Readable
        });
    }
}
