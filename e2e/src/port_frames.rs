//! Frames of discovery and login, dissected by tshark: FIP, and extended link services in FCoE.

use std::fmt;

use crate::capture::{Capture, Occurrence};

/// The tshark fields of each frame.
const FIELDS: [&str; 22] = [
    "frame.time_relative",
    "frame.len",
    "eth.src",
    "eth.dst",
    "eth.type",
    "_ws.malformed",
    "_ws.expert.severity",
    "fcoe.crc.status",
    "fcoe.sof",
    "fcoe.eof",
    "fc.type",
    "fc.s_id",
    "fc.d_id",
    "fcels.opcode",
    "fip.ver",
    "fip.opcode",
    "fip.vn2vn_subcode",
    "fip.desc_type",
    "fip.mac",
    "fip.vn.mac",
    "fip.vn.fc_id",
    "_ws.col.Info",
];

const FCOE: &str = "0x8906";
const FIP: &str = "0x8914";
/// tshark's severity of errors such as malformed frames and wrong CRCs.
const SEVERITY_ERROR: u32 = 0x0080_0000;

/// Descriptor types of each VN2VN frame, by subcode: MAC, name and VN_Port; FCoE size and FC-4 types in claims.
const DESCRIPTORS: [(&str, &str); 5] = [
    ("0x01", "0x02,0x04,0x0b"),
    ("0x02", "0x02,0x04,0x0b"),
    ("0x03", "0x02,0x04,0x06,0x0b,0x0f"),
    ("0x04", "0x02,0x04,0x06,0x0b,0x0f"),
    ("0x05", "0x02,0x04,0x0b"),
];

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// VN2VN probe request.
    ProbeRequest,
    /// VN2VN probe reply.
    ProbeReply,
    /// VN2VN claim notification.
    ClaimNotification,
    /// VN2VN claim response.
    ClaimResponse,
    /// VN2VN beacon.
    Beacon,
    /// A link service in FIP: fabric login or logout.
    LinkService,
    /// A frame in FCoE.
    Fcoe,
}

/// A frame dissected by tshark; all values are tshark's text.
#[derive(Clone, Debug)]
pub struct PortFrame {
    fields: Vec<String>,
}

impl PortFrame {
    /// Stops a capture; returns all its frames.
    ///
    /// # Panics
    /// If one is missing.
    pub fn all_of(capture: Capture<'_>) -> Vec<Self> {
        let rows = capture.finish_with(&FIELDS, Occurrence::All);
        rows.into_iter().map(|fields| Self { fields }).collect()
    }

    /// Returns a field of [`FIELDS`]; empty if the frame lacks it.
    fn field(&self, name: &str) -> &str {
        let at = FIELDS.iter().position(|field| *field == name);
        &self.fields[at.expect("a field of FIELDS")]
    }

    /// Returns the purpose of the frame.
    ///
    /// # Panics
    /// If it is neither FCoE nor a frame of VN2VN.
    pub fn kind(&self) -> FrameKind {
        if self.field("eth.type") == FCOE {
            return FrameKind::Fcoe;
        }
        match (self.field("fip.opcode"), self.field("fip.vn2vn_subcode")) {
            ("0x0002", _) => FrameKind::LinkService,
            ("0x0005", "0x01") => FrameKind::ProbeRequest,
            ("0x0005", "0x02") => FrameKind::ProbeReply,
            ("0x0005", "0x03") => FrameKind::ClaimNotification,
            ("0x0005", "0x04") => FrameKind::ClaimResponse,
            ("0x0005", "0x05") => FrameKind::Beacon,
            _ => panic!("neither FCoE nor VN2VN: {self}"),
        }
    }

    /// Returns the command code of an extended link service, as `0x03`; empty for other frames.
    pub fn els(&self) -> &str {
        self.field("fcels.opcode")
    }

    /// Returns the source MAC address, as `52:54:00:00:00:01`.
    pub fn source(&self) -> &str {
        self.field("eth.src")
    }

    /// Returns the N_Port_ID in the VN_Port descriptor of a VN2VN frame.
    ///
    /// # Panics
    /// If there is none.
    pub fn vn_port_id(&self) -> u32 {
        let text = self.field("fip.vn.fc_id");
        u32::from_str_radix(text.trim_start_matches("0x"), 16)
            .unwrap_or_else(|e| panic!("{e}: no VN_Port in {self}"))
    }

    /// Returns the S_ID of an FC frame, as `00.00.01`.
    pub fn s_id(&self) -> &str {
        self.field("fc.s_id")
    }

    /// Returns the length on the wire, without the frame check sequence.
    pub fn wire_bytes(&self) -> usize {
        self.field("frame.len").parse().expect("a length")
    }
}

impl fmt::Display for PortFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [time, bytes, from, to] =
            ["frame.time_relative", "frame.len", "eth.src", "eth.dst"].map(|name| self.field(name));
        let [s_id, d_id, port, info] =
            ["fc.s_id", "fc.d_id", "fip.vn.fc_id", "_ws.col.Info"].map(|name| self.field(name));
        write!(
            f,
            "{time:>13} {from} > {to} {bytes:>4} {info} {s_id} {d_id} {port}"
        )
    }
}

/// Whether a frame is a beacon of this N_Port_ID.
pub fn is_beacon(frame: &[u8], port_id: u32) -> bool {
    let [_, high, middle, low] = port_id.to_be_bytes();
    frame.get(6..12) == Some(&[0x0e, 0xfd, 0, high, middle, low])
        && frame.get(12..14) == Some(&[0x89, 0x14])
        && frame.get(16..20) == Some(&[0, 5, 0, 5])
}

/// Whether a frame is a probe request for this N_Port_ID.
pub fn is_probe(frame: &[u8], port_id: u32) -> bool {
    let [_, high, middle, low] = port_id.to_be_bytes();
    let vn_port_mac = [0x0e, 0xfd, 0, high, middle, low];
    frame.get(12..14) == Some(&[0x89, 0x14])
        && frame.get(16..20) == Some(&[0, 5, 0, 1])
        && frame.windows(6).any(|bytes| bytes == vn_port_mac)
}

/// Checks that each frame is FCoE with a valid CRC or FIP with the descriptors of its kind, without errors of tshark.
///
/// # Panics
/// With the frame that violates this.
pub fn check_port_frames(frames: &[PortFrame]) {
    for (number, frame) in frames.iter().enumerate() {
        let expect = |name: &str, allowed: &[&str]| {
            let text = frame.field(name);
            assert!(
                allowed.contains(&text),
                "frame {number}: {name} is {text:?}, must be one of {allowed:?}: {frame}"
            );
        };
        expect("eth.type", &[FCOE, FIP]);
        expect("_ws.malformed", &[""]);
        let worst = frame.field("_ws.expert.severity").split(',');
        let worst = worst.filter_map(|text| text.parse().ok()).max();
        assert!(
            worst < Some(SEVERITY_ERROR),
            "frame {number}: tshark reports an error: {frame}"
        );
        if frame.field("eth.type") == FIP {
            expect("fip.ver", &["1"]);
            check_descriptors(number, frame);
        } else {
            expect("fcoe.crc.status", &["1"]);
            // Class 3; link services and FC-VI only.
            expect("fcoe.sof", &["0x2e", "0x36"]);
            expect("fcoe.eof", &["0x41", "0x42"]);
            expect("fc.type", &["0x00", "0x01", "0x58"]);
        }
    }
}

/// Checks the descriptors of a VN2VN frame, its source address, and that its VN_Port MAC matches its N_Port_ID.
fn check_descriptors(number: usize, frame: &PortFrame) {
    let source = match frame.kind() {
        FrameKind::LinkService | FrameKind::Fcoe => return,
        FrameKind::Beacon => "fip.vn.mac",
        FrameKind::ProbeRequest
        | FrameKind::ProbeReply
        | FrameKind::ClaimNotification
        | FrameKind::ClaimResponse => "fip.mac",
    };
    let subcode = frame.field("fip.vn2vn_subcode");
    let (_, expected) = DESCRIPTORS
        .iter()
        .find(|(known, _)| *known == subcode)
        .expect("each subcode has a row");
    let mut types: Vec<&str> = frame.field("fip.desc_type").split(',').collect();
    types.sort_unstable();
    assert_eq!(
        types.join(","),
        *expected,
        "frame {number}: descriptors: {frame}"
    );
    assert_eq!(
        frame.source(),
        frame.field(source),
        "frame {number}: source MAC is not that of {source}: {frame}"
    );
    let [_, high, middle, low] = frame.vn_port_id().to_be_bytes();
    assert_eq!(
        frame.field("fip.vn.mac"),
        format!("0e:fd:00:{high:02x}:{middle:02x}:{low:02x}"),
        "frame {number}: {frame}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::dissect;

    /// A beacon of 00.00.01: Ethernet and FIP header, then the descriptors MAC, name, VN_Port.
    const BEACON: [&str; 5] = [
        "0110180100040efd000000018914",
        "100000050005000a0000",
        "0202525400000001",
        "040300001000525400000001",
        "0b050efd00000001000000012000525400000001",
    ];
    /// An FC-VI frame: Ethernet and FCoE header, FC header, data, then CRC and end of frame.
    const FCOE: [&str; 4] = [
        "0efd000002020efd000001018906000000000000000000000000002e",
        "020002020000010158290000010100001001ffff00000000",
        "00000000000000000000000000000000",
        "57e1f23442000000",
    ];

    fn bytes(parts: &[&str]) -> Vec<u8> {
        let digits: Vec<u32> = parts
            .iter()
            .flat_map(|part| part.chars())
            .filter_map(|c| c.to_digit(16))
            .collect();
        digits
            .chunks(2)
            .map(|pair| (pair[0] * 16 + pair[1]) as u8)
            .collect()
    }

    /// Dissects a frame with tshark.
    fn dissected(frame: &[u8]) -> PortFrame {
        let mut file: Vec<u8> = Vec::new();
        // The header of a pcap file of Ethernet frames, and a record header.
        for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1, 0, 0] {
            file.extend(u32::to_ne_bytes(word));
        }
        let mut frame = frame.to_vec();
        frame.resize(frame.len().max(60), 0);
        for _ in 0..2 {
            file.extend((frame.len() as u32).to_ne_bytes());
        }
        file.extend(frame);
        let mut rows = dissect(&file, &FIELDS, Occurrence::All);
        assert_eq!(rows.len(), 1);
        PortFrame {
            fields: rows.remove(0),
        }
    }

    #[test]
    fn frames_are_classified() {
        let beacon = dissected(&bytes(&BEACON));
        assert_eq!((beacon.kind(), beacon.vn_port_id()), (FrameKind::Beacon, 1));
        assert_eq!((beacon.source(), beacon.els()), ("0e:fd:00:00:00:01", ""));
        assert!(is_beacon(&bytes(&BEACON), 1));
        assert!(!is_beacon(&bytes(&BEACON), 2));
        assert!(!is_beacon(&bytes(&FCOE), 0x101));
        let [ethernet, _, rest @ ..] = BEACON;
        let probe = bytes(&[&[ethernet, "100000050001000a0000"], rest.as_slice()].concat());
        assert!(is_probe(&probe, 1));
        assert!(!is_probe(&probe, 2));
        assert!(!is_probe(&bytes(&BEACON), 1));
        let fcoe = dissected(&bytes(&FCOE));
        assert_eq!((fcoe.kind(), fcoe.s_id()), (FrameKind::Fcoe, "00.01.01"));
        assert_eq!(fcoe.wire_bytes(), 76);
        check_port_frames(&[beacon, fcoe]);
    }

    #[test]
    fn check_port_frames_detects_invalid_frames() {
        let [ethernet, header, mac, name, port] = BEACON;
        let wrong_beacons: [(&str, &[&str]); 7] = [
            (
                "no such EtherType",
                &["0110180100040efd0000000186dd", header, mac, name, port],
            ),
            (
                "the list is longer than the frame",
                &[ethernet, "10000005000500ff0000", mac, name, port],
            ),
            (
                "a descriptor without a length",
                &[ethernet, header, mac, "040000001000525400000001", port],
            ),
            (
                "a MAC descriptor of three words",
                &[ethernet, header, "0203525400000001", name, port],
            ),
            (
                "a descriptor is missing",
                &[ethernet, "10000005000500050000", mac, name],
            ),
            (
                "not from the VN_Port's MAC",
                &["0110180100045254000000018914", header, mac, name, port],
            ),
            (
                "the MAC is that of another N_Port_ID",
                &[
                    ethernet,
                    header,
                    mac,
                    name,
                    "0b050efd00000001000000022000525400000001",
                ],
            ),
        ];
        for (what, parts) in wrong_beacons {
            let frame = dissected(&bytes(parts));
            assert!(
                std::panic::catch_unwind(|| check_port_frames(&[frame])).is_err(),
                "{what}"
            );
        }
        let [ethernet, header, data, _] = FCOE;
        for (what, end) in [
            ("a wrong CRC", "57e1f23542000000"),
            ("aborted", "57e1f23450000000"),
        ] {
            let frame = dissected(&bytes(&[ethernet, header, data, end]));
            assert!(
                std::panic::catch_unwind(|| check_port_frames(&[frame])).is_err(),
                "{what}"
            );
        }
    }
}
