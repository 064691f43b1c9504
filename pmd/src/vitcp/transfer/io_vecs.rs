//! Memory ranges of one system call on a stream.

use vi_core::memory::copy;

/// I/O vectors, in the order of the bytes.
#[derive(Default)]
pub(crate) struct IoVecs {
    list: Vec<libc::iovec>,
}

// SAFETY: the pointers are used only by the thread that holds the NIC's backend lock.
unsafe impl Send for IoVecs {}

impl IoVecs {
    pub(crate) fn with_capacity(ranges: usize) -> Self {
        Self {
            list: Vec::with_capacity(ranges),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    pub(crate) fn truncate(&mut self, ranges: usize) {
        self.list.truncate(ranges);
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of ranges that fit without an allocation.
    pub(crate) fn room(&self) -> usize {
        self.list.capacity() - self.list.len()
    }

    pub(crate) fn push(&mut self, address: u64, bytes: usize) {
        self.list.push(libc::iovec {
            iov_base: core::ptr::with_exposed_provenance_mut(address as usize),
            iov_len: bytes,
        });
    }

    /// Adds `bytes` bytes to the last range.
    pub(crate) fn grow_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.iov_len += bytes;
        }
    }

    pub(crate) fn last_bytes(&self) -> usize {
        self.list.last().map_or(0, |last| last.iov_len)
    }

    /// Sets the length of the last range.
    pub(crate) fn set_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.iov_len = bytes;
        }
    }

    pub(crate) fn as_slice(&self) -> &[libc::iovec] {
        &self.list
    }

    /// Returns the total number of bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.list.iter().map(|range| range.iov_len).sum()
    }

    /// Visits `bytes` bytes from `at` on, range by range: the address, and the range of the bytes at it.
    fn walk(&self, at: usize, bytes: usize, mut visit: impl FnMut(u64, core::ops::Range<usize>)) {
        let (mut skip, mut done) = (at, 0);
        for range in &self.list {
            if skip >= range.iov_len {
                skip -= range.iov_len;
                continue;
            }
            let take = (range.iov_len - skip).min(bytes - done);
            visit((range.iov_base.addr() + skip) as u64, done..done + take);
            done += take;
            skip = 0;
            if done == bytes {
                break;
            }
        }
    }

    /// Copies bytes out of the ranges from `at` on; returns the number copied.
    ///
    /// # Safety
    /// The ranges may be read.
    pub(crate) unsafe fn copy_out(&self, at: usize, to: &mut [u8]) -> usize {
        let mut copied = 0;
        self.walk(at, to.len(), |from, range| {
            copied = range.end;
            if let Some(to) = to.get_mut(range) {
                // SAFETY: part of a range, by the caller's contract.
                unsafe { copy::read(from, to) };
            }
        });
        copied
    }

    /// Copies bytes into the ranges from `at` on; excess bytes are ignored.
    ///
    /// # Safety
    /// The ranges may be written.
    pub(crate) unsafe fn copy_in(&self, at: usize, bytes: &[u8]) {
        self.walk(at, bytes.len(), |to, range| {
            if let Some(from) = bytes.get(range) {
                // SAFETY: part of a range, by the caller's contract.
                unsafe { copy::write(to, from) };
            }
        });
    }
}
