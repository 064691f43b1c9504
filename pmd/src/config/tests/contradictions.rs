//! Keys that contradict each other: the line of the one to change, and what to do.

use super::super::*;
use super::mistakes::only_mistake;

/// In the place of `WIRE` in a row: a NIC on Ethernet, four lines.
const WIRE: &str = "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"192.0.2.1\"";

/// In the place of `XDP` in a row: the same on another port.
const XDP: &str = "[[nic]]\nport = \"af_xdp\"\ninterface = \"a\"\nhost = \"192.0.2.1\"";

/// In the place of `DPDK` in a row: the same on a device of DPDK.
const DPDK: &str = "[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0\"\nhost = \"192.0.2.1\"";

/// In the place of `RING` in a row: on one of the two ends of a pair of rings.
const RING: &str = "[[nic]]\nport = \"dpdk\"\ndevice = \"ring:a\"\nhost = \"192.0.2.1\"";

/// The text of a row.
fn written(row: &str) -> String {
    let nics = [("WIRE", WIRE), ("XDP", XDP), ("DPDK", DPDK), ("RING", RING)];
    let replace = |text: String, (word, nic): (&str, &str)| text.replace(word, nic);
    nics.into_iter().fold(row.to_owned(), replace)
}

/// A text with one mistake, its line, and what is said of it.
const CONTRADICTIONS: &[(&str, usize, &str)] = &[
    (
        "[[nic]]\ninterface = \"a\"",
        2,
        "interface = \"a\": only for port = \"af_packet\"",
    ),
    (
        "[[nic]]\nn_port_ids = \"00.01.01\"",
        2,
        "n_port_ids = \"00.01.01\": only for port = \"af_packet\"",
    ),
    (
        "WIRE\nqueues = 2",
        5,
        "queues = 2: only for port = \"af_xdp\" or \"dpdk\": set one, or remove this",
    ),
    (
        "DPDK\nqueue = 2",
        5,
        "queue = 2: only for port = \"af_xdp\": set that, or remove this",
    ),
    (
        "DPDK\ninterface = \"a\"",
        5,
        "interface = \"a\": only for port = \"af_packet\" or \"af_xdp\": set one, or remove this",
    ),
    (
        "XDP\nhuge_pages = true",
        5,
        "huge_pages = true: only for port = \"dpdk\": set that, or remove this",
    ),
    (
        "[[nic]]\nport = \"dpdk\"\nhost = \"::1\"",
        1,
        "port = \"dpdk\" needs device = \"...\": a PCI address",
    ),
    (
        "[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0\"",
        1,
        "port = \"dpdk\" needs host",
    ),
    (
        "DPDK\nmemory_mb = 0",
        5,
        "memory_mb = 0: needs huge_pages = true: ordinary pages are taken at the start",
    ),
    (
        "DPDK\n[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0,copy=1\"\nhost = \"::1\"",
        7,
        "device = \"net_null0,copy=1\": nic \"VINIC0\" has it already: choose another one",
    ),
    (
        "RING\nRING\nRING",
        11,
        "device = \"ring:a\": nic \"VINIC1\" has the last of its two ends: choose another one",
    ),
    (
        "RING\n[[nic]]\nRING\nargs = [\"-l\", \"0\"]",
        10,
        "args = [\"-l\", \"0\"]: nic \"VINIC0\" has [], and DPDK starts once in a process: give both the same",
    ),
    (
        "DPDK\nhuge_pages = true\nRING",
        6,
        "huge_pages = false: nic \"VINIC0\" has true, and DPDK starts once",
    ),
    (
        "DPDK\nRING\nmemory_mb = 512\nRING",
        9,
        "memory_mb = 512: nic \"VINIC0\" has 256, and DPDK starts once",
    ),
    (
        "XDP\n[[nic]]\nport = \"af_packet\"\ninterface = \"b\"\nhost = \"::1\"\nXDP",
        11,
        "interface = \"a\": nic \"VINIC0\" has it already, and port = \"af_xdp\" shares none",
    ),
    (
        "[[nic]]\ntcp_port = 1",
        2,
        "tcp_port = 1: only for transport = \"vi-tcp\": set that, or remove this",
    ),
    (
        "[[nic]]\nkey_file = \"/etc/keys\"",
        2,
        "key_file = \"/etc/keys\": only for transport = \"vi-tcp\": set that, or remove this",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nport = \"shm\"",
        3,
        "port = \"shm\": only for transport = \"fc-vi\": remove one of the two",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nrecovery = true",
        3,
        "recovery = true: only for transport = \"fc-vi\"",
    ),
    (
        "WIRE\nsegment = \"s\"",
        5,
        "segment = \"s\": only for port = \"shm\"",
    ),
    (
        "WIRE\nn_port_ids = \"00.01.01\"\nbeacon_ms = 10",
        6,
        "beacon_ms = 10: only for discovery",
    ),
    (
        "WIRE\nneighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"}]",
        5,
        "needs n_port_ids",
    ),
    (
        "WIRE\n[[nic.neighbour]]\nhost = \"::2\"\n",
        5,
        "neighbour 1: needs n_port_ids = ...: must be",
    ),
    (
        "WIRE\nn_port_ids = \"00.01.01-00.01.09\"\n[[nic.neighbour]]\nhost = \"::2\"\nn_port_ids = \"00.01.09\"",
        8,
        "neighbour 1: n_port_ids = \"00.01.09\": some of them are our own",
    ),
    (
        "WIRE\nn_port_ids = \"00.01.01\"\nneighbour = [{host = \"::2\", n_port_ids = \"00.01.09\"},\n\
                 {host = \"::3\", n_port_ids = \"00.01.08-00.01.0a\"}]",
        7,
        "neighbour 2: n_port_ids = \"00.01.08-00.01.0a\": some of them are those of neighbour 1",
    ),
    (
        "[[nic]]\nport = \"af_packet\"\nhost = \"::1\"",
        1,
        "needs interface",
    ),
    (
        "[[nic]]\nport = \"af_xdp\"\nhost = \"::1\"",
        1,
        "port = \"af_xdp\" needs interface",
    ),
    (
        "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"",
        1,
        "needs host",
    ),
    (
        "[[nic]]\ncore = 1",
        2,
        "core = 1: only for progress = \"pinned\": set that, or remove this",
    ),
    (
        "[[nic]]\ntakeover_us = 10\nprogress = \"pinned\"",
        2,
        "only for progress = \"inline\"",
    ),
    ("[[nic]]\nrecovery_tries = 3", 2, "set recovery = true"),
    (
        "[[nic]]\nring_frames = 100",
        2,
        "ring_frames = 100: must be a power of two",
    ),
    (
        "[[nic]]\nmax_vi = 8\nmax_ptags = 7",
        3,
        "max_ptags = 7: must be at least max_vi, which is 8",
    ),
    (
        "[[nic]]\nrecovery = true\nrecovery_window_frames = 31",
        1,
        "must be at most recovery_window_frames, which is 31",
    ),
    (
        "[[nic]]\nname = \"a\"\n[[nic]]\nname = \"a\"",
        4,
        "is there twice",
    ),
    ("[[nic]]\n[[nic]]\nname = \"VINIC0\"", 3, "is there twice"),
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
        "a NIC has this name itself",
    ),
    (
        "[[nic]]\n[alias]\na = \"b\"\nb = \"VINIC0\"",
        3,
        "must be the name of a NIC",
    ),
    (
        "[[nic]]\nmax_vi = 1\nmax_vi = 2",
        3,
        "max_vi: is there twice: remove one of them",
    ),
    (
        "[[nic]]\nmax_calls = 1",
        2,
        "it belongs into [process.quota]",
    ),
    (
        "[[nic]]\nprogress = \"inline\"\n[process]",
        2,
        "remove this, or [process]",
    ),
    (
        "[[nic]]\n[process]\nspin_us = 10",
        3,
        "only for idle = \"hybrid\": set that",
    ),
    (
        "[[nic]]\ncapture = \"/a\"\n[process]",
        2,
        "capture: not for messages that a NIC of [process] moves from memory to memory: set shortcut = false",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\n[nic.tls]\ncertificate = \"a\"\nauthorities = \"b\"",
        3,
        "tls: needs private_key = ...: must be the path of a PEM file with its private key",
    ),
    (
        "[[nic]]\ntls = { certificate = \"a\", private_key = \"b\", authorities = \"c\" }",
        2,
        "tls = { certificate = \"a\", private_key = \"b\", authorities = \"c\" ",
    ),
    (
        "[[nic]]\nmax_vi = 9\nfault = { loss_ppm = 1 }\n[process]",
        3,
        "fault: not for messages that a NIC of [process] moves from memory to memory",
    ),
    ("[[nic]]\n[process]\nusers = []", 3, "nobody may attach"),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nhost = \"fe80::1\"",
        3,
        "host = \"fe80::1\": a link-local address needs its interface: host = \"fe80::1%eth0\"",
    ),
    (
        "[[nic]]\ntransport = \"vi-tcp\"\nhost = \"fd00::1%lo\"",
        3,
        "only a link-local address, fe80::..., has an interface",
    ),
    (
        "[[nic]]\nhost = \"fe80::1%lo\"",
        2,
        "host = \"fe80::1%lo\": only for transport = \"vi-tcp\"",
    ),
    (
        "[[nic]]\n[[process.application]]\nmax_vi = 3",
        2,
        "needs user = \"NAME\" or group",
    ),
    (
        "[[nic]]\n[[process.application]]\nuser = \"a\"\ngroup = \"b\"",
        4,
        "user = \"a\" is there already: remove one of them",
    ),
    (
        "[[nic]]\n[process]\nusers = [1, \"a\"]\n[[process.application]]\nuser = \"a\"\n\
             [[process.application]]\nuser = \"a\"",
        7,
        "application 2: user = \"a\": is there twice: join the two tables",
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
fn keys_that_contradict_each_other() {
    for (text, line, words) in CONTRADICTIONS {
        let text = written(text);
        let said = only_mistake(&text);
        assert!(
            said.starts_with(&format!("line {line}: ")),
            "{text}\n{said}"
        );
        assert!(said.contains(words), "{text}\n{said}");
    }
}

/// A message has the fixed parts of what is documented, in their order.
fn says(message: &str, documented: &str) -> bool {
    let mut rest = Some(message);
    for part in documented.split("...") {
        rest = rest
            .and_then(|rest| rest.split_once(part))
            .map(|(_, rest)| rest);
    }
    rest.is_some()
}

/// Messages of mistakes that are no contradictions.
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

/// The user database that knows nobody, or does not answer.
struct Nobody(nix::Result<Option<u32>>);

impl Directory for Nobody {
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
fn every_message_is_in_the_guide_and_the_guide_has_no_other() {
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
    let contradictions = CONTRADICTIONS.iter().map(|(text, ..)| written(text));
    let others = OTHERS.iter().map(|text| (*text).to_owned());
    let long = format!("[[nic]]\n[process]\nsocket = \"/{}\"", "x".repeat(200));
    let texts = contradictions.chain(others).chain([long]);
    let mut messages: Vec<String> = texts.map(|text| only_mistake(&text)).collect();
    let named = "[[nic]]\n[process]\nusers = [\"a\"]\ngroups = [\"b\"]\n";
    for directory in [Nobody(Ok(None)), Nobody(Err(nix::Error::EIO))] {
        let error = Config::parse_with(named, Some(&directory)).unwrap_err();
        messages.extend(error.to_string().lines().map(str::to_owned));
        // A program needs no more than the socket.
        assert!(Config::parse("[process]").is_ok());
        let error = Config::parse_with("[process]", Some(&directory)).unwrap_err();
        messages.push(error.to_string());
    }
    messages.push(
        Config::read(Path::new("no/such/file"))
            .unwrap_err()
            .to_string(),
    );
    for message in &messages {
        let known = |documented: &&&str| **documented != "must be ..." && says(message, documented);
        let is_form = message.contains(": must be ");
        assert!(
            is_form || documented.iter().find(known).is_some(),
            "not in the guide: {message}"
        );
    }
    for documented in &documented {
        let is_said = messages.iter().any(|message| says(message, documented));
        assert!(is_said, "nobody says: {documented}");
    }
}
