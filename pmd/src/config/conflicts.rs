//! Checks for conflicting keys, in one table and between tables, which need the text of the file.

use super::admission::UserDatabase;
use super::error::ValueError;
use super::file::{File, TablePath};
use super::process::{Idle, Principal};
use super::{Config, NicConfig, PortKind, Progress, TransportKind};

/// Keys that are valid only with certain values of another key.
struct Requirement {
    keys: &'static [&'static str],
    /// The other key; the check is skipped if its value is invalid.
    other: &'static str,
    /// Returns whether the NIC meets the requirement.
    is_met: fn(&NicConfig) -> bool,
    /// The required value of the other key, and what to do.
    remedy: &'static str,
}

const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        keys: &["tcp_port", "flow_control", "credits_low", "key_file", "tls"],
        other: "transport",
        is_met: |nic| nic.transport == TransportKind::ViTcp,
        remedy: "valid only with transport = \"vi-tcp\": set that, or remove this key",
    },
    Requirement {
        keys: &[
            "port",
            "segment",
            "ring_frames",
            "max_stations",
            "neighbour",
            "e_d_tov_ms",
            "r_a_tov_ms",
            "silent_port_ms",
            "recovery",
            "shortcut",
            "fault",
            "capture",
        ],
        other: "transport",
        is_met: |nic| nic.transport == TransportKind::FcVi,
        remedy: "valid only with transport = \"fc-vi\": remove one of the two keys",
    },
    Requirement {
        // With VI/TCP the port is always the default, `shm`.
        keys: &["segment", "directory", "ring_frames", "max_stations"],
        other: "port",
        is_met: |nic| nic.port == PortKind::Shm,
        remedy: "valid only with port = \"shm\": remove one of the two keys",
    },
    Requirement {
        keys: &["interface"],
        other: "port",
        is_met: |nic| nic.port.is_on_interface(),
        remedy: "valid only with port = \"af_packet\" or \"af_xdp\": set one, or remove this key",
    },
    Requirement {
        keys: &[
            "n_port_ids",
            "port_name",
            "node_name",
            "beacon_ms",
            "discovery_ms",
            "rx_frames",
            "tx_frames",
        ],
        other: "port",
        is_met: |nic| nic.port.is_on_wire(),
        remedy: "valid only with port = \"af_packet\", \"af_xdp\" or \"dpdk\": set one, or remove this key",
    },
    Requirement {
        keys: &["probe_interval_ms"],
        other: "port",
        is_met: |nic| nic.port.is_on_wire() || nic.transport == TransportKind::ViTcp,
        remedy: "valid only with port = \"af_packet\", \"af_xdp\" or \"dpdk\", or transport = \"vi-tcp\": \
                 set one, or remove this key",
    },
    Requirement {
        keys: &["queue", "copy"],
        other: "port",
        is_met: |nic| nic.port == PortKind::AfXdp,
        remedy: "valid only with port = \"af_xdp\": set that, or remove this key",
    },
    Requirement {
        keys: &["queues"],
        other: "port",
        is_met: |nic| matches!(nic.port, PortKind::AfXdp | PortKind::Dpdk),
        remedy: "valid only with port = \"af_xdp\" or \"dpdk\": set one, or remove this key",
    },
    Requirement {
        keys: &["device", "args", "huge_pages", "memory_mb", "mtu_bytes"],
        other: "port",
        is_met: |nic| nic.port == PortKind::Dpdk,
        remedy: "valid only with port = \"dpdk\": set that, or remove this key",
    },
    Requirement {
        keys: &["port_name", "node_name", "beacon_ms", "discovery_ms"],
        other: "n_port_ids",
        is_met: |nic| nic.n_port_ids.is_empty(),
        remedy: "valid only with discovery, which n_port_ids disables: remove one of the two keys",
    },
    Requirement {
        keys: &["core"],
        other: "progress",
        is_met: |nic| nic.progress == Progress::Pinned,
        remedy: "valid only with progress = \"pinned\": set that, or remove this key",
    },
    Requirement {
        keys: &["takeover_us", "coalesce_frames"],
        other: "progress",
        is_met: |nic| nic.progress == Progress::Inline,
        remedy: "valid only with progress = \"inline\": remove one of the two keys",
    },
    Requirement {
        keys: &[
            "recovery_ack_messages",
            "recovery_ack_bytes",
            "recovery_ack_us",
            "recovery_timeout_us",
            "recovery_tries",
            "recovery_min_window_frames",
            "recovery_window_frames",
            "recovery_islands",
        ],
        other: "recovery",
        is_met: NicConfig::recovery,
        remedy: "valid only with recovery = true: set that, or remove this key",
    },
];

/// Checks a configuration whose keys and types are valid.
pub(super) fn check(file: &mut File<'_>, config: &Config) {
    for (index, nic) in config.nics.iter().enumerate() {
        let at = TablePath::nic(index, &nic.name);
        check_values(file, &at, nic);
        for requirement in REQUIREMENTS {
            if (requirement.is_met)(nic) || file.is_invalid(&at, requirement.other) {
                continue;
            }
            for key in requirement.keys {
                if let Some(value) = file.value(&at, key) {
                    let text = format!("{key} = {value}: {}", requirement.remedy);
                    file.add_error(&at, &ValueError::new(key, text));
                }
            }
        }
        check_against_earlier_nics(file, &at, config, index);
        if nic.port == PortKind::Dpdk {
            check_dpdk_device(file, &at, config, index);
            check_eal_options(file, &at, config, index);
        }
    }
    check_aliases(file, config);
    check_process(file, config);
}

/// Checks the values of one NIC.
fn check_values(file: &mut File<'_>, at: &TablePath, nic: &NicConfig) {
    for error in nic.errors() {
        let other = match error.key {
            "neighbour" => "n_port_ids",
            "memory_mb" if nic.memory_mb == 0 => "huge_pages",
            key => key,
        };
        // The default that replaces an invalid value is not checked.
        if !file.is_invalid(at, other) {
            file.add_error(at, &error);
        }
    }
    for index in 0..nic.neighbour.len() {
        for error in nic.neighbour_errors(index) {
            file.add_error(&at.element("neighbour", index), &error);
        }
    }
    for error in nic.tls.iter().flat_map(|tls| tls.errors()) {
        file.add_error(&at.subtable("tls"), &error);
    }
    for error in nic.fault.iter().flat_map(|fault| fault.errors()) {
        file.add_error(&at.subtable("fault"), &error);
    }
}

/// Checks that a NIC does not use a resource of an earlier one.
fn check_against_earlier_nics(file: &mut File<'_>, at: &TablePath, config: &Config, index: usize) {
    let Some(nic) = config.nics.get(index) else {
        return;
    };
    for earlier in config.nics.iter().take(index) {
        let mut conflict = |key, text| file.add_error(at, &ValueError::new(key, text));
        let name = &earlier.name;
        if nic.name == *name {
            conflict(
                "name",
                format!("name = {name:?}: already used by another NIC: choose another name"),
            );
        }
        let is_pinned = |nic: &NicConfig| nic.progress == Progress::Pinned;
        if let Some(core) = nic.core
            && earlier.core == nic.core
            && config.process.is_none()
            && is_pinned(nic)
            && is_pinned(earlier)
        {
            let text = format!(
                "core = {core}: already used by nic {name:?}: choose another core; \
                 NICs may share one only with [process]"
            );
            conflict("core", text);
        }
        if nic.port == PortKind::AfXdp
            && earlier.port == nic.port
            && earlier.interface == nic.interface
        {
            let text = format!(
                "interface = {:?}: already used by nic {name:?}, and port = \"af_xdp\" cannot share an interface: \
                 choose another one",
                nic.interface
            );
            conflict("interface", text);
        }
        if nic.capture.is_some() && nic.capture == earlier.capture {
            let text = format!("capture: nic {name:?} writes to the same file: choose another one");
            conflict("capture", text);
        }
        if nic.port_name.is_some() && nic.port_name == earlier.port_name {
            let text = format!("port_name: already used by nic {name:?}: choose another one");
            conflict("port_name", text);
        }
    }
}

/// Checks that a DPDK device is not used by more NICs than it supports.
fn check_dpdk_device(file: &mut File<'_>, at: &TablePath, config: &Config, index: usize) {
    let Some(nic) = config.nics.get(index) else {
        return;
    };
    let Some(name) = nic.wire_name() else {
        return;
    };
    let uses_it =
        |other: &&NicConfig| other.port == PortKind::Dpdk && other.wire_name() == Some(name);
    let mut users = config.nics.iter().take(index).filter(uses_it);
    let Some(last) = users.nth(nic.device_users() - 1) else {
        return;
    };
    let (device, last) = (&nic.device, &last.name);
    let text = match nic.device_users() {
        1 => format!("device = {device:?}: already used by nic {last:?}: choose another one"),
        _ => format!(
            "device = {device:?}: both ends are already used, the second by nic {last:?}: choose another one"
        ),
    };
    file.add_error(at, &ValueError::new("device", text));
}

/// Checks that all NICs have the same EAL options.
fn check_eal_options(file: &mut File<'_>, at: &TablePath, config: &Config, index: usize) {
    let mut earlier = config.nics.iter().take(index).enumerate();
    let first = earlier.find(|(_, earlier)| earlier.port == PortKind::Dpdk);
    let (Some(nic), Some((first_index, first))) = (config.nics.get(index), first) else {
        return;
    };
    let first_at = TablePath::nic(first_index, &first.name);
    let options = |nic: &NicConfig| {
        [
            ("args", format!("{:?}", nic.args)),
            ("huge_pages", nic.huge_pages.to_string()),
            ("memory_mb", nic.memory_mb.to_string()),
        ]
    };
    for ((key, ours), (_, theirs)) in options(nic).into_iter().zip(options(first)) {
        if ours == theirs || file.is_invalid(at, key) || file.is_invalid(&first_at, key) {
            continue;
        }
        let text = format!(
            "{key} = {ours}: nic {:?} has {theirs}, and DPDK is initialized once per process: \
             set the same value for both",
            first.name
        );
        file.add_error(at, &ValueError::new(key, text));
    }
}

fn check_aliases(file: &mut File<'_>, config: &Config) {
    let at = TablePath::default().subtable("alias");
    for (alias, name) in &config.alias {
        let text = if config.nics.iter().any(|nic| nic.name == *alias) {
            format!("{alias} = {name:?}: a NIC already has this name: choose another alias")
        } else if config.alias.contains_key(name) || config.nic(name).is_none() {
            let names: Vec<&str> = config.nics.iter().map(|nic| nic.name.as_str()).collect();
            format!(
                "{alias} = {name:?}: must be the name of a NIC: {}",
                names.join(", ")
            )
        } else {
            continue;
        };
        file.add_error_at(&at, alias, &text);
    }
}

fn check_process(file: &mut File<'_>, config: &Config) {
    let Some(process) = &config.process else {
        return;
    };
    let at = TablePath::default().subtable("process");
    for error in process.errors() {
        file.add_error(&at, &error);
    }
    for error in process.quota.errors() {
        file.add_error(&at.subtable("quota"), &error);
    }
    for index in 0..process.application.len() {
        let at = at.element("application", index);
        for error in process.application_errors(index) {
            if !file.is_invalid(&at, "user") && !file.is_invalid(&at, "group") {
                file.add_error(&at, &error);
            }
        }
    }
    if let Some(value) = file.value(&at, "spin_us")
        && process.idle == Idle::Spin
        && !file.is_invalid(&at, "idle")
    {
        let text = format!(
            "spin_us = {value}: valid only with idle = \"hybrid\": set that, or remove this key"
        );
        file.add_error(&at, &ValueError::new("spin_us", text));
    }
    for (index, nic) in config.nics.iter().enumerate() {
        let at = TablePath::nic(index, &nic.name);
        if nic.progress == Progress::Inline {
            let text = "progress = \"inline\": not supported with [process], which polls the NIC: \
                        remove this key, or [process]";
            file.add_error(&at, &ValueError::new("progress", text));
        }
        let frames_only = [
            ("fault", nic.fault.is_some()),
            ("capture", nic.capture.is_some()),
        ];
        for (key, _) in frames_only.into_iter().filter(|(_, is_set)| *is_set) {
            if file.value(&at, "shortcut").is_none() && !file.is_invalid(&at, "shortcut") {
                let text = format!(
                    "{key}: does not apply to messages that a NIC of [process] copies from memory to memory: \
                     set shortcut = false, or shortcut = true if frames to other hosts and programs are enough"
                );
                file.add_error(&at, &ValueError::new(key, text));
            }
        }
    }
}

/// Checks that this host knows the users and groups, and that there is a NIC to serve.
pub(super) fn check_to_serve(file: &mut File<'_>, config: &Config, database: &dyn UserDatabase) {
    let Some(process) = &config.process else {
        return;
    };
    let at = TablePath::default().subtable("process");
    // Only here: an application that attaches needs no more than the socket.
    if config.nics.is_empty() {
        let text = "no NIC to serve: add [[nic]]";
        file.add_error(&at, &ValueError::new("nic", text));
    }
    let mut check = |at: &TablePath, key: &'static str, principal: &Principal, is_user: bool| {
        let Principal::Name(name) = principal else {
            return;
        };
        let (kind, command, found) = if is_user {
            ("user", "passwd", database.uid(name))
        } else {
            ("group", "group", database.gid(name))
        };
        let problem = match found {
            Ok(Some(_)) => return,
            Ok(None) => format!("no such {kind} on this host: `getent {command}` lists them"),
            Err(error) => format!("cannot be looked up ({error}): use its number"),
        };
        file.add_error(
            at,
            &ValueError::new(key, format!("{key}: {name:?}: {problem}")),
        );
    };
    for user in process.users.iter().flatten() {
        check(&at, "users", user, true);
    }
    for group in &process.groups {
        check(&at, "groups", group, false);
    }
    for (index, entry) in process.application.iter().enumerate() {
        let at = at.element("application", index);
        if let Some(user) = &entry.user {
            check(&at, "user", user, true);
        }
        if let Some(group) = &entry.group {
            check(&at, "group", group, false);
        }
    }
}
