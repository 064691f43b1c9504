//! Handles of the objects of a provider.

macro_rules! handles {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(u64);

        impl $name {
            /// Returns the handle as a number; never 0.
            #[inline]
            pub const fn into_raw(self) -> u64 {
                self.0
            }

            /// Creates a handle from a number; calls with an invalid handle fail.
            #[inline]
            pub const fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
        }
    )+};
}

handles! {
    /// Handle of an open NIC.
    NicHandle;
    /// Handle of a VI.
    ViHandle;
    /// Handle of a completion queue.
    CqHandle;
    /// Handle of a pending connection request.
    ConnHandle;
    /// Handle of a protection tag.
    PtagHandle;
}
