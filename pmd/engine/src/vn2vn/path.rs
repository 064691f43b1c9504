//! How large frames from a neighbour may be: as large as a padded claim response that arrived.
//!
//! A claim that is sent to the neighbour alone asks for one of the full size, several times; if
//! none comes, for one of the size that every link carries.

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};

/// What is known of the path from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// A response of `pdu_bytes` is awaited until `until_ns`, then asked for again `left` times.
    Asked {
        pdu_bytes: u16,
        left: u8,
        until_ns: u64,
        to_send: bool,
    },
    /// A response of this size arrived.
    Known(u16),
    /// None did.
    Failed,
}

impl Path {
    /// To be asked for, first at the full size.
    pub(super) fn new(now_ns: u64, full_bytes: u16, config: &Vn2vnConfig) -> Self {
        Self::Asked {
            pdu_bytes: full_bytes,
            left: config.path_tries.saturating_sub(1),
            until_ns: now_ns.saturating_add(config.path_wait_ns),
            to_send: true,
        }
    }

    /// Whether a claim is to be sent.
    pub(super) const fn is_to_ask(&self) -> bool {
        matches!(self, Self::Asked { to_send: true, .. })
    }

    /// The size to claim, if a claim is to be sent; it counts as sent.
    pub(super) fn take_size(&mut self) -> Option<u16> {
        match self {
            Self::Asked {
                pdu_bytes, to_send, ..
            } if *to_send => {
                *to_send = false;
                Some(*pdu_bytes)
            }
            Self::Asked { .. } | Self::Known(_) | Self::Failed => None,
        }
    }

    /// When it wants to be looked at.
    pub(super) const fn deadline_ns(&self) -> Option<u64> {
        match self {
            Self::Asked { until_ns, .. } => Some(*until_ns),
            Self::Known(_) | Self::Failed => None,
        }
    }

    /// A response with an Ethernet payload of `arrived_bytes` came; `full_bytes` is what both ends
    /// take.
    pub(super) fn arrived(&mut self, arrived_bytes: usize, full_bytes: u16) {
        let asked_bytes = match self {
            Self::Asked { pdu_bytes, .. } => *pdu_bytes,
            Self::Failed => full_bytes,
            Self::Known(_) => return,
        };
        let sizes = [full_bytes, asked_bytes];
        let carried = |size: &u16| arrived_bytes >= usize::from(*size);
        if let Some(size_bytes) = sizes.into_iter().find(carried) {
            *self = Self::Known(size_bytes);
        }
    }

    /// Asks again if the response is late, then for a smaller one, then no more.
    pub(super) fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) {
        let Self::Asked {
            pdu_bytes,
            left,
            until_ns,
            to_send,
        } = self
        else {
            return;
        };
        if *until_ns > now_ns {
            return;
        }
        if *left > 0 {
            *left -= 1;
        } else if *pdu_bytes > config.fallback() {
            counters.count(Vn2vnCounter::PathReduced);
            *pdu_bytes = config.fallback();
            *left = config.path_tries.saturating_sub(1);
        } else {
            counters.count(Vn2vnCounter::PathFailed);
            *self = Self::Failed;
            return;
        }
        *to_send = true;
        *until_ns = now_ns.saturating_add(config.path_wait_ns);
    }
}
