//! Maximum size of frames from a neighbour: that of a padded claim response that arrived.
//!
//! A claim sent to the neighbour alone requests a response of the full size, several times; if none
//! arrives, one of the size that every link carries.

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};

/// State of the path from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathState {
    /// A response of `pdu_bytes` is expected until `until_ns`, with `retries_left` retries.
    Testing {
        pdu_bytes: u16,
        retries_left: u8,
        until_ns: u64,
        is_due: bool,
    },
    /// A response of this size arrived.
    Known(u16),
    /// None arrived.
    Failed,
}

impl PathState {
    /// Creates a test of the path, first at the full size.
    pub(super) fn new(now_ns: u64, full_bytes: u16, config: &Vn2vnConfig) -> Self {
        Self::Testing {
            pdu_bytes: full_bytes,
            retries_left: config.path_tries.saturating_sub(1),
            until_ns: now_ns.saturating_add(config.path_wait_ns),
            is_due: true,
        }
    }

    /// Reports whether a claim is to be sent.
    pub(super) const fn is_claim_due(&self) -> bool {
        matches!(self, Self::Testing { is_due: true, .. })
    }

    /// Returns the size to claim, if a claim is to be sent; it counts as sent.
    pub(super) fn take_size(&mut self) -> Option<u16> {
        match self {
            Self::Testing {
                pdu_bytes, is_due, ..
            } if *is_due => {
                *is_due = false;
                Some(*pdu_bytes)
            }
            Self::Testing { .. } | Self::Known(_) | Self::Failed => None,
        }
    }

    /// Returns the deadline of the response.
    pub(super) const fn deadline_ns(&self) -> Option<u64> {
        match self {
            Self::Testing { until_ns, .. } => Some(*until_ns),
            Self::Known(_) | Self::Failed => None,
        }
    }

    /// Handles a response with an Ethernet payload of `arrived_bytes`. `full_bytes`: what both
    /// sides accept.
    pub(super) fn arrived(&mut self, arrived_bytes: usize, full_bytes: u16) {
        let tested_bytes = match self {
            Self::Testing { pdu_bytes, .. } => *pdu_bytes,
            Self::Failed => full_bytes,
            Self::Known(_) => return,
        };
        let sizes = [full_bytes, tested_bytes];
        let carried = |size: &u16| arrived_bytes >= usize::from(*size);
        if let Some(size_bytes) = sizes.into_iter().find(carried) {
            *self = Self::Known(size_bytes);
        }
    }

    /// Retries if the response timed out, then tries the smaller size, then fails.
    pub(super) fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) {
        let Self::Testing {
            pdu_bytes,
            retries_left,
            until_ns,
            is_due,
        } = self
        else {
            return;
        };
        if *until_ns > now_ns {
            return;
        }
        if *retries_left > 0 {
            *retries_left -= 1;
        } else if *pdu_bytes > config.fallback() {
            counters.count(Vn2vnCounter::PathReduced);
            *pdu_bytes = config.fallback();
            *retries_left = config.path_tries.saturating_sub(1);
        } else {
            counters.count(Vn2vnCounter::PathFailed);
            *self = Self::Failed;
            return;
        }
        *is_due = true;
        *until_ns = now_ns.saturating_add(config.path_wait_ns);
    }
}
