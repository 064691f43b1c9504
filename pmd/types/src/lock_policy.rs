//! Whether the pages of registered memory are locked.

/// Policy for locking the pages of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum LockPolicy {
    /// Lock as far as the limits allow; count failures and log the first one.
    #[default]
    BestEffort,
    /// Fail a registration whose pages cannot be locked.
    Required,
    /// Do not lock.
    Never,
}
