//! Calls that return the network view of a NIC, or wait for a change of it.

use std::time::Duration;

use vi_core::waiters::Event;
use vi_types::{CallError, Outcome};

use super::nic;
use crate::network_view::NetworkView;
use crate::poller::PollState;
use crate::progress::wait;
use crate::transport::Transport;

fn view_of(transport: &dyn Transport, state: &mut PollState) -> NetworkView {
    transport.network_view(state.clock.now_ns(), state.failure)
}

/// Returns the port of a NIC and the other ports that it sees: by FIP VN2VN if the NIC uses discovery, otherwise
/// those that are configured, or on the same segment of shared memory.
///
/// # Errors
/// [`CallError::InvalidParameter`] if the handle is not that of an open NIC.
pub fn network_view(handle: u64) -> Outcome<NetworkView> {
    let device = nic(handle)?;
    let mut held = device.lock();
    let backend = held.as_mut().ok_or(CallError::InvalidParameter)?;
    device.poll_thread.wake_if_armed(backend);
    // Includes the latest changes.
    backend.poll_thoroughly(&device.shared.doorbells);
    device.wake_waiters(backend);
    let (transport, state) = backend.local_mut().ok_or(CallError::InvalidParameter)?;
    Ok(view_of(transport, state))
}

/// Waits until the network view differs from `known`, and returns the new one; `None` after
/// the timeout `limit`.
///
/// # Errors
/// [`CallError::InvalidParameter`] if the handle is not that of an open NIC, or the NIC is
/// closed meanwhile.
pub fn await_network_change(
    handle: u64,
    known: &NetworkView,
    limit: Option<Duration>,
) -> Outcome<Option<NetworkView>> {
    let device = nic(handle)?;
    let poll = || {
        if let Err(error) = nic(handle) {
            return Some(Err(error));
        }
        let mut held = device.lock();
        let Some((transport, state)) = held.as_mut().and_then(|backend| backend.local_mut()) else {
            return Some(Err(CallError::InvalidParameter));
        };
        let now = view_of(transport, state);
        (!now.is_same(known)).then_some(Ok(now))
    };
    // Every change on a segment or in discovery is reported as this event.
    match wait(device, Event::CONTROL, limit, poll) {
        Ok(found) => found.map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
