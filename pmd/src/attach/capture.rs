//! Capture of the frames of a NIC of a datapath process, for an operator.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use fcvi_frame::NPortId;

use super::listener_credentials;
use super::message::{CaptureParameters, Reply, Request, VERSION};
use crate::open::OpenError;
use vi_core::control_socket::Socket;

/// Limit of the wait for the process.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What to capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// The name of the NIC, or an alias.
    pub device: String,
    /// Capture only FC frames from or to this N_Port_ID; `None` for all frames.
    pub n_port_id: Option<NPortId>,
    /// Captured bytes of each frame, at least 52; `None` for all.
    pub snaplen_bytes: Option<u32>,
    /// Approximate size of the frame buffer in the process, 65536 to 67108864 bytes.
    pub buffer_bytes: u64,
    /// End after this number of frames; `None`: no limit.
    pub max_frames: Option<u64>,
}

/// The totals of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Frames in the file.
    pub frames: u64,
    /// Frames for which the buffer of the process had no space.
    pub dropped: u64,
}

/// A capture in progress in a datapath process; it ends when this is dropped or the program ends.
///
/// Reads return a pcapng file. It ends after [`Self::stop`], or when the process ends the capture; then
/// [`Self::summary`] returns the totals.
#[derive(Debug)]
pub struct Capture {
    socket: Socket,
    stream: UnixStream,
    nic: String,
    shortcut: bool,
}

impl Capture {
    /// Starts a capture in the process that listens at a socket. Permitted to the process's user and root.
    ///
    /// # Errors
    /// No process listens, or it refuses, with the reason.
    pub fn start(path: &Path, options: &CaptureOptions) -> Result<Self, OpenError> {
        let at = path.display();
        let failed = |error: io::Error| OpenError::new(format!("fcvi-pmd at {at}: {error}"));
        let socket = Socket::connect(path).map_err(|error| {
            OpenError::new(format!(
                "no datapath process at {at} ({error}): start it with fcvi-pmd run --config FILE"
            ))
        })?;
        listener_credentials::verify(&socket, path).map_err(failed)?;
        socket.set_timeout(Some(TIMEOUT)).map_err(failed)?;
        let parameters = CaptureParameters {
            device: options.device.clone(),
            n_port_id: options.n_port_id.map(NPortId::to_bytes),
            snaplen_bytes: options.snaplen_bytes.unwrap_or(0),
            buffer_bytes: options.buffer_bytes,
            max_frames: options.max_frames.unwrap_or(u64::MAX),
        };
        let request = Request::Capture {
            version: VERSION,
            parameters,
        };
        let reply = socket.send_first::<Reply>(&request).map_err(failed)?;
        let (nic, shortcut, fds) = match reply {
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
            .map_err(|_| failed(io::Error::other("no stream of frames received")))?;
        Ok(Self {
            socket,
            stream: stream.into(),
            nic,
            shortcut,
        })
    }

    /// The name of the NIC.
    #[must_use]
    pub fn nic(&self) -> &str {
        &self.nic
    }

    /// True if messages between VIs of this NIC are copied without frames: these are not captured.
    #[must_use]
    pub fn has_shortcut(&self) -> bool {
        self.shortcut
    }

    /// Requests the end of the capture. Frames captured so far are still returned; [`Read::read`] fails if the process
    /// sends nothing for ten seconds.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn stop(&self) -> io::Result<()> {
        self.socket.shut_down_writing();
        self.stream.set_read_timeout(Some(TIMEOUT))
    }

    /// Waits for the totals of the capture, after all frames were read.
    ///
    /// # Errors
    /// The process ended during the capture.
    pub fn summary(self) -> io::Result<Summary> {
        match self.socket.receive::<Reply>()? {
            Some((Reply::Captured { frames, dropped }, _)) => Ok(Summary { frames, dropped }),
            Some(_) | None => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the datapath process has ended: the end of the capture may be missing",
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
    /// Readable when [`Read::read`] would not block, also at the end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
