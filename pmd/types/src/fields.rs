//! Big-endian fields at fixed offsets of fixed-size arrays, for headers on the wire.
//!
//! Offset and width are checked against the array at compile time, so no access is out of bounds and
//! none is checked at run time.

/// Checks that these (offset, bytes) fields cover `0..total` in order, without gap or overlap.
#[must_use]
pub const fn tiles(mut fields: &[(usize, usize)], total: usize) -> bool {
    let mut end: usize = 0;
    while let Some((&(offset, bytes), rest)) = fields.split_first() {
        if offset != end {
            return false;
        }
        end = end.saturating_add(bytes);
        fields = rest;
    }
    end == total
}

/// Reads the fields of one structure.
#[derive(Clone, Copy)]
pub struct Reader<'a, const N: usize>(pub &'a [u8; N]);

impl<const N: usize> Reader<'_, N> {
    /// Reads the `LEN` bytes at offset `AT`.
    #[inline]
    #[must_use]
    pub fn array<const AT: usize, const LEN: usize>(self) -> [u8; LEN] {
        const { assert!(AT <= N && LEN <= N - AT) };
        self.0
            .split_at_checked(AT)
            .and_then(|(_, tail)| tail.first_chunk())
            .copied()
            .unwrap_or([0; LEN])
    }

    /// Reads the byte at offset `AT`.
    #[inline]
    pub fn u8<const AT: usize>(self) -> u8 {
        let [value] = self.array::<AT, 1>();
        value
    }

    /// Reads the 16-bit number at offset `AT`.
    #[inline]
    pub fn u16<const AT: usize>(self) -> u16 {
        u16::from_be_bytes(self.array::<AT, 2>())
    }

    /// Reads the 24-bit number at offset `AT`.
    #[inline]
    pub fn u24<const AT: usize>(self) -> u32 {
        let [a, b, c] = self.array::<AT, 3>();
        u32::from_be_bytes([0, a, b, c])
    }

    /// Reads the 32-bit number at offset `AT`.
    #[inline]
    pub fn u32<const AT: usize>(self) -> u32 {
        u32::from_be_bytes(self.array::<AT, 4>())
    }

    /// Reads the 64-bit number at offset `AT`.
    #[inline]
    pub fn u64<const AT: usize>(self) -> u64 {
        u64::from_be_bytes(self.array::<AT, 8>())
    }
}

/// Writes the fields of one structure.
pub struct Writer<'a, const N: usize>(pub &'a mut [u8; N]);

impl<const N: usize> Writer<'_, N> {
    /// Writes `value` at offset `AT`.
    #[inline]
    pub fn array<const AT: usize, const LEN: usize>(&mut self, value: [u8; LEN]) {
        const { assert!(AT <= N && LEN <= N - AT) };
        let field = self
            .0
            .split_at_mut_checked(AT)
            .and_then(|(_, tail)| tail.first_chunk_mut());
        if let Some(field) = field {
            *field = value;
        }
    }

    /// Writes `value` at offset `AT`.
    #[inline]
    pub fn u8<const AT: usize>(&mut self, value: u8) {
        self.array::<AT, 1>([value]);
    }

    /// Writes `value` at offset `AT`.
    #[inline]
    pub fn u16<const AT: usize>(&mut self, value: u16) {
        self.array::<AT, 2>(value.to_be_bytes());
    }

    /// Writes the low 24 bits of `value` at offset `AT`.
    #[inline]
    pub fn u24<const AT: usize>(&mut self, value: u32) {
        let [_, a, b, c] = value.to_be_bytes();
        self.array::<AT, 3>([a, b, c]);
    }

    /// Writes `value` at offset `AT`.
    #[inline]
    pub fn u32<const AT: usize>(&mut self, value: u32) {
        self.array::<AT, 4>(value.to_be_bytes());
    }

    /// Writes `value` at offset `AT`.
    #[inline]
    pub fn u64<const AT: usize>(&mut self, value: u64) {
        self.array::<AT, 8>(value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::{Reader, Writer, tiles};

    #[test]
    fn tiles_rejects_gaps_overlaps_and_wrong_totals() {
        assert!(tiles(&[(0, 1), (1, 3), (4, 4)], 8));
        assert!(!tiles(&[(0, 1), (2, 3)], 5));
        assert!(!tiles(&[(0, 2), (1, 3)], 4));
        assert!(!tiles(&[(0, 2)], 3));
    }

    #[test]
    fn fields_are_big_endian_at_their_offsets() {
        let mut bytes = [0xEE; 20];
        let mut writer = Writer(&mut bytes);
        writer.u8::<0>(1);
        writer.u16::<1>(0x0203);
        writer.u24::<3>(0xFF04_0506);
        writer.u32::<6>(0x0708_090A);
        writer.u64::<10>(0x0B0C_0D0E_0F10_1112);
        assert_eq!(
            bytes,
            [
                1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 0xEE, 0xEE
            ]
        );
        let reader = Reader(&bytes);
        assert_eq!(reader.u8::<0>(), 1);
        assert_eq!(reader.u16::<1>(), 0x0203);
        assert_eq!(reader.u24::<3>(), 0x0004_0506);
        assert_eq!(reader.u32::<6>(), 0x0708_090A);
        assert_eq!(reader.u64::<10>(), 0x0B0C_0D0E_0F10_1112);
    }
}
