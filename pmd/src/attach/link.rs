//! The conversations of an attached program with its datapath process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::listener;
use super::message::{Reply, Request, VERSION};
use super::socket::Socket;
use crate::control::{ControlError, Outcome};
use crate::resource_error::ResourceError;
use crate::sync::{AtomicBool, Ordering};

/// A process that ends closes one conversation after the other; the one that it lives by follows
/// any other within so long.
const GRACE: Duration = Duration::from_millis(100);

/// How long a call waits for a conversation that another one is using.
const TURN: Duration = Duration::from_secs(1);

/// There is no answer.
#[derive(Debug)]
pub(crate) enum Gone {
    /// The process is gone, or does not understand us.
    Silent,
    /// It will not take another call now; why.
    Refused(String),
}

impl From<Gone> for ControlError {
    fn from(gone: Gone) -> Self {
        match gone {
            Gone::Refused(why) => {
                log::error!("datapath process: {why}");
                ResourceError::ProcessRefused.into()
            }
            Gone::Silent => ResourceError::ProcessGone.into(),
        }
    }
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Self {
        log::debug!("datapath process: {error}");
        Self::Silent
    }
}

/// The conversation with the process: one that lasts as long as the attachment, and one for each
/// call that is under way.
pub(crate) struct Link {
    path: PathBuf,
    key: [u8; 16],
    life: Socket,
    idle: Mutex<Vec<Socket>>,
    /// There is one in `idle` again.
    returned: Condvar,
    /// The attachment is being ended.
    is_ending: AtomicBool,
    /// Calls that wait for something leave one conversation to those that do not: these may be
    /// what they wait for, or what ends them.
    keeps_one: bool,
}

impl Link {
    pub(crate) fn new(path: PathBuf, key: [u8; 16], life: Socket, keeps_one: bool) -> Self {
        Self {
            path,
            key,
            life,
            idle: Mutex::new(Vec::new()),
            returned: Condvar::new(),
            is_ending: AtomicBool::new(false),
            keeps_one,
        }
    }

    /// The socket of the process.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// True if the process has ended the conversation, or itself.
    pub(crate) fn is_over(&self) -> bool {
        self.life.is_over()
    }

    /// Is the attachment being ended?
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Has the process end the attachment, and waits until it has: then it reaches nothing of this
    /// program any more. False if it has not within `limit`.
    pub(crate) fn end(&self, limit: Duration) -> bool {
        // SeqCst: a call that fails because of what follows finds it.
        self.is_ending.store(true, Ordering::SeqCst);
        self.life.shut_down_writing();
        let begun = Instant::now();
        while !self.life.is_over() {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                // From now on the end of the process is a loss again.
                self.is_ending.store(false, Ordering::SeqCst);
                return false;
            }
            self.life.await_end(left);
        }
        true
    }

    /// Ends the conversation: for the process this program has gone, whoever waits in a call.
    pub(crate) fn shut_down(&self) {
        self.life.shut_down();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, socket: Socket) {
        self.idle().push(socket);
        self.returned.notify_one();
    }

    fn join(&self, patience: Option<Duration>) -> Result<Socket, Gone> {
        let socket = Socket::connect(&self.path)?;
        // Before it is sent the key.
        listener::verify(&socket, &self.path)?;
        if patience.is_some() {
            socket.set_patience(patience)?;
        }
        let join = Request::Join {
            version: VERSION,
            key: self.key,
        };
        match socket.begin::<Reply>(&join)? {
            Some((Reply::Done, _)) => Ok(socket),
            Some((Reply::Refused(why), _)) => Err(Gone::Refused(why)),
            Some(_) | None => Err(Gone::Silent),
        }
    }

    /// A conversation for a call that waits, or does not.
    fn conversation(&self, waits: bool, patience: Option<Duration>) -> Result<Socket, Gone> {
        let kept = usize::from(waits && self.keeps_one);
        let idle = {
            let mut idle = self.idle();
            if idle.len() > kept { idle.pop() } else { None }
        };
        if let Some(socket) = idle {
            return Ok(socket);
        }
        match self.join(patience) {
            // The one that is kept is in use for a moment.
            Err(Gone::Refused(why)) if !waits && self.keeps_one => {
                let is_empty = |idle: &mut Vec<Socket>| idle.is_empty();
                let waited = (self.returned).wait_timeout_while(self.idle(), TURN, is_empty);
                let (mut idle, _) = waited.unwrap_or_else(PoisonError::into_inner);
                idle.pop().ok_or(Gone::Refused(why))
            }
            joined => joined,
        }
    }

    /// Asks, and waits for the answer. When this fails, it is known whether the process is gone.
    fn call(
        &self,
        request: &Request,
        fd: Option<OwnedFd>,
        patience: Option<Duration>,
    ) -> Result<(Reply, Socket), Gone> {
        let answer = self.try_call(request, fd, patience);
        if matches!(answer, Err(Gone::Silent)) {
            self.life.await_end(GRACE);
        }
        answer
    }

    fn try_call(
        &self,
        request: &Request,
        fd: Option<OwnedFd>,
        patience: Option<Duration>,
    ) -> Result<(Reply, Socket), Gone> {
        let socket = self.conversation(request.waits(), patience)?;
        if patience.is_some() {
            socket.set_patience(patience)?;
        }
        let fds: Vec<_> = fd.iter().map(AsRawFd::as_raw_fd).collect();
        socket.send(request, &fds)?;
        let (reply, _) = socket.receive::<Reply>()?.ok_or(Gone::Silent)?;
        if patience.is_some() {
            socket.set_patience(None)?;
        }
        Ok((reply, socket))
    }

    pub(super) fn ask(&self, request: &Request, fd: Option<OwnedFd>) -> Outcome<Reply> {
        self.finish(self.call(request, fd, None)?)
    }

    /// As [`Self::ask`], of a process that answers within so long or is taken for stuck.
    pub(super) fn ask_within(&self, request: &Request, patience: Duration) -> Outcome<Reply> {
        self.finish(self.call(request, None, Some(patience))?)
    }

    fn finish(&self, (reply, socket): (Reply, Socket)) -> Outcome<Reply> {
        self.give_back(socket);
        match reply {
            Reply::Failed(error) => Err(error),
            Reply::Refused(why) => {
                log::error!("datapath process: {why}");
                Err(ResourceError::ProcessRefused.into())
            }
            reply => Ok(reply),
        }
    }

    /// Asks for what is too long for one message.
    pub(super) fn ask_for_parts(&self, request: &Request) -> Outcome<Vec<u8>> {
        let (mut reply, socket) = self.call(request, None, None)?;
        let mut all = Vec::new();
        loop {
            match reply {
                Reply::Part(part, last) => {
                    all.extend(part);
                    if last {
                        self.give_back(socket);
                        return Ok(all);
                    }
                }
                Reply::Failed(error) => return Err(error),
                _ => return Err(Gone::Silent.into()),
            }
            (reply, _) = socket
                .receive::<Reply>()
                .map_err(Gone::from)?
                .ok_or(Gone::Silent)?;
        }
    }
}
