//! The end that is asked [VI/TCP 4.3], and connections that are no VI's.

use vi_engine::{ConnId, ConnectError, EndpointState, Host, ViIndex, Waiter};
use vitcp_lite::machine::passive::{PassiveEvent, PassiveState};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{
    CeHeader, Flags, Headers, IsCode, Item, RemoteError, Says as Sender, Segment, SegmentHeader,
    SegmentType,
};

use super::active::{Event, connection};
use super::challenge::{Judgement, refusal};
use super::choices::{Says, compare};
use super::connection::{Asked, Connection, Phase, Stage};
use super::counters::Counter;
use super::establish::{Names, address, attributes_of, long, put_connect};
use super::guests::Guest;
use super::secure::{is_breach, is_for_next};
use super::socket::is_for_later;
use super::timers::Key;
use super::{ACCEPTS_AT_ONCE, ViTcp};
use crate::datapath::Datapath;
use crate::sys;

/// What reading a connection found that is no VI's.
enum Found {
    Nothing,
    /// The first segment of the procedure.
    Segment(Box<Segment>),
    /// The other end closed, or TCP lost it.
    Over,
    /// What came is no VI/TCP, or more than there may be.
    Unfit,
    /// TLS could not be agreed upon.
    Refused,
    /// There may be more than one look reads.
    Later,
}

impl ViTcp {
    /// Lets TCP connections in that other hosts have begun.
    pub(super) fn let_in(&mut self, now_ns: u64) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(listening) = self.door.listening() else {
                return;
            };
            let stream = match listening.accept(self.habits(), self.credentials.as_ref()) {
                Ok(stream) => stream,
                Err(error) if is_for_later(&error) => return,
                Err(error) => {
                    log::debug!("a connection that came in: {error}");
                    self.counters.count(Counter::DropUnfitIncoming);
                    // What is wrong with one is not with the next, but for want of descriptors.
                    if sys::is_out_of_descriptors(&error) {
                        self.pause_door(now_ns);
                        return;
                    }
                    continue;
                }
            };
            self.counters.count(Counter::Accepted);
            if !self.make_room(Guest::Incoming) {
                continue;
            }
            let ends = stream.near().and_then(|near| Ok((near, stream.far()?)));
            let stage = Stage::Incoming(PassiveState::default());
            let added = ends.and_then(|ends| {
                self.add(|generation| connection(stream, ends, generation, stage))
            });
            match added {
                Ok(number) => {
                    self.admit(Guest::Incoming, number);
                    self.queue(number);
                }
                Err(error) => {
                    log::debug!("a connection that came in: {error}");
                    self.counters.count(Counter::DropUnfitIncoming);
                }
            }
        }
    }

    /// Serves a connection that is no VI's. True if it went on.
    pub(super) fn serve_stranger(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
        let Some(connection) = self.connection_mut(number) else {
            return false;
        };
        match connection.stage {
            Stage::Asking(vi) => self.serve_asking(now_ns, vi, number, path),
            Stage::Incoming(_) => self.serve_incoming(now_ns, number, path),
            Stage::Held(_) => {
                // Nobody says more than a request before it is answered.
                match read_procedure(connection) {
                    Found::Nothing => return false,
                    Found::Later => self.queue(number),
                    Found::Segment(_) | Found::Over | Found::Unfit | Found::Refused => {
                        connection.stage = Stage::Void;
                    }
                }
                true
            }
            Stage::Closing => {
                self.serve_closing(number);
                true
            }
            Stage::Void | Stage::Connected(_) => false,
        }
    }

    fn serve_asking(&mut self, now_ns: u64, vi: ViIndex, number: u32, path: &mut Datapath) -> bool {
        let Some(connection) = self.connection_mut(number) else {
            return false;
        };
        if !connection.established {
            if !connection.may_write {
                return false;
            }
            connection.established = true;
            self.established(now_ns, vi, number, path);
        }
        let Some(connection) = self.connection_mut(number) else {
            return true;
        };
        if !matches!(connection.stage, Stage::Asking(_)) {
            return true;
        }
        // If TCP is gone that is read, too.
        let _gone = super::closing::write_control(connection);
        let found = read_procedure(connection);
        match found {
            Found::Nothing => return false,
            Found::Later => self.queue(number),
            Found::Segment(segment) => self.answered(now_ns, vi, number, &segment, path),
            Found::Over => {
                let event = self.closed_early(vi, number);
                self.request_event(now_ns, vi, event, path);
            }
            Found::Unfit | Found::Refused => {
                self.counters.count(match found {
                    Found::Refused => Counter::DropTlsHandshake,
                    _ => Counter::DropMalformed,
                });
                let event = Event::Reject(ConnectError::Rejected);
                self.request_event(now_ns, vi, event, path);
            }
        }
        true
    }

    fn serve_incoming(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
        let answer_ns = self.settings.answer_ns;
        let Some(connection) = self.connection_mut(number) else {
            return false;
        };
        // If TCP is gone that is read, too.
        let _gone = super::closing::write_control(connection);
        let challenged = connection.is_challenged();
        let unfit = match challenged {
            true => Counter::DropUnansweredChallenge,
            false => Counter::DropUnfitIncoming,
        };
        match read_procedure(connection) {
            Found::Nothing if challenged => false,
            Found::Nothing => {
                if !core::mem::replace(&mut connection.timed, true) {
                    self.timers.set(now_ns + answer_ns, Key::Connection(number));
                }
                false
            }
            Found::Segment(segment) => match segment.headers {
                Headers::Connect(ce) if segment.header.kind == SegmentType::ConnectRequest => {
                    self.timers.clear(Key::Connection(number));
                    self.requested(now_ns, number, &segment.header, &ce, &[], path);
                    true
                }
                Headers::Connect(_) | Headers::Plain | Headers::Rdma(_) => {
                    self.counters.count(unfit);
                    self.remove(number);
                    true
                }
            },
            Found::Over | Found::Unfit => {
                let why = match connection.stream.is_unproven() {
                    true => Counter::DropTlsHandshake,
                    false => unfit,
                };
                self.counters.count(why);
                self.remove(number);
                true
            }
            Found::Refused => {
                self.counters.count(Counter::DropTlsHandshake);
                // The other end hears why.
                self.close(now_ns, number);
                true
            }
            Found::Later => {
                self.queue(number);
                true
            }
        }
    }

    /// Reads what the other end still says to a connection that is over, until it ends, too.
    fn serve_closing(&mut self, number: u32) {
        let Self {
            connections,
            buffer,
            ..
        } = self;
        let connection = connections.get_mut(number as usize);
        let Some(connection) = connection.and_then(Option::as_mut) else {
            return;
        };
        match connection.stream.drain(buffer) {
            Ok(0) => self.remove(number),
            Ok(_) => self.queue(number),
            Err(error) if is_for_later(&error) => {
                connection.may_read = false;
                if connection.may_write && !connection.finished {
                    self.finish(number);
                }
            }
            Err(_) => self.remove(number),
        }
    }

    /// A Connect Request came: somebody waits for it, or nobody does. `tried`: other programs of
    /// this host that do not.
    pub(super) fn requested(
        &mut self,
        now_ns: u64,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
        tried: &[u32],
        path: &mut Datapath,
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let Stage::Incoming(state) = connection.stage else {
            return;
        };
        let security = match self.judge(number, header, ce) {
            Judgement::Hear(security) => security,
            Judgement::Challenge => {
                self.challenge(now_ns, number, (header, ce), path.random());
                return;
            }
            Judgement::Refuse(why) => {
                self.disproved(now_ns, number, header, why);
                return;
            }
        };
        let may_be_ours = self.can_prove(number);
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let (passive, _) = state.on(PassiveEvent::Request);
        let far = connection.far;
        let asked = Asked {
            passive,
            ce: CeHeader { security, ..*ce },
            number: header.message,
            rx_posted: header.rx_posted,
            remote: address(far.host, long(&ce.calling)),
            attributes: attributes_of(ce, vi_engine::Level::ReliableDelivery),
        };
        let conn = ConnId::new(number, connection.generation);
        connection.stage = Stage::Held(Box::new(asked));
        if !may_be_ours {
            self.unmatched(now_ns, conn, (header, ce), tried);
        } else if ce.attributes.peer_to_peer {
            self.requested_by_peer(now_ns, conn, &asked, ((header, ce), tried), path);
        } else {
            match self.match_listener(&long(&ce.called), conn) {
                Some(listener) => {
                    self.held(conn, PassiveEvent::Match);
                    path.control_event(Waiter::Request(listener));
                }
                None => self.unmatched(now_ns, conn, (header, ce), tried),
            }
        }
        self.tell_keeper(now_ns);
    }

    /// Nobody waits here for a request: another program of this host may, or nobody does.
    pub(super) fn unmatched(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        request: (&SegmentHeader, &CeHeader),
        tried: &[u32],
    ) {
        if !self.hand_on(now_ns, conn.index(), request, tried) {
            self.counters.count(Counter::NoMatch);
            self.refuse_held(now_ns, conn, SegmentType::ConnectNoMatch, RemoteError::NONE);
        }
    }

    /// The machine of a held request goes on.
    pub(super) fn held(&mut self, conn: ConnId, event: PassiveEvent) {
        if let Some(connection) = self.of_conn_mut(conn)
            && let Stage::Held(asked) = &mut connection.stage
        {
            (asked.passive, _) = asked.passive.on(event);
        }
    }

    /// The consumer rejects a request (VIPL 3.3.3).
    ///
    /// # Errors
    /// `Invalid` if there is no such request.
    pub(crate) fn reject(&mut self, now_ns: u64, conn: ConnId) -> Result<(), ConnectError> {
        let connection = self.of_conn(conn).ok_or(ConnectError::Invalid)?;
        match connection.stage {
            Stage::Void => {
                self.remove(conn.index());
                Ok(())
            }
            Stage::Held(_) => {
                self.held(conn, PassiveEvent::Reject);
                let rejected = refusal(IsCode::Rejected);
                self.refuse_held(now_ns, conn, SegmentType::ConnectReject, rejected);
                Ok(())
            }
            Stage::Asking(_) | Stage::Incoming(_) | Stage::Connected(_) | Stage::Closing => {
                Err(ConnectError::Invalid)
            }
        }
    }

    /// The consumer accepts a request with an Idle VI (VIPL 3.3.2). `Ok`: the outcome comes by
    /// [`ViTcp::take_outcome`]. An attribute conflict tells the client nothing and leaves the
    /// request for another try.
    ///
    /// # Errors
    /// `Invalid`: no such request or VI. `Timeout`: the client gave up. `InvalidState`: the VI is
    /// not Idle. `ReliabilityLevel`, `MaxTransferSize`: the attributes conflict.
    pub(crate) fn accept(
        &mut self,
        conn: ConnId,
        vi: ViIndex,
        path: &mut Datapath,
    ) -> Result<(), ConnectError> {
        let connection = self.of_conn_mut(conn).ok_or(ConnectError::Invalid)?;
        // The client may have given up just now.
        if matches!(connection.stage, Stage::Held(_)) {
            connection.may_read = true;
            if !matches!(read_procedure(connection), Found::Nothing | Found::Later) {
                connection.stage = Stage::Void;
            }
        }
        let asked = match &connection.stage {
            Stage::Held(asked) => **asked,
            Stage::Void => {
                self.remove(conn.index());
                return Err(ConnectError::Timeout);
            }
            Stage::Asking(_) | Stage::Incoming(_) | Stage::Connected(_) | Stage::Closing => {
                return Err(ConnectError::Invalid);
            }
        };
        let ep = self.endpoint_mut(vi).ok_or(ConnectError::Invalid)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(ConnectError::InvalidState);
        }
        compare(ep, &asked.ce, Says::Asker)?;
        ep.forget_outcomes();
        path.set_state(vi, EndpointState::ConnectPending);
        self.accept_with(conn, vi, &asked, path);
        Ok(())
    }

    pub(super) fn accept_with(
        &mut self,
        conn: ConnId,
        vi: ViIndex,
        asked: &Asked,
        path: &mut Datapath,
    ) {
        self.held(conn, PassiveEvent::Accept);
        let random = path.random();
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let (calling, called) = (long(&asked.ce.called), long(&asked.ce.calling));
        let names = Names {
            calling: &calling,
            called: &called,
        };
        let mut ce = self.own_ce(ep, names, asked.ce.attributes.peer_to_peer);
        ce.mtu_bytes = ce.mtu_bytes.min(asked.ce.mtu_bytes);
        ce.attributes.flow_control &= asked.ce.attributes.flow_control;
        let flow_control = ce.attributes.flow_control;
        let credits_low = self.settings.credits_low;
        let message = match self.of_conn(conn) {
            Some(connection) if connection.exchange.is_some() => {
                connection.tx.number.wrapping_add(1)
            }
            Some(_) => random,
            None => return,
        };
        self.prove(conn.index(), Sender::Accept, message, &mut ce);
        let Some(connection) = self.of_conn_mut(conn) else {
            return;
        };
        connection.tx.number = message;
        let kind = SegmentType::ConnectAccept;
        put_connect(vi, connection, kind, (asked.number, credits_low), &ce, path);
        // If TCP is gone that is read, too.
        let _gone = super::closing::write_control(connection);
        let theirs = (&asked.ce, asked.number, asked.rx_posted);
        self.connected(vi, conn.index(), theirs, flow_control, path);
    }

    /// Answers a held request so, and closes its connection.
    pub(super) fn refuse_held(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        kind: SegmentType,
        error: RemoteError,
    ) {
        let Some(connection) = self.of_conn_mut(conn) else {
            return;
        };
        let Stage::Held(asked) = &mut connection.stage else {
            self.remove(conn.index());
            return;
        };
        if kind == SegmentType::ConnectNoMatch {
            (asked.passive, _) = asked.passive.on(PassiveEvent::NoMatch);
        }
        let ack = asked.number;
        self.refuse(now_ns, conn.index(), ack, (kind, error));
    }

    /// Answers the request of this number so, and closes its connection.
    pub(super) fn refuse(
        &mut self,
        now_ns: u64,
        number: u32,
        ack: u32,
        (kind, error): (SegmentType, RemoteError),
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let mut header = SegmentHeader::new(kind, SEGMENT_HEADER_BYTES as u16);
        header.flags = Flags::END_OF_MESSAGE;
        header.ack = ack;
        header.remote_error = error;
        if connection.exchange.is_some() {
            // The challenge was a message, too.
            header.message = connection.tx.number.wrapping_add(1);
        }
        super::closing::put_control(connection, &header);
        self.close(now_ns, number);
    }

    /// The connection of a request, if it is still that.
    pub(super) fn of_conn(&self, conn: ConnId) -> Option<&Connection> {
        self.connection(conn.index())
            .filter(|connection| connection.generation == conn.generation())
    }

    pub(super) fn of_conn_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.connection_mut(conn.index())
            .filter(|connection| connection.generation == conn.generation())
    }
}

/// Reads the next segment of the procedure, and no byte behind it.
fn read_procedure(connection: &mut Connection) -> Found {
    loop {
        if !connection.may_read {
            return Found::Nothing;
        }
        // Whoever is not connected has nothing to say but headers: so many bytes are missing at
        // least.
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let missing = connection.rx.decoder.missing_bytes().min(bytes.len());
        let Some(room) = bytes.get_mut(..missing) else {
            return Found::Unfit;
        };
        let got = match connection.stream.receive_bytes(room) {
            Ok(0) => return Found::Over,
            Ok(got) => got,
            Err(error) if is_for_later(&error) => {
                connection.may_read = false;
                return Found::Nothing;
            }
            Err(error) if is_for_next(&error) => return Found::Later,
            Err(error) if is_breach(&error) => return Found::Refused,
            Err(_) => return Found::Over,
        };
        let Some(mut input) = bytes.get(..got) else {
            return Found::Unfit;
        };
        match connection.rx.decoder.next(&mut input) {
            Ok(None) => {}
            Ok(Some(Item::Segment(segment))) => {
                let header = &segment.header;
                let whole = header.flags.contains(Flags::END_OF_MESSAGE) && header.data_offset == 0;
                return match whole {
                    true => Found::Segment(Box::new(segment)),
                    false => Found::Unfit,
                };
            }
            Ok(Some(Item::Payload { .. })) | Err(_) => return Found::Unfit,
        }
    }
}
