//! Peer-to-peer connections.

use pmd::nic;

use super::{failed, remote_attributes};
use crate::types::{NetAddress, Result, Timeout, ViAttributes, ViHandle, VipError};

/// Requests a peer-to-peer connection (VIPL 3.3.6) and returns immediately. Two requests match
/// if `remote` of each has the other's host and both have the same discriminator; `local` only
/// names the VI. A request is pending until it matches or its timeout expires;
/// [`connect_peer_done`] and [`connect_peer_wait`] return the result.
///
/// # Errors
/// `InvalidState` if the VI is not Idle, `InvalidParameter` for a timeout of zero or a
/// `local` with another host address.
pub fn connect_peer_request(
    vi: ViHandle,
    local: &NetAddress,
    remote: &NetAddress,
    timeout: Timeout,
) -> Result<()> {
    let vi = vi.into_raw();
    let requested = nic::connect_peer_request(vi, local, remote, timeout.limit());
    requested.map_err(|error| failed("VipConnectPeerRequest", vi, error))
}

/// Returns the result of the VI's peer request, once: the attributes of the peer's VI. Never
/// waits (VIPL 3.3.7).
///
/// # Errors
/// `NotDone` while the request is pending, `InvalidState` if there is no request or its result
/// was returned already. Of the request: `Timeout`, and `InvalidReliabilityLevel` or `InvalidMtu`
/// if the two VIs differ: the VI is Idle then; `NotReachable` if there is no route to the host: a
/// reliable VI is in Error then.
pub fn connect_peer_done(vi: ViHandle) -> Result<ViAttributes> {
    let vi = vi.into_raw();
    nic::connect_peer_done(vi)
        .map_err(|error| failed("VipConnectPeerDone", vi, error))?
        .map(|attributes| remote_attributes(&attributes))
        .ok_or(VipError::NotDone)
}

/// As [`connect_peer_done`], but waits for the result (VIPL 3.3.8); the timeout is that of the
/// request.
///
/// # Errors
/// As [`connect_peer_done`], without `NotDone`. `InvalidState` also if another thread took
/// the result, disconnected the VI or made a new request meanwhile.
pub fn connect_peer_wait(vi: ViHandle) -> Result<ViAttributes> {
    let vi = vi.into_raw();
    let attributes = nic::connect_peer_wait(vi);
    let attributes = attributes.map_err(|error| failed("VipConnectPeerWait", vi, error))?;
    Ok(remote_attributes(&attributes))
}
