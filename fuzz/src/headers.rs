//! VI/TCP headers: what is read is what stands there, what is refused is refused for the
//! reason that the documentation has, and what is written is read again.

use vitcp_lite::{Attributes, CeHeader, Discriminator, RdmaHeader, Security, SegmentHeader};

use crate::input::Input;
use crate::reference;

/// Longer than any discriminator and any Security Information.
const TOO_LONG: usize = 300;

/// Bytes as a CE header, as the other headers, and as the values of a CE header.
///
/// # Panics
/// If a header is not read as the reference does, or does not come back.
pub fn check(data: &[u8]) {
    let mut input = Input::new(data);
    let is_repaired = input.byte() & 1 == 1;
    let mut bytes = input.rest().to_vec();
    check_ce(&bytes);
    if is_repaired && bytes.len() >= 44 {
        // Lengths that can be, or random bytes hardly ever come further.
        for at in [2, 26] {
            bytes[at] = 0;
            bytes[at + 1] %= 18;
        }
        check_ce(&bytes);
    }
    if let Some(header) = bytes.first_chunk_mut() {
        check_segment(header);
        reference::to_the_brink(header);
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

/// What a header writes, and that it writes no more than that.
fn written(header: &CeHeader) -> Vec<u8> {
    let mut out = [0xEE; TOO_LONG + 8];
    let bytes = header.emit(&mut out).expect("there is room");
    assert_eq!(bytes, header.bytes());
    assert!(out[bytes..].iter().all(|byte| *byte == 0xEE));
    assert_eq!(header.emit(&mut out[..bytes - 1]), None);
    assert_eq!(header.emit(&mut out[..bytes]), Some(bytes));
    out[..bytes].to_vec()
}

/// Every bit of a segment header says something: all of them come back.
fn check_segment(bytes: &[u8; 24]) {
    let parsed = SegmentHeader::parse(bytes);
    assert_eq!(parsed, reference::segment(bytes));
    let Ok(header) = parsed else { return };
    assert_eq!(
        header.behind_bytes(),
        reference::behind(header.kind, header.segment_bytes)
    );
    let payload = if header.kind.has_payload() {
        usize::from(header.segment_bytes) - 24 - header.behind_bytes()
    } else {
        0
    };
    assert_eq!(usize::from(header.payload_bytes()), payload);
    let mut out = [0xEE; 24];
    header.emit(&mut out);
    assert_eq!(out, *bytes);
}

/// A header made of values is written as the values, and longer ones cannot be made.
fn check_values(input: &mut Input<'_>) {
    let attributes = input.u16();
    let (mtu_bytes, read_window) = (input.u32(), input.u16());
    let [calling, called] = [(); 2].map(|()| {
        let length = usize::from(input.byte() % 20);
        let bytes = input.bytes(length);
        let made = Discriminator::new(bytes);
        assert_eq!(made.is_some(), bytes.len() <= 16);
        let made = made.unwrap_or_default();
        assert!(made.as_bytes() == bytes || bytes.len() > 16);
        made
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
