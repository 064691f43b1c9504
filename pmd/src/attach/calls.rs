//! The control calls of an attached NIC: the process carries them out, and what the library keeps
//! follows.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use fcvi_frame::connect::HostAddress;
use serde::de::DeserializeOwned;
use vi_engine::EndpointState;

use super::link::Link;
use super::message::{Reply, Request, state_of};
use super::offers;
use super::opening::PATIENCE;
use crate::choices::{Agreement, ViChoices};
use crate::control::{ControlError, Outcome, attributes};
use crate::device::Device;
use crate::driver::Driver;
use crate::nic::ViInfo;
use crate::notify;
use crate::resource_error::ResourceError;
use crate::sync::Ordering;
use crate::vi::{RawHandle, ViSettings, ViShared};

mod connecting;
mod memory;

pub(crate) use connecting::{
    connect_accept, connect_peer_done, connect_peer_request, connect_peer_wait, connect_reject,
    connect_request, connect_wait, disconnect,
};

pub(crate) use memory::{deregister, register, set_region};

/// How long a post on a VI that processes nothing polls for its flushed descriptor before it asks the process.
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// Submits all that was posted until now: a call comes behind it.
fn submit_all(device: &'static Device) {
    device.submit_with_room(|attachment| !attachment.has_unsent());
}

/// Takes what the process told before it answered.
fn listen(device: &'static Device) {
    if let Some(driver) = device.hold().as_mut() {
        driver.turn(&device.doorbells);
        device.announce(driver);
    }
}

/// A call: behind all that was posted, and before what is told after it.
fn ask(device: &'static Device, request: &Request, fd: Option<OwnedFd>) -> Outcome<Reply> {
    converse(device, |link| link.ask(request, fd))
}

fn converse(device: &'static Device, call: impl FnOnce(&Link) -> Outcome<Reply>) -> Outcome<Reply> {
    let link = device.link().ok_or(ControlError::InvalidParameter)?;
    submit_all(device);
    let reply = call(&link);
    if reply.is_err() && link.is_over() {
        notice_loss(device);
    }
    listen(device);
    reply
}

/// The process is gone: whoever is told of it is told now.
#[cold]
fn notice_loss(device: &'static Device) {
    if let Some(driver) = device.hold().as_mut() {
        driver.upkeep();
        device.announce(driver);
    }
}

/// A call that answers nothing but that it was done.
fn tell(device: &'static Device, request: &Request) -> Outcome<()> {
    match ask(device, request, None)? {
        Reply::Done => Ok(()),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// Is the process gone? Then the library ends for itself what it has.
fn is_lost(device: &'static Device) -> bool {
    let mut held = device.hold();
    held.as_mut()
        .and_then(Driver::attachment)
        .is_none_or(|attachment| attachment.is_lost())
}

/// As [`tell`], for a call that ends something: with the process it has ended, too.
fn tell_if_there(device: &'static Device, request: &Request) -> Outcome<()> {
    if is_lost(device) {
        return Ok(());
    }
    match tell(device, request) {
        Err(_) if is_lost(device) => Ok(()),
        told => told,
    }
}

/// The process's handle of an opening.
fn remote_nic(device: &Device, nic: u64) -> Outcome<u64> {
    device
        .instances
        .remote(nic)
        .ok_or(ControlError::InvalidParameter)
}

/// The process's handle of a tag; 0 stays 0.
fn remote_tag(device: &Device, ptag: u64) -> Outcome<u64> {
    if ptag == 0 {
        return Ok(0);
    }
    let number = device.instances.tag(device.number(), ptag);
    number
        .and_then(|number| device.instances.remote_tag(number))
        .ok_or(ControlError::Ptag)
}

/// A VI as the process calls it, and the connection that it is at.
#[derive(Clone, Copy)]
struct RemoteVi {
    vi: u64,
    connection: u16,
}

/// What the process calls the VI with this handle: its place may be another one's by now.
fn remote_vi(vi: &'static ViShared, handle: u64) -> Outcome<RemoteVi> {
    let mut held = vi.device.hold();
    let attachment = held.as_mut().and_then(Driver::attachment);
    attachment
        .filter(|_| vi.is_live(handle))
        .map(|attachment| RemoteVi {
            vi: vi.remote.load(Ordering::Relaxed),
            connection: attachment.connection(vi.index),
        })
        .ok_or(ControlError::InvalidParameter)
}

/// Notes the state of a VI in an answer to what was asked when the VI was at this connection;
/// false if it is at another one by now.
fn hear(vi: &'static ViShared, handle: u64, connection: u16, state: EndpointState) -> bool {
    let mut held = vi.device.hold();
    let attachment = held.as_mut().and_then(Driver::attachment);
    attachment
        .filter(|_| vi.is_live(handle))
        .is_none_or(|attachment| attachment.hear(vi.index, connection, state))
}

/// Opens the NIC once more.
pub(crate) fn open(device: &'static Device) -> Outcome<u64> {
    let link = device.link().ok_or(ControlError::InvalidParameter)?;
    match link.ask_within(&Request::Open, PATIENCE)? {
        Reply::Handle(remote) => Ok(remote),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// Has the process close an opening; the last one of this program ends the attachment. When this
/// succeeds, the process reaches nothing of it any more; until then the memory that is registered
/// there is not the program's alone.
///
/// # Errors
/// `Resource`: the process lives and has not acknowledged it within `limit`.
pub(crate) fn close(
    device: &'static Device,
    remote: u64,
    is_last: bool,
    limit: Duration,
) -> Outcome<()> {
    if is_lost(device) {
        return Ok(());
    }
    let acknowledged = if is_last {
        let link = device.link().ok_or(ControlError::InvalidParameter)?;
        link.end(limit)
    } else {
        let request = Request::Close { nic: remote };
        let answer = converse(device, |link| link.ask_within(&request, limit));
        // An earlier request that was not acknowledged in time was carried out since.
        matches!(answer, Ok(_) | Err(ControlError::InvalidParameter)) || is_lost(device)
    };
    if acknowledged {
        offers::free_unmapped();
        return Ok(());
    }
    log::error!(
        "NIC {}: close: no answer from the datapath process within {} ms: the NIC stays open and \
         its memory registered; close it again when the process goes on",
        device.config.name,
        limit.as_millis()
    );
    Err(ResourceError::ProcessGone.into())
}

pub(crate) fn create_ptag(device: &'static Device, nic: u64) -> Outcome<u64> {
    let remote = remote_nic(device, nic)?;
    let Reply::Handle(tag) = ask(device, &Request::CreatePtag { nic: remote }, None)? else {
        return Err(ResourceError::ProcessAnswer.into());
    };
    device.instances.adopt_tag(device.number(), nic, tag)
}

pub(crate) fn destroy_ptag(device: &'static Device, nic: u64, ptag: u64) -> Outcome<()> {
    let number = device.instances.tag(device.number(), ptag);
    let number = number.ok_or(ControlError::InvalidParameter)?;
    let request = Request::DestroyPtag {
        nic: remote_nic(device, nic)?,
        ptag: remote_tag(device, ptag)?,
    };
    tell_if_there(device, &request)?;
    if is_lost(device) {
        // Nobody else has looked whether anything has it.
        return crate::control::destroy_ptag(device, ptag);
    }
    device.instances.destroy_tag(number);
    Ok(())
}

/// Makes a VI over there, and its queues here.
pub(crate) fn create_vi(
    device: &'static Device,
    nic: u64,
    settings: &ViSettings,
    cqs: (u64, u64),
) -> Outcome<u64> {
    let remote_nic = remote_nic(device, nic)?;
    crate::control::check_vi(device, settings, cqs)?;
    let request = Request::CreateVi {
        nic: remote_nic,
        settings: ViSettings {
            ptag: remote_tag(device, settings.ptag)?,
            ..*settings
        },
    };
    let Reply::Handle(remote) = ask(device, &request, None)? else {
        return Err(ResourceError::ProcessAnswer.into());
    };
    let made = crate::control::adopt_vi(device, nic, settings, cqs, remote);
    if made.is_err() {
        tell(device, &Request::DestroyVi { vi: remote })?;
    }
    made
}

pub(crate) fn destroy_vi(vi: &'static ViShared, handle: u64) -> Outcome<()> {
    let device = vi.device;
    let remote = remote_vi(vi, handle)?;
    if known_state(vi, handle)? != EndpointState::Idle {
        return Err(ControlError::InvalidState);
    }
    {
        let held = device.hold();
        if held.is_none() || !vi.is_live(handle) {
            return Err(ControlError::InvalidParameter);
        }
        // Nobody posts or reaps while it is decided whether there is anything to reap.
        let _ends = vi.close_ends();
        if !vi.send.is_empty() || !vi.recv.is_empty() {
            return Err(ControlError::InvalidState);
        }
        vi.retire();
    }
    match tell_if_there(device, &Request::DestroyVi { vi: remote.vi }) {
        // There is none any more.
        Ok(()) | Err(ControlError::InvalidParameter) => {}
        // Another thread has connected it meanwhile; or the process was not asked.
        Err(error) => {
            if !resume(vi, handle) {
                take_down(vi, handle);
            }
            return Err(error);
        }
    }
    take_down(vi, handle);
    Ok(())
}

/// Takes back that a VI was retired; false if its opening was closed meanwhile, which did not find it.
fn resume(vi: &'static ViShared, handle: u64) -> bool {
    let mut held = vi.device.hold();
    let attachment = held.as_mut().and_then(Driver::attachment);
    let is_there = attachment.is_some_and(|a| a.served_at(vi.index) == Some(handle))
        && vi.device.instances.is_open(vi.instance());
    if is_there {
        vi.resume(handle);
    }
    is_there
}

/// Ends here what the process has destroyed, unless another VI has its place by now: whoever made that did this.
fn take_down(vi: &'static ViShared, handle: u64) {
    let device = vi.device;
    let mut ended = Vec::new();
    if let Some(driver) = device.hold().as_mut() {
        let attachment = driver.attachment();
        if attachment.is_some_and(|a| a.served_at(vi.index) == Some(handle)) {
            crate::control::detach_local(vi, driver, &mut ended);
        }
    }
    device.wake_sleepers();
    notify::settle(ended);
}

fn query_state(vi: &'static ViShared, handle: u64) -> Outcome<EndpointState> {
    let remote = remote_vi(vi, handle)?;
    match ask(vi.device, &Request::QueryVi { vi: remote.vi }, None)? {
        Reply::Vi { state } => {
            // Not the state of the answer if the VI is at another connection by now, or if a post
            // broke it and the process has not taken that yet.
            let _is_at_it = hear(vi, handle, remote.connection, state_of(state));
            Ok(vi.state())
        }
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// The state as the process has it, or as it was when the process ended.
fn known_state(vi: &'static ViShared, handle: u64) -> Outcome<EndpointState> {
    if is_lost(vi.device) {
        return Ok(vi.state());
    }
    match query_state(vi, handle) {
        Err(_) if is_lost(vi.device) => Ok(vi.state()),
        state => state,
    }
}

pub(crate) fn query_vi(vi: &'static ViShared, handle: u64) -> Outcome<ViInfo> {
    // Before the state: a descriptor may be reaped at any time, but what came after a state does not
    // stand beside it.
    let (send_empty, recv_empty) = (vi.send.is_empty(), vi.recv.is_empty());
    Ok(ViInfo {
        state: known_state(vi, handle)?,
        settings: vi.settings(),
        send_empty,
        recv_empty,
    })
}

pub(crate) fn set_vi(vi: &'static ViShared, handle: u64, settings: &ViSettings) -> Outcome<()> {
    let device = vi.device;
    if query_state(vi, handle)? != EndpointState::Idle {
        return Err(ControlError::InvalidState);
    }
    crate::control::check_vi(device, settings, (0, 0))?;
    let request = Request::SetVi {
        vi: remote_vi(vi, handle)?.vi,
        settings: ViSettings {
            ptag: remote_tag(device, settings.ptag)?,
            ..*settings
        },
    };
    tell(device, &request)?;
    attributes::note_changed(vi, handle, settings)
}

pub(crate) fn choices(vi: &'static ViShared, handle: u64) -> Outcome<ViChoices> {
    let vi_there = remote_vi(vi, handle)?.vi;
    match ask(vi.device, &Request::Choices { vi: vi_there }, None)? {
        Reply::Choices(choices) => Ok(choices),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn set_choices(vi: &'static ViShared, handle: u64, choices: &ViChoices) -> Outcome<()> {
    choices.check()?;
    let request = Request::SetChoices {
        vi: remote_vi(vi, handle)?.vi,
        choices: choices.clone(),
    };
    tell(vi.device, &request)
}

pub(crate) fn agreement(vi: &'static ViShared, handle: u64) -> Outcome<Agreement> {
    let vi_there = remote_vi(vi, handle)?.vi;
    match ask(vi.device, &Request::Agreement { vi: vi_there }, None)? {
        Reply::Agreement(agreement) => Ok(agreement),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn request_security(device: &'static Device, conn: u64) -> Outcome<Vec<u8>> {
    match ask(device, &Request::SecurityOf { conn }, None)? {
        Reply::Security(bytes) => Ok(bytes),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn request_user(device: &'static Device, conn: u64) -> Outcome<Option<u32>> {
    user(ask(device, &Request::UserOf { conn }, None)?)
}

pub(crate) fn peer_user(vi: &'static ViShared, handle: u64) -> Outcome<Option<u32>> {
    let request = Request::PeerUser {
        vi: remote_vi(vi, handle)?.vi,
    };
    user(ask(vi.device, &request, None)?)
}

fn user(reply: Reply) -> Outcome<Option<u32>> {
    match reply {
        Reply::User(user) => Ok(user),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn discovered_hosts(device: &'static Device, nic: u64) -> Outcome<Vec<HostAddress>> {
    let nic = remote_nic(device, nic)?;
    let hosts: Vec<[u8; 16]> = ask_for_parts(device, &Request::DiscoveredHosts { nic })?;
    Ok(hosts.into_iter().map(HostAddress).collect())
}

pub(crate) fn counters(device: &'static Device, nic: u64) -> Outcome<Vec<(String, u64)>> {
    let nic = remote_nic(device, nic)?;
    let mut counters: Vec<_> = ask_for_parts(device, &Request::Counters { nic })?;
    device.add_own_counts(&mut counters);
    Ok(counters)
}

/// A call whose answer may be too long for one message.
fn ask_for_parts<T: DeserializeOwned>(device: &'static Device, request: &Request) -> Outcome<T> {
    let link = device.link().ok_or(ControlError::InvalidParameter)?;
    let bytes = link.ask_for_parts(request);
    if bytes.is_err() && link.is_over() {
        notice_loss(device);
    }
    postcard::from_bytes(&bytes?).map_err(|_| ResourceError::ProcessAnswer.into())
}

/// Waits until what was just posted on a VI that processes nothing is flushed (VIPL 2.4, 3.3.5), however long the poller
/// of the process is held up. Returns before where the process has the VI in a state that does process it.
pub(crate) fn await_flush(vi: &'static ViShared, handle: u64, receive: bool) {
    let queue = if receive { &vi.recv } else { &vi.send };
    let posted = queue.posted();
    let is_over = || queue.is_complete_to(posted) || !vi.is_live(handle);
    let begun = Instant::now();
    while !is_over() && begun.elapsed() < FLUSH_POLL {
        listen(vi.device);
        std::thread::yield_now();
    }
    if is_over() {
        return;
    }
    // The process takes what was submitted before a call, and reports what it flushed before it answers.
    match query_state(vi, handle) {
        Ok(EndpointState::Connected) => return,
        Ok(EndpointState::Idle | EndpointState::ConnectPending) if receive => return,
        // Flushed there, also if the call failed because the process ended.
        Ok(_) | Err(_) => {}
    }
    while !is_over() {
        listen(vi.device);
        std::thread::yield_now();
    }
}

/// The index that the process gave a VI.
pub(crate) fn index_of(remote: u64) -> u32 {
    RawHandle::unpack(remote).index
}

#[cfg(test)]
mod tests;
