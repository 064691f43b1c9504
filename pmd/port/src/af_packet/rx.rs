//! The receive ring: the kernel fills slots in order; the port lends them and
//! returns them to the kernel in any order.

use core::ptr;

use libc::{TP_STATUS_KERNEL, TP_STATUS_USER};

use super::filter::ETHERTYPE_VLAN;
use super::slots::{Geometry, RX_FRAME_OFFSET_BYTES, RxHeader, Slots};
use crate::mbuf::Mbuf;

/// Length of an Ethernet header: destination, source, EtherType.
pub(crate) const ETHERNET_HEADER_BYTES: u32 = 14;
/// An 802.1Q tag in a frame: its EtherType and the tag control information.
const TAG_BYTES: u32 = 4;
/// The VLAN identifier in the tag control information; zero marks a frame that
/// has a priority and belongs to no VLAN.
const VLAN_ID_MASK: u16 = 0x0fff;

/// Why a received frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxDrop {
    /// Longer than the port's longest frame.
    TooLong,
    /// Shorter than an Ethernet header.
    Runt,
    /// The frame belongs to a VLAN, and the port does not.
    Vlan,
}

/// The next result of the ring.
#[derive(Debug)]
pub(super) enum Received {
    Frame { mbuf: Mbuf, priority_tagged: bool },
    Dropped(RxDrop),
}

/// Offset and length of a valid frame in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    offset_bytes: u32,
    len_bytes: u32,
    priority_tagged: bool,
}

/// The receive ring.
#[derive(Debug)]
pub(super) struct RxRing {
    slots: Slots,
    max_frame_bytes: u32,
    /// The oldest slot that was not examined yet.
    next: u32,
    /// Slots that the caller holds. Their status still shows user space as the owner,
    /// so that after a wrap around they would appear new.
    lent: Box<[bool]>,
    lent_count: u32,
}

impl RxRing {
    /// Returns the geometry of a ring for frames of at most `max_frame_bytes`, tagged or not.
    pub(super) fn geometry(slots: u32, max_frame_bytes: u32) -> Geometry {
        Geometry::new(slots, RX_FRAME_OFFSET_BYTES + max_frame_bytes + TAG_BYTES)
    }

    pub(super) fn new(slots: Slots, max_frame_bytes: u32) -> Self {
        Self {
            max_frame_bytes,
            next: 0,
            lent: vec![false; slots.geometry().slots() as usize].into_boxed_slice(),
            lent_count: 0,
            slots,
        }
    }

    /// Returns the number of slots that the caller holds.
    pub(super) fn lent_count(&self) -> u32 {
        self.lent_count
    }

    /// Takes the oldest frame; `None` if the kernel has delivered none.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Received> {
        let index = self.next;
        let status = self.slots.status(index);
        if status & TP_STATUS_USER == 0 || self.lent[index as usize] {
            return None;
        }
        self.next = self.slots.geometry().after(index);
        let header = self.slots.rx_header(index, status);
        match self.extent(index, &header) {
            Ok(extent) => Some(Received::Frame {
                mbuf: self.lend(index, &extent),
                priority_tagged: extent.priority_tagged,
            }),
            Err(reason) => {
                self.slots.set_status(index, TP_STATUS_KERNEL);
                Some(Received::Dropped(reason))
            }
        }
    }

    /// Locates and validates the frame in its slot; removes a priority tag.
    #[inline]
    fn extent(&mut self, index: u32, header: &RxHeader) -> Result<Extent, RxDrop> {
        let mut extent = Extent {
            offset_bytes: header.offset_bytes.into(),
            len_bytes: header.len_bytes,
            priority_tagged: false,
        };
        let room_bytes = self.slots.geometry().slot_bytes() - RX_FRAME_OFFSET_BYTES;
        if extent.len_bytes > header.kept_bytes.min(room_bytes)
            || extent.offset_bytes > RX_FRAME_OFFSET_BYTES
        {
            return Err(RxDrop::TooLong);
        }
        if extent.len_bytes < ETHERNET_HEADER_BYTES {
            return Err(RxDrop::Runt);
        }
        if let Some((control, ethertype)) = header.vlan {
            if ethertype != ETHERTYPE_VLAN || control & VLAN_ID_MASK != 0 {
                return Err(RxDrop::Vlan);
            }
            extent.priority_tagged = true;
        }
        if self.word(index, extent.offset_bytes + 12) == ETHERTYPE_VLAN {
            if extent.priority_tagged
                || self.word(index, extent.offset_bytes + 14) & VLAN_ID_MASK != 0
            {
                return Err(RxDrop::Vlan);
            }
            if extent.len_bytes < ETHERNET_HEADER_BYTES + TAG_BYTES {
                return Err(RxDrop::Runt);
            }
            self.strip_tag(index, &mut extent);
        }
        if extent.len_bytes > self.max_frame_bytes {
            return Err(RxDrop::TooLong);
        }
        Ok(extent)
    }

    /// Reads two bytes of the slot, in network order.
    #[inline]
    fn word(&self, index: u32, offset_bytes: u32) -> u16 {
        let address = self.slots.address(index, offset_bytes).cast::<[u8; 2]>();
        // SAFETY: `extent` checked that the frame has an Ethernet header and is
        // in its slot with four bytes to spare; user space owns the slot.
        u16::from_be_bytes(unsafe { address.read() })
    }

    /// Removes the tag by moving both addresses over it.
    fn strip_tag(&mut self, index: u32, extent: &mut Extent) {
        let from = self.slots.address(index, extent.offset_bytes);
        extent.offset_bytes += TAG_BYTES;
        extent.len_bytes -= TAG_BYTES;
        extent.priority_tagged = true;
        let to = self.slots.address(index, extent.offset_bytes);
        // SAFETY: both ranges of 12 bytes are in the slot, as `extent` checked,
        // and user space owns the slot; copy allows that they overlap.
        unsafe { ptr::copy(from.as_ptr(), to.as_ptr(), 12) };
    }

    #[inline]
    fn lend(&mut self, index: u32, extent: &Extent) -> Mbuf {
        self.lent[index as usize] = true;
        self.lent_count += 1;
        let data = self.slots.address(index, extent.offset_bytes);
        let capacity_bytes = self.slots.geometry().slot_bytes() - extent.offset_bytes;
        // SAFETY: the range is in the slot, which stays mapped until the port
        // has the buffer back (ensured by its drop); the slot is marked as lent
        // and the kernel does not write to it in this status; the kernel filled
        // it, and ring memory was zeroed before.
        unsafe { Mbuf::from_raw(data, extent.len_bytes, capacity_bytes, index) }
    }

    /// Returns a lent slot to the kernel; returns any other buffer as the error.
    #[inline]
    pub(super) fn free(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        let Some(index) = self.slots.index_of(mbuf.bytes().as_ptr()) else {
            return Err(mbuf);
        };
        let lent = &mut self.lent[index as usize];
        debug_assert!(*lent, "a slot was freed that was not lent");
        if *lent {
            *lent = false;
            self.lent_count -= 1;
            self.slots.set_status(index, TP_STATUS_KERNEL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use crate::sync::mapped::{AtomicU32, Ordering};

    const MAX_FRAME_BYTES: u32 = 200;
    const FRAME_OFFSET_BYTES: usize = 66;

    /// A ring in ordinary memory, with the test acting as the kernel.
    struct Kernel {
        ring: RxRing,
        memory: Mapping,
        next: u32,
    }

    impl Kernel {
        fn new() -> Self {
            let geometry = RxRing::geometry(1, MAX_FRAME_BYTES);
            let memory = Mapping::anonymous(geometry.ring_bytes()).expect("64 KiB");
            // SAFETY: the memory is as long as the geometry says and exists
            // as long as the ring; the test acts as the kernel.
            let slots = unsafe { Slots::new(memory.as_ptr(), geometry) };
            Self {
                ring: RxRing::new(slots, MAX_FRAME_BYTES),
                memory,
                next: 0,
            }
        }

        fn put<T>(&self, index: u32, offset_bytes: usize, value: T) {
            let address = self.ring.slots.address(index, 0).as_ptr();
            assert!(self.memory.contains(address));
            let address = address.wrapping_add(offset_bytes).cast::<T>();
            // SAFETY: offsets in these tests are in the slot; one thread.
            unsafe { address.write_unaligned(value) };
        }

        /// Delivers a frame with `len_bytes` on the wire; returns false if the slot is in use.
        fn deliver(&mut self, frame: &[u8], len_bytes: u32, vlan: Option<(u16, u16)>) -> bool {
            let index = self.next;
            let status_address = self.ring.slots.address(index, 0).as_ptr();
            // SAFETY: the word is aligned, mapped and only used atomically.
            let status = unsafe { AtomicU32::from_ptr(status_address.cast()) };
            // Acquire: partner is the Release when the slot is returned.
            if status.load(Ordering::Acquire) != TP_STATUS_KERNEL {
                return false;
            }
            for (at, &byte) in frame.iter().enumerate() {
                self.put(index, FRAME_OFFSET_BYTES + at, byte);
            }
            self.put(index, 4, len_bytes);
            self.put(index, 8, frame.len() as u32);
            self.put(index, 12, FRAME_OFFSET_BYTES as u16);
            let mut value = TP_STATUS_USER;
            if let Some((control, ethertype)) = vlan {
                self.put(index, 24, control);
                self.put(index, 26, ethertype);
                value |= libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID;
            }
            // Release: partner is the Acquire of `Slots::status`.
            status.store(value, Ordering::Release);
            self.next = self.ring.slots.geometry().after(index);
            true
        }

        fn receive(&mut self) -> Mbuf {
            match self.ring.take() {
                Some(Received::Frame { mbuf, .. }) => mbuf,
                other => panic!("expected a frame, got {other:?}"),
            }
        }

        fn drop_reason(&mut self, frame: &[u8], vlan: Option<(u16, u16)>) -> RxDrop {
            assert!(self.deliver(frame, frame.len() as u32, vlan));
            match self.ring.take() {
                Some(Received::Dropped(reason)) => reason,
                other => panic!("expected a drop, got {other:?}"),
            }
        }
    }

    fn frame(words: &[u16], len_bytes: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (1..=12).collect();
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        bytes.resize(len_bytes, 0x5a);
        bytes
    }

    #[test]
    fn frames_arrive_in_order_and_slots_return_in_any_order() {
        let mut kernel = Kernel::new();
        let slots = kernel.ring.slots.geometry().slots();
        for round in 0..3 {
            let mut held = Vec::new();
            for serial in 0..slots {
                let sent = frame(&[0x8906, round, serial as u16], 60);
                assert!(kernel.deliver(&sent, 60, None));
                let mbuf = kernel.receive();
                assert_eq!(mbuf.bytes(), sent);
                held.push(mbuf);
            }
            assert!(
                !kernel.deliver(&frame(&[0x8906], 60), 60, None),
                "ring full"
            );
            assert!(
                kernel.ring.take().is_none(),
                "lent slots are not delivered twice"
            );
            assert_eq!(kernel.ring.lent_count(), slots);
            held.rotate_left(usize::from(round) * 7 + 1);
            for mbuf in held {
                assert!(kernel.ring.free(mbuf).is_ok());
            }
            assert_eq!(kernel.ring.lent_count(), 0);
        }
    }

    #[test]
    fn lengths_are_bounded_at_both_ends() {
        let mut kernel = Kernel::new();
        let longest = frame(&[0x8906], MAX_FRAME_BYTES as usize);
        assert!(kernel.deliver(&longest, MAX_FRAME_BYTES, None));
        assert_eq!(kernel.receive().bytes(), longest);
        let too_long = frame(&[0x8906], MAX_FRAME_BYTES as usize + 1);
        assert_eq!(kernel.drop_reason(&too_long, None), RxDrop::TooLong);
        assert!(kernel.deliver(&longest, 9000, None));
        assert!(matches!(
            kernel.ring.take(),
            Some(Received::Dropped(RxDrop::TooLong))
        ));
        assert_eq!(kernel.drop_reason(&[0; 13], None), RxDrop::Runt);
        assert_eq!(
            kernel.drop_reason(&frame(&[0x8100, 0], 16), None),
            RxDrop::Runt
        );
    }

    #[test]
    fn priority_tags_are_removed_and_vlans_dropped() {
        let mut kernel = Kernel::new();
        let untagged = frame(&[0x8906, 0x1234], 60);
        let tagged = frame(&[0x8100, 0x6000, 0x8906, 0x1234], 64);
        assert!(kernel.deliver(&untagged, 60, Some((0x6000, 0x8100))));
        assert_eq!(kernel.receive().bytes(), untagged);
        assert!(kernel.deliver(&tagged, 64, None));
        match kernel.ring.take() {
            Some(Received::Frame {
                mbuf,
                priority_tagged,
            }) => {
                assert!(priority_tagged);
                assert_eq!(mbuf.bytes(), untagged);
            }
            other => panic!("expected a frame, got {other:?}"),
        }
        let longest = frame(&[0x8100, 0, 0x8906], MAX_FRAME_BYTES as usize + 4);
        assert!(kernel.deliver(&longest, MAX_FRAME_BYTES + 4, None));
        assert_eq!(kernel.receive().len(), MAX_FRAME_BYTES as usize);

        let vlan_100 = frame(&[0x8100, 100, 0x8906], 60);
        assert_eq!(kernel.drop_reason(&vlan_100, None), RxDrop::Vlan);
        assert_eq!(
            kernel.drop_reason(&untagged, Some((100, 0x8100))),
            RxDrop::Vlan
        );
        assert_eq!(
            kernel.drop_reason(&untagged, Some((0, 0x88a8))),
            RxDrop::Vlan
        );
        assert_eq!(kernel.drop_reason(&tagged, Some((0, 0x8100))), RxDrop::Vlan);
    }

    #[test]
    fn foreign_buffer_is_rejected() {
        let mut ours = Kernel::new();
        let mut theirs = Kernel::new();
        assert!(theirs.deliver(&frame(&[0x8906], 60), 60, None));
        let mbuf = theirs.receive();
        let mbuf = ours.ring.free(mbuf).expect_err("not ours");
        assert!(theirs.ring.free(mbuf).is_ok());
    }
}
