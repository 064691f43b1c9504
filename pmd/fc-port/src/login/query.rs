//! Queries for the host of a port: sent to every logged-in port that supports the FC-4 protocol, by
//! its name [FCVI P-15], so that the ports of a host are known.

use vi_types::HostAddress;

use super::context::Context;
use super::counters::LoginCounter;

/// The query for the host of a port; none while it is not logged in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostQuery {
    /// The result.
    pub(super) host: Option<HostAddress>,
    reported: bool,
    /// FARP-REQ is to be sent.
    unsent: bool,
    /// Number of retries.
    tries: u8,
    /// Deadline of the reply; `None` if none is expected.
    pub(super) deadline_ns: Option<u64>,
    /// The port did not reply; it is queried again later.
    failed: bool,
}

impl HostQuery {
    /// Starts the query after a login.
    pub(super) fn begin(context: &Context) -> Self {
        Self {
            unsent: true,
            deadline_ns: Some(context.after(context.config.farp_timeout_ns)),
            ..Self::default()
        }
    }

    /// Repeats a query that timed out.
    pub(super) fn timeout(&mut self, context: &mut Context) {
        if self.deadline_ns.is_none_or(|at| at > context.now_ns) {
            return;
        }
        context.counters.count(LoginCounter::Retries);
        context.changed = true;
        self.failed |= self.tries >= context.config.farp_retries;
        self.tries = self.tries.saturating_add(1);
        self.unsent = true;
        let wait_ns = if self.failed {
            context.config.farp_lifetime_ns
        } else {
            context.config.farp_timeout_ns
        };
        self.deadline_ns = Some(context.after(wait_ns));
    }

    /// Reports whether a reply is expected soon.
    pub(super) fn is_open(&self) -> bool {
        self.deadline_ns.is_some() && !self.failed
    }

    /// Reports whether FARP-REQ is to be sent; it counts as sent.
    pub(super) fn take_unsent(&mut self) -> bool {
        std::mem::take(&mut self.unsent)
    }

    /// Records the host. Returns true if it was queried, or is the same as before.
    pub(super) fn record(&mut self, context: &mut Context, host: HostAddress) -> bool {
        if self.host.is_none() && self.deadline_ns.is_some() {
            self.host = Some(host);
            self.deadline_ns = None;
            self.unsent = false;
            context.changed = true;
        }
        self.host == Some(host)
    }

    /// Returns the host if it was not reported.
    pub(super) fn event(&mut self) -> Option<HostAddress> {
        let host = self.host.filter(|_| !self.reported)?;
        self.reported = true;
        Some(host)
    }
}
