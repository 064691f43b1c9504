//! FIP frames round-trip, and invalid ones are rejected.

use std::vec;
use std::vec::Vec;

use super::*;
use crate::error::EmitError;
use crate::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use proptest::prelude::*;

const DST: MacAddress = MacAddress::ALL_VN2VN;

fn port() -> impl Strategy<Value = VnPort> {
    any::<([u8; 6], u64, [u8; 6], [u8; 3], u64)>().prop_map(|(enode, node_name, vn, id, name)| {
        VnPort {
            enode_mac: MacAddress(enode),
            node_name,
            id: VnPortId {
                mac: MacAddress(vn),
                n_port_id: NPortId::from_bytes(id),
                port_name: name,
            },
        }
    })
}

fn claim() -> impl Strategy<Value = Claim> {
    let features = prop::collection::vec(any::<u8>(), 128);
    (any::<[u8; 32]>(), features, any::<u16>()).prop_map(|(types, features, max_fcoe_bytes)| {
        let features = features.try_into().unwrap();
        Claim {
            fc4: Fc4Attributes { types, features },
            max_fcoe_bytes,
        }
    })
}

fn message() -> impl Strategy<Value = Vn2vnMessage> {
    prop_oneof![
        Just(Vn2vnMessage::ProbeRequest),
        Just(Vn2vnMessage::ProbeReply),
        Just(Vn2vnMessage::Beacon),
        claim().prop_map(Vn2vnMessage::ClaimNotification),
        claim().prop_map(Vn2vnMessage::ClaimResponse),
    ]
}

fn sample(message: Vn2vnMessage) -> Vn2vnFrame {
    Vn2vnFrame {
        recorded: false,
        port: VnPort::default(),
        message,
    }
}

fn emitted(frame: &Vn2vnFrame) -> Vec<u8> {
    let mut bytes = vec![0xEE; Vn2vnFrame::MAX_BYTES];
    let written = frame.emit(DST, 0, &mut bytes).unwrap();
    bytes.truncate(written);
    bytes
}

fn vn2vn(bytes: &[u8]) -> Result<Vn2vnFrame, ParseError> {
    FipView::parse(bytes)?.vn2vn()
}

/// Sets the list length to the number of bytes behind the headers.
fn with_list_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let words = ((bytes.len() - 24) / 4) as u16;
    bytes[20..22].copy_from_slice(&words.to_be_bytes());
    bytes
}

fn descriptor_error(reason: Reason) -> Result<Vn2vnFrame, ParseError> {
    Err(ParseError::new(Field::FipDescriptor, reason))
}

proptest! {
    #![proptest_config(crate::test_seed::config())]

    #[test]
    fn vn2vn_frames_round_trip(
        port in port(),
        message in message(),
        recorded: bool,
        dst: [u8; 6],
        min_frame_bytes in 0..2200usize,
    ) {
        let frame = Vn2vnFrame { recorded, port, message };
        let mut bytes = [0xEE; 2200];
        let written = frame.emit(MacAddress(dst), min_frame_bytes, &mut bytes).unwrap();
        prop_assert_eq!(written, frame.bytes().max(min_frame_bytes));
        prop_assert!(bytes[frame.bytes()..written].iter().all(|byte| *byte == 0));
        prop_assert!(bytes[written..].iter().all(|byte| *byte == 0xEE));
        let view = FipView::parse(&bytes[..written]).unwrap();
        prop_assert_eq!(view.ethernet.src, frame.src());
        prop_assert_eq!(view.ethernet.dst, MacAddress(dst));
        prop_assert_eq!(view.pdu_bytes, written - 14);
        prop_assert_eq!(view.vn2vn(), Ok(frame));
        prop_assert!(view.link_service().is_err());
        for short in [0, 63, frame.bytes() - 1, written - 1] {
            let error = frame.emit(MacAddress(dst), min_frame_bytes, &mut bytes[..short]);
            prop_assert_eq!(error, Err(EmitError::BufferTooShort { needed_bytes: written }));
        }
    }

    #[test]
    fn link_services_round_trip(
        which in 0..4usize,
        is_reply: bool,
        header: [u8; 24],
        words in prop::collection::vec(any::<[u8; 4]>(), 1..=248),
        mac: [u8; 6],
    ) {
        let mut fc = FcHeader::parse(&header);
        fc.fc_type = FcType::Els;
        fc.r_ctl = if is_reply { RCtl::ElsReply } else { RCtl::ElsRequest };
        fc.f_ctl = fc.f_ctl.with_fill(0);
        let payload = words.concat();
        let vn_port_mac = (payload[0] != 1).then_some(MacAddress(mac));
        let kind = [
            LinkServiceKind::Flogi,
            LinkServiceKind::Fdisc,
            LinkServiceKind::Logo,
            LinkServiceKind::Elp,
        ][which];
        let service = LinkService { kind, is_reply, fc, payload: &payload, vn_port_mac };
        let mut bytes = [0; 1100];
        let written = service.emit(DST, MacAddress(mac), &mut bytes).unwrap();
        prop_assert_eq!(written, service.bytes());
        let view = FipView::parse(&bytes[..written]).unwrap();
        prop_assert_eq!(view.link_service(), Ok(service));
        prop_assert!(view.vn2vn().is_err());
        let short = service.emit(DST, DST, &mut bytes[..written - 1]);
        prop_assert_eq!(short, Err(EmitError::BufferTooShort { needed_bytes: written }));
    }

    /// No bytes make a parser panic, and the result matches the input.
    #[test]
    fn parse_accepts_or_rejects_any_bytes(
        front: [u8; 12],
        subcode in 0..7u8,
        opcode in 0..7u16,
        list in prop::collection::vec((0..20u8, 0..6u8, prop::collection::vec(any::<u8>(), 18)), 0..6),
        words in 0..40u16,
    ) {
        let mut bytes = front.to_vec();
        bytes.extend([0x89, 0x14, 0x10, 0]);
        bytes.extend(opcode.to_be_bytes());
        bytes.extend([0, subcode]);
        bytes.extend(words.to_be_bytes());
        bytes.extend([0, 0]);
        for (kind, length, value) in list {
            bytes.extend([kind, length]);
            bytes.extend(&value[..(usize::from(length) * 4).clamp(2, 20) - 2]);
        }
        let Ok(view) = FipView::parse(&bytes) else {
            prop_assert!(24 + usize::from(words) * 4 > bytes.len());
            return Ok(());
        };
        prop_assert!(view.descriptors().count() <= usize::from(words));
        if let Ok(frame) = view.vn2vn() {
            prop_assert_eq!(opcode, 5);
            prop_assert_eq!(frame.message.subcode(), subcode);
        }
        if let Ok(service) = view.link_service() {
            prop_assert_eq!((opcode, service.is_reply), (2, subcode == 2));
        }
    }

    #[test]
    fn protocols_and_features_round_trip(types: [u8; 8], features: [u8; 8]) {
        let mut fc4 = Fc4Attributes::default();
        for (raw, features) in types.into_iter().zip(features) {
            fc4 = fc4.with(FcType::from_raw(raw), features);
            prop_assert_eq!(fc4.features(FcType::from_raw(raw)), features & 0xF);
        }
        for raw in 0..=u8::MAX {
            prop_assert_eq!(fc4.supports(FcType::from_raw(raw)), types.contains(&raw));
            if !types.contains(&raw) {
                prop_assert_eq!(fc4.features(FcType::from_raw(raw)), 0);
            }
        }
    }
}

#[test]
fn fc4_attributes_set_the_bits_of_the_standard() {
    let fc4 = Fc4Attributes::default().with(FcType::Vi, 0x0F);
    assert_eq!(fc4.types.iter().position(|byte| *byte == 1), Some(8));
    assert_eq!(fc4.features.iter().position(|byte| *byte == 0xF), Some(47));
    let fc4 = Fc4Attributes::default().with(FcType::Fcp, 3);
    assert_eq!((fc4.types[2], fc4.features[7]), (1, 3));
    assert_eq!(std::format!("{fc4:?}"), "{Fcp: 3}");
}

#[test]
fn every_raw_value_round_trips() {
    for raw in 0..=u16::MAX {
        assert_eq!(FipOpcode::from_raw(raw).raw(), raw);
    }
    for raw in 0..=u8::MAX {
        let kind = DescriptorType::from_raw(raw);
        assert_eq!(kind.raw(), raw);
        assert_eq!(kind.is_critical(), raw < 128);
    }
}

#[test]
fn vn2vn_rejects_missing_repeated_and_foreign_descriptors() {
    let claim = Claim::default();
    for message in [
        Vn2vnMessage::ProbeRequest,
        Vn2vnMessage::ProbeReply,
        Vn2vnMessage::ClaimNotification(claim),
        Vn2vnMessage::ClaimResponse(claim),
        Vn2vnMessage::Beacon,
    ] {
        let frame = sample(message);
        let bytes = emitted(&frame);
        let list: Vec<Vec<u8>> = FipView::parse(&bytes)
            .unwrap()
            .descriptors()
            .scan(24, |at, descriptor| {
                let start = *at;
                descriptor.unwrap();
                *at += usize::from(bytes[start + 1]) * 4;
                Some(bytes[start..*at].to_vec())
            })
            .collect();
        let with = |list: &[Vec<u8>]| {
            let mut frame = bytes[..24].to_vec();
            frame.extend(list.concat());
            with_list_length(frame)
        };
        assert_eq!(vn2vn(&with(&list)), Ok(frame));
        let mut reversed = list.clone();
        reversed.reverse();
        assert_eq!(vn2vn(&with(&reversed)), Ok(frame));
        for at in 0..list.len() {
            let mut missing = list.clone();
            missing.remove(at);
            assert_eq!(vn2vn(&with(&missing)), descriptor_error(Reason::Missing));
            let mut repeated = list.clone();
            repeated.push(list[at].clone());
            assert_eq!(vn2vn(&with(&repeated)), descriptor_error(Reason::Repeated));
        }
        for kind in 0..=u8::MAX {
            let mut foreign = list.clone();
            foreign.insert(1, vec![kind, 1, 0, 0]);
            let required = list.iter().any(|descriptor| descriptor[0] == kind);
            let expected = match kind {
                128.. => Ok(frame),
                // It has a valid length: it is repeated.
                6 if required => descriptor_error(Reason::Repeated),
                _ if required => descriptor_error(Reason::TooShort),
                1..=15 => descriptor_error(Reason::Mismatch),
                _ => descriptor_error(Reason::Unknown),
            };
            assert_eq!(vn2vn(&with(&foreign)), expected, "{kind} in {message:?}");
        }
    }
}

#[test]
fn vn2vn_rejects_every_wrong_descriptor_length() {
    let bytes = emitted(&sample(Vn2vnMessage::ClaimNotification(Claim::default())));
    for (at, kind) in [(24, 2), (32, 4), (44, 11), (64, 15), (228, 6)] {
        assert_eq!(bytes[at], kind);
        for words in 0..=u8::MAX {
            let mut damaged = bytes.clone();
            damaged[at + 1] = words;
            let parsed = vn2vn(&damaged);
            assert_eq!(parsed.is_ok(), words == bytes[at + 1], "{kind}: {words}");
        }
    }
}

#[test]
fn vn2vn_rejects_other_versions_and_operations() {
    let bytes = emitted(&sample(Vn2vnMessage::Beacon));
    let change = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        vn2vn(&bytes).map_err(|error| (error.field, error.reason))
    };
    assert!(change(14, 0x1F).is_ok(), "the lower half is reserved");
    assert_eq!(change(14, 0x20), Err((Field::FipVersion, Reason::Unknown)));
    assert_eq!(change(13, 0x06), Err((Field::EtherType, Reason::Unknown)));
    assert_eq!(change(17, 4), Err((Field::FipOperation, Reason::Unknown)));
    for subcode in [0, 6, 255] {
        let unknown = Err((Field::FipOperation, Reason::Unknown));
        assert_eq!(change(19, subcode), unknown);
    }
    // As a claim it lacks the additional descriptors.
    let missing = Err((Field::FipDescriptor, Reason::Missing));
    assert_eq!(change(19, 3), missing);
    assert_eq!(change(21, 11), Err((Field::FipLength, Reason::TooLong)));
    assert_eq!(
        change(21, 9),
        Err((Field::FipDescriptor, Reason::TooLong)),
        "the last descriptor is longer than the list"
    );
}

#[test]
fn tagged_frame_is_parsed_as_untagged() {
    let frame = sample(Vn2vnMessage::Beacon);
    let mut bytes = emitted(&frame);
    bytes.splice(12..12, [0x81, 0x00, 0x60, 0x2A]);
    let view = FipView::parse(&bytes).unwrap();
    assert_eq!(view.ethernet.vlan_tci, Some(0x602A));
    assert_eq!((view.pdu_bytes, view.vn2vn()), (50, Ok(frame)));
}

/// An LS_RJT of 8 bytes in the descriptor of an FLOGI, as a reply.
fn reject<'a>(payload: &'a [u8; 8]) -> LinkService<'a> {
    LinkService {
        kind: LinkServiceKind::Flogi,
        is_reply: true,
        fc: FcHeader {
            r_ctl: RCtl::ElsReply,
            d_id: NPortId::from_bytes([0, 0, 1]),
            cs_ctl: 0,
            s_id: NPortId::from_bytes([0, 0, 2]),
            fc_type: FcType::Els,
            f_ctl: FCtl(0x98_0000),
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id: 7,
            rx_id: 0xFFFF,
            parameter: 0,
        },
        payload,
        vn_port_mac: None,
    }
}

#[test]
fn link_service_without_mac_address_must_be_ls_rjt() {
    let mut payload = [1, 0, 0, 0, 0, 0x20, 0x62, 0];
    let mut bytes = [0; 60];
    assert_eq!(reject(&payload).emit(DST, DST, &mut bytes), Ok(60));
    let view = FipView::parse(&bytes).unwrap();
    assert_eq!(view.link_service(), Ok(reject(&payload)));
    payload[0] = 2;
    reject(&payload).emit(DST, DST, &mut bytes).unwrap();
    let error = FipView::parse(&bytes).unwrap().link_service();
    assert_eq!(error, Err(MISSING));
}

#[test]
fn link_service_rejects_other_contained_frames() {
    let payload = [1, 0, 0, 0, 0, 0x20, 0x62, 0];
    let mut bytes = vec![0; 60];
    reject(&payload).emit(DST, DST, &mut bytes).unwrap();
    let change = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        let error = FipView::parse(&bytes).unwrap().link_service().unwrap_err();
        (error.field, error.reason)
    };
    let descriptor = |reason| (Field::FipDescriptor, reason);
    assert_eq!(change(17, 5), (Field::FipOperation, Reason::Unknown));
    assert_eq!(change(19, 3), (Field::FipOperation, Reason::Unknown));
    assert_eq!(change(19, 1), (Field::RCtl, Reason::Mismatch));
    assert_eq!(change(24, 6), descriptor(Reason::Mismatch));
    assert_eq!(change(24, 99), descriptor(Reason::Unknown));
    assert_eq!(change(24, 200), descriptor(Reason::Missing));
    assert_eq!(change(28, 0x22), (Field::RCtl, Reason::Mismatch));
    assert_eq!(change(36, 0x08), (Field::FcType, Reason::Unknown));
    // Three fill bytes in the last word leave five payload bytes.
    let filled = |f_ctl: u8| {
        let mut bytes = bytes.clone();
        bytes[39] = f_ctl;
        let view = FipView::parse(&bytes).unwrap();
        view.link_service().map(|service| service.payload.len())
    };
    assert_eq!(filled(3), Ok(5));
    for (words, reason) in [
        (0, Reason::Missing),
        (6, Reason::TooShort),
        (7, Reason::TooShort),
    ] {
        let mut bytes = bytes.clone();
        bytes[25] = words;
        bytes[21] = words;
        let error = FipView::parse(&bytes).unwrap().link_service().unwrap_err();
        assert_eq!(error.reason, reason, "{words} words");
    }
    let mut twice = bytes.clone();
    twice.extend_from_within(24..60);
    let twice = with_list_length(twice);
    let error = FipView::parse(&twice).unwrap().link_service();
    let repeated = ParseError::new(Field::FipDescriptor, Reason::Repeated);
    assert_eq!(error, Err(repeated));
}

#[test]
fn link_service_emit_rejects_invalid_payload_lengths() {
    let payload = [0; 1000];
    for payload_bytes in [0, 3, 5, 993, 996, 1000] {
        let service = LinkService {
            payload: &payload[..payload_bytes],
            ..reject(&[0; 8])
        };
        let frame_bytes = service.bytes();
        let error = service.emit(DST, DST, &mut [0; 1100]);
        assert_eq!(error, Err(EmitError::FrameLength { frame_bytes }));
    }
}

#[test]
fn vn2vn_frames_are_displayed_in_one_line() {
    let mut frame = sample(Vn2vnMessage::ClaimNotification(Claim {
        max_fcoe_bytes: 2158,
        ..Claim::default()
    }));
    frame.port.id.n_port_id = NPortId::from_bytes([0, 0, 7]);
    frame.recorded = true;
    assert_eq!(
        std::format!("{frame}"),
        "claim notification 00.00.07 0000000000000000 at 00:00:00:00:00:00 recorded max 2158"
    );
}
