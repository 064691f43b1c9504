//! Hostile frames in FCoE, and those of nobody's protocol.

use crate::Make;
use crate::bytes::{
    COMMAND, D_ID, ETHERTYPE, FC, FC_TYPE, HANDLE, LARGEST_BYTES, MSG_ID, OPCODE, Rng, S_ID,
    SOURCE, TRAILER_BYTES, get, put, seal,
};
use crate::seen::Seen;

/// The kinds by name.
pub(crate) const KINDS: &[(&str, Make)] = &[
    ("foreign_protocol", foreign_protocol),
    ("vlan", vlan),
    ("cut_short", cut_short),
    ("flipped_bit", flipped_bit),
    ("wrong_source", wrong_source),
    ("wrong_d_id", wrong_d_id),
    ("unknown_type", unknown_type),
    ("unknown_opcode", unknown_opcode),
    ("guessed_handle", guessed_handle),
    ("stranger_message", stranger_message),
    ("far_message", far_message),
    ("replayed", replayed),
    ("replayed_acknowledgement", replayed_acknowledgement),
    ("stranger_request", stranger_request),
    ("replayed_els_request", replayed_els_request),
    ("replayed_farp_reply", replayed_farp_reply),
    ("replayed_els_reply", replayed_els_reply),
    ("malformed_els", malformed_els),
    ("unknown_els", unknown_els),
    ("wrong_source_els", wrong_source_els),
    ("stranger_els", stranger_els),
];

/// IPv4, ARP, IPv6, a spanning tree's length field, and two that mean nothing.
const FOREIGN: [u32; 6] = [0x0800, 0x0806, 0x86DD, 0x0026, 0x88B5, 0xFFFF];
/// A VLAN that nobody is in.
const VLAN: [u8; 4] = [0x81, 0x00, 0x00, 0x05];
/// It is sent as a request, which nobody answers.
const FARP_REPLY: u8 = 0x55;
/// Basic link services and extended ones are served, and FC-VI.
const SERVED_TYPES: [u8; 3] = [0x00, 0x01, 0x58];
/// What no opcode and no command is larger than.
const LARGEST: usize = 0x7F;

fn foreign_protocol(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vi)?.clone();
    put(&mut frame, ETHERTYPE, *rng.one(&FOREIGN)?);
    Some(frame)
}

fn vlan(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    // A largest frame has no room for a tag.
    let short = seen.vi.iter().filter(|frame| frame.len() < LARGEST_BYTES);
    let mut frame = (*rng.one(&short.collect::<Vec<_>>())?).clone();
    frame.splice(ETHERTYPE.start..ETHERTYPE.start, VLAN);
    Some(frame)
}

fn cut_short(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vi)?.clone();
    // At least what a network card would hand on.
    frame.truncate(rng.within(ETHERTYPE.end..frame.len()));
    Some(frame)
}

fn flipped_bit(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vi)?.clone();
    // What the CRC covers, and the CRC.
    let at = rng.within(FC..frame.len() - TRAILER_BYTES + 4);
    frame[at] ^= 1 << rng.within(0..8);
    Some(frame)
}

/// A station address that nobody has, other than that of an N_Port_ID.
fn stray_address(rng: &mut Rng) -> [u8; 6] {
    let [a, b, c, d, ..] = rng.next().to_be_bytes();
    [0x02, 0x66, a, b, c, d]
}

fn wrong_source(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vi)?.clone();
    frame[SOURCE].copy_from_slice(&stray_address(rng));
    Some(frame)
}

fn wrong_d_id(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vi)?.clone();
    let stranger = stranger(seen, rng);
    put(&mut frame, D_ID, stranger);
    Some(seal(frame))
}

fn unknown_type(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.vi)?.clone();
    while SERVED_TYPES.contains(&frame[FC_TYPE]) {
        frame[FC_TYPE] = rng.next() as u8;
    }
    Some(seal(frame))
}

fn unknown_opcode(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.messages)?.clone();
    frame[OPCODE] = rng.within(LARGEST..0x100) as u8;
    Some(seal(frame))
}

fn guessed_handle(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.messages)?.clone();
    let own = get(&frame, HANDLE);
    // Half of them guess the place of a VI right, as the low half of the handle.
    let guess = match rng.next() as u32 {
        guess if guess & 1 == 0 => guess,
        guess => guess & 0xFFFF_0000 | own & 0xFFFF,
    };
    put(&mut frame, HANDLE, if guess == own { !own } else { guess });
    Some(seal(frame))
}

/// An N_Port_ID that nobody has.
pub(crate) fn stranger(seen: &Seen, rng: &mut Rng) -> u32 {
    loop {
        let id = rng.within(1..0xFFFF) as u32;
        if !seen.taken.contains(&id) {
            return id;
        }
    }
}

/// The frame as a port would send it that nobody has heard of.
fn from_stranger(seen: &Seen, rng: &mut Rng, mut frame: Vec<u8>) -> Vec<u8> {
    let id = stranger(seen, rng);
    put(&mut frame, S_ID, id);
    frame[SOURCE].copy_from_slice(&[0x0e, 0xfd, 0, 0, (id >> 8) as u8, id as u8]);
    seal(frame)
}

fn stranger_message(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let frame = rng.one(&seen.messages)?.clone();
    Some(from_stranger(seen, rng, frame))
}

fn far_message(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.messages)?.clone();
    // A quarter of all numbers away at least, so that no number that was seen is near.
    let far = (rng.next() as u32 >> 1) | 1 << 30;
    let msg_id = get(&frame, MSG_ID).wrapping_add(far);
    put(&mut frame, MSG_ID, msg_id);
    Some(seal(frame))
}

fn replayed(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.one(&seen.but_acknowledgements).cloned()
}

fn replayed_acknowledgement(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.one(&seen.acknowledgements).cloned()
}

fn stranger_request(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let frame = rng.one(&seen.requests)?.clone();
    Some(from_stranger(seen, rng, frame))
}

fn replayed_els_request(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let answered = seen
        .els_requests
        .iter()
        .filter(|f| f[COMMAND] != FARP_REPLY);
    rng.one(&answered.collect::<Vec<_>>()).copied().cloned()
}

fn replayed_farp_reply(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let replies = seen
        .els_requests
        .iter()
        .filter(|f| f[COMMAND] == FARP_REPLY);
    rng.one(&replies.collect::<Vec<_>>()).copied().cloned()
}

fn replayed_els_reply(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    rng.one(&seen.els_replies).cloned()
}

fn malformed_els(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.els_requests)?.clone();
    let end = frame.len() - TRAILER_BYTES;
    if rng.next() & 1 == 0 {
        frame.splice(end - 4..end, []);
    } else {
        frame.splice(end..end, [0; 4]);
    }
    Some(seal(frame))
}

fn unknown_els(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.els_requests)?.clone();
    frame[COMMAND] = rng.within(LARGEST..0x100) as u8;
    Some(seal(frame))
}

fn wrong_source_els(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let mut frame = rng.one(&seen.els_requests)?.clone();
    frame[SOURCE].copy_from_slice(&stray_address(rng));
    Some(frame)
}

fn stranger_els(seen: &Seen, rng: &mut Rng) -> Option<Vec<u8>> {
    let frame = rng.one(&seen.els_requests)?.clone();
    Some(from_stranger(seen, rng, frame))
}
