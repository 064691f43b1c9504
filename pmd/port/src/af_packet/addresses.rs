//! Receive addresses of an interface: of `af_packet`, and of other drivers on interfaces.

use std::io;

use super::SEGMENT_BROADCAST;
use super::config::{AfPacketConfig, AfPacketError, Promiscuous, is_station};
use super::socket::{Interface, Socket};
use crate::port::MacBytes;

/// The receive addresses of a port.
#[derive(Debug)]
pub(crate) struct Addresses {
    ethertypes: Vec<u16>,
    /// Addresses besides the station's.
    others: Vec<MacBytes>,
    interface: Interface,
    interface_name: String,
    permitted: Promiscuous,
    /// The interface is promiscuous, so that single addresses need not be joined.
    promiscuous: bool,
    /// Addresses that were joined on the interface.
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

    /// Returns the EtherTypes that are received.
    pub(crate) fn ethertypes(&self) -> &[u16] {
        &self.ethertypes
    }

    /// Returns all receive addresses, with this station address.
    pub(crate) fn with_station(&self, station: MacBytes) -> Vec<MacBytes> {
        [station].into_iter().chain(self.others.clone()).collect()
    }

    /// Makes the interface receive for the station and the other addresses.
    pub(crate) fn join(&mut self, socket: &Socket, station: MacBytes) -> Result<(), AfPacketError> {
        if self.permitted == Promiscuous::Always {
            return self.set_promiscuous(socket);
        }
        for mac in self.with_station(station) {
            if let Err(source) = self.join_address(socket, mac) {
                if self.permitted == Promiscuous::Auto {
                    return self.set_promiscuous(socket);
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

    /// Replaces the station address `from` by `to`; `filter` makes the kernel deliver only
    /// frames with these EtherTypes to these addresses. After an error nothing is changed.
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
        if let Err(refused) = self.join_address(socket, to) {
            if self.permitted != Promiscuous::Auto {
                return Err(refused);
            }
            self.set_promiscuous(socket).map_err(|_| refused)?;
        }
        if let Err(refused) = filter(&self.ethertypes, &self.with_station(to)) {
            self.leave_address(socket, to);
            if !was_promiscuous {
                self.clear_promiscuous(socket);
            }
            return Err(refused);
        }
        self.leave_address(socket, from);
        Ok(())
    }

    fn set_promiscuous(&mut self, socket: &Socket) -> Result<(), AfPacketError> {
        socket
            .join(self.interface.index, libc::PACKET_MR_PROMISC, [0; 6])
            .map_err(os("making the interface promiscuous"))?;
        self.promiscuous = true;
        Ok(())
    }

    fn clear_promiscuous(&mut self, socket: &Socket) {
        if self.promiscuous {
            // Fails if the interface was removed.
            let _ = socket.leave(self.interface.index, libc::PACKET_MR_PROMISC, [0; 6]);
            self.promiscuous = false;
        }
    }

    fn join_address(&mut self, socket: &Socket, mac: MacBytes) -> io::Result<()> {
        if !self.promiscuous && mac != self.interface.mac {
            socket.join(self.interface.index, membership(mac), mac)?;
            self.joined.push(mac);
        }
        Ok(())
    }

    fn leave_address(&mut self, socket: &Socket, mac: MacBytes) {
        if let Some(at) = self.joined.iter().position(|&joined| joined == mac) {
            self.joined.swap_remove(at);
            // Fails if the interface was removed. Frames to an address that is still
            // joined are dropped by the filter.
            let _ = socket.leave(self.interface.index, membership(mac), mac);
        }
    }
}

/// Returns the membership type with which an address is joined.
fn membership(mac: MacBytes) -> libc::c_int {
    match mac[0] & 1 {
        0 => libc::PACKET_MR_UNICAST,
        _ => libc::PACKET_MR_MULTICAST,
    }
}
