//! Hosts on one network, configured only with names and addresses; their ports find each other by discovery.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::nics::{End, NicText};
use crate::scratch::Scratch;
use crate::segment::Segment;
use crate::wire::{Namespace, Wire};

/// Hosts with one NIC each.
#[derive(Debug)]
pub struct Hosts {
    network: Network,
    configs: Vec<PathBuf>,
    _scratch: Scratch,
}

#[derive(Debug)]
enum Network {
    Bridge {
        hosts: Vec<Namespace>,
        segment: Segment,
    },
    Wire(Wire),
}

/// Returns the address of host number `at`.
pub fn address(at: usize) -> String {
    format!("192.0.2.{}", at + 1)
}

/// Returns the name of a host, which only the hosts files resolve.
pub fn name(at: usize) -> String {
    format!("host-{at}.example")
}

/// Writes the configurations of hosts with these interfaces; `more` adds keys to each.
fn configure(
    scratch: &Scratch,
    interfaces: &[String],
    more: impl Fn(usize, NicText) -> NicText,
) -> Vec<PathBuf> {
    let count = interfaces.len();
    let names: Vec<String> = (0..count)
        .map(|at| format!("{} {}\n", address(at), name(at)))
        .collect();
    let names = scratch.write("hosts", &names.concat());
    let config = |(at, interface): (usize, &String)| {
        let nic =
            NicText::discovering(interface, &address(at)).key("hosts_file", format!("{names:?}"));
        more(at, nic).write(scratch, &format!("{at}.toml"))
    };
    interfaces.iter().enumerate().map(config).collect()
}

impl Hosts {
    /// Creates `count` hosts on a bridge, with interfaces `eth0`, `eth1`, ...; `more` adds keys to each configuration.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn on_bridge(
        count: usize,
        mtu_bytes: u32,
        more: impl Fn(usize, NicText) -> NicText,
    ) -> Self {
        let segment = Segment::new(mtu_bytes);
        let scratch = Scratch::new("hosts");
        let interfaces: Vec<String> = (0..count).map(|at| format!("eth{at}")).collect();
        Self {
            configs: configure(&scratch, &interfaces, more),
            network: Network::Bridge {
                hosts: interfaces.iter().map(|name| segment.host(name)).collect(),
                segment,
            },
            _scratch: scratch,
        }
    }

    /// Creates two hosts that are connected by a wire.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn on_wire(mtu_bytes: u32) -> Self {
        let scratch = Scratch::new("hosts");
        let interfaces = [End::Left, End::Right].map(|end| end.interface().to_owned());
        Self {
            configs: configure(&scratch, &interfaces, |_, nic| nic),
            network: Network::Wire(Wire::new(mtu_bytes)),
            _scratch: scratch,
        }
    }

    /// Returns the network namespace of a host.
    pub fn namespace(&self, at: usize) -> &Namespace {
        match &self.network {
            Network::Bridge { hosts, .. } => &hosts[at],
            Network::Wire(wire) => [&wire.left, &wire.right][at],
        }
    }

    /// Returns the configuration file of a host.
    pub fn config(&self, at: usize) -> &PathBuf {
        &self.configs[at]
    }

    /// Returns the bridge.
    ///
    /// # Panics
    /// The hosts are on a wire.
    pub fn segment(&self) -> &Segment {
        match &self.network {
            Network::Bridge { segment, .. } => segment,
            Network::Wire(_) => panic!("hosts on a wire have no bridge"),
        }
    }

    /// Returns the command of a program on a host, with the host's configuration.
    pub fn program(&self, at: usize, name: impl AsRef<OsStr>) -> Command {
        let mut command = self.namespace(at).program(name);
        command.env("VIADUCT_CONFIG", self.config(at));
        command
    }
}
