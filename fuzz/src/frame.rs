//! FC-VI frames: compares parsing, errors and emitting with a simple reference parser.

use std::sync::LazyLock;

use fcvi_frame::error::{Field, ParseError, Reason};
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::frame::{FrameHeader, FrameView, seal};

use crate::input::Input;
use crate::payloads;
use crate::reference::number;

/// Checks the input as a frame: unchanged, or with valid values of fields that are rarely valid in random bytes.
///
/// # Panics
/// If a frame is parsed differently from the reference, or does not round-trip.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let variant = input.byte();
    let mut bytes = input.rest().to_vec();
    if variant & 1 == 1 {
        repair(&mut bytes, variant);
    }
    check_frame(&bytes);
    payloads::check_fip(&bytes);
    payloads::check_els(input.rest());
    payloads::check_bls(input.rest());
    payloads::check_connect(input.rest());
}

/// Makes the bytes a frame, tagged or not, with a valid CRC and otherwise unchanged content.
fn repair(bytes: &mut Vec<u8>, variant: u8) {
    let is_tagged = variant & 2 != 0;
    let ethernet = if is_tagged { 18 } else { 14 };
    if bytes.len() < ethernet + 46 {
        return;
    }
    let whole = (bytes.len() - ethernet - 46) & !3;
    bytes.truncate(ethernet + 46 + whole);
    if is_tagged {
        bytes[12..14].copy_from_slice(&[0x81, 0]);
    }
    bytes[ethernet - 2..ethernet].copy_from_slice(&[0x89, 0x06]);
    bytes[ethernet] &= 0x0F;
    bytes[ethernet + 13] = if variant & 4 == 0 { 0x2E } else { 0x36 };
    if variant & 8 != 0 && whole >= 16 {
        // An IU with consistent fields.
        let fc = ethernet + 14;
        let (opcode, r_ctl, header_bytes) =
            SPECIFIED_IUS[usize::from(bytes[fc + 28]) % SPECIFIED_IUS.len()];
        bytes[fc] = r_ctl;
        bytes[fc + 8] = 0x58;
        bytes[fc + 13] = if header_bytes == 16 { 1 } else { 2 };
        bytes[fc + 28] = opcode;
    }
    let trailer = bytes.len() - 8;
    bytes[trailer + 4] = if variant & 16 == 0 { 0x41 } else { 0x42 };
    let crc = crc(&bytes[ethernet + 14..trailer]);
    bytes[trailer..trailer + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Opcode, R_CTL and bytes of the device_header of each IU: the rows of the table in the specification.
static SPECIFIED_IUS: LazyLock<Vec<(u8, u8, usize)>> = LazyLock::new(|| {
    include_str!("../../docs/spec/fcvi-frame.md")
        .lines()
        .filter_map(|line| {
            let [name, opcode, r_ctl, header_bytes, _payload] =
                line.split(" | ").collect::<Vec<_>>().try_into().ok()?;
            name.starts_with("| FCVI_").then(|| {
                (
                    hex_byte(opcode),
                    hex_byte(r_ctl),
                    header_bytes.parse().expect("a length"),
                )
            })
        })
        .collect()
});

fn hex_byte(text: &str) -> u8 {
    let digits = text.strip_prefix("0x").expect("a hexadecimal number");
    u8::from_str_radix(digits, 16).expect("a byte")
}
/// Computes CRC-32 bit by bit, by its definition.
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

fn parse_error(field: Field, reason: Reason) -> ParseError {
    ParseError { field, reason }
}

/// Reference parser: returns the offset of the FCoE header and the number of fill bytes of a valid frame.
fn read_frame(bytes: &[u8]) -> Result<(usize, usize), ParseError> {
    let short = parse_error(Field::EthernetHeader, Reason::TooShort);
    let mut ethernet = 14;
    if bytes.len() < ethernet {
        return Err(short);
    }
    if number(bytes, 12, 2) == 0x8100 {
        ethernet = 18;
        if bytes.len() < ethernet {
            return Err(short);
        }
    }
    if number(bytes, ethernet - 2, 2) != 0x8906 {
        return Err(parse_error(Field::EtherType, Reason::Unknown));
    }
    if bytes.len() < ethernet + 46 {
        return Err(parse_error(Field::Frame, Reason::TooShort));
    }
    let data = bytes.len() - ethernet - 46;
    if data > 2112 {
        return Err(parse_error(Field::Frame, Reason::TooLong));
    }
    if !data.is_multiple_of(4) {
        return Err(parse_error(Field::Frame, Reason::NotMultipleOf4));
    }
    if bytes[ethernet] >= 0x10 {
        return Err(parse_error(Field::FcoeVersion, Reason::Unknown));
    }
    if ![0x2E, 0x36].contains(&bytes[ethernet + 13]) {
        return Err(parse_error(Field::Sof, Reason::Unknown));
    }
    let trailer = bytes.len() - 8;
    if ![0x41, 0x42].contains(&bytes[trailer + 4]) {
        return Err(parse_error(Field::Eof, Reason::Unknown));
    }
    let covered = &bytes[ethernet + 14..trailer];
    if crc(covered).to_le_bytes() != bytes[trailer..trailer + 4] {
        return Err(parse_error(Field::Crc, Reason::BadCrc));
    }
    let f_ctl = number(covered, 9, 3);
    let fill = (f_ctl & 3) as usize;
    if fill > 0 && f_ctl >> 19 & 1 == 0 {
        return Err(parse_error(Field::FillBytes, Reason::Mismatch));
    }
    if fill > data {
        return Err(parse_error(Field::FillBytes, Reason::TooLong));
    }
    Ok((ethernet, fill))
}

fn check_frame(bytes: &[u8]) {
    let expected = read_frame(bytes);
    let parsed = FrameView::parse(bytes);
    assert_eq!(parsed.as_ref().err(), expected.as_ref().err());
    let (Ok(view), Ok((ethernet, fill))) = (parsed, expected) else {
        return;
    };
    let fc = ethernet + 14;
    let data = &bytes[fc + 24..bytes.len() - 8];
    assert_eq!(view.data_field(), &data[..data.len() - fill]);
    assert_eq!(view.ethernet.dst.0, bytes[..6]);
    assert_eq!(view.ethernet.src.0, bytes[6..12]);
    let tag = (ethernet == 18).then(|| number(bytes, 14, 2) as u16);
    assert_eq!(view.ethernet.vlan_tci, tag);
    let is_first = bytes[ethernet + 13] == 0x2E;
    assert_eq!(view.sof, if is_first { Sof::I3 } else { Sof::N3 });
    let is_last = bytes[bytes.len() - 4] == 0x42;
    assert_eq!(view.eof, if is_last { Eof::T } else { Eof::N });
    let mut header = [0xEE; 24];
    view.fc.emit(&mut header);
    assert_eq!(header, bytes[fc..fc + 24]);
    check_iu(bytes, &view, fc, data, fill);
}

fn read_iu(fc: &[u8], data: &[u8]) -> Result<usize, ParseError> {
    if fc[8] != 0x58 {
        return Err(parse_error(Field::FcType, Reason::Unknown));
    }
    let short = parse_error(Field::DeviceHeader, Reason::TooShort);
    if data.len() < 16 {
        return Err(short);
    }
    let iu = SPECIFIED_IUS.iter().find(|(opcode, ..)| *opcode == data[4]);
    let &(_, r_ctl, header_bytes) = iu.ok_or(parse_error(Field::Opcode, Reason::Unknown))?;
    if data.len() < header_bytes {
        return Err(short);
    }
    if usize::from(fc[13]) != header_bytes / 16 {
        return Err(parse_error(Field::DfCtl, Reason::Mismatch));
    }
    if fc[0] != r_ctl {
        return Err(parse_error(Field::RCtl, Reason::Mismatch));
    }
    Ok(header_bytes)
}

fn check_iu(bytes: &[u8], view: &FrameView<'_>, fc: usize, data: &[u8], fill: usize) {
    let used = &data[..data.len() - fill];
    let expected = read_iu(&bytes[fc..], used);
    let parsed = view.iu();
    assert_eq!(parsed.as_ref().err(), expected.as_ref().err());
    let mut header_bytes = 0;
    let mut device = None;
    if let (Ok(iu), Ok(bytes)) = (parsed, expected) {
        assert_eq!(iu.payload, &used[bytes..]);
        assert_eq!(u64::from(iu.header.handle), number(used, 0, 4));
        assert_eq!(iu.header.flags, used[5]);
        assert_eq!(u64::from(iu.header.msg_id), number(used, 8, 4));
        assert_eq!(u64::from(iu.header.parameter), number(used, 12, 4));
        let long = |at, width| {
            if bytes == 32 {
                number(used, at, width)
            } else {
                0
            }
        };
        assert_eq!(iu.header.rmt_va, long(16, 8));
        assert_eq!(u64::from(iu.header.rmt_va_handle), long(24, 4));
        assert_eq!(u64::from(iu.header.tot_len), long(28, 4));
        header_bytes = bytes;
        device = Some(iu.header);
        payloads::check_connect(iu.payload);
    }
    // Emits the frame from the parsed values: untagged, and 0 in reserved fields.
    let header = FrameHeader {
        dst: view.ethernet.dst,
        src: view.ethernet.src,
        sof: view.sof,
        fc: view.fc,
        device,
    };
    let frame_bytes = 60 + data.len();
    let mut out = vec![0xEE; frame_bytes];
    assert_eq!(header.bytes(), 52 + header_bytes);
    assert_eq!(header.emit(&mut out), Ok(52 + header_bytes));
    out[52 + header_bytes..frame_bytes - 8].copy_from_slice(&data[header_bytes..]);
    assert_eq!(seal(&mut out, frame_bytes, view.eof), Ok(()));
    assert_eq!(out, canonical(bytes, fc, header_bytes));
    let again = FrameView::parse(&out).expect("emitted bytes");
    assert_eq!(again.fc, view.fc);
    assert_eq!(again.data_field().len(), used.len());
}

/// Returns a valid frame in its emitted form: without a tag, with 0 in reserved fields and the CRC of that.
fn canonical(bytes: &[u8], fc: usize, header_bytes: usize) -> Vec<u8> {
    let mut frame = bytes[..12].to_vec();
    frame.extend([0x89, 0x06]);
    frame.extend([0; 13]);
    frame.push(bytes[fc - 1]);
    let mut covered = bytes[fc..bytes.len() - 8].to_vec();
    if header_bytes > 0 {
        covered[30..32].fill(0);
    }
    frame.extend(&covered);
    frame.extend(crc(&covered).to_le_bytes());
    frame.push(bytes[bytes.len() - 4]);
    frame.extend([0; 3]);
    frame
}
