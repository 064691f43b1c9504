//! For which addresses the interface receives, and which of its frames pass the filter.

use std::io;

use super::config::{AfPacketConfig, AfPacketError, Promiscuous, is_station};
use super::socket::{Interface, Socket};
use super::{SEGMENT_BROADCAST, filter};
use crate::port::MacBytes;

/// The addresses of a port.
#[derive(Debug)]
pub(super) struct Addresses {
    ethertypes: Vec<u16>,
    /// Those besides the station's.
    others: Vec<MacBytes>,
    interface: Interface,
    interface_name: String,
    permitted: Promiscuous,
    /// The interface receives for everybody, and need not be told of single addresses.
    promiscuous: bool,
}

fn os(call: &'static str) -> impl Fn(io::Error) -> AfPacketError {
    move |source| AfPacketError::Os { call, source }
}

impl Addresses {
    pub(super) fn new(config: &AfPacketConfig, interface: Interface) -> Self {
        let own = config.interface_address.then_some(interface.mac);
        let others = [SEGMENT_BROADCAST].into_iter().chain(own);
        Self {
            ethertypes: config.ethertypes.clone(),
            others: others.chain(config.multicast.iter().copied()).collect(),
            interface,
            interface_name: config.interface.clone(),
            permitted: config.promiscuous,
            promiscuous: false,
        }
    }

    /// Lets frames to this station and to the other addresses pass, and nothing else.
    pub(super) fn filter(&self, socket: &Socket, station: MacBytes) -> io::Result<()> {
        let all: Vec<MacBytes> = [station].into_iter().chain(self.others.clone()).collect();
        socket.attach_filter(&mut filter::program(&self.ethertypes, &all))
    }

    /// Makes the interface receive for the station and the other addresses.
    pub(super) fn join(&mut self, socket: &Socket, station: MacBytes) -> Result<(), AfPacketError> {
        if self.permitted == Promiscuous::Always {
            return self.ask_for_all(socket);
        }
        for mac in [station].into_iter().chain(self.others.clone()) {
            if let Err(source) = self.ask_for(socket, mac) {
                if self.permitted == Promiscuous::Auto {
                    return self.ask_for_all(socket);
                }
                return Err(AfPacketError::AddressRefused {
                    interface: self.interface_name.clone(),
                    mac,
                    source,
                });
            }
        }
        Ok(())
    }

    /// Receives for the station `to` from now on, and no more for `from`. After an error all
    /// is as before.
    pub(super) fn change(
        &mut self,
        socket: &Socket,
        from: MacBytes,
        to: MacBytes,
    ) -> io::Result<()> {
        if !is_station(to) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let Err(refused) = self.ask_for(socket, to) {
            if self.permitted != Promiscuous::Auto {
                return Err(refused);
            }
            self.ask_for_all(socket).map_err(|_| refused)?;
        }
        if let Err(refused) = self.filter(socket, to) {
            self.ask_no_more_for(socket, to);
            return Err(refused);
        }
        self.ask_no_more_for(socket, from);
        Ok(())
    }

    fn ask_for_all(&mut self, socket: &Socket) -> Result<(), AfPacketError> {
        socket
            .join(self.interface.index, libc::PACKET_MR_PROMISC, [0; 6])
            .map_err(os("making the interface promiscuous"))?;
        self.promiscuous = true;
        Ok(())
    }

    fn ask_for(&self, socket: &Socket, mac: MacBytes) -> io::Result<()> {
        match self.membership(mac) {
            Some(kind) => socket.join(self.interface.index, kind, mac),
            None => Ok(()),
        }
    }

    fn ask_no_more_for(&self, socket: &Socket, mac: MacBytes) {
        if let Some(kind) = self.membership(mac) {
            // Fails for an interface that is gone. What one receives for nobody the filter
            // keeps out.
            let _ = socket.leave(self.interface.index, kind, mac);
        }
    }

    /// How the interface is asked to receive for an address; `None` if it does anyway.
    fn membership(&self, mac: MacBytes) -> Option<libc::c_int> {
        match mac[0] & 1 {
            _ if self.promiscuous || mac == self.interface.mac => None,
            0 => Some(libc::PACKET_MR_UNICAST),
            _ => Some(libc::PACKET_MR_MULTICAST),
        }
    }
}
