//! Memory that the other side writes: cells between guard bytes.

use vipl::{Nic, Ptag, RdmaAccess, RdmaRegion, RemoteBuffer};

use crate::Failure;
use crate::pattern::mismatch;
use crate::plan::{CELLS, Shape, Stream};

/// Bytes before, between and after the cells; nobody may write them.
const GUARD_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// What every byte is that nobody has written.
const UNTOUCHED: u8 = 0xA5;

/// A window of [`CELLS`] cells. Write number n goes into cell n modulo that.
#[derive(Debug)]
pub(crate) struct Window {
    region: RdmaRegion,
    cell_bytes: usize,
    /// A copy of what is looked at.
    seen: Vec<u8>,
    /// What a cell is when it is free.
    free: Vec<u8>,
}

/// Where write `number` begins, from the begin of the window.
pub(crate) fn place(stream: &Stream, shape: &Shape, number: u32) -> u64 {
    let begin = cell_begin(shape.cell_bytes, number);
    (begin + stream.write(shape, number).offset_bytes) as u64
}

fn cell_begin(cell_bytes: usize, number: u32) -> usize {
    GUARD_BYTES + (number % CELLS) as usize * (cell_bytes + GUARD_BYTES)
}

fn window_bytes(shape: &Shape) -> usize {
    cell_begin(shape.cell_bytes, CELLS - 1) + shape.cell_bytes + GUARD_BYTES
}

/// Where a window's registration ends, from its begin: memory is registered by whole pages [VIPL 3.4.3].
pub(crate) fn end_bytes(shape: &Shape) -> u64 {
    window_bytes(shape).next_multiple_of(PAGE_BYTES) as u64
}

impl Window {
    pub(crate) fn new(nic: &Nic, ptag: &Ptag, shape: &Shape) -> Result<Self, Failure> {
        let len_bytes = window_bytes(shape);
        let access = RdmaAccess {
            write: true,
            read: false,
        };
        let region = nic.create_rdma_region(len_bytes, ptag, access)?;
        let free = vec![UNTOUCHED; len_bytes];
        region.write(0, &free);
        Ok(Self {
            region,
            cell_bytes: shape.cell_bytes,
            seen: vec![0; len_bytes],
            free,
        })
    }

    pub(crate) fn remote(&self) -> RemoteBuffer {
        self.region.remote_buffer()
    }

    /// Checks every byte of a write, of its cell and of the guards beside it, and frees the cell.
    pub(crate) fn take(
        &mut self,
        stream: &Stream,
        shape: &Shape,
        number: u32,
    ) -> Result<(), Failure> {
        let begin = cell_begin(self.cell_bytes, number);
        let seen = &mut self.seen[..self.cell_bytes + 2 * GUARD_BYTES];
        self.region.read(begin - GUARD_BYTES, seen);
        let write = stream.write(shape, number);
        let from = GUARD_BYTES + write.offset_bytes;
        let to = from + write.length_bytes;
        let key = stream.write_key(number);
        if let Some(at) = mismatch(key, write.offset_bytes, &seen[from..to]) {
            return Err(
                format!("write {number} of {stream:?}: {write:?} is damaged at byte {at}").into(),
            );
        }
        let around = seen[..from].iter().chain(&seen[to..]);
        if let Some(at) = around.into_iter().position(|byte| *byte != UNTOUCHED) {
            return Err(format!(
                "write {number} of {stream:?}: {write:?}: byte {at} outside of it was written"
            )
            .into());
        }
        self.region
            .write(begin + write.offset_bytes, &self.free[..write.length_bytes]);
        Ok(())
    }

    /// Frees the cell of a write that was lost, wholly or in part.
    pub(crate) fn forget(&mut self, number: u32) {
        self.region.write(
            cell_begin(self.cell_bytes, number),
            &self.free[..self.cell_bytes],
        );
    }

    /// Frees all cells, after a connection that may have ended in the middle of writes; the guards must be whole.
    pub(crate) fn reset(&mut self) -> Result<(), Failure> {
        self.region.read(0, &mut self.seen);
        let stride = self.cell_bytes + GUARD_BYTES;
        let is_guard = |at: usize| at % stride < GUARD_BYTES;
        let written = (0..self.seen.len()).find(|at| is_guard(*at) && self.seen[*at] != UNTOUCHED);
        if let Some(at) = written {
            return Err(format!("guard byte {at} of a window was written").into());
        }
        self.region.write(0, &self.free);
        Ok(())
    }

    /// Checks that nothing was written since the last reset.
    pub(crate) fn expect_untouched(&mut self) -> Result<(), Failure> {
        self.region.read(0, &mut self.seen);
        match self.seen.iter().position(|byte| *byte != UNTOUCHED) {
            Some(at) => {
                Err(format!("byte {at} of a window was written between connections").into())
            }
            None => Ok(()),
        }
    }
}
