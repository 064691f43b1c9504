//! Reference parser of VI/TCP headers, written from the byte tables of `docs/spec/vitcp.md`, with
//! numeric offsets and all bytes in memory.

use vitcp_lite::{
    Attributes, CeHeader, Discriminator, ExactLevel, Flags, RdmaHeader, RemoteError, Security,
    SegmentError, SegmentHeader, SegmentType,
};

/// Reads the big-endian number of `bytes` bytes at offset `at`.
#[must_use]
pub fn number(from: &[u8], at: usize, bytes: usize) -> u64 {
    from[at..at + bytes]
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn u16_at(from: &[u8], at: usize) -> u16 {
    number(from, at, 2) as u16
}

fn u32_at(from: &[u8], at: usize) -> u32 {
    number(from, at, 4) as u32
}

/// True if a segment of this type may have this length, not counting the limit of its Security
/// Information.
#[must_use]
pub const fn is_valid_length(kind: SegmentType, bytes: u16) -> bool {
    match kind {
        SegmentType::Send => bytes >= 24,
        SegmentType::ReadRequest => bytes == 40,
        SegmentType::ReadResponse | SegmentType::Write => bytes >= 40,
        SegmentType::Nop | SegmentType::ConnectNoMatch => bytes == 24,
        SegmentType::ConnectRequest | SegmentType::ConnectAccept => bytes >= 68,
        SegmentType::ConnectReject => bytes == 24 || bytes >= 68,
    }
}

/// Sets our Version, a known type, and a boundary value of the lengths of all types, which random
/// bytes rarely have.
pub fn set_boundary_length(header: &mut [u8]) {
    const BOUNDARIES: [u16; 14] = [0, 23, 24, 25, 39, 40, 41, 67, 68, 69, 323, 324, 325, 65535];
    let kind = usize::from(header[1] >> 3) % SegmentType::ALL.len();
    let length = BOUNDARIES[usize::from(header[3]) % BOUNDARIES.len()];
    header[0] = 1;
    header[1] = (kind as u8) << 3 | header[1] & 7;
    header[2..4].copy_from_slice(&length.to_be_bytes());
}

/// Returns the length of the headers extension_bytes the segment header in bytes.
#[must_use]
pub const fn extension_bytes(kind: SegmentType, segment_bytes: u16) -> usize {
    match kind {
        SegmentType::Send | SegmentType::Nop | SegmentType::ConnectNoMatch => 0,
        SegmentType::ReadRequest | SegmentType::ReadResponse | SegmentType::Write => 16,
        SegmentType::ConnectRequest | SegmentType::ConnectAccept | SegmentType::ConnectReject => {
            segment_bytes as usize - 24
        }
    }
}

/// Parses the segment header in the first 24 bytes.
///
/// # Errors
/// The first invalid field.
pub fn segment(from: &[u8]) -> Result<SegmentHeader, SegmentError> {
    if from[0] != 1 {
        return Err(SegmentError::Version(from[0]));
    }
    let raw = from[1] >> 3;
    let kind = *SegmentType::ALL
        .get(usize::from(raw))
        .ok_or(SegmentError::Type(raw))?;
    let segment_bytes = u16_at(from, 2);
    if !is_valid_length(kind, segment_bytes) {
        return Err(SegmentError::Length {
            kind,
            segment_bytes,
        });
    }
    let is_connect = raw >= 5;
    if is_connect && segment_bytes > 24 + 44 + 256 {
        return Err(SegmentError::Security {
            bytes: segment_bytes - 68,
        });
    }
    Ok(SegmentHeader {
        kind,
        flags: Flags::from_bits(from[1] & 7),
        segment_bytes,
        data_offset: u32_at(from, 4),
        immediate: u32_at(from, 8),
        message: u32_at(from, 12),
        ack: u32_at(from, 16),
        rx_posted: u16_at(from, 20),
        remote_error: RemoteError::from_bits(u16_at(from, 22)),
    })
}

/// Parses the RDMA header in the first 16 bytes.
#[must_use]
pub fn rdma(from: &[u8]) -> RdmaHeader {
    RdmaHeader {
        address: number(from, 0, 8),
        handle: u32_at(from, 8),
        total_bytes: u32_at(from, 12),
    }
}

fn attributes(bits: u16) -> Attributes {
    let is = |bit: u32| bits >> bit & 1 == 1;
    Attributes {
        reliable: is(0),
        rdma_write: is(1),
        rdma_read: is(2),
        flow_control: is(3),
        peer_to_peer: is(4),
        level: [
            ExactLevel::Unspecified,
            ExactLevel::Delivery,
            ExactLevel::Reception,
            ExactLevel::Unknown,
        ][usize::from(bits >> 5 & 3)],
    }
}

/// Parses a CE header of the length of `from`.
///
/// # Errors
/// The first invalid field.
pub fn ce(from: &[u8]) -> Result<CeHeader, SegmentError> {
    let clamped = |bytes: usize| bytes.min(65535) as u16;
    if from.len() < 44 {
        return Err(SegmentError::CeHeader {
            bytes: clamped(from.len()),
        });
    }
    let (calling, called) = (u16_at(from, 2), u16_at(from, 26));
    if calling > 16 {
        return Err(SegmentError::CallingDiscriminator { bytes: calling });
    }
    if called > 16 {
        return Err(SegmentError::CalledDiscriminator { bytes: called });
    }
    if from.len() > 44 + 256 {
        return Err(SegmentError::Security {
            bytes: clamped(from.len() - 44),
        });
    }
    let discriminator = |at: usize, bytes: u16| {
        Discriminator::new(&from[at..at + usize::from(bytes)]).expect("no more than 16 bytes")
    };
    Ok(CeHeader {
        attributes: attributes(u16_at(from, 0)),
        mtu_bytes: u32_at(from, 4),
        calling: discriminator(8, calling),
        called: discriminator(28, called),
        read_window: u16_at(from, 24),
        security: Security::new(&from[44..]).expect("no more than 256 bytes"),
    })
}

/// Returns a valid CE header in its emitted form: ignored bytes are 0.
#[must_use]
pub fn canonical_ce(from: &[u8]) -> Vec<u8> {
    let mut bytes = from.to_vec();
    // Unknown attributes are emitted as 0.
    bytes[..2].copy_from_slice(&(u16_at(from, 0) & 0x7F).to_be_bytes());
    let (calling, called) = (u16_at(from, 2), u16_at(from, 26));
    bytes[8 + usize::from(calling)..24].fill(0);
    bytes[28 + usize::from(called)..44].fill(0);
    bytes
}
