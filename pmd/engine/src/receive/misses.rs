//! RDMA accesses of peers that name no region: counted, limited, and at last the connection broken
//! (ADR 0041).

use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::fc::NPortId;
use fcvi_frame::reason::MessageReason;

use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Host};

/// What a peer's misses are counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerKey {
    port: NPortId,
    /// The user of its VI, if that is one of this engine.
    user: Option<u32>,
}

impl Engine {
    /// The key of a VI's peer; `None` if it is a VI of this engine and of the same user.
    fn peer_key(&self, vi: ViIndex) -> Option<PeerKey> {
        let ep = self.endpoint(vi)?;
        let link = ep.link.as_ref()?;
        let port = link.peer;
        if port != self.config.n_port_id {
            return Some(PeerKey { port, user: None });
        }
        let other = self.endpoint(self.place_of(link.peer_handle));
        let other = other.filter(|other| other.handle == link.peer_handle);
        let user = other.map(|other| other.user);
        (user != Some(ep.user)).then_some(PeerKey { port, user })
    }

    /// A connection begins: it is watched if its peer has missed lately.
    pub(crate) fn watch_misses(&mut self, vi: ViIndex) {
        let key = self.peer_key(vi);
        let misses = self.misses.connect(key);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.rx.misses = misses;
        }
    }

    /// Checks whether an access on a watched connection is refused without a look-up.
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
    pub(crate) fn miss<H: Host>(&mut self, now_ns: u64, vi: ViIndex, handle: u32, host: &mut H) {
        if host.names_region(vi, handle) {
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
    pub(super) fn check_write<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        header: &DeviceHeader,
        host: &mut H,
    ) -> bool {
        let allowed = host.check_rdma_write(vi, header);
        if !allowed {
            self.miss(now_ns, vi, header.rmt_va_handle, host);
        }
        allowed
    }

    /// Unreliable Delivery: drops an RDMA write that was not looked up. The consumer is told only
    /// of the one that breaks the connection. False if it broke.
    #[cold]
    pub(super) fn drop_limited<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) -> bool {
        if !self.is_exhausted(vi) {
            return true;
        }
        host.report(vi, AsyncError::RdmaWriteProtection);
        self.break_refused(now_ns, vi, MessageReason::WriteProtection, host)
    }

    /// Breaks the connection behind a refused write: at a reliable level, or after too many of
    /// them. True if the VI goes on.
    #[cold]
    pub(super) fn break_refused<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: MessageReason,
        host: &mut H,
    ) -> bool {
        let exhausted = self.is_exhausted(vi);
        if !self.break_reliable(now_ns, vi, reason, host) {
            return false;
        }
        if exhausted {
            self.counters.count(Counter::RdmaMissBreaks);
            self.break_local(now_ns, vi, reason, host);
        }
        !exhausted
    }

    fn is_exhausted(&self, vi: ViIndex) -> bool {
        let ep = self.endpoint(vi);
        ep.is_some_and(|ep| self.misses.is_exhausted(&ep.rx.misses))
    }
}
