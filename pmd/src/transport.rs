//! The transport protocol of a NIC: FC-VI frames through a port ([`FcVi`]), or VI/TCP through sockets
//! ([`ViTcp`](::vi_tcp::ViTcp)). A poller has one transport, and knows it only by these traits.

use fcvi_frame::fc::NPortId;
use pmd_port::{MacBytes, PortFailure, PortStats};
use vi_types::{
    CallError, ConnId, ConnectRequest, ConnectionOptions, Discriminator, HostAddress, Indication,
    NegotiatedOptions, Outcome, Pumped, ViIndex, ViParams, ViState,
};

use crate::datapath::Datapath;
use crate::network_view::NetworkView;
use crate::poller::Poller;
pub(crate) use ::vi_tcp::ListenState;

mod fc_vi;
mod vi_tcp;

pub(crate) use fc_vi::FcVi;

/// The peer of a VI's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An N_Port.
    Port(NPortId),
    /// A host.
    Host(HostAddress),
}

/// A transport protocol, with its VIs and connections. The verbs are those of [`vi_engine::Engine`]; `path` is the
/// data path of the NIC, and `now_ns` the time of its clock.
pub(crate) trait Transport {
    /// Returns the payload bytes of a frame or segment of a send.
    fn native_mtu_bytes(&self) -> u32;

    /// Returns the counters by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Returns the counters of discovery and login by name.
    fn discovery_counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Adds traffic that does not pass the port to the statistics of the port.
    fn add_traffic(&self, _stats: &mut PortStats) {}

    /// Returns the numbers of OX_IDs in use and in quarantine.
    fn exchange_usage(&self) -> (usize, usize) {
        (0, 0)
    }

    /// Returns the own port and the other ports that it sees; `failure` is that of the port, if it has failed.
    fn network_view(&self, now_ns: u64, failure: Option<PortFailure>) -> NetworkView;

    /// Returns the own N_Port and the known ones, with their hosts.
    fn known_ports(&self) -> Vec<(NPortId, HostAddress)> {
        Vec::new()
    }

    /// Returns the hosts of other programs that can be reached, each once (VIPL 3.7.6).
    fn discovered_hosts(&self) -> Vec<HostAddress> {
        Vec::new()
    }

    /// Returns whether the NIC can be reached: it has an N_Port_ID, if it needs one.
    fn is_up(&self) -> bool {
        true
    }

    /// Starts to resolve the ports of a host, unless all are known. Returns true if the caller should wait until
    /// [`Transport::is_resolving_host`] returns false.
    fn resolve_host(
        &mut self,
        _now_ns: u64,
        _host: HostAddress,
        _path: &mut Datapath,
    ) -> Outcome<bool> {
        Ok(false)
    }

    /// Returns whether more ports of this host may still be found.
    fn is_resolving_host(&self, _host: HostAddress) -> bool {
        false
    }

    /// Returns whether a port of this host is known.
    fn knows_host(&self, _host: HostAddress) -> bool {
        true
    }

    /// A station has joined the segment.
    fn station_joined(&mut self, _now_ns: u64, _mac: MacBytes, _path: &mut Datapath) {}

    /// A station has left the segment.
    fn station_left(&mut self, _now_ns: u64, _mac: MacBytes, _path: &mut Datapath) {}

    /// Frames to a station are dropped.
    fn station_unreachable(&mut self, _now_ns: u64, _mac: MacBytes, _path: &mut Datapath) {}

    /// The port has failed.
    fn port_lost(&mut self, _now_ns: u64, _path: &mut Datapath) {}

    /// Returns the peer of a VI's connection; `None` without a connection.
    fn peer(&self, vi: ViIndex) -> Option<Peer>;

    /// Returns the number of RDMA accesses of the peer refused on this VI's connection.
    fn refused_accesses(&self, vi: ViIndex) -> u32;

    /// Sets the user that owns the VI.
    fn set_user(&mut self, vi: ViIndex, user: u32);

    /// Starts listening for connection requests, if the transport has a listening socket; see [`ListenState`].
    fn start_listening(&mut self, _is_last_try: bool) -> ListenState {
        ListenState::Listening
    }

    fn create_vi(&mut self, params: ViParams) -> Option<ViIndex>;

    fn destroy_vi(&mut self, vi: ViIndex) -> bool;

    fn set_params(&mut self, vi: ViIndex, params: ViParams) -> bool;

    fn state(&self, vi: ViIndex) -> Option<ViState>;

    fn poll_timeout(&self) -> Option<u64>;

    /// Returns the time of the next timer of discovery.
    fn discovery_timeout(&self) -> Option<u64> {
        None
    }

    fn handle_timeout(&mut self, now_ns: u64, budget: u32, path: &mut Datapath);

    fn pump(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) -> Pumped;

    fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath);

    fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath);

    /// Creates a listener for a discriminator; returns its number.
    fn listen(&mut self, now_ns: u64, discriminator: Discriminator) -> u64;

    fn take_indication(&mut self, listener: u64) -> Option<Indication>;

    fn unlisten(&mut self, now_ns: u64, listener: u64, path: &mut Datapath);

    fn accept(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        path: &mut Datapath,
    ) -> Result<(), CallError>;

    fn reject(&mut self, now_ns: u64, conn: ConnId, path: &mut Datapath) -> Result<(), CallError>;

    /// Returns the VI of this NIC that makes a request, or `None` if another program makes it.
    ///
    /// # Errors
    /// `Timeout`: the request has expired.
    fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError>;

    /// Returns the VI of this NIC that a connected VI is connected to, or `None` if it is another program's.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError>;

    fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError>;

    fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError>;

    fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<ViParams, CallError>>;

    fn peer_request(&self, vi: ViIndex) -> Option<u64>;

    fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<ViParams, CallError>>;

    /// Returns the connection options of a VI, if the transport has any.
    fn connection_options(&self, _vi: ViIndex) -> Option<&ConnectionOptions> {
        None
    }

    /// Replaces the connection options of a VI, which must be Idle.
    ///
    /// # Errors
    /// `InvalidState`: it is not. `InvalidParameter`: the transport has no options.
    fn set_connection_options(
        &mut self,
        _vi: ViIndex,
        _options: &ConnectionOptions,
    ) -> Outcome<()> {
        Err(CallError::InvalidParameter)
    }

    /// Returns the options that a VI and its peer have negotiated.
    ///
    /// # Errors
    /// As for [`Transport::set_connection_options`]: `InvalidState` unless the VI is connected.
    fn negotiated_options(&self, _vi: ViIndex) -> Outcome<NegotiatedOptions> {
        Err(CallError::InvalidParameter)
    }

    /// Returns the security information that a client sent with its request.
    ///
    /// # Errors
    /// `Timeout`: the request has expired. `InvalidParameter`: the transport has none.
    fn security_of(&self, _conn: ConnId) -> Outcome<Vec<u8>> {
        Err(CallError::InvalidParameter)
    }
}

/// How a poller receives by its transport, and when it sends what was just posted.
pub(crate) trait Polled: Transport + Sized {
    /// Receives and handles what has arrived. Returns true if anything has.
    fn receive(poller: &mut Poller<Self>, now_ns: u64) -> bool;

    /// Sends what was just posted on this VI, at once or in a later burst; what does not fit stays queued.
    fn kick(poller: &mut Poller<Self>, vi: ViIndex);

    /// Releases what the previous poll received.
    fn release_received(&mut self, _path: &mut Datapath) {}

    /// Does the regular work besides timers. Returns true if there was any.
    fn housekeeping(&mut self, _now_ns: u64, _path: &mut Datapath) -> bool {
        false
    }

    /// Returns whether the transport needs the time in every poll.
    fn needs_time(&self) -> bool {
        false
    }

    /// Has the next poll look for everything that may have arrived.
    fn look_everywhere(&mut self) {}

    /// Returns true while received data waits for one of the next polls.
    fn has_more(&self) -> bool {
        false
    }

    /// Returns true while TCP holds sent bytes back (corked).
    fn has_corked(&self) -> bool {
        false
    }

    /// Sends bytes that TCP holds back.
    fn uncork(&mut self) {}

    /// Logs out from all ports, or ends the connections, when the NIC is taken down.
    fn leave_network(&mut self, now_ns: impl FnMut() -> u64, path: &mut Datapath);
}
