//! The control calls of an attached NIC, by messages to the datapath process; and calls on its NIC handles and
//! protection tags.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::de::DeserializeOwned;
use vi_core::sync::Ordering;
use vi_types::{CallError, HostAddress, Outcome, PtagHandle, ResourceError, ViState};

use super::control_connections::ControlConnections;
use super::handshake::TIMEOUT;
use super::message::{Reply, Request};
use super::shared_files;
use crate::control_calls::NicCalls;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::NicBackend;

mod connecting;
mod memory;
mod vis;

/// Timeout for the acknowledgement of a close by the datapath process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The control calls of a NIC whose engine is in a datapath process: the process carries them out, and the library
/// updates its own state.
pub(crate) struct AttachedCalls;

/// Submits everything posted before: the process carries out a call after that.
fn submit_all(device: &'static Device) {
    device.submit_with_room(|attachment| !attachment.has_unsent());
}

/// Takes the completions that the process reported before its reply: the data of a message may be behind them, and the
/// call may end the registration of the memory for it.
fn take_completions(device: &'static Device) {
    if let Some(backend) = device.lock().as_mut() {
        backend.poll(&device.shared.doorbells);
        if let Some(attachment) = backend.attachment() {
            attachment.take_all_completions();
        }
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
    let unused = device.lock().as_mut().map(|backend| {
        let unused = backend.upkeep();
        device.wake_waiters(backend);
        unused
    });
    drop(unused);
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
        .and_then(|backend| backend.attachment())
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
    let attachment = held.as_mut().and_then(|backend| backend.attachment());
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
    let attachment = held.as_mut().and_then(|backend| backend.attachment());
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
fn close(device: &'static Device, remote: u64, is_last: bool, limit: Duration) -> Outcome<()> {
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

impl NicCalls for AttachedCalls {
    fn end_access(&self, device: &'static Device, nic: u64) -> Outcome<()> {
        let is_last = device.nic_handles.count() == 1;
        close(device, remote_nic(device, nic)?, is_last, CLOSE_TIMEOUT)
    }

    fn native_mtu_bytes(&self, device: &'static Device) -> Outcome<u32> {
        let attached = device
            .attached
            .as_ref()
            .ok_or(CallError::InvalidParameter)?;
        Ok(attached.native_mtu_bytes.load(Ordering::Relaxed))
    }

    fn quota(&self, device: &'static Device) -> (u32, u32) {
        device
            .attached
            .as_ref()
            .map_or((0, 0), |attached| attached.quota)
    }

    fn counters(&self, device: &'static Device, nic: u64) -> Outcome<Vec<(String, u64)>> {
        let nic = remote_nic(device, nic)?;
        let mut counters: Vec<_> = call_for_parts(device, &Request::Counters { nic })?;
        device.add_own_counts(&mut counters);
        Ok(counters)
    }

    fn discovered_hosts(&self, device: &'static Device, nic: u64) -> Outcome<Vec<HostAddress>> {
        let nic = remote_nic(device, nic)?;
        let hosts: Vec<[u8; 16]> = call_for_parts(device, &Request::DiscoveredHosts { nic })?;
        Ok(hosts.into_iter().map(HostAddress).collect())
    }

    fn create_ptag(&self, device: &'static Device, nic: u64) -> Outcome<u64> {
        let remote = remote_nic(device, nic)?;
        let Reply::Handle(tag) = call(device, &Request::CreatePtag { nic: remote }, None)? else {
            return Err(ResourceError::ProcessAnswer.into());
        };
        device.nic_handles.adopt_tag(device.shared.number, nic, tag)
    }

    fn destroy_ptag(&self, device: &'static Device, nic: u64, ptag: u64) -> Outcome<()> {
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

#[cfg(test)]
mod tests;
