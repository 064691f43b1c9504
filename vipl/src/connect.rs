//! The server's side of a connection: a request that was found, and its answer [VIPL 3.3].

use std::fmt;
use std::sync::Arc;

use crate::nic::NicShared;
use crate::vi::Vi;
use crate::{ConnHandle, ConnectIndication, NetAddress, Result, ViAttributes, VipError, provider};

/// A client's request, found by [`Nic::connect_wait`](crate::Nic::connect_wait) and not answered yet.
///
/// Dropped without an answer it is rejected, so that the client does not wait for its timeout.
pub struct ConnectionRequest {
    remote: NetAddress,
    attributes: ViAttributes,
    /// `None` once the request is answered.
    conn: Option<ConnHandle>,
    /// Keeps the NIC open for as long as an answer is owed.
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

    /// The address that the client calls its own.
    pub fn remote(&self) -> &NetAddress {
        &self.remote
    }

    /// The attributes of the client's VI; those of the accepting one must agree in reliability level and transfer size.
    pub fn attributes(&self) -> &ViAttributes {
        &self.attributes
    }

    /// What the client told of itself, up to [`ViChoices::MAX_SECURITY_BYTES`](crate::ViChoices::MAX_SECURITY_BYTES)
    /// bytes [VI/TCP 3.2]: a reason to accept or reject it.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC does not speak VI/TCP, or the request was accepted already;
    /// [`VipError::Timeout`] when the client is gone.
    pub fn security(&self) -> Result<Vec<u8>> {
        provider::request_security(self.conn.ok_or(VipError::InvalidParameter)?)
    }

    /// Returns the user ID of the client's program, or `None` where it is not known: a reason to accept or reject
    /// it. It is known of programs that are attached to the same NIC of the same datapath process, and of this
    /// program itself where it opened the NIC.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the request was accepted already; [`VipError::Timeout`] when the client is
    /// gone.
    pub fn user(&self) -> Result<Option<u32>> {
        provider::request_user(self.conn.ok_or(VipError::InvalidParameter)?)
    }

    /// Connects the client to `vi`, which must be idle [VIPL 3.3.2]. After an error other than
    /// [`VipError::Timeout`] the request is still open: another VI may be tried.
    ///
    /// # Errors
    /// [`VipError::InvalidReliabilityLevel`] and
    /// [`VipError::InvalidMtu`] when the attributes do not agree,
    /// [`VipError::InvalidState`] when the VI is not idle,
    /// [`VipError::Timeout`] when the client is gone,
    /// [`VipError::InvalidParameter`] when the request was accepted already.
    pub fn accept(&mut self, vi: &Vi) -> Result<()> {
        let conn = self.conn.ok_or(VipError::InvalidParameter)?;
        let outcome = provider::connect_accept(conn, vi.handle());
        if matches!(outcome, Ok(()) | Err(VipError::Timeout)) {
            self.conn = None;
        }
        outcome
    }

    /// Tells the client that it is not wanted [VIPL 3.3.3].
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
            log::debug!(
                "a connection request that was not answered could not be rejected: {error}"
            );
        }
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ConnectionRequest")
            .field("remote", &self.remote)
            .field("attributes", &self.attributes)
            .field("answered", &self.conn.is_none())
            .finish()
    }
}
