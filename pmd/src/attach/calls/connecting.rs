//! The control calls of an attached NIC that make and end connections.

use std::time::Duration;

use fcvi_frame::connect;
use vi_engine::EndpointState;

use super::{
    RemoteVi, ask, hear, is_lost, listen, query_state, remote_nic, remote_vi, submit_all, tell,
    tell_if_there,
};
use crate::attach::Attachment;
use crate::attach::message::{NetAddress, Reply, Request};
use crate::control::{ControlError, Outcome};
use crate::device::Device;
use crate::driver::Driver;
use crate::instance::Conn;
use crate::resource_error::ResourceError;
use crate::vi::ViShared;

/// A matched request: its handle over there, who asks, and with what.
pub(crate) fn connect_wait(
    device: &'static Device,
    nic: u64,
    local: &connect::NetAddress,
    limit: Option<Duration>,
) -> Outcome<(Conn, connect::NetAddress, connect::Attributes)> {
    let request = Request::ConnectWait {
        nic: remote_nic(device, nic)?,
        local: local.into(),
        limit,
    };
    let reply = ask(device, &request, None).map_err(|error| {
        // The last opening is closed meanwhile: the call was not carried to its end.
        let is_ending = device.link().is_none_or(|link| link.is_ending());
        match device.instances.is_open(nic) && !is_ending {
            true => error,
            false => ControlError::InvalidParameter,
        }
    })?;
    let Reply::Request {
        conn,
        remote,
        attributes,
    } = reply
    else {
        return Err(ResourceError::ProcessAnswer.into());
    };
    let remote = remote.get().ok_or(ResourceError::ProcessAnswer)?;
    Ok((Conn::Process(conn), remote, attributes.into()))
}

/// A VI is connected, as the process has answered.
fn note_connected(vi: &'static ViShared, handle: u64, asked: RemoteVi) -> Outcome<()> {
    if !hear(vi, handle, asked.connection, EndpointState::Connected) {
        // Another thread has ended a connection meanwhile: this one, or the one before it.
        query_state(vi, handle)?;
    }
    Ok(())
}

/// The outcome of a call that connects.
fn connected(
    vi: &'static ViShared,
    handle: u64,
    asked: RemoteVi,
    reply: Outcome<Reply>,
) -> Outcome<connect::Attributes> {
    match reply? {
        Reply::Attributes(attributes) => {
            note_connected(vi, handle, asked)?;
            Ok(attributes.into())
        }
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

pub(crate) fn connect_accept(conn: u64, vi: &'static ViShared, handle: u64) -> Outcome<()> {
    let asked = remote_vi(vi, handle)?;
    tell(vi.device, &Request::ConnectAccept { conn, vi: asked.vi })?;
    note_connected(vi, handle, asked)
}

pub(crate) fn connect_reject(device: &'static Device, conn: u64) -> Outcome<()> {
    tell(device, &Request::ConnectReject { conn })
}

pub(crate) fn connect_request(
    vi: &'static ViShared,
    handle: u64,
    local: &connect::NetAddress,
    remote: &connect::NetAddress,
    limit: Option<Duration>,
) -> Outcome<connect::Attributes> {
    let asked = remote_vi(vi, handle)?;
    let request = Request::Connect {
        vi: asked.vi,
        local: NetAddress::from(local),
        remote: NetAddress::from(remote),
        limit,
    };
    if is_lost(vi.device) {
        return Err(unreachable_without_process(vi));
    }
    match ask(vi.device, &request, None) {
        // Its end has taken the VI to Error.
        Err(_) if is_lost(vi.device) => Err(ControlError::NotReachable),
        reply => connected(vi, handle, asked, reply),
    }
}

/// A request where nobody can be reached any more: a reliable VI goes to Error (VIPL 3.3.4).
#[cold]
fn unreachable_without_process(vi: &'static ViShared) -> ControlError {
    let mut held = vi.device.hold();
    if vi.state() != EndpointState::Idle {
        return ControlError::InvalidState;
    }
    if vi.settings().reliability != 1 {
        vi.set_state(EndpointState::Error);
        if let Some(driver) = held.as_mut() {
            if let Some(attachment) = driver.attachment() {
                attachment.flush(vi.index);
            }
            vi.device.announce(driver);
        }
    }
    ControlError::NotReachable
}

pub(crate) fn connect_peer_request(
    vi: &'static ViShared,
    handle: u64,
    local: &connect::NetAddress,
    remote: &connect::NetAddress,
    limit: Option<Duration>,
) -> Outcome<()> {
    let request = Request::ConnectPeer {
        vi: remote_vi(vi, handle)?.vi,
        local: NetAddress::from(local),
        remote: NetAddress::from(remote),
        limit,
    };
    tell(vi.device, &request)
}

pub(crate) fn connect_peer_done(
    vi: &'static ViShared,
    handle: u64,
) -> Outcome<Option<connect::Attributes>> {
    let asked = remote_vi(vi, handle)?;
    let request = Request::ConnectPeerDone { vi: asked.vi };
    match ask(vi.device, &request, None) {
        Ok(Reply::NotYet) => Ok(None),
        reply => connected(vi, handle, asked, reply).map(Some),
    }
}

pub(crate) fn connect_peer_wait(
    vi: &'static ViShared,
    handle: u64,
) -> Outcome<connect::Attributes> {
    let asked = remote_vi(vi, handle)?;
    let request = Request::ConnectPeerWait { vi: asked.vi };
    connected(vi, handle, asked, ask(vi.device, &request, None))
}

/// Ends a connection: when this returns, all that was posted before is complete.
pub(crate) fn disconnect(vi: &'static ViShared, handle: u64) -> Outcome<()> {
    let device = vi.device;
    submit_all(device);
    let remote = remote_vi(vi, handle)?;
    // What another thread posts meanwhile comes before the call or behind it.
    let ends = change(vi, handle, |attachment| attachment.begin_leaving(vi.index));
    let ends = ends.flatten().ok_or(ControlError::InvalidParameter)?;
    let told = tell_if_there(device, &Request::Disconnect { vi: remote.vi });
    // The process has completed it; there may be more than the ring holds at a time.
    if told.is_ok() {
        let queues = [&vi.send, &vi.recv];
        let is_complete = || {
            let mut queues = queues.iter().zip(ends);
            queues.all(|(queue, end)| queue.is_complete_to(end))
        };
        while vi.is_live(handle) && !is_complete() {
            listen(device);
            std::thread::yield_now();
        }
    }
    change(vi, handle, |attachment| {
        attachment.end_leaving(vi.index, told.is_ok());
    });
    told
}

/// Changes something of the VI with this handle, if there is one still.
fn change<R>(
    vi: &'static ViShared,
    handle: u64,
    change: impl FnOnce(&mut Attachment) -> R,
) -> Option<R> {
    let mut held = vi.device.hold();
    let attachment = held.as_mut().and_then(Driver::attachment);
    attachment.filter(|_| vi.is_live(handle)).map(change)
}
