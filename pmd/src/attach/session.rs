//! The session of an attached application on the control side: its resources and its calls.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vi_core::handle::RawHandle;
use vi_core::memory;
use vi_core::memory::backing::Owner;
use vi_core::reserve;
use vi_core::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vi_core::sys;
use vi_types::{CallError, HostAddress, Outcome, PtagHandle, ResourceError, ViAttributes};

use super::accounts::Account;
use super::client::{ClientCounters, Clients};
use super::client_slots::ClientSlot;
use super::limiters::{self, RateLimiter};
use super::mapped_files::ApplicationFiles;
use super::message::{Reply, Request};
use super::reservations::{Reservations, UsedNames};
use super::server::{ApplicationStatus, out_of_descriptors};
use crate::attach::long_reply::send_parts;
use crate::config::{NicConfig, Quota};
use crate::datapath::ClientId;
use crate::device::Device;
use crate::nic;
use vi_core::control_socket::{Peer, Socket};

mod connecting;
mod nic_handles;
mod owned;
mod quotas;
mod regions;

use owned::Owned;
use regions::SharedRange;

/// The parameters of a new session.
pub(super) struct SessionInit {
    pub(super) peer: Peer,
    /// Its identifier on the data path.
    pub(super) client: ClientId,
    pub(super) quota: Quota,
    /// Its private memory may be registered.
    pub(super) foreign_memory: bool,
    pub(super) counters: Arc<ClientCounters>,
    /// The attach connection.
    pub(super) attach_socket: Arc<Socket>,
    pub(super) pidfd: OwnedFd,
    /// The limiter of its user's calls.
    pub(super) call_limiter: Arc<RateLimiter>,
    pub(super) files: ApplicationFiles,
    pub(super) slot: ClientSlot,
    /// The account of its user on this NIC.
    pub(super) account: Arc<Account>,
    /// The reservations of the whole process.
    pub(super) reservations: Arc<Reservations>,
}

/// The session of an application on one NIC.
pub(super) struct Session {
    pub(super) peer: Peer,
    pub(super) device: &'static Device,
    config: &'static NicConfig,
    /// Its identifier on the data path, until it is removed.
    client: ClientId,
    pub(super) quota: Quota,
    pub(super) counters: Arc<ClientCounters>,
    /// The attach connection.
    pub(super) attach_socket: Arc<Socket>,
    pub(super) pidfd: OwnedFd,
    owned: Mutex<Owned>,
    /// The account of its user on this NIC; locked before `owned`.
    pub(super) account: Arc<Account>,
    /// Locked after `owned` where both are locked.
    names: Mutex<UsedNames>,
    /// The sockets of its call connections.
    call_sockets: Mutex<Vec<Arc<Socket>>>,
    /// Call connections.
    pub(super) calls: AtomicU32,
    /// Calls in progress.
    calls_in_progress: AtomicU32,
    /// Its private memory may be registered.
    foreign_memory: bool,
    /// Access to its private memory, once it is needed.
    client_process: Mutex<Option<Arc<memory::client_process::ClientProcess>>>,
    /// The session is ending: no NIC handle is opened any more.
    ending: AtomicBool,
    /// The limiter of its user's calls. Delayed calls wait on `delay`, which is notified at the end of the session.
    call_limiter: Arc<RateLimiter>,
    delay: (Mutex<()>, Condvar),
    /// It was removed from the data path.
    removed: AtomicBool,
    /// It was logged that its shared memory cannot be mapped.
    is_mapping_logged: AtomicBool,
    /// Calls that failed because of a limit.
    refused_calls: AtomicU64,
    /// Its mapped files; declared after its regions, which are in them.
    files: ApplicationFiles,
    /// The slot is in use as long as any thread serves the session: descriptors that an application passes can block
    /// the thread that closes them, and so the number of blocked threads is limited. The last field, so that
    /// everything else is closed before.
    slot: ClientSlot,
}

/// Increments a counter; decrements it on drop.
pub(super) struct CountGuard<'a> {
    count: &'a AtomicU32,
    /// The value before the increment.
    pub(super) before: u32,
}

impl<'a> CountGuard<'a> {
    pub(super) fn new(count: &'a AtomicU32) -> Self {
        // Relaxed, here and below: a number that orders nothing.
        let before = count.fetch_add(1, Ordering::Relaxed);
        Self { count, before }
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A call connection in `Session::call_sockets`; removed on drop.
struct CallSocket<'a> {
    session: &'a Session,
    socket: Arc<Socket>,
}

impl<'a> CallSocket<'a> {
    fn new(session: &'a Session, socket: Socket) -> Self {
        let socket = Arc::new(socket);
        session.call_sockets().push(Arc::clone(&socket));
        Self { session, socket }
    }
}

impl Drop for CallSocket<'_> {
    fn drop(&mut self) {
        let is_other = |other: &Arc<Socket>| !Arc::ptr_eq(other, &self.socket);
        // This is the last reference; the socket is closed in this thread, which may take long.
        self.session.call_sockets().retain(is_other);
    }
}

impl Session {
    pub(super) fn new(device: &'static Device, init: SessionInit) -> Arc<Self> {
        let names = UsedNames::new(
            init.reservations,
            HostAddress(device.host),
            init.peer.uid,
            init.quota.max_discriminators,
        );
        let session = Arc::new(Self {
            peer: init.peer,
            device,
            config: &device.config,
            client: init.client,
            quota: init.quota,
            counters: init.counters,
            attach_socket: init.attach_socket,
            pidfd: init.pidfd,
            owned: Mutex::new(Owned::default()),
            account: init.account,
            names: Mutex::new(names),
            call_sockets: Mutex::new(Vec::new()),
            calls: AtomicU32::new(0),
            calls_in_progress: AtomicU32::new(0),
            foreign_memory: init.foreign_memory,
            client_process: Mutex::new(None),
            ending: AtomicBool::new(false),
            call_limiter: init.call_limiter,
            delay: (Mutex::new(()), Condvar::new()),
            removed: AtomicBool::new(false),
            is_mapping_logged: AtomicBool::new(false),
            refused_calls: AtomicU64::new(0),
            files: init.files,
            slot: init.slot,
        });
        session.account.add(Arc::downgrade(&session));
        session
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, UsedNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call_sockets(&self) -> MutexGuard<'_, Vec<Arc<Socket>>> {
        self.call_sockets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The owner of its regions and VIs.
    pub(super) fn owner(&self) -> Owner {
        self.slot.owner()
    }

    /// Its identifier on the data path, for a caller that holds the backend lock; `None` once it is removed and the
    /// identifier may be reused.
    pub(super) fn client(&self) -> Option<ClientId> {
        (!self.removed.load(Ordering::SeqCst)).then_some(self.client)
    }

    /// Waits for this time, or until the session ends.
    fn wait(&self, time: Duration) {
        if time.is_zero() {
            return;
        }
        let (mutex, ended) = &self.delay;
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let continues = |_: &mut ()| !self.ending.load(Ordering::SeqCst);
        drop(ended.wait_timeout_while(guard, time, continues));
    }

    /// Ends the session: closes all NIC handles of the application. Calls in progress return.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        for socket in self.call_sockets().iter() {
            socket.shut_down();
        }
        let (mutex, ended) = &self.delay;
        // A thread that has not found `ending` set waits by now, and is notified.
        drop(mutex.lock().unwrap_or_else(PoisonError::into_inner));
        ended.notify_all();
        loop {
            let Some(nic) = self.owned().nics.pop() else {
                break;
            };
            // Fails only if an earlier call has closed it.
            let _was_open = nic::close(nic);
            self.names().close(nic);
        }
        // Once: afterwards the identifier may be reused.
        if self.removed.swap(true, Ordering::SeqCst) {
            return;
        }
        let (mut client, mut left) = (None, false);
        if let Some(backend) = self.device.lock().as_mut() {
            client = Clients::of_backend(backend).and_then(|clients| clients.remove(self.client));
            // Notifies its peers at once.
            backend.poll(&self.device.shared.doorbells);
            self.device.wake_waiters(backend);
            left = self.device.poll_thread.core.needs_wake(backend);
        }
        if left {
            self.device.poll_thread.core.wake();
        }
        if let Some(violation) = client.and_then(|client| client.violation) {
            let (name, pid) = (&self.config.name, self.peer.pid);
            let line = format_args!(
                "NIC {name}: application cut off: protocol violation: {} pid={pid}",
                violation.0
            );
            limiters::log_of_user(self.account.uid, log::Level::Error, line);
        }
    }

    /// Serves the calls of a call connection until it is closed.
    pub(super) fn serve_calls(self: &Arc<Self>, socket: Socket) -> std::io::Result<()> {
        let call = CallSocket::new(self, socket);
        let socket = &call.socket;
        // `end` may have shut down the sockets before this one was added.
        if self.ending.load(Ordering::SeqCst) {
            return Ok(());
        }
        socket.send(&Reply::Done, &[])?;
        while let Some((request, fds)) = self.next_request(socket)? {
            let expected_fds = usize::from(matches!(
                request,
                Request::Register { shared_at, .. } if shared_at.is_some()
            ));
            if fds.len() != expected_fds {
                return Err(std::io::Error::other("unexpected file descriptors"));
            }
            if let Some(reply) = self.long_reply(&request) {
                match reply {
                    Ok(bytes) => send_parts(socket, &bytes)?,
                    Err(error) => socket.send(&Reply::Failed(error), &[])?,
                }
                continue;
            }
            let reply = {
                let _in_progress = CountGuard::new(&self.calls_in_progress);
                self.take_submissions();
                let reply = self.execute(request, fds).unwrap_or_else(Reply::Failed);
                self.note_limit(&reply);
                self.deliver_completions();
                reply
            };
            if let Err(error) = socket.send(&reply, &[]) {
                self.undo(&reply);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Receives the next request and its descriptor, delayed to the limit of the call rate. Refuses a request for whose
    /// descriptor no number is left.
    fn next_request(&self, socket: &Socket) -> std::io::Result<Option<(Request, Vec<OwnedFd>)>> {
        let limit_rate = || {
            let limit = self.quota.max_calls_per_second;
            self.wait(self.call_limiter.delay(Instant::now(), limit));
        };
        loop {
            match socket.receive() {
                Ok(Some(request)) => {
                    limit_rate();
                    return Ok(Some(request));
                }
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    limit_rate();
                    let why = out_of_descriptors(&error);
                    self.note_refused(&why);
                    socket.send(&Reply::Refused(why), &[])?;
                }
                end => return end,
            }
        }
    }

    /// Takes everything that was submitted before a call, in as many polls as needed: other applications are served in
    /// each of them.
    fn take_submissions(&self) {
        let mut needed = 1;
        let mut done = 0;
        while done < needed {
            done += 1;
            let mut held = self.device.lock();
            let Some(backend) = held.as_mut() else {
                return;
            };
            let Some(client) = self.client() else {
                return;
            };
            needed =
                Clients::of_backend(backend).map_or(0, |clients| clients.polls_per_ring(client));
            backend.poll(&self.device.shared.doorbells);
            let is_last =
                Clients::of_backend(backend).is_none_or(|clients| clients.is_drained(client));
            self.device.wake_waiters(backend);
            if is_last {
                return;
            }
        }
    }

    /// Reports what a call completed, before its reply, and wakes the poll thread if work is left.
    fn deliver_completions(&self) {
        let mut left = false;
        if let Some(backend) = self.device.lock().as_mut() {
            if let Some(poller) = backend.state_mut() {
                poller.path.deliver_completions();
            }
            self.device.wake_waiters(backend);
            left = self.device.poll_thread.core.needs_wake(backend);
        }
        if left {
            self.device.poll_thread.core.wake();
        }
    }

    /// Executes a call whose reply may be too long for one message; `None` for other calls.
    fn long_reply(&self, request: &Request) -> Option<Outcome<Vec<u8>>> {
        // Fails only without memory.
        let written = |bytes: postcard::Result<Vec<u8>>| {
            bytes.map_err(|_| CallError::from(ResourceError::OutOfMemory))
        };
        let nic = |nic: &u64| self.nic(*nic);
        match request {
            Request::Counters { nic: of } => {
                let counters = nic(of).and_then(nic::counters);
                Some(counters.and_then(|all| written(postcard::to_allocvec(&all))))
            }
            Request::DiscoveredHosts { nic: of } => {
                let hosts = nic(of).and_then(nic::discovered_hosts);
                Some(hosts.and_then(|hosts| {
                    let hosts: Vec<[u8; 16]> = hosts.into_iter().map(|host| host.0).collect();
                    written(postcard::to_allocvec(&hosts))
                }))
            }
            _ => None,
        }
    }

    fn nic(&self, nic: u64) -> Outcome<u64> {
        let found = self.owned().nics.contains(&nic);
        found.then_some(nic).ok_or(CallError::InvalidParameter)
    }

    fn vi(&self, vi: u64) -> Outcome<u64> {
        let found = self.owned().vis.contains_key(&vi);
        found.then_some(vi).ok_or(CallError::InvalidParameter)
    }

    fn check_tag(&self, ptag: Option<PtagHandle>) -> Outcome<()> {
        let is_own = |ptag: PtagHandle| self.owned().tags.contains_key(&ptag.into_raw());
        ptag.is_none_or(is_own).then_some(()).ok_or(CallError::Ptag)
    }

    /// Executes a call.
    fn execute(self: &Arc<Self>, request: Request, fds: Vec<OwnedFd>) -> Outcome<Reply> {
        let done = |()| Reply::Done;
        if request.allocates() && reserve::is_low() {
            return Err(ResourceError::OutOfMemory.into());
        }
        match request {
            Request::Open => self.open().map(Reply::Handle),
            Request::Close { nic } => self.close(nic).map(done),
            Request::CreatePtag { nic } => {
                let nic = self.nic(nic)?;
                self.reserve_owned(Owned::reserve_tag)?;
                let made = nic::create_ptag(nic);
                self.owned().commit_tag(made, nic).map(Reply::Handle)
            }
            Request::DestroyPtag { nic, ptag } => {
                let nic = self.nic(nic)?;
                self.check_tag(Some(PtagHandle::from_raw(ptag)))?;
                nic::destroy_ptag(nic, ptag)?;
                self.owned().tags.remove(&ptag);
                Ok(Reply::Done)
            }
            Request::Register {
                nic,
                address,
                length_bytes,
                settings,
                writable,
                shared_at,
                is_bounce_buffer,
            } => {
                let shared = fds.into_iter().next().zip(shared_at);
                let shared = shared.map(|(memory, offset_bytes)| SharedRange {
                    memory,
                    offset_bytes,
                    is_bounce_buffer,
                });
                self.register(nic, (address, length_bytes), (&settings, writable), shared)
            }
            Request::Deregister {
                nic,
                address,
                region,
            } => self.deregister(nic, address, region).map(done),
            Request::SetRegion {
                nic,
                address,
                region,
                settings,
            } => self.set_region(nic, (address, region), &settings).map(done),
            Request::CreateVi { nic, settings } => {
                self.create_vi(nic, &settings).map(Reply::Handle)
            }
            Request::DestroyVi { vi } => {
                nic::destroy_vi(self.vi(vi)?)?;
                self.owned().vis.remove(&vi);
                self.names().remove_vi(vi);
                Ok(Reply::Done)
            }
            Request::QueryVi { vi } => {
                nic::query_vi(self.vi(vi)?).map(|info| Reply::Vi { state: info.state })
            }
            Request::SetVi { vi, settings } => {
                self.check_tag(settings.ptag)?;
                nic::set_vi(self.vi(vi)?, &settings).map(done)
            }
            Request::ConnectionOptions { vi } => {
                nic::connection_options(self.vi(vi)?).map(Reply::ConnectionOptions)
            }
            Request::SetConnectionOptions { vi, options } => {
                nic::set_connection_options(self.vi(vi)?, &options).map(done)
            }
            Request::NegotiatedOptions { vi } => {
                nic::negotiated_options(self.vi(vi)?).map(Reply::NegotiatedOptions)
            }
            request @ (Request::ConnectWait { .. }
            | Request::ConnectAccept { .. }
            | Request::ConnectReject { .. }
            | Request::Connect { .. }
            | Request::ConnectPeer { .. }
            | Request::ConnectPeerDone { .. }
            | Request::ConnectPeerWait { .. }
            | Request::Disconnect { .. }
            | Request::SecurityOf { .. }
            | Request::UserOf { .. }
            | Request::PeerUser { .. }) => self.execute_connecting(request),
            // First requests of a connection; calls with long replies are executed elsewhere.
            Request::Attach { .. }
            | Request::Join { .. }
            | Request::QueryStatus { .. }
            | Request::Capture { .. }
            | Request::RingsMapped
            | Request::Free { .. }
            | Request::Counters { .. }
            | Request::DiscoveredHosts { .. } => Err(CallError::InvalidParameter),
        }
    }

    pub(super) fn status(&self) -> ApplicationStatus {
        let file_bytes = self.files.bytes();
        let owned = self.owned();
        let counter = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ApplicationStatus {
            pid: self.peer.pid,
            uid: self.peer.uid,
            nic: self.config.name.clone(),
            vis: owned.vis.len() as u32,
            regions: owned.regions.len() as u32,
            bounce_buffer_regions: owned
                .regions
                .values()
                .filter(|r| r.is_bounce_buffer)
                .count() as u32,
            registered_bytes: owned.other_bytes + file_bytes,
            posted: counter(&self.counters.submitted),
            completed: counter(&self.counters.completed),
            inline_messages: counter(&self.counters.inline_messages),
            waiting: self.calls_in_progress.load(Ordering::Relaxed),
            stale: counter(&self.counters.stale),
            errors_dropped: counter(&self.counters.errors_dropped),
            refused_calls: counter(&self.refused_calls) + counter(&self.counters.out_of_memory),
            quotas: self.quotas(&owned, file_bytes),
        }
    }

    fn create_vi(&self, nic: u64, settings: &ViAttributes) -> Outcome<u64> {
        self.check_tag(settings.ptag)?;
        let nic = self.nic(nic)?;
        self.reserve_owned(Owned::reserve_vi)?;
        let made = nic::create_vi(nic, settings, 0, 0);
        let made = made.and_then(|vi| self.serve(vi).map(|()| vi));
        self.owned().commit_vi(made, nic)
    }

    /// Assigns a newly created VI to the application.
    fn serve(&self, vi: u64) -> Outcome<()> {
        let index = vi_types::ViIndex(RawHandle::unpack(vi).index);
        let mut held = self.device.lock();
        let local = held.as_mut().and_then(|backend| backend.local_mut());
        let (transport, state) = local.ok_or(CallError::InvalidParameter)?;
        // The NIC handle may have been closed meanwhile, and the index reused.
        let path = state.path.vi(index).filter(|path| path.handle == vi);
        let (path, client) = path.zip(self.client()).ok_or(CallError::InvalidParameter)?;
        path.serve(client, self.owner());
        transport.set_user(index, self.peer.uid);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
