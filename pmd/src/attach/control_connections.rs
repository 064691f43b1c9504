//! Control connections of an attached program to its datapath process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vi_core::sync::{AtomicBool, Ordering};
use vi_types::{CallError, Outcome, ResourceError};

use super::listener_credentials;
use super::message::{Reply, Request, VERSION};
use vi_core::control_socket::Socket;

/// A process that ends closes its connections one after the other: the attach connection within this time after any
/// other.
const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// Limit of the wait for a connection that another call is using.
const REUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a call has no reply.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The process has ended, did not reply in time, or sent an invalid reply.
    NoReply,
    /// The process refuses another call now, for this reason.
    Refused(String),
}

impl From<RequestError> for CallError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Refused(why) => {
                log::error!("datapath process: {why}");
                ResourceError::ProcessRefused.into()
            }
            RequestError::NoReply => ResourceError::ProcessGone.into(),
        }
    }
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        log::debug!("datapath process: {error}");
        Self::NoReply
    }
}

/// The control connections of an attachment: the attach connection, which exists as long as the attachment, and a pool
/// of call connections, one for each call in progress.
pub(crate) struct ControlConnections {
    path: PathBuf,
    key: [u8; 16],
    /// The attach connection.
    attach: Socket,
    idle: Mutex<Vec<Socket>>,
    /// Notified when a connection is added to `idle`.
    returned: Condvar,
    /// The attachment is being ended.
    is_ending: AtomicBool,
    /// Calls that may block leave one call connection to the others, which may unblock or end them.
    keeps_one: bool,
}

impl ControlConnections {
    pub(crate) fn new(path: PathBuf, key: [u8; 16], attach: Socket, keeps_one: bool) -> Self {
        Self {
            path,
            key,
            attach,
            idle: Mutex::new(Vec::new()),
            returned: Condvar::new(),
            is_ending: AtomicBool::new(false),
            keeps_one,
        }
    }

    /// The path of the process's socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// True if the process has closed the attach connection, or has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.attach.is_closed()
    }

    /// True while the attachment is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Ends the attachment, and waits until the process has acknowledged that: then it no longer accesses memory of
    /// this program. False if it has not within `limit`.
    pub(crate) fn end(&self, limit: Duration) -> bool {
        // SeqCst: a call that fails because of the following shutdown finds it.
        self.is_ending.store(true, Ordering::SeqCst);
        self.attach.shut_down_writing();
        let begun = Instant::now();
        while !self.attach.is_closed() {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                // From now on the end of the process is reported as a loss again.
                self.is_ending.store(false, Ordering::SeqCst);
                return false;
            }
            self.attach.wait_for_close(left);
        }
        true
    }

    /// Shuts down the attach connection: the process ends the attachment, including the calls in progress.
    pub(crate) fn shut_down(&self) {
        self.attach.shut_down();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn return_idle(&self, socket: Socket) {
        self.idle().push(socket);
        self.returned.notify_one();
    }

    /// Opens a call connection.
    fn join(&self, timeout: Option<Duration>) -> Result<Socket, RequestError> {
        let socket = Socket::connect(&self.path)?;
        // Before the key is sent.
        listener_credentials::verify(&socket, &self.path)?;
        if timeout.is_some() {
            socket.set_timeout(timeout)?;
        }
        let join = Request::Join {
            version: VERSION,
            key: self.key,
        };
        match socket.send_first::<Reply>(&join)? {
            Some((Reply::Done, _)) => Ok(socket),
            Some((Reply::Refused(why), _)) => Err(RequestError::Refused(why)),
            Some(_) | None => Err(RequestError::NoReply),
        }
    }

    /// Takes an idle call connection, or opens one.
    fn call_connection(
        &self,
        may_block: bool,
        timeout: Option<Duration>,
    ) -> Result<Socket, RequestError> {
        let kept = usize::from(may_block && self.keeps_one);
        let idle = {
            let mut idle = self.idle();
            if idle.len() > kept { idle.pop() } else { None }
        };
        if let Some(socket) = idle {
            return Ok(socket);
        }
        match self.join(timeout) {
            // The kept connection is in use for a moment.
            Err(RequestError::Refused(why)) if !may_block && self.keeps_one => {
                let is_empty = |idle: &mut Vec<Socket>| idle.is_empty();
                let waited =
                    (self.returned).wait_timeout_while(self.idle(), REUSE_TIMEOUT, is_empty);
                let (mut idle, _) = waited.unwrap_or_else(PoisonError::into_inner);
                idle.pop().ok_or(RequestError::Refused(why))
            }
            joined => joined,
        }
    }

    /// Sends a request and waits for the reply. After a failure [`Self::is_closed`] is true if the process has ended.
    fn call(
        &self,
        request: &Request,
        fd: Option<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<(Reply, Socket), RequestError> {
        let reply = self.try_call(request, fd, timeout);
        if matches!(reply, Err(RequestError::NoReply)) {
            self.attach.wait_for_close(CLOSE_GRACE);
        }
        reply
    }

    fn try_call(
        &self,
        request: &Request,
        fd: Option<OwnedFd>,
        timeout: Option<Duration>,
    ) -> Result<(Reply, Socket), RequestError> {
        let socket = self.call_connection(request.may_block(), timeout)?;
        if timeout.is_some() {
            socket.set_timeout(timeout)?;
        }
        let fds: Vec<_> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        socket.send(request, &fds)?;
        let (reply, _) = socket.receive::<Reply>()?.ok_or(RequestError::NoReply)?;
        if timeout.is_some() {
            socket.set_timeout(None)?;
        }
        Ok((reply, socket))
    }

    /// Makes a call, with a descriptor if the request needs one.
    pub(super) fn request(&self, request: &Request, fd: Option<OwnedFd>) -> Outcome<Reply> {
        self.finish(self.call(request, fd, None)?)
    }

    /// Makes a call with a timeout.
    pub(super) fn request_within(&self, request: &Request, timeout: Duration) -> Outcome<Reply> {
        self.finish(self.call(request, None, Some(timeout))?)
    }

    fn finish(&self, (reply, socket): (Reply, Socket)) -> Outcome<Reply> {
        self.return_idle(socket);
        match reply {
            Reply::Failed(error) => Err(error),
            Reply::Refused(why) => {
                log::error!("datapath process: {why}");
                Err(ResourceError::ProcessRefused.into())
            }
            reply => Ok(reply),
        }
    }

    /// Makes a call whose reply may be too long for one message, and returns the joined parts.
    pub(super) fn request_parts(&self, request: &Request) -> Outcome<Vec<u8>> {
        let (mut reply, socket) = self.call(request, None, None)?;
        let mut all = Vec::new();
        loop {
            match reply {
                Reply::Part(part, last) => {
                    all.extend(part);
                    if last {
                        self.return_idle(socket);
                        return Ok(all);
                    }
                }
                Reply::Failed(error) => return Err(error),
                _ => return Err(RequestError::NoReply.into()),
            }
            (reply, _) = socket
                .receive::<Reply>()
                .map_err(RequestError::from)?
                .ok_or(RequestError::NoReply)?;
        }
    }
}
