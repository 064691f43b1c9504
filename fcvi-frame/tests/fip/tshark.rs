//! Compares our parser of FIP frames with tshark's.

use std::path::Path;

use fcvi_frame::MacAddress;
use fcvi_frame::els::{Logo, LsRjt, RejectExplanation, RejectReason};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fip::{
    Claim, Fc4Attributes, FipView, LinkService, LinkServiceKind, Vn2vnFrame, Vn2vnMessage, VnPort,
    VnPortId,
};

use super::dissector::{tshark_fields, write_pcap};
use super::golden_frames;

const SEED: u64 = 0x51F1_8914_8906_2158;
const GENERATED_FRAMES: usize = 200;

const FIELDS: [&str; 17] = [
    "eth.dst",
    "eth.src",
    "fip.ver",
    "fip.opcode",
    "fip.vn2vn_subcode",
    "fip.ls.subcode",
    "fip.dl_len",
    "fip.flags",
    "fip.mac",
    "fip.name",
    "fip.vn.mac",
    "fip.vn.fc_id",
    "fip.vn.pwwn",
    "fip.fcoe_size",
    "fip.fc4f.fcp",
    "fip.descriptors.length_error",
    "_ws.malformed",
];

fn colons(name: u64) -> String {
    name.to_be_bytes()
        .map(|byte| format!("{byte:02x}"))
        .join(":")
}

/// Formats what our parser reads as tshark's output.
fn describe(bytes: &[u8]) -> String {
    let view = FipView::parse(bytes).expect("a valid frame");
    let words = (bytes.len().min(24 + 208) - 24) / 4;
    let (dst, src) = (view.ethernet.dst, view.ethernet.src);
    let head = |vn2vn: &str, service: &str, words: usize| {
        let (opcode, flags) = (view.opcode.raw(), view.flags.0);
        format!("{dst}\t{src}\t1\t{opcode:#06x}\t{vn2vn}\t{service}\t{words}\t{flags:#06x}")
    };
    if let Ok(service) = view.link_service() {
        let subcode = if service.is_reply { "0x02" } else { "0x01" };
        let mac = service
            .vn_port_mac
            .map_or(String::new(), |mac| mac.to_string());
        let head = head("", subcode, words);
        return format!("{head}\t{mac}\t\t\t\t\t\t\t\t");
    }
    let frame = view.vn2vn().expect("a VN2VN frame");
    let words = if frame.message.claim().is_some() {
        words
    } else {
        10
    };
    let head = head(&format!("{:#04x}", frame.message.subcode()), "", words);
    let (size, fcp) = frame
        .message
        .claim()
        .map_or_else(Default::default, |claim| {
            let fcp = if claim.fc4.supports(FcType::Fcp) {
                "1"
            } else {
                "0"
            };
            (claim.max_fcoe_bytes.to_string(), fcp.to_string())
        });
    let port = frame.port;
    format!(
        "{head}\t{}\t{}\t{}\t{:#010x}\t{}\t{size}\t{fcp}\t\t",
        port.enode_mac,
        colons(port.node_name),
        port.id.mac,
        port.id.n_port_id.get(),
        colons(port.id.port_name),
    )
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

    fn mac(&mut self) -> MacAddress {
        let [_, _, mac @ ..] = self.next().to_be_bytes();
        MacAddress(mac)
    }
}

fn generated(random: &mut Random) -> Vec<u8> {
    let [_, low @ ..] = (random.next() as u32).to_be_bytes();
    let n_port_id = NPortId::from_bytes(low);
    let claim = Claim {
        fc4: Fc4Attributes::default()
            .with(FcType::Vi, 0)
            .with(FcType::from_raw(random.next() as u8), random.next() as u8),
        max_fcoe_bytes: random.next() as u16,
    };
    let message = match random.next() % 5 {
        0 => Vn2vnMessage::ProbeRequest,
        1 => Vn2vnMessage::ProbeReply,
        2 => Vn2vnMessage::ClaimNotification(claim),
        3 => Vn2vnMessage::ClaimResponse(claim),
        _ => Vn2vnMessage::Beacon,
    };
    let frame = Vn2vnFrame {
        recorded: random.next().is_multiple_of(4),
        port: VnPort {
            enode_mac: random.mac(),
            node_name: random.next(),
            id: VnPortId {
                mac: random.mac(),
                n_port_id,
                port_name: random.next(),
            },
        },
        message,
    };
    let padded_bytes = if matches!(message, Vn2vnMessage::ClaimResponse(_)) {
        1514
    } else {
        0
    };
    let mut bytes = vec![0; frame.bytes().max(padded_bytes)];
    frame
        .emit(random.mac(), padded_bytes, &mut bytes)
        .expect("a buffer of its length");
    bytes
}

/// A LOGO and the reject of an FLOGI, as they travel in FIP.
fn link_services() -> Vec<Vec<u8>> {
    let (a, b) = (
        NPortId::from_bytes([0, 1, 1]),
        NPortId::from_bytes([0, 2, 2]),
    );
    let mut logo = [0; Logo::BYTES];
    Logo {
        n_port_id: a,
        port_name: 0x2000_5254_0000_0001,
    }
    .emit(&mut logo);
    let mut reject = [0; LsRjt::BYTES];
    LsRjt {
        reason: RejectReason::FipError,
        explanation: RejectExplanation::NotNeighbour,
    }
    .emit(&mut reject);
    let services = [
        (LinkServiceKind::Logo, false, &logo[..]),
        (LinkServiceKind::Flogi, true, &reject[..]),
    ];
    let written = services.map(|(kind, is_reply, payload)| {
        let fc = FcHeader {
            r_ctl: if is_reply {
                RCtl::ElsReply
            } else {
                RCtl::ElsRequest
            },
            d_id: b,
            cs_ctl: 0,
            s_id: a,
            fc_type: FcType::Els,
            f_ctl: FCtl(if is_reply { 0x98_0000 } else { 0x29_0000 }),
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id: 0x77,
            rx_id: 0xFFFF,
            parameter: 0,
        };
        let service = LinkService {
            kind,
            is_reply,
            fc,
            payload,
            vn_port_mac: (!is_reply).then_some(MacAddress::vn2vn(a)),
        };
        let mut bytes = vec![0; service.bytes()];
        let (dst, src) = (MacAddress([2; 6]), MacAddress([4; 6]));
        service
            .emit(dst, src, &mut bytes)
            .expect("a buffer of its length");
        bytes
    });
    written.to_vec()
}

#[test]
fn tshark_agrees_with_the_parser() {
    println!("seed {SEED:#x}");
    let mut random = Random(SEED);
    let mut frames: Vec<Vec<u8>> = golden_frames().into_iter().map(|(_, f)| f).collect();
    frames.extend(link_services());
    frames.extend((0..GENERATED_FRAMES).map(|_| generated(&mut random)));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fcvi_frame_tshark_fip.pcap");
    write_pcap(&path, &frames);
    let dissected = tshark_fields(&path, &FIELDS);
    assert_eq!(dissected.len(), frames.len());
    for (number, (frame, dissected)) in frames.iter().zip(&dissected).enumerate() {
        assert_eq!(&describe(frame), dissected, "frame {number}, {FIELDS:?}");
    }
}

/// tshark dissects the contained frames as link services, too.
#[test]
fn tshark_dissects_the_contained_frames() {
    let mut frames = link_services();
    let golden = golden_frames().into_iter();
    frames.extend(golden.filter_map(|(name, f)| name.contains("flogi").then_some(f)));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fcvi_frame_tshark_fip_els.pcap");
    write_pcap(&path, &frames);
    let fields = [
        "fc.s_id",
        "fc.d_id",
        "fcels.opcode",
        "fcels.rjt.reason",
        "fcels.rjt.detail",
        "_ws.malformed",
    ];
    let expected = [
        "00.01.01\t00.02.02\t0x05\t\t\t",
        "00.01.01\t00.02.02\t0x01\t0x20\t0x62\t",
        "00.00.01\t00.00.02\t0x04\t\t\t",
        "00.00.02\t00.00.01\t0x02\t\t\t",
    ];
    assert_eq!(tshark_fields(&path, &fields), expected);
}

/// Checks that tshark detects errors at all.
#[test]
fn tshark_detects_a_wrong_length() {
    let frames: Vec<Vec<u8>> = golden_frames()
        .into_iter()
        .map(|(_, mut bytes)| {
            bytes[25] = 0;
            bytes
        })
        .collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fcvi_frame_tshark_fip_bad.pcap");
    write_pcap(&path, &frames);
    let errors = tshark_fields(&path, &["fip.descriptors.length_error"]);
    for (error, frame) in errors.iter().zip(&frames) {
        assert!(!error.is_empty(), "{error}");
        let view = FipView::parse(frame).expect("a good header");
        assert!(view.vn2vn().is_err() && view.link_service().is_err());
    }
}
