//! Which thread polls a NIC.

use serde::Deserialize;

/// Who runs the poll loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The program's own threads inside their calls; a thread of the NIC while they make none.
    #[default]
    Inline,
    /// A thread of its own, pinned to `core`.
    Pinned,
}

impl Progress {
    /// As it stands in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Pinned => "pinned",
        }
    }
}
