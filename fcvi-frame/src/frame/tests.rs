use super::*;
use crate::fc::{NPortId, RCtl};
use crate::iu::Opcode;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn fc_header(opcode: Opcode) -> FcHeader {
    FcHeader {
        r_ctl: opcode.r_ctl(),
        d_id: NPortId::from_bytes([0, 2, 2]),
        cs_ctl: 0,
        s_id: NPortId::from_bytes([0, 1, 1]),
        fc_type: FcType::Vi,
        f_ctl: profile::F_CTL_ONE_WAY_LAST,
        seq_id: 1,
        df_ctl: profile::df_ctl(opcode.header_bytes()),
        seq_cnt: 0,
        ox_id: 0x1001,
        rx_id: 0xFFFF,
        parameter: 0,
    }
}

pub(crate) fn header(opcode: Opcode) -> FrameHeader {
    let fc = fc_header(opcode);
    FrameHeader {
        dst: MacAddress::vn2vn(fc.d_id),
        src: MacAddress::vn2vn(fc.s_id),
        sof: Sof::I3,
        fc,
        device: Some(DeviceHeader {
            handle: 7,
            opcode,
            flags: 0,
            msg_id: 0,
            parameter: 0,
            rmt_va: 0,
            rmt_va_handle: 0,
            tot_len: 0,
        }),
    }
}

/// Emits a whole frame, with the fill bytes that the payload needs.
fn frame(mut header: FrameHeader, payload: &[u8], eof: Eof) -> Vec<u8> {
    let fill_bytes = payload.len().wrapping_neg() & 3;
    header.fc.f_ctl = header.fc.f_ctl.with_fill(fill_bytes as u8);
    let mut bytes = vec![0xEE; MAX_HEADER_BYTES];
    let header_bytes = header.emit(&mut bytes).unwrap();
    assert_eq!(header_bytes, header.bytes());
    bytes.truncate(header_bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + fill_bytes + FCOE_TRAILER_BYTES, 0);
    let frame_bytes = bytes.len();
    seal(&mut bytes, frame_bytes, eof).unwrap();
    bytes
}

fn reseal(bytes: &mut [u8]) {
    let frame_bytes = bytes.len();
    seal(bytes, frame_bytes, Eof::T).unwrap();
}

fn error_of(bytes: &[u8]) -> (Field, Reason) {
    let error = FrameView::parse(bytes).unwrap_err();
    (error.field, error.reason)
}

fn iu_error_of(bytes: &[u8]) -> (Field, Reason) {
    let error = FrameView::parse(bytes).unwrap().iu().unwrap_err();
    (error.field, error.reason)
}

fn with_tag(bytes: &[u8]) -> Vec<u8> {
    let mut tagged = bytes[..12].to_vec();
    tagged.extend_from_slice(&[0x81, 0x00, 0x60, 0x03]);
    tagged.extend_from_slice(&bytes[12..]);
    tagged
}

#[test]
fn header_lengths_are_52_68_and_84() {
    let mut header = header(Opcode::SendRequest);
    assert_eq!(header.bytes(), 68);
    header.device = None;
    assert_eq!(header.bytes(), 52);
    for opcode in Opcode::ALL {
        header.device = self::header(opcode).device;
        assert_eq!(header.bytes(), 52 + opcode.header_bytes());
    }
}

#[test]
fn tagged_frame_is_parsed_as_untagged() {
    let bytes = frame(header(Opcode::SendRequest), b"hello", Eof::T);
    let plain = FrameView::parse(&bytes).unwrap();
    let tagged = with_tag(&bytes);
    let tagged = FrameView::parse(&tagged).unwrap();
    assert_eq!(tagged.ethernet.vlan_tci, Some(0x6003));
    assert_eq!(tagged.fc, plain.fc);
    assert_eq!(tagged.data_field(), plain.data_field());
    assert_eq!(tagged.iu().unwrap().payload, b"hello");
    let twice = with_tag(&with_tag(&bytes));
    assert_eq!(error_of(&twice), (Field::EtherType, Reason::Unknown));
}

#[test]
fn parse_error_names_the_invalid_field() {
    let good = frame(header(Opcode::SendRequest), &[1; 8], Eof::T);
    let end = good.len();
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let flip = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    assert_eq!(
        error_of(&good[..13]),
        (Field::EthernetHeader, Reason::TooShort)
    );
    assert_eq!(
        error_of(&with(13, 0x14)),
        (Field::EtherType, Reason::Unknown)
    );
    assert_eq!(error_of(&good[..59]), (Field::Frame, Reason::TooShort));
    assert_eq!(
        error_of(&good[..end - 1]),
        (Field::Frame, Reason::NotMultipleOf4)
    );
    assert_eq!(
        error_of(&with(14, 0x10)),
        (Field::FcoeVersion, Reason::Unknown)
    );
    for sof in (0..=u8::MAX).filter(|sof| ![0x2E, 0x36].contains(sof)) {
        assert_eq!(error_of(&with(27, sof)), (Field::Sof, Reason::Unknown));
    }
    for eof in (0..=u8::MAX).filter(|eof| ![0x41, 0x42].contains(eof)) {
        assert_eq!(error_of(&with(end - 4, eof)), (Field::Eof, Reason::Unknown));
    }
    for at in 28..end - 4 {
        let flipped = flip(at);
        assert_eq!(
            error_of(&flipped),
            (Field::Crc, Reason::BadCrc),
            "byte {at}"
        );
    }
    // Reserved bytes of header and trailer are ignored.
    for at in (15..27).chain(end - 3..end) {
        assert!(FrameView::parse(&with(at, 0xFF)).is_ok());
    }
}

#[test]
fn parse_and_seal_reject_frames_over_the_maximum_length() {
    let longest = frame(header(Opcode::SendRequest), &[7; 2096], Eof::T);
    assert_eq!(longest.len(), MAX_FRAME_BYTES);
    let view = FrameView::parse(&longest).unwrap();
    assert_eq!(view.iu().unwrap().payload.len(), 2096);
    let tagged = with_tag(&longest);
    assert!(FrameView::parse(&tagged).is_ok());
    let mut longer = longest;
    longer.extend_from_slice(&[0; 4]);
    assert_eq!(error_of(&longer), (Field::Frame, Reason::TooLong));
    let frame_bytes = longer.len();
    assert_eq!(
        seal(&mut longer, frame_bytes, Eof::T),
        Err(EmitError::FrameLength { frame_bytes })
    );
}

#[test]
fn fill_is_only_valid_in_last_frames_and_within_the_data_field() {
    let mut header = header(Opcode::SendRequest);
    let bytes = frame(header, b"abcde", Eof::T);
    let view = FrameView::parse(&bytes).unwrap();
    assert_eq!(view.data_field().len(), 16 + 5);

    header.fc.f_ctl = profile::F_CTL_ONE_WAY;
    let bytes = frame(header, b"abcde", Eof::N);
    assert_eq!(error_of(&bytes), (Field::FillBytes, Reason::Mismatch));

    // Fill that reaches into the device_header, or beyond the data field.
    header.fc.f_ctl = profile::F_CTL_ONE_WAY_LAST;
    let mut bytes = frame(header, b"", Eof::T);
    bytes[39] |= 1;
    reseal(&mut bytes);
    assert_eq!(iu_error_of(&bytes), (Field::DeviceHeader, Reason::TooShort));
    header.device = None;
    let mut bytes = frame(header, b"", Eof::T);
    bytes[39] |= 1;
    reseal(&mut bytes);
    assert_eq!(error_of(&bytes), (Field::FillBytes, Reason::TooLong));
}

#[test]
fn iu_rejects_fields_that_do_not_match_the_opcode() {
    for opcode in Opcode::ALL {
        let good = header(opcode);
        let bytes = frame(good, b"", Eof::T);
        assert_eq!(
            FrameView::parse(&bytes).unwrap().iu().unwrap().header,
            good.device.unwrap()
        );

        let mut other = good;
        other.fc.fc_type = FcType::Fcp;
        assert_eq!(
            iu_error_of(&frame(other, b"", Eof::T)),
            (Field::FcType, Reason::Unknown)
        );

        for df_ctl in (0..=u8::MAX).filter(|df_ctl| *df_ctl != good.fc.df_ctl) {
            other = good;
            other.fc.df_ctl = df_ctl;
            assert_eq!(
                iu_error_of(&frame(other, b"", Eof::T)),
                (Field::DfCtl, Reason::Mismatch)
            );
        }
        for r_ctl in (0..=u8::MAX)
            .map(RCtl::from_raw)
            .filter(|r_ctl| *r_ctl != opcode.r_ctl())
        {
            other = good;
            other.fc.r_ctl = r_ctl;
            assert_eq!(
                iu_error_of(&frame(other, b"", Eof::T)),
                (Field::RCtl, Reason::Mismatch)
            );
        }
        for raw in (0..=u8::MAX).filter(|raw| Opcode::from_raw(*raw).is_none()) {
            let mut bytes = bytes.clone();
            bytes[56] = raw;
            reseal(&mut bytes);
            assert_eq!(iu_error_of(&bytes), (Field::Opcode, Reason::Unknown));
        }
        let mut cut = good;
        cut.device = None;
        let device = &bytes[52..52 + opcode.header_bytes() - 4];
        assert_eq!(
            iu_error_of(&frame(cut, device, Eof::T)),
            (Field::DeviceHeader, Reason::TooShort)
        );
    }
}

#[test]
fn seal_rejects_invalid_lengths_and_short_buffers() {
    let mut buf = [0; 80];
    for frame_bytes in 0..80 {
        let valid = frame_bytes >= MIN_FRAME_BYTES && frame_bytes % 4 == 0;
        let result = seal(&mut buf, frame_bytes, Eof::N);
        if valid {
            assert_eq!(result, Ok(()));
            assert_eq!(buf[frame_bytes - 4..frame_bytes], [0x41, 0, 0, 0]);
        } else {
            assert_eq!(result, Err(EmitError::FrameLength { frame_bytes }));
        }
    }
    assert_eq!(
        seal(&mut buf, 84, Eof::N),
        Err(EmitError::BufferTooShort { needed_bytes: 84 })
    );
}

prop_compose! {
    fn any_device_header()(
        at in 0..Opcode::ALL.len(),
        (handle, flags, msg_id, parameter) in any::<(u32, u8, u32, u32)>(),
        (rmt_va, rmt_va_handle, tot_len) in any::<(u64, u32, u32)>(),
    ) -> DeviceHeader {
        let opcode = Opcode::ALL[at];
        let long = opcode.header_bytes() == 32;
        DeviceHeader {
            handle,
            opcode,
            flags,
            msg_id,
            parameter,
            rmt_va: if long { rmt_va } else { 0 },
            rmt_va_handle: if long { rmt_va_handle } else { 0 },
            tot_len: if long { tot_len } else { 0 },
        }
    }
}

prop_compose! {
    /// A header whose R_CTL, TYPE and DF_CTL match its device_header.
    fn any_header()(
        device in any_device_header(),
        macs in any::<[[u8; 6]; 2]>(),
        fc in any::<[u8; 24]>(),
        first in any::<bool>(),
    ) -> FrameHeader {
        let fc = FcHeader {
            r_ctl: device.opcode.r_ctl(),
            fc_type: FcType::Vi,
            df_ctl: profile::df_ctl(device.opcode.header_bytes()),
            ..FcHeader::parse(&fc)
        };
        FrameHeader {
            dst: MacAddress(macs[0]),
            src: MacAddress(macs[1]),
            sof: if first { Sof::I3 } else { Sof::N3 },
            fc: FcHeader { f_ctl: fc.f_ctl.union(FCtl::END_SEQUENCE), ..fc },
            device: Some(device),
        }
    }
}

prop_compose! {
    /// The headers of a template, with a device_header or without, what one frame changes in it, and
    /// the frame's end.
    pub(crate) fn any_frame()(
        base in any_header(),
        wanted in any_header(),
        (with_device, last) in any::<(bool, bool)>(),
    ) -> (FrameHeader, PerFrame, Eof) {
        let device = base.device.filter(|_| with_device);
        let eof = if last { Eof::T } else { Eof::N };
        (FrameHeader { device, ..base }, PerFrame::of(&wanted), eof)
    }
}

#[test]
fn frame_is_emitted_only_with_a_valid_length_and_enough_room() {
    let header = header(Opcode::SendRequest);
    let mut out = [0xEE; 2300];
    for payload_bytes in [2096, 2097, 2200] {
        let payload = vec![7; payload_bytes];
        let emitted = header.emit_frame(&payload, Eof::T, &mut out);
        let frame_bytes = 68 + payload_bytes.next_multiple_of(4) + 8;
        if payload_bytes == 2096 {
            assert_eq!(emitted, Ok(frame_bytes));
            let short = header.emit_frame(&payload, Eof::T, &mut out[..frame_bytes - 1]);
            let needed_bytes = frame_bytes;
            assert_eq!(short, Err(EmitError::BufferTooShort { needed_bytes }));
        } else {
            assert_eq!(emitted, Err(EmitError::FrameLength { frame_bytes }));
        }
        assert!(out[2172..].iter().all(|byte| *byte == 0xEE));
    }
}

proptest! {
    #![proptest_config(crate::test_seed::config())]

    #[test]
    fn frames_round_trip(
        header in any_header(),
        payload in proptest::collection::vec(any::<u8>(), 0..=2080),
        last: bool,
    ) {
        let eof = if last { Eof::T } else { Eof::N };
        let bytes = frame(header, &payload, eof);
        let view = FrameView::parse(&bytes).unwrap();
        prop_assert_eq!((view.sof, view.eof), (header.sof, eof));
        prop_assert_eq!((view.ethernet.dst, view.ethernet.src), (header.dst, header.src));
        let fill = payload.len().wrapping_neg() as u8 & 3;
        let fc = FcHeader { f_ctl: header.fc.f_ctl.with_fill(fill), ..header.fc };
        prop_assert_eq!(view.fc, fc);
        let iu = view.iu().unwrap();
        prop_assert_eq!(Some(iu.header), header.device);
        prop_assert_eq!(iu.payload, &payload[..]);
    }

    /// A template and [`FrameHeader`] emit the encoded header, and nothing behind it.
    #[test]
    fn template_emits_the_same_header(
        base in any_header(),
        wanted in any_header(),
        with_device: bool,
    ) {
        let device = base.device.filter(|_| with_device);
        let mut template = HeaderTemplate::new(&FrameHeader { device, ..base });
        template.set_rx_id(wanted.fc.rx_id);
        let changes = wanted.device.unwrap();
        let expected = FrameHeader {
            sof: wanted.sof,
            fc: FcHeader {
                f_ctl: wanted.fc.f_ctl,
                seq_id: wanted.fc.seq_id,
                seq_cnt: wanted.fc.seq_cnt,
                ox_id: wanted.fc.ox_id,
                rx_id: wanted.fc.rx_id,
                parameter: wanted.fc.parameter,
                ..base.fc
            },
            device: device.map(|device| DeviceHeader {
                handle: device.handle,
                opcode: device.opcode,
                ..changes
            }),
            ..base
        };
        let per_frame = PerFrame::of(&wanted);
        let (mut by_template, mut whole) = ([0xEE; 90], [0xEE; 90]);
        let bytes = template.emit(&per_frame, &mut by_template).unwrap();
        prop_assert_eq!(bytes, template.bytes());
        prop_assert_eq!(expected.emit(&mut whole), Ok(bytes));
        let image = expected.image();
        for out in [&by_template, &whole] {
            prop_assert_eq!(&out[..bytes], &image[..bytes]);
            prop_assert!(out[bytes..].iter().all(|byte| *byte == 0xEE));
        }
        let short = Err(EmitError::BufferTooShort { needed_bytes: bytes });
        prop_assert_eq!(template.emit(&per_frame, &mut by_template[..bytes - 1]), short);
        prop_assert_eq!(expected.emit(&mut whole[..bytes - 1]), short);
    }

    #[test]
    fn parse_accepts_or_rejects_any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..2300),
    ) {
        // A valid Ethernet header lets some inputs reach the inner parsers.
        for prefix in [&[][..], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 0x06, 0]] {
            let bytes = [prefix, &bytes].concat();
            if let Ok(view) = FrameView::parse(&bytes) {
                prop_assert!(view.data_field().len() <= MAX_DATA_FIELD_BYTES);
                prop_assert!(view.iu().is_ok_and(|iu| iu.payload.len() < view.data_field().len()));
            }
        }
    }

    /// With a valid CRC any content reaches the inner parsers.
    #[test]
    fn parse_accepts_or_rejects_any_content_with_valid_crc(
        (first, last) in any::<(bool, bool)>(),
        content in proptest::collection::vec(any::<[u8; 4]>(), 6..100),
        vi: bool,
        opcode in 0..Opcode::ALL.len(),
    ) {
        let mut content = content.concat();
        if vi {
            // Valid TYPE and opcode.
            content[8] = 0x58;
            if let Some(raw) = content.get_mut(28) {
                *raw = Opcode::ALL[opcode].raw();
            }
        }
        let mut bytes = vec![0; 28];
        bytes[12..14].copy_from_slice(&ETHERTYPE_FCOE.to_be_bytes());
        bytes[27] = if first { 0x2E } else { 0x36 };
        bytes.extend_from_slice(&content);
        bytes.extend_from_slice(&[0; 8]);
        let frame_bytes = bytes.len();
        seal(&mut bytes, frame_bytes, if last { Eof::T } else { Eof::N }).unwrap();
        match FrameView::parse(&bytes) {
            Ok(view) => {
                if let Ok(iu) = view.iu() {
                    let parts = iu.header.opcode.header_bytes() + iu.payload.len();
                    prop_assert_eq!(parts, view.data_field().len());
                }
            }
            Err(error) => prop_assert_eq!(error.field, Field::FillBytes),
        }
    }
}
