//! Frames of a NIC of a datapath process, for an operator.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::listener;
use super::message::{CaptureOrder, Reply, Request, VERSION};
use super::socket::Socket;
use crate::open::OpenError;

/// The process answers within so long, or is taken for stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The NIC, or an alias.
    pub device: String,
    /// Which frames: an expression such as `vi and (s_id == 00.01.02 or ox_id == 0x1234)`; empty
    /// for all.
    ///
    /// Flags are `in`, `out`, `fcoe`, `fip`, `vi`, `els`, `bls`; fields that are compared by `==`
    /// and `!=` are `ethertype`, `n_port_id` (source or destination), `s_id`, `d_id`, `ox_id`,
    /// `rx_id`, `r_ctl`, `type`, `handle` (of the receiver's VI), `opcode`, `msg_id`; they are
    /// joined by `and`, `or`, `not` and parentheses.
    pub filter: String,
    /// How many bytes of each frame, at least 52; `None` for all.
    pub longest_bytes: Option<u32>,
    /// About how many bytes of frames wait in the process for us, 65536 to 67108864.
    pub buffer_bytes: u64,
    /// End after so many frames.
    pub most_frames: Option<u64>,
}

/// What a capture came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Frames in the file.
    pub frames: u64,
    /// Frames for which there was no room in the process's buffer.
    pub dropped: u64,
}

/// A capture that runs in a datapath process; it ends when this is dropped, or the program ends.
///
/// Reading gives a pcapng file. It comes to an end after [`Self::stop`], or when the process ends
/// the capture; then [`Self::summary`] tells what it came to.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    stream: UnixStream,
    nic: String,
    shortcut: bool,
}

impl Capture {
    /// Begins to capture in the process that listens at a socket. The process's user and root may.
    ///
    /// # Errors
    /// There is no process, or it refuses: says why.
    pub fn begin(path: &Path, options: &CaptureOptions) -> Result<Self, OpenError> {
        let at = path.display();
        let failed = |error: io::Error| OpenError::new(format!("fcvi-pmd at {at}: {error}"));
        let socket = Socket::connect(path).map_err(|error| {
            OpenError::new(format!(
                "no datapath process at {at} ({error}): start it with fcvi-pmd run --config FILE"
            ))
        })?;
        listener::verify(&socket, path).map_err(failed)?;
        socket.set_patience(Some(PATIENCE)).map_err(failed)?;
        let order = CaptureOrder {
            device: options.device.clone(),
            filter: options.filter.clone(),
            longest_bytes: options.longest_bytes.unwrap_or(0),
            buffer_bytes: options.buffer_bytes,
            most_frames: options.most_frames.unwrap_or(u64::MAX),
        };
        let request = Request::Capture {
            version: VERSION,
            order,
        };
        let answer = socket.begin::<Reply>(&request).map_err(failed)?;
        let (nic, shortcut, fds) = match answer {
            Some((Reply::Capturing { nic, shortcut }, fds)) => (nic, shortcut, fds),
            Some((Reply::Refused(why), _)) => return Err(OpenError::new(why)),
            Some((Reply::UnknownNic(why), _)) => return Err(OpenError::unknown_name(why)),
            Some(_) | None => {
                return Err(OpenError::new(format!(
                    "what listens at {at} is not a datapath process of this release"
                )));
            }
        };
        let [stream] = <[_; 1]>::try_from(fds)
            .map_err(|_| failed(io::Error::other("no stream of frames came")))?;
        Ok(Self {
            socket,
            stream: stream.into(),
            nic,
            shortcut,
        })
    }

    /// The NIC's name.
    #[must_use]
    pub fn nic(&self) -> &str {
        &self.nic
    }

    /// Are messages between VIs of this NIC moved without frames? Then none is seen of them.
    #[must_use]
    pub fn has_shortcut(&self) -> bool {
        self.shortcut
    }

    /// Asks for the end: what was captured so far still comes, and a process that gives nothing
    /// for ten seconds makes [`Read::read`] fail.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn stop(&self) -> io::Result<()> {
        self.socket.shut_down_writing();
        self.stream.set_read_timeout(Some(PATIENCE))
    }

    /// Waits for what the capture came to, once everything has been read.
    ///
    /// # Errors
    /// The process ended without a word.
    pub fn summary(self) -> io::Result<Summary> {
        match self.socket.receive::<Reply>()? {
            Some((Reply::Captured { frames, dropped }, _)) => Ok(Summary { frames, dropped }),
            Some(_) | None => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the datapath process is gone: the end of the capture may be missing",
            )),
        }
    }
}

impl Read for Capture {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.read(to)
    }
}

impl AsFd for Capture {
    /// Readable when [`Read::read`] has something to give, the end included.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
