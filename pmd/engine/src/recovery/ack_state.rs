//! What the peer has not been sent yet about its frames.

use super::RecoveryConfig;
use crate::connection_iu::Sequence;

/// Acknowledgement state of a receive stream: what the peer has not been sent yet.
#[derive(Debug)]
pub(crate) struct AckState {
    pub(super) max_messages: u32,
    pub(super) max_bytes: u32,
    pub(super) delay_ns: u64,
    /// Messages since the last acknowledgement.
    pub(crate) messages: u32,
    pub(super) bytes: u32,
    pub(super) pending: bool,
    /// When it must be sent; valid only if one is pending.
    pub(super) deadline_ns: u64,
    pub(super) timer_set: bool,
    /// Sequence of the response to the newest frame.
    pub(crate) at: Sequence,
    /// When the last one was sent.
    pub(super) last_sent_ns: Option<u64>,
    /// The port had no room for it.
    pub(crate) unsent: bool,
}

impl AckState {
    pub(crate) fn new(config: &RecoveryConfig) -> Self {
        Self {
            max_messages: config.ack_messages.max(1),
            max_bytes: config.ack_bytes.max(1),
            delay_ns: config.ack_delay_ns,
            messages: 0,
            bytes: 0,
            pending: false,
            deadline_ns: 0,
            timer_set: false,
            at: Sequence {
                ox_id: 0,
                rx_id: 0,
                seq_id: 0,
                seq_cnt: 0,
            },
            last_sent_ns: None,
            unsent: false,
        }
    }

    /// Notes that an acknowledgement of everything received was sent.
    pub(super) fn sent(&mut self, now_ns: u64) {
        self.unsent = false;
        self.pending = false;
        (self.messages, self.bytes) = (0, 0);
        self.last_sent_ns = Some(now_ns);
    }
}
