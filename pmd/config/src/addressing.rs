//! How a NIC on a wire gets its N_Port_ID and finds other hosts.

use std::net::IpAddr;

use crate::address::host_error;
use crate::error::{Step, ValueError};
use crate::file::read_complete_table;
use crate::nic::HOUR_MS;
use crate::table::{Form, Value, choice, range, table, table_form, value};

const N_PORT_IDS: Form = value("\"00.01.01\" or a range \"00.01.01-00.01.08\", in quotes");
const NAME: Form = value("eight bytes in hexadecimal, in quotes, \"20:00:52:54:00:00:00:01\"");

choice! {
    /// How a NIC on a wire gets its N_Port_ID and finds other hosts.
    pub enum Addressing {
        /// Each program claims an N_Port_ID by FIP VN2VN, logs in to its neighbours, and requests their host addresses.
        Discovery(Discovery) = "discovery",
        /// N_Port_IDs of this file, for networks without discovery.
        Static(Static) = "static",
    }
}

impl Default for Addressing {
    fn default() -> Self {
        Self::Discovery(Discovery::default())
    }
}

table! {
    /// Discovery of other hosts on a wire.
    pub struct Discovery in "[nic.discovery]" {
        /// Port_Name of this NIC, `"20:00:52:54:00:00:00:01"`, for one program at a time. Default: a random one for each
        /// NIC handle.
        pub port_name: Option<String> = None, NAME;
        /// Node_Name of this NIC, likewise.
        pub node_name: Option<String> = None, NAME;
        /// Beacon interval; a neighbour whose beacons are missing for two and a half intervals is removed. All ports of a
        /// link should have the same. Milliseconds.
        pub beacon_ms: u64 = 8000, range(10, HOUR_MS);
        /// Timeout of opening the NIC for an N_Port_ID, and of a connection request for an unknown host. Milliseconds.
        pub timeout_ms: u64 = 10_000, range(1, HOUR_MS), was "discovery_ms";
    }
}

table! {
    /// Hosts and N_Port_IDs without discovery; with `[nic.shm]`, hosts outside the segment.
    pub struct Static in "[nic.static]" {
        /// The N_Port_ID of this NIC, or a range of which each program claims a free one. Required on a wire; a segment
        /// assigns the N_Port_IDs of its stations.
        pub n_port_ids: String = String::new(), N_PORT_IDS;
        /// Other hosts.
        pub neighbour: Vec<NeighbourConfig> = Vec::new(), Form::Tables(table_form::<NeighbourConfig>(
            ", each with host and n_port_ids",
            read_complete_table::<NeighbourConfig>,
        ));
    }
}

table! {
    /// Another host and its N_Port_IDs. All keys are required.
    pub struct NeighbourConfig in "[[nic.static.neighbour]]" {
        /// Its host address: IPv4 or IPv6.
        pub host: IpAddr = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
            value("an IP address in quotes, \"192.0.2.1\" or \"2001:db8::1\"");
        /// Its N_Port_IDs: `"00.01.01"`, or a range `"00.01.01-00.01.08"`.
        pub n_port_ids: String = String::new(), N_PORT_IDS;
    }
}

impl Value for IpAddr {}

impl Addressing {
    /// Returns the keys of discovery; with N_Port_IDs of the file, their defaults.
    #[must_use]
    pub fn discovery(&self) -> Discovery {
        match self {
            Self::Discovery(discovery) => discovery.clone(),
            Self::Static(_) => Discovery::default(),
        }
    }

    /// Returns the N_Port_IDs of the file.
    #[must_use]
    pub fn r#static(&self) -> Option<&Static> {
        match self {
            Self::Discovery(_) => None,
            Self::Static(ids) => Some(ids),
        }
    }

    /// Returns the errors of the values.
    pub(crate) fn errors(&self, is_on_wire: bool) -> Vec<ValueError> {
        let mut found = self.range_errors();
        match self {
            Self::Discovery(discovery) => found.extend(discovery.errors()),
            Self::Static(ids) => found.extend(ids.errors(is_on_wire)),
        }
        let table = Step::Table(self.name());
        let under = |error: ValueError| error.under(table.clone());
        found.into_iter().map(under).collect()
    }
}

impl Discovery {
    /// Returns the configured Port_Name and Node_Name; `None` for one that is absent or invalid.
    #[must_use]
    pub fn names(&self) -> (Option<u64>, Option<u64>) {
        let name = |text: &Option<String>| text.as_deref().and_then(parse_name);
        (name(&self.port_name), name(&self.node_name))
    }

    fn errors(&self) -> Vec<ValueError> {
        let names = [
            ("port_name", &self.port_name),
            ("node_name", &self.node_name),
        ];
        let invalid = |(key, name): (&'static str, &Option<String>)| {
            let text = name.as_deref().filter(|name| parse_name(name).is_none())?;
            let text = format!(
                "{key} = {text:?}: must be eight bytes in hexadecimal, \"20:00:52:54:00:00:00:01\""
            );
            Some(ValueError::new(key, text))
        };
        names.into_iter().filter_map(invalid).collect()
    }
}

impl Static {
    fn errors(&self, is_on_wire: bool) -> Vec<ValueError> {
        let mut found = Vec::new();
        let ids = &self.n_port_ids;
        if !is_on_wire && !ids.is_empty() {
            let text = format!(
                "n_port_ids = {ids:?}: a segment assigns the N_Port_IDs of its stations: remove this key"
            );
            found.push(ValueError::new("n_port_ids", text));
        } else if is_on_wire && ids.is_empty() {
            let text = "requires n_port_ids = \"...\": the N_Port_IDs of this NIC; \
                        without this table, they are discovered";
            found.push(ValueError::new("n_port_ids", text));
        } else if is_on_wire && let Err(text) = parse_range(ids) {
            found.push(ValueError::new("n_port_ids", text));
        }
        for index in 0..self.neighbour.len() {
            let of_neighbour = self.neighbour_errors(index).into_iter();
            found.extend(of_neighbour.map(|error| error.under(Step::Element("neighbour", index))));
        }
        found
    }

    fn neighbour_errors(&self, index: usize) -> Vec<ValueError> {
        let Some(neighbour) = self.neighbour.get(index) else {
            return Vec::new();
        };
        let mut found: Vec<ValueError> = host_error(neighbour.host).into_iter().collect();
        let mut add = |text: String| found.push(ValueError::new("n_port_ids", text));
        let text = &neighbour.n_port_ids;
        let range = match parse_range(text) {
            Ok(range) => range,
            Err(text) => {
                add(text);
                return found;
            }
        };
        let overlaps = |other: &str| {
            parse_range(other).is_ok_and(|other| range.0 <= other.1 && other.0 <= range.1)
        };
        if overlaps(&self.n_port_ids) {
            add(format!(
                "n_port_ids = {text:?}: overlaps n_port_ids = {:?} of this NIC: every program needs its own",
                self.n_port_ids
            ));
        }
        let mut earlier = self.neighbour.iter().take(index);
        if let Some(earlier) = earlier.position(|other| overlaps(&other.n_port_ids)) {
            add(format!(
                "n_port_ids = {text:?}: overlaps those of neighbour {}: every program needs its own",
                earlier + 1
            ));
        }
        found
    }
}

/// Parses a worldwide name: eight bytes in hexadecimal, with or without colons.
fn parse_name(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    Some(digits.as_str())
        .filter(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .filter(|name| *name != 0)
}

/// Maximum number of N_Port_IDs of one range.
const MAX_IDS: u32 = 256;

/// Parses an N_Port_ID or a range of them; returns the first and the last one.
///
/// # Errors
/// What the text must be.
pub fn parse_range(text: &str) -> Result<(u32, u32), String> {
    let invalid =
        || format!("n_port_ids = {text:?}: must be \"00.01.01\" or a range \"00.01.01-00.01.08\"");
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (parse_id(first), parse_id(last)),
        None => (parse_id(text), parse_id(text)),
    };
    let (first, last) = (first.ok_or_else(invalid)?, last.ok_or_else(invalid)?);
    if last < first || last - first >= MAX_IDS {
        return Err(format!(
            "n_port_ids = {text:?}: must be a range of 1 to {MAX_IDS} IDs in ascending order"
        ));
    }
    Ok((first, last))
}

/// Parses an N_Port_ID, `00.01.02` or `000102`, other than the well-known ones.
fn parse_id(text: &str) -> Option<u32> {
    let text = text.trim();
    let digits: String = match text.contains('.') {
        true => {
            let groups: Vec<&str> = text.split('.').collect();
            let is_valid = groups.len() == 3 && groups.iter().all(|group| group.len() == 2);
            is_valid.then(|| groups.concat())?
        }
        false => text.to_owned(),
    };
    let is_hex = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = u32::from_str_radix(is_hex.then_some(&digits)?, 16).ok()?;
    (id != 0 && id < 0x00FF_FFF0).then_some(id)
}
