//! Conflicting keys: the error states the line of the key to change, and what to do.

use super::super::*;
use super::errors::only_error;

/// Replaces `WIRE` in a row: a NIC on Ethernet, four lines.
const WIRE: &str = "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"192.0.2.1\"";

/// Replaces `XDP` in a row: the same with another port driver.
const XDP: &str = "[[nic]]\nport = \"af_xdp\"\ninterface = \"a\"\nhost = \"192.0.2.1\"";

/// Replaces `DPDK` in a row: the same on a DPDK device.
const DPDK: &str = "[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0\"\nhost = \"192.0.2.1\"";

/// Replaces `RING` in a row: the same on one end of a pair of rings.
const RING: &str = "[[nic]]\nport = \"dpdk\"\ndevice = \"ring:a\"\nhost = \"192.0.2.1\"";

/// Returns the text of a row.
fn expand(row: &str) -> String {
    let nics = [("WIRE", WIRE), ("XDP", XDP), ("DPDK", DPDK), ("RING", RING)];
    let replace = |text: String, (word, nic): (&str, &str)| text.replace(word, nic);
    nics.into_iter().fold(row.to_owned(), replace)
}

/// A text with one error, its line, and part of the error text.
const CONFLICTS: &[(&str, usize, &str)] = &[
    (
        "[[nic]]\ninterface = \"a\"",
        2,
        "interface = \"a\": valid only with port = \"af_packet\"",
    ),
    (
        "[[nic]]\nn_port_ids = \"00.01.01\"",
        2,
        "n_port_ids = \"00.01.01\": valid only with port = \"af_packet\"",
    ),
    (
        "WIRE\nqueues = 2",
        5,
        "queues = 2: valid only with port = \"af_xdp\" or \"dpdk\": set one, or remove this key",
    ),
    (
        "DPDK\nqueue = 2",
        5,
        "queue = 2: valid only with port = \"af_xdp\": set that, or remove this key",
    ),
    (
        "DPDK\ninterface = \"a\"",
        5,
        "interface = \"a\": valid only with port = \"af_packet\" or \"af_xdp\": set one, or remove this key",
    ),
    (
        "XDP\nhuge_pages = true",
        5,
        "huge_pages = true: valid only with port = \"dpdk\": set that, or remove this key",
    ),
    (
        "[[nic]]\nport = \"dpdk\"\nhost = \"::1\"",
        1,
        "port = \"dpdk\" requires device = \"...\": a PCI address",
    ),
    (
        "[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0\"",
        1,
        "port = \"dpdk\" requires host",
    ),
    (
        "DPDK\nmemory_mb = 0",
        5,
        "memory_mb = 0: requires huge_pages = true: set that, or the number of MiB",
    ),
    (
        "DPDK\n[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0,copy=1\"\nhost = \"::1\"",
        7,
        "device = \"net_null0,copy=1\": already used by nic \"VINIC0\": choose another one",
    ),
    (
        "RING\nRING\nRING",
        11,
        "device = \"ring:a\": both ends are already used, the second by nic \"VINIC1\": choose another one",
    ),
    (
        "RING\n[[nic]]\nRING\nargs = [\"-l\", \"0\"]",
        10,
        "args = [\"-l\", \"0\"]: nic \"VINIC0\" has [], and DPDK is initialized once per process: \
         set the same value for both",
    ),
    (
        "DPDK\nhuge_pages = true\nRING",
        6,
        "huge_pages = false: nic \"VINIC0\" has true, and DPDK is initialized once",
    ),
    (
        "DPDK\nRING\nmemory_mb = 512\nRING",
        9,
        "memory_mb = 512: nic \"VINIC0\" has 256, and DPDK is initialized once",
    ),
    (
        "XDP\n[[nic]]\nport = \"af_packet\"\ninterface = \"b\"\nhost = \"::1\"\nXDP",
        11,
        "interface = \"a\": already used by nic \"VINIC0\", and port = \"af_xdp\" cannot share an interface",
    ),
    (
        "[[nic]]\ntcp_port = 1",
        2,
        "tcp_port = 1: valid only with transport = \"vi-tcp\": set that, or remove this key",
    ),
    (
        "[[nic]]\nkey_file = \"/etc/keys\"",
        2,
        "key_file = \"/etc/keys\": valid only with transport = \"vi-tcp\": set that, or remove this key",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nport = \"shm\"",
        3,
        "port = \"shm\": valid only with transport = \"fc-vi\": remove one of the two keys",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nrecovery = true",
        3,
        "recovery = true: valid only with transport = \"fc-vi\"",
    ),
    (
        "WIRE\nsegment = \"s\"",
        5,
        "segment = \"s\": valid only with port = \"shm\"",
    ),
    (
        "WIRE\nn_port_ids = \"00.01.01\"\nbeacon_ms = 10",
        6,
        "beacon_ms = 10: valid only with discovery",
    ),
    (
        "WIRE\nneighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"}]",
        5,
        "requires n_port_ids",
    ),
    (
        "WIRE\n[[nic.neighbour]]\nhost = \"::2\"\n",
        5,
        "neighbour 1: missing key `n_port_ids`: must be",
    ),
    (
        "WIRE\nn_port_ids = \"00.01.01-00.01.09\"\n[[nic.neighbour]]\nhost = \"::2\"\nn_port_ids = \"00.01.09\"",
        8,
        "neighbour 1: n_port_ids = \"00.01.09\": overlaps n_port_ids = \"00.01.01-00.01.09\" of this NIC",
    ),
    (
        "WIRE\nn_port_ids = \"00.01.01\"\nneighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"},\n\
                 {host = \"::3\", n_port_ids = \"00.01.08-00.01.0a\"}]",
        7,
        "neighbour 2: n_port_ids = \"00.01.08-00.01.0a\": overlaps those of neighbour 1",
    ),
    (
        "[[nic]]\nport = \"af_packet\"\nhost = \"::1\"",
        1,
        "requires interface",
    ),
    (
        "[[nic]]\nport = \"af_xdp\"\nhost = \"::1\"",
        1,
        "port = \"af_xdp\" requires interface",
    ),
    (
        "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"",
        1,
        "requires host",
    ),
    (
        "[[nic]]\ncore = 1",
        2,
        "core = 1: valid only with progress = \"pinned\": set that, or remove this key",
    ),
    (
        "[[nic]]\ntakeover_us = 10\nprogress = \"pinned\"",
        2,
        "valid only with progress = \"inline\"",
    ),
    (
        "[[nic]]\nrecovery_tries = 3",
        2,
        "valid only with recovery = true",
    ),
    (
        "[[nic]]\nring_frames = 100",
        2,
        "ring_frames = 100: must be a power of two",
    ),
    (
        "[[nic]]\nmax_vi = 8\nmax_ptags = 7",
        3,
        "max_ptags = 7: must be at least max_vi = 8: raise this",
    ),
    (
        "[[nic]]\nrecovery = true\nrecovery_window_frames = 31",
        1,
        "must be at most recovery_window_frames = 31",
    ),
    (
        "[[nic]]\nname = \"a\"\n[[nic]]\nname = \"a\"",
        4,
        "name = \"a\": already used by another NIC",
    ),
    (
        "[[nic]]\n[[nic]]\nname = \"VINIC0\"",
        3,
        "already used by another NIC",
    ),
    (
        "[[nic]]\ncapture = \"/a\"\n[[nic]]\ncapture = \"/a\"",
        4,
        "writes to the same file",
    ),
    (
        "[[nic]]\n[alias]\nx = \"fast\"",
        3,
        "must be the name of a NIC: VINIC0",
    ),
    (
        "[[nic]]\n[alias]\nVINIC0 = \"VINIC0\"",
        3,
        "a NIC already has this name",
    ),
    (
        "[[nic]]\n[alias]\na = \"b\"\nb = \"VINIC0\"",
        3,
        "must be the name of a NIC",
    ),
    (
        "[[nic]]\nmax_vi = 1\nmax_vi = 2",
        3,
        "duplicate key `max_vi`: remove one of them",
    ),
    (
        "[[nic]]\nmax_calls = 1",
        2,
        "unknown key `max_calls` in [[nic]]; it belongs in [process.quota]",
    ),
    (
        "[[nic]]\nprogress = \"inline\"\n[process]",
        2,
        "remove this key, or [process]",
    ),
    (
        "[[nic]]\n[process]\nspin_us = 10",
        3,
        "valid only with idle = \"hybrid\": set that",
    ),
    (
        "[[nic]]\ncapture = \"/a\"\n[process]",
        2,
        "capture: does not apply to messages that a NIC of [process] copies from memory to memory: \
         set shortcut = false",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\n[nic.tls]\ncertificate = \"a\"\nauthorities = \"b\"",
        3,
        "tls: missing key `private_key`: must be the path of a PEM file with its private key",
    ),
    (
        "[[nic]]\ntls = { certificate = \"a\", private_key = \"b\", authorities = \"c\" }",
        2,
        "tls = { certificate = \"a\", private_key = \"b\", authorities = \"c\" ",
    ),
    (
        "[[nic]]\nmax_vi = 9\nfault = { loss_ppm = 1 }\n[process]",
        3,
        "fault: does not apply to messages that a NIC of [process] copies from memory to memory",
    ),
    ("[[nic]]\n[process]\nusers = []", 3, "no user may attach"),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nhost = \"fe80::1\"",
        3,
        "host = \"fe80::1\": a link-local address requires its interface: host = \"fe80::1%eth0\"",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nhost = \"fd00::1%lo\"",
        3,
        "only a link-local address, fe80::..., may have an interface",
    ),
    (
        "[[nic]]\nhost = \"fe80::1%lo\"",
        2,
        "host = \"fe80::1%lo\": an interface (%NAME) is valid only with transport = \"vi-tcp\"",
    ),
    (
        "[[nic]]\n[[process.application]]\nmax_vi = 3",
        2,
        "missing key `user` or `group`: set one",
    ),
    (
        "[[nic]]\n[[process.application]]\nuser = \"a\"\ngroup = \"b\"",
        4,
        "cannot be combined with user = \"a\": remove one of them",
    ),
    (
        "[[nic]]\n[process]\nusers = [1, \"a\"]\n[[process.application]]\nuser = \"a\"\n\
             [[process.application]]\nuser = \"a\"",
        7,
        "application 2: user = \"a\": has a table already: merge the two tables",
    ),
    (
        "[[nic]]\n[process]\nusers = [\"a\"]\n[[process.application]]\nuser = \"b\"",
        5,
        "add it to users of [process]",
    ),
    (
        "[[nic]]\n[process]\nmax_applications = 8\nmax_applications_per_user = 9",
        4,
        "must be at most max_applications",
    ),
    (
        "[[nic]]\n[process]\nmax_applications_per_user = 65",
        3,
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
        assert!(message.contains(words), "{text}\n{message}");
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
    "[nic]\nmax_vi = 3",
    "[[nic]]\nmax_vi = 0",
    "[[nic]]\nmax_vi = true",
    "[[nic]]\nmax_vis = 3",
    "[[nic]]\nsurely_no_such_key = 3",
    "[[nic]]\nhost = \"::\"",
    "[[nic]]\n[process]\nsocket = \"x\"",
    "[[nic]]\n[process]\nsocket = \"/\"",
    "[[nic]]\n[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"::1\"\nport_name = \"20:00:52:54:00:00:00:01\"\n\
     [[nic]]\nport = \"af_packet\"\ninterface = \"b\"\nhost = \"::1\"\nport_name = \"20:00:52:54:00:00:00:01\"",
    "[[nic]]\nprogress = \"pinned\"\ncore = 1\n[[nic]]\nprogress = \"pinned\"\ncore = 1",
];

/// User database without entries, or with an error.
struct EmptyDatabase(nix::Result<Option<u32>>);

impl UserDatabase for EmptyDatabase {
    fn own_uid(&self) -> u32 {
        7
    }
    fn uid(&self, _: &str) -> nix::Result<Option<u32>> {
        self.0
    }
    fn gid(&self, _: &str) -> nix::Result<Option<u32>> {
        self.0
    }
}

#[test]
fn every_error_is_documented_and_every_documented_error_occurs() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
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
    let long = format!("[[nic]]\n[process]\nsocket = \"/{}\"", "x".repeat(200));
    let texts = conflicts.chain(others).chain([long]);
    let mut messages: Vec<String> = texts.map(|text| only_error(&text)).collect();
    let named = "[[nic]]\n[process]\nusers = [\"a\"]\ngroups = [\"b\"]\n";
    for database in [EmptyDatabase(Ok(None)), EmptyDatabase(Err(nix::Error::EIO))] {
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
