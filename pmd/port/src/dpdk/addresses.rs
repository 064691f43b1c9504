//! Receive addresses of the device, and the filter for received frames.

use core::ffi::c_int;
use std::io;

use dpdk_sys::{
    rte_eth_dev_mac_addr_add, rte_eth_dev_mac_addr_remove, rte_eth_dev_set_mc_addr_list,
    rte_eth_promiscuous_enable, rte_ether_addr,
};

use super::config::{DpdkConfig, DpdkError};
use super::eal;
use super::log;
use crate::af_packet::addresses::Addresses;
use crate::af_packet::link::LinkMonitor;
use crate::af_packet::socket::{Interface, Socket};
use crate::af_packet::{ETHERTYPE_VLAN, Promiscuous, SEGMENT_BROADCAST};
use crate::port::MacBytes;

/// Mask of the VLAN identifier in the tag control information.
const VLAN_ID_MASK: u16 = 0x0fff;
/// Bytes of both addresses of a frame.
const ADDRESSES_BYTES: usize = 12;

/// Result of filtering a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// For this port.
    Ours,
    /// For this port, once its priority tag is removed.
    PriorityTagged,
    Runt,
    OtherAddress,
    OtherEthertype,
    Vlan,
}

/// Filter of received frames by destination address and EtherType.
#[derive(Debug)]
pub(super) struct Filter {
    /// As returned by [`number_of`].
    destinations: Vec<u64>,
    ethertypes: Vec<u16>,
}

/// Returns an address as an integer whose first six bytes in memory are the address.
fn number_of(mac: MacBytes) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

impl Filter {
    pub(super) fn new(ethertypes: &[u16], destinations: &[MacBytes]) -> Self {
        Self {
            destinations: destinations.iter().copied().map(number_of).collect(),
            ethertypes: ethertypes.to_vec(),
        }
    }

    /// Classifies a frame that begins with these bytes.
    #[inline]
    pub(super) fn classify(&self, frame: &[u8]) -> Verdict {
        let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (Some(&destination), Some(ethertype)) = (frame.first_chunk(), word(ADDRESSES_BYTES))
        else {
            return Verdict::Runt;
        };
        if !self.destinations.contains(&number_of(destination)) {
            return Verdict::OtherAddress;
        }
        if self.ethertypes.contains(&ethertype) {
            return Verdict::Ours;
        }
        if ethertype != ETHERTYPE_VLAN {
            return Verdict::OtherEthertype;
        }
        let (Some(control), Some(inner)) = (word(14), word(16)) else {
            return Verdict::Runt;
        };
        match self.ethertypes.contains(&inner) {
            false => Verdict::OtherEthertype,
            true if control & VLAN_ID_MASK == 0 => Verdict::PriorityTagged,
            true => Verdict::Vlan,
        }
    }
}

/// Receive addresses of a device, by where they are configured.
#[derive(Debug)]
pub(super) enum ReceiveAddresses {
    /// On the kernel's network interface behind the device, by a socket of ours: memberships end with the socket, also
    /// when the process is killed.
    Interface {
        control: Socket,
        addresses: Addresses,
        link: LinkMonitor,
    },
    /// On the device itself.
    Device(DeviceAddresses),
}

/// Receive addresses of a device without a network interface.
#[derive(Debug)]
pub(super) struct DeviceAddresses {
    port: u16,
    ethertypes: Vec<u16>,
    other_addresses: Vec<MacBytes>,
    promiscuous_policy: Promiscuous,
    /// The device delivers every frame and needs no addresses.
    promiscuous: bool,
}

fn ether(mac: MacBytes) -> rte_ether_addr {
    rte_ether_addr { addr_bytes: mac }
}

fn is_group(mac: MacBytes) -> bool {
    mac[0] & 1 != 0
}

fn check(number: c_int) -> Result<(), c_int> {
    match number {
        0 => Ok(()),
        error => Err(error),
    }
}

impl DeviceAddresses {
    pub(super) fn new(config: &DpdkConfig, port: u16, mac: MacBytes) -> Self {
        let interface = config.interface_address.then_some(mac);
        let others = [SEGMENT_BROADCAST].into_iter().chain(interface);
        Self {
            port,
            ethertypes: config.ethertypes.clone(),
            other_addresses: others.chain(config.multicast.iter().copied()).collect(),
            promiscuous_policy: config.promiscuous,
            promiscuous: false,
        }
    }

    fn with_station(&self, station: MacBytes) -> Vec<MacBytes> {
        let others = self.other_addresses.iter().copied();
        [station].into_iter().chain(others).collect()
    }

    /// Adds the station address and the other addresses to the device's filter.
    pub(super) fn join(&mut self, device: &str, station: MacBytes) -> Result<(), DpdkError> {
        let mark = log::mark();
        let refused = |mac, number| DpdkError::AddressRefused {
            device: device.to_owned(),
            mac,
            detail: eal::failure(number, mark),
        };
        if self.promiscuous_policy == Promiscuous::Always {
            return self
                .enable_promiscuous()
                .map_err(|error| refused(station, error));
        }
        for mac in self.with_station(station) {
            if let Err(error) = self.add_address(mac) {
                return match self.promiscuous_policy {
                    Promiscuous::Never => Err(refused(mac, error)),
                    _ => self
                        .enable_promiscuous()
                        .map_err(|error| refused(mac, error)),
                };
            }
        }
        let groups = self
            .other_addresses
            .iter()
            .copied()
            .filter(|&mac| is_group(mac));
        let mut groups: Vec<rte_ether_addr> = groups.map(ether).collect();
        let Some(&first) = groups.first() else {
            return Ok(());
        };
        // SAFETY: the port exists, and the pointer is valid for `groups.len()` addresses.
        let result = unsafe {
            rte_eth_dev_set_mc_addr_list(self.port, groups.as_mut_ptr(), groups.len() as u32)
        };
        match (result, self.promiscuous_policy) {
            (0, _) => Ok(()),
            (error, Promiscuous::Never) => Err(refused(first.addr_bytes, error)),
            _ => self
                .enable_promiscuous()
                .map_err(|error| refused(first.addr_bytes, error)),
        }
    }

    /// Replaces the station address `from` by `to` in the device's filter. After an error nothing has changed.
    pub(super) fn change(&mut self, from: MacBytes, to: MacBytes) -> io::Result<()> {
        let refused = |number: c_int| io::Error::from_raw_os_error(number.saturating_abs());
        if !self.promiscuous
            && let Err(error) = self.add_address(to)
        {
            match self.promiscuous_policy {
                Promiscuous::Never => return Err(refused(error)),
                _ => self.enable_promiscuous().map_err(|_| refused(error))?,
            }
        }
        if !self.promiscuous {
            let mut from = ether(from);
            // SAFETY: the port exists, and the address is only read. Fails for the device's own address, which is kept.
            unsafe { rte_eth_dev_mac_addr_remove(self.port, &mut from) };
        }
        Ok(())
    }

    /// Adds a unicast address to the device's filter; multicast addresses are set as one list.
    fn add_address(&self, mac: MacBytes) -> Result<(), c_int> {
        if is_group(mac) {
            return Ok(());
        }
        let mut mac = ether(mac);
        // SAFETY: the port exists, and the address is copied.
        check(unsafe { rte_eth_dev_mac_addr_add(self.port, &mut mac, 0) })
    }

    /// Makes the device promiscuous. A device that does not support this has no filter: it delivers every frame.
    fn enable_promiscuous(&mut self) -> Result<(), c_int> {
        // SAFETY: the port exists.
        match unsafe { rte_eth_promiscuous_enable(self.port) } {
            0 => {}
            error if error == -libc::ENOTSUP => {}
            error => return Err(error),
        }
        self.promiscuous = true;
        Ok(())
    }

    pub(super) fn is_promiscuous(&self) -> bool {
        self.promiscuous
    }
}

impl ReceiveAddresses {
    /// Configures the receive addresses on a network interface.
    pub(super) fn on_interface(
        config: &DpdkConfig,
        name: &str,
        control: Socket,
        interface: Interface,
        link: LinkMonitor,
    ) -> Result<Self, DpdkError> {
        let mut addresses = Addresses::new(&config.common(name), interface);
        addresses.join(&control, config.mac)?;
        Ok(Self::Interface {
            control,
            addresses,
            link,
        })
    }

    /// Returns the filter of received frames for a station address.
    pub(super) fn filter(&self, station: MacBytes) -> Filter {
        match self {
            Self::Interface { addresses, .. } => {
                Filter::new(addresses.ethertypes(), &addresses.with_station(station))
            }
            Self::Device(device) => Filter::new(&device.ethertypes, &device.with_station(station)),
        }
    }

    /// Does [`Port::change_address`](crate::Port::change_address), except for the port's own [`Filter`].
    pub(super) fn change(&mut self, from: MacBytes, to: MacBytes) -> io::Result<()> {
        match self {
            Self::Interface {
                control, addresses, ..
            } => addresses.change(control, from, to, |_, _| Ok(())),
            Self::Device(device) => device.change(from, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: MacBytes = [0x0e, 0xfd, 0, 0, 1, 1];
    const GROUP: MacBytes = [1, 0x10, 0x18, 1, 0, 4];

    fn frame(dst: MacBytes, words: &[u16]) -> Vec<u8> {
        let mut bytes = [&dst[..], &[2, 0, 0, 0, 0, 9]].concat();
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        bytes
    }

    #[test]
    fn filter_classifies_by_address_ethertype_and_tag() {
        let filter = Filter::new(&[0x8906, 0x8914], &[STATION, GROUP]);
        let mut near = STATION;
        near[5] ^= 1;
        let rows: [(MacBytes, &[u16], Verdict); 12] = [
            (STATION, &[0x8906], Verdict::Ours),
            (GROUP, &[0x8914, 7], Verdict::Ours),
            (near, &[0x8906], Verdict::OtherAddress),
            ([0xff; 6], &[0x8906], Verdict::OtherAddress),
            (STATION, &[0x0800], Verdict::OtherEthertype),
            (STATION, &[0x88a8, 0, 0x8906], Verdict::OtherEthertype),
            (STATION, &[0x8100, 0, 0x0800], Verdict::OtherEthertype),
            (
                STATION,
                &[0x8100, 0, 0x8100, 0, 0x8906],
                Verdict::OtherEthertype,
            ),
            (STATION, &[0x8100, 0x6000, 0x8906], Verdict::PriorityTagged),
            (STATION, &[0x8100, 0x6001, 0x8906], Verdict::Vlan),
            (STATION, &[0x8100, 0], Verdict::Runt),
            (STATION, &[], Verdict::Runt),
        ];
        for (dst, words, expected) in rows {
            assert_eq!(
                filter.classify(&frame(dst, words)),
                expected,
                "{words:04x?}"
            );
        }
        assert_eq!(
            filter.classify(&frame(STATION, &[0x8906])[..13]),
            Verdict::Runt
        );
        assert_eq!(filter.classify(&[]), Verdict::Runt);
    }
}
