//! The end that accepts.

use std::time::{Duration, Instant};

use fcvi_frame::{HostAddress, NetAddress};
use vipl::{Timeout, VipError, provider};

use super::{Admitted, Round, resident_kib, shape};
use crate::channel::{self, Channel, Party, Purpose};
use crate::endpoint::{Endpoint, Reaped};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::server::shorten;

/// VIs that take the connections in turn: the next one is waited for while the last one ends.
const PLACES: u32 = 4;

/// How often this end looks whether the other one is through.
const TURN: Duration = Duration::from_millis(50);

/// The same with peers, whose request goes on meanwhile: longer than a machine stands still, since a
/// request that ends while it is answered makes half a connection.
const PEER_TURN: Duration = Duration::from_secs(20);

/// Empty looks at a queue between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 256;

/// One of the VIs.
struct Place {
    endpoint: Endpoint,
    connected: bool,
}

impl Place {
    /// Waits until the other end has ended the last connection; then the VI is ready.
    fn settle(&mut self) -> Result<()> {
        if !self.connected {
            return Ok(());
        }
        let start = Instant::now();
        while self.is_in_use()? {
            if start.elapsed() > channel::ANSWER_TIMEOUT {
                return Err(Error::Peer("does not end its connection".into()));
            }
        }
        self.connected = false;
        self.endpoint.disconnect()?;
        self.endpoint.post_recv(0)
    }

    /// The receive that waits comes back when the connection is over.
    fn is_in_use(&mut self) -> Result<bool> {
        for _ in 0..LOOKS_PER_CLOCK {
            match self.endpoint.reap_recv()? {
                Reaped::Nothing => {}
                Reaped::Failed { .. } => return Ok(false),
                Reaped::Done { .. } => return Err(Error::Peer("sent a message".into())),
            }
        }
        Ok(true)
    }
}

/// A round of connections at this end.
pub(crate) struct Admission<'a> {
    nic: &'a Nic,
    round: Round,
    local: NetAddress,
    /// Where a peer is.
    remote: NetAddress,
    places: Vec<Place>,
    made: u32,
}

impl<'a> Admission<'a> {
    /// Makes the VIs.
    pub(crate) fn new(nic: &'a Nic, tag: &str, round: &Round) -> Result<Self> {
        let discriminator = channel::discriminator(tag, Purpose::Connections, Party::Waiting)?;
        let places = (0..PLACES).map(|_| {
            let mut endpoint = Endpoint::new(nic, &shape(round.level))?;
            endpoint.post_recv(0)?;
            Ok(Place {
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
            places: places.collect::<Result<_>>()?,
            made: 0,
        })
    }

    /// Makes the connections, until all are made or the other end says that it is through.
    pub(crate) fn run(&mut self, channel: &mut Channel) -> Result<()> {
        for place in (0..self.places.len()).cycle() {
            if self.made == self.round.count {
                break;
            }
            self.places[place].settle()?;
            while !self.admit(place)? {
                if channel.has_message()? {
                    return Ok(());
                }
            }
            self.places[place].connected = true;
            self.made += 1;
        }
        self.places.iter_mut().try_for_each(Place::settle)
    }

    /// Waits for one connection for one turn. False if none came about: nobody asked, or gave
    /// up before it was answered.
    fn admit(&self, place: usize) -> Result<bool> {
        let endpoint = &self.places[place].endpoint;
        if self.round.peers {
            let limit = Timeout::After(PEER_TURN);
            return match endpoint.request_peer(&self.local, &self.remote, limit) {
                Ok(()) => Ok(true),
                Err(VipError::Timeout) => Ok(false),
                Err(error) => Err(Error::call("VipConnectPeerWait", error)),
            };
        }
        let limit = Timeout::After(TURN);
        let asked = match provider::connect_wait(self.nic.handle(), &self.local, limit) {
            Ok(asked) => asked,
            Err(VipError::Timeout) => return Ok(false),
            Err(error) => return Err(Error::call("VipConnectWait", error)),
        };
        match endpoint.accept(asked.conn) {
            Ok(()) => Ok(true),
            Err(Error::Call {
                error: VipError::Timeout,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends the VIs and tells what came of the round.
    pub(crate) fn close(self, outcome: Result<()>) -> Result<Admitted> {
        drop(self.places);
        Ok(Admitted {
            made: self.made,
            resident_kib: resident_kib()?,
            broken: outcome.err().map(|error| shorten(&error.to_string())),
        })
    }
}
