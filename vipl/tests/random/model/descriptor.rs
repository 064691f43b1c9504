//! Decoding and validation of posted descriptors (VIPL 5).

use std::rc::Rc;

use vi_types::QueueKind;

use super::tables::{Tables, Use, ViFacts};

/// Error bits of a status word (VIPL 5.2).
pub(crate) mod errors {
    pub(crate) const FORMAT: u32 = 1 << 1;
    pub(crate) const PROTECTION: u32 = 1 << 2;
    pub(crate) const LENGTH: u32 = 1 << 3;
    pub(crate) const PARTIAL: u32 = 1 << 4;
    pub(crate) const FLUSHED: u32 = 1 << 5;
    pub(crate) const RDMA_PROTECTION: u32 = 1 << 7;
    pub(crate) const REMOTE_DESCRIPTOR: u32 = 1 << 8;
    pub(crate) const ALL: u32 = 0xFFFE;
}

/// A data segment, or the address segment of an RDMA operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) handle: u32,
    pub(crate) length: u32,
}

/// A posted descriptor, decoded from its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    /// Unique number within a program.
    pub(crate) id: u64,
    pub(crate) kind: QueueKind,
    pub(crate) address: u64,
    /// Memory handle of its region.
    pub(crate) handle: u32,
    /// 0 send or receive, 1 RDMA write, 2 RDMA read, 3 undefined.
    pub(crate) operation: u16,
    pub(crate) immediate: Option<u32>,
    pub(crate) length_bytes: u32,
    pub(crate) remote: Option<Segment>,
    pub(crate) segments: Vec<Segment>,
    /// Errors that do not depend on regions.
    pub(crate) faults: u32,
    /// Processed only when all earlier reads of the queue are complete.
    pub(crate) fence: bool,
    /// Bytes of the data segments of a send or write; of a read those at the remote address.
    pub(crate) payload: Rc<[u8]>,
    /// The control segment at the time of the post.
    pub(crate) control: [u8; CONTROL_BYTES as usize],
}

/// Bytes of a control segment.
pub(crate) const CONTROL_BYTES: u64 = 32;
const SEGMENT_BYTES: u64 = 16;
/// The operation of an RDMA read.
const READ: u16 = 2;
/// Offset of the status word, which a post clears.
const STATUS: usize = 28;

/// Result of decoding a posted descriptor.
#[derive(Clone, Debug)]
pub(crate) enum DecodedPost {
    /// Post Descriptor Error (VIPL 3.8.1).
    Unreadable {
        address: u64,
    },
    Readable(Rc<Posted>),
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn segment_at(bytes: &[u8], at: usize) -> Segment {
    Segment {
        address: u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32,
        handle: u32_at(bytes, at + 8),
        length: u32_at(bytes, at + 12),
    }
}

/// Decodes a descriptor and determines its permanent errors. `bytes` has the descriptor, `payload` reads the bytes of
/// data segments.
pub(crate) fn decode_post(
    tables: &Tables,
    vi: &ViFacts,
    kind: QueueKind,
    (id, address, handle): (u64, u64, u32),
    bytes: &[u8],
    payload: impl FnOnce(&[Segment]) -> Vec<u8>,
) -> DecodedPost {
    let is_writable = |length| tables.allows(vi, handle, address, length, Use::Write);
    // A descriptor is 64-byte aligned and in memory that the VI may use (VIPL 3.8.1, 4.1).
    if !address.is_multiple_of(64) || !is_writable(CONTROL_BYTES) {
        return DecodedPost::Unreadable { address };
    }
    let count = u32::from(u16_at(bytes, 12));
    let control = u16_at(bytes, 14);
    let reserved = u32_at(bytes, 16);
    let length_bytes = u32_at(bytes, 24);
    let operation = control & 3;
    let reads = vi.attributes.reliability & tables.limits.rdma_read_levels != 0;
    let too_many = count > tables.limits.segments;
    if !too_many && !is_writable(CONTROL_BYTES + u64::from(count) * SEGMENT_BYTES) {
        return DecodedPost::Unreadable { address };
    }
    let mut faults = 0;
    if too_many {
        faults |= errors::LENGTH;
    }
    if control >> 4 != 0 || reserved != 0 {
        faults |= errors::FORMAT;
    }
    let mut segments: Vec<Segment> = (0..count as usize)
        .filter(|_| !too_many)
        .map(|index| segment_at(bytes, 32 + 16 * index))
        .collect();
    let mut remote = None;
    match (kind, operation) {
        (QueueKind::Send | QueueKind::Receive, 0) => {}
        // RDMA reads are supported at some levels only (VIPL 4.5, 4.6).
        (QueueKind::Send, 2) if !reads => faults |= errors::FORMAT,
        (QueueKind::Send, 1 | 2) if segments.is_empty() => faults |= errors::FORMAT,
        (QueueKind::Send, 1 | 2) => {
            let address_segment = segments.remove(0);
            if address_segment.length != 0 {
                faults |= errors::FORMAT;
            }
            remote = Some(address_segment);
        }
        (QueueKind::Send | QueueKind::Receive, _) => faults |= errors::FORMAT,
    }
    let sum: u64 = segments.iter().map(|s| u64::from(s.length)).sum();
    let limit = vi.attributes.max_transfer_bytes;
    if kind == QueueKind::Send
        && (sum != u64::from(length_bytes) || u64::from(length_bytes) > limit)
    {
        faults |= errors::LENGTH;
    }
    let payload = if faults == 0 && kind == QueueKind::Send {
        match remote.filter(|_| operation == READ) {
            Some(remote) => payload(&[Segment {
                length: length_bytes,
                ..remote
            }]),
            None => payload(&segments),
        }
    } else {
        Vec::new()
    };
    DecodedPost::Readable(Rc::new(Posted {
        id,
        kind,
        address,
        handle,
        operation,
        // Ignored in a read (VIPL 5.2).
        immediate: (control & 4 != 0 && operation != READ).then(|| u32_at(bytes, 20)),
        fence: control & 8 != 0,
        length_bytes,
        remote,
        segments,
        faults,
        payload: payload.into(),
        control: core::array::from_fn(|at| if at < STATUS { bytes[at] } else { 0 }),
    }))
}

impl Posted {
    /// Returns its present errors, including those of regions.
    pub(crate) fn faults_now(&self, tables: &Tables, vi: &ViFacts) -> u32 {
        let wanted = match self.kind {
            QueueKind::Send if !self.is_read() => Use::Read,
            QueueKind::Send | QueueKind::Receive => Use::Write,
        };
        let allowed = own_memory(tables, vi, self)
            && self.segments.iter().all(|s| {
                s.length == 0 || tables.allows(vi, s.handle, s.address, u64::from(s.length), wanted)
            });
        self.faults | if allowed { 0 } else { errors::PROTECTION }
    }

    pub(crate) fn is_read(&self) -> bool {
        self.kind == QueueKind::Send && self.operation == READ
    }

    /// Total length of the data segments.
    pub(crate) fn capacity(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.length)).sum()
    }

    /// The completed-operation code; `None` if the guide does not specify it.
    pub(crate) fn completed_operation(&self) -> Option<u32> {
        match (self.kind, self.operation) {
            (QueueKind::Receive, _) => Some(1),
            (QueueKind::Send, 0) => Some(0),
            (QueueKind::Send, 1) => Some(2),
            (QueueKind::Send, READ) if self.faults & errors::FORMAT == 0 => Some(4),
            (QueueKind::Send, _) => None,
        }
    }
}

/// Returns whether the provider may write the completion into the descriptor.
pub(crate) fn own_memory(tables: &Tables, vi: &ViFacts, posted: &Posted) -> bool {
    tables.allows(vi, posted.handle, posted.address, CONTROL_BYTES, Use::Write)
}
