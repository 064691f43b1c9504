//! Message recovery on networks that lose frames [FCVI P-16].
//!
//! In force for a connection of Reliable Delivery or Reliable Reception if both ends offer it.
//! The receiver keeps what came ahead of order and says what is missing; the sender keeps
//! what is not acknowledged and sends again what is missing, byte for byte but for the bit
//! that says so. Nothing fails ahead of order: a frame that cannot be taken there is dropped,
//! and comes again in order.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `islands` | what came ahead of order, and the gaps between |
//! | `incoming` | frames of messages taken, in order and ahead of it |
//! | `acknowledge` | when and how the other end is told |
//! | `repairs` | what is to be sent again |
//! | `window` | how much may be unacknowledged, and how long an answer takes |
//! | `outgoing` | acknowledgements taken, time-outs |
//! | `resend` | frames sent again |
//! | `reads` | RDMA reads asked for again and answered again |

mod acknowledge;
mod incoming;
mod islands;
mod outgoing;
mod reads;
mod repairs;
mod resend;
mod window;

pub(crate) use incoming::RxRecovery;
pub(crate) use outgoing::TxRecovery;
#[cfg(test)]
pub(crate) use repairs::MAX_REPAIRS;

/// Nanoseconds in a microsecond.
const NS_PER_US: u64 = 1_000;

/// When a receiver acknowledges, and how a sender paces itself and repeats [FCVI P-16].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// An acknowledgement is sent after so many messages at the latest. Not 0.
    pub ack_messages: u32,
    /// An acknowledgement is sent after so many bytes at the latest. Not 0.
    pub ack_bytes: u32,
    /// An acknowledgement is sent so long after the first message or frame that it is about,
    /// at the latest.
    pub ack_delay_ns: u64,
    /// The shortest time after which a silent peer is asked.
    pub min_timeout_ns: u64,
    /// How often in a row a silent peer is asked before the connection breaks. One that answers
    /// and takes nothing has FCVI_ULP_TIMEOUT.
    pub tries: u32,
    /// Unacknowledged frames of a connection: the window never gets smaller. At least 2.
    pub min_window_frames: u32,
    /// Unacknowledged frames of a connection, at most. What peers send to one port at a time
    /// must fit into its receive ring.
    pub max_window_frames: u32,
    /// Runs of frames that a VI keeps ahead of order, at most. Not 0.
    pub max_islands: u32,
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
            max_islands: 64,
        }
    }
}

/// Frames of a message of so many bytes: one at least.
#[inline]
pub(crate) fn frames_of(length_bytes: u32, room: u32) -> u32 {
    if length_bytes <= room {
        // Most messages are short, and a division is slow.
        return 1;
    }
    length_bytes.div_ceil(room.max(1))
}
