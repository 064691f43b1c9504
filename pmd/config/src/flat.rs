//! Refusal of the keys of version 0.1, where all keys of a NIC were in `[[nic]]`, with the lines to write instead.

use toml::de::DeTable;

use crate::file::{Explanation, UnknownKey};
use crate::keys::{self, KnownTable};
use crate::network::Network;
use crate::nic::NicConfig;
use crate::table::{Choice as _, Form, Key, Table as _, headers};

/// A key of the present format that was in `[[nic]]`.
struct Moved {
    header: &'static str,
    key: &'static Key,
}

/// Returns the keys of the tables of a NIC that version 0.1 had under this name.
fn present_keys(old: &str) -> Vec<Moved> {
    let is_of_nic = |table: &KnownTable| {
        let header = table.header.trim_start_matches('[');
        header.starts_with("nic.") && !IN_TABLES.contains(&table.header)
    };
    let of_table = |table: KnownTable| {
        let keys = table.keys.iter().filter(|key| key.was == old);
        let moved = keys.map(move |key| Moved {
            header: table.header,
            key,
        });
        moved.collect::<Vec<_>>()
    };
    let tables = keys::tables().into_iter().filter(is_of_nic);
    tables.flat_map(of_table).collect()
}

/// Tables of a NIC whose keys were in a table in version 0.1, too.
const IN_TABLES: [&str; 3] = [
    "[nic.vi_tcp.tls]",
    "[[nic.static.neighbour]]",
    "[nic.fc_vi.fault]",
];

/// The keys of version 0.1 that have moved, except for those that chose a table.
const KEYS: [&str; 64] = [
    "args",
    "beacon_ms",
    "capture",
    "coalesce_frames",
    "copy",
    "core",
    "credits_low",
    "device",
    "directory",
    "discovery_ms",
    "e_d_tov_ms",
    "fault",
    "flow_control",
    "huge_pages",
    "interface",
    "key_file",
    "max_cq",
    "max_cq_entries",
    "max_descriptors_per_queue",
    "max_discriminator_bytes",
    "max_in_flight",
    "max_incoming",
    "max_log_lines_per_second",
    "max_notifies_per_queue",
    "max_notify_threads",
    "max_ptags",
    "max_rdma_reads",
    "max_region_bytes",
    "max_regions",
    "max_registered_bytes",
    "max_segments_per_descriptor",
    "max_stations",
    "max_transfer_bytes",
    "max_vi",
    "memory_mb",
    "mtu_bytes",
    "n_port_ids",
    "neighbour",
    "node_name",
    "port_name",
    "probe_interval_ms",
    "queue",
    "queues",
    "r_a_tov_ms",
    "rdma_miss_burst",
    "rdma_misses_per_connection",
    "rdma_misses_per_hour",
    "recovery_ack_bytes",
    "recovery_ack_messages",
    "recovery_ack_us",
    "recovery_islands",
    "recovery_min_window_frames",
    "recovery_timeout_us",
    "recovery_tries",
    "recovery_window_frames",
    "ring_frames",
    "rx_frames",
    "segment",
    "shortcut",
    "silent_port_ms",
    "takeover_us",
    "tcp_port",
    "tls",
    "tx_frames",
];

/// Explains an unknown key: in `[[nic]]` it may be one of version 0.1.
pub(crate) fn explain(unknown: &UnknownKey<'_, '_>) -> Explanation {
    let moved = match unknown.header {
        NicConfig::HEADER => moved(unknown.name, unknown.value, unknown.table),
        _ => None,
    };
    moved.unwrap_or_else(|| Explanation {
        text: keys::unknown(unknown.header, unknown.keys, unknown.name),
        may_name_choice: true,
    })
}

/// Explains a key of version 0.1 in `[[nic]]` by the line to write instead, which may have the table of the NIC's network;
/// `None` if that version did not have the key.
fn moved(old: &str, value: &str, table: &DeTable<'_>) -> Option<Explanation> {
    let word = |key: &str| table.get(key).and_then(|value| value.get_ref().as_str());
    let (instead, names_network) = match (old, word(old)) {
        ("transport", Some("fc-vi")) => ("remove it".to_owned(), false),
        ("transport", Some("vi-tcp")) => ("write the table [nic.vi_tcp]".to_owned(), true),
        ("transport" | "port", name) => {
            let known = Network::TABLES.iter().find(|key| Some(key.name) == name);
            let table = match known.and_then(Key::header) {
                Some(header) => format!("the table {header}"),
                None => format!("one of the tables {}", headers(Network::TABLES)),
            };
            (format!("write {table}"), true)
        }
        _ => moved_key(old, value, word("transport"), word("port"))?,
    };
    let text = format!("{old} = {value}: as in version 0.1: {instead}");
    Some(Explanation {
        text,
        may_name_choice: names_network,
    })
}

/// Returns the line to write for a key, and whether its table is that of a network.
fn moved_key(
    old: &str,
    value: &str,
    transport: Option<&str>,
    port: Option<&str>,
) -> Option<(String, bool)> {
    if !KEYS.contains(&old) {
        return None;
    }
    let mut found = present_keys(old);
    // Several networks have some keys: that of this NIC is meant.
    let network = match transport {
        Some("vi-tcp") => "vi_tcp",
        _ => port.unwrap_or("shm"),
    };
    let own = format!("[nic.{network}]");
    if found.iter().any(|moved| moved.header == own) {
        found.retain(|moved| moved.header == own);
    }
    let first = found.first()?;
    let is_network = |header: &str| {
        let mut networks = Network::TABLES.iter().filter_map(Key::header);
        networks.any(|network| network == header)
    };
    let names_network = is_network(first.header);
    if let Some(header) = first.key.header() {
        return Some((format!("write the table {header}"), names_network));
    }
    let headers: Vec<&str> = found.iter().map(|moved| moved.header).collect();
    let line = format!(
        "write {} = {value} in {}",
        first.key.name,
        headers.join(" or ")
    );
    Some((line, names_network))
}

/// Returns a table of all keys of version 0.1 that have moved: the old key, and the present one with its table.
pub(crate) fn moved_keys() -> Vec<(String, String)> {
    let mut rows = vec![
        (
            "transport = \"vi-tcp\"".to_owned(),
            "[nic.vi_tcp]".to_owned(),
        ),
        ("transport = \"fc-vi\"".to_owned(), String::new()),
    ];
    for port in ["shm", "af_packet", "af_xdp", "dpdk"] {
        rows.push((format!("port = \"{port}\""), format!("[nic.{port}]")));
    }
    for mode in crate::progress::Progress::TABLES {
        let header = mode.header().unwrap_or_default();
        rows.push((format!("progress = \"{}\"", mode.name), header.to_owned()));
    }
    for old in KEYS {
        let found = present_keys(old);
        let write = |moved: &Moved| match (moved.key.header(), &moved.key.form) {
            (Some(header), _) => header.to_owned(),
            (None, Form::Choice(_) | Form::OptionalChoice(_)) => String::new(),
            (None, _) => format!("{} {}", moved.header, moved.key.name),
        };
        let present: Vec<String> = found.iter().map(write).collect();
        if !present.is_empty() {
            rows.push((old.to_owned(), present.join(", ")));
        }
    }
    rows
}
