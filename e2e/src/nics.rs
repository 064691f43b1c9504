//! Configuration files of NICs.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::scratch::Scratch;

/// The TOML text of a configuration: one NIC, `VINIC0` unless named, or several after [`Self::and`].
#[derive(Clone, Debug)]
pub struct NicText(String);

/// One end of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Interface `left`, host `192.0.2.1`, N_Port_IDs from `00.01.01`.
    Left,
    /// Interface `right`, host `192.0.2.2`, N_Port_IDs from `00.02.01`.
    Right,
}

impl End {
    /// Returns the interface.
    pub fn interface(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }

    /// Returns the interface on wire number `lane`; that of wire 0 is [`Self::interface`].
    pub fn lane_interface(self, lane: usize) -> String {
        match lane {
            0 => self.interface().to_owned(),
            _ => format!("{}-{lane}", self.interface()),
        }
    }

    /// Returns the IPv4 address of the host.
    pub fn host(self) -> &'static str {
        match self {
            Self::Left => "192.0.2.1",
            Self::Right => "192.0.2.2",
        }
    }

    /// Returns the IPv6 address of the host.
    pub fn host_v6(self) -> &'static str {
        match self {
            Self::Left => "fd00::1",
            Self::Right => "fd00::2",
        }
    }

    fn n_port_ids(self) -> &'static str {
        match self {
            Self::Left => "00.01.01-00.01.10",
            Self::Right => "00.02.01-00.02.10",
        }
    }

    fn first_n_port_id(self) -> &'static str {
        match self {
            Self::Left => "00.01.01",
            Self::Right => "00.02.01",
        }
    }

    /// Returns a number that differs between the ends.
    fn number(self) -> u8 {
        match self {
            Self::Left => 1,
            Self::Right => 2,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// Faults to inject.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Seed of the random number generator.
    pub seed: u64,
    /// Loss, duplication, reordering, corruption in parts per million.
    pub ppm: [u32; 4],
}

impl NicText {
    /// A NIC on a shared memory segment in a directory.
    pub fn shm(directory: &Path) -> Self {
        Self(format!(
            "[[nic]]\nshm.segment = \"e2e\"\nshm.directory = {directory:?}\n"
        ))
    }

    /// A NIC on one end of a wire, with 16 N_Port_IDs per end.
    pub fn af_packet(end: End) -> Self {
        Self::on_wire(end, End::n_port_ids)
    }

    /// A NIC on one end of a wire, with one N_Port_ID per end: one program per host.
    pub fn af_packet_one_id(end: End) -> Self {
        Self::on_wire(end, End::first_n_port_id)
    }

    fn on_wire(end: End, n_port_ids: fn(End) -> &'static str) -> Self {
        Self(format!(
            "[[nic]]\naf_packet.interface = \"{}\"\nhost = \"{}\"\nstatic.n_port_ids = \"{}\"\n\
             static.neighbour = [{{ host = \"{}\", n_port_ids = \"{}\" }}]\n",
            end.interface(),
            end.host(),
            n_port_ids(end),
            end.other().host(),
            n_port_ids(end.other()),
        ))
    }

    /// A NIC of a host whose ports find each other by discovery.
    pub fn discovering(interface: &str, host: &str) -> Self {
        Self(format!(
            "[[nic]]\naf_packet.interface = \"{interface}\"\nhost = \"{host}\"\n"
        ))
    }

    /// A VI/TCP NIC on one end of a wire.
    pub fn vi_tcp(end: End) -> Self {
        Self::vi_tcp_at(end.host())
    }

    /// A VI/TCP NIC at an address.
    pub fn vi_tcp_at(host: &str) -> Self {
        Self(format!(
            "[[nic]]\nvi_tcp.flow_control = false\nname = \"VINIC0\"\nhost = \"{host}\"\n"
        ))
    }

    /// An additional NIC on one end of a wire; NICs with equal `number` on both ends are neighbours.
    pub fn additional_af_packet(end: End, name: &str, number: u8) -> Self {
        let port = format!("af_packet.interface = \"{}\"\n", end.interface());
        let n_port_ids = |domain: u8| format!("00.{domain:02x}.01-00.{domain:02x}.10");
        Self::numbered(end, name, number, &port, n_port_ids)
    }

    /// A NIC with one N_Port_ID on one end of any port; `port` has the keys of the port. NICs with equal `number` on
    /// both ends are neighbours; number 0 has the host address of [`End`].
    pub fn on_port(end: End, name: &str, number: u8, port: &str) -> Self {
        Self::numbered(end, name, number, port, |domain| {
            format!("00.{domain:02x}.01")
        })
    }

    fn numbered(
        end: End,
        name: &str,
        number: u8,
        port: &str,
        n_port_ids: impl Fn(u8) -> String,
    ) -> Self {
        let domain = |end: End| 16 * number + end.number();
        let host = |end: End| format!("192.0.2.{}", domain(end));
        let n_port_ids = |end: End| n_port_ids(domain(end));
        let other = end.other();
        Self(format!(
            "[[nic]]\nname = \"{name}\"\n{port}host = \"{}\"\n\
             static.n_port_ids = \"{}\"\nstatic.neighbour = [{{ host = \"{}\", n_port_ids = \"{}\" }}]\n",
            host(end),
            n_port_ids(end),
            host(other),
            n_port_ids(other),
        ))
    }

    /// Appends another NIC.
    pub fn and(mut self, other: Self) -> Self {
        self.0.push_str(&other.0);
        self
    }

    /// Returns the table of the network of the last NIC.
    fn network(&self) -> &'static str {
        let nic = self.0.rsplit("[[nic]]").next().unwrap_or_default();
        let has_key = |network: &&str| nic.contains(&format!("\n{network}."));
        let mut networks = ["shm", "af_packet", "af_xdp", "dpdk", "vi_tcp"].into_iter();
        networks.find(has_key).expect("a NIC has a network")
    }

    /// Appends a key; `network.` at its start stands for the table of the NIC's network.
    pub fn key(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        let name = match name.strip_prefix("network.") {
            Some(key) => format!("{}.{key}", self.network()),
            None => name.to_owned(),
        };
        writeln!(self.0, "{name} = {value}").expect("strings accept all text");
        self
    }

    /// Sets short timeouts, for tests whose connections shall break; frames on a wire of this host arrive in less.
    pub fn short_timeouts(self) -> Self {
        self.key("fc_vi.e_d_tov_ms", 200)
            .key("fc_vi.r_a_tov_ms", 200)
            .key("ulp_timeout_ms", 400)
    }

    /// Sets timeouts that do not expire on a busy host, so that connections end for other reasons only.
    pub fn long_timeouts(self) -> Self {
        // On a wire, cancellations of requests to N_Port_IDs without a port are repeated for this time, and programs
        // wait for that before they end.
        let on_wire = self.network() != "shm";
        let timeout_ms = if on_wire { 4_000 } else { 60_000 };
        self.key("fc_vi.e_d_tov_ms", timeout_ms)
            .key("fc_vi.r_a_tov_ms", 200)
            .key("ulp_timeout_ms", timeout_ms)
    }

    /// Sets the small limits that the conformance suite requires of one of its NICs.
    pub fn small_limits(self) -> Self {
        let limits = [
            ("limits.max_vi", 4),
            ("limits.max_ptags", 4),
            ("limits.max_cq", 3),
            ("limits.max_cq_entries", 64),
            ("limits.max_regions", 3),
            ("limits.max_registered_bytes", 33_554_432),
            ("limits.max_incoming", 1),
            ("limits.max_notifies_per_queue", 3),
            ("limits.max_transfer_bytes", 8_388_608),
        ];
        let neighbours = "[{ host = \"192.0.2.9\", n_port_ids = \"00.09.01\" }, \
                          { host = \"192.0.2.8\", n_port_ids = \"00.08.01\" }]";
        limits.into_iter().fold(
            self.key("static.neighbour", neighbours),
            |nic, (name, limit)| nic.key(name, limit),
        )
    }

    /// Appends faults to inject.
    pub fn faults(mut self, faults: Faults) -> Self {
        let [loss, duplication, reordering, corruption] = faults.ppm;
        write!(
            self.0,
            "[nic.fc_vi.fault]\nseed = {}\nloss_ppm = {loss}\nduplication_ppm = {duplication}\n\
             reordering_ppm = {reordering}\ncorruption_ppm = {corruption}\n",
            faults.seed
        )
        .expect("strings accept all text");
        self
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Writes the text to a file.
    pub fn write(&self, scratch: &Scratch, name: &str) -> PathBuf {
        scratch.write(name, &self.0)
    }
}
