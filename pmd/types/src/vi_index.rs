//! Indices of VIs.

/// Index of a VI of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViIndex(pub u32);

impl ViIndex {
    /// Returns the index into a table of VIs.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> usize {
        self.0 as usize
    }
}
