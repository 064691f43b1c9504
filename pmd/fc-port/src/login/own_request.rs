//! A request of ours to a neighbour, and its exchange.

use super::context::Context;
use super::counters::LoginCounter;
use super::exchanges::Share;

/// A request of ours to a neighbour, by the OX_ID of its exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum OwnRequest {
    /// No exchange is open.
    #[default]
    None,
    /// The request has not been handed out.
    Unsent(u16),
    /// The reply is pending.
    Sent(u16),
}

impl OwnRequest {
    /// Opens the exchange of a request to the neighbour in this slot. If all OX_IDs are in use, a
    /// timer repeats the request.
    pub(super) fn open(context: &mut Context, slot: usize) -> Self {
        let opened = context
            .exchanges
            .open(context.now_ns, Share::Neighbour(slot));
        let opened = context.count_error(opened.ok_or(LoginCounter::NoExchange));
        opened.map_or(Self::None, Self::Unsent)
    }

    /// Returns the OX_ID of a request that is to be handed out; it counts as sent.
    pub(super) fn take_unsent(&mut self) -> Option<u16> {
        let Self::Unsent(ox_id) = *self else {
            return None;
        };
        *self = Self::Sent(ox_id);
        Some(ox_id)
    }

    pub(super) fn is_sent(self) -> bool {
        matches!(self, Self::Sent(_))
    }

    /// Ends the exchange. That of a request that was not handed out is free at once.
    pub(super) fn end(&mut self, context: &mut Context) {
        match std::mem::take(self) {
            Self::None => {}
            Self::Unsent(ox_id) => context.exchanges.cancel(ox_id),
            Self::Sent(ox_id) => context.exchanges.end(context.now_ns, ox_id),
        }
    }
}
