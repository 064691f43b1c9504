//! Captured frames, by kind, to the two ports that exchange most messages.

use std::collections::BTreeMap;

use crate::bytes::{
    D_ID, ETHERTYPE, FC_TYPE, FCOE, FIP, FIP_OPCODE, OPCODE, R_CTL, S_ID, SHORTEST_BYTES, TYPE_ELS,
    TYPE_VI, get,
};
use e2e::failure::Failure;

const SEND_REQUEST: u8 = 0x01;
/// An acknowledgement at Reliable Delivery.
const SEND_RESPONSE: u8 = 0x02;
const CONNECT_REQUEST: u8 = 0x11;
const ELS_REQUEST: u8 = 0x22;
const ELS_REPLY: u8 = 0x23;
const FIP_LINK_SERVICE: u32 = 2;
const FIP_VN2VN: u32 = 5;

/// Frames of a capture by kind. FCoE frames and link service requests are those to the two victims.
pub(crate) struct CapturedFrames {
    /// FC-VI frames.
    pub(crate) vi: Vec<Vec<u8>>,
    /// FC-VI frames with message data.
    pub(crate) messages: Vec<Vec<u8>>,
    /// FC-VI connect requests.
    pub(crate) requests: Vec<Vec<u8>>,
    /// FC-VI acknowledgements without data.
    pub(crate) acknowledgements: Vec<Vec<u8>>,
    /// All other FC-VI frames.
    pub(crate) except_acknowledgements: Vec<Vec<u8>>,
    /// Link service requests in FCoE.
    pub(crate) els_requests: Vec<Vec<u8>>,
    /// Link service replies in FCoE.
    pub(crate) els_replies: Vec<Vec<u8>>,
    /// All FIP frames.
    pub(crate) fip: Vec<Vec<u8>>,
    /// VN2VN frames.
    pub(crate) vn2vn: Vec<Vec<u8>>,
    /// Link service requests in FIP.
    pub(crate) fip_requests: Vec<Vec<u8>>,
    /// Link service replies in FIP.
    pub(crate) fip_replies: Vec<Vec<u8>>,
    /// N_Port_IDs in use.
    pub(crate) used_ids: Vec<u32>,
}

impl CapturedFrames {
    /// Parses a pcap file.
    pub(crate) fn read(file: &[u8]) -> Result<Self, Failure> {
        let all: Vec<&[u8]> = e2e::capture::frames(file).collect();
        let is_fc = |frame: &&&[u8]| {
            frame.get(ETHERTYPE) == Some(FCOE.as_slice()) && frame.len() >= SHORTEST_BYTES
        };
        let is_vi = |frame: &&&[u8]| is_fc(frame) && frame[FC_TYPE] == TYPE_VI;
        let is_message = |frame: &&&[u8]| is_vi(frame) && frame[OPCODE] == SEND_REQUEST;

        let mut traffic: BTreeMap<u32, usize> = BTreeMap::new();
        for frame in all.iter().filter(is_message) {
            *traffic.entry(get(frame, D_ID)).or_default() += 1;
        }
        let mut traffic: Vec<(u32, usize)> = traffic.into_iter().collect();
        traffic.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let [(one, _), (other, _), ..] = traffic.as_slice() else {
            return Err("the capture has no messages between two ports".into());
        };
        let victims = [*one, *other];

        let is_fip =
            |frame: &&&[u8]| frame.get(ETHERTYPE) == Some(FIP.as_slice()) && frame.len() > 24;
        let to_victims = |frame: &&&[u8]| victims.contains(&get(frame, D_ID));
        let is_ack = |frame: &&&[u8]| is_vi(frame) && frame[OPCODE] == SEND_RESPONSE;
        let is_els = |frame: &&&[u8], r_ctl| {
            is_fc(frame) && frame[FC_TYPE] == TYPE_ELS && frame[R_CTL] == r_ctl
        };
        // The FC header of a link service has the same offset in FIP and FCoE.
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
        let mut used_ids: Vec<u32> = all
            .iter()
            .filter(is_fc)
            .map(|frame| get(frame, S_ID))
            .collect();
        used_ids.sort_unstable();
        used_ids.dedup();
        Ok(Self {
            vi: owned(&|f| is_vi(f) && to_victims(f)),
            messages: owned(&|f| is_message(f) && to_victims(f)),
            requests: owned(&|f| is_vi(f) && to_victims(f) && f[OPCODE] == CONNECT_REQUEST),
            acknowledgements: owned(&|f| is_ack(f) && to_victims(f)),
            except_acknowledgements: owned(&|f| is_vi(f) && to_victims(f) && !is_ack(f)),
            els_requests: owned(&|f| is_els(f, ELS_REQUEST) && to_victims(f)),
            els_replies: owned(&|f| is_els(f, ELS_REPLY) && to_victims(f)),
            fip: owned(&is_fip),
            vn2vn: owned(&|f| is_fip(f) && get(f, FIP_OPCODE) == FIP_VN2VN),
            fip_requests: owned(&|f| is_fip_els(f, ELS_REQUEST) && to_victims(f)),
            fip_replies: owned(&|f| is_fip_els(f, ELS_REPLY)),
            used_ids,
        })
    }
}
