//! Buffers: a DPDK mempool, and the holder of each of its buffers.

use core::ptr::NonNull;
use std::ffi::CString;
use std::sync::Arc;

use dpdk_sys::{
    RTE_PKTMBUF_HEADROOM, dpdk_sys_frame, dpdk_sys_pool_frames, rte_mbuf, rte_mempool,
    rte_mempool_free, rte_pktmbuf_pool_create,
};

use super::config::DpdkError;
use super::eal;
use super::log;
use crate::mbuf::Mbuf;
use crate::sync::mapped::{AtomicU32, Ordering};

/// Bytes of a buffer for a frame, behind the headroom: our longest frame and what a device puts before it, rounded up
/// to whole KiB, since some NICs need that.
pub(super) const ROOM_BYTES: u32 = 3072;
/// Buffers in each lcore's mempool cache.
pub(super) const CACHE: u32 = 256;

/// The pool's memory is divided into chunks of this size, in each of which at most one buffer begins. The index of the
/// chunk is the buffer's number.
const CHUNK_BYTES: usize = 2048;
/// The beginning of a frame may move by this when a tag is removed.
const SPARE_BYTES: usize = 4;
/// Buffers begin at multiples of this.
const ALIGN_BYTES: usize = 64;
/// Mask of the offset at which a buffer begins in its chunk, in units of the alignment.
const OFFSET_MASK: u8 = (CHUNK_BYTES / ALIGN_BYTES - 1) as u8;
/// Set if a buffer begins in the chunk.
const PRESENT: u8 = OFFSET_MASK + 1;
/// Shift of the two bits for the holder.
const HOLDER_SHIFT: u32 = 6;

/// A DPDK mempool, freed on drop. By then all its buffers are returned, and no port uses it.
#[derive(Debug)]
pub(super) struct Pool {
    pool: NonNull<rte_mempool>,
    lowest: NonNull<u8>,
    /// For each chunk from the lowest buffer on: whether a buffer begins there, and its offset.
    chunks: Box<[u8]>,
    buffers: u32,
    /// From the beginning of a buffer to the beginning of a frame to send.
    data_offset_bytes: usize,
}

// SAFETY: a mempool may be used by any thread that runs as its own lcore, and all other fields are constant.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool of `buffers` buffers on the NUMA node `socket`.
    pub(super) fn new(buffers: u32, socket: i32) -> Result<Self, DpdkError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only uniqueness matters.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let buffer_bytes = ROOM_BYTES + RTE_PKTMBUF_HEADROOM;
        let mark = log::mark();
        let no_memory = |detail| DpdkError::Memory {
            buffers,
            buffer_bytes,
            detail,
        };
        let name = CString::new(format!("viaduct-{number}")).unwrap_or_default();
        // SAFETY: EAL runs, and the NUL-terminated name is copied.
        let pool = unsafe {
            rte_pktmbuf_pool_create(
                name.as_ptr(),
                buffers,
                CACHE,
                0,
                buffer_bytes as u16,
                socket,
            )
        };
        let pool = NonNull::new(pool).ok_or_else(|| no_memory(eal::last_failure(mark)))?;
        let layout = match read_layout(pool, buffers) {
            Some(layout) => layout,
            None => {
                // SAFETY: none of its buffers is allocated.
                unsafe { rte_mempool_free(pool.as_ptr()) };
                return Err(no_memory(eal::failure(libc::ENOMEM, mark)));
            }
        };
        Ok(Self {
            pool,
            lowest: layout.lowest,
            chunks: layout.chunks,
            buffers,
            data_offset_bytes: layout.data_offset_bytes,
        })
    }

    pub(super) fn as_ptr(&self) -> *mut rte_mempool {
        self.pool.as_ptr()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: all buffers are returned and no port uses it, as the type requires of its owner.
        unsafe { rte_mempool_free(self.pool.as_ptr()) };
    }
}

/// Addresses of the buffers of a pool.
struct Layout {
    lowest: NonNull<u8>,
    chunks: Box<[u8]>,
    data_offset_bytes: usize,
}

/// Reads the addresses of the buffers of a new pool; `None` if two of them begin in one chunk, or if their span exceeds
/// the range of buffer numbers.
fn read_layout(pool: NonNull<rte_mempool>, buffers: u32) -> Option<Layout> {
    let mut frames = vec![dpdk_sys_frame::default(); buffers as usize];
    // SAFETY: the pool lives, and the pointer is valid for `buffers` records.
    let listed = unsafe { dpdk_sys_pool_frames(pool.as_ptr(), frames.as_mut_ptr(), buffers) };
    if listed != buffers {
        return None;
    }
    let first = frames.first()?;
    let data_offset_bytes = (first.data as usize).checked_sub(first.mbuf as usize)?;
    let addresses = || frames.iter().map(|frame| frame.mbuf.cast::<u8>());
    let lowest = addresses().min()?;
    let span_bytes = addresses().max()? as usize - lowest as usize;
    u32::try_from(span_bytes / CHUNK_BYTES).ok()?;
    let mut chunks = vec![0; span_bytes / CHUNK_BYTES + 1].into_boxed_slice();
    for address in addresses() {
        let offset_bytes = address as usize - lowest as usize;
        let chunk = chunks.get_mut(offset_bytes / CHUNK_BYTES)?;
        if *chunk != 0 || !offset_bytes.is_multiple_of(ALIGN_BYTES) {
            return None;
        }
        *chunk = PRESENT | (offset_bytes % CHUNK_BYTES / ALIGN_BYTES) as u8;
    }
    Some(Layout {
        lowest: NonNull::new(lowest)?,
        chunks,
        data_offset_bytes,
    })
}

/// Holder of a buffer, as far as one port knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The pool, the device, or another port.
    Elsewhere,
    /// The caller, as a received frame.
    Received,
    /// The caller, as a frame to send.
    ToSend,
    /// The port, for the next `alloc`.
    Port,
}

impl Holder {
    const fn bits(self) -> u8 {
        (match self {
            Self::Elsewhere => 0u8,
            Self::Received => 1,
            Self::ToSend => 2,
            Self::Port => 3,
        }) << HOLDER_SHIFT
    }

    const fn of(chunk: u8) -> Self {
        match chunk >> HOLDER_SHIFT {
            0 => Self::Elsewhere,
            1 => Self::Received,
            2 => Self::ToSend,
            _ => Self::Port,
        }
    }
}

/// The buffers of a pool, with their holders as one port knows them.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The pool's chunks, with the holders.
    chunks: Box<[u8]>,
    lowest: NonNull<u8>,
    /// Number of buffers that the caller holds.
    lent: u32,
    pub(super) pool: Arc<Pool>,
}

// SAFETY: the pointer is the pool's, and only used to compute addresses.
unsafe impl Send for Buffers {}

impl Buffers {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self {
            chunks: pool.chunks.clone(),
            lowest: pool.lowest,
            lent: 0,
            pool,
        }
    }

    /// Returns the number of buffers that the caller holds.
    pub(super) fn lent(&self) -> u32 {
        self.lent
    }

    /// Returns the number of a buffer; `None` if it is not of this pool.
    #[inline]
    pub(super) fn number_of(&self, mbuf: *mut rte_mbuf) -> Option<u32> {
        let offset_bytes = (mbuf as usize).checked_sub(self.lowest.as_ptr() as usize)?;
        let number = offset_bytes / CHUNK_BYTES;
        let expected = (offset_bytes % CHUNK_BYTES / ALIGN_BYTES) as u8 | PRESENT;
        let chunk = self.chunks.get(number)? & (PRESENT | OFFSET_MASK);
        (chunk == expected).then_some(number as u32)
    }

    /// Returns the number of a buffer with a received frame that begins at `data`; `None` if the buffer is not of this
    /// pool or has another holder, or if the frame begins too far behind the buffer's beginning.
    #[inline]
    pub(super) fn received(&self, mbuf: *mut rte_mbuf, data: *const u8) -> Option<u32> {
        let number = self.number_of(mbuf)?;
        let offset_bytes = (data as usize).checked_sub(mbuf as usize)?;
        let is_ours =
            offset_bytes < CHUNK_BYTES - SPARE_BYTES && self.holder(number) == Holder::Elsewhere;
        is_ours.then_some(number)
    }

    /// Returns the address at which a frame to send is written.
    #[inline]
    pub(super) fn data(&self, number: u32) -> *mut u8 {
        self.mbuf(number)
            .cast::<u8>()
            .wrapping_add(self.pool.data_offset_bytes)
    }

    /// Returns the buffer of a number that [`Buffers::number_of`] returned.
    #[inline]
    pub(super) fn mbuf(&self, number: u32) -> *mut rte_mbuf {
        let units = usize::from(self.chunks[number as usize] & OFFSET_MASK);
        let offset_bytes = number as usize * CHUNK_BYTES + units * ALIGN_BYTES;
        self.lowest.as_ptr().wrapping_add(offset_bytes).cast()
    }

    #[inline]
    pub(super) fn holder(&self, number: u32) -> Holder {
        Holder::of(self.chunks[number as usize])
    }

    /// Sets the holder of a buffer, and counts those of the caller.
    #[inline]
    pub(super) fn set_holder(&mut self, number: u32, holder: Holder) {
        let chunk = &mut self.chunks[number as usize];
        let is_callers = |holder| matches!(holder, Holder::Received | Holder::ToSend);
        self.lent -= u32::from(is_callers(Holder::of(*chunk)));
        self.lent += u32::from(is_callers(holder));
        *chunk = *chunk & (PRESENT | OFFSET_MASK) | holder.bits();
    }

    /// Returns the number and the holder of a buffer that the caller returns; `None` if it does not belong to this
    /// port.
    #[inline]
    pub(super) fn returned(&self, mbuf: &Mbuf) -> Option<(u32, Holder)> {
        let number = mbuf.cookie();
        let holder = Holder::of(*self.chunks.get(number as usize)?);
        if !matches!(holder, Holder::Received | Holder::ToSend) {
            return None;
        }
        let start = self.mbuf(number) as usize;
        let offset_bytes = (mbuf.bytes().as_ptr() as usize).checked_sub(start)?;
        // A frame begins behind the headroom, which is longer than this.
        (offset_bytes < CHUNK_BYTES).then_some((number, holder))
    }

    /// Returns the numbers of the buffers that neither the caller nor the port holds.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.chunks).filter_map(|(number, chunk)| {
            let is_elsewhere = chunk & PRESENT != 0 && Holder::of(*chunk) == Holder::Elsewhere;
            is_elsewhere.then_some(number)
        })
    }

    /// Returns the number of buffers of the pool.
    pub(super) fn count(&self) -> u32 {
        self.pool.buffers
    }
}
