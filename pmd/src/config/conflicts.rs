//! Keys that contradict each other, in one table and between tables: what only the text of a file can show.

use super::admission::Directory;
use super::file::{File, Place};
use super::mistake::Mistake;
use super::process::{Idle, Who};
use super::{Config, NicConfig, PortKind, Progress, TransportKind};

/// A key that means nothing unless another one says so.
struct Only {
    keys: &'static [&'static str],
    /// The other key; not looked at if it has a mistake itself.
    other: &'static str,
    /// Does the NIC say so?
    holds: fn(&NicConfig) -> bool,
    /// What the other key must say, and the way out.
    remedy: &'static str,
}

const ONLY: &[Only] = &[
    Only {
        keys: &["tcp_port", "flow_control", "credits_low", "key_file", "tls"],
        other: "transport",
        holds: |nic| nic.transport == TransportKind::ViTcp,
        remedy: "only for transport = \"vi-tcp\": set that, or remove this",
    },
    Only {
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
        holds: |nic| nic.transport == TransportKind::FcVi,
        remedy: "only for transport = \"fc-vi\": remove one of the two",
    },
    Only {
        // With VI/TCP the port is what it is by default.
        keys: &["segment", "directory", "ring_frames", "max_stations"],
        other: "port",
        holds: |nic| nic.port == PortKind::Shm,
        remedy: "only for port = \"shm\": remove one of the two",
    },
    Only {
        keys: &["interface"],
        other: "port",
        holds: |nic| nic.port.is_on_interface(),
        remedy: "only for port = \"af_packet\" or \"af_xdp\": set one, or remove this",
    },
    Only {
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
        holds: |nic| nic.port.is_on_wire(),
        remedy: "only for port = \"af_packet\", \"af_xdp\" or \"dpdk\": set one, or remove this",
    },
    Only {
        keys: &["probe_interval_ms"],
        other: "port",
        holds: |nic| nic.port.is_on_wire() || nic.transport == TransportKind::ViTcp,
        remedy: "only for port = \"af_packet\", \"af_xdp\" or \"dpdk\", or transport = \"vi-tcp\": set one, or remove this",
    },
    Only {
        keys: &["queue", "copy"],
        other: "port",
        holds: |nic| nic.port == PortKind::AfXdp,
        remedy: "only for port = \"af_xdp\": set that, or remove this",
    },
    Only {
        keys: &["queues"],
        other: "port",
        holds: |nic| matches!(nic.port, PortKind::AfXdp | PortKind::Dpdk),
        remedy: "only for port = \"af_xdp\" or \"dpdk\": set one, or remove this",
    },
    Only {
        keys: &["device", "args", "huge_pages", "memory_mb", "mtu_bytes"],
        other: "port",
        holds: |nic| nic.port == PortKind::Dpdk,
        remedy: "only for port = \"dpdk\": set that, or remove this",
    },
    Only {
        keys: &["port_name", "node_name", "beacon_ms", "discovery_ms"],
        other: "n_port_ids",
        holds: |nic| nic.n_port_ids.is_empty(),
        remedy: "only for discovery, which n_port_ids switches off: remove one of the two",
    },
    Only {
        keys: &["core"],
        other: "progress",
        holds: |nic| nic.progress == Progress::Pinned,
        remedy: "only for progress = \"pinned\": set that, or remove this",
    },
    Only {
        keys: &["takeover_us", "coalesce_frames"],
        other: "progress",
        holds: |nic| nic.progress == Progress::Inline,
        remedy: "only for progress = \"inline\": remove one of the two",
    },
    Only {
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
        holds: NicConfig::recovery,
        remedy: "only with message recovery: set recovery = true, or remove this",
    },
];

/// Finds everything that is wrong with a configuration whose keys and types are right.
pub(super) fn find(file: &mut File<'_>, config: &Config) {
    for (index, nic) in config.nics.iter().enumerate() {
        let place = Place::nic(index, &nic.name);
        nic_values(file, &place, nic);
        for only in ONLY {
            if (only.holds)(nic) || file.is_unsound(&place, only.other) {
                continue;
            }
            for key in only.keys {
                if let Some(value) = file.value(&place, key) {
                    let text = format!("{key} = {value}: {}", only.remedy);
                    file.mistake(&place, &Mistake::new(key, text));
                }
            }
        }
        between_nics(file, &place, config, index);
        if nic.port == PortKind::Dpdk {
            device(file, &place, config, index);
            eal(file, &place, config, index);
        }
    }
    aliases(file, config);
    process(file, config);
}

fn nic_values(file: &mut File<'_>, place: &Place, nic: &NicConfig) {
    for mistake in nic.mistakes() {
        let other = match mistake.key {
            "neighbour" => "n_port_ids",
            "memory_mb" if nic.memory_mb == 0 => "huge_pages",
            key => key,
        };
        // A default in the place of a key that is wrong says nothing.
        if !file.is_unsound(place, other) {
            file.mistake(place, &mistake);
        }
    }
    for index in 0..nic.neighbour.len() {
        for mistake in nic.neighbour_mistakes(index) {
            file.mistake(&place.element("neighbour", index), &mistake);
        }
    }
    for mistake in nic.tls.iter().flat_map(|tls| tls.mistakes()) {
        file.mistake(&place.inner("tls"), &mistake);
    }
    for mistake in nic.fault.iter().flat_map(|fault| fault.mistakes()) {
        file.mistake(&place.inner("fault"), &mistake);
    }
}

/// What this NIC takes away from an earlier one.
fn between_nics(file: &mut File<'_>, place: &Place, config: &Config, index: usize) {
    let Some(nic) = config.nics.get(index) else {
        return;
    };
    for earlier in config.nics.iter().take(index) {
        let mut clash = |key, text| file.mistake(place, &Mistake::new(key, text));
        let name = &earlier.name;
        if nic.name == *name {
            clash(
                "name",
                format!("name = {name:?}: is there twice: choose another name"),
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
                "core = {core}: nic {name:?} polls there: choose another core; only a file with [process] lets NICs share one"
            );
            clash("core", text);
        }
        if nic.port == PortKind::AfXdp
            && earlier.port == nic.port
            && earlier.interface == nic.interface
        {
            let text = format!(
                "interface = {:?}: nic {name:?} has it already, and port = \"af_xdp\" shares none: choose another one",
                nic.interface
            );
            clash("interface", text);
        }
        if nic.capture.is_some() && nic.capture == earlier.capture {
            let text = format!("capture: nic {name:?} writes to the same file: choose another one");
            clash("capture", text);
        }
        if nic.port_name.is_some() && nic.port_name == earlier.port_name {
            let text =
                format!("port_name: nic {name:?} has the same one: every port needs its own");
            clash("port_name", text);
        }
    }
}

/// A device of DPDK that as many earlier NICs have as can.
fn device(file: &mut File<'_>, place: &Place, config: &Config, index: usize) {
    let Some(nic) = config.nics.get(index) else {
        return;
    };
    let Some(name) = nic.wire_name() else {
        return;
    };
    let has_it =
        |other: &&NicConfig| other.port == PortKind::Dpdk && other.wire_name() == Some(name);
    let mut users = config.nics.iter().take(index).filter(has_it);
    let Some(last) = users.nth(nic.device_users() - 1) else {
        return;
    };
    let said = match nic.device_users() {
        1 => "has it already",
        _ => "has the last of its two ends",
    };
    let text = format!(
        "device = {:?}: nic {:?} {said}: choose another one",
        nic.device, last.name
    );
    file.mistake(place, &Mistake::new("device", text));
}

/// What this NIC asks of EAL, and an earlier one otherwise.
fn eal(file: &mut File<'_>, place: &Place, config: &Config, index: usize) {
    let mut earlier = config.nics.iter().take(index).enumerate();
    let first = earlier.find(|(_, earlier)| earlier.port == PortKind::Dpdk);
    let (Some(nic), Some((first_index, first))) = (config.nics.get(index), first) else {
        return;
    };
    let first_place = Place::nic(first_index, &first.name);
    let asked = |nic: &NicConfig| {
        [
            ("args", format!("{:?}", nic.args)),
            ("huge_pages", nic.huge_pages.to_string()),
            ("memory_mb", nic.memory_mb.to_string()),
        ]
    };
    for ((key, ours), (_, theirs)) in asked(nic).into_iter().zip(asked(first)) {
        if ours == theirs || file.is_unsound(place, key) || file.is_unsound(&first_place, key) {
            continue;
        }
        let text = format!(
            "{key} = {ours}: nic {:?} has {theirs}, and DPDK starts once in a process: give both the same",
            first.name
        );
        file.mistake(place, &Mistake::new(key, text));
    }
}

fn aliases(file: &mut File<'_>, config: &Config) {
    let place = Place::default().inner("alias");
    for (alias, name) in &config.alias {
        let text = if config.nics.iter().any(|nic| nic.name == *alias) {
            format!("{alias} = {name:?}: a NIC has this name itself: choose another one")
        } else if config.alias.contains_key(name) || config.nic(name).is_none() {
            let names: Vec<&str> = config.nics.iter().map(|nic| nic.name.as_str()).collect();
            format!(
                "{alias} = {name:?}: must be the name of a NIC: {}",
                names.join(", ")
            )
        } else {
            continue;
        };
        file.mistake_at(&place, alias, &text);
    }
}

fn process(file: &mut File<'_>, config: &Config) {
    let Some(process) = &config.process else {
        return;
    };
    let place = Place::default().inner("process");
    for mistake in process.mistakes() {
        file.mistake(&place, &mistake);
    }
    for mistake in process.quota.mistakes() {
        file.mistake(&place.inner("quota"), &mistake);
    }
    for index in 0..process.application.len() {
        let place = place.element("application", index);
        for mistake in process.application_mistakes(index) {
            if !file.is_unsound(&place, "user") && !file.is_unsound(&place, "group") {
                file.mistake(&place, &mistake);
            }
        }
    }
    if let Some(value) = file.value(&place, "spin_us")
        && process.idle == Idle::Spin
        && !file.is_unsound(&place, "idle")
    {
        let text =
            format!("spin_us = {value}: only for idle = \"hybrid\": set that, or remove this");
        file.mistake(&place, &Mistake::new("spin_us", text));
    }
    for (index, nic) in config.nics.iter().enumerate() {
        let place = Place::nic(index, &nic.name);
        if nic.progress == Progress::Inline {
            let text = "progress = \"inline\": a NIC of [process] is polled by it: remove this, or [process]";
            file.mistake(&place, &Mistake::new("progress", text));
        }
        let watched = [
            ("fault", nic.fault.is_some()),
            ("capture", nic.capture.is_some()),
        ];
        for (key, _) in watched.into_iter().filter(|(_, is_set)| *is_set) {
            if file.value(&place, "shortcut").is_none() && !file.is_unsound(&place, "shortcut") {
                let text = format!(
                    "{key}: not for messages that a NIC of [process] moves from memory to memory: \
                     set shortcut = false, or true if frames to others are enough"
                );
                file.mistake(&place, &Mistake::new(key, text));
            }
        }
    }
}

/// Finds the users and groups that this host does not know.
pub(super) fn find_strangers(file: &mut File<'_>, config: &Config, directory: &dyn Directory) {
    let Some(process) = &config.process else {
        return;
    };
    let place = Place::default().inner("process");
    // A program that attaches needs to know no more than where.
    if config.nics.is_empty() {
        let text = "needs a NIC to serve: add [[nic]]";
        file.mistake(&place, &Mistake::new("nic", text));
    }
    let mut look = |place: &Place, key: &'static str, who: &Who, is_user: bool| {
        let Who::Name(name) = who else {
            return;
        };
        let (kind, command, found) = if is_user {
            ("user", "passwd", directory.uid(name))
        } else {
            ("group", "group", directory.gid(name))
        };
        let problem = match found {
            Ok(Some(_)) => return,
            Ok(None) => format!("no such {kind} on this host: `getent {command}` lists them"),
            Err(error) => format!("cannot be looked up ({error}): give its number"),
        };
        file.mistake(
            place,
            &Mistake::new(key, format!("{key}: {name:?}: {problem}")),
        );
    };
    for who in process.users.iter().flatten() {
        look(&place, "users", who, true);
    }
    for who in &process.groups {
        look(&place, "groups", who, false);
    }
    for (index, entry) in process.application.iter().enumerate() {
        let place = place.element("application", index);
        if let Some(who) = &entry.user {
            look(&place, "user", who, true);
        }
        if let Some(who) = &entry.group {
            look(&place, "group", who, false);
        }
    }
}
