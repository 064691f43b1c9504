//! Conflicting keys: the error states the line of the key to change, and what to do.

use super::super::*;
use std::io;

use super::errors::only_error;
use crate::table::{Choice as _, headers};

/// Replaces `WIRE` in a row: a NIC on Ethernet, three lines.
const WIRE: &str = "[[nic]]\naf_packet.interface = \"a\"\nhost = \"192.0.2.1\"";

/// Replaces `SHM` in a row: a NIC on a segment, two lines.
const SHM: &str = "[[nic]]\nshm = {}";

/// Replaces `TCP` in a row: a NIC with VI/TCP, two lines.
const TCP: &str = "[[nic]]\nvi_tcp = {}";

/// Replaces `XDP` in a row: the same with another port driver.
const XDP: &str = "[[nic]]\naf_xdp.interface = \"a\"\nhost = \"192.0.2.1\"";

/// Replaces `DPDK` in a row: the same on a DPDK device.
const DPDK: &str = "[[nic]]\ndpdk.device = \"net_null0\"\nhost = \"192.0.2.1\"";

/// Replaces `RING` in a row: the same on one end of a pair of rings.
const RING: &str = "[[nic]]\ndpdk.device = \"ring:a\"\nhost = \"192.0.2.1\"";

/// Returns the text of a row.
fn expand(row: &str) -> String {
    let nics = [
        ("SHM", SHM),
        ("TCP", TCP),
        ("WIRE", WIRE),
        ("XDP", XDP),
        ("DPDK", DPDK),
        ("RING", RING),
    ];
    let replace = |text: String, (word, nic): (&str, &str)| text.replace(word, nic);
    nics.into_iter().fold(row.to_owned(), replace)
}

/// A text with one error, its line, and part of the error text, in which `NETWORKS` is the list of their tables.
const CONFLICTS: &[(&str, usize, &str)] = &[
    (
        "[[nic]]\nname = \"a\"",
        1,
        "requires one of the tables NETWORKS",
    ),
    (
        "WIRE\nshm.segment = \"s\"",
        4,
        "shm: a table of another kind, [nic.af_packet], is there already: remove one of them",
    ),
    (
        "[[nic]]\n[nic.vi_tcp]\n[nic.shm]",
        3,
        "shm: a table of another kind, [nic.vi_tcp], is there already: remove one of them",
    ),
    (
        "SHM\ndiscovery.beacon_ms = 10",
        3,
        "discovery: valid only for NICs on a wire, not with [nic.shm]: remove one",
    ),
    (
        "SHM\nstatic.n_port_ids = \"00.01.01\"",
        3,
        "static: n_port_ids = \"00.01.01\": a segment assigns the N_Port_IDs of its stations: remove this key",
    ),
    (
        "TCP\nstatic.n_port_ids = \"00.01.01\"",
        3,
        "static: valid only for NICs with FC-VI frames",
    ),
    (
        "TCP\nfc_vi.e_d_tov_ms = 10",
        3,
        "fc_vi: valid only for NICs with FC-VI frames, not with [nic.vi_tcp]: remove one of the two tables",
    ),
    (
        "TCP\nrecovery = true",
        3,
        "recovery: valid only for NICs with FC-VI frames",
    ),
    (
        "WIRE\nstatic.n_port_ids = \"00.01.01\"\ndiscovery.beacon_ms = 10",
        5,
        "discovery: a table of another kind, [nic.static], is there already: remove one of them",
    ),
    (
        "SHM\nprogress.pinned.core = 1\nprogress.inline.takeover_us = 10",
        4,
        "progress: inline: a table of another kind, [nic.progress.pinned], is there already",
    ),
    (
        "SHM\n[nic.progress]",
        3,
        "progress: requires one of the tables [nic.progress.inline] or [nic.progress.pinned]",
    ),
    (
        "SHM\nprogress.pined = {}",
        3,
        "progress: unknown key `pined`; it may have one of [nic.progress.inline] or [nic.progress.pinned]",
    ),
    (
        "DPDK\ndpdk.queue = 2",
        4,
        "dpdk: unknown key `queue` in [nic.dpdk]; did you mean `queues`?",
    ),
    (
        "WIRE\naf_packet.huge_pages = true",
        4,
        "unknown key `huge_pages` in [nic.af_packet]; it belongs in [nic.dpdk]",
    ),
    (
        "[[nic]]\nshm.queues = 2",
        2,
        "unknown key `queues` in [nic.shm]; it belongs in [nic.af_xdp] or [nic.dpdk]",
    ),
    (
        "[[nic]]\ndpdk = {}\nhost = \"::1\"",
        2,
        "dpdk: requires device = \"...\": a PCI address",
    ),
    (
        "[[nic]]\ndpdk.device = \"net_null0\"",
        1,
        "[nic.dpdk] requires host = \"...\" in [[nic]], the IP address of this NIC",
    ),
    (
        "DPDK\ndpdk.memory_mb = 0",
        4,
        "memory_mb = 0: requires huge_pages = true: set that, or the number of MiB",
    ),
    (
        "DPDK\n[[nic]]\ndpdk.device = \"net_null0,copy=1\"\nhost = \"::1\"",
        5,
        "device = \"net_null0,copy=1\": already used by nic \"VINIC0\": choose another one",
    ),
    (
        "RING\nRING\nRING",
        8,
        "device = \"ring:a\": both ends are already used, the second by nic \"VINIC1\": choose another one",
    ),
    (
        "RING\nSHM\nRING\ndpdk.args = [\"-l\", \"0\"]",
        9,
        "args = [\"-l\", \"0\"]: nic \"VINIC0\" has [], and DPDK is initialized once per process: \
         set the same value for both",
    ),
    (
        "DPDK\ndpdk.huge_pages = true\nRING",
        6,
        "huge_pages = false: nic \"VINIC0\" has true, and DPDK is initialized once",
    ),
    (
        "DPDK\nRING\ndpdk.memory_mb = 512\nRING",
        7,
        "memory_mb = 512: nic \"VINIC0\" has 256, and DPDK is initialized once",
    ),
    (
        "XDP\n[[nic]]\naf_packet.interface = \"b\"\nhost = \"::1\"\nXDP",
        8,
        "interface = \"a\": already used by nic \"VINIC0\", and [nic.af_xdp] cannot share an interface",
    ),
    (
        "WIRE\nstatic.neighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"}]",
        4,
        "static: requires n_port_ids = \"...\": the N_Port_IDs of this NIC",
    ),
    (
        "WIRE\nstatic.n_port_ids = \"00.01.01\"\n[[nic.static.neighbour]]\nhost = \"::2\"\n",
        5,
        "neighbour 1: missing key `n_port_ids`: must be",
    ),
    (
        "WIRE\n[nic.static]\nn_port_ids = \"00.01.01-00.01.09\"\n[[nic.static.neighbour]]\nhost = \"::2\"\n\
         n_port_ids = \"00.01.09\"",
        8,
        "neighbour 1: n_port_ids = \"00.01.09\": overlaps n_port_ids = \"00.01.01-00.01.09\" of this NIC",
    ),
    (
        "WIRE\n[nic.static]\nn_port_ids = \"00.01.01\"\nneighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"},\n\
         {host = \"::3\", n_port_ids = \"00.01.08-00.01.0a\"}]",
        7,
        "neighbour 2: n_port_ids = \"00.01.08-00.01.0a\": overlaps those of neighbour 1",
    ),
    (
        "[[nic]]\naf_packet = {}\nhost = \"::1\"",
        2,
        "af_packet: requires interface = \"...\": `ip link` lists",
    ),
    (
        "[[nic]]\naf_xdp = {}\nhost = \"::1\"",
        2,
        "af_xdp: requires interface",
    ),
    (
        "[[nic]]\naf_packet.interface = \"a\"",
        1,
        "[nic.af_packet] requires host",
    ),
    (
        "[[nic]]\nshm.ring_frames = 100",
        2,
        "ring_frames = 100: must be a power of two",
    ),
    (
        "SHM\nlimits.max_vi = 8\nlimits.max_ptags = 7",
        4,
        "max_ptags = 7: must be at least max_vi = 8: raise this",
    ),
    (
        "TCP\nlimits.max_discriminator_bytes = 17",
        3,
        "max_discriminator_bytes = 17: must be 16 with [nic.vi_tcp]",
    ),
    (
        "SHM\nrecovery.window_frames = 31",
        3,
        "must be at most window_frames = 31",
    ),
    (
        "SHM\nname = \"a\"\nSHM\nname = \"a\"",
        6,
        "name = \"a\": already used by another NIC",
    ),
    (
        "SHM\nSHM\nname = \"VINIC0\"",
        5,
        "already used by another NIC",
    ),
    (
        "SHM\nfc_vi.capture = \"/a\"\nSHM\nfc_vi.capture = \"/a\"",
        6,
        "writes to the same file",
    ),
    (
        "SHM\n[alias]\nx = \"fast\"",
        4,
        "must be the name of a NIC: VINIC0",
    ),
    (
        "SHM\n[alias]\nVINIC0 = \"VINIC0\"",
        4,
        "a NIC already has this name",
    ),
    (
        "SHM\n[alias]\na = \"b\"\nb = \"VINIC0\"",
        4,
        "must be the name of a NIC",
    ),
    (
        "SHM\nspin_us = 1\nspin_us = 2",
        4,
        "duplicate key `spin_us`: remove one of them",
    ),
    (
        "SHM\nmax_calls = 1",
        3,
        "unknown key `max_calls` in [[nic]]; it belongs in [process.quota]",
    ),
    (
        "SHM\nprogress.inline = {}\n[process]",
        3,
        "progress: inline: not supported with [process], which polls the NIC: remove this table, or [process]",
    ),
    (
        "SHM\n[process]\nspin_us = 10",
        4,
        "valid only with idle = \"hybrid\": set that",
    ),
    (
        "SHM\nfc_vi.capture = \"/a\"\n[process]",
        3,
        "capture: does not apply to messages that a NIC of [process] copies from memory to memory: \
         set shortcut = false",
    ),
    (
        "[[nic]]\n[nic.vi_tcp.tls]\ncertificate = \"a\"\nauthorities = \"b\"",
        2,
        "vi_tcp: tls: missing key `private_key`: must be the path of a PEM file with its private key",
    ),
    (
        "SHM\nlimits.max_vi = 9\nfc_vi.fault = { loss_ppm = 1 }\n[process]",
        4,
        "fault: does not apply to messages that a NIC of [process] copies from memory to memory",
    ),
    ("SHM\n[process]\nusers = []", 4, "no user may attach"),
    (
        "TCP\nhost = \"fe80::1\"",
        3,
        "host = \"fe80::1\": a link-local address requires its interface: host = \"fe80::1%eth0\"",
    ),
    (
        "TCP\nhost = \"fd00::1%lo\"",
        3,
        "only a link-local address, fe80::..., may have an interface",
    ),
    (
        "SHM\nhost = \"fe80::1%lo\"",
        3,
        "host = \"fe80::1%lo\": an interface (%NAME) is valid only with [nic.vi_tcp]",
    ),
    (
        "SHM\n[[process.application]]\nmax_vi = 3",
        3,
        "missing key `user` or `group`: set one",
    ),
    (
        "SHM\n[[process.application]]\nuser = \"a\"\ngroup = \"b\"",
        5,
        "cannot be combined with user = \"a\": remove one of them",
    ),
    (
        "SHM\n[process]\nusers = [1, \"a\"]\n[[process.application]]\nuser = \"a\"\n\
             [[process.application]]\nuser = \"a\"",
        8,
        "application 2: user = \"a\": has a table already: merge the two tables",
    ),
    (
        "SHM\n[process]\nusers = [\"a\"]\n[[process.application]]\nuser = \"b\"",
        6,
        "add it to users of [process]",
    ),
    (
        "SHM\n[process]\nmax_applications = 8\nmax_applications_per_user = 9",
        5,
        "must be at most max_applications",
    ),
    (
        "SHM\n[process]\nmax_applications_per_user = 65",
        4,
        "must be at most max_applications",
    ),
];

#[test]
fn conflicting_keys_are_reported() {
    for (text, line, words) in CONFLICTS {
        let text = expand(text);
        let message = only_error(&text);
        assert!(
            message.starts_with(&format!("line {line}: ")),
            "{text}\n{message}"
        );
        let words = words.replace("NETWORKS", &headers(Network::TABLES));
        assert!(message.contains(&words), "{text}\n{message}");
    }
}

/// Returns whether a message has the fixed parts of a documented text, in their order.
fn matches(message: &str, documented: &str) -> bool {
    let mut rest = Some(message);
    for part in documented.split("...") {
        rest = rest
            .and_then(|rest| rest.split_once(part))
            .map(|(_, rest)| rest);
    }
    rest.is_some()
}

/// Texts with errors other than conflicts.
const OTHERS: &[&str] = &[
    "[[nic",
    "[nic]\nname = \"a\"",
    "[[nic]]\nshm = {}\nlimits.max_vi = 0",
    "[[nic]]\nshm = {}\nlimits.max_vi = true",
    "[[nic]]\nshm = {}\nmax_vis = 3",
    "[[nic]]\nshm = {}\nsurely_no_such_key = 3",
    "[[nic]]\nshm = {}\nhost = \"::\"",
    "[[nic]]\nshm = {}\n[process]\nsocket = \"x\"",
    "[[nic]]\nshm = {}\n[process]\nsocket = \"/\"",
    "[[nic]]\nport = \"shm\"",
    "[[nic]]\nshm = {}\ntransport = \"fc-vi\"",
    "[[nic]]\nsegment = \"s\"",
    "[[nic]]\n[nic.tls]",
    "[[nic]]\nshm = {}\n[[nic]]\naf_packet.interface = \"a\"\nhost = \"::1\"\ndiscovery.port_name = \"20:00:52:54:00:00:00:01\"\n\
     [[nic]]\naf_packet.interface = \"b\"\nhost = \"::1\"\ndiscovery.port_name = \"20:00:52:54:00:00:00:01\"",
    "[[nic]]\nshm = {}\nprogress.pinned.core = 1\n[[nic]]\nshm = {}\nprogress.pinned.core = 1",
];

/// User database without entries, or with an error.
struct EmptyDatabase {
    is_readable: bool,
}

impl UserDatabase for EmptyDatabase {
    fn own_uid(&self) -> u32 {
        7
    }
    fn uid(&self, _: &str) -> io::Result<Option<u32>> {
        match self.is_readable {
            true => Ok(None),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }
    fn gid(&self, name: &str) -> io::Result<Option<u32>> {
        self.uid(name)
    }
}

#[test]
fn every_error_is_documented_and_every_documented_error_occurs() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let begin = guide.find("| message of the configuration |").unwrap();
    let table = guide[begin..].split("\n\n").next().unwrap();
    let documented: Vec<&str> = table
        .lines()
        .skip(2)
        .flat_map(|row| {
            row.split(" | ")
                .next()
                .unwrap()
                .split('`')
                .skip(1)
                .step_by(2)
        })
        .collect();
    let conflicts = CONFLICTS.iter().map(|(text, ..)| expand(text));
    let others = OTHERS.iter().map(|text| (*text).to_owned());
    let long = format!(
        "[[nic]]\nshm = {{}}\n[process]\nsocket = \"/{}\"",
        "x".repeat(200)
    );
    let texts = conflicts.chain(others).chain([long]);
    let mut messages: Vec<String> = texts.map(|text| only_error(&text)).collect();
    let named = "[[nic]]\nshm = {}\n[process]\nusers = [\"a\"]\ngroups = [\"b\"]\n";
    for is_readable in [true, false] {
        let database = EmptyDatabase { is_readable };
        let error = Config::parse_with(named, Some(&database)).unwrap_err();
        messages.extend(error.to_string().lines().map(str::to_owned));
        // Applications need only the socket.
        assert!(Config::parse("[process]").is_ok());
        let error = Config::parse_with("[process]", Some(&database)).unwrap_err();
        messages.push(error.to_string());
    }
    messages.push(
        Config::read(Path::new("no/such/file"))
            .unwrap_err()
            .to_string(),
    );
    for message in &messages {
        let known =
            |documented: &&&str| **documented != "must be ..." && matches(message, documented);
        let is_form = message.contains(": must be ");
        assert!(
            is_form || documented.iter().find(known).is_some(),
            "not documented: {message}"
        );
    }
    for documented in &documented {
        let occurs = messages.iter().any(|message| matches(message, documented));
        assert!(occurs, "documented, but not tested: {documented}");
    }
}

#[test]
fn nics_share_a_core_in_the_process_only() {
    let nic = "[[nic]]\nshm = {}\nprogress.pinned.core = 1\n";
    let two = [nic, nic].concat();
    let message = only_error(&two);
    assert!(
        message.starts_with(
            "line 6: nic \"VINIC1\": progress: pinned: core = 1: already used by nic \"VINIC0\""
        ),
        "{message}"
    );
    let served = Config::parse(&format!("{two}[process]\n")).unwrap();
    for nic in &served.nic {
        assert_eq!(nic.progress, Progress::pinned(Some(1)));
    }
    assert!(
        Config::parse("[[nic]]\nshm = {}\n[process]").unwrap().nic[0]
            .progress
            .is_pinned()
    );
    assert_eq!(served.process, Some(ProcessConfig::default()));
}

#[test]
fn nic_of_the_process_with_faults_requires_shortcut() {
    for (key, value) in [("capture", "\"/a\""), ("fault", "{ loss_ppm = 1 }")] {
        for shortcut in [true, false] {
            let text = format!(
                "[[nic]]\nshm = {{}}\nfc_vi.{key} = {value}\nfc_vi.shortcut = {shortcut}\n[process]\n"
            );
            let config = Config::parse(&text).unwrap();
            assert_eq!(config.nic[0].fc_vi.shortcut, shortcut);
        }
        // Not required without [process].
        Config::parse(&format!("[[nic]]\nshm = {{}}\nfc_vi.{key} = {value}\n")).unwrap();
    }
}
