//! The failure of an attached NIC, and the end of its attachment.

use vi_core::events::AsyncEvent;
use vi_core::waiters::Event;
use vi_types::ViState;

use super::Attachment;

impl Attachment {
    /// Checks periodically for the end of the process. An end while this program closes the NIC is no loss.
    pub(super) fn check_for_loss(&mut self) {
        if !self.lost && !self.control.is_ending() && self.control.is_closed() {
            self.handle_loss();
        }
    }

    /// Reports the failure of the NIC, once (VIPL 3.8.1).
    #[cold]
    pub(super) fn report_failure(&mut self) {
        if !self.failed {
            self.failed = true;
            self.nic.events.push(AsyncEvent::of_nic());
        }
        self.pending_events = Event::ALL;
    }

    /// Handles the end of the process, or of the attachment to a NIC that failed: takes every VI to the Error state,
    /// flushes its queues, and reports the errors (VIPL 3.8.1, 6.3.1).
    #[cold]
    fn handle_loss(&mut self) {
        // Completions before the end count.
        while self.take_completions() {}
        self.lost = true;
        self.control.shut_down();
        let name = &self.nic.name;
        if self.failed {
            log::error!(
                "NIC {name}: it failed, and the datapath process opens it again for other programs: close it, and \
                 open it again"
            );
        } else {
            log::error!(
                "NIC {name}: the datapath process has ended: close the NIC, and open it again when the \
                 process runs"
            );
        }
        for index in 0..self.vis.len() {
            let Some(local) = &self.vis[index] else {
                continue;
            };
            let shared = local.shared;
            if shared.state() == ViState::Connected && !local.epoch.is_disconnecting() {
                self.nic.events.push(AsyncEvent::of_vi(
                    local.handle,
                    shared.nic_handle(),
                    vi_types::AsyncError::ConnectionLost,
                ));
            }
            shared.set_state(ViState::Error);
            self.flush(shared.index);
        }
        self.report_failure();
    }
}
