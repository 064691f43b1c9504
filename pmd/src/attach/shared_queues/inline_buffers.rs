//! Inline buffers: the data of short messages, passed in the shared memory of the queues. The process accesses private
//! memory of an application by system calls, which cost more than a short message (docs/adr/0070).
//!
//! Each side has a list of its free buffers. The application takes one of its own for a send, and gets it back with the
//! completion. The process takes one of its own for a receive, and gets it back when the application has taken the
//! completion. The data is copied as plain bytes; the entries of the rings order the copies.

use vi_core::memory::backing::InlineBuffer;

use super::{SharedQueues, ViId};

/// Bytes of a buffer: the longest message that is passed inline.
pub(crate) const INLINE_BYTES: u32 = 4096;

impl SharedQueues {
    /// Returns the buffer at a position of all buffers.
    fn buffer_at(&self, index: u32, number: u32) -> InlineBuffer {
        let at = self.sizes.bytes_before_buffers() + (index * INLINE_BYTES) as usize;
        InlineBuffer {
            number,
            memory: self.map.at(at as u64),
        }
    }

    fn index_of(&self, number: u32) -> Option<u32> {
        number
            .checked_sub(1)
            .filter(|index| *index < self.sizes.inline_buffers)
    }

    /// Returns the buffer of sends with this number, if there is one.
    #[inline]
    pub(crate) fn send_buffer(&self, number: u32) -> Option<InlineBuffer> {
        let index = self.index_of(number)?;
        Some(self.buffer_at(index, number))
    }

    /// Returns the buffer of receives with this number, if there is one.
    #[inline]
    pub(crate) fn receive_buffer(&self, number: u32) -> Option<InlineBuffer> {
        let index = self.index_of(number)?;
        Some(self.buffer_at(self.sizes.inline_buffers + index, number))
    }
}

/// The buffers of sends: the application's side.
pub(crate) struct SendBuffers {
    free: Vec<u32>,
    /// The VI that uses a buffer, by number, if it is not free.
    users: Box<[Option<u16>]>,
}

impl SendBuffers {
    pub(crate) fn new(queues: &SharedQueues) -> Self {
        let buffers = queues.sizes.inline_buffers;
        Self {
            free: (1..=buffers).rev().collect(),
            users: vec![None; buffers as usize + 1].into(),
        }
    }

    /// Takes a free buffer for a VI; `None` if all are in use.
    #[inline]
    pub(crate) fn take(&mut self, queues: &SharedQueues, vi: ViId) -> Option<InlineBuffer> {
        let buffer = queues.send_buffer(self.free.pop()?)?;
        self.users[buffer.number as usize] = Some(vi.index);
        Some(buffer)
    }

    /// Takes a buffer of a VI back; no effect for another number.
    #[inline]
    pub(crate) fn give_back(&mut self, number: u32, vi: ViId) {
        if let Some(user) = self.users.get_mut(number as usize)
            && *user == Some(vi.index)
        {
            *user = None;
            self.free.push(number);
        }
    }

    /// Takes the buffers of a VI back that no longer exists.
    pub(crate) fn give_back_all(&mut self, vi: ViId) {
        let numbers = 1..self.users.len() as u32;
        if self.free.len() < numbers.len() {
            numbers.for_each(|number| self.give_back(number, vi));
        }
    }
}

/// The buffers of receives: the process's side.
pub(super) struct ReceiveBuffers {
    free: Vec<u32>,
    /// For each entry of the completion ring that was not taken, the number of its buffer, or 0.
    reported: Box<[u32]>,
}

impl ReceiveBuffers {
    pub(super) fn new(queues: &SharedQueues) -> Self {
        Self {
            free: (1..=queues.sizes.inline_buffers).rev().collect(),
            reported: vec![0; queues.sizes.completions as usize].into(),
        }
    }

    /// Takes a free buffer; `None` if all are in use.
    #[inline]
    pub(super) fn take(&mut self, queues: &SharedQueues) -> Option<InlineBuffer> {
        queues.receive_buffer(self.free.pop()?)
    }

    #[inline]
    fn of_entry(&mut self, entry: u32) -> &mut u32 {
        let mask = self.reported.len() - 1;
        &mut self.reported[entry as usize & mask]
    }

    /// Notes the number of the buffer that an entry reports.
    #[inline]
    pub(super) fn report(&mut self, entry: u32, number: u32) {
        *self.of_entry(entry) = number;
    }

    /// Takes the buffer of an entry back, which the application has taken.
    #[inline]
    pub(super) fn take_back_of(&mut self, entry: u32) {
        let number = core::mem::take(self.of_entry(entry));
        if number != 0 {
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RingSizes;
    use super::*;

    const BUFFERS: u32 = 3;

    fn queues() -> SharedQueues {
        let sizes = RingSizes::for_segments(1).with_inline_buffers(BUFFERS);
        SharedQueues::create(sizes).unwrap().0
    }

    #[test]
    fn buffers_do_not_overlap_and_end_with_the_memory() {
        let queues = queues();
        let sends = (0..=BUFFERS + 1).filter_map(|number| queues.send_buffer(number));
        let receives = (0..=BUFFERS + 1).filter_map(|number| queues.receive_buffer(number));
        let at: Vec<_> = sends.chain(receives).map(|b| b.memory.address).collect();
        assert_eq!(at.len() as u32, 2 * BUFFERS);
        assert!(
            at.windows(2)
                .all(|two| two[1] == two[0] + u64::from(INLINE_BYTES))
        );
        let end = queues.map.address() + queues.map.len_bytes();
        assert_eq!(at.last().unwrap() + u64::from(INLINE_BYTES), end);
    }

    #[test]
    fn buffers_of_sends_come_back_from_the_vi_that_uses_them_only() {
        let queues = queues();
        let mut buffers = SendBuffers::new(&queues);
        let vi = |index| ViId {
            index,
            generation: 1,
        };
        let take = |buffers: &mut SendBuffers, index| {
            let buffer = buffers.take(&queues, vi(index));
            buffer.map(|buffer| buffer.number)
        };
        let taken = [7, 7, 8].map(|vi| take(&mut buffers, vi).unwrap());
        assert_eq!(take(&mut buffers, 9), None);
        for other in [0, BUFFERS + 1, u32::MAX, taken[2]] {
            buffers.give_back(other, vi(7));
        }
        assert_eq!(take(&mut buffers, 9), None);
        buffers.give_back(taken[0], vi(7));
        buffers.give_back(taken[0], vi(7));
        assert_eq!(take(&mut buffers, 9), Some(taken[0]));
        assert_eq!(take(&mut buffers, 9), None, "once only");
        buffers.give_back_all(vi(7));
        assert_eq!(take(&mut buffers, 9), Some(taken[1]));
        assert_eq!(take(&mut buffers, 9), None);
    }
}
