//! Memory for writes of the remote side: cells between guard bytes.

use vipl::{Nic, Ptag, RdmaAccess, RdmaRegion, RemoteBuffer};

use crate::pattern::mismatch;
use crate::plan::{CELLS, SlotConfig, Stream};
use e2e::failure::Failure;

/// Number of guard bytes before, between and after the cells, which must not be written.
const GUARD_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// Fill byte of unwritten memory.
const UNTOUCHED: u8 = 0xA5;

/// A window of [`CELLS`] cells. Write number n uses cell n modulo [`CELLS`].
#[derive(Debug)]
pub(crate) struct Window {
    region: RdmaRegion,
    cell_bytes: usize,
    /// A buffer for copies of the memory.
    copy: Vec<u8>,
    /// The content of unwritten memory.
    unwritten: Vec<u8>,
}

/// Returns the offset of write `number` in the window.
pub(crate) fn write_offset(stream: &Stream, config: &SlotConfig, number: u32) -> u64 {
    let begin = cell_begin(config.cell_bytes, number);
    (begin + stream.write(config, number).offset_bytes) as u64
}

fn cell_begin(cell_bytes: usize, number: u32) -> usize {
    GUARD_BYTES + (number % CELLS) as usize * (cell_bytes + GUARD_BYTES)
}

fn window_bytes(config: &SlotConfig) -> usize {
    cell_begin(config.cell_bytes, CELLS - 1) + config.cell_bytes + GUARD_BYTES
}

/// Returns the size of the registration of a window: registration covers whole pages [VIPL 3.4.3].
pub(crate) fn end_bytes(config: &SlotConfig) -> u64 {
    window_bytes(config).next_multiple_of(PAGE_BYTES) as u64
}

impl Window {
    pub(crate) fn new(nic: &Nic, ptag: &Ptag, config: &SlotConfig) -> Result<Self, Failure> {
        let len_bytes = window_bytes(config);
        let access = RdmaAccess {
            write: true,
            read: config.reads_back,
        };
        let region = nic.create_rdma_region(len_bytes, ptag, access)?;
        let unwritten = vec![UNTOUCHED; len_bytes];
        region.write(0, &unwritten);
        Ok(Self {
            region,
            cell_bytes: config.cell_bytes,
            copy: vec![0; len_bytes],
            unwritten,
        })
    }

    pub(crate) fn remote(&self) -> RemoteBuffer {
        self.region.remote_buffer()
    }

    /// Checks all bytes of a write, of its cell and of the adjacent guards, and frees the cell.
    pub(crate) fn check(
        &mut self,
        stream: &Stream,
        config: &SlotConfig,
        number: u32,
    ) -> Result<(), Failure> {
        let begin = cell_begin(self.cell_bytes, number);
        let copy = &mut self.copy[..self.cell_bytes + 2 * GUARD_BYTES];
        self.region.read(begin - GUARD_BYTES, copy);
        let write = stream.write(config, number);
        let from = GUARD_BYTES + write.offset_bytes;
        let to = from + write.length_bytes;
        let key = stream.write_key(number);
        if let Some(at) = mismatch(key, write.offset_bytes, &copy[from..to]) {
            return Err(
                format!("write {number} of {stream:?}: {write:?} is damaged at byte {at}").into(),
            );
        }
        let around = copy[..from].iter().chain(&copy[to..]);
        if let Some(at) = around.into_iter().position(|byte| *byte != UNTOUCHED) {
            return Err(format!(
                "write {number} of {stream:?}: {write:?}: byte {at} outside of it was written"
            )
            .into());
        }
        self.region.write(
            begin + write.offset_bytes,
            &self.unwritten[..write.length_bytes],
        );
        Ok(())
    }

    /// Frees the cell of a write that was lost completely or partially.
    pub(crate) fn forget(&mut self, number: u32) {
        self.region.write(
            cell_begin(self.cell_bytes, number),
            &self.unwritten[..self.cell_bytes],
        );
    }

    /// Checks the guards and frees all cells, after a connection that may have ended during writes.
    pub(crate) fn reset(&mut self) -> Result<(), Failure> {
        self.region.read(0, &mut self.copy);
        let stride = self.cell_bytes + GUARD_BYTES;
        let is_guard = |at: usize| at % stride < GUARD_BYTES;
        let written = (0..self.copy.len()).find(|at| is_guard(*at) && self.copy[*at] != UNTOUCHED);
        if let Some(at) = written {
            return Err(format!("guard byte {at} of a window was written").into());
        }
        self.region.write(0, &self.unwritten);
        Ok(())
    }

    /// Checks that nothing was written since the last reset.
    pub(crate) fn expect_untouched(&mut self) -> Result<(), Failure> {
        self.region.read(0, &mut self.copy);
        match self.copy.iter().position(|byte| *byte != UNTOUCHED) {
            Some(at) => {
                Err(format!("byte {at} of a window was written between connections").into())
            }
            None => Ok(()),
        }
    }
}
