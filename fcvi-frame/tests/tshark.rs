//! Compares our parser with tshark's, for golden and generated frames.

mod common;
#[path = "common/dissector.rs"]
mod dissector;
#[path = "tshark/link_services.rs"]
mod link_services;

use std::path::Path;

use common::golden_frames;
use dissector::{tshark_fields, write_pcap};
use fcvi_frame::connect::{ConnectRequest, ConnectResponse};
use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::els::{ElsCommand, RtvAccept};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId};
use fcvi_frame::fcoe::{Eof, MAX_DATA_FIELD_BYTES, Sof};
use fcvi_frame::frame::{FrameHeader, FrameView, HeaderTemplate, PerFrame, seal};
use fcvi_frame::iu::Opcode;
use fcvi_frame::{MacAddress, profile};

const SEED: u64 = 0x9E37_79B9_7F4A_7C15;
const GENERATED_FRAMES: usize = 300;

/// Fields that tshark prints; `describe` formats ours in the same order.
const FIELDS: [&str; 21] = [
    "eth.dst",
    "eth.src",
    "vlan.id",
    "fcoe.ver",
    "fcoe.sof",
    "fcoe.eof",
    "fcoe.crc.status",
    "fc.r_ctl",
    "fc.d_id",
    "fc.cs_ctl",
    "fc.s_id",
    "fc.type",
    "fc.f_ctl",
    "fc.seq_id",
    "fc.df_ctl",
    "fc.seq_cnt",
    "fc.ox_id",
    "fc.rx_id",
    "fc.parameter",
    "fc.relative_offset",
    "data.len",
];

fn describe(view: &FrameView<'_>) -> String {
    let fc = &view.fc;
    // tshark shows Parameter as an offset for FCP data, and passes the data field,
    // fill included, to its data dissector except for link services.
    let is_offset = fc.fc_type == FcType::Fcp && fc.f_ctl.contains(FCtl::RELATIVE_OFFSET);
    let (parameter, offset) = if is_offset {
        (String::new(), fc.parameter.to_string())
    } else {
        (format!("{:#010x}", fc.parameter), String::new())
    };
    let data_bytes = view.data_field().len() + fc.f_ctl.fill_bytes();
    // It does not dissect RTV and its accept.
    let rtv = ElsCommand::parse(view.data_field()) == Ok(ElsCommand::Rtv)
        || RtvAccept::parse(view.data_field()).is_ok();
    let known = fc.fc_type == FcType::Els && !rtv;
    let data = if known || data_bytes == 0 {
        String::new()
    } else {
        data_bytes.to_string()
    };
    [
        view.ethernet.dst.to_string(),
        view.ethernet.src.to_string(),
        view.ethernet
            .vlan_tci
            .map_or(String::new(), |tci| (tci & 0xFFF).to_string()),
        "0".to_string(),
        format!("{:#04x}", view.sof.raw()),
        format!("{:#04x}", view.eof.raw()),
        "1".to_string(),
        format!("{:#04x}", fc.r_ctl.raw()),
        fc.d_id.to_string(),
        format!("{:#04x}", fc.cs_ctl),
        fc.s_id.to_string(),
        format!("{:#04x}", fc.fc_type.raw()),
        format!("{:#08x}", fc.f_ctl.0),
        format!("{:#04x}", fc.seq_id),
        format!("{:#04x}", fc.df_ctl),
        fc.seq_cnt.to_string(),
        format!("{:#06x}", fc.ox_id),
        format!("{:#06x}", fc.rx_id),
        parameter,
        offset,
        data,
    ]
    .join("\t")
}

/// xorshift64*: the same frames in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn id(&mut self) -> NPortId {
        let [a, b, c, ..] = self.next().to_be_bytes();
        NPortId::from_bytes([a, b, c])
    }
}

fn generated_header(random: &mut Random) -> FrameHeader {
    let opcode = Opcode::ALL[random.below(Opcode::ALL.len())];
    let long = opcode.header_bytes() == 32;
    let (d_id, s_id) = (random.id(), random.id());
    FrameHeader {
        dst: MacAddress::vn2vn(d_id),
        src: MacAddress::vn2vn(s_id),
        sof: if random.below(2) == 0 {
            Sof::I3
        } else {
            Sof::N3
        },
        fc: FcHeader {
            r_ctl: opcode.r_ctl(),
            d_id,
            cs_ctl: random.next() as u8,
            s_id,
            fc_type: FcType::Vi,
            f_ctl: profile::F_CTL_ONE_WAY_LAST.union(FCtl::RELATIVE_OFFSET),
            seq_id: random.next() as u8,
            df_ctl: profile::df_ctl(opcode.header_bytes()),
            seq_cnt: random.next() as u16,
            ox_id: random.next() as u16,
            rx_id: random.next() as u16,
            parameter: random.next() as u32,
        },
        device: Some(DeviceHeader {
            handle: random.next() as u32,
            opcode,
            flags: random.next() as u8,
            msg_id: random.next() as u32,
            parameter: random.next() as u32,
            rmt_va: if long { random.next() } else { 0 },
            rmt_va_handle: if long { random.next() as u32 } else { 0 },
            tot_len: if long { random.next() as u32 } else { 0 },
        }),
    }
}

fn payload_bytes(opcode: Opcode, random: &mut Random) -> usize {
    match opcode {
        Opcode::ConnectRequest => ConnectRequest::BYTES,
        Opcode::ConnectResponse1 => ConnectResponse::BYTES,
        _ => random.below(MAX_DATA_FIELD_BYTES - opcode.header_bytes() + 1),
    }
}

/// Generates a frame from a template, as data frames are sent.
fn generated_frame(random: &mut Random) -> Vec<u8> {
    let header = generated_header(random);
    let device = header.device.expect("generated with one");
    let payload: Vec<u8> = (0..payload_bytes(device.opcode, random))
        .map(|_| random.next() as u8)
        .collect();
    let fill_bytes = payload.len().wrapping_neg() & 3;
    let mut bytes = vec![0; header.bytes()];
    let per_frame = PerFrame {
        sof: header.sof,
        f_ctl: header.fc.f_ctl.with_fill(fill_bytes as u8),
        seq_id: header.fc.seq_id,
        seq_cnt: header.fc.seq_cnt,
        ox_id: header.fc.ox_id,
        relative_offset: header.fc.parameter,
        flags: device.flags,
        msg_id: device.msg_id,
        fcvi_parameter: device.parameter,
        rmt_va: device.rmt_va,
        rmt_va_handle: device.rmt_va_handle,
        tot_len: device.tot_len,
    };
    HeaderTemplate::new(&header)
        .emit(&per_frame, &mut bytes)
        .expect("a buffer of its length");
    bytes.extend_from_slice(&payload);
    bytes.resize(bytes.len() + fill_bytes + 8, 0);
    let frame_bytes = bytes.len();
    let eof = if random.below(2) == 0 { Eof::N } else { Eof::T };
    seal(&mut bytes, frame_bytes, eof).expect("a legal length");
    bytes
}

fn with_tag(bytes: &[u8]) -> Vec<u8> {
    let mut tagged = bytes[..12].to_vec();
    tagged.extend_from_slice(&[0x81, 0x00, 0x60, 0x2A]);
    tagged.extend_from_slice(&bytes[12..]);
    tagged
}

#[test]
fn tshark_agrees_with_the_parser() {
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let mut frames = Vec::new();
    for (_, bytes) in golden_frames(".") {
        frames.push(with_tag(&bytes));
        frames.push(bytes);
    }
    frames.extend((0..GENERATED_FRAMES).map(|_| generated_frame(&mut random)));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fcvi_frame_tshark.pcap");
    write_pcap(&path, &frames);
    let dissected = tshark_fields(&path, &FIELDS);
    assert_eq!(dissected.len(), frames.len());
    for (number, (frame, dissected)) in frames.iter().zip(&dissected).enumerate() {
        let view =
            FrameView::parse(frame).unwrap_or_else(|error| panic!("frame {number}: {error}"));
        assert_eq!(
            &describe(&view),
            dissected,
            "frame {number}, fields {FIELDS:?}"
        );
    }
}

/// Checks that tshark detects errors at all.
#[test]
fn tshark_detects_a_wrong_crc() {
    let frames: Vec<_> = golden_frames(".")
        .into_iter()
        .map(|(_, mut bytes)| {
            let last = bytes.len() - 9;
            bytes[last] ^= 1;
            bytes
        })
        .collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fcvi_frame_tshark_bad.pcap");
    write_pcap(&path, &frames);
    let status = FIELDS
        .iter()
        .position(|field| *field == "fcoe.crc.status")
        .expect("one of the fields");
    for (line, frame) in tshark_fields(&path, &FIELDS).iter().zip(&frames) {
        assert_eq!(line.split('\t').nth(status), Some("0"), "{line}");
        assert!(FrameView::parse(frame).is_err());
    }
}
