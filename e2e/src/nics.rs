//! Configuration files.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::scratch::Scratch;

/// A configuration of one NIC, `VINIC0`.
#[derive(Clone, Debug)]
pub struct NicText(String);

/// An end of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Interface `left`, host `192.0.2.1`, N_Port_IDs from `00.01.01`.
    Left,
    /// Interface `right`, host `192.0.2.2`, N_Port_IDs from `00.02.01`.
    Right,
}

impl End {
    /// Its interface.
    pub fn interface(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Right => "right",
        }
    }

    /// Its interface on one of several wires; the first one has [`Self::interface`].
    pub fn lane_interface(self, lane: usize) -> String {
        match lane {
            0 => self.interface().to_owned(),
            _ => format!("{}-{lane}", self.interface()),
        }
    }

    /// Its host's address.
    pub fn host(self) -> &'static str {
        match self {
            Self::Left => "192.0.2.1",
            Self::Right => "192.0.2.2",
        }
    }

    /// The same for IPv6.
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

    /// A number of its own.
    fn place(self) -> u8 {
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

/// Faults in one hundredth of the frames each.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Seed of the random choices.
    pub seed: u64,
    /// Loss, duplication, reordering, corruption: parts per million.
    pub ppm: [u32; 4],
}

impl NicText {
    /// A segment of shared memory in a directory of its own.
    pub fn shm(directory: &Path) -> Self {
        Self(format!(
            "[[nic]]\nport = \"shm\"\nsegment = \"e2e\"\ndirectory = {directory:?}\n"
        ))
    }

    /// One end of a wire.
    pub fn af_packet(end: End) -> Self {
        Self::on_wire(end, End::n_port_ids)
    }

    /// One end of a wire whose ends have room for one program each.
    pub fn af_packet_of_one(end: End) -> Self {
        Self::on_wire(end, End::first_n_port_id)
    }

    fn on_wire(end: End, n_port_ids: fn(End) -> &'static str) -> Self {
        Self(format!(
            "[[nic]]\nport = \"af_packet\"\ninterface = \"{}\"\nhost = \"{}\"\nn_port_ids = \"{}\"\n\
             neighbour = [{{ host = \"{}\", n_port_ids = \"{}\" }}]\n",
            end.interface(),
            end.host(),
            n_port_ids(end),
            end.other().host(),
            n_port_ids(end.other()),
        ))
    }

    /// A host on whose network the ports find each other.
    pub fn discovering(interface: &str, host: &str) -> Self {
        Self(format!(
            "[[nic]]\nport = \"af_packet\"\ninterface = \"{interface}\"\nhost = \"{host}\"\n"
        ))
    }

    /// An end of a wire that speaks VI/TCP.
    pub fn vi_tcp(end: End) -> Self {
        Self::vi_tcp_at(end.host())
    }

    /// A host that speaks VI/TCP.
    pub fn vi_tcp_at(host: &str) -> Self {
        Self(format!(
            "[[nic]]\nname = \"VINIC0\"\ntransport = \"vi-tcp\"\nhost = \"{host}\"\n"
        ))
    }

    /// A further NIC on the end of a wire: `number` tells them apart, and the two ends of each belong together.
    pub fn further_af_packet(end: End, name: &str, number: u8) -> Self {
        let port = format!(
            "port = \"af_packet\"\ninterface = \"{}\"\n",
            end.interface()
        );
        let n_port_ids = |domain: u8| format!("00.{domain:02x}.01-00.{domain:02x}.10");
        Self::numbered(end, name, number, &port, n_port_ids)
    }

    /// A NIC with room for one program at one end of whatever wire; `port` are the keys that say which. Its `number`
    /// tells it from others of that end, and the two ends of each belong together; number 0 has the host address of
    /// [`End`].
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
        let domain = |end: End| 16 * number + end.place();
        let host = |end: End| format!("192.0.2.{}", domain(end));
        let n_port_ids = |end: End| n_port_ids(domain(end));
        let other = end.other();
        Self(format!(
            "[[nic]]\nname = \"{name}\"\n{port}host = \"{}\"\n\
             n_port_ids = \"{}\"\nneighbour = [{{ host = \"{}\", n_port_ids = \"{}\" }}]\n",
            host(end),
            n_port_ids(end),
            host(other),
            n_port_ids(other),
        ))
    }

    /// Another NIC behind this one.
    pub fn and(mut self, other: Self) -> Self {
        self.0.push_str(&other.0);
        self
    }

    /// Adds a key.
    pub fn key(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        writeln!(self.0, "{name} = {value}").expect("room in memory");
        self
    }

    /// Time-outs for a test in which they are to break connections: nothing on a wire of this host lives for a second.
    pub fn quick(self) -> Self {
        self.key("e_d_tov_ms", 200)
            .key("r_a_tov_ms", 200)
            .key("ulp_timeout_ms", 400)
    }

    /// Time-outs that a host which takes the cores away for seconds does not reach: what ends, ends for another reason.
    pub fn steady(self) -> Self {
        // On a wire, N_Port_IDs that no port has are told of each request so long that it is void, and programs wait
        // for that at their ends.
        let on_wire = !self.0.contains("\"shm\"");
        let time_out_ms = if on_wire { 4_000 } else { 60_000 };
        self.key("e_d_tov_ms", time_out_ms)
            .key("r_a_tov_ms", 200)
            .key("ulp_timeout_ms", time_out_ms)
    }

    /// Little of everything, as the conformance suite wants one of its NICs.
    pub fn with_little(self) -> Self {
        let limits = [
            ("max_vi", 4),
            ("max_ptags", 4),
            ("max_cq", 3),
            ("max_cq_entries", 64),
            ("max_regions", 3),
            ("max_registered_bytes", 33_554_432),
            ("max_incoming", 1),
            ("max_notifies_per_queue", 3),
            ("max_transfer_bytes", 8_388_608),
        ];
        let neighbours = "[{ host = \"192.0.2.9\", n_port_ids = \"00.09.01\" }, \
                          { host = \"192.0.2.8\", n_port_ids = \"00.08.01\" }]";
        limits
            .into_iter()
            .fold(self.key("neighbour", neighbours), |nic, (name, limit)| {
                nic.key(name, limit)
            })
    }

    /// Adds injected faults.
    pub fn faults(mut self, faults: Faults) -> Self {
        let [loss, duplication, reordering, corruption] = faults.ppm;
        write!(
            self.0,
            "[nic.fault]\nseed = {}\nloss_ppm = {loss}\nduplication_ppm = {duplication}\n\
             reordering_ppm = {reordering}\ncorruption_ppm = {corruption}\n",
            faults.seed
        )
        .expect("room in memory");
        self
    }

    /// The file.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Writes it to a file.
    pub fn write(&self, scratch: &Scratch, name: &str) -> PathBuf {
        scratch.write(name, &self.0)
    }
}
