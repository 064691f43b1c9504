//! Peer-to-peer connections.

use pmd::nic;

use super::{failed, remote_attributes};
use crate::types::{NetAddress, Result, Timeout, ViAttributes, ViHandle, VipError};

/// Asks for a connection with a VI that asks for one with us (VIPL 3.3.6), and returns at
/// once. The two requests match if each names the other's host and both name the same
/// discriminator in `remote`; `local` gives the VI its name. A request waits for its match
/// until its timeout; [`connect_peer_done`] and [`connect_peer_wait`] tell what came of it.
///
/// # Errors
/// `InvalidState` if the VI is not Idle, `InvalidParameter` for a timeout of zero or a
/// `local` of another host.
pub fn connect_peer_request(
    vi: ViHandle,
    local: &NetAddress,
    remote: &NetAddress,
    timeout: Timeout,
) -> Result<()> {
    let vi = vi.into_raw();
    let asked = nic::connect_peer_request(vi, local, remote, timeout.limit());
    asked.map_err(|error| failed("VipConnectPeerRequest", vi, error))
}

/// The outcome of the VI's peer request: the attributes of the other end, once; never waits
/// for it (VIPL 3.3.7).
///
/// # Errors
/// `NotDone` while it is in progress, `InvalidState` if there is none whose outcome was not
/// told yet. Of the request: `Timeout`, `InvalidReliabilityLevel` and `InvalidMtu` if the two
/// VIs differ: the VI is Idle then; `NotReachable` if there is no way to the host: a reliable VI
/// is in Error then.
pub fn connect_peer_done(vi: ViHandle) -> Result<ViAttributes> {
    let vi = vi.into_raw();
    nic::connect_peer_done(vi)
        .map_err(|error| failed("VipConnectPeerDone", vi, error))?
        .map(|attributes| remote_attributes(&attributes))
        .ok_or(VipError::NotDone)
}

/// As [`connect_peer_done`], but waits for the outcome (VIPL 3.3.8); the timeout is the
/// request's.
///
/// # Errors
/// As [`connect_peer_done`], without `NotDone`. `InvalidState` also if another thread took
/// the outcome, disconnected the VI or made a new request meanwhile.
pub fn connect_peer_wait(vi: ViHandle) -> Result<ViAttributes> {
    let vi = vi.into_raw();
    let attributes = nic::connect_peer_wait(vi);
    let attributes = attributes.map_err(|error| failed("VipConnectPeerWait", vi, error))?;
    Ok(remote_attributes(&attributes))
}
