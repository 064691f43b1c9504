//! The thread of a control channel: it finds the two who are to talk, and carries their messages.

use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, RawFd};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::meeting::Meeting;
use super::socket::{self, Address, MESSAGE_BYTES, Message, Socket};
use crate::dpdk::eal::Eal;

/// How long two may take to agree on their memory; who only holds the line is sent away then.
const AGREEMENT: Duration = Duration::from_secs(2);
/// How often a server is looked for.
const LOOK_FOR_SERVER: Duration = Duration::from_millis(100);
/// How long DPDK's client is waited for once there is a server.
const START: Duration = Duration::from_secs(2);
/// How long DPDK may take to hear of an end.
const END: Duration = Duration::from_secs(10);
/// How long whatever has no room just now is left alone.
const PAUSE: Duration = Duration::from_millis(1);

/// The types of messages that mean something here: the client's last step to agreement, the server's, and the end.
const CONNECT: u16 = 6;
const CONNECTED: u16 = 7;
const DISCONNECT: u16 = 8;

/// The other process.
#[derive(Debug)]
pub(super) enum Outer {
    /// A client, which comes through this.
    Client(Socket),
    /// A server, which is here.
    Server(Address),
}

/// DPDK.
#[derive(Debug)]
pub(super) enum Inner {
    /// A client, which comes through this.
    Client(Socket),
    /// A server, at this socket.
    Server(File),
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) eal: &'static Eal,
    pub(super) device: String,
    pub(super) outer: Outer,
    pub(super) inner: Inner,
    pub(super) meeting: Arc<Meeting>,
    /// Says when the thread is to end.
    pub(super) stop: PipeReader,
}

/// Why the thread ends.
#[derive(Debug)]
enum Over {
    Stopped,
    Failed(io::Error),
}

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// What a conversation comes to by what one of them said.
#[derive(Debug)]
enum Next {
    GoOn,
    /// The other process ends it, with this message if with any.
    End(Option<Message>),
    /// DPDK ended it.
    Ended,
}

fn type_of(message: &Message) -> Option<u16> {
    message.bytes.first_chunk().copied().map(u16::from_le_bytes)
}

fn is_to_come(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl Relay {
    /// Carries one conversation after the other, until it is told to stop.
    pub(super) fn run(self) {
        let error = loop {
            match self.one() {
                Ok(()) => {}
                Err(Over::Stopped) => return,
                Err(Over::Failed(error)) => break error,
            }
        };
        log::error!(
            "{}: its control channel failed, and it will not find another end any more: {error}",
            self.device
        );
    }

    /// Waits as [`socket::wait`] does.
    fn wait<const N: usize>(
        &self,
        fds: [RawFd; N],
        at_most: Option<Duration>,
    ) -> Result<[bool; N], Over> {
        let mut all = fds.to_vec();
        all.push(self.stop.as_raw_fd());
        let ready = socket::wait(&all, at_most)?;
        if ready[N] {
            return Err(Over::Stopped);
        }
        Ok(core::array::from_fn(|at| ready[at]))
    }

    /// Whoever came through a door; `None` if nobody did, or there is no room for more now.
    fn admit(&self, door: &Socket) -> Result<Option<Socket>, Over> {
        match door.accept() {
            Ok(admitted) => Ok(admitted),
            Err(error) => {
                log::warn!("{}: a connection was not accepted: {error}", self.device);
                self.wait([], Some(LOOK_FOR_SERVER))?;
                Ok(None)
            }
        }
    }

    /// A conversation from its begin to its end, if there is one.
    fn one(&self) -> Result<(), Over> {
        let Some(outer) = self.find_other()? else {
            return Ok(());
        };
        let Some(inner) = self.find_dpdk()? else {
            return Ok(());
        };
        self.carry(&outer, &inner)
    }

    /// The other process, if it comes or is there now.
    fn find_other(&self) -> Result<Option<Socket>, Over> {
        match &self.outer {
            Outer::Client(door) => {
                self.wait([door.as_raw_fd()], None)?;
                self.admit(door)
            }
            Outer::Server(address) => match Socket::connect(address) {
                Ok(server) => Ok(Some(server)),
                Err(error) => {
                    log::trace!("{}: no server yet: {error}", self.device);
                    self.wait([], Some(LOOK_FOR_SERVER))?;
                    Ok(None)
                }
            },
        }
    }

    /// DPDK, once there is somebody to talk with; `None` if it does not come.
    fn find_dpdk(&self) -> Result<Option<Socket>, Over> {
        let begin = Instant::now();
        match &self.inner {
            Inner::Client(door) => {
                let mut found = self.last_of_us(door)?;
                while found.is_none() && begin.elapsed() < START {
                    self.meeting.ask_for_start();
                    self.wait([door.as_raw_fd()], Some(START))?;
                    found = self.last_of_us(door)?;
                }
                Ok(found)
            }
            Inner::Server(inode) => loop {
                let path = format!("/proc/self/fd/{}", inode.as_raw_fd());
                match Socket::connect(&Address::Path(path.into())) {
                    Ok(server) => return Ok(Some(server)),
                    Err(error) if is_to_come(&error) && begin.elapsed() < START => {
                        self.wait([], Some(PAUSE))?;
                    }
                    Err(error) => {
                        log::warn!("{}: DPDK does not answer: {error}", self.device);
                        self.wait([], Some(LOOK_FOR_SERVER))?;
                        return Ok(None);
                    }
                }
            },
        }
    }

    /// Whoever of this process came last through the door: DPDK, which left if it came before. Others may know the door
    /// and are not let in.
    fn last_of_us(&self, door: &Socket) -> Result<Option<Socket>, Over> {
        let mut last = None;
        while let Some(came) = self.admit(door)? {
            if came.peer_process()? == process::id() as libc::pid_t {
                last = Some(came);
            }
        }
        Ok(last)
    }

    /// Carries what the two say, until one of them ends it or the thread is told to stop.
    fn carry(&self, outer: &Socket, inner: &Socket) -> Result<(), Over> {
        let conversation = self.converse(outer, inner);
        match conversation {
            Ok(Next::End(last)) => {
                self.end(inner, last)?;
                Ok(())
            }
            Ok(Next::GoOn | Next::Ended) => Ok(()),
            // Whoever leaves DPDK before it has said its greeting ends the process.
            Err(over) => {
                self.end(inner, None)?;
                Err(over)
            }
        }
    }

    /// Carries what the two say; returns how it ended.
    fn converse(&self, outer: &Socket, inner: &Socket) -> Result<Next, Over> {
        let begin = Instant::now();
        // Nobody else comes through the door of a server meanwhile.
        let door = match &self.outer {
            Outer::Client(door) => Some(door),
            Outer::Server(_) => None,
        };
        let at_door = door.map_or(-1, AsRawFd::as_raw_fd);
        let mut agreed = false;
        loop {
            let patience = (!agreed).then(|| AGREEMENT.saturating_sub(begin.elapsed()));
            if patience.is_some_and(|left| left.is_zero()) {
                log::warn!("{}: the other end did not agree in time", self.device);
                return Ok(Next::End(None));
            }
            let fds = [at_door, outer.as_raw_fd(), inner.as_raw_fd()];
            let [knocks, heard, dpdk_says] = self.wait(fds, patience)?;
            let mut next = Next::GoOn;
            if dpdk_says {
                next = Self::pass_out(inner, outer);
            }
            if heard && matches!(next, Next::GoOn) {
                next = self.pass_in(outer, inner, &mut agreed);
            }
            if !matches!(next, Next::GoOn) {
                return Ok(next);
            }
            if knocks && let Some(door) = door {
                drop(self.admit(door)?);
            }
        }
    }

    /// A message of DPDK's to the other process.
    fn pass_out(inner: &Socket, outer: &Socket) -> Next {
        match inner.receive() {
            Ok(Some(message)) => match (outer.send(&message), type_of(&message)) {
                (_, Some(DISCONNECT)) => Next::Ended,
                (Ok(()), _) => Next::GoOn,
                (Err(_gone), _) => Next::End(None),
            },
            Err(error) if is_to_come(&error) => Next::GoOn,
            Ok(None) | Err(_) => Next::Ended,
        }
    }

    /// A message of the other process to DPDK, if it may have it: once there is memory in common, the end is all that
    /// is left to say.
    fn pass_in(&self, outer: &Socket, inner: &Socket, agreed: &mut bool) -> Next {
        let message = match outer.receive() {
            Ok(Some(message)) => message,
            Err(error) if is_to_come(&error) => return Next::GoOn,
            Err(error) => {
                log::debug!("{}: the other end is lost: {error}", self.device);
                return Next::End(None);
            }
            Ok(None) => return Next::End(None),
        };
        let what = type_of(&message);
        if what == Some(DISCONNECT) {
            return Next::End(Some(message));
        }
        if *agreed {
            log::warn!("{}: the other end broke off", self.device);
            return Next::End(None);
        }
        *agreed = match self.outer {
            Outer::Client(_) => what == Some(CONNECT),
            Outer::Server(_) => what == Some(CONNECTED),
        };
        match inner.send(&message) {
            Ok(()) => Next::GoOn,
            Err(_gone) => Next::Ended,
        }
    }

    /// Has DPDK hear of the end while no burst runs, and waits until it has given up what the two had in common; even if
    /// the thread is to stop, but not for ever.
    fn end(&self, inner: &Socket, last: Option<Message>) -> io::Result<()> {
        self.meeting.hold();
        let last = last.unwrap_or_else(|| goodbye("the other end is gone"));
        if let Err(error) = inner.send(&last) {
            log::debug!("{}: DPDK is gone, too: {error}", self.device);
        }
        let begin = Instant::now();
        // That it closes its socket would not be seen: children of this process may have that, too.
        let mut heard = false;
        while !heard && begin.elapsed() < END {
            socket::wait(&[], Some(PAUSE))?;
            heard = !inner.has_unheard()?;
        }
        // What it does about it ends before its interrupt thread does anything else.
        while heard && !self.eal.interrupts_passed() && begin.elapsed() < END {}
        if begin.elapsed() >= END {
            log::warn!(
                "{}: DPDK does not hear that its other end is gone",
                self.device
            );
        }
        self.meeting.release();
        Ok(())
    }
}

/// The message that ends a conversation.
fn goodbye(why: &str) -> Message {
    let mut bytes = DISCONNECT.to_le_bytes().to_vec();
    // No error of a certain number, and the text.
    bytes.extend([0; 4]);
    bytes.extend(why.as_bytes());
    bytes.resize(MESSAGE_BYTES, 0);
    Message { bytes, fd: None }
}
