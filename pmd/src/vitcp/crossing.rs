//! Peers that ask each other [VI/TCP 4]: one of two requests that cross stands.
//!
//! Requests with the same names are alike, and any of them may be matched with ours. So one that
//! ours gives way to is not accepted as long as the answer to ours is out: another VI may just have
//! accepted that. The higher end, whose request stands, refuses ours at once; nobody waits for
//! an end that waits for him, as each waits for a higher one.

use vi_engine::{ConnId, ConnectError, ViIndex};
use vitcp_lite::machine::passive::PassiveEvent;
use vitcp_lite::machine::peer::{PeerAction, PeerEvent, PeerName, PeerState, Standing, standing};
use vitcp_lite::{CeHeader, IsCode, RemoteError, SegmentHeader, SegmentType};

use super::ViTcp;
use super::challenge::refusal;
use super::choices::{Says, compare};
use super::connection::{Asked, Machine, Phase, Request, Stage};
use super::counters::Counter;
use super::establish::long;
use super::socket::End;
use crate::datapath::Datapath;

/// What becomes of a request of another peer.
enum Crossing {
    /// It stands: this VI of ours accepts it.
    Accept(ViIndex),
    /// It stands, but this VI of ours must hear first what became of its own.
    Later(ViIndex),
    /// Ours stands.
    Refuse,
}

impl ViTcp {
    /// Another peer asks for one of ours.
    pub(super) fn requested_by_peer(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        asked: &Asked,
        (request, tried): ((&SegmentHeader, &CeHeader), &[u32]),
        path: &mut Datapath,
    ) {
        let far = self.of_conn(conn).map(|connection| connection.far);
        match far.and_then(|far| self.crossed(far, &asked.ce)) {
            None => self.unmatched(now_ns, conn, request, tried),
            Some(crossing) => self.resolve(now_ns, conn, asked, crossing, path),
        }
    }

    /// Requests that waited for the answer to one of ours, which is there.
    pub(super) fn ask_crossed_again(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let mut some = false;
        while let Some(conn) = self.ask_again.pop() {
            let Some(connection) = self.of_conn(conn) else {
                continue;
            };
            some = true;
            let far = connection.far;
            let Stage::Held(asked) = &connection.stage else {
                self.remove(conn.index());
                continue;
            };
            let asked = **asked;
            match self.crossed(far, &asked.ce) {
                Some(crossing) => self.resolve(now_ns, conn, &asked, crossing, path),
                None => {
                    self.counters.count(Counter::NoMatch);
                    self.refuse_crossed(now_ns, conn);
                }
            }
        }
        some
    }

    /// The answer to a VI's own request stays away: it gives way without.
    pub(super) fn concede(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request());
        let Some(conn) = request.and_then(|request| request.theirs.take()) else {
            return;
        };
        match self.of_conn(conn).map(|connection| &connection.stage) {
            Some(Stage::Held(asked)) => {
                let asked = **asked;
                self.stand_or_concede(vi, Standing::Concede);
                self.accept_peer(now_ns, conn, vi, &asked, path);
            }
            Some(_) => self.remove(conn.index()),
            None => {}
        }
    }

    fn resolve(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        asked: &Asked,
        crossing: Crossing,
        path: &mut Datapath,
    ) {
        match crossing {
            Crossing::Refuse => self.refuse_crossed(now_ns, conn),
            Crossing::Accept(vi) => self.accept_peer(now_ns, conn, vi, asked, path),
            Crossing::Later(vi) => {
                let at_ns = now_ns + self.settings.answer_ns;
                if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
                    request.theirs = Some(conn);
                    request.concede_ns = at_ns;
                }
                self.arm_request(vi);
            }
        }
    }

    fn refuse_crossed(&mut self, now_ns: u64, conn: ConnId) {
        let none = RemoteError::NONE;
        self.refuse_held(now_ns, conn, SegmentType::ConnectNoMatch, none);
    }

    /// The peer's request stands: the VI accepts it, unless the two differ.
    fn accept_peer(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        asked: &Asked,
        path: &mut Datapath,
    ) {
        self.held(conn, PassiveEvent::Match);
        let ep = self.endpoint(vi);
        let differs = ep.and_then(|ep| compare(ep, &asked.ce, Says::Asker).err());
        if let Some(error) = differs {
            let is_code = match error {
                ConnectError::ReliabilityLevel => IsCode::ReliabilityLevel,
                _ => IsCode::MaxTransferSize,
            };
            let told = refusal(is_code);
            self.refuse_held(now_ns, conn, SegmentType::ConnectReject, told);
            self.conclude(vi, error, path);
            return;
        }
        self.accept_with(conn, vi, asked, path);
    }

    /// The VI whose peer request matches this one of another VI, and which of the two stands.
    fn crossed(&mut self, far: End, request: &CeHeader) -> Option<Crossing> {
        let called = long(&request.called);
        let mut found: Option<(u64, ViIndex)> = None;
        for (slot, ep) in self.endpoints.iter().enumerate() {
            let Some(ep) = ep else {
                continue;
            };
            let (Phase::Asking(ours), Some(peer)) = (&ep.phase, &ep.peer_request) else {
                continue;
            };
            let matches = ours.remote.host.0 == far.host
                && ours.remote.discriminator == called
                && matches!(ours.machine, Machine::Peer(_))
                && ours.theirs.is_none();
            let itself = self.near_of(ours) == Some(far);
            if matches && !itself && found.is_none_or(|(number, _)| peer.number < number) {
                found = Some((peer.number, ViIndex(slot as u32)));
            }
        }
        let (_, vi) = found?;
        let Phase::Asking(ours) = &self.endpoint(vi)?.phase else {
            return None;
        };
        let theirs = PeerName {
            host: far.host,
            port: far.port,
            discriminator: request.calling,
        };
        let standing = self.near_of(ours).map_or(Standing::Concede, |near| {
            let ours = PeerName {
                host: near.host,
                port: near.port,
                discriminator: request.called,
            };
            standing(ours, theirs)
        });
        let asked = ours.machine == Machine::Peer(PeerState::PendingAccept);
        if asked && standing == Standing::Concede {
            return Some(Crossing::Later(vi));
        }
        self.stand_or_concede(vi, standing)
    }

    /// The machine of a VI's request hears that it crosses another one.
    fn stand_or_concede(&mut self, vi: ViIndex, standing: Standing) -> Option<Crossing> {
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request())?;
        let Machine::Peer(state) = request.machine else {
            return None;
        };
        let (state, action) = state.on(PeerEvent::Crossed(standing));
        match action {
            PeerAction::AcceptTheirs => {
                request.machine = Machine::Peer(state);
                let own = request.connection.take();
                if let Some(number) = own {
                    self.remove(number);
                }
                Some(Crossing::Accept(vi))
            }
            PeerAction::RefuseTheirs => {
                request.machine = Machine::Peer(state);
                self.counters.count(Counter::PeerCrossed);
                Some(Crossing::Refuse)
            }
            _ => None,
        }
    }

    /// Our end of the TCP connection of a request, if it has one.
    fn near_of(&self, request: &Request) -> Option<End> {
        let number = request.connection?;
        self.connection(number).map(|own| own.near)
    }
}
