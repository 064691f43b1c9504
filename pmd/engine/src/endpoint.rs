//! One VI as the protocol sees it: its state, its two message streams, and its transitions.

use fcvi_frame::fc::NPortId;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::MessageReason;
use vi_types::{AsyncError, CallError, Pumped, ViParams, ViState, Waiter};

use crate::connect::{Attempt, PeerRequest};
use crate::connection::{Break, Connection, PreviousConnection, RemoteVi};
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::{DirectConnection, EngineIo};
use crate::pending_disconnects::DisconnectInfo;
use crate::receive::RxStream;
use crate::shortcut::Shortcut;
use crate::timer::TimerKey;
use crate::transmit::{Step, TxStream};

/// Phase of an endpoint's connection procedure.
#[derive(Debug)]
pub(crate) enum Phase {
    Idle,
    /// Originator: RQST sent, no RESP1 that decides yet.
    Requesting(Box<Attempt>),
    /// Originator: RESP2 sent, RESP3 not received.
    AwaitResponse3(ResponseWait),
    /// Responder: RESP1 sent, RESP2 not received.
    AwaitResponse2(ResponseWait),
    Connected,
    Error,
}

/// The wait for RESP2 or RESP3.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseWait {
    /// The IU that requests the response was sent; until then the port had no room.
    pub(crate) sent: bool,
    /// Timeout of the response.
    pub(crate) timeout_ns: u64,
    /// Retry interval after the next retry.
    pub(crate) interval_ns: u64,
    /// Time of the next retry.
    pub(crate) next_retry_ns: u64,
    /// Time at which the procedure is given up.
    pub(crate) deadline_ns: u64,
}

/// One VI.
pub(crate) struct Endpoint {
    pub(crate) params: ViParams,
    pub(crate) phase: Phase,
    /// The user that owns the VI.
    pub(crate) user: u32,
    /// Our handle for this connection; 0 without one.
    pub(crate) handle: u32,
    /// Source of message frames.
    pub(crate) peer: NPortId,
    pub(crate) peer_index: u32,
    /// Present if messages are moved without frames.
    pub(crate) shortcut: Option<Box<Shortcut>>,
    pub(crate) connection: Option<Connection>,
    pub(crate) tx: Option<Box<TxStream>>,
    pub(crate) rx: RxStream,
    /// Outcome of a connect or accept call, until it is taken.
    pub(crate) outcome: Option<Result<RemoteVi, CallError>>,
    /// The VI's peer request, until its outcome is taken.
    pub(crate) peer_request: Option<Box<PeerRequest>>,
    /// The previous connection, until the next one ends.
    pub(crate) previous: Option<PreviousConnection>,
}

impl Endpoint {
    pub(crate) fn new(params: ViParams) -> Self {
        Self {
            params,
            phase: Phase::Idle,
            user: 0,
            handle: 0,
            peer: NPortId::default(),
            peer_index: 0,
            shortcut: None,
            connection: None,
            tx: None,
            rx: RxStream::new(params),
            outcome: None,
            peer_request: None,
            previous: None,
        }
    }

    /// Reports whether a connection IU names the handle of this endpoint's procedure.
    pub(crate) fn is_addressed(&self, iu: &IuView<'_>) -> bool {
        self.handle == iu.header.handle
    }

    /// Clears the outcomes of earlier connection procedures.
    pub(crate) fn clear_outcomes(&mut self) {
        self.outcome = None;
        self.peer_request = None;
    }

    /// Records the outcome of the connection procedure.
    pub(crate) fn conclude(&mut self, outcome: Result<RemoteVi, CallError>) {
        match &mut self.peer_request {
            Some(request) => request.conclude(outcome),
            None => self.outcome = Some(outcome),
        }
    }

    pub(crate) fn state(&self) -> ViState {
        match self.phase {
            Phase::Idle => ViState::Idle,
            Phase::Requesting(_) | Phase::AwaitResponse3(_) | Phase::AwaitResponse2(_) => {
                ViState::ConnectPending
            }
            Phase::Connected => ViState::Connected,
            Phase::Error => ViState::Error,
        }
    }

    /// Sends up to `budget` frames of what is posted or owed to the peer. Descriptors of a VI that
    /// is not connected are completed as flushed instead (VIPL 3.3.5, 6.2).
    #[inline(always)]
    pub(crate) fn pump<I: EngineIo>(&mut self, cx: &mut Context<'_, I>, budget: u32) -> Pumped {
        let (Phase::Connected, rx, Some(tx)) = (&self.phase, &mut self.rx, &mut self.tx) else {
            cx.io.flush_sends(cx.vi);
            return Pumped::Idle;
        };
        let (mut own_blocked, mut has_copied) = (false, false);
        for _ in 0..budget {
            let responding = tx.responses.pending && !has_copied;
            let responds = responding && (own_blocked || tx.responses.are_due());
            let step = if responds {
                tx.send_response_frame(rx, cx)
            } else {
                tx.send_message_frame(rx, cx)
            };
            match step {
                Step::Next if cx.io.is_failing(cx.vi) => return Pumped::Idle,
                Step::Next if responding => tx.responses.sent(responds),
                Step::Next => {}
                // Our own messages have to wait, perhaps for an OX_ID; responses do not.
                Step::Nothing | Step::Blocked if responding && !responds => own_blocked = true,
                Step::Copied => {
                    tx.responses.sent(true);
                    has_copied = true;
                }
                Step::Nothing if has_copied => return Pumped::More,
                Step::Nothing => return Pumped::Idle,
                Step::Blocked => return Pumped::Blocked,
                Step::Enough => {
                    if responding {
                        tx.responses.sent(responds);
                    }
                    return Pumped::More;
                }
                Step::Break(reason) => {
                    self.break_local(cx, Break(reason));
                    return Pumped::Idle;
                }
            }
        }
        Pumped::More
    }

    /// Handles a timer of this endpoint.
    pub(crate) fn on_timeout<I: EngineIo>(&mut self, cx: &mut Context<'_, I>, key: TimerKey) {
        if let TimerKey::Connect(_) = key {
            self.connect_timeout(cx);
            return;
        }
        let (rx, Some(tx)) = (&mut self.rx, self.tx.as_deref_mut()) else {
            self.rx.timer_set = false;
            return;
        };
        let connected = matches!(self.phase, Phase::Connected);
        let result = match key {
            TimerKey::Receive(_) => {
                rx.timer_set = false;
                if connected {
                    rx.receive_timeout(tx, cx)
                } else {
                    Ok(())
                }
            }
            TimerKey::Response(_) => tx.response_timeout(cx),
            TimerKey::Acknowledge(_) => {
                rx.acknowledge_timeout(tx, cx);
                Ok(())
            }
            TimerKey::Recover(_) => tx.recover_timeout(rx, cx),
            TimerKey::Connect(_)
            | TimerKey::Incoming(_)
            | TimerKey::Disconnect(_)
            | TimerKey::Liveness => Ok(()),
        };
        if let Err(broken) = result {
            self.break_local(cx, broken);
        }
    }

    /// Returns both streams; `None` without a connection. The first message implies RESP3 [FCVI
    /// P-12].
    #[inline(always)]
    pub(crate) fn connected_streams<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
    ) -> Option<(&mut RxStream, &mut TxStream)> {
        if !matches!(self.phase, Phase::Connected) {
            self.client_connected(cx);
        }
        Some((&mut self.rx, self.tx.as_deref_mut()?))
    }

    /// Connects the client, after RESP3 or a message that implies it.
    #[cold]
    pub(crate) fn client_connected<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        let Some(connection) = self.connection.as_mut() else {
            return;
        };
        let remote = connection.remote_vi();
        // The connect exchange ended normally: its OX_ID may be used again.
        let exchange_open = core::mem::take(&mut connection.exchange_open);
        let at = connection.at;
        self.phase = Phase::Connected;
        self.conclude(Ok(remote));
        if exchange_open {
            cx.port.exchanges.close(at.ox_id, at.next_seq_cnt());
        }
        self.arm_connect_timer(cx);
        cx.count(Counter::Connects);
        self.allow_direct_access(cx);
        cx.io.set_state(cx.vi, ViState::Connected);
        cx.io.control_event(Waiter::Outcome(cx.vi));
    }

    /// Reports a connection without shortcut and recovery, whose RDMA operations may be carried out without frames.
    pub(crate) fn allow_direct_access<I: EngineIo>(&self, cx: &mut Context<'_, I>) {
        let has_recovery = |tx: &TxStream| tx.recovery.is_some();
        if let Some(connection) = &self.connection
            && self.shortcut.is_none()
            && !self.tx.as_deref().is_none_or(has_recovery)
        {
            let direct = DirectConnection {
                handle: self.handle,
                peer: connection.address(),
                params: self.params,
            };
            cx.io.connected(cx.vi, &direct);
        }
    }

    /// Sets the connect timer to the next deadline of the procedure.
    pub(crate) fn arm_connect_timer<I>(&self, cx: &mut Context<'_, I>) {
        let at_ns = match &self.phase {
            Phase::Requesting(attempt) => Some(attempt.next_deadline_ns()),
            Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait) => {
                Some(wait.next_retry_ns.min(wait.deadline_ns))
            }
            Phase::Idle | Phase::Connected | Phase::Error => None,
        };
        let timer = TimerKey::Connect(cx.vi.0);
        match at_ns {
            Some(at_ns) => cx.port.timers.set(at_ns, timer),
            None => cx.port.timers.clear(timer),
        }
    }

    /// Breaks the connection for a local reason, which the peer is sent.
    pub(crate) fn break_local<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        Break(reason): Break,
    ) {
        self.enter_error(cx, Some(reason), AsyncError::ConnectionLost);
    }

    /// Moves a connected VI to the Error state: both queues are flushed, `error` is reported, and no
    /// descriptor is processed any more. The peer is sent `reason_for_peer`, if any.
    #[cold]
    pub(crate) fn enter_error<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        reason_for_peer: Option<MessageReason>,
        error: AsyncError,
    ) {
        if !matches!(self.phase, Phase::Connected) {
            return;
        }
        self.phase = Phase::Error;
        if let Some(tx) = &mut self.tx {
            tx.fail_deferred(cx);
        }
        self.end_connection(cx, reason_for_peer);
        cx.count(Counter::Breaks);
        cx.io.set_state(cx.vi, ViState::Error);
        cx.io.flush_sends(cx.vi);
        cx.io.flush_receives(cx.vi);
        cx.io.report(cx.vi, error);
    }

    /// Ends the connection and remembers it as the previous one. The peer is sent
    /// `reason_for_peer`, if any.
    pub(crate) fn end_connection<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        reason_for_peer: Option<MessageReason>,
    ) {
        if let Some(mut tx) = self.tx.take() {
            if reason_for_peer.is_some() {
                self.rx.flush_acknowledgement(&tx, cx);
            }
            tx.abandon(cx);
        }
        let handle = core::mem::take(&mut self.handle);
        let placed = self.rx.last_placed();
        let shortcut = self.shortcut.take();
        self.rx.clear();
        let Some(connection) = self.connection.take() else {
            return;
        };
        // A request whose RESP2 only timed out may still be repeated.
        let is_disconnect = reason_for_peer == Some(MessageReason::Disconnected);
        let is_not_repeated = is_disconnect || !matches!(self.phase, Phase::AwaitResponse2(_));
        self.previous = Some(PreviousConnection {
            handle,
            peer: connection.peer,
            peer_handle: connection.peer_handle,
            connection_id: connection.connection_id,
            placed,
        });
        let port = &mut cx.port;
        port.remove_peer_connection(cx.now_ns, connection.peer);
        let request = (connection.peer, connection.connection_id);
        if !connection.originator && port.accepted.get(&request) == Some(&cx.vi) {
            port.accepted.remove(&request);
        }
        if !connection.originator && is_not_repeated {
            port.quarantine.add_received(cx.now_ns, request);
        }
        if connection.exchange_open {
            let next = connection.at.next_seq_cnt();
            port.exchanges.abandon(cx.now_ns, connection.at.ox_id, next);
        }
        if let Some(shortcut) = shortcut {
            if let Some((other, mut cx)) = cx.other(shortcut.other) {
                other.end_shortcut(&mut cx, reason_for_peer);
            }
        } else if let Some(reason) = reason_for_peer {
            let error = reason != MessageReason::Disconnected;
            let info = DisconnectInfo {
                placed,
                ..connection.disconnect_info(reason, error)
            };
            port.start_disconnect(cx.now_ns, info, cx.io);
        }
    }

    /// Sends DISCONNECT_RQST again, because a message arrived for a connection that this side left:
    /// all earlier ones were lost.
    #[cold]
    pub(crate) fn repeat_disconnect<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
    ) {
        let is_named =
            |f: &PreviousConnection| f.handle == iu.header.handle && f.peer == frame.fc.s_id;
        let Some(previous) = self.previous.filter(is_named) else {
            return;
        };
        let info = DisconnectInfo {
            peer: previous.peer,
            peer_handle: previous.peer_handle,
            connection_id: previous.connection_id,
            reason: MessageReason::UnknownHandle,
            error: true,
            placed: previous.placed,
        };
        cx.port.start_disconnect(cx.now_ns, info, cx.io);
    }
}
