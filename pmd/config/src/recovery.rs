//! Message recovery.

use serde::Deserialize;

use crate::error::ValueError;
use crate::table::{Table as _, Value, range, table};

/// Whether message recovery is offered, or with which parameters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Recovery {
    /// With default parameters, or not.
    Switch(bool),
    /// With these parameters.
    Parameters(RecoveryParameters),
}

impl Value for Recovery {}

table! {
    /// Parameters of message recovery.
    pub struct RecoveryParameters in "[nic.recovery]" {
        /// Messages after which a receiver acknowledges at the latest.
        pub ack_messages: u32 = 8, range(1, 256), was "recovery_ack_messages";
        /// Bytes after which a receiver acknowledges at the latest.
        pub ack_bytes: u32 = 32 << 10, range(1, 1 << 24), was "recovery_ack_bytes";
        /// Maximum delay of an acknowledgement, by which a send completes later. Microseconds.
        pub ack_us: u64 = 100, range(0, 1_000_000), was "recovery_ack_us";
        /// Minimum timeout after which a silent peer is probed. Microseconds.
        pub timeout_us: u64 = 500, range(10, 10_000_000), was "recovery_timeout_us";
        /// Number of probes of a silent peer before the connection breaks, at intervals that double up to a 16th of
        /// FCVI_ULP_TIMEOUT (at least 100 ms, at most a second). The limit for a peer that responds without making
        /// progress is FCVI_ULP_TIMEOUT.
        pub tries: u32 = 16, range(1, 100), was "recovery_tries";
        /// Minimum congestion window of a connection, in unacknowledged frames.
        pub min_window_frames: u32 = 32, range(2, 65536), was "recovery_min_window_frames";
        /// Maximum window of a connection, in unacknowledged frames; limited to `rx_frames`. The windows of all peers
        /// together should fit into a port's receive ring.
        pub window_frames: u32 = 512, range(2, 65536), was "recovery_window_frames";
        /// Maximum number of out-of-order ranges of frames that a VI keeps.
        pub received_ranges: u32 = 64, range(1, 4096), was "recovery_islands";
    }
}

impl RecoveryParameters {
    pub(crate) fn errors(&self) -> Vec<ValueError> {
        let mut found = self.range_errors();
        let (min, max) = (self.min_window_frames, self.window_frames);
        if min > max {
            let text = format!(
                "min_window_frames = {min}: must be at most window_frames = {max}: lower this, or raise that"
            );
            found.push(ValueError::new("min_window_frames", text));
        }
        found
    }
}
