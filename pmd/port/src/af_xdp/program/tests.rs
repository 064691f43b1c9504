//! Tests that interpret the program as the kernel does.

use super::*;
use proptest::prelude::*;

const FCOE: u16 = 0x8906;
const FIP: u16 = 0x8914;
const ETHERTYPES: [u16; 2] = [FCOE, FIP];
const ADDRESSES: [MacBytes; 3] = [
    [0x0e, 0xfd, 0, 0, 0, 1],
    [0x0e, 0xfd, 0, 0xff, 0xff, 0xff],
    // With bits set that a wrong sign extension would change.
    [0xf1, 0x90, 0x98, 0x81, 0x80, 0xf4],
];
const SOCKETS: RawFd = 33;
const OTHER_QUEUES: RawFd = 44;
const XDP_REDIRECT: u64 = 4;

/// Addresses of the interpreter's context and frame, and of the counter.
const CONTEXT: u64 = 0x1000;
const FRAME: u64 = 0x2000;
const COUNTER: u64 = 0x3000;

/// Verdict of the program about a frame.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Kernel,
    Socket(u64),
    /// Passed to the kernel, and counted.
    OtherQueue,
}

/// An interpreter with the frame in its memory; only queue 0 has a socket.
struct Machine<'a> {
    registers: [u64; 11],
    frame: &'a [u8],
    queue: u32,
    counted: u64,
}

impl Machine<'_> {
    /// Loads as the kernel's verifier allows it: fields of the context, and bytes of the frame that the
    /// program has checked to exist.
    fn load(&self, address: u64, bytes: usize, checked_bytes: usize) -> u64 {
        if address < FRAME {
            return match address - CONTEXT {
                0 => FRAME,
                4 => FRAME + self.frame.len() as u64,
                16 => self.queue.into(),
                other => panic!("field {other} of the context"),
            };
        }
        let at = (address - FRAME) as usize;
        assert!(
            at + bytes <= checked_bytes,
            "not checked to be in the frame"
        );
        let mut word = [0; 8];
        let low = if cfg!(target_endian = "little") {
            0
        } else {
            8 - bytes
        };
        word[low..low + bytes].copy_from_slice(&self.frame[at..at + bytes]);
        u64::from_ne_bytes(word)
    }

    fn run(mut self, program: &[Instruction]) -> (u64, u64, Option<u64>) {
        let (mut at, mut checked_bytes, mut socket) = (0, 0, None);
        self.registers[1] = CONTEXT;
        loop {
            let step = program[at];
            let (low, high) = (
                usize::from(step.registers & 15),
                usize::from(step.registers >> 4),
            );
            let (to, from) = if cfg!(target_endian = "little") {
                (low, high)
            } else {
                (high, low)
            };
            let constant = i64::from(step.constant).cast_unsigned();
            let half = self.registers[to] as u32;
            let value = self.registers[from];
            at += 1;
            let jump = match step.code {
                LOAD_U32 | LOAD_U16 => {
                    let bytes = if step.code == LOAD_U32 { 4 } else { 2 };
                    let address = value.wrapping_add_signed(step.offset.into());
                    self.registers[to] = self.load(address, bytes, checked_bytes);
                    false
                }
                LOAD_CONSTANT => {
                    assert_eq!(program[at], Instruction::default());
                    at += 1;
                    self.registers[to] = match (from as u8, step.constant) {
                        (MAP, SOCKETS) => SOCKETS as u64,
                        (MAP_VALUE, OTHER_QUEUES) => COUNTER,
                        other => panic!("constant {other:?}"),
                    };
                    false
                }
                COPY => {
                    self.registers[to] = value;
                    false
                }
                SET => {
                    self.registers[to] = constant;
                    false
                }
                ADD => {
                    self.registers[to] = self.registers[to].wrapping_add(constant);
                    false
                }
                AND_32 => {
                    self.registers[to] = (half & step.constant.cast_unsigned()).into();
                    false
                }
                ATOMIC_U64 => {
                    assert_eq!((self.registers[to], step.constant), (COUNTER, ATOMIC_ADD));
                    self.counted += value;
                    false
                }
                CALL => {
                    assert_eq!(step.constant, REDIRECT_MAP);
                    assert_eq!(self.registers[1], SOCKETS as u64);
                    self.registers[0] = match self.registers[2] {
                        queue @ 0 => {
                            socket = Some(queue);
                            XDP_REDIRECT
                        }
                        _ => self.registers[3],
                    };
                    // Undefined after a call.
                    self.registers[1..=5].fill(0xdead);
                    false
                }
                JUMP => true,
                JUMP_IF_ABOVE => {
                    let longer = self.registers[to] > value;
                    if !longer {
                        checked_bytes = (self.registers[to] - FRAME) as usize;
                    }
                    longer
                }
                JUMP_IF_EQUAL_32 => half == step.constant.cast_unsigned(),
                JUMP_IF_NOT_32 => half != step.constant.cast_unsigned(),
                EXIT => return (self.registers[0], self.counted, socket),
                code => panic!("unknown code {code:#x}"),
            };
            if jump {
                at += usize::try_from(step.offset).expect("forward");
            }
        }
    }
}

fn verdict_of(frame: &[u8], queue: u32) -> Verdict {
    let machine = Machine {
        registers: [0xdead; 11],
        frame,
        queue,
        counted: 0,
    };
    let program = program(&ETHERTYPES, &ADDRESSES, SOCKETS, OTHER_QUEUES);
    match machine.run(&program) {
        (XDP_REDIRECT, 0, Some(socket)) => Verdict::Socket(socket),
        (verdict, 0, None) if verdict == XDP_PASS as u64 => Verdict::Kernel,
        (verdict, 1, None) if verdict == XDP_PASS as u64 => Verdict::OtherQueue,
        other => panic!("{other:?}"),
    }
}

fn frame(dst: MacBytes, words: &[u16]) -> Vec<u8> {
    let mut bytes = [&dst[..], &[2, 0, 0, 0, 0, 9]].concat();
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes
}

#[test]
fn configured_ethertypes_to_receive_addresses_are_redirected() {
    for dst in ADDRESSES {
        for ethertype in ETHERTYPES {
            assert_eq!(verdict_of(&frame(dst, &[ethertype]), 0), Verdict::Socket(0));
            let tagged = frame(dst, &[ETHERTYPE_VLAN, 0xe000, ethertype]);
            assert_eq!(verdict_of(&tagged, 0), Verdict::Socket(0));
            assert_eq!(verdict_of(&tagged, 1), Verdict::OtherQueue);
        }
    }
}

#[test]
fn other_frames_are_passed_to_the_kernel() {
    let [ours, ..] = ADDRESSES;
    for words in [
        &[0x0800][..],
        &[ETHERTYPE_VLAN, 0, 0x0800],
        &[ETHERTYPE_VLAN, 1, FCOE],
        &[ETHERTYPE_VLAN, 0x0100, FCOE],
        &[ETHERTYPE_VLAN, 0x0800, FCOE],
        &[0x88a8, 0, FCOE],
        &[ETHERTYPE_VLAN, 0, ETHERTYPE_VLAN, 0, FCOE],
    ] {
        assert_eq!(
            verdict_of(&frame(ours, words), 0),
            Verdict::Kernel,
            "{words:x?}"
        );
    }
    assert_eq!(verdict_of(&frame([0xff; 6], &[FCOE]), 0), Verdict::Kernel);
    assert_eq!(verdict_of(&frame(ours, &[FCOE])[..13], 0), Verdict::Kernel);
    let tagged = frame(ours, &[ETHERTYPE_VLAN, 0, FCOE]);
    assert_eq!(verdict_of(&tagged[..17], 0), Verdict::Kernel);
}

#[test]
fn longest_program_is_within_the_kernel_limit() {
    let program = program(&[FCOE; 16], &[[2; 6]; 258], SOCKETS, OTHER_QUEUES);
    assert!(program.len() < libc::BPF_MAXINSNS as usize);
}

proptest! {
    #[test]
    fn program_matches_the_reference_rule(
        dst in prop_oneof![prop::sample::select(ADDRESSES.to_vec()), any::<MacBytes>()],
        flipped_bit in 0usize..96,
        words in prop::collection::vec(
            prop_oneof![prop::sample::select(vec![FCOE, FIP, ETHERTYPE_VLAN, 0]), any::<u16>()], 0..5),
        queue in 0u32..3,
    ) {
        let mut dst = dst;
        if let Some(byte) = dst.get_mut(flipped_bit / 8) {
            *byte ^= 1 << (flipped_bit % 8);
        }
        let ethertype = match words.as_slice() {
            [ETHERTYPE_VLAN, control, inner, ..] if control & 0xfff == 0 => Some(inner),
            [ETHERTYPE_VLAN, ..] => None,
            other => other.first(),
        };
        let ours = ADDRESSES.contains(&dst)
            && ethertype.is_some_and(|ethertype| ETHERTYPES.contains(ethertype));
        let expected = match (ours, queue) {
            (false, _) => Verdict::Kernel,
            (true, 0) => Verdict::Socket(0),
            (true, _) => Verdict::OtherQueue,
        };
        prop_assert_eq!(verdict_of(&frame(dst, &words), queue), expected);
    }
}
