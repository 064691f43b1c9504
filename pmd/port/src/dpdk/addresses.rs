//! For which addresses the device receives, and which frames are the port's.

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
use crate::af_packet::link::LinkWatch;
use crate::af_packet::socket::{Interface, Socket};
use crate::af_packet::{ETHERTYPE_VLAN, Promiscuous, SEGMENT_BROADCAST};
use crate::port::MacBytes;

/// The VLAN identifier in the tag control information.
const VLAN_ID_MASK: u16 = 0x0fff;
/// Both addresses of a frame.
const ADDRESSES_BYTES: usize = 12;

/// What comes of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is the port's.
    Ours,
    /// So it is, without its priority tag.
    PriorityTagged,
    Runt,
    OtherAddress,
    OtherEthertype,
    Vlan,
}

/// Which frames are the port's.
#[derive(Debug)]
pub(super) struct Filter {
    /// As numbers in memory's order.
    destinations: Vec<u64>,
    ethertypes: Vec<u16>,
}

/// An address as the first six bytes of a number.
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

    /// Judges a frame that begins with these bytes.
    #[inline]
    pub(super) fn judge(&self, frame: &[u8]) -> Verdict {
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

/// Where the device gets its frames from.
#[derive(Debug)]
pub(super) enum Reception {
    /// A network interface of the kernel's, which is told and watched by a socket of ours: memberships end with it,
    /// however the process ends.
    Interface {
        control: Socket,
        addresses: Addresses,
        link: LinkWatch,
    },
    /// The device itself.
    Device(Own),
}

/// The addresses of a device without an interface.
#[derive(Debug)]
pub(super) struct Own {
    port: u16,
    ethertypes: Vec<u16>,
    others: Vec<MacBytes>,
    permitted: Promiscuous,
    /// It hands over every frame, and need not be told of addresses.
    for_all: bool,
}

fn ether(mac: MacBytes) -> rte_ether_addr {
    rte_ether_addr { addr_bytes: mac }
}

fn is_group(mac: MacBytes) -> bool {
    mac[0] & 1 != 0
}

fn done(number: c_int) -> Result<(), c_int> {
    match number {
        0 => Ok(()),
        error => Err(error),
    }
}

impl Own {
    pub(super) fn new(config: &DpdkConfig, port: u16, mac: MacBytes) -> Self {
        let own = config.interface_address.then_some(mac);
        let others = [SEGMENT_BROADCAST].into_iter().chain(own);
        Self {
            port,
            ethertypes: config.ethertypes.clone(),
            others: others.chain(config.multicast.iter().copied()).collect(),
            permitted: config.promiscuous,
            for_all: false,
        }
    }

    fn with_station(&self, station: MacBytes) -> Vec<MacBytes> {
        [station].into_iter().chain(self.others.clone()).collect()
    }

    /// Makes the device receive for the station and the other addresses.
    pub(super) fn join(&mut self, device: &str, station: MacBytes) -> Result<(), DpdkError> {
        let mark = log::mark();
        let refused = |mac, number| DpdkError::AddressRefused {
            device: device.to_owned(),
            mac,
            said: eal::said(number, mark),
        };
        if self.permitted == Promiscuous::Always {
            return self.ask_for_all().map_err(|error| refused(station, error));
        }
        for mac in self.with_station(station) {
            if let Err(error) = self.ask_for(mac) {
                return match self.permitted {
                    Promiscuous::Never => Err(refused(mac, error)),
                    _ => self.ask_for_all().map_err(|error| refused(mac, error)),
                };
            }
        }
        let groups = self.others.iter().copied().filter(|&mac| is_group(mac));
        let mut groups: Vec<rte_ether_addr> = groups.map(ether).collect();
        let Some(&first) = groups.first() else {
            return Ok(());
        };
        // SAFETY: the port exists, and the list is as long as it says.
        let told = unsafe {
            rte_eth_dev_set_mc_addr_list(self.port, groups.as_mut_ptr(), groups.len() as u32)
        };
        match (told, self.permitted) {
            (0, _) => Ok(()),
            (error, Promiscuous::Never) => Err(refused(first.addr_bytes, error)),
            _ => self
                .ask_for_all()
                .map_err(|error| refused(first.addr_bytes, error)),
        }
    }

    /// Receives for the station `to` from now on, and no more for `from`. After an error all is as before.
    pub(super) fn change(&mut self, from: MacBytes, to: MacBytes) -> io::Result<()> {
        let refused = |number: c_int| io::Error::from_raw_os_error(number.saturating_abs());
        if !self.for_all
            && let Err(error) = self.ask_for(to)
        {
            match self.permitted {
                Promiscuous::Never => return Err(refused(error)),
                _ => self.ask_for_all().map_err(|_| refused(error))?,
            }
        }
        if !self.for_all {
            let mut from = ether(from);
            // SAFETY: the port exists, and the address is read. Fails for the device's own address, which stays.
            unsafe { rte_eth_dev_mac_addr_remove(self.port, &mut from) };
        }
        Ok(())
    }

    /// Asks for single frames to an address; groups are asked for by list.
    fn ask_for(&self, mac: MacBytes) -> Result<(), c_int> {
        if is_group(mac) {
            return Ok(());
        }
        let mut mac = ether(mac);
        // SAFETY: the port exists, and the address is copied.
        done(unsafe { rte_eth_dev_mac_addr_add(self.port, &mut mac, 0) })
    }

    /// A device that cannot be asked has no filter: it hands over what it gets.
    fn ask_for_all(&mut self) -> Result<(), c_int> {
        // SAFETY: the port exists.
        match unsafe { rte_eth_promiscuous_enable(self.port) } {
            0 => {}
            error if error == -libc::ENOTSUP => {}
            error => return Err(error),
        }
        self.for_all = true;
        Ok(())
    }

    pub(super) fn is_for_all(&self) -> bool {
        self.for_all
    }
}

impl Reception {
    /// On an interface.
    pub(super) fn on_interface(
        config: &DpdkConfig,
        name: &str,
        control: Socket,
        interface: Interface,
        link: LinkWatch,
    ) -> Result<Self, DpdkError> {
        let mut addresses = Addresses::new(&config.common(name), interface);
        addresses.join(&control, config.mac)?;
        Ok(Self::Interface {
            control,
            addresses,
            link,
        })
    }

    /// Which frames are those of a station.
    pub(super) fn filter(&self, station: MacBytes) -> Filter {
        match self {
            Self::Interface { addresses, .. } => {
                Filter::new(addresses.ethertypes(), &addresses.with_station(station))
            }
            Self::Device(own) => Filter::new(&own.ethertypes, &own.with_station(station)),
        }
    }

    /// As [`Port::change_address`](crate::Port::change_address), but for the filter.
    pub(super) fn change(&mut self, from: MacBytes, to: MacBytes) -> io::Result<()> {
        match self {
            Self::Interface {
                control, addresses, ..
            } => addresses.change(control, from, to, |_, _| Ok(())),
            Self::Device(own) => own.change(from, to),
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
    fn frames_are_judged_by_address_type_and_tag() {
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
            assert_eq!(filter.judge(&frame(dst, words)), expected, "{words:04x?}");
        }
        assert_eq!(
            filter.judge(&frame(STATION, &[0x8906])[..13]),
            Verdict::Runt
        );
        assert_eq!(filter.judge(&[]), Verdict::Runt);
    }
}
