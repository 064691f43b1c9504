//! Poll thread of a NIC.

use crate::nic::TEN_SECONDS_US;
use crate::table::{choice, range, table};

/// Maximum of `coalesce_frames`: the frames of one burst of a port.
pub const MAX_COALESCE_FRAMES: u32 = 32;
/// Maximum of `core`.
const MAX_CORE: u64 = 1023;

choice! {
    /// The thread that runs the poll loop.
    pub enum Progress {
        /// The program's threads, in their calls; a thread of the NIC while there are none.
        Inline(Inline) = "inline",
        /// A dedicated thread, pinned to a core.
        Pinned(Pinned) = "pinned",
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::Inline(Inline::default())
    }
}

table! {
    /// The program's threads poll in their calls.
    pub struct Inline in "[nic.progress.inline]" {
        /// Time without a call after which the NIC's thread starts polling, microseconds; down to 50 while it finds work
        /// waiting then.
        pub takeover_us: u64 = 1000, range(10, TEN_SECONDS_US);
        /// Maximum burst of consecutively posted sends, in frames on a wire, in messages per system call with
        /// `[nic.vi_tcp]`; 1 sends each immediately. An incomplete burst is sent by the next call that does not post, or
        /// when the NIC's thread starts polling.
        pub coalesce_frames: u32 = MAX_COALESCE_FRAMES, range(1, MAX_COALESCE_FRAMES as u64);
    }
}

table! {
    /// A thread of the NIC polls on its core.
    pub struct Pinned in "[nic.progress.pinned]" {
        /// The core. In a file with `[process]` several NICs may have the same core: one thread polls them all. Default:
        /// the last core that the process may use.
        pub core: Option<usize> = None, range(0, MAX_CORE);
    }
}

impl Progress {
    /// Returns the inline mode with this takeover time.
    #[must_use]
    pub fn inline(takeover_us: u64) -> Self {
        Self::Inline(Inline {
            takeover_us,
            ..Inline::default()
        })
    }

    /// Returns the pinned mode.
    #[must_use]
    pub fn pinned(core: Option<usize>) -> Self {
        Self::Pinned(Pinned { core })
    }

    /// Returns the keys of the inline mode, to change them.
    #[must_use]
    pub fn inline_mut(&mut self) -> Option<&mut Inline> {
        match self {
            Self::Inline(inline) => Some(inline),
            Self::Pinned(_) => None,
        }
    }

    /// Returns whether a thread of the NIC polls on a core.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned(_))
    }

    /// Returns the core, if one is set.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        match self {
            Self::Inline(_) => None,
            Self::Pinned(pinned) => pinned.core,
        }
    }

    /// Returns the keys of the inline mode; of a pinned NIC their defaults, which programs attached to it use.
    #[must_use]
    pub fn inline_keys(&self) -> Inline {
        match self {
            Self::Inline(inline) => inline.clone(),
            Self::Pinned(_) => Inline::default(),
        }
    }
}
