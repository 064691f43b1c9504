//! How the client finds and connects to the server.

use std::net::IpAddr;

use pmd::config::ip_address;
use vi_types::{HostAddress, NetAddress};

use crate::channel::{self, Channel, ConnectRole, Message, Purpose, VERSION};
use crate::cli::CommonOptions;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::process::StopFlag;
use crate::server::PUBLIC_TAG;

/// Addresses of client and server.
pub(crate) struct Rendezvous<'a> {
    nic: &'a Nic,
    tag: &'a str,
    remote_tag: &'a str,
    remote_host: HostAddress,
    stop: StopFlag,
}

impl<'a> Rendezvous<'a> {
    /// Resolves the server's host; without `--connect` the server is on this host.
    pub(crate) fn new(
        nic: &'a Nic,
        common: &CommonOptions,
        tag: &'a str,
        stop: StopFlag,
    ) -> Result<Self> {
        let control = channel::discriminator(tag, Purpose::Control, ConnectRole::Listener)?;
        let (remote, remote_tag) = match &common.connect {
            Some(host) => (nic.remote(host, control)?, PUBLIC_TAG),
            None => (nic.local(control), tag),
        };
        Ok(Self {
            nic,
            tag,
            remote_tag,
            remote_host: remote.host,
            stop,
        })
    }

    /// Returns the IP addresses of this host and of the server's host.
    pub(crate) fn hosts(&self) -> (IpAddr, IpAddr) {
        (self.nic.ip(), ip_address(self.remote_host))
    }

    /// Returns the local and the remote address of a connection for `purpose`.
    pub(crate) fn addresses(&self, purpose: Purpose) -> Result<(NetAddress, NetAddress)> {
        let local = channel::discriminator(self.tag, purpose, ConnectRole::Requester)?;
        let remote = NetAddress {
            host: self.remote_host,
            discriminator: channel::discriminator(self.remote_tag, purpose, ConnectRole::Listener)?,
        };
        Ok((self.nic.local(local), remote))
    }

    /// Connects an endpoint to the server's endpoint for `purpose`, where the server is about to listen. It is not
    /// interrupted: the server waits for the connection.
    pub(crate) fn connect(&self, endpoint: &Endpoint, purpose: Purpose) -> Result<()> {
        let (local, remote) = self.addresses(purpose)?;
        channel::connect(endpoint, &local, &remote, || Ok(()))
    }

    /// Connects the control channel and checks the protocol version.
    pub(crate) fn channel(&self) -> Result<Channel> {
        let mut channel = Channel::for_client(self.nic)?;
        let (local, remote) = self.addresses(Purpose::Control)?;
        let check_not_stopped = || match self.stop.is_set() {
            true => Err(Error::Interrupted),
            false => Ok(()),
        };
        channel::connect(channel.endpoint(), &local, &remote, check_not_stopped)?;
        channel.command(&Message::Hello { version: VERSION })?;
        Ok(channel)
    }
}
