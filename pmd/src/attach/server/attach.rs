//! Attaching an application: admission, handshake, the session until its end; and reopening a failed NIC, whether
//! applications have closed it or not.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use vi_core::sync::Ordering;
use vi_core::sys;

use super::{ServedNic, Server, Sessions, TIMEOUT, out_of_descriptors};
use crate::attach::client::{Client, ClientCounters, Clients, Limits};
use crate::attach::client_slots::{ClientSlot, SlotLimits};
use crate::attach::limiters::{self, PendingConnection};
use crate::attach::message::{Description, Reply, Request};
use crate::attach::session::{Session, SessionInit};
use crate::attach::shared_queues::{RingSizes, SharedQueues};
use crate::config::{NicConfig, QuotaConfig, Shares, admit};
use crate::device::Device;
use crate::nic;
use crate::nic_backend::Backend;
use crate::open;
use vi_core::control_socket::{Peer, Socket};

/// A session of a newly attached application.
struct NewSession {
    session: Arc<Session>,
    key: [u8; 16],
    description: Description,
}

/// The reply to an attach request that fails with a system error.
fn refusal(subject: &str, error: &io::Error) -> Reply {
    Reply::Refused(match sys::is_out_of_descriptors(error) {
        true => out_of_descriptors(error),
        false => format!("{subject}: {error}"),
    })
}

/// The failure of a NIC, if it must be reopened.
fn failure_of(device: &Device) -> Option<String> {
    let held = device.lock();
    match held.as_ref().and_then(Backend::state) {
        Some(poller) => poller.failure.map(|failure| failure.to_string()),
        // It failed, and could not be reopened.
        None => Some("it is down".to_owned()),
    }
}

/// Begins to end the attachment of an application to a failed NIC. The thread that serves it ends the session, and then
/// closes the connection: from then on the memory of the application is not accessed.
fn end_attachment(session: &Session, failure: &str) {
    let (name, Peer { pid, uid, .. }) = (&session.device.config.name, session.peer);
    let line = format_args!(
        "NIC {name}: application cut off: {failure}, and it is opened again pid={pid} uid={uid}"
    );
    limiters::log_limited(log::Level::Warn, line);
    session.attach_socket.shut_down_reading();
}

/// Sends the rings and the wake-up descriptor to an application, and seals the rings once it has mapped them: otherwise
/// it could punch a hole, and a page fault would block the poller.
fn send_rings(
    socket: &Socket,
    config: &NicConfig,
    inline_buffers: u32,
    waker: OwnedFd,
) -> io::Result<SharedQueues> {
    let sizes = RingSizes::for_segments(config.limits.max_segments_per_descriptor)
        .with_inline_buffers(inline_buffers);
    let (queues, memory) = SharedQueues::create(sizes)?;
    socket.send(&Reply::Rings, &[memory.as_raw_fd(), waker.as_raw_fd()])?;
    drop(waker);
    match socket.receive()? {
        Some((Request::RingsMapped, fds)) if fds.is_empty() => {
            queues.seal(memory.as_fd(), config.lock_memory)?;
            Ok(queues)
        }
        _ => Err(io::Error::other(
            "the application has not reported that it mapped the rings",
        )),
    }
}

impl Server {
    /// Attaches an application, and serves it until it ends.
    pub(super) fn attach(
        &self,
        socket: Socket,
        peer: Peer,
        device: &str,
        pending: PendingConnection,
    ) -> io::Result<()> {
        let socket = Arc::new(socket);
        let session = match self.create_session(&socket, peer, device) {
            Ok(session) => session,
            Err(reply) => return self.reject(&socket, reply),
        };
        // The session closes the socket: it keeps its slot as long as that takes.
        drop(socket);
        drop(pending);
        self.serve(session)
    }

    /// Admits an application and creates its session.
    ///
    /// # Errors
    /// The reply that refuses it.
    fn create_session(
        &self,
        socket: &Arc<Socket>,
        peer: Peer,
        device: &str,
    ) -> Result<NewSession, Reply> {
        let (quota, shares, slot) = self.admit(socket, peer).map_err(Reply::Refused)?;
        let served = self.nic(device).ok_or_else(|| self.unknown_nic(device))?;
        let quota = quota.on(&served.config, shares);
        let (name, pid) = (&served.config.name, peer.pid);
        // First: it reports the end of the process also if a child has the socket, too.
        let pidfd = socket
            .peer_process()
            .map_err(|error| refusal(&format!("process {pid}: no pidfd"), &error))?;
        let call_limiter = self.calls.of(self.accounts.counted_as(peer.uid));
        call_limiter
            .wait(quota.max_calls_per_second, TIMEOUT)
            .map_err(|calls| {
                let text = format!(
                    "max_calls_per_second = {calls}: user {} exceeds it",
                    peer.uid
                );
                Reply::Refused(text)
            })?;
        let device = served.device;
        let failed = |error: io::Error| {
            refusal(&format!("NIC {name}: process {pid}: attach failed"), &error)
        };
        let (wakeup, waker) = served.core.add_client().map_err(failed)?;
        let inline_buffers = self.process().inline_buffers;
        let queues = send_rings(socket, &device.config, inline_buffers, waker).map_err(failed)?;
        let counters = Arc::new(ClientCounters::default());
        let limits = Limits {
            segments: device.config.limits.max_segments_per_descriptor,
            descriptors: quota.max_descriptors,
            share: quota.rate_share,
        };
        let client = Client::new(
            peer.uid,
            queues,
            wakeup,
            Arc::clone(socket),
            Arc::clone(&counters),
            limits,
        );
        let pidfd_of_files = pidfd.try_clone().map_err(failed)?;
        let limits = SlotLimits::from(&*self.process());
        let files = self
            .files
            .attach((peer, device.shared.number), pidfd_of_files, limits);
        // Held until the session is in the table: a thread that reopens the NIC checks there whether it is in use.
        let handle_guard = self.ensure_up(served).map_err(Reply::Refused)?;
        let client = {
            let mut held = device.lock();
            let poller = held.as_mut().and_then(Backend::state_mut);
            let poller = poller.ok_or_else(|| Reply::Refused(format!("NIC {name} is down")))?;
            Clients::attach(&mut poller.path, client)
        };
        let session = Session::new(
            device,
            SessionInit {
                peer,
                client,
                quota,
                foreign_memory: self.process().foreign_memory,
                counters,
                attach_socket: Arc::clone(socket),
                pidfd,
                call_limiter,
                files,
                slot,
                account: self.accounts.of(peer.uid, device.shared.number),
                reservations: Arc::clone(&self.reservations),
            },
        );
        let mut key = [0; 16];
        sys::random_bytes(&mut key);
        let is_added = self.add_session(key, &session);
        drop(handle_guard);
        if !is_added {
            session.end();
            return Err(Reply::Refused("the process is stopping".to_owned()));
        }
        let native_mtu_bytes = device.calls.native_mtu_bytes(device).unwrap_or(0);
        Ok(NewSession {
            session,
            key,
            description: Description {
                max_transfer_bytes: device.max_transfer_bytes(),
                ..Description::of(&served.config, &quota, native_mtu_bytes)
            },
        })
    }

    /// Adds a session to the table; false if the process is stopping: the thread that ends the sessions might miss it.
    fn add_session(&self, key: [u8; 16], session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions();
        if self.stopping.load(Ordering::SeqCst) {
            return false;
        }
        sessions.insert(key, Arc::clone(session));
        true
    }

    /// Completes the handshake, and waits for the end of the session.
    fn serve(&self, new: NewSession) -> io::Result<()> {
        let NewSession {
            session,
            key,
            description,
        } = new;
        let (name, Peer { pid, uid, .. }) = (&session.device.config.name, session.peer);
        let line = format_args!("NIC {name}: application attached pid={pid} uid={uid}");
        limiters::log_of_user(session.account.uid, log::Level::Info, line);
        let reply = Reply::Attached {
            key,
            nic: Box::new(description),
        };
        let sent = session.attach_socket.send(&reply, &[]);
        if sent.is_ok() {
            sys::await_any([session.attach_socket.as_fd(), session.pidfd.as_fd()]);
        }
        session.end();
        // Tells the application that its memory is no longer accessed.
        session.attach_socket.shut_down();
        self.sessions().remove(&key);
        self.ended.notify_all();
        let line = format_args!("NIC {name}: application detached pid={pid}");
        limiters::log_of_user(session.account.uid, log::Level::Info, line);
        // In this thread: a poll thread or a status query may drop the session last.
        session.attach_socket.close_file();
        sent
    }

    /// Admits an application: returns its quota, the shares of a NIC for keys that are not set, and its slot.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn admit(
        &self,
        socket: &Socket,
        peer: Peer,
    ) -> Result<(QuotaConfig, Shares, ClientSlot), String> {
        let gids = socket.peer_groups().map_err(|e| e.to_string())?;
        // A copy: the lock is not held during the look-up of names.
        let process = self.process().clone();
        let quota = admit(&process, peer.uid, &gids).map_err(|e| e.to_string())?;
        let counted_as = self.accounts.counted_as(peer.uid);
        let slot = (self.slots).allocate(counted_as, SlotLimits::from(&process))?;
        Ok((quota, process.shares(), slot))
    }

    /// Ensures that a NIC is up: reopens a failed one, of which it ends the attachments first (ADR 0053). While the
    /// returned guard is held, no other thread closes the NIC.
    ///
    /// # Errors
    /// It cannot be reopened, or the attachments have not ended in time.
    fn ensure_up<'a>(&self, served: &'a ServedNic) -> Result<MutexGuard<'a, u64>, String> {
        let uses_it = |session: &Arc<Session>| core::ptr::eq(session.device, served.device);
        let in_use = |sessions: &mut Sessions| sessions.values().any(uses_it);
        let name = &served.config.name;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let mut nic = served.nic.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(failure) = failure_of(served.device) else {
                return Ok(nic);
            };
            let mut sessions = self.sessions();
            if self.stopping.load(Ordering::SeqCst) {
                return Err("the process is stopping".to_owned());
            }
            if !in_use(&mut sessions) {
                drop(sessions);
                self.reopen(served, &mut nic, &failure)?;
                return Ok(nic);
            }
            for session in sessions.values().filter(|session| uses_it(session)) {
                end_attachment(session, &failure);
            }
            drop(nic);
            // Each session is ended by its own thread.
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.ended.wait_timeout_while(sessions, left, in_use);
            let (sessions, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(sessions);
            if waited.timed_out() {
                return Err(format!(
                    "NIC {name}: {failure}: the attachments to it have not ended yet: try again"
                ));
            }
        }
    }

    /// Reopens a failed NIC; `nic` is the process's handle.
    fn reopen(&self, served: &ServedNic, nic: &mut u64, failure: &str) -> Result<(), String> {
        let name = &served.config.name;
        let line = format_args!("NIC {name}: {failure}: reopening it");
        limiters::log_limited(log::Level::Warn, line);
        // Fails if it is closed already, since an earlier attempt to reopen it failed.
        let _was_open = nic::close(*nic);
        let begin = |_| {
            served.core.wake();
            Ok(())
        };
        let (_, opened) = open::open_served(&served.config, begin)
            .map_err(|error| format!("NIC {name}: {failure}; it cannot be reopened: {error}"))?;
        *nic = opened;
        Ok(())
    }
}
