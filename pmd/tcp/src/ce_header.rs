//! Connection Establishment headers [VI/TCP 2.2.1, 3.2]: built from a VI and its request, and compared with those of
//! the peer.

use vi_types::{CallError, Discriminator, HostAddress, NetAddress, ReliabilityLevel, ViParams};
use vitcp_lite::{Attributes, CeHeader, ExactLevel, Security};

use super::endpoint::Endpoint;

/// The segment that advertised the attributes of the peer's VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advertised {
    /// Connect Request: its MTU is proposed.
    InRequest,
    /// Connect Accept: its MTU is agreed.
    InAccept,
}

/// The discriminators of both sides.
pub(super) struct Discriminators<'a> {
    pub(super) calling: &'a Discriminator,
    pub(super) called: &'a Discriminator,
}

impl Endpoint {
    /// Returns its CE header, for a request or an acceptance. `max_reads`: reads that the peer may have outstanding.
    pub(super) fn ce_header(
        &self,
        names: Discriminators<'_>,
        peer_to_peer: bool,
        max_reads: u16,
    ) -> CeHeader {
        let params = &self.params;
        CeHeader {
            attributes: Attributes {
                reliable: params.level.is_reliable(),
                rdma_write: params.rdma_write,
                rdma_read: params.rdma_read,
                flow_control: self.options.flow_control,
                peer_to_peer,
                level: match params.level {
                    ReliabilityLevel::UnreliableDelivery => ExactLevel::Unspecified,
                    ReliabilityLevel::ReliableDelivery => ExactLevel::Delivery,
                    ReliabilityLevel::ReliableReception => ExactLevel::Reception,
                },
            },
            mtu_bytes: params.max_transfer_bytes,
            calling: to_wire(names.calling),
            called: to_wire(names.called),
            read_window: match params.rdma_read {
                true => max_reads,
                false => 0,
            },
            // Its length was checked.
            security: Security::new(&self.options.security).unwrap_or_default(),
        }
    }

    /// Compares its attributes with those of its peer (VIPL 3.3.2, VI/TCP 3.2).
    ///
    /// # Errors
    /// `ReliabilityLevel`, `MaxTransferSize`: they conflict.
    pub(super) fn compare(
        &self,
        theirs: &CeHeader,
        advertised: Advertised,
    ) -> Result<(), CallError> {
        let params = &self.params;
        if attributes_of(theirs, params.level).level != params.level {
            return Err(CallError::ReliabilityLevel);
        }
        let ours = params.max_transfer_bytes;
        let fits = match advertised {
            // The minimum of both becomes the agreed size.
            Advertised::InRequest => self.options.negotiate_mtu || theirs.mtu_bytes == ours,
            Advertised::InAccept if self.options.negotiate_mtu => theirs.mtu_bytes <= ours,
            Advertised::InAccept => theirs.mtu_bytes == ours,
        };
        if fits {
            Ok(())
        } else {
            Err(CallError::MaxTransferSize)
        }
    }
}

/// Converts a discriminator for a CE header. Longer ones were refused before.
fn to_wire(discriminator: &Discriminator) -> vitcp_lite::Discriminator {
    vitcp_lite::Discriminator::new(discriminator.as_bytes()).unwrap_or_default()
}

/// Converts a discriminator of a CE header.
pub(super) fn from_wire(discriminator: &vitcp_lite::Discriminator) -> Discriminator {
    Discriminator::new(discriminator.as_bytes()).unwrap_or_default()
}

/// Converts the attributes of a CE header to those of VIPL; an unspecified reliable level becomes `level`.
pub(super) fn attributes_of(ce: &CeHeader, level: ReliabilityLevel) -> ViParams {
    let level = match (ce.attributes.reliable, ce.attributes.level) {
        (false, _) => ReliabilityLevel::UnreliableDelivery,
        (true, ExactLevel::Delivery) => ReliabilityLevel::ReliableDelivery,
        (true, ExactLevel::Reception) => ReliabilityLevel::ReliableReception,
        (true, ExactLevel::Unspecified | ExactLevel::Unknown) => match level {
            ReliabilityLevel::ReliableReception => ReliabilityLevel::ReliableReception,
            ReliabilityLevel::UnreliableDelivery | ReliabilityLevel::ReliableDelivery => {
                ReliabilityLevel::ReliableDelivery
            }
        },
    };
    ViParams {
        level,
        rdma_write: ce.attributes.rdma_write,
        rdma_read: ce.attributes.rdma_read,
        max_transfer_bytes: ce.mtu_bytes,
    }
}

/// Builds the network address of a remote VI.
pub(super) fn net_address(host: [u8; 16], discriminator: Discriminator) -> NetAddress {
    NetAddress {
        host: HostAddress(host),
        discriminator,
    }
}
