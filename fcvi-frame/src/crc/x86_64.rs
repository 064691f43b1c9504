//! Copies payload and computes CRCs with carry-less multiplications.
//!
//! The CRC of a message is the remainder of a polynomial, whose first coefficients are the first
//! bytes. The bytes up to some point are represented by any 16 bytes with the same remainder, the
//! *state*. To append a block of 16 bytes, the state is multiplied by x^128 and the block is added.
//! Both halves of a block at a distance of `n` blocks are multiplied by x^(128n) at once, each by its
//! own constant ([`DISTANCE`]), so blocks need not be appended one after the other.
//!
//! The initial value of the CRC, all ones, is that of a message which has [`INITIAL`] before it.

#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "each step checks how many bytes are left, and distances are within the table"
)]

use core::arch::x86_64::*;

use super::{CopyWithCrc, CoveredHeader, PayloadCopy, read_last};
use crate::frame::{FrameToEmit, emit_frame_at};

/// The polynomial, bit-reflected.
const POLYNOMIAL: u32 = 0xEDB8_8320;
/// Bytes of a block.
const BLOCK_BYTES: usize = 16;
/// Blocks of a 512-bit register.
const WIDE_BLOCKS: usize = 4;
/// Payloads shorter than this are appended block by block, longer ones in several lanes.
const SHORT_BYTES: usize = 8 * BLOCK_BYTES;

/// Returns the remainder of x^n, bit-reflected, as a factor of a multiplication without carries.
const fn power(n: usize) -> i64 {
    let (mut remainder, mut i) = (1u32 << 31, 0);
    while i < n {
        let carry = remainder & 1;
        remainder = (remainder >> 1) ^ (POLYNOMIAL & carry.wrapping_neg());
        i += 1;
    }
    (remainder as i64) << 1
}

/// The factors of the first and the second half of a block at a distance of as many blocks.
const DISTANCE: [[i64; 2]; 17] = {
    let mut factors = [[0; 2]; 17];
    let mut blocks = 1;
    while blocks < factors.len() {
        factors[blocks] = [power(128 * blocks + 32), power(128 * blocks - 32)];
        blocks += 1;
    }
    factors
};

/// The four bytes whose remainder is the CRC's initial value of all ones.
const INITIAL: u32 = {
    let (mut crc, mut i) = (u32::MAX, 0);
    while i < 32 {
        let carry = crc >> 31;
        crc = ((crc ^ (POLYNOMIAL & carry.wrapping_neg())) << 1) | carry;
        i += 1;
    }
    crc
};

/// Indices for byte shuffles that move the bytes of a block. With 16 of them from `16 - n` on a block
/// moves by `n` bytes to later positions, from `16 + n` on to earlier ones; zeros follow.
static SHIFTS: [u8; 48] = {
    let mut indices = [0x80; 48];
    let mut i = 0;
    while i < BLOCK_BYTES {
        indices[BLOCK_BYTES + i] = i as u8;
        i += 1;
    }
    indices
};

macro_rules! level {
    (
        $level:ident, $features:literal, $emit_frame:ident, $crc:ident, $append:ident,
        $append_groups:ident
    ) => {
        struct $level;

        impl CopyWithCrc for $level {
            #[inline(always)]
            unsafe fn copy_with_crc(header: CoveredHeader, copy: PayloadCopy) -> u32 {
                // SAFETY: the processor has the features.
                let state = unsafe { append_header(header) };
                // SAFETY: guaranteed by the caller.
                unsafe { $append::<true>(state, copy) }
            }
        }

        /// Writes a frame.
        ///
        /// # Safety
        /// As for [`emit_frame_at`]; the processor has the features of the level.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $emit_frame(frame: &FrameToEmit<'_>, out: *mut u8) {
            // SAFETY: guaranteed by the caller.
            unsafe { emit_frame_at::<$level>(frame, out) };
        }

        /// Computes the CRC of `bytes`.
        ///
        /// # Safety
        /// The processor has the features of the level.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $crc(bytes: &[u8]) -> u32 {
            let initial = _mm_set_epi32(INITIAL as i32, 0, 0, 0);
            let read = PayloadCopy {
                from: bytes.as_ptr(),
                to: core::ptr::null_mut(),
                bytes: bytes.len(),
                prefetch_bytes: 0,
            };
            // SAFETY: `bytes` is readable; nothing is written.
            unsafe { $append::<false>(initial, read) }
        }

        /// Appends payload to a state, and if it is copied zeros up to the next multiple of 4
        /// bytes; returns the CRC.
        ///
        /// # Safety
        /// As for [`CopyWithCrc::copy_with_crc`]; without `COPY` nothing is written.
        #[inline]
        #[target_feature(enable = $features)]
        unsafe fn $append<const COPY: bool>(mut state: __m128i, mut copy: PayloadCopy) -> u32 {
            if copy.bytes >= SHORT_BYTES {
                // SAFETY: guaranteed by the caller; at least four blocks are left.
                state = unsafe { $append_groups::<COPY>(state, &mut copy) };
            }
            // SAFETY: guaranteed by the caller; fewer than eight blocks are left.
            state = unsafe { append_blocks::<COPY>(state, &mut copy) };
            if copy.bytes > 0 {
                // SAFETY: guaranteed by the caller; less than a block is left.
                state = unsafe { append_last::<COPY>(state, copy) };
            }
            !remainder(state)
        }
    };
}

level!(
    Pclmul,
    "pclmulqdq,sse4.1",
    emit_frame_pclmul,
    crc_pclmul,
    append_pclmul,
    append_lanes
);
level!(
    Vpclmul,
    "pclmulqdq,sse4.1,vpclmulqdq,avx512f",
    emit_frame_vpclmul,
    crc_vpclmul,
    append_vpclmul,
    append_wide
);

/// Returns the state after a header. The initial value is before it, in its first block.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn append_header(header: CoveredHeader) -> __m128i {
    let [w0, w1, w2, w3, w4, w5, w6] = header.words.map(|word| word.swap_bytes() as i64);
    let b0 = _mm_set_epi64x(w0, i64::from(INITIAL) << 32);
    let b1 = _mm_set_epi64x(w2, w1);
    let b2 = _mm_set_epi64x(w4, w3);
    let b3 = _mm_set_epi64x(w6, w5);
    let sum = |a, b| _mm_xor_si128(a, b);
    match header.count {
        3 => sum(multiply(b0, 1), b1),
        5 => sum(sum(multiply(b0, 2), multiply(b1, 1)), b2),
        _ => {
            let far = sum(multiply(b0, 3), multiply(b1, 2));
            sum(far, sum(multiply(b2, 1), b3))
        }
    }
}

/// Multiplies a block by the factors of a distance of as many blocks.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn multiply(block: __m128i, blocks: usize) -> __m128i {
    let [first, second] = DISTANCE[blocks];
    let factors = _mm_set_epi64x(second, first);
    _mm_xor_si128(
        _mm_clmulepi64_si128::<0x00>(block, factors),
        _mm_clmulepi64_si128::<0x11>(block, factors),
    )
}

/// Multiplies four blocks by the factors of one distance.
#[inline]
#[target_feature(enable = "vpclmulqdq,avx512f")]
fn multiply_wide(blocks: __m512i, factors: __m512i, added: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(
        _mm512_clmulepi64_epi128::<0x00>(blocks, factors),
        _mm512_clmulepi64_epi128::<0x11>(blocks, factors),
        added,
    )
}

#[inline]
#[target_feature(enable = "avx512f")]
fn wide_factors(blocks: usize) -> __m512i {
    let [first, second] = DISTANCE[blocks];
    _mm512_set_epi64(second, first, second, first, second, first, second, first)
}

impl PayloadCopy {
    /// Reads the next block, writes it if this is a copy, and moves behind it.
    ///
    /// # Safety
    /// At least a block is left.
    #[inline(always)]
    unsafe fn block<const COPY: bool>(&mut self) -> __m128i {
        // SAFETY: a block is left; SSE2 is part of x86-64.
        let mut block = unsafe { _mm_loadu_si128(self.from.cast()) };
        // As in `read_once`.
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {0} */", inout(xmm_reg) block, options(nomem, nostack, preserves_flags));
        }
        if COPY {
            // SAFETY: a block is left in the target too.
            unsafe { _mm_storeu_si128(self.to.cast(), block) };
        }
        self.advance(BLOCK_BYTES);
        block
    }

    /// As [`Self::block`], four blocks.
    ///
    /// # Safety
    /// At least four blocks are left.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn wide_block<const COPY: bool>(&mut self) -> __m512i {
        // SAFETY: four blocks are left.
        let mut blocks = unsafe { _mm512_loadu_si512(self.from.cast()) };
        // As in `read_once`.
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {0} */", inout(zmm_reg) blocks, options(nomem, nostack, preserves_flags));
        }
        if COPY {
            // SAFETY: four blocks are left in the target too.
            unsafe { _mm512_storeu_si512(self.to.cast(), blocks) };
            self.prefetch();
        }
        self.advance(WIDE_BLOCKS * BLOCK_BYTES);
        blocks
    }

    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.from = self.from.wrapping_add(bytes);
        self.to = self.to.wrapping_add(bytes);
        self.bytes -= bytes;
    }
}

/// Appends all whole groups of four blocks, in four lanes.
///
/// # Safety
/// As for [`CopyWithCrc::copy_with_crc`]; at least four blocks are left.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn append_lanes<const COPY: bool>(state: __m128i, copy: &mut PayloadCopy) -> __m128i {
    let mut lanes = [_mm_setzero_si128(); WIDE_BLOCKS];
    for lane in &mut lanes {
        // SAFETY: at least four blocks are left.
        *lane = unsafe { copy.block::<COPY>() };
    }
    lanes[0] = _mm_xor_si128(lanes[0], multiply(state, 1));
    while copy.bytes >= WIDE_BLOCKS * BLOCK_BYTES {
        if COPY {
            copy.prefetch();
        }
        for lane in &mut lanes {
            // SAFETY: four blocks are left.
            let block = unsafe { copy.block::<COPY>() };
            *lane = _mm_xor_si128(multiply(*lane, WIDE_BLOCKS), block);
        }
    }
    join(lanes)
}

/// Returns the state after four lanes, of which each has the last block of its own at the position of
/// the lane.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn join([a, b, c, d]: [__m128i; WIDE_BLOCKS]) -> __m128i {
    let ab = _mm_xor_si128(multiply(a, 3), multiply(b, 2));
    _mm_xor_si128(ab, _mm_xor_si128(multiply(c, 1), d))
}

/// Appends all whole groups of four blocks, each in one register.
///
/// # Safety
/// As for [`CopyWithCrc::copy_with_crc`]; at least four blocks are left.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1,vpclmulqdq,avx512f")]
unsafe fn append_wide<const COPY: bool>(state: __m128i, copy: &mut PayloadCopy) -> __m128i {
    const GROUP: usize = WIDE_BLOCKS * BLOCK_BYTES;
    // SAFETY: at least four blocks are left.
    let first = unsafe { copy.wide_block::<COPY>() };
    let mut sum = _mm512_xor_si512(first, _mm512_zextsi128_si512(multiply(state, 1)));
    if copy.bytes >= 3 * GROUP {
        let mut lanes = [sum; 4];
        for lane in &mut lanes[1..] {
            // SAFETY: three groups are left.
            *lane = unsafe { copy.wide_block::<COPY>() };
        }
        let factors = wide_factors(4 * WIDE_BLOCKS);
        while copy.bytes >= 4 * GROUP {
            for lane in &mut lanes {
                // SAFETY: four groups are left.
                let blocks = unsafe { copy.wide_block::<COPY>() };
                *lane = multiply_wide(*lane, factors, blocks);
            }
        }
        let [a, b, c, d] = lanes;
        let bd = multiply_wide(b, wide_factors(2 * WIDE_BLOCKS), d);
        let abd = multiply_wide(a, wide_factors(3 * WIDE_BLOCKS), bd);
        sum = multiply_wide(c, wide_factors(WIDE_BLOCKS), abd);
    }
    let factors = wide_factors(WIDE_BLOCKS);
    while copy.bytes >= GROUP {
        // SAFETY: a group is left.
        let blocks = unsafe { copy.wide_block::<COPY>() };
        sum = multiply_wide(sum, factors, blocks);
    }
    join([
        _mm512_extracti32x4_epi32::<0>(sum),
        _mm512_extracti32x4_epi32::<1>(sum),
        _mm512_extracti32x4_epi32::<2>(sum),
        _mm512_extracti32x4_epi32::<3>(sum),
    ])
}

/// Appends all whole blocks, which are multiplied independently of each other.
///
/// # Safety
/// As for [`CopyWithCrc::copy_with_crc`]; fewer than eight blocks are left.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn append_blocks<const COPY: bool>(state: __m128i, copy: &mut PayloadCopy) -> __m128i {
    let mut left = copy.bytes / BLOCK_BYTES;
    if left == 0 {
        return state;
    }
    let mut sum = multiply(state, left);
    while left > 1 {
        left -= 1;
        // SAFETY: more than one block is left.
        let block = unsafe { copy.block::<COPY>() };
        sum = _mm_xor_si128(sum, multiply(block, left));
    }
    // SAFETY: one block is left.
    _mm_xor_si128(sum, unsafe { copy.block::<COPY>() })
}

/// Appends the bytes of an incomplete block.
///
/// # Safety
/// As for [`CopyWithCrc::copy_with_crc`]; 1 to 15 bytes are left.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
unsafe fn append_last<const COPY: bool>(state: __m128i, copy: PayloadCopy) -> __m128i {
    // SAFETY: this many bytes are left.
    let last = unsafe { read_last(copy.from, copy.bytes) };
    let last = _mm_set_epi64x((last >> 64) as i64, last as i64);
    let bytes = match COPY {
        true => copy.bytes.next_multiple_of(4),
        false => copy.bytes,
    };
    if COPY {
        // SAFETY: the target is writable up to the multiple of 4.
        unsafe { write_last(last, copy.to, bytes) };
    }
    // State and last bytes are more than a block: its first bytes, and the block behind them.
    let first = later(state, BLOCK_BYTES - bytes);
    let block = _mm_or_si128(earlier(state, bytes), later(last, BLOCK_BYTES - bytes));
    _mm_xor_si128(multiply(first, 1), block)
}

/// Writes the first 4, 8, 12 or 16 bytes of a block.
///
/// # Safety
/// They are writable at `to`.
#[inline]
#[target_feature(enable = "sse4.1")]
unsafe fn write_last(block: __m128i, to: *mut u8, bytes: usize) {
    let (first, last) = (_mm_cvtsi128_si64(block), _mm_extract_epi32::<2>(block));
    match bytes {
        // SAFETY: guaranteed by the caller.
        BLOCK_BYTES => unsafe { _mm_storeu_si128(to.cast(), block) },
        // SAFETY: likewise.
        4 => unsafe { to.cast::<i32>().write_unaligned(first as i32) },
        _ => {
            // SAFETY: likewise, 8 or 12 bytes.
            unsafe { to.cast::<i64>().write_unaligned(first) };
            if bytes == 12 {
                // SAFETY: likewise.
                unsafe { to.wrapping_add(8).cast::<i32>().write_unaligned(last) };
            }
        }
    }
}

/// Moves the bytes of a block to later positions, by 0 to 16 bytes.
#[inline]
#[target_feature(enable = "sse4.1")]
fn later(block: __m128i, bytes: usize) -> __m128i {
    shuffle(block, BLOCK_BYTES - bytes)
}

/// Moves the bytes of a block to earlier positions, by 0 to 16 bytes.
#[inline]
#[target_feature(enable = "sse4.1")]
fn earlier(block: __m128i, bytes: usize) -> __m128i {
    shuffle(block, BLOCK_BYTES + bytes)
}

#[inline]
#[target_feature(enable = "sse4.1")]
fn shuffle(block: __m128i, from: usize) -> __m128i {
    let indices = SHIFTS[from..].as_ptr();
    // SAFETY: `from` is at most 32, so 16 of the 48 indices follow.
    let indices = unsafe { _mm_loadu_si128(indices.cast()) };
    _mm_shuffle_epi8(block, indices)
}

/// Returns the remainder of a state, which is the complement of the CRC.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn remainder(state: __m128i) -> u32 {
    const FIRST: i64 = power(128 - 32);
    const SECOND: i64 = power(64);
    /// x^64 divided by the polynomial, and the polynomial, both bit-reflected.
    const QUOTIENT: i64 = 0x1_F701_1641;
    const DIVISOR: i64 = (POLYNOMIAL as i64) << 1 | 1;

    let low_words = _mm_set_epi32(0, -1, 0, -1);
    // 128 to 96 bits, and to 64.
    let first = _mm_clmulepi64_si128::<0x00>(state, _mm_set_epi64x(0, FIRST));
    let state = _mm_xor_si128(_mm_srli_si128::<8>(state), first);
    let second =
        _mm_clmulepi64_si128::<0x00>(_mm_and_si128(state, low_words), _mm_set_epi64x(0, SECOND));
    let state = _mm_xor_si128(_mm_srli_si128::<4>(state), second);
    // Barrett's reduction to 32 bits.
    let factors = _mm_set_epi64x(QUOTIENT, DIVISOR);
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(state, low_words), factors);
    let multiple = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low_words), factors);
    _mm_extract_epi32::<1>(_mm_xor_si128(state, multiple)) as u32
}
