//! The port itself failed: nothing can be sent, and nothing will come.

use fcvi_frame::fc::NPortId;

use crate::connect::ConnectError;
use crate::endpoint::{EndpointState, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Waiter};

impl Engine {
    /// The port carries nothing any more (VIPL 6.3.1): every connection and every half of one
    /// ends here and now, what waits for an answer waits no more, a peer request that waits for
    /// its match came to `NotReachable`, and every VI is in the Error state with both queues
    /// flushed. `disconnect` leads each back to Idle.
    pub fn port_lost<H: Host>(&mut self, now_ns: u64, host: &mut H) {
        for id in self.known_ports() {
            self.peer_lost(now_ns, id, host);
        }
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            self.fail_pooled(vi);
            self.fail_vi(now_ns, vi, host);
        }
        self.forget_all_closing(now_ns);
        host.control_event(Waiter::All);
    }

    /// A peer request outlives the ports that it asks: others may come. Now none will.
    fn fail_pooled(&mut self, vi: ViIndex) {
        if let Some(ep) = self.endpoint_mut(vi)
            && ep.state() == EndpointState::ConnectPending
            && ep.peer_request.is_some()
        {
            ep.conclude(Err(ConnectError::NotReachable));
        }
    }

    /// Every port with which there is a connection or half a one.
    pub(crate) fn known_ports(&self) -> Vec<NPortId> {
        let mut ports = Vec::new();
        for ep in self.endpoints.iter().flatten() {
            ports.extend(ep.link.as_ref().map(|link| link.peer));
            if let Phase::Requesting(attempt) = &ep.phase {
                ports.extend(attempt.ports());
            }
        }
        ports.extend(self.incoming.iter().flatten().map(|incoming| incoming.s_id));
        ports.sort_unstable_by_key(|id| id.get());
        ports.dedup();
        ports
    }
}
