//! Reports to the applications at the end of a poll, of bounded work: completions, errors, and waiting calls.

use vi_core::sync::Ordering;

use super::{Client, ClientId, vi_id};
use crate::datapath::Datapath;

impl Client {
    /// Reports pending errors, which follow all earlier completions.
    fn report_errors(&mut self) {
        while !self.errors.is_empty() && self.unreported.is_empty() && self.has_space() {
            if let Some((vi, entry)) = self.errors.pop() {
                self.push(vi, entry);
            }
        }
    }

    /// Begins the budget of the next poll. Returns true if that of this one is used up and entries are left.
    fn renew_budget(&mut self) -> bool {
        let has_entries = !self.unreported.is_empty() || !self.errors.is_empty();
        let is_left = self.report_budget == 0 && has_entries && self.violation.is_none();
        self.report_budget = self.limits.reports_per_poll();
        is_left
    }
}

impl Datapath {
    /// Reports pending completions and errors to the applications, to each within its budget, and wakes those that
    /// sleep and their waiting calls, at the end of a poll. True if any of that is left for the next poll.
    #[inline(never)]
    pub(crate) fn deliver_completions(&mut self) -> bool {
        let mut is_left = false;
        for slot_index in 0..self.clients.slots.len() {
            let Some(client) = self.clients.slots[slot_index].as_deref_mut() else {
                continue;
            };
            while let Some((vi, kind)) = client.unreported.front().copied() {
                let path = self.vis.get_mut(vi.0 as usize).and_then(Option::as_mut);
                let path = path.filter(|path| path.client == Some(ClientId(slot_index as u32)));
                if let Some(path) = path {
                    if !client.report_queue(path.shared, vi_id(path), kind) {
                        break;
                    }
                    path.pending_completions[kind as usize] = false;
                }
                client.unreported.pop_front();
            }
            client.report_errors();
            is_left |= client.renew_budget();
            let extra_units = client.segment_pool.extra_units().into();
            let counters = &client.counters;
            counters.extra_units.store(extra_units, Ordering::Relaxed);
            if client.has_new_entries {
                client.has_new_entries = false;
                client.queues.wake_application();
            }
        }
        is_left |= self.calls.wake_due();
        self.has_undelivered = is_left;
        is_left
    }
}
