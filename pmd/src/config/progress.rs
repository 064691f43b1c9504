//! Poll thread of a NIC.

use serde::Deserialize;

/// The thread that runs the poll loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The program's threads, in their calls; a thread of the NIC while there are none.
    #[default]
    Inline,
    /// A dedicated thread, pinned to `core`.
    Pinned,
}

impl Progress {
    /// Returns the value in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Pinned => "pinned",
        }
    }
}
