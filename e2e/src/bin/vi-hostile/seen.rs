//! What was seen on the network, and who the two are that talk most.

use std::collections::BTreeMap;

use crate::Failure;
use crate::bytes::{
    D_ID, ETHERTYPE, FC_TYPE, FCOE, FIP, FIP_OPCODE, OPCODE, R_CTL, S_ID, SHORTEST_BYTES, TYPE_ELS,
    TYPE_VI, get,
};

const SEND_REQUEST: u8 = 0x01;
/// At Reliable Delivery, an acknowledgement.
const SEND_RESPONSE: u8 = 0x02;
const CONNECT_REQUEST: u8 = 0x11;
const ELS_REQUEST: u8 = 0x22;
const ELS_REPLY: u8 = 0x23;
const FIP_LINK_SERVICE: u32 = 2;
const FIP_VN2VN: u32 = 5;

/// Frames of the network, those to the two victims by what they are.
pub(crate) struct Seen {
    /// FC-VI frames.
    pub(crate) vi: Vec<Vec<u8>>,
    /// Those of them that carry messages.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Those of them that ask for connections.
    pub(crate) requests: Vec<Vec<u8>>,
    /// Those of them that acknowledge and carry nothing.
    pub(crate) acknowledgements: Vec<Vec<u8>>,
    /// All the others.
    pub(crate) but_acknowledgements: Vec<Vec<u8>>,
    /// Link services in FCoE that ask.
    pub(crate) els_requests: Vec<Vec<u8>>,
    /// Link services in FCoE that answer.
    pub(crate) els_replies: Vec<Vec<u8>>,
    /// FIP frames, to whomever.
    pub(crate) fip: Vec<Vec<u8>>,
    /// Those of them of VN2VN.
    pub(crate) vn2vn: Vec<Vec<u8>>,
    /// Those of them that ask one of the two for a link service.
    pub(crate) fip_requests: Vec<Vec<u8>>,
    /// Those of them that answer one.
    pub(crate) fip_replies: Vec<Vec<u8>>,
    /// The N_Port_IDs that somebody has.
    pub(crate) taken: Vec<u32>,
}

impl Seen {
    /// Takes a capture file apart.
    pub(crate) fn read(file: &[u8]) -> Result<Self, Failure> {
        let all: Vec<&[u8]> = e2e::capture::frames(file).collect();
        let is_fc = |frame: &&&[u8]| {
            frame.get(ETHERTYPE) == Some(FCOE.as_slice()) && frame.len() >= SHORTEST_BYTES
        };
        let is_vi = |frame: &&&[u8]| is_fc(frame) && frame[FC_TYPE] == TYPE_VI;
        let is_message = |frame: &&&[u8]| is_vi(frame) && frame[OPCODE] == SEND_REQUEST;

        let mut talk: BTreeMap<u32, usize> = BTreeMap::new();
        for frame in all.iter().filter(is_message) {
            *talk.entry(get(frame, D_ID)).or_default() += 1;
        }
        let mut talk: Vec<(u32, usize)> = talk.into_iter().collect();
        talk.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let [(one, _), (other, _), ..] = talk.as_slice() else {
            return Err("no two ports talk with each other".into());
        };
        let victims = [*one, *other];

        let is_fip =
            |frame: &&&[u8]| frame.get(ETHERTYPE) == Some(FIP.as_slice()) && frame.len() > 24;
        let to_victims = |frame: &&&[u8]| victims.contains(&get(frame, D_ID));
        let is_ack = |frame: &&&[u8]| is_vi(frame) && frame[OPCODE] == SEND_RESPONSE;
        let is_els = |frame: &&&[u8], r_ctl| {
            is_fc(frame) && frame[FC_TYPE] == TYPE_ELS && frame[R_CTL] == r_ctl
        };
        // The FC header of a link service stands in FIP where it stands in FCoE.
        let is_fip_els = |frame: &&&[u8], r_ctl| {
            is_fip(frame)
                && get(frame, FIP_OPCODE) == FIP_LINK_SERVICE
                && frame.get(R_CTL) == Some(&r_ctl)
        };
        let owned = |keep: &dyn Fn(&&&[u8]) -> bool| -> Vec<Vec<u8>> {
            all.iter()
                .filter(keep)
                .map(|frame| frame.to_vec())
                .collect()
        };
        let mut taken: Vec<u32> = all
            .iter()
            .filter(is_fc)
            .map(|frame| get(frame, S_ID))
            .collect();
        taken.sort_unstable();
        taken.dedup();
        Ok(Self {
            vi: owned(&|f| is_vi(f) && to_victims(f)),
            messages: owned(&|f| is_message(f) && to_victims(f)),
            requests: owned(&|f| is_vi(f) && to_victims(f) && f[OPCODE] == CONNECT_REQUEST),
            acknowledgements: owned(&|f| is_ack(f) && to_victims(f)),
            but_acknowledgements: owned(&|f| is_vi(f) && to_victims(f) && !is_ack(f)),
            els_requests: owned(&|f| is_els(f, ELS_REQUEST) && to_victims(f)),
            els_replies: owned(&|f| is_els(f, ELS_REPLY) && to_victims(f)),
            fip: owned(&is_fip),
            vn2vn: owned(&|f| is_fip(f) && get(f, FIP_OPCODE) == FIP_VN2VN),
            fip_requests: owned(&|f| is_fip_els(f, ELS_REQUEST) && to_victims(f)),
            fip_replies: owned(&|f| is_fip_els(f, ELS_REPLY)),
            taken,
        })
    }
}
