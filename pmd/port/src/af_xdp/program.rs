//! The XDP program by which the kernel redirects the port's frames to its sockets.
//!
//! It redirects frames with one of the port's EtherTypes and one of its addresses as
//! destination; a priority tag may precede the EtherType. Every other frame, and the
//! port's frames on a queue without a socket, are passed to the kernel as if there were no
//! program. Integers in a frame are loaded in the machine's byte order, and compared
//! with constants in the same order.

use std::os::fd::RawFd;

use crate::af_packet::ETHERTYPE_VLAN;
use crate::port::MacBytes;

/// Passes the frame to the kernel.
const XDP_PASS: i32 = 2;
/// The BPF function that redirects a frame to the socket of a queue.
const REDIRECT_MAP: i32 = 51;
/// The VLAN identifier in a tag.
const VLAN_ID_MASK: u16 = 0x0fff;

/// The operation of [`ATOMIC_U64`].
const ATOMIC_ADD: i32 = 0;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const LOAD_U32: u8 = 0x61;
const LOAD_U16: u8 = 0x69;
const LOAD_CONSTANT: u8 = 0x18;
const ATOMIC_U64: u8 = 0xdb;
const ADD: u8 = 0x07;
const AND_32: u8 = 0x54;
const COPY: u8 = 0xbf;
const SET: u8 = 0xb7;
const JUMP: u8 = 0x05;
const JUMP_IF_ABOVE: u8 = 0x2d;
const JUMP_IF_EQUAL_32: u8 = 0x16;
const JUMP_IF_NOT_32: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// In the source register of [`LOAD_CONSTANT`]: the constant is a map, or the address of its first value.
const MAP: u8 = 1;
const MAP_VALUE: u8 = 2;

/// An instruction in the kernel's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    constant: i32,
}

impl Instruction {
    fn new(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> Self {
        let registers = if cfg!(target_endian = "little") {
            from << 4 | to
        } else {
            to << 4 | from
        };
        Self {
            code,
            registers,
            offset,
            constant,
        }
    }
}

/// Target of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Types,
    Addresses,
    Redirect,
    Pass,
    End,
}

/// Assembles instructions, with jumps whose targets are not known yet.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    label_positions: Vec<(Label, usize)>,
}

impl Assembler {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, constant: i32) {
        self.code
            .push(Instruction::new(code, to, from, offset, constant));
    }

    /// Jumps to the label if the comparison of the register's low half with the constant is true.
    fn jump_if(&mut self, code: u8, register: u8, constant: u32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(code, register, 0, 0, constant.cast_signed());
    }

    /// Jumps to [`Label::Pass`] if the frame, whose start and end are in r2 and r3, is shorter.
    fn pass_if_shorter(&mut self, bytes: i32) {
        self.put(COPY, 4, 2, 0, 0);
        self.put(ADD, 4, 0, 0, bytes);
        self.jumps.push((self.code.len(), Label::Pass));
        self.put(JUMP_IF_ABOVE, 4, 3, 0, 0);
    }

    fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(JUMP, 0, 0, 0, 0);
    }

    fn load_map(&mut self, register: u8, kind: u8, fd: i32) {
        self.put(LOAD_CONSTANT, register, kind, 0, fd);
        self.put(0, 0, 0, 0, 0);
    }

    fn set_label(&mut self, label: Label) {
        self.label_positions.push((label, self.code.len()));
    }

    /// Resolves the jump targets and returns the code.
    fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.label_positions.iter().find(|(set, _)| *set == label);
            debug_assert!(target.is_some(), "{label:?} is not set");
            let skipped = target.map_or(0, |(_, target)| target - at - 1);
            debug_assert!(i16::try_from(skipped).is_ok(), "a jump that is too long");
            self.code[at].offset = skipped as i16;
        }
        self.code
    }
}

fn in_frame(value: u16) -> u32 {
    u32::from(value.to_be())
}

/// Builds the program; the map `sockets` has the sockets by queue, the first value of the
/// map `other_queues` counts the port's frames that arrived on a queue without a socket.
pub(super) fn program(
    ethertypes: &[u16],
    addresses: &[MacBytes],
    sockets: RawFd,
    other_queues: RawFd,
) -> Vec<Instruction> {
    let mut to = Assembler::default();
    to.put(COPY, 6, 1, 0, 0);
    to.put(LOAD_U32, 2, 1, DATA, 0);
    to.put(LOAD_U32, 3, 1, DATA_END, 0);
    to.pass_if_shorter(14);
    to.put(LOAD_U16, 5, 2, 12, 0);
    to.jump_if(JUMP_IF_NOT_32, 5, in_frame(ETHERTYPE_VLAN), Label::Types);
    to.pass_if_shorter(18);
    to.put(LOAD_U16, 5, 2, 14, 0);
    to.put(AND_32, 5, 0, 0, in_frame(VLAN_ID_MASK).cast_signed());
    to.jump_if(JUMP_IF_NOT_32, 5, 0, Label::Pass);
    to.put(LOAD_U16, 5, 2, 16, 0);
    to.set_label(Label::Types);
    for &ethertype in ethertypes {
        to.jump_if(JUMP_IF_EQUAL_32, 5, in_frame(ethertype), Label::Addresses);
    }
    to.jump(Label::Pass);
    to.set_label(Label::Addresses);
    to.put(LOAD_U32, 5, 2, 0, 0);
    to.put(LOAD_U16, 4, 2, 4, 0);
    for &[a, b, c, d, e, f] in addresses {
        let first = u32::from_ne_bytes([a, b, c, d]);
        // Skips the comparison of the last two bytes.
        to.put(JUMP_IF_NOT_32, 5, 0, 1, first.cast_signed());
        let rest = u16::from_ne_bytes([e, f]).into();
        to.jump_if(JUMP_IF_EQUAL_32, 4, rest, Label::Redirect);
    }
    to.jump(Label::Pass);
    to.set_label(Label::Redirect);
    to.put(LOAD_U32, 2, 6, RX_QUEUE_INDEX, 0);
    to.load_map(1, MAP, sockets);
    to.put(SET, 3, 0, 0, XDP_PASS);
    to.put(CALL, 0, 0, 0, REDIRECT_MAP);
    to.jump_if(JUMP_IF_NOT_32, 0, XDP_PASS as u32, Label::End);
    to.load_map(1, MAP_VALUE, other_queues);
    to.put(SET, 2, 0, 0, 1);
    to.put(ATOMIC_U64, 1, 2, 0, ATOMIC_ADD);
    to.set_label(Label::End);
    to.put(EXIT, 0, 0, 0, 0);
    to.set_label(Label::Pass);
    to.put(SET, 0, 0, 0, XDP_PASS);
    to.put(EXIT, 0, 0, 0, 0);
    to.finish()
}

#[cfg(test)]
mod tests;
