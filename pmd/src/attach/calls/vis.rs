//! Control calls of an attached NIC on VIs.

use std::time::{Duration, Instant};

use vi_core::notify_slot::join_ended;
use vi_types::{CallError, Outcome, QueueKind, ResourceError, ViAttributes, ViInfo, ViState};

use super::{
    AttachedCalls, call, call_done, call_done_unless_lost, is_lost, remote_nic, remote_tag,
    remote_vi, set_replied_state, take_completions,
};
use crate::attach::message::{Reply, Request};
use crate::control::attributes;
use crate::control_calls::ViCalls;
use crate::device::Device;
use crate::lookup::Vi;

/// How long a post on a VI that is not connected polls for its flushed descriptor before it queries the process.
const FLUSH_POLL: Duration = Duration::from_millis(20);

impl ViCalls for AttachedCalls {
    /// Creates the VI in the process, and its queues in this program.
    fn create_vi(
        &self,
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

    fn destroy_vi(&self, vi: Vi, handle: u64) -> Outcome<()> {
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

    fn query_vi(&self, vi: Vi, handle: u64) -> Outcome<ViInfo> {
        // Read before the state: descriptors that complete after a state was read must not appear beside it.
        let (send_queue_empty, recv_queue_empty) = (vi.send.is_empty(), vi.recv.is_empty());
        Ok(ViInfo {
            state: known_state(vi, handle)?,
            attributes: vi.settings(),
            send_queue_empty,
            recv_queue_empty,
        })
    }

    fn set_vi(&self, vi: Vi, handle: u64, settings: &ViAttributes) -> Outcome<()> {
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

    /// Submits what was posted to the process, which does not see it before.
    fn posted(&self, vi: Vi, handle: u64, queue: QueueKind) {
        match queue {
            QueueKind::Send => vi.device.kick(&vi),
            // Before this call returns: the caller may then have the peer send a message.
            QueueKind::Receive => vi.device.submit(&vi),
        }
        let state = vi.state();
        let is_flushed = match queue {
            QueueKind::Send => state != ViState::Connected,
            QueueKind::Receive => state == ViState::Error,
        };
        if is_flushed {
            await_flush(vi, handle, queue);
        }
    }
}

/// Makes a retired VI usable again; false if its NIC handle was closed meanwhile, which did not destroy it.
fn resume(vi: Vi, handle: u64) -> bool {
    let mut held = vi.device.lock();
    let attachment = held.as_mut().and_then(|backend| backend.attachment());
    let exists = attachment.is_some_and(|a| a.handle_at(vi.index) == Some(handle))
        && vi.device.nic_handles.is_open(vi.nic_handle());
    if exists {
        vi.resume(handle);
    }
    exists
}

/// Destroys the local part of a VI that the process has destroyed, unless another VI has its index by now: then the
/// thread that created that VI has done so.
pub(super) fn remove_local(vi: Vi, handle: u64) {
    let device = vi.device;
    let mut ended = Vec::new();
    if let Some(backend) = device.lock().as_mut() {
        let attachment = backend.attachment();
        if attachment.is_some_and(|a| a.handle_at(vi.index) == Some(handle)) {
            crate::control::detach(vi, backend, &mut ended);
        }
    }
    device.shared.wake_all_waiters();
    join_ended(ended);
}

pub(super) fn query_state(vi: Vi, handle: u64) -> Outcome<ViState> {
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

/// Waits until a descriptor that was just posted on a VI that is not connected is flushed (VIPL 2.4, 3.3.5), however
/// long the poller of the process is delayed. Returns earlier if the process has the VI in a state that processes it.
fn await_flush(vi: Vi, handle: u64, queue: QueueKind) {
    let posted = vi.queue(queue).posted();
    let is_flushed = || vi.queue(queue).is_complete_to(posted) || !vi.is_live(handle);
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
        Ok(ViState::Idle | ViState::ConnectPending) if queue == QueueKind::Receive => return,
        // Flushed by the process, or by this library if the call failed because the process ended.
        Ok(_) | Err(_) => {}
    }
    while !is_flushed() {
        take_completions(vi.device);
        std::thread::yield_now();
    }
}
