//! The control calls of an attached NIC: the process carries them out, and the library updates its own state.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use vi_core::notify_slot::join_ended;
use vi_core::sync::Ordering;
use vi_types::{
    CallError, ConnectionOptions, HostAddress, NegotiatedOptions, Outcome, PtagHandle,
    ResourceError, ViAttributes, ViInfo, ViState,
};

use super::control_connections::ControlConnections;
use super::handshake::TIMEOUT;
use super::message::{Reply, Request};
use super::shared_files;
use crate::control::attributes;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::Backend;

mod connecting;
mod memory;

pub(crate) use connecting::{
    connect_accept, connect_peer_done, connect_peer_request, connect_peer_wait, connect_reject,
    connect_request, connect_wait, disconnect,
};

pub(crate) use memory::{deregister, register, set_region};

/// How long a post on a VI that is not connected polls for its flushed descriptor before it queries the process.
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// Submits everything posted before: the process carries out a call after that.
fn submit_all(device: &'static Device) {
    device.submit_with_room(|attachment| !attachment.has_unsent());
}

/// Takes the completions that the process reported before its reply.
fn take_completions(device: &'static Device) {
    if let Some(backend) = device.lock().as_mut() {
        backend.poll(&device.shared.doorbells);
        device.wake_waiters(backend);
    }
}

/// Makes a call, after everything posted before; takes the completions reported before the reply.
fn call(device: &'static Device, request: &Request, fd: Option<OwnedFd>) -> Outcome<Reply> {
    call_by(device, |control| control.request(request, fd))
}

/// Makes a call with the control connections, as [`call`] does.
fn call_by(
    device: &'static Device,
    call: impl FnOnce(&ControlConnections) -> Outcome<Reply>,
) -> Outcome<Reply> {
    let control = device.control().ok_or(CallError::InvalidParameter)?;
    submit_all(device);
    let reply = call(&control);
    if reply.is_err() && control.is_closed() {
        handle_loss(device);
    }
    take_completions(device);
    reply
}

/// Reports the end of the process at once.
#[cold]
fn handle_loss(device: &'static Device) {
    if let Some(backend) = device.lock().as_mut() {
        backend.upkeep();
        device.wake_waiters(backend);
    }
}

/// Makes a call whose reply has no content.
fn call_done(device: &'static Device, request: &Request) -> Outcome<()> {
    match call(device, request, None)? {
        Reply::Done => Ok(()),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// True if the process has ended: the library then frees its own resources.
fn is_lost(device: &'static Device) -> bool {
    let mut held = device.lock();
    held.as_mut()
        .and_then(Backend::attachment)
        .is_none_or(|attachment| attachment.is_lost())
}

/// As [`call_done`], for a call that frees a resource: succeeds if the process has ended.
fn call_done_unless_lost(device: &'static Device, request: &Request) -> Outcome<()> {
    if is_lost(device) {
        return Ok(());
    }
    match call_done(device, request) {
        Err(_) if is_lost(device) => Ok(()),
        outcome => outcome,
    }
}

/// The process's number of a NIC handle.
fn remote_nic(device: &Device, nic: u64) -> Outcome<u64> {
    device
        .nic_handles
        .remote(nic)
        .ok_or(CallError::InvalidParameter)
}

/// The process's handle of a protection tag.
fn remote_tag(device: &Device, ptag: Option<PtagHandle>) -> Outcome<Option<PtagHandle>> {
    let Some(ptag) = ptag else {
        return Ok(None);
    };
    let number = device
        .nic_handles
        .tag(device.shared.number, ptag.into_raw());
    let remote = number.and_then(|number| device.nic_handles.remote_tag(number));
    Ok(Some(PtagHandle::from_raw(remote.ok_or(CallError::Ptag)?)))
}

/// The process's handle of a VI, and the number of its current connection.
#[derive(Clone, Copy)]
struct RemoteVi {
    vi: u64,
    connection: u16,
}

/// The process's handle of the VI with this handle, unless the VI was destroyed: its index may have been reused.
fn remote_vi(vi: Vi, handle: u64) -> Outcome<RemoteVi> {
    let mut held = vi.device.lock();
    let attachment = held.as_mut().and_then(Backend::attachment);
    attachment
        .filter(|_| vi.is_live(handle))
        .map(|attachment| RemoteVi {
            vi: vi.remote.load(Ordering::Relaxed),
            connection: attachment.connection(vi.index),
        })
        .ok_or(CallError::InvalidParameter)
}

/// Sets the state of a VI from a reply; false if the VI was at another connection when the request was sent.
fn set_replied_state(vi: Vi, handle: u64, connection: u16, state: ViState) -> bool {
    let mut held = vi.device.lock();
    let attachment = held.as_mut().and_then(Backend::attachment);
    attachment
        .filter(|_| vi.is_live(handle))
        .is_none_or(|attachment| attachment.set_replied_state(vi.index, connection, state))
}

/// Opens another NIC handle at the process.
pub(crate) fn open(device: &'static Device) -> Outcome<u64> {
    let control = device.control().ok_or(CallError::InvalidParameter)?;
    match control.request_within(&Request::Open, TIMEOUT)? {
        Reply::Handle(remote) => Ok(remote),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// Closes a NIC handle at the process; the last one of this program ends the attachment. After success the process no
/// longer accesses memory that was registered with the handle; until then it may.
///
/// # Errors
/// `Resource`: the process lives and has not acknowledged the call within `limit`.
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
        let control = device.control().ok_or(CallError::InvalidParameter)?;
        control.end(limit)
    } else {
        let request = Request::Close { nic: remote };
        let reply = call_by(device, |control| control.request_within(&request, limit));
        // `InvalidParameter`: an earlier request that was not acknowledged in time was carried out since.
        matches!(reply, Ok(_) | Err(CallError::InvalidParameter)) || is_lost(device)
    };
    if acknowledged {
        shared_files::free_unmapped();
        return Ok(());
    }
    log::error!(
        "NIC {}: close: no reply from the datapath process within {} ms: the NIC stays open and \
         its memory registered; close it again when the process responds",
        device.config.name,
        limit.as_millis()
    );
    Err(ResourceError::ProcessGone.into())
}

pub(crate) fn create_ptag(device: &'static Device, nic: u64) -> Outcome<u64> {
    let remote = remote_nic(device, nic)?;
    let Reply::Handle(tag) = call(device, &Request::CreatePtag { nic: remote }, None)? else {
        return Err(ResourceError::ProcessAnswer.into());
    };
    device.nic_handles.adopt_tag(device.shared.number, nic, tag)
}

pub(crate) fn destroy_ptag(device: &'static Device, nic: u64, ptag: u64) -> Outcome<()> {
    let number = device.nic_handles.tag(device.shared.number, ptag);
    let number = number.ok_or(CallError::InvalidParameter)?;
    let request = Request::DestroyPtag {
        nic: remote_nic(device, nic)?,
        ptag: (device.nic_handles.remote_tag(number)).ok_or(CallError::Ptag)?,
    };
    call_done_unless_lost(device, &request)?;
    if is_lost(device) {
        // Only this checks whether the tag is in use.
        return crate::control::destroy_ptag(device, ptag);
    }
    device.nic_handles.destroy_tag(number);
    Ok(())
}

/// Creates a VI in the process, and its queues in this program.
pub(crate) fn create_vi(
    device: &'static Device,
    nic: u64,
    settings: &ViAttributes,
    cqs: (u64, u64),
) -> Outcome<u64> {
    let remote_nic = remote_nic(device, nic)?;
    crate::control::check_vi(device, settings, cqs)?;
    let request = Request::CreateVi {
        nic: remote_nic,
        settings: ViAttributes {
            ptag: remote_tag(device, settings.ptag)?,
            ..*settings
        },
    };
    let Reply::Handle(remote) = call(device, &request, None)? else {
        return Err(ResourceError::ProcessAnswer.into());
    };
    let made = crate::control::adopt_vi(device, nic, settings, cqs, remote);
    if made.is_err() {
        call_done(device, &Request::DestroyVi { vi: remote })?;
    }
    made
}

pub(crate) fn destroy_vi(vi: Vi, handle: u64) -> Outcome<()> {
    let device = vi.device;
    let remote = remote_vi(vi, handle)?;
    if known_state(vi, handle)? != ViState::Idle {
        return Err(CallError::InvalidState);
    }
    {
        let held = device.lock();
        if held.is_none() || !vi.is_live(handle) {
            return Err(CallError::InvalidParameter);
        }
        // Excludes posts and reaps while the queues are checked.
        let _ends = vi.close_ends();
        if !vi.send.is_empty() || !vi.recv.is_empty() {
            return Err(CallError::InvalidState);
        }
        vi.retire();
    }
    match call_done_unless_lost(device, &Request::DestroyVi { vi: remote.vi }) {
        // It does not exist any more.
        Ok(()) | Err(CallError::InvalidParameter) => {}
        // Another thread has connected it meanwhile, or the request was not sent.
        Err(error) => {
            if !resume(vi, handle) {
                remove_local(vi, handle);
            }
            return Err(error);
        }
    }
    remove_local(vi, handle);
    Ok(())
}

/// Makes a retired VI usable again; false if its NIC handle was closed meanwhile, which did not destroy it.
fn resume(vi: Vi, handle: u64) -> bool {
    let mut held = vi.device.lock();
    let attachment = held.as_mut().and_then(Backend::attachment);
    let exists = attachment.is_some_and(|a| a.handle_at(vi.index) == Some(handle))
        && vi.device.nic_handles.is_open(vi.nic_handle());
    if exists {
        vi.resume(handle);
    }
    exists
}

/// Destroys the local part of a VI that the process has destroyed, unless another VI has its index by now: then the
/// thread that created that VI has done so.
fn remove_local(vi: Vi, handle: u64) {
    let device = vi.device;
    let mut ended = Vec::new();
    if let Some(backend) = device.lock().as_mut() {
        let attachment = backend.attachment();
        if attachment.is_some_and(|a| a.handle_at(vi.index) == Some(handle)) {
            crate::control::detach_local(vi, backend, &mut ended);
        }
    }
    device.shared.wake_all_waiters();
    join_ended(ended);
}

fn query_state(vi: Vi, handle: u64) -> Outcome<ViState> {
    let remote = remote_vi(vi, handle)?;
    match call(vi.device, &Request::QueryVi { vi: remote.vi }, None)? {
        Reply::Vi { state } => {
            // Not the state of the reply if the VI is at another connection by now, or if a post took it to the Error
            // state and the process has not taken that submission yet.
            let _is_current = set_replied_state(vi, handle, remote.connection, state);
            Ok(vi.state())
        }
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// The state of a VI in the process, or its last state if the process has ended.
fn known_state(vi: Vi, handle: u64) -> Outcome<ViState> {
    if is_lost(vi.device) {
        return Ok(vi.state());
    }
    match query_state(vi, handle) {
        Err(_) if is_lost(vi.device) => Ok(vi.state()),
        state => state,
    }
}

pub(crate) fn query_vi(vi: Vi, handle: u64) -> Outcome<ViInfo> {
    // Read before the state: descriptors that complete after a state was read must not appear beside it.
    let (send_queue_empty, recv_queue_empty) = (vi.send.is_empty(), vi.recv.is_empty());
    Ok(ViInfo {
        state: known_state(vi, handle)?,
        attributes: vi.settings(),
        send_queue_empty,
        recv_queue_empty,
    })
}

pub(crate) fn set_vi(vi: Vi, handle: u64, settings: &ViAttributes) -> Outcome<()> {
    let device = vi.device;
    if query_state(vi, handle)? != ViState::Idle {
        return Err(CallError::InvalidState);
    }
    crate::control::check_vi(device, settings, (0, 0))?;
    let request = Request::SetVi {
        vi: remote_vi(vi, handle)?.vi,
        settings: ViAttributes {
            ptag: remote_tag(device, settings.ptag)?,
            ..*settings
        },
    };
    call_done(device, &request)?;
    attributes::store_changed(vi, handle, settings)
}

pub(crate) fn connection_options(vi: Vi, handle: u64) -> Outcome<ConnectionOptions> {
    let remote = remote_vi(vi, handle)?.vi;
    match call(vi.device, &Request::ConnectionOptions { vi: remote }, None)? {
        Reply::ConnectionOptions(options) => Ok(options),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn set_connection_options(
    vi: Vi,
    handle: u64,
    options: &ConnectionOptions,
) -> Outcome<()> {
    options.check(ConnectionOptions::MAX_SECURITY_BYTES)?;
    let request = Request::SetConnectionOptions {
        vi: remote_vi(vi, handle)?.vi,
        options: options.clone(),
    };
    call_done(vi.device, &request)
}

pub(crate) fn negotiated_options(vi: Vi, handle: u64) -> Outcome<NegotiatedOptions> {
    let remote = remote_vi(vi, handle)?.vi;
    match call(vi.device, &Request::NegotiatedOptions { vi: remote }, None)? {
        Reply::NegotiatedOptions(options) => Ok(options),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn request_security(device: &'static Device, conn: u64) -> Outcome<Vec<u8>> {
    match call(device, &Request::SecurityOf { conn }, None)? {
        Reply::Security(bytes) => Ok(bytes),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn request_user(device: &'static Device, conn: u64) -> Outcome<Option<u32>> {
    user(call(device, &Request::UserOf { conn }, None)?)
}

pub(crate) fn peer_user(vi: Vi, handle: u64) -> Outcome<Option<u32>> {
    let request = Request::PeerUser {
        vi: remote_vi(vi, handle)?.vi,
    };
    user(call(vi.device, &request, None)?)
}

fn user(reply: Reply) -> Outcome<Option<u32>> {
    match reply {
        Reply::User(user) => Ok(user),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn discovered_hosts(device: &'static Device, nic: u64) -> Outcome<Vec<HostAddress>> {
    let nic = remote_nic(device, nic)?;
    let hosts: Vec<[u8; 16]> = call_for_parts(device, &Request::DiscoveredHosts { nic })?;
    Ok(hosts.into_iter().map(HostAddress).collect())
}

pub(crate) fn counters(device: &'static Device, nic: u64) -> Outcome<Vec<(String, u64)>> {
    let nic = remote_nic(device, nic)?;
    let mut counters: Vec<_> = call_for_parts(device, &Request::Counters { nic })?;
    device.add_own_counts(&mut counters);
    Ok(counters)
}

/// Makes a call whose reply may be too long for one message.
fn call_for_parts<T: DeserializeOwned>(device: &'static Device, request: &Request) -> Outcome<T> {
    let control = device.control().ok_or(CallError::InvalidParameter)?;
    let bytes = control.request_parts(request);
    if bytes.is_err() && control.is_closed() {
        handle_loss(device);
    }
    postcard::from_bytes(&bytes?).map_err(|_| ResourceError::ProcessAnswer.into())
}

/// Waits until a descriptor that was just posted on a VI that is not connected is flushed (VIPL 2.4, 3.3.5), however
/// long the poller of the process is delayed. Returns earlier if the process has the VI in a state that processes it.
pub(crate) fn await_flush(vi: Vi, handle: u64, receive: bool) {
    let queue = if receive { &vi.recv } else { &vi.send };
    let posted = queue.posted();
    let is_flushed = || queue.is_complete_to(posted) || !vi.is_live(handle);
    let begun = Instant::now();
    while !is_flushed() && begun.elapsed() < FLUSH_POLL {
        take_completions(vi.device);
        std::thread::yield_now();
    }
    if is_flushed() {
        return;
    }
    // The process takes everything submitted before a call, and reports what it flushed before its reply.
    match query_state(vi, handle) {
        Ok(ViState::Connected) => return,
        Ok(ViState::Idle | ViState::ConnectPending) if receive => return,
        // Flushed by the process, or by this library if the call failed because the process ended.
        Ok(_) | Err(_) => {}
    }
    while !is_flushed() {
        take_completions(vi.device);
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
