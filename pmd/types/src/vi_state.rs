//! States of a VI (VIPL 4.8).

/// State of a VI (VIPL 4.8).
///
/// ```text
///            request / accept              RESP3, or RESP2
///   Idle ------------------------> Pending ----------------> Connected
///    ^  ^                             |                          |
///    |  +--- refused, timed out ------+        break, peer gone  |
///    |                                                           v
///    +------------------------- disconnect -------------------- Error
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u8)]
pub enum ViState {
    /// Not connected.
    Idle = 0,
    /// Connected: messages are sent and received.
    Connected = 1,
    /// A connection procedure is in progress.
    ConnectPending = 2,
    /// The connection broke; a disconnect leads back to Idle.
    Error = 3,
}

impl ViState {
    /// Returns the state with this number; `None` if it is undefined.
    #[inline]
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Idle),
            1 => Some(Self::Connected),
            2 => Some(Self::ConnectPending),
            3 => Some(Self::Error),
            _ => None,
        }
    }
}
