//! Memory for reads of the remote side, and checks of the data of a read.

use vipl::{Descriptor, Nic, Ptag, RdmaAccess, RdmaRegion, RemoteBuffer};

use crate::pattern::{Rng, fill, mismatch};
use crate::slot::MAX_SEGMENTS;
use e2e::failure::Failure;

/// The longest read.
const LONGEST_READ_BYTES: u64 = 64 << 10;
/// The size of the memory: whole pages, since registration covers pages [VIPL 3.4.3].
pub(crate) const SOURCE_BYTES: usize = (64 << 10) + 4096;
/// Fill byte of buffers before a read.
const UNREAD: u8 = 0x5A;
/// Number of checked bytes after each segment of a read.
const GUARD_BYTES: usize = 64;

/// Read-only memory with a content that both sides know.
#[derive(Debug)]
pub(crate) struct Source {
    region: RdmaRegion,
    key: u64,
    bytes: Vec<u8>,
}

impl Source {
    pub(crate) fn new(nic: &Nic, ptag: &Ptag) -> Result<Self, Failure> {
        let access = RdmaAccess {
            write: false,
            read: true,
        };
        let region = nic.create_rdma_region(SOURCE_BYTES, ptag, access)?;
        let mut bytes = vec![0; SOURCE_BYTES];
        fill(0, 0, &mut bytes);
        region.write(0, &bytes);
        Ok(Self {
            region,
            key: 0,
            bytes,
        })
    }

    pub(crate) fn remote(&self) -> RemoteBuffer {
        self.region.remote_buffer()
    }

    /// Checks that the content is unchanged, then replaces it.
    pub(crate) fn renew(&mut self, key: u64) -> Result<(), Failure> {
        if self.key == key {
            return Ok(());
        }
        self.region.read(0, &mut self.bytes);
        if let Some(at) = mismatch(self.key, 0, &self.bytes) {
            return Err(format!("byte {at} of read-only memory was written").into());
        }
        self.key = key;
        fill(key, 0, &mut self.bytes);
        self.region.write(0, &self.bytes);
        Ok(())
    }
}

/// The expected data of a read: bytes of a key from an offset, and the lengths of the segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) key: u64,
    pub(crate) offset_bytes: usize,
    pub(crate) lengths: [usize; MAX_SEGMENTS],
}

impl Read {
    /// Returns a random range of a source: offset and length.
    pub(crate) fn range(rng: &mut Rng) -> (usize, usize) {
        let length_bytes = match rng.below(10) {
            0 => 0,
            1 => LONGEST_READ_BYTES,
            2..7 => rng.below(4096),
            _ => rng.below(LONGEST_READ_BYTES),
        };
        let begin = rng.below(SOURCE_BYTES as u64 - length_bytes + 1);
        (begin as usize, length_bytes as usize)
    }

    /// Fills the segments with [`UNREAD`].
    pub(crate) fn prepare(&self, descriptor: &mut Descriptor) {
        for (index, length) in self
            .lengths
            .iter()
            .enumerate()
            .take(descriptor.segment_count())
        {
            let buffer = descriptor.buffer_mut(index);
            let end = buffer.len().min(length + GUARD_BYTES);
            buffer[..end].fill(UNREAD);
        }
    }

    /// Checks all bytes of the read.
    pub(crate) fn check(&self, descriptor: &Descriptor) -> Result<(), Failure> {
        let mut at = self.offset_bytes;
        for (index, length) in self
            .lengths
            .iter()
            .enumerate()
            .take(descriptor.segment_count())
        {
            if let Some(position) = mismatch(self.key, at, &descriptor.buffer(index)[..*length]) {
                return Err(
                    format!("byte {position} of segment {index} is wrong: {self:?}").into(),
                );
            }
            at += length;
        }
        Ok(())
    }

    /// Checks that nothing was written beyond the used bytes of each segment.
    pub(crate) fn check_guards(&self, descriptor: &Descriptor) -> Result<(), Failure> {
        self.expect_unread(descriptor, |length| length)
    }

    /// Checks that nothing was written at all.
    pub(crate) fn check_untouched(&self, descriptor: &Descriptor) -> Result<(), Failure> {
        self.expect_unread(descriptor, |_| 0)
    }

    fn expect_unread(
        &self,
        descriptor: &Descriptor,
        from: impl Fn(usize) -> usize,
    ) -> Result<(), Failure> {
        for (index, length) in self
            .lengths
            .iter()
            .enumerate()
            .take(descriptor.segment_count())
        {
            let buffer = descriptor.buffer(index);
            let end = buffer.len().min(length + GUARD_BYTES);
            let tail = &buffer[from(*length)..end];
            if let Some(position) = tail.iter().position(|byte| *byte != UNREAD) {
                return Err(
                    format!("byte {position} of segment {index} was read: {self:?}").into(),
                );
            }
        }
        Ok(())
    }
}
