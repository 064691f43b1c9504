//! The poller as the backend of a NIC.

use pmd_port::WakeSource;
use vi_core::doorbell::Doorbells;
use vi_core::memory::direct_access::MappedFile;
use vi_core::sync::Ordering;
use vi_core::vi::{CqShared, ViShared};
use vi_core::waiters::Event;
use vi_types::ViIndex;

use super::{HOUSEKEEPING_POLLS, PollState, Poller};
use crate::call_waiters::Object;
use crate::nic_backend::NicBackend;
use crate::transport::{Polled, Transport};

impl<T: Polled> NicBackend for Poller<T> {
    #[inline]
    fn poll(&mut self, doorbells: &Doorbells) -> bool {
        Poller::poll(self, doorbells)
    }

    fn poll_thoroughly(&mut self, doorbells: &Doorbells) -> bool {
        let state = &mut self.state;
        state.clock.now_ns();
        state.polls = (state.polls + 1).next_multiple_of(HOUSEKEEPING_POLLS) - 1;
        self.transport.look_everywhere();
        Poller::poll(self, doorbells)
    }

    #[inline]
    fn kick(&mut self, vi: ViIndex, _doorbells: &Doorbells) {
        T::kick(self, vi);
    }

    #[cold]
    fn fail_broken(&mut self, vi: ViIndex, _doorbells: &Doorbells) {
        let now_ns = self.state.clock.now_ns();
        let path = self.state.path.vi(vi);
        if path.is_some_and(|path| path.shared.take_broken()) {
            self.transport.fail_vi(now_ns, vi, &mut self.state.path);
        }
        self.fail_and_flush(now_ns);
    }

    #[inline]
    fn has_coalesced(&self) -> bool {
        self.state.has_coalesced()
    }

    #[inline]
    fn has_delayed_sends(&self) -> bool {
        self.state.has_coalesced() || self.transport.has_corked()
    }

    fn send_delayed(&mut self) {
        self.send_coalesced();
        self.transport.uncork();
    }

    #[inline]
    fn take_pending_events(&mut self) -> Event {
        self.state.path.take_pending_events()
    }

    fn upkeep(&mut self) -> Vec<MappedFile> {
        self.state.path.port.upkeep();
        self.state.path.take_unused_mappings()
    }

    fn arm(&mut self) -> WakeSource {
        self.state.path.port.arm()
    }

    fn disarm(&mut self) {
        self.state.path.port.disarm();
    }

    #[inline]
    fn armed(&mut self) -> &mut Option<WakeSource> {
        &mut self.state.armed
    }

    fn refresh_clock(&mut self) {
        self.state.clock.now_ns();
    }

    fn next_timer_ns(&self) -> Option<u64> {
        let timers = [
            self.transport.poll_timeout(),
            self.transport.discovery_timeout(),
        ];
        timers.into_iter().flatten().min()
    }

    fn until_timer_ns(&mut self) -> Option<u64> {
        let now_ns = self.state.clock.now_ns();
        Some(self.next_timer_ns()?.saturating_sub(now_ns))
    }

    fn has_unsent(&self) -> bool {
        let path = &self.state.path;
        self.transport.has_more() || !path.run.is_empty() || !path.batch.is_empty()
    }

    fn has_undelivered(&self) -> bool {
        self.state.path.has_undelivered
    }

    fn leave_network(&mut self) {
        let Self { transport, state } = self;
        let clock = &mut state.clock;
        transport.leave_network(|| clock.now_ns(), &mut state.path);
    }

    fn local(&self) -> Option<(&dyn Transport, &PollState)> {
        Some((&self.transport, &self.state))
    }

    fn local_mut(&mut self) -> Option<(&mut dyn Transport, &mut PollState)> {
        Some((&mut self.transport, &mut self.state))
    }

    fn end_connection(&mut self, vi: &ViShared) {
        let state = &mut self.state;
        let now_ns = state.clock.now_ns();
        vi.broken.store(false, Ordering::Relaxed);
        self.transport.disconnect(now_ns, vi.index, &mut state.path);
        // Under the backend lock, as error reports are: all errors of this connection have been reported.
        vi.disconnects.fetch_add(1, Ordering::Relaxed);
        // A flushed descriptor in deregistered memory has been reported; the VI becomes Idle nevertheless.
        state.path.failed.retain(|failed| *failed != vi.index);
        state.path.flush();
    }

    fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        self.transport.destroy_vi(vi)
    }

    fn remove_vi(&mut self, vi: ViIndex) -> [Option<&'static CqShared>; 2] {
        let path = &mut self.state.path;
        path.calls.notify(Object::Connection(vi));
        match path.vis.get_mut(vi.0 as usize).and_then(Option::take) {
            Some(removed) => {
                if let Some((client, served)) = removed.client.zip(path.served.as_mut()) {
                    served.remove_vi(client, &removed);
                }
                [removed.send_target.cq, removed.recv_target.cq]
            }
            None => [None, None],
        }
    }
}
