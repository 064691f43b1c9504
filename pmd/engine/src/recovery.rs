//! Message recovery on networks that lose frames [FCVI P-16].
//!
//! Used for a connection of Reliable Delivery or Reliable Reception if both sides offer it. The
//! receiver keeps frames that arrive ahead of order and reports gaps; the sender keeps what is not
//! acknowledged and retransmits what is missing, unchanged but for the retransmission bit. Nothing
//! fails ahead of order: a frame that cannot be placed there is dropped and retransmitted in order.
//!
//! | module | contents |
//! | --- | --- |
//! | `incoming` | received frames of sends and writes, in order and ahead of it |
//! | `ack_state`, `acknowledge` | acknowledgements sent |
//! | `retransmit_queue` | frames to retransmit |
//! | `window` | congestion window and round-trip time |
//! | `outgoing` | acknowledgements received, timeouts |
//! | `retransmit` | retransmission of frames |

mod ack_state;
mod acknowledge;
mod incoming;
mod outgoing;
mod retransmit;
mod retransmit_queue;
mod window;

pub(crate) use ack_state::AckState;
pub(crate) use outgoing::TxRecovery;
#[cfg(test)]
pub(crate) use retransmit_queue::MAX_RETRANSMITS;

/// Nanoseconds in a microsecond.
const NS_PER_US: u64 = 1_000;

/// Acknowledgement policy of a receiver, and window and retries of a sender [FCVI P-16].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Messages after which an acknowledgement is sent at the latest. Not 0.
    pub ack_messages: u32,
    /// Bytes after which an acknowledgement is sent at the latest. Not 0.
    pub ack_bytes: u32,
    /// Maximum delay of an acknowledgement after the first message or frame that it is about.
    pub ack_delay_ns: u64,
    /// Minimum timeout after which a silent peer is probed.
    pub min_timeout_ns: u64,
    /// Probes of a silent peer in a row after which the connection breaks. A peer that responds
    /// without progress has FCVI_ULP_TIMEOUT.
    pub tries: u32,
    /// Minimum window: unacknowledged frames of a connection. At least 2.
    pub min_window_frames: u32,
    /// Maximum window: unacknowledged frames of a connection. What all peers send to one port at a
    /// time must fit into its receive ring.
    pub max_window_frames: u32,
    /// Maximum ranges of frames that a VI keeps ahead of order. Not 0.
    pub max_received_ranges: u32,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            ack_messages: 8,
            ack_bytes: 32 << 10,
            ack_delay_ns: 100 * NS_PER_US,
            min_timeout_ns: 500 * NS_PER_US,
            tries: 16,
            min_window_frames: 32,
            max_window_frames: 512,
            max_received_ranges: 64,
        }
    }
}

/// Returns the number of frames of a message of this length: at least one.
#[inline]
pub(crate) fn frames_of(length_bytes: u32, room: u32) -> u32 {
    if length_bytes <= room {
        // Most messages are short, and a division is slow.
        return 1;
    }
    length_bytes.div_ceil(room.max(1))
}
