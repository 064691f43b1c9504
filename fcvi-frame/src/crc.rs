//! The CRC of an FC frame.
//!
//! The same CRC-32 as Ethernet's (polynomial 0x04C11DB7, reflected, all ones
//! first, complemented last), from R_CTL to the last byte of the data field, fill
//! included, SOF and EOF not.
//!
//! A frame to send is copied and its CRC computed in one pass, by the fastest instructions of the
//! processor (docs/adr/0064): a level, which is chosen once.

mod portable;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::sync::atomic::{AtomicU8, Ordering};

use crate::frame::{FrameToEmit, emit_frame_at};

/// Computes the CRC of `bytes`, which is stored little-endian behind them.
#[inline]
#[must_use]
pub fn fc_crc(bytes: &[u8]) -> u32 {
    match Level::of_processor() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions of the level.
        Level::Pclmul => unsafe { x86_64::crc_pclmul(bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Vpclmul => unsafe { x86_64::crc_vpclmul(bytes) },
        _ => crc32fast::hash(bytes),
    }
}

/// The bytes of a header that the CRC covers, in words of eight bytes: the FC header and a
/// device_header of 0, 2 or 4 words.
#[derive(Clone, Copy)]
pub(crate) struct CoveredHeader {
    pub(crate) words: [u64; 7],
    /// Words in use: 3, 5 or 7.
    pub(crate) count: usize,
}

/// A payload to copy.
#[derive(Clone, Copy)]
pub(crate) struct PayloadCopy {
    pub(crate) from: *const u8,
    pub(crate) to: *mut u8,
    pub(crate) bytes: usize,
    /// Distance in bytes from `to` to the memory that is prefetched for the next frames; 0: none.
    pub(crate) prefetch_bytes: usize,
}

/// Copies payload and computes a frame's CRC in one pass.
pub(crate) trait CopyWithCrc {
    /// Copies the payload, and zeros up to the next multiple of 4 bytes; returns the CRC of header,
    /// payload and these zeros. Every byte of the payload is read once, since another thread may
    /// change it: the CRC is that of the bytes that were copied. Volatile loads must be aligned, so
    /// each value passes through [`read_once`] instead.
    ///
    /// # Safety
    /// The payload is readable, and its target is writable up to that multiple of 4 bytes. The
    /// processor has the instructions of this level.
    unsafe fn copy_with_crc(header: CoveredHeader, copy: PayloadCopy) -> u32;
}

/// Instructions with which frames are copied and CRCs computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Level {
    /// Those of every processor.
    Portable = 1,
    /// PCLMULQDQ and SSE4.1.
    #[cfg(target_arch = "x86_64")]
    Pclmul,
    /// VPCLMULQDQ and AVX-512.
    #[cfg(target_arch = "x86_64")]
    Vpclmul,
    /// The CRC instructions of ARMv8.
    #[cfg(target_arch = "aarch64")]
    Armv8Crc,
}

impl Level {
    /// All levels, slowest first.
    const ALL: &[Self] = &[
        Self::Portable,
        #[cfg(target_arch = "x86_64")]
        Self::Pclmul,
        #[cfg(target_arch = "x86_64")]
        Self::Vpclmul,
        #[cfg(target_arch = "aarch64")]
        Self::Armv8Crc,
    ];

    /// Returns the fastest level that the processor has.
    #[inline]
    pub(crate) fn of_processor() -> Self {
        /// The level as a number; 0: not yet known.
        static LEVEL: AtomicU8 = AtomicU8::new(0);
        // Relaxed: every thread finds the same level.
        match LEVEL.load(Ordering::Relaxed) {
            level if level == Self::Portable as u8 => Self::Portable,
            #[cfg(target_arch = "x86_64")]
            level if level == Self::Pclmul as u8 => Self::Pclmul,
            #[cfg(target_arch = "x86_64")]
            level if level == Self::Vpclmul as u8 => Self::Vpclmul,
            #[cfg(target_arch = "aarch64")]
            level if level == Self::Armv8Crc as u8 => Self::Armv8Crc,
            _ => {
                let level = Self::available().last().unwrap_or(Self::Portable);
                LEVEL.store(level as u8, Ordering::Relaxed);
                level
            }
        }
    }

    /// Returns the levels that the processor has, slowest first.
    pub(crate) fn available() -> impl Iterator<Item = Self> {
        Self::ALL
            .iter()
            .copied()
            .filter(|level| level.is_available())
    }

    #[cfg(feature = "std")]
    fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Pclmul => {
                std::is_x86_feature_detected!("pclmulqdq")
                    && std::is_x86_feature_detected!("sse4.1")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Vpclmul => {
                Self::Pclmul.is_available()
                    && std::is_x86_feature_detected!("vpclmulqdq")
                    && std::is_x86_feature_detected!("avx512f")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Armv8Crc => std::arch::is_aarch64_feature_detected!("crc"),
        }
    }

    #[cfg(not(feature = "std"))]
    fn is_available(self) -> bool {
        self == Self::Portable
    }

    /// Writes a frame with this level's instructions.
    ///
    /// # Safety
    /// As for [`emit_frame_at`]; the level is available.
    #[inline]
    pub(crate) unsafe fn emit_frame(self, frame: &FrameToEmit<'_>, out: *mut u8) {
        match self {
            // SAFETY: guaranteed by the caller.
            Self::Portable => unsafe { emit_frame_at::<portable::Portable>(frame, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: likewise.
            Self::Pclmul => unsafe { x86_64::emit_frame_pclmul(frame, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: likewise.
            Self::Vpclmul => unsafe { x86_64::emit_frame_vpclmul(frame, out) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: likewise.
            Self::Armv8Crc => unsafe { emit_frame_at::<aarch64::Armv8Crc>(frame, out) },
        }
    }
}

/// Hides from the compiler where a value came from, so that it cannot load it again.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn read_once(mut value: u64) -> u64 {
    // SAFETY: no instruction.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags));
    }
    value
}

impl PayloadCopy {
    /// Prefetches for writing the cache line that is as far in the memory of a later frame.
    #[inline(always)]
    fn prefetch(&self) {
        if self.prefetch_bytes == 0 {
            return;
        }
        let address = self.to.wrapping_add(self.prefetch_bytes);
        // Not `_mm_prefetch`: without the target feature the compiler makes that a prefetch for
        // reading. Processors without PREFETCHW execute it as a NOP.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch never faults and changes nothing but caches.
        unsafe {
            core::arch::asm!(
                "prefetchw [{0}]",
                in(reg) address,
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            core::arch::asm!(
                "prfm pstl1keep, [{0}]",
                in(reg) address,
                options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _no_such_instruction = address;
    }
}

/// Reads 0 to 15 bytes, each once, as a number whose lowest byte is the first.
///
/// # Safety
/// `bytes` bytes are readable at `from`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
unsafe fn read_last(from: *const u8, bytes: usize) -> u128 {
    let mut value = 0u128;
    /// Reads an integer if the number of bytes has its bit; those of larger ones are before it.
    macro_rules! read_if {
        ($integer:ty, $before:literal) => {
            if bytes & size_of::<$integer>() != 0 {
                let at = bytes & $before;
                // SAFETY: `at` and the size of the integer are bits of the number of bytes.
                let part = unsafe { from.wrapping_add(at).cast::<$integer>().read_unaligned() };
                let part = read_once(u64::from(part.to_le()));
                value |= u128::from(part).wrapping_shl((at as u32).wrapping_mul(8));
            }
        };
    }
    read_if!(u64, 0);
    read_if!(u32, 8);
    read_if!(u16, 12);
    read_if!(u8, 14);
    value
}

#[cfg(test)]
mod tests;
