//! An application as the control side sees it: what it owns, and the calls it makes.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fcvi_frame::connect::HostAddress;

use super::client::{ClientCounters, ClientId};
use super::doors;
use super::mapped_files::FilesOf;
use super::message::{Reply, Request};
use super::places::Place;
use super::reservations::{Reservations, UsedNames};
use super::server::{ApplicationStatus, out_of_descriptors};
use super::socket::{Peer, Socket, send_parts};
use crate::config::{NicConfig, Quota};
use crate::control::{ControlError, Outcome};
use crate::device::Device;
use crate::driver::Driver;
use crate::memory;
use crate::memory::place::Owner;
use crate::nic;
use crate::reserve;
use crate::resource_error::{Limit, ResourceError};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sys;
use crate::vi::{RawHandle, ViSettings};

mod connecting;
mod owned;
mod quotas;
mod regions;

use owned::{Owned, all_in_use};
use regions::SharedRange;

/// An application on one NIC, as it arrives.
pub(super) struct Arrival {
    pub(super) peer: Peer,
    /// What the poller calls it.
    pub(super) client: ClientId,
    pub(super) quota: Quota,
    /// Its memory that is not shared may be registered.
    pub(super) foreign_memory: bool,
    pub(super) counters: Arc<ClientCounters>,
    /// The conversation that it lives by.
    pub(super) life: Arc<Socket>,
    /// Its process, whatever becomes of its number.
    pub(super) lives: OwnedFd,
    /// That of its user's calls.
    pub(super) pace: Arc<doors::Pace>,
    pub(super) files: FilesOf,
    pub(super) place: Place,
    /// The process's.
    pub(super) reservations: Arc<Reservations>,
}

/// An application on one NIC.
pub(super) struct Session {
    pub(super) peer: Peer,
    pub(super) device: &'static Device,
    config: &'static NicConfig,
    /// What the poller calls it, until it is removed.
    client: ClientId,
    pub(super) quota: Quota,
    pub(super) counters: Arc<ClientCounters>,
    /// The conversation that it lives by.
    pub(super) life: Arc<Socket>,
    /// Its process, whatever becomes of its number.
    pub(super) lives: OwnedFd,
    owned: Mutex<Owned>,
    /// Locked behind `owned`, where both are.
    names: Mutex<UsedNames>,
    /// Those of its calls.
    channels: Mutex<Vec<Arc<Socket>>>,
    /// Threads of it that make calls.
    pub(super) calls: AtomicU32,
    /// Of these, whose call is under way.
    waiting: AtomicU32,
    /// Its memory that is not shared may be registered.
    foreign_memory: bool,
    /// What reaches that.
    process: Mutex<Option<Arc<memory::client::Client>>>,
    /// It ends: nothing is opened for it any more.
    over: AtomicBool,
    /// That of its user's calls; calls that come too soon wait until it ends.
    pace: Arc<doors::Pace>,
    pausing: (Mutex<()>, Condvar),
    /// The poller serves it no more.
    removed: AtomicBool,
    /// It was logged that shared memory of it cannot be mapped.
    warned: AtomicBool,
    /// Calls that failed because of a limit.
    refused: AtomicU64,
    /// The files of it that are mapped; behind its regions, which are in them.
    files: FilesOf,
    /// It has its place for as long as any thread works for it: what an application passes can
    /// hold up whoever closes it, and so it holds up no more threads than it may have. The last
    /// field, so that everything else is closed before.
    place: Place,
}

/// One more of what is counted, until it is dropped.
pub(super) struct Counted<'a> {
    count: &'a AtomicU32,
    /// How many there were.
    pub(super) before: u32,
}

impl<'a> Counted<'a> {
    pub(super) fn one(count: &'a AtomicU32) -> Self {
        // Relaxed, here and below: a number, and nothing that hangs on it.
        let before = count.fetch_add(1, Ordering::Relaxed);
        Self { count, before }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A conversation among those that end with the session, until it is dropped.
struct Channel<'a> {
    session: &'a Session,
    socket: Arc<Socket>,
}

impl<'a> Channel<'a> {
    fn new(session: &'a Session, socket: Socket) -> Self {
        let socket = Arc::new(socket);
        session.channels().push(Arc::clone(&socket));
        Self { session, socket }
    }
}

impl Drop for Channel<'_> {
    fn drop(&mut self) {
        let is_other = |other: &Arc<Socket>| !Arc::ptr_eq(other, &self.socket);
        // Ours is the last one, and it is closed in this thread: that may take its time.
        self.session.channels().retain(is_other);
    }
}

impl Session {
    pub(super) fn new(device: &'static Device, arrival: Arrival) -> Self {
        let names = UsedNames::new(
            arrival.reservations,
            HostAddress(device.host),
            arrival.peer.uid,
            arrival.quota.max_discriminators,
        );
        Self {
            peer: arrival.peer,
            device,
            config: &device.config,
            client: arrival.client,
            quota: arrival.quota,
            counters: arrival.counters,
            life: arrival.life,
            lives: arrival.lives,
            owned: Mutex::new(Owned::default()),
            names: Mutex::new(names),
            channels: Mutex::new(Vec::new()),
            calls: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            foreign_memory: arrival.foreign_memory,
            process: Mutex::new(None),
            over: AtomicBool::new(false),
            pace: arrival.pace,
            pausing: (Mutex::new(()), Condvar::new()),
            removed: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            files: arrival.files,
            place: arrival.place,
        }
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, UsedNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Arc<Socket>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose its regions and VIs are.
    pub(super) fn owner(&self) -> Owner {
        self.place.owner()
    }

    /// What the poller calls it, for who holds the turn; `None` once the poller serves it no more,
    /// and may call another one so.
    pub(super) fn client(&self) -> Option<ClientId> {
        (!self.removed.load(Ordering::SeqCst)).then_some(self.client)
    }

    /// Waits so long, or until the application ends.
    fn pause(&self, wait: Duration) {
        if wait.is_zero() {
            return;
        }
        let (pausing, ended) = &self.pausing;
        let pausing = pausing.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = |_: &mut ()| !self.over.load(Ordering::SeqCst);
        drop(ended.wait_timeout_while(pausing, wait, goes_on));
    }

    /// Ends everything that the application has. The calls that are under way return.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        for channel in self.channels().iter() {
            channel.shut_down();
        }
        let (pausing, ended) = &self.pausing;
        // Whoever has seen before that it goes on waits now.
        drop(pausing.lock().unwrap_or_else(PoisonError::into_inner));
        ended.notify_all();
        loop {
            let Some(nic) = self.owned().nics.pop() else {
                break;
            };
            // It can only have been closed by a call that came before.
            let _was_open = nic::close(nic);
            self.names().close(nic);
        }
        // Once: its place may be another's then.
        if self.removed.swap(true, Ordering::SeqCst) {
            return;
        }
        let (mut client, mut left) = (None, false);
        if let Some(driver) = self.device.hold().as_mut() {
            if let Some(poller) = driver.engine_mut() {
                client = poller.path.clients.remove(self.client);
                // Those who were connected to it learn of its end at once.
                poller.turn(&self.device.doorbells);
            }
            self.device.announce(driver);
            left = self.device.rest.core.oversleeps(driver);
        }
        if left {
            self.device.rest.core.rouse();
        }
        if let Some(nonsense) = client.and_then(|client| client.broken) {
            let (name, pid) = (&self.config.name, self.peer.pid);
            let line = format_args!("NIC {name}: process {pid} is cut off: {}", nonsense.0);
            doors::say(log::Level::Error, line);
        }
    }

    /// Takes the calls that come over a socket, until it ends.
    pub(super) fn take_calls(self: &Arc<Self>, socket: Socket) -> std::io::Result<()> {
        let channel = Channel::new(self, socket);
        let socket = &channel.socket;
        // Whoever ends the session has shut down what it found; this one came too late for that.
        if self.over.load(Ordering::SeqCst) {
            return Ok(());
        }
        socket.send(&Reply::Done, &[])?;
        while let Some((request, fds)) = self.next_request(socket)? {
            let may_bring = usize::from(matches!(
                request,
                Request::Register { shared_at, .. } if shared_at.is_some()
            ));
            if fds.len() != may_bring {
                return Err(std::io::Error::other("descriptors that nobody asked for"));
            }
            if let Some(answer) = self.long_answer(&request) {
                match answer {
                    Ok(bytes) => send_parts(socket, &bytes)?,
                    Err(error) => socket.send(&Reply::Failed(error), &[])?,
                }
                continue;
            }
            let reply = {
                let _waiting = Counted::one(&self.waiting);
                self.before();
                let reply = self.answer(request, fds).unwrap_or_else(Reply::Failed);
                self.note_limit(&reply);
                self.after();
                reply
            };
            if let Err(error) = socket.send(&reply, &[]) {
                self.take_back(&reply);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The next request, at the pace of calls, and the descriptor that came with it. One whose descriptor gets no number
    /// in this process is refused.
    fn next_request(&self, socket: &Socket) -> std::io::Result<Option<(Request, Vec<OwnedFd>)>> {
        let keep_pace = || {
            let most = self.quota.max_calls_per_second;
            self.pause(self.pace.step(Instant::now(), most));
        };
        loop {
            match socket.receive() {
                Ok(Some(request)) => {
                    keep_pace();
                    return Ok(Some(request));
                }
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    keep_pace();
                    let why = out_of_descriptors(&error);
                    self.note_refused(&why);
                    socket.send(&Reply::Refused(why), &[])?;
                }
                end => return end,
            }
        }
    }

    /// A call comes behind what was submitted before it: that is taken in as many turns as it
    /// needs, in which the others have theirs.
    fn before(&self) {
        let mut turns = 1;
        let mut taken = 0;
        while taken < turns {
            taken += 1;
            let mut held = self.device.hold();
            let Some(driver) = held.as_mut() else {
                return;
            };
            let mut is_last = true;
            if let Some(poller) = driver.engine_mut() {
                let Some(client) = self.client() else {
                    return;
                };
                turns = poller.path.clients.turns_of_ring(client);
                poller.turn(&self.device.doorbells);
                is_last = poller.path.clients.is_taken(client);
            }
            self.device.announce(driver);
            if is_last {
                return;
            }
        }
    }

    /// What a call completed is told before its answer, and what it left to be done is seen to.
    fn after(&self) {
        let mut left = false;
        if let Some(driver) = self.device.hold().as_mut() {
            if let Some(poller) = driver.engine_mut() {
                poller.path.settle_clients();
            }
            self.device.announce(driver);
            left = self.device.rest.core.oversleeps(driver);
        }
        if left {
            self.device.rest.core.rouse();
        }
    }

    /// The answer to a call that may be too long for one message; `None` for other calls.
    fn long_answer(&self, request: &Request) -> Option<Outcome<Vec<u8>>> {
        // It can fail only for want of memory.
        let written = |bytes: postcard::Result<Vec<u8>>| {
            bytes.map_err(|_| ControlError::from(ResourceError::OutOfMemory))
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
        found.then_some(nic).ok_or(ControlError::InvalidParameter)
    }

    fn vi(&self, vi: u64) -> Outcome<u64> {
        let found = self.owned().vis.contains_key(&vi);
        found.then_some(vi).ok_or(ControlError::InvalidParameter)
    }

    fn tag(&self, ptag: u64) -> Outcome<u64> {
        let found = ptag == 0 || self.owned().tags.contains_key(&ptag);
        found.then_some(ptag).ok_or(ControlError::Ptag)
    }

    fn answer(self: &Arc<Self>, request: Request, fds: Vec<OwnedFd>) -> Outcome<Reply> {
        let done = |()| Reply::Done;
        if request.makes() && reserve::is_low() {
            return Err(ResourceError::OutOfMemory.into());
        }
        match request {
            Request::Open => self.open().map(Reply::Handle),
            Request::Close { nic } => self.close(nic).map(done),
            Request::CreatePtag { nic } => {
                let nic = self.nic(nic)?;
                self.owned().expect_tag(&self.quota)?;
                let made = nic::create_ptag(nic);
                self.owned().have_tag(made, nic).map(Reply::Handle)
            }
            Request::DestroyPtag { nic, ptag } => {
                nic::destroy_ptag(self.nic(nic)?, self.tag(ptag)?)?;
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
                self.names().forget_vi(vi);
                Ok(Reply::Done)
            }
            Request::QueryVi { vi } => nic::query_vi(self.vi(vi)?).map(|info| Reply::Vi {
                state: info.state as u8,
            }),
            Request::SetVi { vi, settings } => {
                self.tag(settings.ptag)?;
                nic::set_vi(self.vi(vi)?, &settings).map(done)
            }
            Request::Choices { vi } => nic::choices(self.vi(vi)?).map(Reply::Choices),
            Request::SetChoices { vi, choices } => {
                nic::set_choices(self.vi(vi)?, &choices).map(done)
            }
            Request::Agreement { vi } => nic::agreement(self.vi(vi)?).map(Reply::Agreement),
            request => self.answer_connecting(request),
        }
    }

    /// Another opening, whose errors go to the application.
    fn open(self: &Arc<Self>) -> Outcome<u64> {
        let most = self.quota.max_calls;
        if self.owned().nics.len() >= most as usize {
            return Err(all_in_use(Limit::MaxCalls, most));
        }
        let nic = nic::open(self.config).map_err(|error| {
            let line = format_args!("NIC {}: {error}", self.config.name);
            doors::say(log::Level::Error, line);
            ResourceError::NicFailed
        })?;
        let session = Arc::downgrade(self);
        let handler = move |event: &crate::events::AsyncEvent| {
            if let Some(session) = session.upgrade() {
                session.report(nic, event);
            }
        };
        nic::set_error_handler(nic, Some(Box::new(handler)))?;
        let mut owned = self.owned();
        // Whoever ends the session takes the openings that it finds after it said so.
        if self.over.load(Ordering::SeqCst) {
            drop(owned);
            nic::close(nic)?;
            return Err(ResourceError::ProcessGone.into());
        }
        // Other calls may have opened it meanwhile.
        if owned.nics.len() >= most as usize {
            drop(owned);
            nic::close(nic)?;
            return Err(all_in_use(Limit::MaxCalls, most));
        }
        owned.nics.push(nic);
        Ok(nic)
    }

    /// What concerns the NIC: the data path tells of the VIs itself.
    fn report(&self, nic: u64, event: &crate::events::AsyncEvent) {
        // What concerns all openings is told once.
        if self.owned().nics.first() != Some(&nic) {
            return;
        }
        let mut held = self.device.hold();
        if let Some(poller) = held.as_mut().and_then(Driver::engine_mut)
            && let Some(client) = self.client()
        {
            poller.path.clients.report(client, event);
            poller.path.settle_clients();
        }
    }

    fn close(&self, nic: u64) -> Outcome<()> {
        let nic = self.nic(nic)?;
        nic::close(nic)?;
        let ended = self.owned().close(nic);
        drop(ended);
        self.names().close(nic);
        Ok(())
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
            waiting: self.waiting.load(Ordering::Relaxed),
            stale: counter(&self.counters.stale),
            errors_dropped: counter(&self.counters.errors_dropped),
            refused_calls: counter(&self.refused),
            quotas: self.quotas(&owned, file_bytes),
        }
    }

    fn create_vi(&self, nic: u64, settings: &ViSettings) -> Outcome<u64> {
        self.tag(settings.ptag)?;
        let nic = self.nic(nic)?;
        self.owned().expect_vi(&self.quota)?;
        let made = nic::create_vi(nic, settings, 0, 0);
        let made = made.and_then(|vi| self.serve(vi).map(|()| vi));
        self.owned().have_vi(made, nic)
    }

    /// From now on a VI that was just made is the application's.
    fn serve(&self, vi: u64) -> Outcome<()> {
        let index = vi_engine::ViIndex(RawHandle::unpack(vi).index);
        let mut held = self.device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut);
        let poller = poller.ok_or(ControlError::InvalidParameter)?;
        // The opening may have ended meanwhile, and the place be another's.
        let path = poller.path.vi(index).filter(|path| path.handle == vi);
        let (path, client) = path
            .zip(self.client())
            .ok_or(ControlError::InvalidParameter)?;
        path.serve(client, self.owner());
        poller.engine.set_user(index, self.peer.uid);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
