//! Peer-to-peer connections (VIPL 3.3.6-3.3.8): requests, and polling or waiting for their outcome.

use std::time::Duration;

use fcvi_frame::connect::Attributes;
use vi_engine::{ConnectCommand, RemoteVi};
use vi_types::{CallError, NetAddress, Outcome, ResourceError};

use super::{lock_for_connecting, poller_of, targets, timeout_ns};
use crate::call_waiters::Object;
use crate::lookup::Vi;
use crate::progress::wait_for;

/// Adds a request to the peer pool (VIPL 3.3.6).
pub(crate) fn connect_peer_request(
    vi: Vi,
    handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<()> {
    let mut held = lock_for_connecting(vi);
    let poller = poller_of(&mut held, vi, handle)?;
    let now_ns = poller.clock.now_ns();
    // As for a request to a server.
    poller.serve_port_events(now_ns);
    if poller.failure.is_some() {
        return Err(ResourceError::NicFailed.into());
    }
    let targets = targets(vi, poller, remote.host);
    let command = ConnectCommand {
        local: *local,
        remote: *remote,
        targets: &targets,
        timeout_ns: timeout_ns(limit),
    };
    poller
        .engine
        .connect_peer(now_ns, vi.index, &command, &mut poller.path)?;
    poller.path.flush();
    vi.device.shared.notify(poller.path.take_pending_events());
    Ok(())
}

fn attributes(outcome: Result<RemoteVi, CallError>) -> Outcome<Attributes> {
    Ok(outcome?.attributes)
}

/// Takes the outcome of the VI's peer request; `None` while it is in progress (VIPL 3.3.7).
pub(crate) fn connect_peer_done(vi: Vi, handle: u64) -> Outcome<Option<Attributes>> {
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let number = poller.engine.peer_request(vi.index);
    let number = number.ok_or(CallError::InvalidState)?;
    let outcome = poller.engine.take_peer_outcome(vi.index, number);
    outcome.map(attributes).transpose()
}

/// Waits for the outcome of the VI's peer request (VIPL 3.3.8). `InvalidState` if another thread
/// takes the outcome, or withdraws or replaces the request.
pub(crate) fn connect_peer_wait(vi: Vi, handle: u64) -> Outcome<Attributes> {
    let number = {
        let mut held = vi.device.lock();
        let poller = poller_of(&mut held, vi, handle)?;
        let number = poller.engine.peer_request(vi.index);
        number.ok_or(CallError::InvalidState)?
    };
    // The request has its own timeout: this wait ends with it, or with the VI.
    let connection = Object::Connection(vi.index);
    wait_for(vi.device, &[connection], None, |held| {
        match poller_of(held, vi, handle) {
            Ok(poller) => {
                let outcome = poller.engine.take_peer_outcome(vi.index, number)?;
                Some(attributes(outcome))
            }
            Err(closed) => Some(Err(closed)),
        }
    })?
}
