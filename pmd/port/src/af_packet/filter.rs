//! The socket filter that keeps foreign frames out of the receive ring.
//!
//! A frame passes if its EtherType, or the one behind a single 802.1Q tag, is
//! configured and its destination is a receive address. The kernel removes most
//! tags from a frame before the filter sees it; a tag is still in the frame if
//! another program of this host sent it that way.

use libc::sock_filter;

use crate::port::MacBytes;

/// EtherType of an 802.1Q tag.
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;

const LOAD_U16: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_U32: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Number of bytes of a passing frame that are kept: all.
const WHOLE_FRAME: u32 = u32::MAX;

fn load(code: u16, offset_bytes: u32) -> sock_filter {
    sock_filter {
        code,
        jt: 0,
        jf: 0,
        k: offset_bytes,
    }
}

fn jump_if(value: u32, skip_if_equal: u8, skip_if_not: u8) -> sock_filter {
    sock_filter {
        code: JUMP_IF_EQUAL,
        jt: skip_if_equal,
        jf: skip_if_not,
        k: value,
    }
}

fn keep(bytes: u32) -> sock_filter {
    sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: bytes,
    }
}

/// Builds the program; a load beyond the end of a frame makes the kernel drop the frame.
///
/// Supports at most 255 EtherTypes, since a jump skips at most 255 instructions.
pub(super) fn program(ethertypes: &[u16], destinations: &[MacBytes]) -> Vec<sock_filter> {
    let mut program = vec![
        load(LOAD_U16, 12),
        jump_if(ETHERTYPE_VLAN.into(), 0, 1),
        load(LOAD_U16, 16),
    ];
    for (&ethertype, remaining) in ethertypes.iter().zip((0..ethertypes.len() as u8).rev()) {
        // Skips the other EtherTypes and the rejection after them.
        program.push(jump_if(ethertype.into(), remaining + 1, 0));
    }
    program.push(keep(0));
    for &[a, b, c, d, e, f] in destinations {
        program.extend([
            load(LOAD_U32, 0),
            jump_if(u32::from_be_bytes([a, b, c, d]), 0, 3),
            load(LOAD_U16, 4),
            jump_if(u16::from_be_bytes([e, f]).into(), 0, 1),
            keep(WHOLE_FRAME),
        ]);
    }
    program.push(keep(0));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ETHERTYPES: [u16; 3] = [0x8906, 0x8914, 0x88b5];
    const DESTINATIONS: [MacBytes; 3] = [
        [0x0e, 0xfd, 0, 0, 0, 1],
        [0x0e, 0xfd, 0, 0xff, 0xff, 0xff],
        [1, 0x10, 0x18, 1, 0, 4],
    ];

    /// Interprets a program as the kernel does.
    fn run(program: &[sock_filter], frame: &[u8]) -> u32 {
        let (mut accumulator, mut at) = (0u32, 0usize);
        loop {
            let step = program[at];
            let k = step.k as usize;
            at += 1;
            match step.code {
                LOAD_U16 | LOAD_U32 => {
                    let bytes = if step.code == LOAD_U16 { 2 } else { 4 };
                    let Some(field) = frame.get(k..k + bytes) else {
                        return 0;
                    };
                    accumulator = field.iter().fold(0, |sum, &b| sum << 8 | u32::from(b));
                }
                JUMP_IF_EQUAL if accumulator == step.k => at += usize::from(step.jt),
                JUMP_IF_EQUAL => at += usize::from(step.jf),
                RETURN => return step.k,
                code => panic!("unknown code {code:#x}"),
            }
        }
    }

    fn passes(frame: &[u8]) -> bool {
        run(&program(&ETHERTYPES, &DESTINATIONS), frame) == WHOLE_FRAME
    }

    fn frame(dst: MacBytes, words: &[u16]) -> Vec<u8> {
        let mut bytes = [&dst[..], &[2, 0, 0, 0, 0, 9]].concat();
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        bytes
    }

    #[test]
    fn configured_ethertypes_to_receive_addresses_pass() {
        for dst in DESTINATIONS {
            for ethertype in ETHERTYPES {
                assert!(passes(&frame(dst, &[ethertype])));
                assert!(passes(&frame(dst, &[ETHERTYPE_VLAN, 0x6000, ethertype])));
            }
        }
    }

    #[test]
    fn other_frames_are_dropped() {
        let [ours, ..] = DESTINATIONS;
        assert!(!passes(&frame(ours, &[0x0800])));
        assert!(!passes(&frame(ours, &[ETHERTYPE_VLAN, 0, 0x0800])));
        assert!(!passes(&frame(ours, &[0x88a8, 0, 0x8906])));
        let doubly_tagged = [ETHERTYPE_VLAN, 0, ETHERTYPE_VLAN, 0, 0x8906];
        assert!(!passes(&frame(ours, &doubly_tagged)));
        assert!(!passes(&frame([0xff; 6], &[0x8906])));
        assert!(!passes(&frame(ours, &[0x8906])[..13]));
        assert!(!passes(&frame(ours, &[ETHERTYPE_VLAN, 0, 0x8906])[..17]));
    }

    #[test]
    fn longest_program_is_within_the_kernel_limit() {
        let program = program(&[0x8906; 16], &[[2; 6]; 258]);
        assert!(program.len() < libc::BPF_MAXINSNS as usize);
    }

    proptest! {
        #[test]
        fn filter_matches_the_reference_rule(
            dst in prop_oneof![prop::sample::select(DESTINATIONS.to_vec()), any::<MacBytes>()],
            flipped_bit in 0usize..96,
            words in prop::collection::vec(
                prop_oneof![prop::sample::select(vec![0x8906, 0x8914, 0x8100]), any::<u16>()], 0..5),
        ) {
            let mut dst = dst;
            if let Some(byte) = dst.get_mut(flipped_bit / 8) {
                *byte ^= 1 << (flipped_bit % 8);
            }
            let ethertype = match words.as_slice() {
                [ETHERTYPE_VLAN, _, inner, ..] => Some(inner),
                [ETHERTYPE_VLAN, ..] => None,
                other => other.first(),
            };
            let expected = DESTINATIONS.contains(&dst)
                && ethertype.is_some_and(|ethertype| ETHERTYPES.contains(ethertype));
            prop_assert_eq!(passes(&frame(dst, &words)), expected);
        }
    }
}
