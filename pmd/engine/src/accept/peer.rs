//! Peer requests of other VIs [FCVI P-12]: matched with a local peer request, or answered with "not
//! yet posted". None is stored, except one that was refused because the attributes differ.

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::{ConnectReason, ConnectStatus};
use vi_types::{CallError, ViIndex};

use super::incoming::FinalResponse;
use crate::connect::{Rank, check_attributes};
use crate::connection::Connection;
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
            self.repeat_accept(vi, answer, io);
            return;
        }
        if self.repeated_request(frame, request, from.connection_id, io) {
            return;
        }
        let Some(vi) = self.pooled_match(now_ns, &from, request) else {
            self.port.counters.count(Counter::PeerNotPosted);
            self.send_final_response(&answer, io);
            return;
        };
        if !self.yields_to(vi, &from) {
            self.port.counters.count(Counter::PeerCrossed);
            answer.status = ConnectStatus::Superseded;
            answer.reason = ConnectReason::MineWins;
            self.send_final_response(&answer, io);
            self.request_now(now_ns, vi, from.n_port_id, io);
            return;
        }
        let ours = self.endpoint(vi).map(|ep| self.attributes_of(&ep.params));
        match ours.map(|ours| check_attributes(&ours, &request.attributes)) {
            Some(Ok(())) => self.accept_peer(now_ns, vi, frame, iu, request, io),
            Some(Err(error)) => {
                answer.status = ConnectStatus::Failed;
                answer.reason = reason_of(error);
                self.send_final_response(&answer, io);
                // Our request is not in the pool any more: a repeated one gets the same answer.
                if let Some(index) = self.allocate_incoming(now_ns) {
                    let conn = self.add_pending(index, frame, iu, request);
                    self.keep_refused(now_ns, conn, answer.reason);
                }
                self.fail_request(now_ns, vi, error, io);
            }
            None => {}
        }
    }

    /// Answers a request that this VI has accepted already: RESP1 was lost, or the request was
    /// late.
    fn repeat_accept<I: EngineIo>(&mut self, vi: ViIndex, mut answer: FinalResponse, io: &mut I) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        if matches!(ep.phase, Phase::AwaitResponse2(_)) {
            if let Some(connection) = ep.connection.as_mut() {
                connection.at = answer.at;
            }
            self.send_response1_accept(vi, io);
        } else {
            answer.reason = ConnectReason::DuplicateOfEstablished;
            self.send_final_response(&answer, io);
        }
    }

    /// Withdraws the VI's own request and accepts the other one.
    fn accept_peer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
        io: &mut I,
    ) {
        self.cancel_request(now_ns, vi, None, io);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = 0;
        }
        let Some(handle) = self.port.new_handle(now_ns, vi, io) else {
            self.fail_request(now_ns, vi, CallError::NO_RESOURCES, io);
            return;
        };
        let first_msg_id = io.random();
        let connection = Connection {
            peer: frame.fc.s_id,
            peer_handle: request.vi_handle,
            connection_id: iu.header.connection_id(),
            at: Sequence::reply_to(&frame.fc),
            originator: false,
            mode: ConnectMode::PeerToPeer,
            exchange_open: false,
            remote: request.attributes,
        };
        self.bind(now_ns, vi, connection, first_msg_id, iu.header.msg_id);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
        }
        self.await_response2(now_ns, vi, io);
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
