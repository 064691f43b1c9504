//! The thread of a control channel: it finds the two who are to talk, and carries their messages.

use core::cell::RefCell;
use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, RawFd};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::meeting::Meeting;
use super::rules::{CONNECT, CONNECTED, DISCONNECT, Speaker};
use super::socket::{self, Address, Message, Socket};
use crate::dpdk::eal::Eal;

/// How long two may take to agree on their memory; who only holds the line is sent away then.
const AGREEMENT: Duration = Duration::from_secs(2);
/// How often a server is looked for.
const LOOK_FOR_SERVER: Duration = Duration::from_millis(100);
/// How long one is left alone at most with which there were no terms to come to.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How long a server may take to greet.
const GREETING: Duration = Duration::from_secs(1);
/// How long DPDK's client is waited for once there is a server.
const START: Duration = Duration::from_secs(2);
/// How long DPDK may take to hear of an end.
const END: Duration = Duration::from_secs(2);
/// How long whatever has no room just now is left alone.
const PAUSE: Duration = Duration::from_millis(1);
/// So often DPDK's interrupt thread has looked at its sockets, all of them, once nobody talks to it any more.
const PASSES: u32 = 3;
/// Connections that are looked at, at a time.
const KNOCKS: usize = 16;

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
    /// Receive queues, to each of which there is to be a ring.
    pub(super) queues: u16,
    pub(super) outer: Outer,
    pub(super) inner: Inner,
    /// DPDK's client, if it came and nobody talks with it yet: as it was started last.
    pub(super) came: RefCell<Option<Socket>>,
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

/// Two who talk.
#[derive(Debug)]
struct Talk<'a> {
    outer: &'a Socket,
    inner: &'a Socket,
    /// What each may say.
    from_outer: Speaker,
    from_inner: Speaker,
    /// They have memory in common.
    agreed: bool,
    /// They both said so.
    settled: bool,
}

/// What a talk comes to by what one of them said.
#[derive(Debug)]
enum Next {
    GoOn,
    /// The other process ends it, with this message if with any.
    End(Option<Message>),
    /// DPDK ended it.
    Ended,
}

fn is_to_come(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Has the other end of a socket closed it?
fn is_over(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

impl Relay {
    /// Carries one talk after the other, until it is told to stop.
    pub(super) fn run(self) {
        let mut pause = LOOK_FOR_SERVER;
        let error = loop {
            let talked = self.one().and_then(|settled| {
                // A server that has no room for us is not asked again at once, and ever later.
                pause = match settled {
                    true => LOOK_FOR_SERVER,
                    false => (2 * pause).min(LONGEST_PAUSE),
                };
                match (&self.outer, settled) {
                    (Outer::Server(_), false) => self.wait([], Some(pause)).map(|_| ()),
                    _ => Ok(()),
                }
            });
            match talked {
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

    /// Waits as [`socket::wait`] does, and lets DPDK's client in meanwhile.
    fn listen(&self, fds: &[RawFd], at_most: Option<Duration>) -> io::Result<Vec<bool>> {
        let door = match &self.inner {
            Inner::Client(door) => Some(door),
            Inner::Server(_) => None,
        };
        let mut all = fds.to_vec();
        all.push(door.map_or(-1, AsRawFd::as_raw_fd));
        let mut ready = socket::wait(&all, at_most)?;
        if ready.pop() == Some(true)
            && let Some(door) = door
        {
            self.let_in(door)?;
        }
        Ok(ready)
    }

    /// As [`listen`](Self::listen), until the thread is to end.
    fn wait<const N: usize>(
        &self,
        fds: [RawFd; N],
        at_most: Option<Duration>,
    ) -> Result<[bool; N], Over> {
        let mut all = fds.to_vec();
        all.push(self.stop.as_raw_fd());
        let ready = self.listen(&all, at_most)?;
        match ready[N] {
            true => Err(Over::Stopped),
            false => Ok(core::array::from_fn(|at| ready[at])),
        }
    }

    fn is_stopped(&self) -> io::Result<bool> {
        Ok(socket::wait(&[self.stop.as_raw_fd()], Some(Duration::ZERO))?[0])
    }

    /// Whoever came through a door; `None` if nobody did, or there is no room for more now.
    fn admit(&self, door: &Socket) -> io::Result<Option<Socket>> {
        door.accept().or_else(|error| {
            log::warn!("{}: a connection was not accepted: {error}", self.device);
            socket::wait(&[], Some(LOOK_FOR_SERVER)).map(|_| None)
        })
    }

    /// DPDK's client, and nobody else: the door has a name that others can find.
    fn let_in(&self, door: &Socket) -> io::Result<()> {
        for _ in 0..KNOCKS {
            let Some(came) = self.admit(door)? else {
                break;
            };
            if came.peer_process()? == process::id() as libc::pid_t {
                *self.came.borrow_mut() = Some(came);
            }
        }
        Ok(())
    }

    /// A talk from its begin to its end, if there is one; false if the two did not come to terms.
    fn one(&self) -> Result<bool, Over> {
        let Some(outer) = self.find_other()? else {
            return Ok(true);
        };
        let mut greeted = matches!(self.outer, Outer::Client(_));
        let talked = match self.find_dpdk() {
            Ok(Some(inner)) => self.carry(&outer, inner, &mut greeted),
            Ok(None) => Ok(false),
            Err(over) => Err(over),
        };
        // DPDK's server does not survive it if we leave before.
        if !greeted {
            socket::wait(&[outer.as_raw_fd()], Some(GREETING))?;
        }
        talked
    }

    /// The other process, if it comes or is there now.
    fn find_other(&self) -> Result<Option<Socket>, Over> {
        match &self.outer {
            Outer::Client(door) => {
                self.wait([door.as_raw_fd()], None)?;
                Ok(self.admit(door)?)
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
            Inner::Client(_) => {
                self.wait([], Some(Duration::ZERO))?;
                if self.came.borrow().is_none() {
                    self.meeting.ask_for_start();
                }
                while self.came.borrow().is_none() && begin.elapsed() < START {
                    self.wait([], Some(START.saturating_sub(begin.elapsed())))?;
                }
                self.meeting.take_start_back();
                Ok(self.came.take())
            }
            Inner::Server(inode) => loop {
                let path = format!("/proc/thread-self/fd/{}", inode.as_raw_fd());
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

    /// Carries what the two say, until one of them ends it or the thread is told to stop.
    fn carry(&self, outer: &Socket, inner: Socket, greeted: &mut bool) -> Result<bool, Over> {
        let (from_outer, from_inner) = match self.outer {
            Outer::Client(_) => (Speaker::client(self.queues), Speaker::server(1)),
            Outer::Server(_) => (Speaker::server(self.queues), Speaker::client(self.queues)),
        };
        let mut talk = Talk {
            outer,
            inner: &inner,
            from_outer,
            from_inner,
            agreed: false,
            settled: false,
        };
        let ended = self.talk(&mut talk);
        *greeted |= talk.from_outer.has_greeted();
        let settled = talk.settled;
        let inner_greeted = talk.from_inner.has_greeted() || matches!(self.inner, Inner::Client(_));
        match ended {
            Ok(Next::Ended | Next::GoOn) => Ok(settled),
            Ok(Next::End(last)) => {
                self.end(inner, inner_greeted, last)?;
                Ok(settled)
            }
            Err(over) => {
                self.end(inner, inner_greeted, None)?;
                Err(over)
            }
        }
    }

    /// Carries what the two say; returns how it ended.
    fn talk(&self, talk: &mut Talk<'_>) -> Result<Next, Over> {
        let begin = Instant::now();
        // Nobody else comes through the door of a server meanwhile.
        let door = match &self.outer {
            Outer::Client(door) => Some(door),
            Outer::Server(_) => None,
        };
        let fds = [
            talk.outer.as_raw_fd(),
            talk.inner.as_raw_fd(),
            door.map_or(-1, AsRawFd::as_raw_fd),
        ];
        loop {
            let patience = (!talk.settled).then(|| AGREEMENT.saturating_sub(begin.elapsed()));
            if patience.is_some_and(|left| left.is_zero()) {
                log::warn!("{}: the other end did not agree in time", self.device);
                return Ok(Next::End(None));
            }
            let [heard, dpdk_says, knocks] = self.wait(fds, patience)?;
            let mut next = Next::GoOn;
            if self.came.borrow().is_some() {
                // It was started anew, and does not know of this any more.
                next = Next::Ended;
            }
            if dpdk_says && matches!(next, Next::GoOn) {
                next = talk.pass_out();
            }
            if heard && matches!(next, Next::GoOn) {
                next = talk.pass_in(&self.device);
            }
            if !matches!(next, Next::GoOn) {
                return Ok(next);
            }
            if knocks && let Some(door) = door {
                drop(self.admit(door)?);
            }
        }
    }

    /// Has DPDK hear of the end while no burst runs, and waits until it has given up what the two had in common; even if
    /// the thread is to stop, but then not for ever.
    fn end(&self, inner: Socket, greeted: bool, last: Option<Message>) -> io::Result<()> {
        self.meeting.hold();
        let told = self.tell_of_end(&inner, greeted, last);
        if !matches!(told, Ok(true)) {
            // Left before its greeting, DPDK's server would end the process once it comes to that.
            core::mem::forget(inner);
        }
        // If that failed bursts stay held: nobody knows what DPDK has heard.
        told.map(|_| self.meeting.release())
    }

    /// Tells DPDK of the end, and waits until it has done what it does about it; false if it must not be left.
    fn tell_of_end(
        &self,
        inner: &Socket,
        mut greeted: bool,
        last: Option<Message>,
    ) -> io::Result<bool> {
        let last = last.unwrap_or_else(|| Message::goodbye("the other end is gone"));
        let begin = Instant::now();
        let (mut told, mut heard) = (false, false);
        while !heard && begin.elapsed() < END {
            if !told {
                match inner.send(&last) {
                    Ok(()) => told = true,
                    Err(error) => heard = is_over(&error),
                }
            }
            // That it closes its socket may not be seen: children of this process have that, too.
            heard |= told && !inner.has_unheard()?;
            greeted |= matches!(inner.receive(), Ok(Some(message)) if message.kind().is_some());
            self.listen(&[], Some(PAUSE))?;
        }
        // What it does about it ends before its interrupt thread does anything else. If it has not heard, but looked at its
        // sockets, this is none of them any more.
        let mut passes = 0;
        while passes < PASSES {
            passes += u32::from(self.eal.interrupts_passed());
            self.listen(&[], Some(PAUSE))?;
            if passes < PASSES && self.is_stopped()? && begin.elapsed() > 2 * END {
                log::error!("{}: DPDK's interrupt thread does not go on", self.device);
                break;
            }
        }
        Ok((heard || greeted) && passes == PASSES)
    }
}

impl Talk<'_> {
    /// A message of DPDK's to the other process.
    fn pass_out(&mut self) -> Next {
        let mut message = match self.inner.receive() {
            Ok(Some(message)) => message,
            Err(error) if is_to_come(&error) => return Next::GoOn,
            Ok(None) => return Next::Ended,
            Err(error) if is_over(&error) => return Next::Ended,
            Err(_lost) => return Next::End(None),
        };
        // DPDK keeps to the rules: they are asked for what it has said by now.
        let allowed = self.from_inner.check(&mut message);
        let sent = self.outer.send(&message);
        match message.kind() {
            Some(DISCONNECT) => return Next::Ended,
            Some(CONNECTED) => self.settled = true,
            _ => {}
        }
        match (allowed, sent) {
            (Ok(()), Ok(())) => Next::GoOn,
            _ => Next::End(None),
        }
    }

    /// A message of the other process to DPDK, if it may have it: once there is memory in common, the end is all that is
    /// left to say.
    fn pass_in(&mut self, device: &str) -> Next {
        let mut message = match self.outer.receive() {
            Ok(Some(message)) => message,
            Err(error) if is_to_come(&error) => return Next::GoOn,
            Ok(None) => return Next::End(None),
            Err(error) => {
                log::debug!("{device}: the other end is lost: {error}");
                return Next::End(None);
            }
        };
        if let Err(why) = self.from_outer.check(&mut message) {
            log::warn!("{device}: the other end is sent away: {why}");
            return Next::End(None);
        }
        match message.kind() {
            Some(DISCONNECT) => return Next::End(Some(message)),
            _ if self.agreed => {
                log::warn!("{device}: the other end is sent away: all was agreed");
                return Next::End(None);
            }
            Some(CONNECT) => self.agreed = true,
            Some(CONNECTED) => (self.agreed, self.settled) = (true, true),
            _ => {}
        }
        match self.inner.send(&message) {
            Ok(()) => Next::GoOn,
            Err(_no_room) => Next::End(None),
        }
    }
}
