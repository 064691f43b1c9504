//! Peer requests of other VIs [FCVI P-12]: matched with one of ours, or answered with
//! "not yet posted". Nothing of them is kept, but what two VIs disagree about.

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::{ConnectReason, ConnectStatus};

use super::incoming::FinalResponse;
use crate::connect::{ConnectError, Rank, compare};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{Link, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::Host;

impl Engine {
    pub(super) fn handle_peer_request<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
        host: &mut H,
    ) {
        let from = Rank {
            port_name: iu.header.rmt_va,
            connection_id: iu.header.connection_id(),
            n_port_id: frame.fc.s_id,
        };
        let mut answer = FinalResponse {
            to: frame.fc.s_id,
            at: Sequence::answering(&frame.fc),
            mode: ConnectMode::PeerToPeer,
            originator_handle: request.vi_handle,
            connection_id: from.connection_id,
            status: ConnectStatus::Pending,
            reason: ConnectReason::NotYetPosted,
        };
        if let Some(vi) = self.accepted_by(&from, request.vi_handle) {
            self.counters.count(Counter::KnownRequests);
            self.accepted_before(vi, answer, host);
            return;
        }
        if self.repeated_request(frame, request, from.connection_id, host) {
            return;
        }
        let Some(vi) = self.pooled_match(now_ns, &from, request) else {
            self.counters.count(Counter::PeerNotPosted);
            self.respond(&answer, host);
            return;
        };
        if !self.gives_way(vi, &from) {
            self.counters.count(Counter::PeerCrossed);
            answer.status = ConnectStatus::Superseded;
            answer.reason = ConnectReason::MineWins;
            self.respond(&answer, host);
            self.ask_at_once(now_ns, vi, from.n_port_id, host);
            return;
        }
        let ours = self.endpoint(vi).map(|ep| self.attributes_of(&ep.params));
        match ours.map(|ours| compare(&ours, &request.attributes)) {
            Some(Ok(())) => self.accept_peer(now_ns, vi, frame, iu, request, host),
            Some(Err(error)) => {
                answer.status = ConnectStatus::Failed;
                answer.reason = reason_of(error);
                self.respond(&answer, host);
                // Our request is out of the pool: whoever repeats theirs is told the same.
                if let Some(index) = self.free_incoming(now_ns) {
                    let conn = self.hold(index, frame, iu, request);
                    self.remember_refused(now_ns, conn, answer.reason);
                }
                self.fail_request(now_ns, vi, error, host);
            }
            None => {}
        }
    }

    /// The VI that accepted this request already.
    fn accepted_by(&self, from: &Rank, originator_handle: u32) -> Option<ViIndex> {
        let at = self.endpoints.iter().position(|ep| {
            ep.as_ref().and_then(|ep| ep.link).is_some_and(|link| {
                !link.originator
                    && link.peer == from.n_port_id
                    && link.connection_id == from.connection_id
                    && link.peer_handle == originator_handle
            })
        })?;
        Some(ViIndex(at as u32))
    }

    /// The request that this VI accepted comes again: RESP1 was lost, or the request was late.
    fn accepted_before<H: Host>(&mut self, vi: ViIndex, mut answer: FinalResponse, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        if matches!(ep.phase, Phase::AwaitResponse2(_)) {
            if let Some(link) = ep.link.as_mut() {
                link.at = answer.at;
            }
            self.send_response1_accept(vi, host);
        } else {
            answer.reason = ConnectReason::DuplicateOfEstablished;
            self.respond(&answer, host);
        }
    }

    /// The request in the pool gives way: it is taken back, and the other one accepted.
    fn accept_peer<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
        host: &mut H,
    ) {
        self.cancel_request(now_ns, vi, None, host);
        self.retire_handle(vi);
        let Some(handle) = self.new_handle(now_ns, vi, host) else {
            self.fail_request(now_ns, vi, ConnectError::Resources, host);
            return;
        };
        let first_msg_id = host.random();
        let link = Link {
            peer: frame.fc.s_id,
            peer_handle: request.vi_handle,
            connection_id: iu.header.connection_id(),
            at: Sequence::answering(&frame.fc),
            originator: false,
            mode: ConnectMode::PeerToPeer,
            exchange_open: false,
            remote: request.attributes,
        };
        self.bind(now_ns, vi, link, first_msg_id, iu.header.msg_id);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
        }
        self.await_response2(now_ns, vi, host);
    }
}

/// What RESP1 says of attributes that differ.
fn reason_of(error: ConnectError) -> ConnectReason {
    match error {
        ConnectError::ReliabilityLevel => ConnectReason::ReliabilityLevel,
        ConnectError::MaxTransferSize => ConnectReason::MaxTransferSize,
        ConnectError::Qos => ConnectReason::Qos,
        ConnectError::Timeout
        | ConnectError::Rejected
        | ConnectError::NoMatch
        | ConnectError::NotReachable
        | ConnectError::Resources
        | ConnectError::InvalidState
        | ConnectError::Invalid => ConnectReason::Rejected,
    }
}
