//! Peer-to-peer connections, requested by both peers [VIPL 3.3.6-3.3.8].

use crate::vi::Vi;
use crate::{NetAddress, Result, Timeout, ViAttributes, provider};

/// Peer-to-peer connections: both VIs make a request, in any order, and both obtain the result.
///
/// ```
/// use pmd::config::{Network, NicConfig};
/// use std::time::Duration;
/// use vipl::{Nic, Timeout};
///
/// let segment = format!("doc-peer-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { network: Network::segment(segment), ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let (first, second) = (nic.vi(&ptag).build()?, nic.vi(&ptag).build()?);
///
/// // Each request has the host of the other VI, and both have the same discriminator.
/// let (local, remote) = (nic.local_address(b"name")?, nic.local_address(b"pair 4")?);
/// first.connect_peer(&local, &remote, Timeout::After(Duration::from_secs(10)))?;
/// second.connect_peer(&local, &remote, Timeout::After(Duration::from_secs(10)))?;
/// let attributes = first.connect_peer_wait()?;
/// assert_eq!(attributes.max_transfer_bytes, 64 * 1024);
/// second.connect_peer_wait()?;
/// # Ok::<(), vipl::VipError>(())
/// ```
impl Vi {
    /// Requests a peer-to-peer connection and returns immediately [VIPL 3.3.6]. The peer's matching request has this
    /// VI's host and the same discriminator in its `remote`; `local` only names this VI. The request is pending until
    /// it matches or `timeout` expires.
    ///
    /// # Errors
    /// [`VipError::InvalidState`](crate::VipError::InvalidState) when the VI is not idle,
    /// [`VipError::InvalidParameter`](crate::VipError::InvalidParameter) for a zero timeout or a `local` of another
    /// host.
    pub fn connect_peer(
        &self,
        local: &NetAddress,
        remote: &NetAddress,
        timeout: Timeout,
    ) -> Result<()> {
        provider::connect_peer_request(self.handle(), local, remote, timeout)
    }

    /// Returns the result of [`Self::connect_peer`], once: the attributes of the peer's VI. Never waits [VIPL 3.3.7].
    ///
    /// # Errors
    /// [`VipError::NotDone`](crate::VipError::NotDone) while the request is pending,
    /// [`VipError::Timeout`](crate::VipError::Timeout) when no match arrived within the timeout,
    /// [`VipError::InvalidReliabilityLevel`](crate::VipError::InvalidReliabilityLevel) and
    /// [`VipError::InvalidMtu`](crate::VipError::InvalidMtu) when the attributes of the two VIs differ,
    /// [`VipError::NotReachable`](crate::VipError::NotReachable) when there is no route to the host or the NIC failed;
    /// a reliable VI is in [`ViState::Error`](crate::ViState::Error) then,
    /// [`VipError::InvalidState`](crate::VipError::InvalidState) when there is no request, or its result was returned
    /// already.
    pub fn connect_peer_done(&self) -> Result<ViAttributes> {
        provider::connect_peer_done(self.handle())
    }

    /// Waits for the result of [`Self::connect_peer`] and returns it [VIPL 3.3.8].
    ///
    /// # Errors
    /// As [`Self::connect_peer_done`], except that it waits instead of
    /// [`VipError::NotDone`](crate::VipError::NotDone);
    /// [`VipError::InvalidState`](crate::VipError::InvalidState) also when another thread took the result or
    /// disconnected the VI meanwhile.
    pub fn connect_peer_wait(&self) -> Result<ViAttributes> {
        provider::connect_peer_wait(self.handle())
    }
}
