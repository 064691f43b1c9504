//! Frames of a running process, to a file.

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
use crate::{Error, complain, source};

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 256 << 10;

pub(crate) fn run(options: &CaptureOptions, out: &mut impl Write) -> Result<(), Error> {
    let socket = source::socket(&options.process)?;
    // Before the capture runs: from then on, whoever ends us wants the file to be complete.
    let (signalled, signal) = UnixStream::pair()?;
    pipe::register(SIGINT, signal.try_clone()?)?;
    pipe::register(SIGTERM, signal)?;
    let mut capture = Capture::begin(&socket, &order(options)).map_err(Error::Open)?;
    // Only now: a capture that is refused leaves the file as it is.
    if options.file == Path::new("-") {
        carry(&mut capture, options.limit, &signalled, |bytes| {
            out.write_all(bytes)?;
            Ok(out.flush()?)
        })?;
    } else {
        let failed = |error| Error::File(options.file.clone(), error);
        let mut file = capture_file::create(&options.file).map_err(failed)?;
        carry(&mut capture, options.limit, &signalled, |bytes| {
            file.write_all(bytes).map_err(failed)
        })?;
    }
    let summary = capture.summary()?;
    complain(format_args!(
        "{} frames captured, {} dropped by the tap",
        summary.frames, summary.dropped
    ));
    Ok(())
}

fn order(options: &CaptureOptions) -> capture::CaptureOptions {
    capture::CaptureOptions {
        device: options.device.clone(),
        filter: options.filter.clone(),
        longest_bytes: options.snaplen,
        buffer_bytes: options.buffer << 10,
        most_frames: options.count,
    }
}

/// Carries what comes to `write` until it ends by itself, by a signal or in time.
fn carry(
    capture: &mut Capture,
    limit: Option<Duration>,
    signalled: &UnixStream,
    mut write: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    if capture.has_shortcut() {
        complain(format_args!(
            "{}: messages between VIs of this NIC are moved without frames and not seen: \
             shortcut = false in its configuration shows them",
            capture.nic()
        ));
    }
    complain(format_args!("capturing {}; Ctrl-C ends it", capture.nic()));
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut stopped = false;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if !stopped && wait(capture, signalled, deadline)? == Wake::Stop {
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

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    /// There is something to read.
    Ready,
    /// Somebody wants us to end, or the time is over.
    Stop,
}

fn wait(
    capture: &Capture,
    signalled: &UnixStream,
    deadline: Option<Instant>,
) -> Result<Wake, Error> {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let limit = match left {
            None => PollTimeout::NONE,
            Some(Duration::ZERO) => return Ok(Wake::Stop),
            // Not a little earlier than it should be.
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
        return Ok(if is_stop { Wake::Stop } else { Wake::Ready });
    }
}
