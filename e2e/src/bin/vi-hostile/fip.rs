//! Hostile FIP frames.

use crate::MakeFrame;
use crate::bytes::{
    FIP_DESCRIPTORS, FIP_LIST_WORDS, FIP_OPCODE, FIP_SUBCODE, FIP_VERSION, LARGEST_BYTES, Rng,
    SOURCE, get, put,
};
use crate::captured::CapturedFrames;
use crate::frames::unused_port_id;

/// Kinds of frames by name.
pub(crate) const KINDS: &[(&str, MakeFrame)] = &[
    ("malformed_fip", malformed_fip),
    ("unknown_fip", unknown_fip),
    ("wrong_source_fip", wrong_source_fip),
    ("replayed_fip", replayed_fip),
    ("replayed_fip_query", replayed_fip_query),
    ("replayed_fip_request", replayed_fip_request),
    ("replayed_fip_reply", replayed_fip_reply),
    ("forged_claim", forged_claim),
];

/// Discovery, control, VLAN discovery, and two undefined operations.
const OTHER_OPERATIONS: [u32; 5] = [1, 3, 4, 6, 0xFFFF];
const ALL_VN2VN: [u8; 6] = [0x01, 0x10, 0x18, 0x01, 0x00, 0x04];
const PROBE_REQUEST: u8 = 1;
const CLAIM_NOTIFICATION: u8 = 3;
/// An undefined descriptor type in the range of critical descriptors.
const UNKNOWN_DESCRIPTOR: u8 = 0x3F;

fn malformed_fip(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.fip)?.clone();
    let words = get(&frame, FIP_LIST_WORDS);
    match rng.in_range(0..6) {
        0 => frame.truncate(rng.in_range(FIP_VERSION..FIP_DESCRIPTORS + 4)),
        1 => frame[FIP_VERSION] ^= 0x20,
        2 => put(&mut frame, FIP_LIST_WORDS, 0xFFFF - words),
        3 => frame[FIP_DESCRIPTORS + 1] = 0,
        4 => frame[FIP_DESCRIPTORS] = UNKNOWN_DESCRIPTOR,
        // Duplicates the first descriptor.
        _ => {
            let bytes = 4 * usize::from(frame[FIP_DESCRIPTORS + 1]);
            let first = frame[FIP_DESCRIPTORS..FIP_DESCRIPTORS + bytes].to_vec();
            frame.splice(FIP_DESCRIPTORS..FIP_DESCRIPTORS, first);
            put(&mut frame, FIP_LIST_WORDS, words + bytes as u32 / 4);
            // Padding at the end of a frame of maximum length is cut off.
            frame.truncate(LARGEST_BYTES);
        }
    }
    Some(frame)
}

fn unknown_fip(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vn2vn)?.clone();
    if rng.next() & 1 == 0 {
        put(&mut frame, FIP_OPCODE, *rng.choose(&OTHER_OPERATIONS)?);
    } else {
        frame[FIP_SUBCODE] = rng.in_range(6..0x100) as u8;
    }
    Some(frame)
}

fn wrong_source_fip(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vn2vn)?.clone();
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    frame[SOURCE].copy_from_slice(&[0x02, 0x66, a, b, c, d]);
    Some(frame)
}

fn replayed_fip(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let others = captured.vn2vn.iter().filter(|frame| !is_query(frame));
    rng.choose(&others.collect::<Vec<_>>()).copied().cloned()
}

fn replayed_fip_query(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let queries = captured.vn2vn.iter().filter(|frame| is_query(frame));
    rng.choose(&queries.collect::<Vec<_>>()).copied().cloned()
}

/// Whether a frame may be answered.
fn is_query(frame: &[u8]) -> bool {
    [PROBE_REQUEST, CLAIM_NOTIFICATION].contains(&frame[FIP_SUBCODE])
}

fn replayed_fip_request(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.choose(&captured.fip_requests).cloned()
}

fn replayed_fip_reply(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.choose(&captured.fip_replies).cloned()
}

/// Makes a claim of a port that does not exist.
fn forged_claim(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let claims: Vec<&Vec<u8>> = captured
        .vn2vn
        .iter()
        .filter(|frame| frame.starts_with(&ALL_VN2VN) && frame[FIP_SUBCODE] == CLAIM_NOTIFICATION)
        .collect();
    let mut frame = (*rng.choose(&claims)?).clone();
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    let mac = [0x02, 0x77, a, b, c, d];
    let id = unused_port_id(captured, rng) as u16;
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
