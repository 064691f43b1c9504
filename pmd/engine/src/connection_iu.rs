//! The frames of connection IUs: emitted, and checked as far as that needs no state. Each of these
//! IUs is a single-frame sequence.

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::frame::{FrameHeader, FrameView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;

use crate::counters::Counter;

use crate::engine_io::{EngineIo, Transmit};
use crate::exchange::Exchange;
use crate::n_port::NPort;

/// Retry interval of an IU for which the port or the OX_ID pool had no room.
pub(crate) const NO_ROOM_RETRY_NS: u64 = 1_000_000;

/// Identifiers of a single-frame sequence within an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    pub(crate) ox_id: u16,
    pub(crate) rx_id: u16,
    pub(crate) seq_id: u8,
    pub(crate) seq_cnt: u16,
}

impl Sequence {
    /// Returns the first sequence of an exchange of this port.
    pub(crate) fn first_of(exchange: Exchange) -> Self {
        Self {
            ox_id: exchange.ox_id,
            rx_id: RX_ID_UNASSIGNED,
            seq_id: exchange.seq_id,
            seq_cnt: exchange.seq_cnt,
        }
    }

    /// Returns the sequence that replies to this frame.
    pub(crate) fn reply_to(fc: &FcHeader) -> Self {
        let rx_id = match fc.rx_id {
            RX_ID_UNASSIGNED => fc.ox_id,
            assigned => assigned,
        };
        Self {
            ox_id: fc.ox_id,
            rx_id,
            seq_id: fc.seq_id.wrapping_add(1),
            seq_cnt: fc.seq_cnt.wrapping_add(1),
        }
    }

    /// Returns the next sequence of the same side of the exchange.
    pub(crate) fn next_sequence(self) -> Self {
        Self {
            seq_id: self.seq_id.wrapping_add(1),
            seq_cnt: self.next_seq_cnt(),
            ..self
        }
    }

    /// Returns the SEQ_CNT that follows.
    pub(crate) fn next_seq_cnt(self) -> u16 {
        self.seq_cnt.wrapping_add(1)
    }
}

/// Contents of a connection IU to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionIu {
    pub(crate) to: NPortId,
    pub(crate) at: Sequence,
    pub(crate) opcode: Opcode,
    pub(crate) f_ctl: FCtl,
    pub(crate) handle: u32,
    pub(crate) flags: u8,
    pub(crate) msg_id: u32,
    pub(crate) parameter: u32,
    /// N_Port_Name of the sender, in a peer-to-peer RQST; else 0.
    pub(crate) port_name: u64,
    pub(crate) connection_id: u32,
}

impl NPort {
    /// Sends a connection IU. Returns false if the port had no room: the timer of the procedure
    /// retries.
    pub(crate) fn send_connection_iu<I: EngineIo>(
        &mut self,
        iu: &ConnectionIu,
        payload: &[u8],
        io: &mut I,
    ) -> bool {
        let header = FrameHeader {
            dst: MacAddress::vn2vn(iu.to),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: iu.opcode.r_ctl(),
                d_id: iu.to,
                cs_ctl: profile::CS_CTL,
                s_id: self.config.n_port_id,
                fc_type: FcType::Vi,
                f_ctl: iu.f_ctl,
                seq_id: iu.at.seq_id,
                df_ctl: profile::df_ctl(iu.opcode.header_bytes()),
                seq_cnt: iu.at.seq_cnt,
                ox_id: iu.at.ox_id,
                rx_id: iu.at.rx_id,
                parameter: 0,
            },
            device: Some(DeviceHeader {
                handle: iu.handle,
                opcode: iu.opcode,
                flags: iu.flags,
                msg_id: iu.msg_id,
                parameter: iu.parameter,
                rmt_va: iu.port_name,
                rmt_va_handle: 0,
                tot_len: iu.connection_id,
            }),
        };
        let sent = io.transmit_control(&header, payload) == Transmit::Sent;
        if !sent {
            self.counters.count(Counter::ControlNoRoom);
        }
        sent
    }
}

/// Reports whether this is a whole sequence in one frame, from the side of the exchange that sends
/// this IU.
pub(crate) fn is_whole_iu(frame: &FrameView<'_>, opcode: Opcode) -> bool {
    let from_responder = match opcode {
        Opcode::SendRequest
        | Opcode::WriteRequest
        | Opcode::ReadRequest
        | Opcode::RendezvousRequest
        | Opcode::ConnectRequest
        | Opcode::ConnectResponse2
        | Opcode::DisconnectRequest => false,
        Opcode::SendResponse
        | Opcode::WriteResponse
        | Opcode::ReadResponse
        | Opcode::ConnectResponse1
        | Opcode::ConnectResponse3
        | Opcode::DisconnectResponse => true,
    };
    let f_ctl = frame.fc.f_ctl;
    frame.sof == Sof::I3
        && frame.eof == Eof::T
        && f_ctl.contains(FCtl::END_SEQUENCE)
        && f_ctl.contains(FCtl::EXCHANGE_RESPONDER) == from_responder
}
