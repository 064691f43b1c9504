//! Payloads of frames: accepted ones round-trip.
//!
//! Reserved bytes are not kept, so values are compared; emitted bytes are identical the second
//! time.

use std::fmt::Debug;

use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::connect::{ConnectRequest, ConnectResponse};
use fcvi_frame::els::{Adisc, ElsCommand, Farp, Login, Logo, LsRjt, ProcessLogin, Rrq, RtvAccept};
use fcvi_frame::error::ParseError;
use fcvi_frame::fip::FipView;
use fcvi_frame::gaps::{MissingRange, MissingRanges, emit as emit_ranges};

/// Parses a payload, emits the value, and parses it again.
fn round_trip<const N: usize, T: Debug + PartialEq>(
    payload: &[u8],
    parse: impl Fn(&[u8]) -> Result<T, ParseError>,
    emit: impl Fn(&T, &mut [u8; N]),
) {
    let Ok(value) = parse(payload) else { return };
    assert_eq!(payload.len(), N, "{value:?} of another length");
    let (mut once, mut twice) = ([0xEE; N], [0x11; N]);
    emit(&value, &mut once);
    let again = parse(&once).expect("emitted bytes");
    assert_eq!(again, value);
    emit(&again, &mut twice);
    assert_eq!(once, twice, "bytes that are not emitted");
}

/// Checks payloads of connect IUs, and gap reports.
///
/// # Panics
/// If one does not round-trip.
pub fn check_connect(payload: &[u8]) {
    round_trip(payload, ConnectRequest::parse, ConnectRequest::emit);
    round_trip(payload, ConnectResponse::parse, ConnectResponse::emit);
    let ranges = MissingRanges::parse(payload);
    let is_report = payload.len().is_multiple_of(12) && (1..=16).contains(&(payload.len() / 12));
    assert_eq!(ranges.is_ok(), is_report);
    if let Ok(ranges) = ranges {
        let ranges: Vec<MissingRange> = ranges.iter().collect();
        let mut out = [0xEE; 192];
        let bytes = emit_ranges(&ranges, &mut out);
        assert_eq!(&out[..bytes], payload);
    }
}

/// Checks basic link services.
///
/// # Panics
/// If one does not round-trip.
pub fn check_bls(payload: &[u8]) {
    round_trip(payload, BaAcc::parse, BaAcc::emit);
    round_trip(payload, BaRjt::parse, BaRjt::emit);
}

/// Checks extended link services.
///
/// # Panics
/// If one does not round-trip.
pub fn check_els(payload: &[u8]) {
    round_trip(payload, Adisc::parse_request, Adisc::emit_request);
    round_trip(payload, Adisc::parse_accept, Adisc::emit_accept);
    round_trip(payload, Logo::parse, Logo::emit);
    round_trip(payload, LsRjt::parse, LsRjt::emit);
    round_trip(payload, Rrq::parse, Rrq::emit);
    round_trip(payload, RtvAccept::parse, RtvAccept::emit);
    for command in [ElsCommand::FarpRequest, ElsCommand::FarpReply] {
        round_trip(
            payload,
            |bytes| Farp::parse(command, bytes),
            |farp: &Farp, out| farp.emit(command, out),
        );
    }
    for command in [ElsCommand::Plogi, ElsCommand::Flogi, ElsCommand::LsAcc] {
        round_trip(
            payload,
            |bytes| Login::parse(command, bytes),
            |login: &Login, out| login.emit(command, out),
        );
    }
    for command in [ElsCommand::Prli, ElsCommand::Prlo, ElsCommand::LsAcc] {
        check_process(command, payload);
    }
}

fn check_process(command: ElsCommand, payload: &[u8]) {
    let Ok(login) = ProcessLogin::parse(command, payload) else {
        return;
    };
    let pages: Vec<_> = login.pages().collect();
    assert_eq!(4 + 16 * pages.len(), payload.len());
    let mut out = [0xEE; 116];
    let bytes = ProcessLogin::emit(command, pages.iter().copied(), &mut out);
    let again = ProcessLogin::parse(command, &out[..bytes]).expect("emitted bytes");
    assert!(again.pages().eq(pages.iter().copied()), "{pages:?}");
}

/// Checks FIP frames: those of VN2VN, and link services.
///
/// # Panics
/// If one does not round-trip.
pub fn check_fip(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    check_fip_frame(&bytes);
    if bytes.len() >= 24 {
        // Random bytes are rarely a FIP frame: makes them one of a known operation.
        bytes[12..14].copy_from_slice(&[0x89, 0x14]);
        bytes[14] = 0x10;
        bytes[16] = 0;
        bytes[17] = 2 + 3 * (bytes[17] & 1);
        bytes[19] = 1 + bytes[19] % 5;
        let max_words = (bytes.len() - 24) / 4;
        let words = usize::from(u16::from_be_bytes([bytes[20], bytes[21]])).min(max_words) as u16;
        bytes[20..22].copy_from_slice(&words.to_be_bytes());
        check_fip_frame(&bytes);
    }
}

fn check_fip_frame(bytes: &[u8]) {
    let Ok(view) = FipView::parse(bytes) else {
        return;
    };
    // An endless list would be detected as a hang.
    let _ = view.descriptors().count();
    let mut out = [0xEE; 2200];
    if let Ok(frame) = view.vn2vn() {
        let written = frame.emit(view.ethernet.dst, 0, &mut out);
        assert_eq!(written, Ok(frame.bytes()));
        let again = FipView::parse(&out[..frame.bytes()]).expect("emitted bytes");
        assert_eq!(again.vn2vn(), Ok(frame));
    }
    if let Ok(service) = view.link_service() {
        let (dst, src) = (view.ethernet.dst, view.ethernet.src);
        let written = service.emit(dst, src, &mut out);
        // Fill bytes are accepted, and never emitted.
        let has_fill = service.fc.f_ctl.fill_bytes() > 0;
        assert_eq!(written.ok(), (!has_fill).then_some(service.bytes()));
        if !has_fill {
            let again = FipView::parse(&out[..service.bytes()]).expect("emitted bytes");
            assert_eq!(again.link_service(), Ok(service));
        }
    }
}
