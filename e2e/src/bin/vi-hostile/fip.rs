//! Hostile FIP frames.

use crate::Make;
use crate::bytes::{
    FIP_DESCRIPTORS, FIP_LIST_WORDS, FIP_OPCODE, FIP_SUBCODE, FIP_VERSION, LARGEST_BYTES, Rng,
    SOURCE, get, put,
};
use crate::frames::stranger;
use crate::seen::Seen;

/// The kinds by name.
pub(crate) const KINDS: &[(&str, Make)] = &[
    ("malformed_fip", malformed_fip),
    ("unknown_fip", unknown_fip),
    ("wrong_source_fip", wrong_source_fip),
    ("replayed_fip", replayed_fip),
    ("replayed_fip_question", replayed_fip_question),
    ("replayed_fip_request", replayed_fip_request),
    ("replayed_fip_reply", replayed_fip_reply),
    ("made_up_claim", made_up_claim),
];

/// Discovery of switches, keep alive, search for VLANs, and two that mean nothing.
const OTHER_OPERATIONS: [u32; 5] = [1, 3, 4, 6, 0xFFFF];
const ALL_VN2VN: [u8; 6] = [0x01, 0x10, 0x18, 0x01, 0x00, 0x04];
const PROBE_REQUEST: u8 = 1;
const CLAIM_NOTIFICATION: u8 = 3;
/// A descriptor type that every receiver must understand, and none does.
const UNKNOWN_DESCRIPTOR: u8 = 0x3F;

fn malformed_fip(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.fip)?.clone();
    let words = get(&frame, FIP_LIST_WORDS);
    match rng.within(0..6) {
        0 => frame.truncate(rng.within(FIP_VERSION..FIP_DESCRIPTORS + 4)),
        1 => frame[FIP_VERSION] ^= 0x20,
        2 => put(&mut frame, FIP_LIST_WORDS, 0xFFFF - words),
        3 => frame[FIP_DESCRIPTORS + 1] = 0,
        4 => frame[FIP_DESCRIPTORS] = UNKNOWN_DESCRIPTOR,
        // The first descriptor stands there twice.
        _ => {
            let bytes = 4 * usize::from(frame[FIP_DESCRIPTORS + 1]);
            let first = frame[FIP_DESCRIPTORS..FIP_DESCRIPTORS + bytes].to_vec();
            frame.splice(FIP_DESCRIPTORS..FIP_DESCRIPTORS, first);
            put(&mut frame, FIP_LIST_WORDS, words + bytes as u32 / 4);
            // Of a frame that is as long as any, a little padding goes.
            frame.truncate(LARGEST_BYTES);
        }
    }
    Some(frame)
}

fn unknown_fip(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vn2vn)?.clone();
    if rng.next() & 1 == 0 {
        put(&mut frame, FIP_OPCODE, *rng.one(&OTHER_OPERATIONS)?);
    } else {
        frame[FIP_SUBCODE] = rng.within(6..0x100) as u8;
    }
    Some(frame)
}

fn wrong_source_fip(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vn2vn)?.clone();
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    frame[SOURCE].copy_from_slice(&[0x02, 0x66, a, b, c, d]);
    Some(frame)
}

fn replayed_fip(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let others = seen.vn2vn.iter().filter(|frame| !is_question(frame));
    rng.one(&others.collect::<Vec<_>>()).copied().cloned()
}

fn replayed_fip_question(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let questions = seen.vn2vn.iter().filter(|frame| is_question(frame));
    rng.one(&questions.collect::<Vec<_>>()).copied().cloned()
}

/// Some of these frames are answered.
fn is_question(frame: &[u8]) -> bool {
    [PROBE_REQUEST, CLAIM_NOTIFICATION].contains(&frame[FIP_SUBCODE])
}

fn replayed_fip_request(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.one(&seen.fip_requests).cloned()
}

fn replayed_fip_reply(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.one(&seen.fip_replies).cloned()
}

/// A claim as a port would send it that is not there.
fn made_up_claim(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let claims: Vec<&Vec<u8>> = seen
        .vn2vn
        .iter()
        .filter(|frame| frame.starts_with(&ALL_VN2VN) && frame[FIP_SUBCODE] == CLAIM_NOTIFICATION)
        .collect();
    let mut frame = (*rng.one(&claims)?).clone();
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    let mac = [0x02, 0x77, a, b, c, d];
    let id = stranger(seen, rng) as u16;
    let [high, low] = id.to_be_bytes();
    frame[SOURCE].copy_from_slice(&mac);
    let mut at = FIP_DESCRIPTORS;
    while at + 2 <= frame.len() {
        let bytes = 4 * usize::from(frame[at + 1]);
        match frame[at] {
            // MAC address.
            2 => frame[at + 2..at + 8].copy_from_slice(&mac),
            // Node name.
            4 => frame[at + 6..at + 12].copy_from_slice(&mac),
            // VN_Port: MAC address, N_Port_ID, port name.
            11 => {
                frame[at + 2..at + 8].copy_from_slice(&[0x0e, 0xfd, 0, 0, high, low]);
                frame[at + 8..at + 12].copy_from_slice(&[0, 0, high, low]);
                frame[at + 14..at + 20].copy_from_slice(&mac);
            }
            _ => {}
        }
        if bytes == 0 {
            break;
        }
        at += bytes;
    }
    Some(frame)
}
