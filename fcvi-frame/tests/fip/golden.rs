//! Golden frames are parsed to the expected values, and emitted from them.

use std::collections::BTreeSet;

use fcvi_frame::MacAddress;
use fcvi_frame::ethernet::EthernetHeader;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fip::{
    Claim, Fc4Attributes, FipView, LinkService, LinkServiceKind, Vn2vnFrame, Vn2vnMessage, VnPort,
    VnPortId,
};

use super::{golden, golden_frames};

fn enode(last: u8) -> MacAddress {
    MacAddress([0x52, 0x54, 0, 0, 0, last])
}

/// Port of one of the two kernels.
fn port(last: u8) -> VnPort {
    let n_port_id = NPortId::from_bytes([0, 0, last]);
    VnPort {
        enode_mac: enode(last),
        node_name: 0x1000_5254_0000_0000 | u64::from(last),
        id: VnPortId {
            mac: MacAddress::vn2vn(n_port_id),
            n_port_id,
            port_name: 0x2000_5254_0000_0000 | u64::from(last),
        },
    }
}

/// Name, destination, length and content of each VN2VN frame.
fn vn2vn_frames() -> Vec<(&'static str, MacAddress, usize, Vn2vnFrame)> {
    let claim = Claim {
        fc4: Fc4Attributes::default()
            .with(FcType::Fcp, 3)
            .with(FcType::Ct, 0),
        max_fcoe_bytes: 2158,
    };
    let all = MacAddress::ALL_VN2VN;
    let frame = |message| Vn2vnFrame {
        recorded: false,
        port: port(1),
        message,
    };
    let notification = frame(Vn2vnMessage::ClaimNotification(claim));
    let response = frame(Vn2vnMessage::ClaimResponse(claim));
    let probe = frame(Vn2vnMessage::ProbeRequest);
    vec![
        ("linux_probe_request", all, 64, probe),
        ("linux_claim_notification", all, 232, notification),
        ("linux_claim_response", enode(2), 14 + 2158, response),
        ("linux_beacon", all, 64, frame(Vn2vnMessage::Beacon)),
    ]
}

/// Returns the payload of an FLOGI or of its LS_ACC: 116 bytes behind the FC header at offset 28.
fn payload(bytes: &[u8]) -> &[u8] {
    &bytes[52..168]
}

fn link_service(bytes: &[u8], from: u8, is_reply: bool) -> LinkService<'_> {
    let (r_ctl, f_ctl) = if is_reply {
        (RCtl::ElsReply, 0x99_0000)
    } else {
        (RCtl::ElsRequest, 0x29_0000)
    };
    LinkService {
        kind: LinkServiceKind::Flogi,
        is_reply,
        fc: FcHeader {
            r_ctl,
            d_id: NPortId::from_bytes([0, 0, 3 - from]),
            cs_ctl: 0,
            s_id: NPortId::from_bytes([0, 0, from]),
            fc_type: FcType::Els,
            f_ctl: FCtl(f_ctl),
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id: 0,
            rx_id: 0xFFFF,
            parameter: 0,
        },
        payload: payload(bytes),
        vn_port_mac: Some(port(from).id.mac),
    }
}

#[test]
fn every_file_is_expected() {
    let files = golden_frames().into_iter().map(|(name, _)| name);
    let expected = vn2vn_frames().into_iter().map(|(name, ..)| name);
    let expected = expected.chain(["linux_flogi", "linux_flogi_acc"]);
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
    assert_eq!(files.collect::<BTreeSet<_>>(), expected);
}

#[test]
fn vn2vn_frames_are_parsed_and_emitted() {
    for (name, dst, frame_bytes, expected) in vn2vn_frames() {
        let bytes = golden(name);
        let view = FipView::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let ethernet = EthernetHeader {
            dst,
            src: expected.src(),
            vlan_tci: None,
            ethertype: 0x8914,
        };
        assert_eq!(view.ethernet, ethernet, "{name}");
        assert_eq!(view.pdu_bytes, frame_bytes - 14, "{name}");
        assert_eq!(view.vn2vn(), Ok(expected), "{name}");
        let mut written = vec![0xEE; bytes.len()];
        let written_bytes = expected.emit(dst, frame_bytes, &mut written);
        assert_eq!(written_bytes, Ok(bytes.len()), "{name}");
        assert_eq!(written, bytes, "{name}");
    }
}

#[test]
fn link_services_are_parsed_and_emitted() {
    for (name, from, is_reply) in [("linux_flogi", 1, false), ("linux_flogi_acc", 2, true)] {
        let bytes = golden(name);
        let view = FipView::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = link_service(&bytes, from, is_reply);
        assert_eq!(view.link_service(), Ok(expected), "{name}");
        let mut written = vec![0xEE; bytes.len()];
        let written_bytes = expected.emit(enode(3 - from), enode(from), &mut written);
        assert_eq!(written_bytes, Ok(bytes.len()), "{name}");
        assert_eq!(written, bytes, "{name}");
    }
}
