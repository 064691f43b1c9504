//! Peer requests of other VIs [FCVI P-12]: matched with a local peer request, or answered with "not
//! yet posted". None is stored, except one that was refused because the attributes differ.

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::{ConnectReason, ConnectStatus};
use vi_types::{CallError, ViIndex};

use super::incoming::FinalResponse;
use crate::connect::{Attempt, Rank};
use crate::connection::check_attributes;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;

impl Engine {
    /// Handles a peer-to-peer RQST.
    pub(super) fn handle_peer_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
        io: &mut I,
    ) {
        let from = Rank {
            port_name: iu.header.rmt_va,
            connection_id: iu.header.connection_id(),
            n_port_id: frame.fc.s_id,
        };
        let mut answer = FinalResponse {
            to: frame.fc.s_id,
            at: Sequence::reply_to(&frame.fc),
            mode: ConnectMode::PeerToPeer,
            originator_handle: request.vi_handle,
            connection_id: from.connection_id,
            status: ConnectStatus::Pending,
            reason: ConnectReason::NotYetPosted,
        };
        if let Some(vi) =
            self.vi_that_accepted(from.n_port_id, from.connection_id, request.vi_handle)
        {
            self.port.counters.count(Counter::KnownRequests);
            self.repeat_accept(now_ns, vi, answer, io);
            return;
        }
        if self.repeated_request(now_ns, frame, request, from.connection_id, io) {
            return;
        }
        let Some(vi) = self.pooled_match(now_ns, &from, request) else {
            self.port.counters.count(Counter::PeerNotPosted);
            self.port.send_final_response(&answer, io);
            return;
        };
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            return;
        };
        let config = &cx.port.config;
        let own = |attempt: &Attempt| Rank {
            port_name: config.port_name,
            connection_id: attempt.connection_id,
            n_port_id: config.n_port_id,
        };
        let yields = |a: &Attempt| a.yields_to(from.n_port_id, own(a) < from);
        if !ep.pooled().is_some_and(yields) {
            let retry_ns = config.peer_retry_ns;
            cx.count(Counter::PeerCrossed);
            answer.status = ConnectStatus::Superseded;
            answer.reason = ConnectReason::MineWins;
            cx.port.send_final_response(&answer, cx.io);
            if let Some(attempt) = ep.attempt_mut() {
                attempt.hurry(now_ns, from.n_port_id, retry_ns);
            }
            ep.send_requests(&mut cx);
            return;
        }
        let ours = config.attributes_of(&ep.params);
        match check_attributes(&ours, &request.attributes) {
            Ok(()) => ep.accept_peer(&mut cx, frame, iu, request),
            Err(error) => {
                answer.status = ConnectStatus::Failed;
                answer.reason = reason_of(error);
                cx.port.send_final_response(&answer, cx.io);
                // Our request is not in the pool any more: a repeated one gets the same answer.
                if let Some(index) = cx.port.allocate_incoming(now_ns) {
                    let conn = cx.port.add_pending(index, frame, iu, request);
                    cx.port.keep_refused(now_ns, conn, answer.reason);
                }
                ep.fail_request(&mut cx, error);
            }
        }
    }

    /// Answers a request that this VI has accepted already: RESP1 was lost, or the request was
    /// late.
    fn repeat_accept<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut answer: FinalResponse,
        io: &mut I,
    ) {
        let phase = self.endpoint(vi).map(|ep| &ep.phase);
        if matches!(phase, Some(Phase::AwaitResponse2(_))) {
            self.repeat_response1(now_ns, vi, answer.at, io);
        } else {
            answer.reason = ConnectReason::DuplicateOfEstablished;
            self.port.send_final_response(&answer, io);
        }
    }
}

/// Returns the reason that RESP1 carries for attributes that differ.
fn reason_of(error: CallError) -> ConnectReason {
    match error {
        CallError::ReliabilityLevel => ConnectReason::ReliabilityLevel,
        CallError::MaxTransferSize => ConnectReason::MaxTransferSize,
        CallError::Qos => ConnectReason::Qos,
        _ => ConnectReason::Rejected,
    }
}
