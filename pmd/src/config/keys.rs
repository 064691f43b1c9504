//! Keys of each table, and the required form of their values.

use serde::de::value::Error as FieldsError;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::error::Number;
use super::file::{File, Subtable, Table};
use super::process::{ApplicationConfig, ProcessConfig, QuotaConfig};
use super::{Config, FaultConfig, NeighbourConfig, NicConfig, TlsConfig};

/// Returns the keys of a table: the fields of its struct.
pub(super) fn of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut keys: &'static [&'static str] = &[];
    // Records the fields that the struct requests, and returns an error, which is expected.
    let _ = T::deserialize(Fields(&mut keys));
    keys
}

struct Fields<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = FieldsError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, FieldsError> {
        Err(FieldsError::custom("not a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, FieldsError> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Returns the requirement on the value of a key; `None` if the table has no such key.
pub(super) fn must_be<T: Table>(key: &str) -> Option<String> {
    if let Some(number) = T::numbers().iter().find(|number| number.key == key) {
        let Number { low, high, .. } = number;
        return Some(format!("must be a number, {low} to {high}"));
    }
    T::form(key).map(|form| format!("must be {form}"))
}

/// Returns the error text for a key that the table does not have, with a suggestion.
pub(super) fn unknown<T: Table>(key: &str) -> String {
    let unknown = match T::HEADER {
        "" => format!("unknown key `{key}`"),
        header => format!("unknown key `{key}` in {header}"),
    };
    let nearest = of::<T>()
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, key), known))
        .min();
    if let Some((distance, known)) = nearest
        && distance <= 1 + known.len().min(key.len()) / 4
    {
        return format!("{unknown}; did you mean `{known}`?");
    }
    let tables: [(&str, &[&str]); 7] = [
        (NicConfig::HEADER, of::<NicConfig>()),
        (NeighbourConfig::HEADER, of::<NeighbourConfig>()),
        (TlsConfig::HEADER, of::<TlsConfig>()),
        (FaultConfig::HEADER, of::<FaultConfig>()),
        (ProcessConfig::HEADER, of::<ProcessConfig>()),
        (QuotaConfig::HEADER, of::<QuotaConfig>()),
        (ApplicationConfig::HEADER, of::<ApplicationConfig>()),
    ];
    match tables.iter().find(|(_, keys)| keys.contains(&key)) {
        Some((header, _)) => format!("{unknown}; it belongs in {header}"),
        None => format!("{unknown}; remove it"),
    }
}

impl Table for Config {
    const HEADER: &'static str = "";

    fn numbers() -> Vec<Number> {
        Vec::new()
    }

    fn form(key: &str) -> Option<&'static str> {
        Some(match key {
            "nic" => "tables, [[nic]]",
            "alias" => "a table, [alias], of other names of NICs",
            "process" => "a table, [process]",
            _ => return None,
        })
    }

    fn subtable<'t>(key: &str) -> Option<Subtable<'t>> {
        Some(match key {
            "nic" => Subtable::Array(File::table::<NicConfig>),
            "alias" => Subtable::Single(File::aliases),
            "process" => Subtable::Single(File::table::<ProcessConfig>),
            _ => return None,
        })
    }
}

impl Table for NicConfig {
    const HEADER: &'static str = "[[nic]]";

    fn numbers() -> Vec<Number> {
        Self::default().numbers()
    }

    fn form(key: &str) -> Option<&'static str> {
        Some(match key {
            "name" => "a name in quotes, \"VINIC0\"",
            "transport" => "\"fc-vi\" or \"vi-tcp\"",
            "port" => "\"shm\", \"af_packet\", \"af_xdp\" or \"dpdk\"",
            "segment" => "1 to 64 letters, digits, '.', '_' or '-', in quotes",
            "directory" => "the path of a directory, in quotes",
            "interface" => {
                "the name of a network interface, in quotes, 1 to 15 bytes: `ip link` lists interfaces"
            }
            "n_port_ids" => "\"00.01.01\" or a range \"00.01.01-00.01.08\", in quotes",
            "port_name" | "node_name" => {
                "eight bytes in hexadecimal, in quotes, \"20:00:52:54:00:00:00:01\""
            }
            "host" => "an IP address in quotes, \"192.0.2.1\" or \"2001:db8::1\"",
            "neighbour" => "tables, [[nic.neighbour]], each with host and n_port_ids",
            "hosts_file" | "capture" | "key_file" => "the path of a file, in quotes",
            "progress" => "\"inline\" or \"pinned\"",
            "protection" => "\"strict\" or \"lenient\"",
            "lock_memory" => "\"best_effort\", \"required\" or \"never\"",
            "copy" => "\"auto\", \"zero-copy\" or \"copy\"",
            "device" => "a DPDK device, in quotes: \"0000:01:00.0\" or \"net_memif0,role=server\"",
            "args" => "a list of EAL arguments, in quotes: [\"-l\", \"0\"]",
            "recovery" | "shortcut" | "huge_pages" | "flow_control" => "true or false",
            "tls" => "a table, [nic.tls], with certificate, private_key and authorities",
            "fault" => "a table, [nic.fault]",
            _ => return None,
        })
    }

    fn subtable<'t>(key: &str) -> Option<Subtable<'t>> {
        Some(match key {
            "neighbour" => Subtable::Array(File::complete_table::<NeighbourConfig>),
            "tls" => Subtable::Single(File::complete_table::<TlsConfig>),
            "fault" => Subtable::Single(File::table::<FaultConfig>),
            _ => return None,
        })
    }
}

impl Table for NeighbourConfig {
    const HEADER: &'static str = "[[nic.neighbour]]";

    fn numbers() -> Vec<Number> {
        Vec::new()
    }

    fn form(key: &str) -> Option<&'static str> {
        match key {
            "host" | "n_port_ids" => NicConfig::form(key),
            _ => None,
        }
    }
}

impl Table for TlsConfig {
    const HEADER: &'static str = "[nic.tls]";

    fn numbers() -> Vec<Number> {
        Self::default().numbers().to_vec()
    }

    fn form(key: &str) -> Option<&'static str> {
        Some(match key {
            "certificate" => "the path of a PEM file with the certificate of this host, in quotes",
            "private_key" => "the path of a PEM file with its private key, in quotes",
            "authorities" => "the path of a PEM file with the trusted CA certificates, in quotes",
            _ => return None,
        })
    }
}

impl Table for FaultConfig {
    const HEADER: &'static str = "[nic.fault]";

    fn numbers() -> Vec<Number> {
        Self::default().numbers()
    }

    fn form(_: &str) -> Option<&'static str> {
        None
    }
}

impl Table for ProcessConfig {
    const HEADER: &'static str = "[process]";

    fn numbers() -> Vec<Number> {
        Self::default().numbers()
    }

    fn form(key: &str) -> Option<&'static str> {
        Some(match key {
            "socket" => "an absolute path of at most 107 bytes, in quotes",
            "users" => "a list of users, names in quotes or numbers: [\"alice\", 1001]",
            "groups" => "a list of groups, names in quotes or numbers: [\"users\", 100]",
            "metrics" => "an IP address and a port, in quotes: \"127.0.0.1:9464\"",
            "idle" => "\"spin\" or \"hybrid\"",
            "foreign_memory" => "true or false",
            "quota" => "a table, [process.quota]",
            "application" => "tables, [[process.application]], each with user or group",
            _ => return None,
        })
    }

    fn subtable<'t>(key: &str) -> Option<Subtable<'t>> {
        Some(match key {
            "quota" => Subtable::Single(File::table::<QuotaConfig>),
            "application" => Subtable::Array(File::table::<ApplicationConfig>),
            _ => return None,
        })
    }
}

impl Table for QuotaConfig {
    const HEADER: &'static str = "[process.quota]";

    fn numbers() -> Vec<Number> {
        Self::default().numbers()
    }

    fn form(_: &str) -> Option<&'static str> {
        None
    }
}

impl Table for ApplicationConfig {
    const HEADER: &'static str = "[[process.application]]";

    fn numbers() -> Vec<Number> {
        QuotaConfig::default().numbers()
    }

    fn form(key: &str) -> Option<&'static str> {
        Some(match key {
            "user" => "a user, its name in quotes or its number",
            "group" => "a group, its name in quotes or its number",
            _ => return None,
        })
    }
}
