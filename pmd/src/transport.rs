//! The transport protocol of a NIC: FC-VI frames through a port, or VI/TCP through sockets.

use fcvi_frame::fc::NPortId;
use vi_engine::{ConnId, ConnectCommand, Engine, Indication, Pumped, RemoteVi, ViParams};
use vi_types::{CallError, Discriminator, HostAddress, ViIndex, ViState};

use crate::datapath::Datapath;
pub(crate) use crate::vitcp::ListenState;
use crate::vitcp::ViTcp;

/// The most frames that one VI may send before the next VI is served.
const VI_BUDGET_FRAMES: u32 = 32;

/// The protocol by which the NIC's VIs are connected to their peers.
#[allow(
    clippy::large_enum_variant,
    reason = "one for each open NIC, in place; the engine's is used for every frame"
)]
pub(crate) enum Transport {
    /// FC-VI.
    FcVi(Engine),
    /// VI/TCP.
    ViTcp(Box<ViTcp>),
}

/// The peer of a VI's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An N_Port.
    Port(NPortId),
    /// A host.
    Host(HostAddress),
}

impl Transport {
    /// Returns the engine of FC-VI, if that is the transport.
    #[inline]
    pub(crate) fn fc_vi(&self) -> Option<&Engine> {
        match self {
            Self::FcVi(engine) => Some(engine),
            Self::ViTcp(_) => None,
        }
    }

    /// Returns the engine of FC-VI, if that is the transport.
    #[inline]
    pub(crate) fn fc_vi_mut(&mut self) -> Option<&mut Engine> {
        match self {
            Self::FcVi(engine) => Some(engine),
            Self::ViTcp(_) => None,
        }
    }

    /// Returns true for VI/TCP.
    #[inline]
    pub(crate) fn is_tcp(&self) -> bool {
        matches!(self, Self::ViTcp(_))
    }

    /// Returns the payload bytes of a frame or segment of a send.
    pub(crate) fn native_mtu_bytes(&self) -> u32 {
        match self {
            Self::FcVi(engine) => u32::from(engine.config().data_field_bytes).saturating_sub(16),
            Self::ViTcp(_) => crate::vitcp::NATIVE_MTU_BYTES,
        }
    }

    /// Returns the counters of the transport, by name.
    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::FcVi(engine) => engine.counters().iter().collect(),
            Self::ViTcp(tcp) => tcp.counters().iter().collect(),
        }
    }

    /// Returns the peer of a VI's connection; `None` without a connection.
    pub(crate) fn peer(&self, vi: ViIndex) -> Option<Peer> {
        match self {
            Self::FcVi(engine) => engine.peer(vi).map(Peer::Port),
            Self::ViTcp(tcp) => tcp.peer(vi).map(Peer::Host),
        }
    }

    /// Returns the number of RDMA accesses of the peer refused on this VI's connection.
    pub(crate) fn refused_accesses(&self, vi: ViIndex) -> u32 {
        match self {
            Self::FcVi(engine) => engine.refused_accesses(vi),
            Self::ViTcp(tcp) => tcp.refused_accesses(vi),
        }
    }

    /// Sets the user that owns the VI.
    pub(crate) fn set_user(&mut self, vi: ViIndex, user: u32) {
        match self {
            Self::FcVi(engine) => engine.set_user(vi, user),
            Self::ViTcp(tcp) => tcp.set_user(vi, user),
        }
    }

    /// Starts listening for connection requests, if the transport has a listening socket; see
    /// [`ListenState`].
    pub(crate) fn start_listening(&mut self, is_last_try: bool) -> ListenState {
        match self {
            Self::FcVi(_) => ListenState::Listening,
            Self::ViTcp(tcp) => tcp.start_listening(is_last_try),
        }
    }

    pub(crate) fn create_vi(&mut self, params: ViParams) -> Option<ViIndex> {
        match self {
            Self::FcVi(engine) => engine.create_vi(params),
            Self::ViTcp(tcp) => tcp.create_vi(params),
        }
    }

    pub(crate) fn destroy_vi(&mut self, vi: ViIndex) -> bool {
        match self {
            Self::FcVi(engine) => engine.destroy_vi(vi),
            Self::ViTcp(tcp) => tcp.destroy_vi(vi),
        }
    }

    pub(crate) fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool {
        match self {
            Self::FcVi(engine) => engine.set_params(vi, params),
            Self::ViTcp(tcp) => tcp.set_params(vi, params),
        }
    }

    /// Returns VI/TCP, if that is the transport.
    pub(crate) fn vi_tcp(&self) -> Option<&ViTcp> {
        match self {
            Self::FcVi(_) => None,
            Self::ViTcp(tcp) => Some(tcp),
        }
    }

    /// Returns VI/TCP, if that is the transport.
    pub(crate) fn vi_tcp_mut(&mut self) -> Option<&mut ViTcp> {
        match self {
            Self::FcVi(_) => None,
            Self::ViTcp(tcp) => Some(tcp),
        }
    }

    pub(crate) fn state(&self, vi: ViIndex) -> Option<ViState> {
        match self {
            Self::FcVi(engine) => engine.state(vi),
            Self::ViTcp(tcp) => tcp.state(vi),
        }
    }

    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        match self {
            Self::FcVi(engine) => engine.poll_timeout(),
            Self::ViTcp(tcp) => tcp.poll_timeout(),
        }
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath) {
        match self {
            Self::FcVi(engine) => {
                engine.handle_timeout(now_ns, budget, path);
            }
            Self::ViTcp(tcp) => tcp.handle_timeout(now_ns, budget, path),
        }
    }

    #[inline]
    pub(crate) fn pump(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) -> Pumped {
        match self {
            Self::FcVi(engine) => engine.pump(now_ns, vi, VI_BUDGET_FRAMES, path),
            Self::ViTcp(tcp) => tcp.pump(now_ns, vi, path),
        }
    }

    pub(crate) fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        match self {
            Self::FcVi(engine) => engine.fail_vi(now_ns, vi, path),
            Self::ViTcp(tcp) => tcp.fail_vi(now_ns, vi, path),
        }
    }

    pub(crate) fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        match self {
            Self::FcVi(engine) => engine.disconnect(now_ns, vi, path),
            Self::ViTcp(tcp) => tcp.disconnect(now_ns, vi, path),
        }
    }

    /// Creates a listener for a discriminator; returns its number.
    pub(crate) fn listen(&mut self, now_ns: u64, discriminator: Discriminator) -> u64 {
        match self {
            Self::FcVi(engine) => engine.listen(discriminator),
            Self::ViTcp(tcp) => tcp.listen(now_ns, discriminator),
        }
    }

    pub(crate) fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        match self {
            Self::FcVi(engine) => engine.take_indication(listener),
            Self::ViTcp(tcp) => tcp.take_indication(listener),
        }
    }

    pub(crate) fn unlisten(&mut self, now_ns: u64, listener: u64, path: &mut Datapath) {
        match self {
            Self::FcVi(engine) => engine.unlisten(listener, path),
            Self::ViTcp(tcp) => tcp.unlisten(now_ns, listener, path),
        }
    }

    pub(crate) fn accept(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        match self {
            Self::FcVi(engine) => engine.accept(now_ns, conn, vi, path),
            Self::ViTcp(tcp) => tcp.accept(conn, vi, path),
        }
    }

    pub(crate) fn reject(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        match self {
            Self::FcVi(engine) => engine.reject(now_ns, conn, path),
            Self::ViTcp(tcp) => tcp.reject(now_ns, conn),
        }
    }

    /// Returns the VI of this NIC that makes a request, or `None` if another program makes it.
    ///
    /// # Errors
    /// `Timeout`: the request has expired.
    pub(crate) fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        match self {
            Self::FcVi(engine) => engine.requester(conn),
            Self::ViTcp(tcp) => tcp.requester(conn),
        }
    }

    /// Returns the VI of this NIC that a connected VI is connected to, or `None` if it is another
    /// program's.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub(crate) fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        match self {
            Self::FcVi(engine) => engine.connected_to(vi),
            Self::ViTcp(tcp) => tcp.connected_to(vi),
        }
    }

    pub(crate) fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        match self {
            Self::FcVi(engine) => engine.connect(now_ns, vi, command, path),
            Self::ViTcp(tcp) => tcp.connect(now_ns, vi, command, path),
        }
    }

    pub(crate) fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        match self {
            Self::FcVi(engine) => engine.connect_peer(now_ns, vi, command, path),
            Self::ViTcp(tcp) => tcp.connect_peer(now_ns, vi, command, path),
        }
    }

    pub(crate) fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, CallError>> {
        match self {
            Self::FcVi(engine) => engine.take_outcome(vi),
            Self::ViTcp(tcp) => tcp.take_outcome(vi),
        }
    }

    pub(crate) fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        match self {
            Self::FcVi(engine) => engine.peer_request(vi),
            Self::ViTcp(tcp) => tcp.peer_request(vi),
        }
    }

    pub(crate) fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<RemoteVi, CallError>> {
        match self {
            Self::FcVi(engine) => engine.take_peer_outcome(vi, number),
            Self::ViTcp(tcp) => tcp.take_peer_outcome(vi, number),
        }
    }
}
