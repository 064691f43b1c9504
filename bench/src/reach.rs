//! How the measuring end finds the answering one.

use std::net::IpAddr;

use fcvi_frame::{HostAddress, NetAddress};

use crate::channel::{self, Channel, Message, Party, Purpose, VERSION};
use crate::cli::Ends;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::nic::{self, Nic};
use crate::process::Stop;
use crate::server::PUBLIC_TAG;

/// Where the answering end listens, and what this end calls itself.
pub(crate) struct Reach<'a> {
    nic: &'a Nic,
    tag: &'a str,
    remote_tag: &'a str,
    remote_host: HostAddress,
    stop: Stop,
}

impl<'a> Reach<'a> {
    /// Looks the other host up, if it is another one.
    pub(crate) fn new(nic: &'a Nic, ends: &Ends, tag: &'a str, stop: Stop) -> Result<Self> {
        let any = channel::discriminator(tag, Purpose::Control, Party::Waiting)?;
        let (remote, remote_tag) = match &ends.connect {
            Some(host) => (nic.remote(host, any)?, PUBLIC_TAG),
            None => (nic.local(any), tag),
        };
        Ok(Self {
            nic,
            tag,
            remote_tag,
            remote_host: remote.host,
            stop,
        })
    }

    /// This host and the other one, as IP knows them.
    pub(crate) fn hosts(&self) -> (IpAddr, IpAddr) {
        (self.nic.ip(), nic::ip_of(self.remote_host))
    }

    /// Our name for a connection of this purpose, and where the other end waits for it.
    pub(crate) fn addresses(&self, purpose: Purpose) -> Result<(NetAddress, NetAddress)> {
        let here = channel::discriminator(self.tag, purpose, Party::Asking)?;
        let remote = NetAddress {
            host: self.remote_host,
            discriminator: channel::discriminator(self.remote_tag, purpose, Party::Waiting)?,
        };
        Ok((self.nic.local(here), remote))
    }

    /// Connects an endpoint with the one that the other end has for this purpose.
    pub(crate) fn connect(&self, endpoint: &Endpoint, purpose: Purpose) -> Result<()> {
        let (local, remote) = self.addresses(purpose)?;
        channel::connect(endpoint, &local, &remote, || self.go_on())
    }

    /// An error once somebody asked the program to stop.
    pub(crate) fn go_on(&self) -> Result<()> {
        if self.stop.is_asked() {
            return Err(Error::Broken("interrupted".into()));
        }
        Ok(())
    }

    /// Connected with the other end, which speaks as we do.
    pub(crate) fn channel(&self) -> Result<Channel> {
        let mut channel = Channel::asking(self.nic)?;
        self.connect(channel.endpoint(), Purpose::Control)?;
        channel.tell(&Message::Hello { version: VERSION })?;
        Ok(channel)
    }
}
