//! Reports to an application at the end of a poll, of bounded work: completions and errors.

use vi_core::sync::Ordering;

use super::{Client, vi_id};
use crate::datapath::{ClientId, ViPath};

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

    /// Reports pending completions and errors within the budget of a poll, and wakes the application if it sleeps. True
    /// if any is left that the next poll can report.
    pub(super) fn deliver(&mut self, id: ClientId, vis: &mut [Option<ViPath>]) -> bool {
        while let Some((vi, kind)) = self.unreported.front().copied() {
            let path = vis.get_mut(vi.0 as usize).and_then(Option::as_mut);
            if let Some(path) = path.filter(|path| path.client == Some(id)) {
                if !self.report_queue(path.shared, vi_id(path.handle), kind) {
                    break;
                }
                path.pending_completions[kind as usize] = false;
            }
            self.unreported.pop_front();
        }
        self.report_errors();
        let is_left = self.renew_budget();
        let extra_units = self.segment_pool.extra_units().into();
        self.counters
            .extra_units
            .store(extra_units, Ordering::Relaxed);
        if self.has_new_entries {
            self.has_new_entries = false;
            self.queues.wake_application();
        }
        is_left
    }
}
