//! The three block types of a pcapng file that a capture needs, in little-endian.
//!
//! Each block: type, total length, body, total length again; each option:
//! code, length of its value, value; both padded to 4 bytes.
//!
//! | block | type | body |
//! | --- | --- | --- |
//! | section header (SHB) | `0A0D0D0A` | byte-order magic, version 1.0, length of the section (unknown: -1) |
//! | interface (IDB) | 1 | link type, reserved, longest frame kept, options |
//! | frame (EPB) | 6 | interface, time (high, low), length kept, length seen, frame, options |

use crate::port::Capabilities;

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
const INTERFACE: u32 = 1;
const ENHANCED_FRAME: u32 = 6;

const LINK_TYPE_ETHERNET: u16 = 1;

const OPTION_END: u16 = 0;
const OPTION_USER_APPLICATION: u16 = 4;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_INTERFACE_DESCRIPTION: u16 = 3;
const OPTION_INTERFACE_MAC: u16 = 6;
const OPTION_TIME_RESOLUTION: u16 = 9;
const OPTION_FRAME_FLAGS: u16 = 2;

/// Times count units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Direction of a frame; the values are those of the two low bits of the frame's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by the port.
    Inbound = 1,
    /// Sent by the port.
    Outbound = 2,
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out);
}

/// Appends a block with the body that `write` appends, and sets its lengths.
fn block(out: &mut Vec<u8>, block_type: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(block_type.to_le_bytes());
    out.extend([0; 4]);
    write(out);
    let len_bytes = ((out.len() - start + 4) as u32).to_le_bytes();
    out.extend(len_bytes);
    out[start + 4..start + 8].copy_from_slice(&len_bytes);
}

/// Appends the file header; at most `longest_bytes` of each frame are kept, 0 for all.
pub fn head(out: &mut Vec<u8>, capabilities: &Capabilities, longest_bytes: u32) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend(1u16.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend((-1i64).to_le_bytes());
        let version = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
        option(out, OPTION_USER_APPLICATION, version.as_bytes());
        option(out, OPTION_END, &[]);
    });
    block(out, INTERFACE, |out| {
        out.extend(LINK_TYPE_ETHERNET.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(longest_bytes.to_le_bytes());
        option(out, OPTION_INTERFACE_NAME, capabilities.device.as_bytes());
        let driver = capabilities.driver.as_bytes();
        option(out, OPTION_INTERFACE_DESCRIPTION, driver);
        option(out, OPTION_INTERFACE_MAC, &capabilities.mac);
        option(out, OPTION_TIME_RESOLUTION, &[NANOSECONDS]);
        option(out, OPTION_END, &[]);
    });
}

/// Appends one frame of `seen_bytes`, of which `kept` was captured; `time_ns` since 1970.
pub fn frame(out: &mut Vec<u8>, kept: &[u8], seen_bytes: u32, direction: Direction, time_ns: u64) {
    block(out, ENHANCED_FRAME, |out| {
        out.extend(0u32.to_le_bytes());
        out.extend(((time_ns >> 32) as u32).to_le_bytes());
        out.extend((time_ns as u32).to_le_bytes());
        out.extend((kept.len() as u32).to_le_bytes());
        out.extend(seen_bytes.to_le_bytes());
        out.extend(kept);
        pad(out);
        option(out, OPTION_FRAME_FLAGS, &(direction as u32).to_le_bytes());
        option(out, OPTION_END, &[]);
    });
}
