//! A connection: its identifiers on both sides, and why it ends.

use fcvi_frame::connect::Attributes;
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::fcoe::MIN_DATA_FIELD_BYTES;
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{CallError, NetAddress, ReliabilityLevel, ViParams};

use crate::config::EngineConfig;
use crate::connection_iu::{ConnectionIu, Sequence};
use crate::pending_disconnects::DisconnectInfo;

/// A connection request of the consumer.
#[derive(Clone, Debug)]
pub struct ConnectCommand<'a> {
    /// Local address of the connection; its host part is our address.
    pub local: NetAddress,
    /// Remote host and discriminator.
    pub remote: NetAddress,
    /// The known ports of that host.
    pub targets: &'a [NPortId],
    /// Timeout in nanoseconds; `None`: no timeout.
    pub timeout_ns: Option<u64>,
}

impl ConnectCommand<'_> {
    /// Returns the time at which the request times out.
    pub(crate) fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        self.timeout_ns.map(|t| now_ns.saturating_add(t))
    }
}

/// The connection breaks for this reason, which the peer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Break(pub(crate) MessageReason);

/// The remote VI of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteVi {
    /// Its attributes.
    pub attributes: ViParams,
    /// Its N_Port.
    pub n_port_id: NPortId,
}

/// Returns the attributes of a remote VI that do not depend on the transport.
pub(crate) fn vi_params(attributes: &Attributes) -> ViParams {
    ViParams {
        level: attributes.reliability,
        max_transfer_bytes: attributes.max_transfer_bytes,
        rdma_write: attributes.rdma_write,
        rdma_read: attributes.rdma_read,
    }
}

/// A connection that this side ended. The peer may not know it yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousConnection {
    /// Our handle.
    pub(crate) handle: u32,
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// What was placed of the peer's messages, as in [`DisconnectInfo`].
    pub(crate) placed: Option<u32>,
}

/// A connection: its identifiers on both sides, and the attributes of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// Sequence of the next IU on the exchange of the connect procedure: RESP1 or RESP2.
    pub(crate) at: Sequence,
    /// This side sent the request.
    pub(crate) originator: bool,
    pub(crate) mode: ConnectMode,
    /// The connect exchange is ours and still open.
    pub(crate) exchange_open: bool,
    pub(crate) remote: Attributes,
}

impl Connection {
    /// Returns the N_Port_ID and the handle of the peer.
    pub(crate) fn address(&self) -> (NPortId, u32) {
        (self.peer, self.peer_handle)
    }

    /// Returns the peer's VI.
    pub(crate) fn remote_vi(&self) -> RemoteVi {
        RemoteVi {
            attributes: vi_params(&self.remote),
            n_port_id: self.peer,
        }
    }

    /// Returns an IU of the connect exchange.
    pub(crate) fn connect_iu(&self, opcode: Opcode, f_ctl: FCtl) -> ConnectionIu {
        ConnectionIu {
            to: self.peer,
            at: self.at,
            opcode,
            f_ctl,
            handle: self.peer_handle,
            flags: self.mode.to_flags(),
            msg_id: 0,
            parameter: 0,
            port_name: 0,
            connection_id: self.connection_id,
        }
    }

    /// Returns the largest data field that both sides support, in bytes.
    pub(crate) fn data_field_bytes(&self, config: &EngineConfig) -> u16 {
        let theirs = self.remote.receive_data_field_bytes;
        config.data_field_bytes.min(theirs)
    }

    /// Returns the DISCONNECT_RQST of this connection.
    pub(crate) fn disconnect_info(&self, reason: MessageReason, error: bool) -> DisconnectInfo {
        DisconnectInfo {
            peer: self.peer,
            peer_handle: self.peer_handle,
            connection_id: self.connection_id,
            reason,
            error,
            placed: None,
        }
    }
}

impl EngineConfig {
    /// Returns the attributes of a VI as connect IUs carry them.
    pub(crate) fn attributes_of(&self, params: &ViParams) -> Attributes {
        Attributes {
            reliability: params.level,
            rdma_write: params.rdma_write,
            rdma_read: params.rdma_read,
            in_order: true,
            recovery: self.offers_recovery(params.level),
            max_transfer_bytes: params.max_transfer_bytes,
            qos_class: profile::QOS_CLASS_3,
            cs_ctl: profile::CS_CTL,
            max_reads: if params.rdma_read {
                self.reads_accepted()
            } else {
                0
            },
            receive_data_field_bytes: self.data_field_bytes,
        }
    }

    /// Reports whether recovery is offered at this level [FCVI P-16].
    pub(crate) fn offers_recovery(&self, level: ReliabilityLevel) -> bool {
        self.recovery.is_some() && level.is_reliable()
    }
}

/// Checks the attributes that must match (VIPL 3.3.2), and that the longest message fits into
/// frames of the size that both sides support.
pub(crate) fn check_attributes(ours: &Attributes, theirs: &Attributes) -> Result<(), CallError> {
    let data_field_bytes = ours
        .receive_data_field_bytes
        .min(theirs.receive_data_field_bytes);
    if ours.reliability != theirs.reliability {
        return Err(CallError::ReliabilityLevel);
    }
    if ours.max_transfer_bytes != theirs.max_transfer_bytes
        || ours.max_transfer_bytes > max_message_bytes(data_field_bytes)
    {
        return Err(CallError::MaxTransferSize);
    }
    if ours.qos_class != theirs.qos_class || ours.cs_ctl != theirs.cs_ctl {
        return Err(CallError::Qos);
    }
    Ok(())
}

/// Reports whether a connection with a VI of this handle and these attributes is possible.
pub(crate) fn is_valid_peer(handle: u32, attributes: &Attributes) -> bool {
    handle != profile::HANDLE_NONE
        && usize::from(attributes.receive_data_field_bytes) >= MIN_DATA_FIELD_BYTES
}

/// Returns the length in bytes of the longest message in frames of this size: no two frames of a
/// sequence have the same SEQ_CNT [FC-FS].
pub fn max_message_bytes(data_field_bytes: u16) -> u32 {
    const FRAMES: u32 = 1 << u16::BITS;
    payload_room(data_field_bytes, Opcode::WriteRequest).saturating_mul(FRAMES)
}

/// Returns the payload bytes of each frame of a message, unless it is the last one.
pub(crate) fn payload_room(data_field_bytes: u16, opcode: Opcode) -> u32 {
    (u32::from(data_field_bytes) & !3).saturating_sub(opcode.header_bytes() as u32)
}
