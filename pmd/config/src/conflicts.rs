//! Checks for values that contradict each other, in one table and between tables, which need the text of the file.

use std::io;

use crate::Config;
use crate::error::ValueError;
use crate::file::{File, TablePath};
use crate::network::{Dpdk, Network};
use crate::nic::NicConfig;
use crate::process::{Idle, Principal};
use crate::table::Table as _;

/// Maps names of users and groups to IDs.
pub trait UserDatabase {
    /// Returns the user of this process.
    fn own_uid(&self) -> u32;
    /// Looks up a user by name; `None` if there is no such user.
    ///
    /// # Errors
    /// The database cannot be read.
    fn uid(&self, name: &str) -> io::Result<Option<u32>>;
    /// Looks up a group by name; `None` if there is no such group.
    ///
    /// # Errors
    /// The database cannot be read.
    fn gid(&self, name: &str) -> io::Result<Option<u32>>;
}

/// Some networks: whether one is of them, and which they are.
type Networks = (fn(&Network) -> bool, &'static str);

const WITH_FRAMES: Networks = (has_frames, "NICs with FC-VI frames");
const ON_WIRE: Networks = (Network::is_on_wire, "NICs on a wire");

/// Tables beside the network of a NIC, and the networks that have them.
const TABLES: [(&str, Networks); 4] = [
    ("fc_vi", WITH_FRAMES),
    ("recovery", WITH_FRAMES),
    ("discovery", ON_WIRE),
    ("static", WITH_FRAMES),
];

fn has_frames(network: &Network) -> bool {
    network.vi_tcp().is_none()
}

/// Checks a configuration whose keys and types are valid.
pub(crate) fn check(file: &mut File<'_>, config: &Config) {
    for (index, nic) in config.nic.iter().enumerate() {
        let at = TablePath::nic(index, &nic.name);
        check_values(file, &at, nic);
        for (table, (is_of, networks)) in TABLES {
            if is_of(&nic.network) || file.is_invalid(&at, "network") {
                continue;
            }
            if file.value(&at, table).is_some() {
                let text = format!(
                    "{table}: valid only for {networks}, not with [nic.{}]: remove one of the two tables",
                    nic.network.name()
                );
                file.add_error_at(&at, table, &text);
            }
        }
        check_against_earlier_nics(file, &at, config, index);
        if let Network::Dpdk(dpdk) = &nic.network {
            check_dpdk_device(file, &at, (config, index), dpdk);
            check_eal_options(file, &at, (config, index), dpdk);
        }
    }
    check_aliases(file, config);
    check_process(file, config);
}

/// Checks the values of one NIC.
fn check_values(file: &mut File<'_>, at: &TablePath, nic: &NicConfig) {
    let network = at.subtable(nic.network.name());
    for error in nic.errors() {
        // The default that replaces an invalid value is not checked.
        let is_of_invalid = file.is_reported(at, &error)
            || (error.key == "host" && file.is_invalid(at, "network"))
            || (error.key == "memory_mb" && file.is_invalid(&network, "huge_pages"));
        if !is_of_invalid {
            file.add_error(at, &error);
        }
    }
}

/// Checks that a NIC does not use a resource of an earlier one.
fn check_against_earlier_nics(file: &mut File<'_>, at: &TablePath, config: &Config, index: usize) {
    let Some(nic) = config.nic.get(index) else {
        return;
    };
    for earlier in config.nic.iter().take(index) {
        let mut conflict = |tables: &[&str], key, text| {
            let at = tables
                .iter()
                .fold(at.clone(), |at, table| at.subtable(table));
            file.add_error(&at, &ValueError::new(key, text));
        };
        let name = &earlier.name;
        if nic.name == *name {
            conflict(
                &[],
                "name",
                format!("name = {name:?}: already used by another NIC: choose another name"),
            );
        }
        if let Some(core) = nic.progress.core()
            && earlier.progress.core() == Some(core)
            && config.process.is_none()
        {
            let text = format!(
                "core = {core}: already used by nic {name:?}: choose another core; \
                 NICs may share one only with [process]"
            );
            conflict(&["progress", "pinned"], "core", text);
        }
        if let (Network::AfXdp(own), Network::AfXdp(other)) = (&nic.network, &earlier.network)
            && own.interface == other.interface
        {
            let text = format!(
                "interface = {:?}: already used by nic {name:?}, and [nic.af_xdp] cannot share an interface: \
                 choose another one",
                own.interface
            );
            conflict(&["af_xdp"], "interface", text);
        }
        let capture = |nic: &NicConfig| nic.fc_vi.capture.clone();
        if capture(nic).is_some() && capture(nic) == capture(earlier) {
            let text = format!("capture: nic {name:?} writes to the same file: choose another one");
            conflict(&["fc_vi"], "capture", text);
        }
        let port_name = |nic: &NicConfig| nic.addressing.discovery().port_name;
        if port_name(nic).is_some() && port_name(nic) == port_name(earlier) {
            let text = format!("port_name: already used by nic {name:?}: choose another one");
            conflict(&["discovery"], "port_name", text);
        }
    }
}

/// Checks that a DPDK device is not used by more NICs than it supports.
fn check_dpdk_device(
    file: &mut File<'_>,
    at: &TablePath,
    (config, index): (&Config, usize),
    dpdk: &Dpdk,
) {
    let name_of = |nic: &NicConfig| match &nic.network {
        Network::Dpdk(_) => nic.network.wire_name().map(str::to_owned),
        _ => None,
    };
    let Some(name) = config.nic.get(index).and_then(name_of) else {
        return;
    };
    let uses_it = |other: &&NicConfig| name_of(other).as_ref() == Some(&name);
    let mut users = config.nic.iter().take(index).filter(uses_it);
    let Some(last) = users.nth(dpdk.device_users() - 1) else {
        return;
    };
    let (device, last) = (&dpdk.device, &last.name);
    let text = match dpdk.device_users() {
        1 => format!("device = {device:?}: already used by nic {last:?}: choose another one"),
        _ => format!(
            "device = {device:?}: both ends are already used, the second by nic {last:?}: choose another one"
        ),
    };
    file.add_error(&at.subtable("dpdk"), &ValueError::new("device", text));
}

/// Checks that all NICs have the same EAL options.
fn check_eal_options(
    file: &mut File<'_>,
    at: &TablePath,
    (config, index): (&Config, usize),
    dpdk: &Dpdk,
) {
    let dpdk_of = |nic: &'_ NicConfig| match &nic.network {
        Network::Dpdk(dpdk) => Some(dpdk.clone()),
        _ => None,
    };
    let mut earlier = config.nic.iter().take(index).enumerate();
    let first = earlier.find_map(|(index, nic)| Some((index, &nic.name, dpdk_of(nic)?)));
    let Some((first_index, first_name, first)) = first else {
        return;
    };
    let at = at.subtable("dpdk");
    let first_at = TablePath::nic(first_index, first_name).subtable("dpdk");
    let options = |dpdk: &Dpdk| {
        [
            ("args", format!("{:?}", dpdk.args)),
            ("huge_pages", dpdk.huge_pages.to_string()),
            ("memory_mb", dpdk.memory_mb.to_string()),
        ]
    };
    for ((key, ours), (_, theirs)) in options(dpdk).into_iter().zip(options(&first)) {
        if ours == theirs || file.is_invalid(&at, key) || file.is_invalid(&first_at, key) {
            continue;
        }
        let text = format!(
            "{key} = {ours}: nic {first_name:?} has {theirs}, and DPDK is initialized once per process: \
             set the same value for both"
        );
        file.add_error(&at, &ValueError::new(key, text));
    }
}

fn check_aliases(file: &mut File<'_>, config: &Config) {
    let at = TablePath::default().subtable("alias");
    for (alias, name) in &config.alias {
        let text = if config.nic.iter().any(|nic| nic.name == *alias) {
            format!("{alias} = {name:?}: a NIC already has this name: choose another alias")
        } else if config.alias.contains_key(name) || config.nic(name).is_none() {
            let names: Vec<&str> = config.nic.iter().map(|nic| nic.name.as_str()).collect();
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
    for error in process.quota.range_errors() {
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
    for (index, nic) in config.nic.iter().enumerate() {
        let at = TablePath::nic(index, &nic.name);
        if !nic.progress.is_pinned() && !file.is_invalid(&at, "progress") {
            let text = "inline: not supported with [process], which polls the NIC: \
                        remove this table, or [process]";
            file.add_error(&at.subtable("progress"), &ValueError::new("inline", text));
        }
        let at = at.subtable("fc_vi");
        let frames_only = [
            ("fault", nic.fc_vi.fault.is_some()),
            ("capture", nic.fc_vi.capture.is_some()),
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
pub(crate) fn check_to_serve(file: &mut File<'_>, config: &Config, database: &dyn UserDatabase) {
    let Some(process) = &config.process else {
        return;
    };
    let at = TablePath::default().subtable("process");
    // Only here: an application that attaches needs no more than the socket.
    if config.nic.is_empty() {
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
