//! Hostile FCoE frames, and frames of other protocols.

use crate::MakeFrame;
use crate::bytes::{
    COMMAND, D_ID, ETHERTYPE, FC, FC_TYPE, HANDLE, LARGEST_BYTES, MSG_ID, OPCODE, Rng, S_ID,
    SOURCE, TRAILER_BYTES, get, put, with_crc,
};
use crate::captured::CapturedFrames;

/// Kinds of frames by name.
pub(crate) const KINDS: &[(&str, MakeFrame)] = &[
    ("foreign_protocol", foreign_protocol),
    ("vlan", vlan),
    ("cut_short", cut_short),
    ("flipped_bit", flipped_bit),
    ("wrong_source", wrong_source),
    ("wrong_d_id", wrong_d_id),
    ("unknown_type", unknown_type),
    ("unknown_opcode", unknown_opcode),
    ("guessed_handle", guessed_handle),
    ("unknown_port_message", unknown_port_message),
    ("out_of_window_message", out_of_window_message),
    ("replayed", replayed),
    ("replayed_acknowledgement", replayed_acknowledgement),
    ("unknown_port_request", unknown_port_request),
    ("replayed_els_request", replayed_els_request),
    ("replayed_farp_reply", replayed_farp_reply),
    ("replayed_els_reply", replayed_els_reply),
    ("malformed_els", malformed_els),
    ("unknown_els", unknown_els),
    ("wrong_source_els", wrong_source_els),
    ("unknown_port_els", unknown_port_els),
];

/// EtherTypes: IPv4, ARP, IPv6, the length field of a spanning tree frame, and two without a protocol.
const FOREIGN: [u32; 6] = [0x0800, 0x0806, 0x86DD, 0x0026, 0x88B5, 0xFFFF];
/// The tag of a VLAN without stations.
const VLAN: [u8; 4] = [0x81, 0x00, 0x00, 0x05];
/// The command code of FARP-REPLY, a request without a reply.
const FARP_REPLY: u8 = 0x55;
/// Supported values of TYPE: basic link services, extended link services, FC-VI.
const SERVED_TYPES: [u8; 3] = [0x00, 0x01, 0x58];
/// The lower limit of undefined opcodes and command codes.
const LARGEST: usize = 0x7F;

fn foreign_protocol(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vi)?.clone();
    put(&mut frame, ETHERTYPE, *rng.choose(&FOREIGN)?);
    Some(frame)
}

fn vlan(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    // A frame of maximum length has no space for a tag.
    let short = captured
        .vi
        .iter()
        .filter(|frame| frame.len() < LARGEST_BYTES);
    let mut frame = (*rng.choose(&short.collect::<Vec<_>>())?).clone();
    frame.splice(ETHERTYPE.start..ETHERTYPE.start, VLAN);
    Some(frame)
}

fn cut_short(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vi)?.clone();
    // At least an Ethernet header, which network cards require.
    frame.truncate(rng.in_range(ETHERTYPE.end..frame.len()));
    Some(frame)
}

fn flipped_bit(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vi)?.clone();
    // The bytes that the CRC covers, and the CRC.
    let at = rng.in_range(FC..frame.len() - TRAILER_BYTES + 4);
    frame[at] ^= 1 << rng.in_range(0..8);
    Some(frame)
}

/// Returns an unused MAC address that belongs to no N_Port_ID.
fn unused_address(rng: &mut Rng) -> [u8; 6] {
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    [0x02, 0x66, a, b, c, d]
}

fn wrong_source(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vi)?.clone();
    frame[SOURCE].copy_from_slice(&unused_address(rng));
    Some(frame)
}

fn wrong_d_id(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vi)?.clone();
    let id = unused_port_id(captured, rng);
    put(&mut frame, D_ID, id);
    Some(with_crc(frame))
}

fn unknown_type(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.vi)?.clone();
    while SERVED_TYPES.contains(&frame[FC_TYPE]) {
        frame[FC_TYPE] = rng.next() as u8;
    }
    Some(with_crc(frame))
}

fn unknown_opcode(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.messages)?.clone();
    frame[OPCODE] = rng.in_range(LARGEST..0x100) as u8;
    Some(with_crc(frame))
}

fn guessed_handle(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.messages)?.clone();
    let own = get(&frame, HANDLE);
    // Half of the guesses have the right index of a VI in the low half of the handle.
    let guess = match rng.next() as u32 {
        guess if guess & 1 == 0 => guess,
        guess => guess & 0xFFFF_0000 | own & 0xFFFF,
    };
    put(&mut frame, HANDLE, if guess == own { !own } else { guess });
    Some(with_crc(frame))
}

/// Returns an unused N_Port_ID.
pub(crate) fn unused_port_id(captured: &CapturedFrames, rng: &mut Rng) -> u32 {
    loop {
        let id = rng.in_range(1..0xFFFF) as u32;
        if !captured.used_ids.contains(&id) {
            return id;
        }
    }
}

/// Changes the source of a frame to a port that is not logged in.
fn from_unknown_port(captured: &CapturedFrames, rng: &mut Rng, mut frame: Vec<u8>) -> Vec<u8> {
    let id = unused_port_id(captured, rng);
    put(&mut frame, S_ID, id);
    frame[SOURCE].copy_from_slice(&[0x0e, 0xfd, 0, 0, (id >> 8) as u8, id as u8]);
    with_crc(frame)
}

fn unknown_port_message(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let frame = rng.choose(&captured.messages)?.clone();
    Some(from_unknown_port(captured, rng, frame))
}

fn out_of_window_message(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.messages)?.clone();
    // At a distance of at least a quarter of all numbers, so that it is outside of all windows.
    let distance = (rng.next() as u32 >> 1) | 1 << 30;
    let msg_id = get(&frame, MSG_ID).wrapping_add(distance);
    put(&mut frame, MSG_ID, msg_id);
    Some(with_crc(frame))
}

fn replayed(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.choose(&captured.except_acknowledgements).cloned()
}

fn replayed_acknowledgement(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.choose(&captured.acknowledgements).cloned()
}

fn unknown_port_request(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let frame = rng.choose(&captured.requests)?.clone();
    Some(from_unknown_port(captured, rng, frame))
}

fn replayed_els_request(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let answered = captured
        .els_requests
        .iter()
        .filter(|f| f[COMMAND] != FARP_REPLY);
    rng.choose(&answered.collect::<Vec<_>>()).copied().cloned()
}

fn replayed_farp_reply(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let replies = captured
        .els_requests
        .iter()
        .filter(|f| f[COMMAND] == FARP_REPLY);
    rng.choose(&replies.collect::<Vec<_>>()).copied().cloned()
}

fn replayed_els_reply(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.choose(&captured.els_replies).cloned()
}

fn malformed_els(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.els_requests)?.clone();
    let end = frame.len() - TRAILER_BYTES;
    if rng.next() & 1 == 0 {
        frame.splice(end - 4..end, []);
    } else {
        frame.splice(end..end, [0; 4]);
    }
    Some(with_crc(frame))
}

fn unknown_els(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.els_requests)?.clone();
    frame[COMMAND] = rng.in_range(LARGEST..0x100) as u8;
    Some(with_crc(frame))
}

fn wrong_source_els(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.choose(&captured.els_requests)?.clone();
    frame[SOURCE].copy_from_slice(&unused_address(rng));
    Some(frame)
}

fn unknown_port_els(captured: &CapturedFrames, rng: &mut Rng) -> Option<Vec<u8>> {
    let frame = rng.choose(&captured.els_requests)?.clone();
    Some(from_unknown_port(captured, rng, frame))
}
