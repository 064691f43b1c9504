//! Buffers: a pool of DPDK's, and who has which of them.

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

/// Bytes of a buffer for a frame, behind the headroom: the longest frame of ours and what a device puts before it, in
/// whole KiB, since some cards count in these.
pub(super) const ROOM_BYTES: u32 = 3072;
/// Buffers that each lcore keeps at hand.
pub(super) const CACHE: u32 = 256;

/// Memory is looked at in pieces of this size, in each of which at most one buffer begins.
const PIECE_BYTES: usize = 2048;
/// A frame's beginning may move so far.
const SPARE_BYTES: usize = 4;
/// Buffers begin at multiples of this.
const ALIGN_BYTES: usize = 64;
/// Where in its piece a buffer begins, in units of the alignment.
const PLACE_MASK: u8 = (PIECE_BYTES / ALIGN_BYTES - 1) as u8;
/// A buffer begins in the piece.
const PRESENT: u8 = PLACE_MASK + 1;
/// Two bits for the holder.
const HOLDER_SHIFT: u32 = 6;

/// A pool of DPDK's, freed on drop. All its buffers are back by then, and no port uses it.
#[derive(Debug)]
pub(super) struct Pool {
    pool: NonNull<rte_mempool>,
    lowest: NonNull<u8>,
    /// For each piece of memory from the lowest buffer on, whether one begins there, and where.
    pieces: Box<[u8]>,
    buffers: u32,
    /// From a buffer to where a frame to send is written.
    data_offset_bytes: usize,
}

// SAFETY: a pool may be used by any thread that runs as an lcore of its own, and everything else in it is constant.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Makes a pool of so many buffers in memory near the device's.
    pub(super) fn new(buffers: u32, socket: i32) -> Result<Self, DpdkError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only has to differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let buffer_bytes = ROOM_BYTES + RTE_PKTMBUF_HEADROOM;
        let mark = log::mark();
        let memory = |said| DpdkError::Memory {
            buffers,
            buffer_bytes,
            said,
        };
        let name = CString::new(format!("viaduct-{number}")).unwrap_or_default();
        // SAFETY: EAL runs, and the name is a text that is copied.
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
        let pool = NonNull::new(pool).ok_or_else(|| memory(eal::said_last(mark)))?;
        let found = match survey(pool, buffers) {
            Some(found) => found,
            None => {
                // SAFETY: nobody has a buffer of it.
                unsafe { rte_mempool_free(pool.as_ptr()) };
                return Err(memory(eal::said(libc::ENOMEM, mark)));
            }
        };
        Ok(Self {
            pool,
            lowest: found.lowest,
            pieces: found.pieces,
            buffers,
            data_offset_bytes: found.data_offset_bytes,
        })
    }

    pub(super) fn as_ptr(&self) -> *mut rte_mempool {
        self.pool.as_ptr()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: all buffers are back and no port uses it, as whoever made it promises.
        unsafe { rte_mempool_free(self.pool.as_ptr()) };
    }
}

/// Where the buffers of a pool are.
struct Survey {
    lowest: NonNull<u8>,
    pieces: Box<[u8]>,
    data_offset_bytes: usize,
}

/// Finds out where the buffers of a new pool are; `None` if two of them begin in one piece, or so far apart that numbers
/// run out.
fn survey(pool: NonNull<rte_mempool>, buffers: u32) -> Option<Survey> {
    let mut frames = vec![dpdk_sys_frame::default(); buffers as usize];
    // SAFETY: the pool lives, and there is room for all of its buffers.
    let listed = unsafe { dpdk_sys_pool_frames(pool.as_ptr(), frames.as_mut_ptr(), buffers) };
    if listed != buffers {
        return None;
    }
    let first = frames.first()?;
    let data_offset_bytes = (first.data as usize).checked_sub(first.mbuf as usize)?;
    let places = || frames.iter().map(|frame| frame.mbuf.cast::<u8>());
    let lowest = places().min()?;
    let span_bytes = places().max()? as usize - lowest as usize;
    u32::try_from(span_bytes / PIECE_BYTES).ok()?;
    let mut pieces = vec![0; span_bytes / PIECE_BYTES + 1].into_boxed_slice();
    for place in places() {
        let offset_bytes = place as usize - lowest as usize;
        let piece = pieces.get_mut(offset_bytes / PIECE_BYTES)?;
        if *piece != 0 || !offset_bytes.is_multiple_of(ALIGN_BYTES) {
            return None;
        }
        *piece = PRESENT | (offset_bytes % PIECE_BYTES / ALIGN_BYTES) as u8;
    }
    Some(Survey {
        lowest: NonNull::new(lowest)?,
        pieces,
        data_offset_bytes,
    })
}

/// Who has a buffer, as one port knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The pool, the device, or another port.
    Elsewhere,
    /// The caller, who received it.
    Received,
    /// The caller, who may send it.
    ToSend,
    /// The port, for the next one who wants to send.
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

    const fn of(piece: u8) -> Self {
        match piece >> HOLDER_SHIFT {
            0 => Self::Elsewhere,
            1 => Self::Received,
            2 => Self::ToSend,
            _ => Self::Port,
        }
    }
}

/// The buffers of a pool as one port has them.
#[derive(Debug)]
pub(super) struct Buffers {
    /// The pool's, with the holders.
    pieces: Box<[u8]>,
    lowest: NonNull<u8>,
    /// Buffers that the caller has.
    lent: u32,
    pub(super) pool: Arc<Pool>,
}

// SAFETY: the pointer is the pool's, and says where its buffers are.
unsafe impl Send for Buffers {}

impl Buffers {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        Self {
            pieces: pool.pieces.clone(),
            lowest: pool.lowest,
            lent: 0,
            pool,
        }
    }

    /// How many buffers the caller has.
    pub(super) fn lent(&self) -> u32 {
        self.lent
    }

    /// The number of a buffer; `None` if it is of another pool.
    #[inline]
    pub(super) fn number_of(&self, mbuf: *mut rte_mbuf) -> Option<u32> {
        let offset_bytes = (mbuf as usize).checked_sub(self.lowest.as_ptr() as usize)?;
        let number = offset_bytes / PIECE_BYTES;
        let place = (offset_bytes % PIECE_BYTES / ALIGN_BYTES) as u8 | PRESENT;
        let piece = self.pieces.get(number)? & (PRESENT | PLACE_MASK);
        (piece == place).then_some(number as u32)
    }

    /// The number of a buffer in which a frame came that begins at `data`; `None` if it is of another pool, or another
    /// has it, or the frame begins where none of ours does.
    #[inline]
    pub(super) fn received(&self, mbuf: *mut rte_mbuf, data: *const u8) -> Option<u32> {
        let number = self.number_of(mbuf)?;
        let offset_bytes = (data as usize).checked_sub(mbuf as usize)?;
        let is_ours =
            offset_bytes < PIECE_BYTES - SPARE_BYTES && self.holder(number) == Holder::Elsewhere;
        is_ours.then_some(number)
    }

    /// Where a frame to send is written.
    #[inline]
    pub(super) fn data(&self, number: u32) -> *mut u8 {
        self.mbuf(number)
            .cast::<u8>()
            .wrapping_add(self.pool.data_offset_bytes)
    }

    /// The buffer of a number that [`Buffers::number_of`] gave.
    #[inline]
    pub(super) fn mbuf(&self, number: u32) -> *mut rte_mbuf {
        let place = usize::from(self.pieces[number as usize] & PLACE_MASK);
        let offset_bytes = number as usize * PIECE_BYTES + place * ALIGN_BYTES;
        self.lowest.as_ptr().wrapping_add(offset_bytes).cast()
    }

    #[inline]
    pub(super) fn holder(&self, number: u32) -> Holder {
        Holder::of(self.pieces[number as usize])
    }

    /// Another holder has the buffer from now on; keeps count of the caller's.
    #[inline]
    pub(super) fn give(&mut self, number: u32, holder: Holder) {
        let piece = &mut self.pieces[number as usize];
        let is_callers = |holder| matches!(holder, Holder::Received | Holder::ToSend);
        self.lent -= u32::from(is_callers(Holder::of(*piece)));
        self.lent += u32::from(is_callers(holder));
        *piece = *piece & (PRESENT | PLACE_MASK) | holder.bits();
    }

    /// The number of a buffer that the caller gives back, and as what he had it; `None` if it is not of this port.
    #[inline]
    pub(super) fn returned(&self, mbuf: &Mbuf) -> Option<(u32, Holder)> {
        let number = mbuf.cookie();
        let holder = Holder::of(*self.pieces.get(number as usize)?);
        if !matches!(holder, Holder::Received | Holder::ToSend) {
            return None;
        }
        let start = self.mbuf(number) as usize;
        let offset_bytes = (mbuf.bytes().as_ptr() as usize).checked_sub(start)?;
        // A frame begins behind the headers, of which there are more than these bytes.
        (offset_bytes < PIECE_BYTES).then_some((number, holder))
    }

    /// Numbers of the buffers that neither the caller nor the port has.
    pub(super) fn elsewhere(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.pieces).filter_map(|(number, piece)| {
            let is_elsewhere = piece & PRESENT != 0 && Holder::of(*piece) == Holder::Elsewhere;
            is_elsewhere.then_some(number)
        })
    }

    /// How many buffers there are.
    pub(super) fn count(&self) -> u32 {
        self.pool.buffers
    }
}
