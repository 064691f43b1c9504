//! Messages between two VIs of this NIC: copied from the memory of one to the memory of the other,
//! without frames.

use vi_core::descriptor::DataSegment;
use vi_core::memory::Access;
use vi_core::memory::copy::{self, LAST_BYTES, before_ordered};
use vi_core::memory::table::RegionTable;
use vi_core::memory::transfer::{Fault, Mover, RdmaRange, SegmentRange, TransferEnd};
use vi_core::posted_descriptor::{Cursor, still_valid};
use vi_core::queue::Slot;
use vi_engine::Moved;
use vi_types::{Operation, ViIndex};

use super::{Memory, ServedApplications, ViPath, client_memory};

/// Copies a part of the message whose descriptor is next on the send queue of `vi`; see
/// [`vi_engine::EngineIo::move_message`].
pub(super) fn move_part(
    vis: &mut [Option<ViPath>],
    Memory { regions, mover }: Memory<'_>,
    served: Option<&mut dyn ServedApplications>,
    (vi, other): (ViIndex, ViIndex),
    operation: Operation,
    (offset_bytes, bytes): (u32, u32),
) -> Moved {
    let indices = [vi.0 as usize, other.0 as usize];
    let Ok([Some(own), Some(other)]) = vis.get_disjoint_mut(indices) else {
        return Moved::RemoteInvalid;
    };
    let queue = &own.shared.send;
    // SAFETY: we hold the backend lock; the reference ends with this call, and the only other
    // one is to a slot of the other VI.
    let Some(slot) = (unsafe { queue.ahead(own.in_flight) }) else {
        return Moved::LocalInvalid;
    };
    if !still_valid(slot, regions, own.tag, slot.access()) {
        return Moved::LocalInvalid;
    }
    if own.tag.is_client() || other.tag.is_client() {
        let from = slot.mapped_address(offset_bytes, bytes);
        let to = match operation {
            Operation::Send => mapped_target(other, regions, offset_bytes, bytes),
            Operation::Write { .. } | Operation::Read { .. } => None,
        };
        if let Some((from, to)) = from.zip(to) {
            // SAFETY: both belong to applications and were found valid in this epoch, one for
            // reading and one for writing; deregistration begins another epoch, which needs
            // the backend lock.
            unsafe { copy::between(from, to, bytes as usize) };
            return Moved::All;
        }
        if operation == Operation::Send
            && bytes == slot.length_bytes
            && let Some(from) = from
            // SAFETY: found valid for reading in this epoch.
            && unsafe { receive_inline(from, other, served, regions, bytes) }
        {
            return Moved::All;
        }
        let moved = move_for_clients(
            (own, slot, from),
            (other, to),
            (regions, mover),
            operation,
            (offset_bytes, bytes),
        );
        return match moved {
            Ok(()) => Moved::All,
            Err(Fault::Source) if matches!(operation, Operation::Read { .. }) => {
                Moved::RemoteInvalid
            }
            Err(Fault::Target) if matches!(operation, Operation::Read { .. }) => {
                Moved::LocalInvalid
            }
            Err(Fault::Source) => Moved::LocalInvalid,
            Err(Fault::Target) => Moved::RemoteInvalid,
        };
    }
    let remote_part =
        |remote, access| remote_part(other, regions, remote, offset_bytes, bytes, access);
    let fits = match operation {
        Operation::Send => move_send(
            &mut own.send_cursor,
            slot,
            other,
            regions,
            offset_bytes,
            bytes,
        ),
        Operation::Write { remote } => {
            let at = remote_part(remote, Access::RemoteWrite);
            at.is_some_and(|at| {
                // SAFETY: the segments were found valid just now, for reading, and so was
                // the target, for writing; deregistration needs the backend lock.
                unsafe {
                    write_in_order(&mut own.send_cursor, slot.data(), offset_bytes, at, bytes)
                }
            })
        }
        Operation::Read { remote } => {
            let at = remote_part(remote, Access::RemoteRead);
            at.is_some_and(|at| {
                let cursor = own.read_cursor.of(queue.sequence(own.in_flight));
                cursor.walk(slot.data(), offset_bytes, bytes as usize, |to, piece| {
                    // SAFETY: the source was found valid just now, and so was the segment,
                    // for writing, as the operation requires. Deregistration needs the backend lock.
                    unsafe { copy::between(at + piece.start as u64, to, piece.len()) };
                })
            })
        }
    };
    if fits {
        Moved::All
    } else {
        Moved::RemoteInvalid
    }
}

/// Returns the local address of this part of the oldest claimed receive of `to`, if that belongs to
/// an application and its only data segment is mapped in this process.
#[inline]
fn mapped_target(
    to: &mut ViPath,
    regions: &RegionTable,
    offset_bytes: u32,
    bytes: u32,
) -> Option<u64> {
    if to.claimed == 0 {
        return None;
    }
    // SAFETY: we hold the backend lock; the reference ends with this call, and the only other one
    // is to a slot of another queue.
    let slot = unsafe { to.shared.recv.ahead(0) }?;
    if !still_valid(slot, regions, to.tag, Access::Write) {
        return None;
    }
    slot.mapped_address(offset_bytes, bytes)
}

/// Copies a whole message into an inline buffer for the oldest claimed receive of `to`; see
/// [`client_memory::receive_inline`].
///
/// # Safety
/// The source is readable for this many bytes.
unsafe fn receive_inline(
    from: u64,
    to: &mut ViPath,
    served: Option<&mut dyn ServedApplications>,
    regions: &RegionTable,
    bytes: u32,
) -> bool {
    if to.claimed == 0 {
        return false;
    }
    // SAFETY: we hold the backend lock; the reference ends with this call, and the only other one
    // is to a slot of another queue.
    let Some(slot) = (unsafe { to.shared.recv.head() }) else {
        return false;
    };
    if !still_valid(slot, regions, to.tag, Access::Write) {
        return false;
    }
    // SAFETY: readable, as the caller promises; the slot was found valid under the backend lock.
    unsafe { client_memory::receive_inline((to, slot), served, regions, from, bytes) }
}

/// Copies a part of a message where the memory of either VI belongs to an application. `mapped` and `mapped_target` are the
/// local addresses of both ends, as far as they are mapped.
#[inline(never)]
fn move_for_clients(
    (own, slot, mapped): (&mut ViPath, &Slot, Option<u64>),
    (other, mapped_target): (&mut ViPath, Option<u64>),
    (regions, mover): (&RegionTable, &mut Mover),
    operation: Operation,
    (offset_bytes, bytes): (u32, u32),
) -> Result<(), Fault> {
    let tag = own.tag;
    let named = |tag, access, segments, cursor, offset_bytes| SegmentRange {
        tag,
        access,
        segments,
        cursor,
        offset_bytes,
    };
    let length = bytes as usize;
    match operation {
        Operation::Send => {
            let queue = &other.shared.recv;
            // SAFETY: we hold the backend lock; the reference ends with this call, and the only
            // other one is to a slot of another queue.
            let target = unsafe { queue.ahead(0) }.filter(|_| other.claimed > 0);
            let target = target.ok_or(Fault::Target)?;
            let cursor = other.recv_cursor.of(queue.sequence(0));
            let to = named(
                other.tag,
                Access::Write,
                target.data(),
                cursor,
                offset_bytes,
            );
            let from = named(
                tag,
                Access::Read,
                slot.data(),
                &mut own.send_cursor,
                offset_bytes,
            );
            let from = mapped.map_or(TransferEnd::Segments(from), TransferEnd::Buffer);
            let to = mapped_target.map_or(TransferEnd::Segments(to), TransferEnd::Buffer);
            // SAFETY: we hold the backend lock.
            unsafe { mover.transfer(regions, from, to, length) }
        }
        Operation::Write {
            remote: (address, handle),
        } => {
            let address = address.checked_add(u64::from(offset_bytes));
            let to = RdmaRange {
                tag: other.tag,
                handle,
                address: address.ok_or(Fault::Target)?,
            };
            let from = named(
                tag,
                Access::Read,
                slot.data(),
                &mut own.send_cursor,
                offset_bytes,
            );
            let from = mapped.map_or(TransferEnd::Segments(from), TransferEnd::Buffer);
            // SAFETY: we hold the backend lock.
            unsafe { mover.transfer_in_order(regions, from, to, bytes) }
        }
        Operation::Read {
            remote: (address, handle),
        } => {
            let address = address.checked_add(u64::from(offset_bytes));
            let segment = [DataSegment {
                address: address.ok_or(Fault::Source)?,
                handle,
                length: bytes,
            }];
            let mut begin = Cursor::default();
            let from = named(other.tag, Access::RemoteRead, &segment, &mut begin, 0);
            let sequence = own.shared.send.sequence(own.in_flight);
            let cursor = own.read_cursor.of(sequence);
            let to = named(tag, Access::Write, slot.data(), cursor, offset_bytes);
            let (from, to) = (TransferEnd::Segments(from), TransferEnd::Segments(to));
            // SAFETY: we hold the backend lock.
            unsafe { mover.transfer(regions, from, to, length) }
        }
    }
}

/// Returns the address of this part of the peer VI's memory, if all of it may be accessed.
fn remote_part(
    other: &ViPath,
    regions: &RegionTable,
    (address, handle): (u64, u32),
    offset_bytes: u32,
    bytes: u32,
    access: Access,
) -> Option<u64> {
    let at = address.checked_add(u64::from(offset_bytes))?;
    let allowed = regions.check(handle, other.tag, at, u64::from(bytes), access);
    allowed.then_some(at)
}

/// Copies a part of a send, whose slot is valid for reading, into the oldest claimed receive of
/// `to`. Returns false if the memory of the receive is no longer valid.
fn move_send(
    cursor: &mut Cursor,
    slot: &Slot,
    to: &mut ViPath,
    regions: &RegionTable,
    offset_bytes: u32,
    bytes: u32,
) -> bool {
    let queue = &to.shared.recv;
    if to.claimed == 0 {
        return false;
    }
    // SAFETY: we hold the backend lock; the reference ends with this call, and the only other one
    // is to a slot of another queue.
    let Some(target) = (unsafe { queue.ahead(0) }) else {
        return false;
    };
    if !still_valid(target, regions, to.tag, Access::Write) {
        return false;
    }
    let target_cursor = to.recv_cursor.of(queue.sequence(0));
    let mut fits = true;
    let walked = cursor.walk(slot.data(), offset_bytes, bytes as usize, |from, range| {
        let offset_bytes = offset_bytes + range.start as u32;
        fits &= target_cursor.walk(target.data(), offset_bytes, range.len(), |to, piece| {
            // SAFETY: a piece of a segment that was found valid for reading under the backend lock,
            // held since, and of one that was found valid for writing.
            unsafe { copy::between(from + piece.start as u64, to, piece.len()) };
        });
    });
    walked && fits
}

/// Copies bytes of data segments to one address as [`copy::write_in_order`] does: a program that
/// polls the last bytes sees them last, and 8-byte aligned words whole, also those of which two
/// segments have a part each. Returns false if the segments are too short.
///
/// # Safety
/// The segments were found valid for reading under the backend lock, held since, and `to .. to + bytes` for writing.
pub(super) unsafe fn write_in_order(
    cursor: &mut Cursor,
    segments: &[DataSegment],
    offset_bytes: u32,
    to: u64,
    bytes: u32,
) -> bool {
    let head = (to.wrapping_neg() & 7).min(u64::from(bytes)) as u32;
    let before = before_ordered(to, bytes as usize) as u32;
    let mut fits = true;
    if before > 0 {
        // SAFETY: the bytes in front of the first whole word, if there are any.
        fits = unsafe { move_bytes(cursor, segments, offset_bytes, to, head) };
        let (at, body) = (to + u64::from(head), before - head);
        // SAFETY: whole words from an aligned address on, all but the last.
        fits = fits && unsafe { move_words(cursor, segments, offset_bytes + head, at, body) };
    }
    let mut last = [0u8; LAST_BYTES];
    let Some(last) = last.get_mut(..(bytes - before) as usize) else {
        return false;
    };
    fits = fits
        && cursor.walk(
            segments,
            offset_bytes + before,
            last.len(),
            |from, range| {
                if let Some(part) = last.get_mut(range) {
                    // SAFETY: inside a segment that the caller found valid.
                    unsafe { copy::read(from, part) };
                }
            },
        );
    if fits {
        // SAFETY: the last bytes of the target.
        unsafe { copy::write_in_order(to + u64::from(before), last) };
    }
    fits
}

/// Copies bytes of data segments to one address, in any order.
///
/// # Safety
/// As for [`write_in_order`].
unsafe fn move_bytes(
    cursor: &mut Cursor,
    segments: &[DataSegment],
    offset_bytes: u32,
    to: u64,
    bytes: u32,
) -> bool {
    cursor.walk(segments, offset_bytes, bytes as usize, |from, range| {
        // SAFETY: inside a segment, and inside the target, that the caller found valid.
        unsafe { copy::between(from, to + range.start as u64, range.len()) };
    })
}

/// Copies whole words of data segments to an aligned address.
///
/// # Safety
/// As for [`write_in_order`]; `to` and `bytes` are multiples of 8.
unsafe fn move_words(
    cursor: &mut Cursor,
    segments: &[DataSegment],
    offset_bytes: u32,
    to: u64,
    bytes: u32,
) -> bool {
    // A word of which only the first bytes were read so far.
    let mut split = [0u8; 8];
    cursor.walk(segments, offset_bytes, bytes as usize, |from, range| {
        let inside = range.start & 7;
        let begin = (range.start.wrapping_neg() & 7).min(range.len());
        if let Some(part) = split.get_mut(inside..inside + begin) {
            // SAFETY: the first bytes of a piece of a segment that the caller found valid.
            unsafe { copy::read(from, part) };
        }
        if begin > 0 && (inside + begin) == 8 {
            let at = to + (range.start - inside) as u64;
            // SAFETY: a word of the target that the caller found valid.
            unsafe { copy::write(at, &split) };
        }
        let body = (range.len() - begin) & !7;
        let (from, at) = (from + begin as u64, to + (range.start + begin) as u64);
        // SAFETY: the whole words of the piece and of the target.
        unsafe { copy::between(from, at, body) };
        let rest = range.len() - begin - body;
        if let Some(part) = split.get_mut(..rest) {
            // SAFETY: the last bytes of the piece.
            unsafe { copy::read(from + body as u64, part) };
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However the source is split into segments, every byte is copied and no other written.
        #[test]
        fn write_in_order_copies_every_byte_and_no_other(
            lengths in proptest::collection::vec(0u32..40, 1..12),
            skipped in 0u32..40,
            at in 0usize..24,
            seed in any::<u8>(),
        ) {
            let source: Vec<u8> = (0..lengths.iter().sum()).map(|n: u32| seed ^ n as u8).collect();
            let mut address = source.as_ptr() as u64;
            let segments: Vec<_> = lengths
                .iter()
                .map(|&length| {
                    let segment = DataSegment { address, handle: 1, length };
                    address += u64::from(length);
                    segment
                })
                .collect();
            let skipped = skipped.min(source.len() as u32);
            let bytes = source.len() as u32 - skipped;
            let mut memory = [0xEEu64; 72];
            let base = memory.as_mut_ptr() as u64;
            let mut cursor = Cursor::default();
            // SAFETY: the segments are all of `source`; the target is inside `memory`, which is
            // larger than the sum of all segments and the offset.
            let fits = unsafe {
                write_in_order(&mut cursor, &segments, skipped, base + at as u64, bytes)
            };
            prop_assert!(fits);
            let memory: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut expected: Vec<u8> = [0xEEu64; 72].iter().flat_map(|w| w.to_ne_bytes()).collect();
            expected[at..at + bytes as usize].copy_from_slice(&source[skipped as usize..]);
            prop_assert_eq!(memory, expected);
        }
    }
}
