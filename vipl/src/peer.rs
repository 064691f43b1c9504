//! Connections between peers: both ask [VIPL 3.3.6-3.3.8].

use crate::vi::Vi;
use crate::{NetAddress, Result, Timeout, ViAttributes, provider};

/// Connections between peers, where neither is the server: both ask, in any order, and both learn what came of it.
///
/// ```
/// use pmd::config::NicConfig;
/// use std::time::Duration;
/// use vipl::{Nic, Timeout};
///
/// let segment = format!("doc-peer-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { segment, ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let (one, other) = (nic.vi(&ptag).build()?, nic.vi(&ptag).build()?);
///
/// // Both name the host of the other one, and the same discriminator.
/// let (local, meeting) = (nic.local_address(b"me")?, nic.local_address(b"table 4")?);
/// one.connect_peer(&local, &meeting, Timeout::After(Duration::from_secs(10)))?;
/// other.connect_peer(&local, &meeting, Timeout::After(Duration::from_secs(10)))?;
/// let attributes = one.connect_peer_wait()?;
/// assert_eq!(attributes.max_transfer_bytes, 64 * 1024);
/// other.connect_peer_wait()?;
/// # Ok::<(), vipl::VipError>(())
/// ```
impl Vi {
    /// Asks for a connection with a VI that asks for one with this one: it must name this VI's host, and the same
    /// discriminator in its `remote` as this one; `local` only gives this VI its name. Returns at once; the request
    /// waits for its match until `timeout` [VIPL 3.3.6].
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

    /// What came of [`Self::connect_peer`], once: the attributes of the peer's VI. Never waits [VIPL 3.3.7].
    ///
    /// # Errors
    /// [`VipError::NotDone`](crate::VipError::NotDone) while the request waits,
    /// [`VipError::Timeout`](crate::VipError::Timeout) when it found no match in time,
    /// [`VipError::InvalidReliabilityLevel`](crate::VipError::InvalidReliabilityLevel) and
    /// [`VipError::InvalidMtu`](crate::VipError::InvalidMtu) when the attributes of the two VIs do not agree,
    /// [`VipError::NotReachable`](crate::VipError::NotReachable) when there is no way to the host or the NIC failed, by
    /// which a reliable VI goes to [`ViState::Error`](crate::ViState::Error),
    /// [`VipError::InvalidState`](crate::VipError::InvalidState) when there is no request, or its outcome was told.
    pub fn connect_peer_done(&self) -> Result<ViAttributes> {
        provider::connect_peer_done(self.handle())
    }

    /// Waits for what comes of [`Self::connect_peer`] [VIPL 3.3.8].
    ///
    /// # Errors
    /// As [`Self::connect_peer_done`], except that it waits instead of
    /// [`VipError::NotDone`](crate::VipError::NotDone);
    /// [`VipError::InvalidState`](crate::VipError::InvalidState) also when another thread took the outcome or
    /// disconnected the VI meanwhile.
    pub fn connect_peer_wait(&self) -> Result<ViAttributes> {
        provider::connect_peer_wait(self.handle())
    }
}
