//! User IDs of the programs that request connections or are connected.

use vi_engine::ConnId;
use vi_types::{CallError, Outcome};

use super::poller_of;
use crate::device::Device;
use crate::lookup::Vi;
use crate::nic_backend::Backend;

/// Returns the user ID of the program that makes a request; `None` if it is unknown.
pub(crate) fn request_user(device: &'static Device, conn: ConnId) -> Outcome<Option<u32>> {
    let mut held = device.lock();
    let poller = held
        .as_mut()
        .and_then(Backend::poller_mut)
        .ok_or(CallError::InvalidParameter)?;
    let requester = poller.engine.requester(conn)?;
    Ok(requester.and_then(|vi| poller.path.user_of(vi)))
}

/// Returns the user ID of the program that a VI is connected to; `None` if it is unknown.
pub(crate) fn peer_user(vi: Vi, handle: u64) -> Outcome<Option<u32>> {
    vi.device.poll();
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let peer = poller.engine.connected_to(vi.index)?;
    Ok(peer.and_then(|vi| poller.path.user_of(vi)))
}
