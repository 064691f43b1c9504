//! VI/TCP headers: compares parsing, errors and emitting with [`reference`](mod@reference).

use vitcp_lite::{Attributes, CeHeader, Discriminator, RdmaHeader, Security, SegmentHeader};

use crate::input::Input;
use crate::reference;

/// A length above the maximum of discriminators and Security Information.
const TOO_LONG: usize = 300;

/// Checks the input as a CE header, as the other headers, and as values of a CE header.
///
/// # Panics
/// If a header is parsed differently from the reference, or does not round-trip.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let is_repaired = input.byte() & 1 == 1;
    let mut bytes = input.rest().to_vec();
    check_ce(&bytes);
    if is_repaired && bytes.len() >= 44 {
        // Valid lengths: random bytes rarely have them.
        for at in [2, 26] {
            bytes[at] = 0;
            bytes[at + 1] %= 18;
        }
        check_ce(&bytes);
    }
    if let Some(header) = bytes.first_chunk_mut() {
        check_segment(header);
        reference::set_boundary_length(header);
        check_segment(header);
    }
    if let Some(header) = bytes.first_chunk() {
        let rdma = RdmaHeader::parse(header);
        assert_eq!(rdma, reference::rdma(header));
        let mut out = [0xEE; 16];
        rdma.emit(&mut out);
        assert_eq!(out, *header);
    }
    check_values(&mut input);
}

fn check_ce(bytes: &[u8]) {
    let parsed = CeHeader::parse(bytes);
    assert_eq!(parsed, reference::ce(bytes));
    let Ok(header) = parsed else { return };
    assert_eq!(header.bytes(), bytes.len());
    let written = written(&header);
    assert_eq!(written, reference::canonical_ce(bytes));
    assert_eq!(CeHeader::parse(&written), Ok(header));
}

/// Emits a header, and checks that it writes only the returned bytes.
fn written(header: &CeHeader) -> Vec<u8> {
    let mut out = [0xEE; TOO_LONG + 8];
    let bytes = header.emit(&mut out).expect("a long buffer");
    assert_eq!(bytes, header.bytes());
    assert!(out[bytes..].iter().all(|byte| *byte == 0xEE));
    assert_eq!(header.emit(&mut out[..bytes - 1]), None);
    assert_eq!(header.emit(&mut out[..bytes]), Some(bytes));
    out[..bytes].to_vec()
}

/// Checks that every bit of a segment header round-trips.
fn check_segment(bytes: &[u8; 24]) {
    let parsed = SegmentHeader::parse(bytes);
    assert_eq!(parsed, reference::segment(bytes));
    let Ok(header) = parsed else { return };
    assert_eq!(
        header.extension_bytes(),
        reference::extension_bytes(header.kind, header.segment_bytes)
    );
    let payload = if header.kind.has_payload() {
        usize::from(header.segment_bytes) - 24 - header.extension_bytes()
    } else {
        0
    };
    assert_eq!(usize::from(header.payload_bytes()), payload);
    let mut out = [0xEE; 24];
    header.emit(&mut out);
    assert_eq!(out, *bytes);
}

/// Checks that a header of valid values round-trips, and that too long values are rejected.
fn check_values(input: &mut Input<'_>) {
    let attributes = input.u16();
    let (mtu_bytes, read_window) = (input.u32(), input.u16());
    let [calling, called] = [(); 2].map(|()| {
        let length = usize::from(input.byte() % 20);
        let bytes = input.bytes(length);
        let discriminator = Discriminator::new(bytes);
        assert_eq!(discriminator.is_some(), bytes.len() <= 16);
        let discriminator = discriminator.unwrap_or_default();
        assert!(discriminator.as_bytes() == bytes || bytes.len() > 16);
        discriminator
    });
    let secret = input.bytes(TOO_LONG);
    let security = Security::new(secret);
    assert_eq!(security.is_some(), secret.len() <= 256);
    let header = CeHeader {
        attributes: Attributes::from_bits(attributes),
        mtu_bytes,
        calling,
        called,
        read_window,
        security: security.unwrap_or_default(),
    };
    let written = written(&header);
    assert_eq!(CeHeader::parse(&written), Ok(header));
    assert_eq!(reference::ce(&written), Ok(header));
    assert_eq!(
        header.security.as_bytes().is_empty(),
        header.security.is_empty()
    );
}
