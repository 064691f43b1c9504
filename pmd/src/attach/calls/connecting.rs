//! The control calls of an attached NIC that establish and end connections.

use std::time::Duration;

use vi_types::{
    CallError, ConnectionOptions, NegotiatedOptions, NetAddress, Outcome, ReliabilityLevel,
    ResourceError, ViParams, ViState,
};

use super::vis::query_state;
use super::{
    AttachedCalls, RemoteVi, call, call_done, call_done_unless_lost, is_lost, remote_nic,
    remote_vi, set_replied_state, submit_all, take_completions,
};
use crate::attach::Attachment;
use crate::attach::message::{Reply, Request};
use crate::control_calls::ConnectionCalls;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_handle::Conn;

impl ConnectionCalls for AttachedCalls {
    fn connect_wait(
        &self,
        device: &'static Device,
        nic: u64,
        local: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<(Conn, NetAddress, ViParams)> {
        let request = Request::ConnectWait {
            nic: remote_nic(device, nic)?,
            local: *local,
            limit,
        };
        let reply = call(device, &request, None).map_err(|error| {
            // The call was interrupted if the last NIC handle is being closed.
            let is_ending = device.control().is_none_or(|control| control.is_ending());
            match device.nic_handles.is_open(nic) && !is_ending {
                true => error,
                false => CallError::InvalidParameter,
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
        Ok((Conn(conn), remote, attributes))
    }

    fn connect_accept(&self, conn: Conn, vi: Vi, handle: u64) -> Outcome<()> {
        let target = remote_vi(vi, handle)?;
        call_done(
            vi.device,
            &Request::ConnectAccept {
                conn: conn.0,
                vi: target.vi,
            },
        )?;
        note_connected(vi, handle, target)
    }

    fn connect_reject(&self, device: &'static Device, conn: Conn) -> Outcome<()> {
        call_done(device, &Request::ConnectReject { conn: conn.0 })
    }

    fn connect_request(
        &self,
        vi: Vi,
        handle: u64,
        local: &NetAddress,
        remote: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<ViParams> {
        let target = remote_vi(vi, handle)?;
        let request = Request::Connect {
            vi: target.vi,
            local: *local,
            remote: *remote,
            limit,
        };
        if is_lost(vi.device) {
            return Err(unreachable_without_process(vi));
        }
        match call(vi.device, &request, None) {
            // The end of the process has taken the VI to the Error state.
            Err(_) if is_lost(vi.device) => Err(CallError::NotReachable),
            reply => connected(vi, handle, target, reply),
        }
    }

    fn connect_peer_request(
        &self,
        vi: Vi,
        handle: u64,
        local: &NetAddress,
        remote: &NetAddress,
        limit: Option<Duration>,
    ) -> Outcome<()> {
        let request = Request::ConnectPeer {
            vi: remote_vi(vi, handle)?.vi,
            local: *local,
            remote: *remote,
            limit,
        };
        call_done(vi.device, &request)
    }

    fn connect_peer_done(&self, vi: Vi, handle: u64) -> Outcome<Option<ViParams>> {
        let target = remote_vi(vi, handle)?;
        let request = Request::ConnectPeerDone { vi: target.vi };
        match call(vi.device, &request, None) {
            Ok(Reply::Pending) => Ok(None),
            reply => connected(vi, handle, target, reply).map(Some),
        }
    }

    fn connect_peer_wait(&self, vi: Vi, handle: u64) -> Outcome<ViParams> {
        let target = remote_vi(vi, handle)?;
        let request = Request::ConnectPeerWait { vi: target.vi };
        connected(vi, handle, target, call(vi.device, &request, None))
    }

    /// When this returns, all descriptors posted before are complete.
    fn disconnect(&self, vi: Vi, handle: u64) -> Outcome<()> {
        let device = vi.device;
        submit_all(device);
        let target = remote_vi(vi, handle)?;
        // Descriptors that other threads post meanwhile are submitted before or after the call.
        let ends = change(vi, handle, |attachment| {
            attachment.begin_disconnect(vi.index)
        });
        let ends = ends.flatten().ok_or(CallError::InvalidParameter)?;
        let outcome = call_done_unless_lost(device, &Request::Disconnect { vi: target.vi });
        // The process has completed them; there may be more completions than the ring holds at a time.
        if outcome.is_ok() {
            let queues = [&vi.send, &vi.recv];
            let is_complete = || {
                let mut queues = queues.iter().zip(ends);
                queues.all(|(queue, end)| queue.is_complete_to(end))
            };
            while vi.is_live(handle) && !is_complete() {
                take_completions(device);
                std::thread::yield_now();
            }
        }
        change(vi, handle, |attachment| {
            attachment.end_disconnect(vi.index, outcome.is_ok());
        });
        outcome
    }

    fn connection_options(&self, vi: Vi, handle: u64) -> Outcome<ConnectionOptions> {
        let remote = remote_vi(vi, handle)?.vi;
        match call(vi.device, &Request::ConnectionOptions { vi: remote }, None)? {
            Reply::ConnectionOptions(options) => Ok(options),
            _ => Err(ResourceError::ProcessAnswer.into()),
        }
    }

    fn set_connection_options(
        &self,
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

    fn negotiated_options(&self, vi: Vi, handle: u64) -> Outcome<NegotiatedOptions> {
        let remote = remote_vi(vi, handle)?.vi;
        match call(vi.device, &Request::NegotiatedOptions { vi: remote }, None)? {
            Reply::NegotiatedOptions(options) => Ok(options),
            _ => Err(ResourceError::ProcessAnswer.into()),
        }
    }

    fn request_security(&self, device: &'static Device, conn: Conn) -> Outcome<Vec<u8>> {
        match call(device, &Request::SecurityOf { conn: conn.0 }, None)? {
            Reply::Security(bytes) => Ok(bytes),
            _ => Err(ResourceError::ProcessAnswer.into()),
        }
    }

    fn request_user(&self, device: &'static Device, conn: Conn) -> Outcome<Option<u32>> {
        user(call(device, &Request::UserOf { conn: conn.0 }, None)?)
    }

    fn peer_user(&self, vi: Vi, handle: u64) -> Outcome<Option<u32>> {
        let request = Request::PeerUser {
            vi: remote_vi(vi, handle)?.vi,
        };
        user(call(vi.device, &request, None)?)
    }
}

/// Sets the state of a VI whose connection the process has reported in a reply.
fn note_connected(vi: Vi, handle: u64, target: RemoteVi) -> Outcome<()> {
    if !set_replied_state(vi, handle, target.connection, ViState::Connected) {
        // Another thread has disconnected the VI meanwhile: from this connection, or from the one before.
        query_state(vi, handle)?;
    }
    Ok(())
}

/// Evaluates the reply to a call that connects a VI.
fn connected(vi: Vi, handle: u64, target: RemoteVi, reply: Outcome<Reply>) -> Outcome<ViParams> {
    match reply? {
        Reply::Attributes(attributes) => {
            note_connected(vi, handle, target)?;
            Ok(attributes)
        }
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}

/// Fails a connection request after the end of the process: a reliable VI enters the Error state (VIPL 3.3.4).
#[cold]
fn unreachable_without_process(vi: Vi) -> CallError {
    let mut held = vi.device.lock();
    if vi.state() != ViState::Idle {
        return CallError::InvalidState;
    }
    if vi.settings().reliability != ReliabilityLevel::UnreliableDelivery.bit() {
        vi.set_state(ViState::Error);
        if let Some(backend) = held.as_mut() {
            if let Some(attachment) = backend.attachment() {
                attachment.flush(vi.index);
            }
            vi.device.wake_waiters(backend);
        }
    }
    CallError::NotReachable
}

/// Runs `change` on the attachment if the VI with this handle still exists.
fn change<R>(vi: Vi, handle: u64, change: impl FnOnce(&mut Attachment) -> R) -> Option<R> {
    let mut held = vi.device.lock();
    let attachment = held.as_mut().and_then(|backend| backend.attachment());
    attachment.filter(|_| vi.is_live(handle)).map(change)
}

fn user(reply: Reply) -> Outcome<Option<u32>> {
    match reply {
        Reply::User(user) => Ok(user),
        _ => Err(ResourceError::ProcessAnswer.into()),
    }
}
