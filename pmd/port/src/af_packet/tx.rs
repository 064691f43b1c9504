//! The send ring: slots are lent in order and returned in any order, and the
//! kernel takes them in order.
//!
//! The kernel stops at the first slot that is not ready. So that a buffer that
//! is returned unsent does not block, its slot becomes a gap: a frame of length
//! zero, which the kernel skips since the socket has PACKET_LOSS set. Gaps
//! followed only by free slots are reclaimed instead.
//!
//! ```text
//!        head (oldest in use)           next (to be lent)
//!          v                             v
//!  idle | ready | ready | lent | ready | idle | idle
//! ```

use libc::{TP_STATUS_AVAILABLE, TP_STATUS_SEND_REQUEST, TP_STATUS_SENDING};

use super::slots::{Geometry, Slots, TX_FRAME_OFFSET_BYTES};
use crate::mbuf::Mbuf;

/// State of a slot in this process; what the kernel does with an idle one is in its status word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// Not in use, or taken by the kernel.
    Idle,
    /// Held by the caller.
    Lent,
    /// To be taken by the kernel: a frame, or a gap.
    Ready,
}

/// The slots that the kernel took since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// The first slot taken.
    first: u32,
    /// How many slots, gaps included.
    slots: u32,
    /// Bytes of the frames.
    pub(super) bytes: usize,
}

/// The send ring.
#[derive(Debug)]
pub(super) struct TxRing {
    slots: Slots,
    max_frame_bytes: u32,
    states: Box<[SlotState]>,
    head: u32,
    next: u32,
    /// Slots from `head` to `next`.
    in_use: u32,
    lent_count: u32,
}

impl TxRing {
    /// Returns the geometry of a ring for frames of at most `max_frame_bytes`.
    pub(super) fn geometry(slots: u32, max_frame_bytes: u32) -> Geometry {
        Geometry::new(slots, TX_FRAME_OFFSET_BYTES + max_frame_bytes)
    }

    pub(super) fn new(slots: Slots, max_frame_bytes: u32) -> Self {
        Self {
            max_frame_bytes,
            states: vec![SlotState::Idle; slots.geometry().slots() as usize].into_boxed_slice(),
            head: 0,
            next: 0,
            in_use: 0,
            lent_count: 0,
            slots,
        }
    }

    /// Returns the number of slots that the caller holds.
    pub(super) fn lent_count(&self) -> u32 {
        self.lent_count
    }

    /// Lends the next slot; `None` while the kernel or the caller has it.
    #[inline]
    pub(super) fn alloc(&mut self) -> Option<Mbuf> {
        let index = self.next;
        let busy = TP_STATUS_SEND_REQUEST | TP_STATUS_SENDING;
        if self.states[index as usize] != SlotState::Idle || self.slots.status(index) & busy != 0 {
            return None;
        }
        self.states[index as usize] = SlotState::Lent;
        self.next = self.slots.geometry().after(index);
        self.in_use += 1;
        self.lent_count += 1;
        let data = self.slots.address(index, TX_FRAME_OFFSET_BYTES);
        // SAFETY: the range is in the slot by the ring's geometry and stays
        // mapped until the port has the buffer back (ensured by its drop);
        // the slot is marked as lent and its status shows that the kernel is
        // done with it; ring memory was zeroed when it was created.
        Some(unsafe { Mbuf::from_raw(data, 0, self.max_frame_bytes, index) })
    }

    /// Returns the slot of a buffer, if it is lent.
    #[inline]
    pub(super) fn lent_index(&self, mbuf: &Mbuf) -> Option<u32> {
        let index = self.slots.index_of(mbuf.bytes().as_ptr())?;
        (self.states[index as usize] == SlotState::Lent).then_some(index)
    }

    /// Passes a lent slot with a frame to the kernel.
    #[inline]
    pub(super) fn submit(&mut self, index: u32, len_bytes: u32) {
        debug_assert_eq!(self.states[index as usize], SlotState::Lent);
        self.states[index as usize] = SlotState::Ready;
        self.lent_count -= 1;
        self.slots.set_tx_len_bytes(index, len_bytes);
        self.slots.set_status(index, TP_STATUS_SEND_REQUEST);
    }

    /// Takes a lent slot back without a frame.
    #[inline]
    pub(super) fn withdraw(&mut self, index: u32) {
        self.submit(index, 0);
        self.reclaim_gaps();
    }

    /// Returns whether the first slot in use is ready for the kernel.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.states[self.head as usize] == SlotState::Ready
    }

    /// Records the slots that the kernel took; to be called after each system call that sends.
    #[inline]
    pub(super) fn note_taken(&mut self) -> Taken {
        let mut taken = Taken {
            first: self.head,
            ..Taken::default()
        };
        while self.ready() && self.slots.status(self.head) & TP_STATUS_SEND_REQUEST == 0 {
            taken.slots += 1;
            taken.bytes += self.slots.tx_len_bytes(self.head) as usize;
            self.states[self.head as usize] = SlotState::Idle;
            self.head = self.slots.geometry().after(self.head);
            self.in_use -= 1;
        }
        taken
    }

    /// Counts the frames just taken by the kernel that are longer than `limit_bytes`.
    pub(super) fn taken_above(&self, taken: &Taken, limit_bytes: u32) -> u64 {
        let geometry = self.slots.geometry();
        core::iter::successors(Some(taken.first), |&index| Some(geometry.after(index)))
            .take(taken.slots as usize)
            .filter(|&index| self.slots.tx_len_bytes(index) > limit_bytes)
            .count() as u64
    }

    /// Drops every frame that the kernel did not take; returns how many.
    pub(super) fn abandon(&mut self) -> u64 {
        let mut frames = 0;
        let mut index = self.head;
        for _ in 0..self.in_use {
            if self.states[index as usize] == SlotState::Ready
                && self.slots.tx_len_bytes(index) != 0
            {
                self.slots.set_tx_len_bytes(index, 0);
                frames += 1;
            }
            index = self.slots.geometry().after(index);
        }
        self.reclaim_gaps();
        frames
    }

    /// Reclaims gaps that are followed by free slots only. The kernel reads the ring
    /// during this process's system calls only, so it does not read it now.
    fn reclaim_gaps(&mut self) {
        while self.in_use > 0 {
            let last = self.slots.geometry().before(self.next);
            if self.states[last as usize] != SlotState::Ready || self.slots.tx_len_bytes(last) != 0
            {
                return;
            }
            self.slots.set_status(last, TP_STATUS_AVAILABLE);
            self.states[last as usize] = SlotState::Idle;
            self.next = last;
            self.in_use -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Mapping;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const MAX_FRAME_BYTES: u32 = 20_000;

    /// A ring of three slots in ordinary memory, with the test acting as the kernel.
    struct Kernel {
        ring: TxRing,
        _memory: Mapping,
        head: u32,
        sending: VecDeque<u32>,
        sent: Vec<u32>,
    }

    impl Kernel {
        fn new() -> Self {
            let geometry = TxRing::geometry(1, MAX_FRAME_BYTES);
            assert_eq!(geometry.slots(), 3);
            let memory = Mapping::anonymous(geometry.ring_bytes()).expect("64 KiB");
            // SAFETY: the memory is as long as the geometry says and exists
            // as long as the ring; the test acts as the kernel.
            let slots = unsafe { Slots::new(memory.as_ptr(), geometry) };
            Self {
                ring: TxRing::new(slots, MAX_FRAME_BYTES),
                _memory: memory,
                head: 0,
                sending: VecDeque::new(),
                sent: Vec::new(),
            }
        }

        /// Takes at most `max` frames, as sendto(2) does with PACKET_LOSS, and
        /// checks that the ring records exactly those.
        fn kick(&mut self, max: usize) {
            let (mut frames, mut bytes) = (0, 0);
            while self.ring.slots.status(self.head) == TP_STATUS_SEND_REQUEST {
                let len_bytes = self.ring.slots.tx_len_bytes(self.head);
                if len_bytes == 0 {
                    self.ring.slots.set_status(self.head, TP_STATUS_AVAILABLE);
                } else if frames == max {
                    break;
                } else {
                    frames += 1;
                    bytes += len_bytes as usize;
                    self.sent.push(len_bytes);
                    self.ring.slots.set_status(self.head, TP_STATUS_SENDING);
                    self.sending.push_back(self.head);
                }
                self.head = self.ring.slots.geometry().after(self.head);
            }
            assert_eq!(self.ring.note_taken().bytes, bytes);
            assert_eq!(self.ring.head, self.head);
        }

        fn complete(&mut self) {
            if let Some(index) = self.sending.pop_front() {
                self.ring.slots.set_status(index, TP_STATUS_AVAILABLE);
            }
        }

        fn submit(&mut self, mbuf: &Mbuf, len_bytes: u32) {
            let index = self.ring.lent_index(mbuf).expect("lent");
            self.ring.submit(index, len_bytes);
        }

        fn withdraw(&mut self, mbuf: &Mbuf) {
            let index = self.ring.lent_index(mbuf).expect("lent");
            self.ring.withdraw(index);
        }
    }

    #[test]
    fn full_ring_waits_for_the_kernel() {
        let mut kernel = Kernel::new();
        for len_bytes in 1..=3 {
            let mbuf = kernel.ring.alloc().expect("a slot");
            kernel.submit(&mbuf, len_bytes);
        }
        assert!(kernel.ring.alloc().is_none());
        kernel.kick(2);
        assert!(kernel.ring.alloc().is_none(), "being sent");
        kernel.complete();
        let mbuf = kernel.ring.alloc().expect("sent");
        assert!(kernel.ring.ready(), "the third frame waits");
        kernel.submit(&mbuf, 4);
        kernel.kick(9);
        assert_eq!(kernel.sent, [1, 2, 3, 4]);
    }

    #[test]
    fn frame_is_sent_once_older_buffers_are_returned() {
        let mut kernel = Kernel::new();
        let first = kernel.ring.alloc().expect("a slot");
        let second = kernel.ring.alloc().expect("a slot");
        kernel.submit(&second, 2);
        assert!(!kernel.ring.ready());
        kernel.kick(9);
        assert!(kernel.sent.is_empty());
        kernel.withdraw(&first);
        assert!(kernel.ring.ready());
        kernel.kick(9);
        assert_eq!(kernel.sent, [2]);
        assert!(kernel.ring.lent_index(&second).is_none(), "sent, not lent");
    }

    #[test]
    fn withdrawn_newest_buffer_frees_its_slot() {
        let mut kernel = Kernel::new();
        for _ in 0..10 {
            let mbuf = kernel.ring.alloc().expect("a slot");
            kernel.withdraw(&mbuf);
            assert_eq!((kernel.ring.next, kernel.ring.in_use), (0, 0));
        }
    }

    #[test]
    fn abandoned_frames_are_counted_and_free_their_slots() {
        let mut kernel = Kernel::new();
        let mbufs: Vec<Mbuf> = std::iter::from_fn(|| kernel.ring.alloc()).collect();
        kernel.submit(&mbufs[0], 10);
        kernel.submit(&mbufs[2], 30);
        assert_eq!(kernel.ring.abandon(), 2);
        assert_eq!(kernel.ring.in_use, 2, "the lent one and the gap before it");
        kernel.submit(&mbufs[1], 20);
        kernel.kick(9);
        assert_eq!(kernel.sent, [20]);
        assert_eq!(kernel.ring.in_use, 0);
    }

    #[test]
    fn taken_above_counts_frames_above_the_limit() {
        let mut kernel = Kernel::new();
        for len_bytes in [100, 2000, 1500] {
            let mbuf = kernel.ring.alloc().expect("a slot");
            kernel.submit(&mbuf, len_bytes);
        }
        for index in 0..3 {
            kernel.ring.slots.set_status(index, TP_STATUS_AVAILABLE);
        }
        let taken = kernel.ring.note_taken();
        assert_eq!(taken.bytes, 3600);
        assert_eq!(kernel.ring.taken_above(&taken, 1499), 2);
        assert_eq!(kernel.ring.taken_above(&taken, 2000), 0);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Alloc,
        Submit(usize),
        Withdraw(usize),
        Kick(usize),
        Complete,
        Abandon,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => Just(Step::Alloc),
            4 => any::<usize>().prop_map(Step::Submit),
            2 => any::<usize>().prop_map(Step::Withdraw),
            3 => (0usize..4).prop_map(Step::Kick),
            4 => Just(Step::Complete),
            1 => Just(Step::Abandon),
        ]
    }

    proptest! {
        /// Every frame is sent once or abandoned, and at the end no slot is lost.
        #[test]
        fn no_slot_is_ever_stuck(steps in prop::collection::vec(step(), 1..400)) {
            let mut kernel = Kernel::new();
            let mut held: Vec<Mbuf> = Vec::new();
            let (mut submitted, mut abandoned) = (0u32, 0);
            for step in steps {
                match step {
                    Step::Alloc => held.extend(kernel.ring.alloc()),
                    Step::Submit(pick) if !held.is_empty() => {
                        let mbuf = held.swap_remove(pick % held.len());
                        submitted += 1;
                        kernel.submit(&mbuf, submitted);
                    }
                    Step::Withdraw(pick) if !held.is_empty() => {
                        let mbuf = held.swap_remove(pick % held.len());
                        kernel.withdraw(&mbuf);
                    }
                    Step::Submit(_) | Step::Withdraw(_) => {}
                    Step::Kick(max) => kernel.kick(max),
                    Step::Complete => kernel.complete(),
                    Step::Abandon => abandoned += kernel.ring.abandon(),
                }
                prop_assert_eq!(kernel.ring.lent_count() as usize, held.len());
            }
            for mbuf in held {
                kernel.withdraw(&mbuf);
            }
            kernel.kick(usize::MAX);
            while !kernel.sending.is_empty() {
                kernel.complete();
            }
            prop_assert_eq!(kernel.sent.len() as u64 + abandoned, u64::from(submitted));
            kernel.sent.sort_unstable();
            kernel.sent.dedup();
            prop_assert_eq!(kernel.sent.len() as u64 + abandoned, u64::from(submitted));
            let free: Vec<Mbuf> = std::iter::from_fn(|| kernel.ring.alloc()).collect();
            prop_assert_eq!(free.len(), 3);
        }
    }
}
