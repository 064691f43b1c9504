//! Memory that the other side reads, and what must have come of a read.

use vipl::{Descriptor, Nic, Ptag, RdmaAccess, RdmaRegion, RemoteBuffer};

use crate::Failure;
use crate::pattern::{Rng, fill, mismatch};
use crate::slot::MAX_SEGMENTS;

/// The longest read.
const LONGEST_READ_BYTES: u64 = 64 << 10;
/// As many whole pages as a registration has [VIPL 3.4.3].
pub(crate) const SOURCE_BYTES: usize = (64 << 10) + 4096;
/// What every byte is into which nothing was read.
const UNREAD: u8 = 0x5A;
/// Bytes behind each segment of a read that are looked at.
const GUARD_BYTES: usize = 64;

/// Memory whose bytes both sides know; nobody may write it.
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

    /// Gives it other bytes, after a check that it has the old ones still.
    pub(crate) fn renew(&mut self, key: u64) -> Result<(), Failure> {
        if self.key == key {
            return Ok(());
        }
        self.region.read(0, &mut self.bytes);
        if let Some(at) = mismatch(self.key, 0, &self.bytes) {
            return Err(format!("byte {at} of what may only be read was written").into());
        }
        self.key = key;
        fill(key, 0, &mut self.bytes);
        self.region.write(0, &self.bytes);
        Ok(())
    }
}

/// What a read must bring: the bytes of a key, from an offset on, into so many bytes of each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) key: u64,
    pub(crate) offset_bytes: usize,
    pub(crate) cuts: [usize; MAX_SEGMENTS],
}

impl Read {
    /// A range of a source, by begin and length.
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

    /// Makes the segments ready: what is there later was read.
    pub(crate) fn prepare(&self, descriptor: &mut Descriptor) {
        for (index, cut) in self
            .cuts
            .iter()
            .enumerate()
            .take(descriptor.segment_count())
        {
            let buffer = descriptor.buffer_mut(index);
            let end = buffer.len().min(cut + GUARD_BYTES);
            buffer[..end].fill(UNREAD);
        }
    }

    /// Checks every byte that must have been read.
    pub(crate) fn check(&self, descriptor: &Descriptor) -> Result<(), Failure> {
        let mut at = self.offset_bytes;
        for (index, cut) in self
            .cuts
            .iter()
            .enumerate()
            .take(descriptor.segment_count())
        {
            if let Some(place) = mismatch(self.key, at, &descriptor.buffer(index)[..*cut]) {
                return Err(format!("byte {place} of segment {index} is wrong: {self:?}").into());
            }
            at += cut;
        }
        Ok(())
    }

    /// Checks that nothing was read past the used bytes of each segment.
    pub(crate) fn check_guards(&self, descriptor: &Descriptor) -> Result<(), Failure> {
        self.expect_unread(descriptor, |cut| cut)
    }

    /// Checks that nothing was read at all.
    pub(crate) fn check_untouched(&self, descriptor: &Descriptor) -> Result<(), Failure> {
        self.expect_unread(descriptor, |_| 0)
    }

    fn expect_unread(
        &self,
        descriptor: &Descriptor,
        from: impl Fn(usize) -> usize,
    ) -> Result<(), Failure> {
        for (index, cut) in self
            .cuts
            .iter()
            .enumerate()
            .take(descriptor.segment_count())
        {
            let buffer = descriptor.buffer(index);
            let end = buffer.len().min(cut + GUARD_BYTES);
            let tail = &buffer[from(*cut)..end];
            if let Some(place) = tail.iter().position(|byte| *byte != UNREAD) {
                return Err(format!("byte {place} of segment {index} was read: {self:?}").into());
            }
        }
        Ok(())
    }
}
