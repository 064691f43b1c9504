//! RDMA accesses of peers whose handle names no region: counted and limited, until the connection
//! breaks (ADR 0041).

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::NPortId;
use fcvi_frame::reason::MessageReason;

use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::engine_io::{AsyncError, EngineIo};
use crate::misses::MissKey;

/// Key under which a peer's misses are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerKey {
    port: NPortId,
    /// The user of its VI, if that is a VI of this engine.
    user: Option<u32>,
}

impl MissKey for PeerKey {}

impl Engine {
    /// Returns the key of a VI's peer; `None` if it is a VI of this engine and of the same user.
    fn peer_key(&self, vi: ViIndex) -> Option<PeerKey> {
        let ep = self.endpoint(vi)?;
        let connection = ep.connection.as_ref()?;
        let port = connection.peer;
        if port != self.config.n_port_id {
            return Some(PeerKey { port, user: None });
        }
        let other = self.endpoint(self.slot_of(connection.peer_handle));
        let other = other.filter(|other| other.handle == connection.peer_handle);
        let user = other.map(|other| other.user);
        (user != Some(ep.user)).then_some(PeerKey { port, user })
    }

    /// Starts counting misses of a new connection, watched if its peer has missed recently.
    pub(crate) fn watch_misses(&mut self, vi: ViIndex) {
        let key = self.peer_key(vi);
        let misses = self.misses.connect(key);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.rx.misses = misses;
        }
    }

    /// Reports whether an access on a watched connection is refused without a look-up.
    #[cold]
    pub(crate) fn is_limited(&mut self, now_ns: u64, vi: ViIndex) -> bool {
        let key = self.peer_key(vi);
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return true;
        };
        let limited = !self.misses.may_look_up(now_ns, key, &mut ep.rx.misses);
        if limited {
            self.counters.count(Counter::DropRdmaLimited);
        }
        limited
    }

    /// Counts an access that was refused after a look-up, if its handle names no region of the VI.
    #[cold]
    pub(crate) fn miss<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, handle: u32, io: &mut I) {
        if io.names_region(vi, handle) {
            return;
        }
        self.counters.count(Counter::RdmaMisses);
        let key = self.peer_key(vi);
        if let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) {
            self.misses.miss(now_ns, key, &mut ep.rx.misses);
        }
    }

    /// Looks up the target of an RDMA write.
    #[inline]
    pub(super) fn check_write<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        header: &DeviceHeader,
        io: &mut I,
    ) -> bool {
        let allowed = io.check_rdma_write(vi, header);
        if !allowed {
            self.miss(now_ns, vi, header.rmt_va_handle, io);
        }
        allowed
    }

    /// Drops an RDMA write at Unreliable Delivery that was not looked up. Only the one that breaks
    /// the connection is reported to the consumer. Returns false if it broke.
    #[cold]
    pub(super) fn drop_limited<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
    ) -> bool {
        if !self.is_exhausted(vi) {
            return true;
        }
        io.report(vi, AsyncError::RdmaWriteProtection);
        self.break_refused(now_ns, vi, MessageReason::WriteProtection, io)
    }

    /// Breaks the connection after a refused write: at a reliable level, or after too many of them.
    /// Returns true if the VI stays connected.
    #[cold]
    pub(super) fn break_refused<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: MessageReason,
        io: &mut I,
    ) -> bool {
        let exhausted = self.is_exhausted(vi);
        if !self.break_reliable(now_ns, vi, reason, io) {
            return false;
        }
        if exhausted {
            self.counters.count(Counter::RdmaMissBreaks);
            self.break_local(now_ns, vi, reason, io);
        }
        !exhausted
    }

    fn is_exhausted(&self, vi: ViIndex) -> bool {
        let ep = self.endpoint(vi);
        ep.is_some_and(|ep| self.misses.is_exhausted(&ep.rx.misses))
    }
}
