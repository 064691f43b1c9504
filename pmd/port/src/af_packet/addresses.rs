//! For which addresses the interface receives: those of `af_packet`, and of other drivers on interfaces.

use std::io;

use super::SEGMENT_BROADCAST;
use super::config::{AfPacketConfig, AfPacketError, Promiscuous, is_station};
use super::socket::{Interface, Socket};
use crate::port::MacBytes;

/// The addresses of a port.
#[derive(Debug)]
pub(crate) struct Addresses {
    ethertypes: Vec<u16>,
    /// Those besides the station's.
    others: Vec<MacBytes>,
    interface: Interface,
    interface_name: String,
    permitted: Promiscuous,
    /// The interface receives for everybody, and need not be told of single addresses.
    promiscuous: bool,
    /// Addresses that the interface was asked to receive for.
    joined: Vec<MacBytes>,
}

fn os(call: &'static str) -> impl Fn(io::Error) -> AfPacketError {
    move |source| AfPacketError::Os { call, source }
}

impl Addresses {
    pub(crate) fn new(config: &AfPacketConfig, interface: Interface) -> Self {
        let own = config.interface_address.then_some(interface.mac);
        let others = [SEGMENT_BROADCAST].into_iter().chain(own);
        Self {
            ethertypes: config.ethertypes.clone(),
            others: others.chain(config.multicast.iter().copied()).collect(),
            interface,
            interface_name: config.interface.clone(),
            permitted: config.promiscuous,
            promiscuous: false,
            joined: Vec::new(),
        }
    }

    /// EtherTypes that are received.
    pub(crate) fn ethertypes(&self) -> &[u16] {
        &self.ethertypes
    }

    /// Every address that is received for, with this one as the station's.
    pub(crate) fn with_station(&self, station: MacBytes) -> Vec<MacBytes> {
        [station].into_iter().chain(self.others.clone()).collect()
    }

    /// Makes the interface receive for the station and the other addresses.
    pub(crate) fn join(&mut self, socket: &Socket, station: MacBytes) -> Result<(), AfPacketError> {
        if self.permitted == Promiscuous::Always {
            return self.ask_for_all(socket);
        }
        for mac in self.with_station(station) {
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

    /// Receives for the station `to` from now on, and no more for `from`; `filter` makes the
    /// kernel hand over frames with these EtherTypes to these addresses, and nothing else.
    /// After an error all is as before.
    pub(crate) fn change(
        &mut self,
        socket: &Socket,
        from: MacBytes,
        to: MacBytes,
        filter: impl FnOnce(&[u16], &[MacBytes]) -> io::Result<()>,
    ) -> io::Result<()> {
        if !is_station(to) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let was_promiscuous = self.promiscuous;
        if let Err(refused) = self.ask_for(socket, to) {
            if self.permitted != Promiscuous::Auto {
                return Err(refused);
            }
            self.ask_for_all(socket).map_err(|_| refused)?;
        }
        if let Err(refused) = filter(&self.ethertypes, &self.with_station(to)) {
            self.ask_no_more_for(socket, to);
            if !was_promiscuous {
                self.ask_no_more_for_all(socket);
            }
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

    fn ask_no_more_for_all(&mut self, socket: &Socket) {
        if self.promiscuous {
            // Fails for an interface that is gone.
            let _ = socket.leave(self.interface.index, libc::PACKET_MR_PROMISC, [0; 6]);
            self.promiscuous = false;
        }
    }

    fn ask_for(&mut self, socket: &Socket, mac: MacBytes) -> io::Result<()> {
        if !self.promiscuous && mac != self.interface.mac {
            socket.join(self.interface.index, membership(mac), mac)?;
            self.joined.push(mac);
        }
        Ok(())
    }

    fn ask_no_more_for(&mut self, socket: &Socket, mac: MacBytes) {
        if let Some(at) = self.joined.iter().position(|&joined| joined == mac) {
            self.joined.swap_remove(at);
            // Fails for an interface that is gone. What one receives for nobody the filter
            // keeps out.
            let _ = socket.leave(self.interface.index, membership(mac), mac);
        }
    }
}

/// How an interface is asked to receive for an address.
fn membership(mac: MacBytes) -> libc::c_int {
    match mac[0] & 1 {
        0 => libc::PACKET_MR_UNICAST,
        _ => libc::PACKET_MR_MULTICAST,
    }
}
