//! Pending connection requests on the server: accept and reject [VIPL 3.3].

use std::fmt;
use std::sync::Arc;

use crate::nic::NicShared;
use crate::vi::Vi;
use crate::{ConnHandle, ConnectIndication, NetAddress, Result, ViAttributes, VipError, provider};

/// A pending connection request of a client, returned by [`Nic::connect_wait`](crate::Nic::connect_wait).
///
/// Dropping it rejects the request, so that the client does not wait for its timeout.
pub struct ConnectionRequest {
    remote: NetAddress,
    attributes: ViAttributes,
    /// `None` once the request is accepted or rejected.
    conn: Option<ConnHandle>,
    /// Keeps the NIC open while the request is pending.
    _nic: Arc<NicShared>,
}

impl ConnectionRequest {
    pub(crate) fn new(nic: Arc<NicShared>, indication: ConnectIndication) -> Self {
        let ConnectIndication {
            remote,
            attributes,
            conn,
        } = indication;
        Self {
            remote,
            attributes,
            conn: Some(conn),
            _nic: nic,
        }
    }

    /// Returns the client's local address.
    pub fn remote(&self) -> &NetAddress {
        &self.remote
    }

    /// Returns the attributes of the client's VI. The accepting VI must have the same reliability level and transfer
    /// size.
    pub fn attributes(&self) -> &ViAttributes {
        &self.attributes
    }

    /// Returns the client's security information [VI/TCP 3.2], at most
    /// [`ConnectionOptions::MAX_SECURITY_BYTES`](crate::ConnectionOptions::MAX_SECURITY_BYTES) bytes. The application
    /// may base its decision to accept or reject on it.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC does not use VI/TCP, or the request was accepted already;
    /// [`VipError::Timeout`] when the client has given up.
    pub fn security(&self) -> Result<Vec<u8>> {
        provider::request_security(self.conn.ok_or(VipError::InvalidParameter)?)
    }

    /// Returns the user ID of the client's program, or `None` if it is not known. The application may base its
    /// decision to accept or reject on it. It is known for programs that are attached to the same NIC of the same
    /// datapath process, and for requests of this program itself if it opened the NIC.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the request was accepted already; [`VipError::Timeout`] when the client
    /// has given up.
    pub fn user(&self) -> Result<Option<u32>> {
        provider::request_user(self.conn.ok_or(VipError::InvalidParameter)?)
    }

    /// Accepts the request with `vi`, which must be idle [VIPL 3.3.2]. After an error other than
    /// [`VipError::Timeout`] the request is still pending and can be accepted with another VI.
    ///
    /// # Errors
    /// [`VipError::InvalidReliabilityLevel`] and
    /// [`VipError::InvalidMtu`] when the attributes of the two VIs differ,
    /// [`VipError::InvalidState`] when the VI is not idle,
    /// [`VipError::Timeout`] when the client has given up,
    /// [`VipError::InvalidParameter`] when the request was accepted already.
    pub fn accept(&mut self, vi: &Vi) -> Result<()> {
        let conn = self.conn.ok_or(VipError::InvalidParameter)?;
        let outcome = provider::connect_accept(conn, vi.handle());
        if matches!(outcome, Ok(()) | Err(VipError::Timeout)) {
            self.conn = None;
        }
        outcome
    }

    /// Rejects the request [VIPL 3.3.3].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the request was accepted already.
    pub fn reject(mut self) -> Result<()> {
        let conn = self.conn.take().ok_or(VipError::InvalidParameter)?;
        provider::connect_reject(conn)
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        if let Err(error) = provider::connect_reject(conn) {
            log::debug!("connection request: reject on drop failed: {error}");
        }
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ConnectionRequest")
            .field("remote", &self.remote)
            .field("attributes", &self.attributes)
            .field("completed", &self.conn.is_none())
            .finish()
    }
}
