//! Frames of the login machine.

use fcvi_frame::els::{ElsCommand, LsRjt, MAX_PAYLOAD_BYTES};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl, RX_ID_UNASSIGNED};
use fcvi_frame::{MacAddress, profile};

use super::counters::LoginCounter;

/// The link service descriptor of FIP that carries an FC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FipService {
    /// Descriptor 7: FLOGI and its replies.
    Flogi,
    /// Descriptor 9: LOGO and its replies.
    Logo,
}

/// Kind of frame that carries a link service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// A frame of EtherType 0x8914: between ENode addresses, without SOF, CRC and EOF. A request
    /// has subcode 1, a reply 2; all but LS_RJT have a MAC descriptor with the address of the
    /// sender's VN_Port.
    Fip(FipService),
    /// A frame of EtherType 0x8906.
    Fcoe,
}

/// One link service to send: a sequence of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElsOut {
    /// Kind of frame.
    pub carrier: Carrier,
    /// Destination Ethernet address: an ENode's in FIP, a VN_Port's in FCoE, or that of all
    /// VN_Ports. The source is ours of the same kind.
    pub destination: MacAddress,
    /// The FC header, complete.
    pub fc: FcHeader,
    payload: [u8; MAX_PAYLOAD_BYTES],
    payload_bytes: u8,
}

impl ElsOut {
    /// Returns the data field, a multiple of 4 bytes.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload[..usize::from(self.payload_bytes)]
    }

    /// Reports whether this is LS_RJT.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        ElsCommand::parse(self.payload()) == Ok(ElsCommand::LsRjt)
    }

    pub(crate) fn new(
        carrier: Carrier,
        destination: MacAddress,
        fc: FcHeader,
        payload: &[u8],
    ) -> Self {
        let mut out = Self {
            carrier,
            destination,
            fc,
            payload: [0; MAX_PAYLOAD_BYTES],
            payload_bytes: payload.len() as u8,
        };
        out.payload[..payload.len()].copy_from_slice(payload);
        out
    }
}

/// Returns the header of a request that opens an exchange.
pub(super) fn request_header(s_id: NPortId, d_id: NPortId, ox_id: u16) -> FcHeader {
    FcHeader {
        r_ctl: RCtl::ElsRequest,
        d_id,
        cs_ctl: 0,
        s_id,
        fc_type: FcType::Els,
        f_ctl: profile::F_CTL_REQUEST,
        seq_id: 0,
        df_ctl: 0,
        seq_cnt: 0,
        ox_id,
        rx_id: RX_ID_UNASSIGNED,
        parameter: 0,
    }
}

/// Returns a request in FCoE, to a VN_Port or to all.
pub(super) fn fcoe_request(s_id: NPortId, d_id: NPortId, ox_id: u16, payload: &[u8]) -> ElsOut {
    let destination = if d_id == NPortId::BROADCAST {
        MacAddress::ALL_VN2VN
    } else {
        MacAddress::vn2vn(d_id)
    };
    let header = request_header(s_id, d_id, ox_id);
    ElsOut::new(Carrier::Fcoe, destination, header, payload)
}

/// A received request or reply, with what an answer needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received<'a> {
    pub(super) carrier: Carrier,
    /// Source Ethernet address.
    pub(super) source: MacAddress,
    pub(super) fc: FcHeader,
    pub(super) command: ElsCommand,
    pub(super) payload: &'a [u8],
}

impl Received<'_> {
    /// Checks that a request is carried as requests of its kind are.
    pub(super) fn check_carrier(&self) -> Result<(), LoginCounter> {
        match (self.carrier, self.command) {
            (Carrier::Fip(FipService::Flogi), ElsCommand::Flogi)
            | (Carrier::Fip(FipService::Logo), ElsCommand::Logo) => Ok(()),
            (Carrier::Fip(_), _) | (Carrier::Fcoe, ElsCommand::Flogi) => {
                Err(LoginCounter::DropWrongCarrier)
            }
            (Carrier::Fcoe, ElsCommand::LsAcc | ElsCommand::LsRjt) => {
                Err(LoginCounter::DropBadHeader)
            }
            (Carrier::Fcoe, _) => Ok(()),
        }
    }

    /// Reports whether this is a request that only a logged-in port may send.
    pub(super) fn needs_login(&self) -> bool {
        matches!(
            self.command,
            ElsCommand::Adisc
                | ElsCommand::Prli
                | ElsCommand::Prlo
                | ElsCommand::Rtv
                | ElsCommand::Rrq
        )
    }

    /// Returns the request without its payload, which a deferred answer does not need.
    pub(super) fn deferred(&self) -> Received<'static> {
        Received {
            carrier: self.carrier,
            source: self.source,
            fc: self.fc,
            command: self.command,
            payload: &[],
        }
    }

    /// Returns an answer to it, in the same kind of frame.
    pub(super) fn answer(&self, payload: &[u8]) -> ElsOut {
        let header = FcHeader {
            r_ctl: RCtl::ElsReply,
            d_id: self.fc.s_id,
            s_id: self.fc.d_id,
            f_ctl: profile::F_CTL_FINAL_REPLY,
            rx_id: self.fc.rx_id,
            ..request_header(self.fc.d_id, self.fc.s_id, self.fc.ox_id)
        };
        ElsOut::new(self.carrier, self.source, header, payload)
    }

    pub(super) fn refusal(&self, refusal: LsRjt) -> ElsOut {
        let mut payload = [0; LsRjt::BYTES];
        refusal.emit(&mut payload);
        self.answer(&payload)
    }
}

/// Returns the header of the answer to an ABTS: in the other context of the same exchange.
pub(super) fn abort_answer_header(abts: &FcHeader, r_ctl: RCtl) -> FcHeader {
    let end = FCtl::LAST_SEQUENCE.union(FCtl::END_SEQUENCE);
    let f_ctl = if abts.f_ctl.contains(FCtl::EXCHANGE_RESPONDER) {
        end
    } else {
        end.union(FCtl::EXCHANGE_RESPONDER)
    };
    FcHeader {
        r_ctl,
        d_id: abts.s_id,
        s_id: abts.d_id,
        f_ctl,
        df_ctl: 0,
        parameter: 0,
        ..*abts
    }
}
