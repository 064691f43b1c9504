//! The proxy thread of a control channel: connects the remote process with DPDK and forwards their messages.

use core::cell::RefCell;
use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::{AsRawFd, RawFd};
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::burst_pause::BurstPause;
use super::message_validator::{CONNECT, CONNECTED, DISCONNECT, MessageValidator};
use super::socket::{self, Address, Message, Socket};
use crate::dpdk::eal::Eal;

/// Timeout of the negotiation of a session; an idle peer is disconnected then.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of the attempts to connect to the remote server.
const CONNECT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum of that interval, after failed negotiations.
const CONNECT_INTERVAL_MAX: Duration = Duration::from_secs(3);
/// Timeout of a server's HELLO.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of DPDK's connect or accept, once the remote process is connected.
const DPDK_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of DPDK's reading a DISCONNECT.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Retry interval of an operation that would block.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// After this number of passes, DPDK's interrupt thread has polled all of its sockets.
const INTERRUPT_PASSES: u32 = 3;
/// Maximum number of connections accepted in one call.
const ACCEPT_BUDGET: usize = 16;

/// The remote process.
#[derive(Debug)]
pub(super) enum Remote {
    /// A client, which connects to this listening socket.
    Client(Socket),
    /// A server, which listens at this address.
    Server(Address),
}

/// DPDK in this process.
#[derive(Debug)]
pub(super) enum Dpdk {
    /// A client, which connects to this listening socket.
    Client(Socket),
    /// A server, which listens on this socket file.
    Server(File),
}

/// The state of the proxy thread.
#[derive(Debug)]
pub(super) struct ControlProxy {
    pub(super) eal: &'static Eal,
    pub(super) device: String,
    /// Number of receive queues; the peer needs a ring for each.
    pub(super) queues: u16,
    pub(super) remote: Remote,
    pub(super) dpdk: Dpdk,
    /// DPDK's client, if it has connected (since its last start) and has no session yet.
    pub(super) dpdk_client: RefCell<Option<Socket>>,
    pub(super) burst_pause: Arc<BurstPause>,
    /// Readable once the thread shall stop.
    pub(super) stop: PipeReader,
}

/// Reason for the end of the thread.
#[derive(Debug)]
enum Exit {
    Stopped,
    Failed(io::Error),
}

impl From<io::Error> for Exit {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// A session between the remote process and DPDK.
#[derive(Debug)]
struct Session<'a> {
    remote: &'a Socket,
    dpdk: &'a Socket,
    /// Validators of the messages of each side.
    from_remote: MessageValidator,
    from_dpdk: MessageValidator,
    /// CONNECT was received: the remote process's memory is shared.
    memory_shared: bool,
    /// CONNECTED was received.
    connected: bool,
}

/// State of a session after a message.
#[derive(Debug)]
enum SessionState {
    Open,
    /// Closed by the remote process, or by us for its errors; the DISCONNECT message that it sent, if any.
    RemoteClosed(Option<Message>),
    /// Closed by DPDK.
    DpdkClosed,
}

fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// True for errors of a socket that the peer has closed.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

impl ControlProxy {
    /// Runs one session after the other, until the thread is stopped.
    pub(super) fn run(self) {
        let mut interval = CONNECT_INTERVAL;
        let error = loop {
            let result = self.run_session().and_then(|connected| {
                // Back off from a server that refuses us.
                interval = match connected {
                    true => CONNECT_INTERVAL,
                    false => (2 * interval).min(CONNECT_INTERVAL_MAX),
                };
                match (&self.remote, connected) {
                    (Remote::Server(_), false) => self.wait([], Some(interval)).map(|_| ()),
                    _ => Ok(()),
                }
            });
            match result {
                Ok(()) => {}
                Err(Exit::Stopped) => return,
                Err(Exit::Failed(error)) => break error,
            }
        };
        log::error!(
            "{}: memif control thread: failed, no further connections: {error}",
            self.device
        );
    }

    /// Waits as [`socket::wait`] does, and accepts DPDK's client meanwhile.
    fn wait_and_accept(&self, fds: &[RawFd], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
        let listener = match &self.dpdk {
            Dpdk::Client(listener) => Some(listener),
            Dpdk::Server(_) => None,
        };
        let mut all = fds.to_vec();
        all.push(listener.map_or(-1, AsRawFd::as_raw_fd));
        let mut ready = socket::wait(&all, timeout)?;
        if ready.pop() == Some(true)
            && let Some(listener) = listener
        {
            self.accept_dpdk_client(listener)?;
        }
        Ok(ready)
    }

    /// As [`wait_and_accept`](Self::wait_and_accept); fails with [`Exit::Stopped`] once the thread shall stop.
    fn wait<const N: usize>(
        &self,
        fds: [RawFd; N],
        timeout: Option<Duration>,
    ) -> Result<[bool; N], Exit> {
        let mut all = fds.to_vec();
        all.push(self.stop.as_raw_fd());
        let ready = self.wait_and_accept(&all, timeout)?;
        match ready[N] {
            true => Err(Exit::Stopped),
            false => Ok(core::array::from_fn(|at| ready[at])),
        }
    }

    fn is_stopped(&self) -> io::Result<bool> {
        Ok(socket::wait(&[self.stop.as_raw_fd()], Some(Duration::ZERO))?[0])
    }

    /// Accepts a connection; `None` if none is pending, or if accepting failed, which is logged and delayed.
    fn accept(&self, listener: &Socket) -> io::Result<Option<Socket>> {
        listener.accept().or_else(|error| {
            log::warn!(
                "{}: memif control thread: accept failed: {error}",
                self.device
            );
            socket::wait(&[], Some(CONNECT_INTERVAL)).map(|_| None)
        })
    }

    /// Accepts DPDK's client and closes all other connections: other processes can find the listening socket's name.
    fn accept_dpdk_client(&self, listener: &Socket) -> io::Result<()> {
        for _ in 0..ACCEPT_BUDGET {
            let Some(client) = self.accept(listener)? else {
                break;
            };
            if client.peer_process()? == process::id() as libc::pid_t {
                *self.dpdk_client.borrow_mut() = Some(client);
            }
        }
        Ok(())
    }

    /// Runs a session from its beginning to its end. Returns `false` if its negotiation failed, `true` if it was
    /// connected or if the remote process is not reachable now.
    fn run_session(&self) -> Result<bool, Exit> {
        let Some(remote) = self.connect_remote()? else {
            return Ok(true);
        };
        let mut hello_received = matches!(self.remote, Remote::Client(_));
        let result = match self.connect_dpdk() {
            Ok(Some(dpdk)) => self.forward(&remote, dpdk, &mut hello_received),
            Ok(None) => Ok(false),
            Err(exit) => Err(exit),
        };
        // DPDK's server aborts if we disconnect before its HELLO.
        if !hello_received {
            socket::wait(&[remote.as_raw_fd()], Some(HELLO_TIMEOUT))?;
        }
        result
    }

    /// Accepts or connects to the remote process; `None` if it is not reachable now.
    fn connect_remote(&self) -> Result<Option<Socket>, Exit> {
        match &self.remote {
            Remote::Client(listener) => {
                self.wait([listener.as_raw_fd()], None)?;
                Ok(self.accept(listener)?)
            }
            Remote::Server(address) => match Socket::connect(address) {
                Ok(server) => Ok(Some(server)),
                Err(error) => {
                    log::trace!(
                        "{}: memif control thread: no server yet: {error}",
                        self.device
                    );
                    self.wait([], Some(CONNECT_INTERVAL))?;
                    Ok(None)
                }
            },
        }
    }

    /// Accepts or connects to DPDK, once the remote process is connected; `None` on timeout or error.
    fn connect_dpdk(&self) -> Result<Option<Socket>, Exit> {
        let begin = Instant::now();
        match &self.dpdk {
            Dpdk::Client(_) => {
                self.wait([], Some(Duration::ZERO))?;
                if self.dpdk_client.borrow().is_none() {
                    self.burst_pause.request_client_restart();
                }
                while self.dpdk_client.borrow().is_none() && begin.elapsed() < DPDK_CONNECT_TIMEOUT
                {
                    let left = DPDK_CONNECT_TIMEOUT.saturating_sub(begin.elapsed());
                    self.wait([], Some(left))?;
                }
                self.burst_pause.cancel_client_restart();
                Ok(self.dpdk_client.take())
            }
            Dpdk::Server(inode) => loop {
                let path = format!("/proc/thread-self/fd/{}", inode.as_raw_fd());
                match Socket::connect(&Address::Path(path.into())) {
                    Ok(server) => return Ok(Some(server)),
                    Err(error) if would_block(&error) && begin.elapsed() < DPDK_CONNECT_TIMEOUT => {
                        self.wait([], Some(RETRY_INTERVAL))?;
                    }
                    Err(error) => {
                        log::warn!(
                            "{}: memif control thread: connect to DPDK failed: {error}",
                            self.device
                        );
                        self.wait([], Some(CONNECT_INTERVAL))?;
                        return Ok(None);
                    }
                }
            },
        }
    }

    /// Forwards the messages of a session until a side closes it or the thread is stopped; returns whether the session
    /// was connected.
    fn forward(
        &self,
        remote: &Socket,
        dpdk: Socket,
        hello_received: &mut bool,
    ) -> Result<bool, Exit> {
        let client = || MessageValidator::client(self.queues);
        let (from_remote, from_dpdk) = match self.remote {
            Remote::Client(_) => (client(), MessageValidator::server(1)),
            Remote::Server(_) => (MessageValidator::server(self.queues), client()),
        };
        let mut session = Session {
            remote,
            dpdk: &dpdk,
            from_remote,
            from_dpdk,
            memory_shared: false,
            connected: false,
        };
        let ended = self.forward_until_closed(&mut session);
        *hello_received |= session.from_remote.hello_received();
        let connected = session.connected;
        let dpdk_hello_received =
            session.from_dpdk.hello_received() || matches!(self.dpdk, Dpdk::Client(_));
        match ended {
            Ok(SessionState::DpdkClosed | SessionState::Open) => Ok(connected),
            Ok(SessionState::RemoteClosed(last)) => {
                self.disconnect_dpdk(dpdk, dpdk_hello_received, last)?;
                Ok(connected)
            }
            Err(exit) => {
                self.disconnect_dpdk(dpdk, dpdk_hello_received, None)?;
                Err(exit)
            }
        }
    }

    /// Forwards the messages of a session until a side closes it; returns which.
    fn forward_until_closed(&self, session: &mut Session<'_>) -> Result<SessionState, Exit> {
        let begin = Instant::now();
        // A server has one session at a time: other clients are closed meanwhile.
        let listener = match &self.remote {
            Remote::Client(listener) => Some(listener),
            Remote::Server(_) => None,
        };
        let fds = [
            session.remote.as_raw_fd(),
            session.dpdk.as_raw_fd(),
            listener.map_or(-1, AsRawFd::as_raw_fd),
        ];
        loop {
            let timeout =
                (!session.connected).then(|| NEGOTIATION_TIMEOUT.saturating_sub(begin.elapsed()));
            if timeout.is_some_and(|left| left.is_zero()) {
                log::warn!(
                    "{}: memif control thread: peer disconnected: negotiation timed out",
                    self.device
                );
                return Ok(SessionState::RemoteClosed(None));
            }
            let [remote_ready, dpdk_ready, client_pending] = self.wait(fds, timeout)?;
            let mut state = SessionState::Open;
            if self.dpdk_client.borrow().is_some() {
                // DPDK's client was restarted and has dropped this session.
                state = SessionState::DpdkClosed;
            }
            if dpdk_ready && matches!(state, SessionState::Open) {
                state = session.forward_to_remote();
            }
            if remote_ready && matches!(state, SessionState::Open) {
                state = session.forward_to_dpdk(&self.device);
            }
            if !matches!(state, SessionState::Open) {
                return Ok(state);
            }
            if client_pending && let Some(listener) = listener {
                drop(self.accept(listener)?);
            }
        }
    }

    /// Disconnects DPDK while bursts are paused, and waits until it has unmapped the shared memory; also if the thread
    /// shall stop, but then with a timeout.
    fn disconnect_dpdk(
        &self,
        dpdk: Socket,
        hello_received: bool,
        last: Option<Message>,
    ) -> io::Result<()> {
        self.burst_pause.pause();
        let result = self.send_disconnect(&dpdk, hello_received, last);
        if !matches!(result, Ok(true)) {
            // If we close the socket before the HELLO, DPDK's server aborts the process: leak it.
            core::mem::forget(dpdk);
        }
        // After an error bursts stay paused: DPDK may not have processed the disconnect.
        result.map(|_| self.burst_pause.resume())
    }

    /// Sends DPDK a DISCONNECT and waits until it is processed; `false` if the socket must not be closed.
    fn send_disconnect(
        &self,
        dpdk: &Socket,
        mut hello_received: bool,
        last: Option<Message>,
    ) -> io::Result<bool> {
        let last = last.unwrap_or_else(|| Message::disconnect("peer disconnected"));
        let begin = Instant::now();
        let (mut sent, mut received) = (false, false);
        while !received && begin.elapsed() < DISCONNECT_TIMEOUT {
            if !sent {
                match dpdk.send(&last) {
                    Ok(()) => sent = true,
                    Err(error) => received = is_closed(&error),
                }
            }
            // Its close of the socket may not be visible: children of this process inherit the descriptor.
            received |= sent && !dpdk.has_unread_output()?;
            hello_received |=
                matches!(dpdk.receive(), Ok(Some(message)) if message.kind().is_some());
            self.wait_and_accept(&[], Some(RETRY_INTERVAL))?;
        }
        // The interrupt thread processes the message before it does anything else. If it has polled its sockets without
        // receiving the message, it does not use this socket any more.
        let mut passes = 0;
        while passes < INTERRUPT_PASSES {
            passes += u32::from(self.eal.drain_interrupts());
            self.wait_and_accept(&[], Some(RETRY_INTERVAL))?;
            if passes < INTERRUPT_PASSES
                && self.is_stopped()?
                && begin.elapsed() > 2 * DISCONNECT_TIMEOUT
            {
                log::error!(
                    "{}: memif control thread: DPDK's interrupt thread does not respond",
                    self.device
                );
                break;
            }
        }
        Ok((received || hello_received) && passes == INTERRUPT_PASSES)
    }
}

impl Session<'_> {
    /// Forwards a message of DPDK to the remote process.
    fn forward_to_remote(&mut self) -> SessionState {
        let mut message = match self.dpdk.receive() {
            Ok(Some(message)) => message,
            Err(error) if would_block(&error) => return SessionState::Open,
            Ok(None) => return SessionState::DpdkClosed,
            Err(error) if is_closed(&error) => return SessionState::DpdkClosed,
            Err(_error) => return SessionState::RemoteClosed(None),
        };
        // DPDK's messages are valid: the check updates the validator's state.
        let valid = self.from_dpdk.check(&mut message);
        let sent = self.remote.send(&message);
        match message.kind() {
            Some(DISCONNECT) => return SessionState::DpdkClosed,
            Some(CONNECTED) => self.connected = true,
            _ => {}
        }
        match (valid, sent) {
            (Ok(()), Ok(())) => SessionState::Open,
            _ => SessionState::RemoteClosed(None),
        }
    }

    /// Forwards a message of the remote process to DPDK, if it is valid. Once memory is shared, only DISCONNECT is.
    fn forward_to_dpdk(&mut self, device: &str) -> SessionState {
        let mut message = match self.remote.receive() {
            Ok(Some(message)) => message,
            Err(error) if would_block(&error) => return SessionState::Open,
            Ok(None) => return SessionState::RemoteClosed(None),
            Err(error) => {
                log::debug!("{device}: memif control thread: receive failed: {error}");
                return SessionState::RemoteClosed(None);
            }
        };
        if let Err(cause) = self.from_remote.check(&mut message) {
            log::warn!("{device}: memif control thread: peer disconnected: {cause}");
            return SessionState::RemoteClosed(None);
        }
        match message.kind() {
            Some(DISCONNECT) => return SessionState::RemoteClosed(Some(message)),
            _ if self.memory_shared => {
                log::warn!(
                    "{device}: memif control thread: peer disconnected: unexpected message after CONNECT"
                );
                return SessionState::RemoteClosed(None);
            }
            Some(CONNECT) => self.memory_shared = true,
            Some(CONNECTED) => (self.memory_shared, self.connected) = (true, true),
            _ => {}
        }
        match self.dpdk.send(&message) {
            Ok(()) => SessionState::Open,
            Err(_full) => SessionState::RemoteClosed(None),
        }
    }
}
