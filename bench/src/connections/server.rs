//! The server of `vibench connect`: accepts connections.

use std::time::{Duration, Instant};

use vi_types::{HostAddress, NetAddress};
use vipl::{Timeout, VipError, provider};

use super::{AcceptResult, ConnectionRound, layout, resident_kib};
use crate::channel::{self, Channel, ConnectRole, Purpose};
use crate::endpoint::{Endpoint, Reaped};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::server::shorten;

/// Number of VIs, used in turn: the next connection is accepted while the last one is closed.
const ACCEPT_VIS: u32 = 4;

/// Interval at which the server checks whether the client has finished.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(50);

/// Timeout of a peer request, after which the server checks whether the client has finished. Longer than pauses of the
/// machine: a request that times out while the peer accepts it leaves a connection at one end only.
const PEER_REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Unsuccessful polls of a queue per reading of the clock.
const POLLS_PER_CLOCK: u32 = 256;

/// A VI that accepts connections.
struct AcceptVi {
    endpoint: Endpoint,
    connected: bool,
}

impl AcceptVi {
    /// Waits until the client has closed the last connection, and prepares the VI for the next one.
    fn reset(&mut self) -> Result<()> {
        if !self.connected {
            return Ok(());
        }
        let start = Instant::now();
        while self.is_in_use()? {
            if start.elapsed() > channel::RESPONSE_TIMEOUT {
                return Err(Error::Peer("timed out: connection is not closed".into()));
            }
        }
        self.connected = false;
        self.endpoint.disconnect()?;
        self.endpoint.post_recv(0)
    }

    /// Returns whether the connection is open: the posted receive is flushed when it ends.
    fn is_in_use(&mut self) -> Result<bool> {
        for _ in 0..POLLS_PER_CLOCK {
            match self.endpoint.reap_recv()? {
                Reaped::Nothing => {}
                Reaped::Failed { .. } => return Ok(false),
                Reaped::Done { .. } => return Err(Error::Peer("unexpected message".into())),
            }
        }
        Ok(true)
    }
}

/// The server's side of a round of connections.
pub(crate) struct ConnectionAcceptor<'a> {
    nic: &'a Nic,
    round: ConnectionRound,
    local: NetAddress,
    /// Address of the peer, for peer-to-peer connections.
    remote: NetAddress,
    vis: Vec<AcceptVi>,
    made: u32,
}

impl<'a> ConnectionAcceptor<'a> {
    /// Creates the VIs.
    pub(crate) fn new(nic: &'a Nic, tag: &str, round: &ConnectionRound) -> Result<Self> {
        let discriminator =
            channel::discriminator(tag, Purpose::Connections, ConnectRole::Listener)?;
        let vis = (0..ACCEPT_VIS).map(|_| {
            let mut endpoint = Endpoint::new(nic, &layout(round.level))?;
            endpoint.post_recv(0)?;
            Ok(AcceptVi {
                endpoint,
                connected: false,
            })
        });
        Ok(Self {
            nic,
            round: *round,
            local: nic.local(discriminator),
            remote: NetAddress {
                host: HostAddress(round.host),
                discriminator,
            },
            vis: vis.collect::<Result<_>>()?,
            made: 0,
        })
    }

    /// Accepts connections until all are made, or until a request arrives on the control channel.
    pub(crate) fn run(&mut self, channel: &mut Channel) -> Result<()> {
        for index in (0..self.vis.len()).cycle() {
            if self.made == self.round.count {
                break;
            }
            self.vis[index].reset()?;
            while !self.accept_one(index)? {
                if channel.has_message()? {
                    return Ok(());
                }
            }
            self.vis[index].connected = true;
            self.made += 1;
        }
        self.vis.iter_mut().try_for_each(AcceptVi::reset)
    }

    /// Waits for one connection, up to the interval. Returns false if none was established: there was no request, or
    /// its sender timed out before it was accepted.
    fn accept_one(&self, index: usize) -> Result<bool> {
        let endpoint = &self.vis[index].endpoint;
        if self.round.peers {
            let limit = Timeout::After(PEER_REQUEST_TIMEOUT);
            return match endpoint.request_peer(&self.local, &self.remote, limit) {
                Ok(()) => Ok(true),
                Err(VipError::Timeout) => Ok(false),
                Err(error) => Err(Error::call("VipConnectPeerWait", error)),
            };
        }
        let limit = Timeout::After(ACCEPT_INTERVAL);
        let indication = match provider::connect_wait(self.nic.handle(), &self.local, limit) {
            Ok(indication) => indication,
            Err(VipError::Timeout) => return Ok(false),
            Err(error) => return Err(Error::call("VipConnectWait", error)),
        };
        match endpoint.accept(indication.conn) {
            Ok(()) => Ok(true),
            Err(Error::Call {
                error: VipError::Timeout,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Destroys the VIs and returns the result of the round.
    pub(crate) fn close(self, outcome: Result<()>) -> Result<AcceptResult> {
        drop(self.vis);
        Ok(AcceptResult {
            made: self.made,
            resident_kib: resident_kib()?,
            broken: outcome.err().map(|error| shorten(&error.to_string())),
        })
    }
}
