//! Failure of the port itself: nothing can be sent or received any more.

use fcvi_frame::fc::NPortId;
use vi_types::{CallError, ViIndex, ViState};

use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;

impl Engine {
    /// Ends everything after the port failed (VIPL 6.3.1): every connection and every half of one,
    /// pending requests and disconnects. A pending peer request fails with `NotReachable`, and
    /// every VI moves to Error with both queues flushed. `disconnect` returns each to Idle.
    pub fn port_lost<I: EngineIo>(&mut self, now_ns: u64, io: &mut I) {
        self.all_ports_lost(now_ns, io);
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            self.fail_pooled(vi);
            self.fail_vi(now_ns, vi, io);
        }
        self.port.remove_disconnects_to(now_ns, |_| true);
    }

    /// Ends all connections, requests and disconnects.
    pub(crate) fn all_ports_lost<I: EngineIo>(&mut self, now_ns: u64, io: &mut I) {
        let ports = self.known_ports().len() as u64;
        self.port.counters.add(Counter::PeersLost, ports);
        self.ports_lost(now_ns, |_| true, io);
    }

    /// Fails a pending peer request, which otherwise outlives the ports that it was sent to.
    fn fail_pooled(&mut self, vi: ViIndex) {
        if let Some(ep) = self.endpoint_mut(vi)
            && ep.state() == ViState::ConnectPending
            && ep.peer_request.is_some()
        {
            ep.conclude(Err(CallError::NotReachable));
        }
    }

    /// Returns every port with which there is a connection or half a one.
    fn known_ports(&self) -> Vec<NPortId> {
        let mut ports = Vec::new();
        for ep in self.endpoints.iter().flatten() {
            ports.extend(ep.connection.as_ref().map(|connection| connection.peer));
            if let Phase::Requesting(attempt) = &ep.phase {
                ports.extend(attempt.ports());
            }
        }
        ports.extend(
            self.port
                .incoming
                .iter()
                .flatten()
                .map(|incoming| incoming.s_id),
        );
        ports.sort_unstable_by_key(|id| id.get());
        ports.dedup();
        ports
    }
}
