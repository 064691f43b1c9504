//! How the measuring end finds the answering one.

use fcvi_frame::{HostAddress, NetAddress};

use crate::channel::{self, Channel, Message, VERSION};
use crate::cli::Ends;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::nic::Nic;
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
        let any = channel::discriminator(tag, "control")?;
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

    /// Our name for a connection of this purpose, and where the other end waits for it.
    pub(crate) fn addresses(&self, purpose: &str) -> Result<(NetAddress, NetAddress)> {
        let here = channel::discriminator(self.tag, &format!("{purpose} from"))?;
        let remote = NetAddress {
            host: self.remote_host,
            discriminator: channel::discriminator(self.remote_tag, purpose)?,
        };
        Ok((self.nic.local(here), remote))
    }

    /// Connects an endpoint with the one that the other end has for this purpose.
    pub(crate) fn connect(&self, endpoint: &Endpoint, purpose: &str) -> Result<()> {
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
        self.connect(channel.endpoint(), "control")?;
        channel.tell(&Message::Hello { version: VERSION })?;
        Ok(channel)
    }
}
