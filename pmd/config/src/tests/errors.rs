//! Every key of every table with every kind of invalid value: the error states line, key and what to do.

use super::super::*;
use crate::keys::tables;
use crate::table::{Choice as _, Form, Table, headers};

/// An invalid file: its text, the line of the error, and parts of the error text.
struct Case {
    text: String,
    line: usize,
    expected: Vec<String>,
}

/// Returns the error text of a file with one error.
pub(super) fn only_error(text: &str) -> String {
    let error = Config::parse(text).expect_err(text);
    assert_eq!(error.count(), 1, "{text}\n{error}");
    error.to_string()
}

impl Case {
    fn check(&self) {
        let message = Config::parse(&self.text).expect_err(&self.text).to_string();
        let begin = format!("line {}: ", self.line);
        let matches = |line: &str| {
            line.starts_with(&begin)
                && self
                    .expected
                    .iter()
                    .all(|word| line.contains(word.as_str()))
        };
        assert!(
            message.lines().any(matches),
            "{}\nline {} {:?}:\n{message}",
            self.text,
            self.line,
            self.expected
        );
    }
}

/// Returns the lines before the key of a table, without other errors; the key is in the next line.
fn before<T: Table>(key: &str) -> String {
    const WIRE: &str = "[[nic]]\naf_packet.interface = \"a\"\nhost = \"192.0.2.1\"\n";
    const SHM: &str = "[[nic]]\nshm = {}\n";
    const IDS: &str = "[nic.static]\nn_port_ids = \"00.01.01\"\n";
    let port = |required: &str| {
        let is_required = required.starts_with(&format!("{key} "));
        let required = if is_required { "" } else { required };
        format!("[[nic]]\nhost = \"192.0.2.1\"\n{}\n{required}", T::HEADER)
    };
    match (T::HEADER, key) {
        ("", _) => String::new(),
        ("[[nic]]", "discovery" | "static") => WIRE.into(),
        ("[[nic]]", _) => match table::find(T::KEYS, key).and_then(|found| found.choice) {
            Some(_) => "[[nic]]\n".into(),
            None => SHM.into(),
        },
        ("[nic.vi_tcp.tls]", "max_handshakes_per_second" | "max_handshakes_per_source") => {
            let files = "certificate = \"a\"\nprivate_key = \"b\"\nauthorities = \"c\"";
            format!("[[nic]]\n{}\n{files}\n", T::HEADER)
        }
        ("[nic.af_packet]" | "[nic.af_xdp]", _) => port("interface = \"a\"\n"),
        ("[nic.dpdk]", "memory_mb") => port("device = \"net_null0\"\nhuge_pages = true\n"),
        ("[nic.dpdk]", _) => port("device = \"net_null0\"\n"),
        ("[nic.discovery]" | "[nic.static]", "n_port_ids") => format!("{WIRE}{}\n", T::HEADER),
        ("[nic.discovery]", _) => format!("{WIRE}{}\n", T::HEADER),
        ("[nic.static]", _) => format!("{WIRE}{IDS}"),
        ("[[nic.static.neighbour]]", "host") => {
            format!("{WIRE}{IDS}{}\nn_port_ids = \"00.01.09\"\n", T::HEADER)
        }
        ("[[nic.static.neighbour]]", _) => {
            format!("{WIRE}{IDS}{}\nhost = \"192.0.2.2\"\n", T::HEADER)
        }
        ("[process]", "spin_us") => format!("{SHM}[process]\nidle = \"hybrid\"\n"),
        ("[[process.application]]", "user" | "group") => format!("{SHM}{}\n", T::HEADER),
        ("[[process.application]]", _) => format!("{SHM}{}\nuser = 7\n", T::HEADER),
        (header, _) if is_of_network(header) => format!("[[nic]]\n{header}\n"),
        (header, _) => format!("{SHM}{header}\n"),
    }
}

/// Whether a table is that of a network, or in it.
fn is_of_network(header: &str) -> bool {
    let mut networks = Network::TABLES.iter().filter_map(table::Key::header);
    networks.any(|network| header.starts_with(network.trim_end_matches(']')))
}

fn case<T: Table>(key: &str, value: &str, expected: &[&str]) -> Case {
    let before = before::<T>(key);
    let line = before.lines().count() + 1;
    let mut expected: Vec<String> = expected.iter().map(|word| (*word).to_owned()).collect();
    expected.push(key.to_owned());
    Case {
        text: format!("{before}{key} = {value}\n"),
        line,
        expected,
    }
}

/// A value of a type that no key has: a date.
const WRONG_TYPE: &str = "1999-12-31";

/// Tests all keys of a table. `wrong_values` has invalid values of the keys that are not numeric.
fn every_key<T: Table>(wrong_values: &[(&str, &str, &str)]) {
    let names = table::names(T::KEYS);
    assert!(!names.is_empty(), "{}", T::HEADER);
    for name in &names {
        let key = table::find(T::KEYS, name).expect("its own").key;
        let must_be = key.must_be();
        case::<T>(name, WRONG_TYPE, &[WRONG_TYPE, &must_be]).check();
        let Form::Number { low, high } = key.form else {
            let is_table = key.header().is_some();
            assert!(
                is_table || wrong_values.iter().any(|row| row.0 == *name),
                "{} {name}: no row for it",
                T::HEADER
            );
            continue;
        };
        let range = format!("{low} to {high}");
        for wrong in [
            "\"many\"",
            "1.5",
            "true",
            "-1",
            "99999999999999999999999",
            "[3]",
        ] {
            case::<T>(name, wrong, &[wrong, &range]).check();
        }
        for wrong in low.checked_sub(1).into_iter().chain(high.checked_add(1)) {
            case::<T>(name, &wrong.to_string(), &[&format!("= {wrong}"), &range]).check();
        }
        for right in [low, high] {
            // The largest integer that all TOML parsers support.
            let right = right.min(i64::MAX as u64);
            let text = case::<T>(name, &right.to_string(), &[]).text;
            if let Err(error) = Config::parse(&text) {
                let message = error.to_string();
                assert!(message.contains("must be at"), "{text}\n{message}");
            }
        }
    }
    for (key, value, word) in wrong_values {
        assert!(names.contains(key), "{} has no key {key}", T::HEADER);
        if !value.is_empty() {
            case::<T>(key, value, &[word]).check();
        }
    }
    let unknown = case::<T>(
        "surely_no_such_key",
        "1",
        &["unknown key `surely_no_such_key`", "; remove it"],
    );
    unknown.check();
    if let Some(key) = names.iter().find(|key| key.len() > 3) {
        let mistyped = &key[..key.len() - 1];
        case::<T>(mistyped, "1", &[&format!("; did you mean `{key}`?")]).check();
    }
}

#[test]
fn every_key_of_a_nic() {
    every_key::<NicConfig>(&[
        ("name", "7", "in quotes"),
        ("shm", "7", "[nic.shm]"),
        ("vi_tcp", "true", "[nic.vi_tcp]"),
        ("static", "[]", "[nic.static]"),
        ("host", "\"ten\"", "an IP address in quotes"),
        ("host", "\"0.0.0.0\"", "one host"),
        ("host", "\"ff02::1\"", "one host"),
        ("hosts_file", "7", "path"),
        (
            "progress",
            "\"pinned\"",
            "a table: [nic.progress.inline] or [nic.progress.pinned]",
        ),
        ("protection", "\"Strict\"", "\"strict\" or \"lenient\""),
        ("lock_memory", "\"always\"", "\"required\""),
        ("recovery", "\"yes\"", "true, false or a table"),
    ]);
}

#[test]
fn every_key_of_the_tables_of_all_nics() {
    every_key::<Limits>(&[]);
    every_key::<FcVi>(&[
        ("shortcut", "1", "true or false"),
        ("fault", "7", "[nic.fc_vi.fault]"),
        ("capture", "7", "path"),
    ]);
    every_key::<RecoveryParameters>(&[]);
    every_key::<Inline>(&[]);
    every_key::<Pinned>(&[]);
    every_key::<FaultConfig>(&[]);
}

#[test]
fn every_key_of_a_segment() {
    let long = format!("{:?}", "x".repeat(65));
    every_key::<Shm>(&[
        ("segment", "\"a/b\"", "letters, digits"),
        ("segment", &long, "1 to 64"),
        ("directory", "[]", "path"),
    ]);
}

#[test]
fn every_key_of_a_port_on_a_wire() {
    let interface = ("interface", "\"a-name-of-16-byt\"", "at most 15");
    every_key::<AfPacket>(&[interface]);
    every_key::<AfXdp>(&[
        interface,
        ("copy", "\"never\"", "\"auto\", \"zero-copy\" or \"copy\""),
    ]);
    let long_ring = format!("\"ring:{}\"", "x".repeat(33));
    every_key::<Dpdk>(&[
        ("device", "[\"net_null0\"]", "a DPDK device, in quotes"),
        ("device", "\"\"", "net_memif0,role=server"),
        ("device", "\",role=server\"", "must be a device name"),
        ("device", "\"ring:\"", "1 to 32 letters or digits"),
        ("device", "\"ring:a,b\"", "must be ring: with"),
        ("device", &long_ring, "1 to 32 letters"),
        ("device", "\"net_null0\\n\"", "must be a device name"),
        ("args", "\"-l 0\"", "a list of EAL arguments"),
        ("args", "[\"-l\", 0]", "a list of EAL arguments"),
        ("args", "[\"-l\", \"\"]", "must be one argument"),
        ("huge_pages", "\"yes\"", "true or false"),
    ]);
}

#[test]
fn every_key_of_vi_tcp() {
    every_key::<ViTcp>(&[
        ("directory", "[]", "path"),
        ("flow_control", "1", "true or false"),
        ("tls", "7", "[nic.vi_tcp.tls]"),
        ("key_file", "7", "path"),
    ]);
}

#[test]
fn every_key_of_addressing() {
    every_key::<Discovery>(&[
        ("port_name", "\"20:00\"", "eight bytes"),
        ("node_name", "\"0000000000000000\"", "eight bytes"),
    ]);
    every_key::<Static>(&[
        ("n_port_ids", "\"7\"", "\"00.01.01\" or a range"),
        ("n_port_ids", "\"00.01.09-00.01.01\"", "ascending order"),
        ("n_port_ids", "\"00.01.01-00.05.01\"", "1 to 256"),
        ("neighbour", "7", "[[nic.static.neighbour]]"),
        ("neighbour", "[7]", "[[nic.static.neighbour]]"),
    ]);
}

#[test]
fn every_key_of_a_neighbour() {
    every_key::<NeighbourConfig>(&[
        ("host", "\"ten\"", "an IP address"),
        ("host", "\"::\"", "one host"),
        ("n_port_ids", "\"7\"", "range"),
    ]);
}

#[test]
fn every_key_of_tls() {
    every_key::<TlsConfig>(&[
        (
            "certificate",
            "7",
            "the path of a PEM file with the certificate",
        ),
        (
            "private_key",
            "[]",
            "the path of a PEM file with its private key",
        ),
        (
            "authorities",
            "true",
            "the path of a PEM file with the trusted",
        ),
    ]);
    let path = |key: &str| format!("{key} = {:?}\n", format!("/{key}.pem"));
    let [certificate, key, authorities] = ["certificate", "private_key", "authorities"].map(path);
    let nic = "[[nic]]\n[nic.vi_tcp.tls]\n";
    let config = Config::parse(&[nic, &certificate, &key, &authorities].concat()).unwrap();
    let expected = TlsConfig {
        certificate: "/certificate.pem".into(),
        private_key: "/private_key.pem".into(),
        authorities: "/authorities.pem".into(),
        ..TlsConfig::default()
    };
    let tls = config.nic[0].network.vi_tcp().unwrap().tls.as_ref();
    assert_eq!(tls, Some(&expected));
    let empty = [nic, &certificate, "private_key = \"\"\n", &authorities].concat();
    assert_eq!(
        only_error(&empty),
        "line 4: nic \"VINIC0\": vi_tcp: tls: private_key = \"\": must be the path of a PEM file"
    );
}

#[test]
fn every_key_of_the_process() {
    let path = |bytes: usize| format!("\"/{}\"", "x".repeat(bytes - 1));
    every_key::<ProcessConfig>(&[
        ("socket", "\"pmd.sock\"", "begins with /"),
        ("socket", "\"\"", "absolute"),
        ("socket", "\"/\"", "must name a file"),
        ("socket", &path(108), "at most 107: choose a shorter one"),
        ("users", "\"alice\"", "a list of users"),
        ("users", "[-1]", "names in quotes or numbers"),
        ("users", "[1.5]", "names in quotes or numbers"),
        ("users", "[]", "no user may attach"),
        ("groups", "[true]", "a list of groups"),
        ("metrics", "\"9464\"", "an IP address and a port"),
        ("metrics", "9464", "\"127.0.0.1:9464\""),
        ("idle", "\"sleep\"", "\"spin\" or \"hybrid\""),
        ("foreign_memory", "1", "true or false"),
        ("quota", "7", "[process.quota]"),
        ("application", "7", "[[process.application]]"),
    ]);
    let longest = format!("[[nic]]\nshm = {{}}\n[process]\nsocket = {}\n", path(107));
    assert!(Config::parse(&longest).is_ok());
}

#[test]
fn every_key_of_a_quota() {
    every_key::<QuotaConfig>(&[]);
}

#[test]
fn every_key_of_an_application() {
    every_key::<ApplicationConfig>(&[
        ("user", "[]", "its name in quotes or its number"),
        ("group", "-1", "its name in quotes or its number"),
    ]);
}

#[test]
fn every_key_of_the_file() {
    every_key::<Config>(&[
        ("nic", "7", "tables, [[nic]]"),
        ("nic", "[1]", "tables, [[nic]]"),
        ("nic", "{ max_vi = 3 }", "tables, [[nic]]"),
        ("alias", "\"x\"", "[alias]"),
        ("process", "[]", "[process]"),
    ]);
    let message = only_error("[[nic]]\nshm = {}\n[alias]\n\nclan0 = 7\n");
    assert_eq!(
        message,
        "line 5: alias: clan0 = 7: must be the name of a NIC, in quotes"
    );
}

#[test]
fn all_errors_of_a_file_are_reported_in_line_order() {
    let text = "[[nic]]\nlimits.max_vi = 0\nshm.segment = 7\nport = \"shmem\"\n[[nic]]\nname = \"fast\"\nsh = 1\n\
                limits.max_cq = \"x\"\n[process]\nidle = 1\nusers = 3\n[process.quota]\nrate_share = 0\n";
    let error = Config::parse(text).unwrap_err();
    let unknown_port = format!(
        "line 4: nic \"VINIC0\": port = \"shmem\": as in version 0.1: write one of the tables {}",
        headers(Network::TABLES)
    );
    let expected = [
        "line 2: nic \"VINIC0\": limits: max_vi = 0: must be 1 to 4096",
        "line 3: nic \"VINIC0\": shm: segment = 7: must be 1 to 64 letters, digits, '.', '_' or '-', in quotes",
        &unknown_port,
        "line 7: nic \"fast\": unknown key `sh` in [[nic]]; did you mean `shm`?",
        "line 8: nic \"fast\": limits: max_cq = \"x\": must be a number, 1 to 65536",
        "line 10: process: idle = 1: must be \"spin\" or \"hybrid\"",
        "line 11: process: users = 3: must be a list of users, names in quotes or numbers: [\"alice\", 1001]",
        "line 13: process: quota: rate_share = 0: must be 1 to 100",
    ];
    assert_eq!(error.to_string().lines().collect::<Vec<_>>(), expected);
    assert_eq!(error.count(), expected.len());
}

#[test]
fn invalid_key_causes_exactly_one_error() {
    // Not also a missing interface, or a table of the wrong network.
    for text in [
        "[[nic]]\naf_packet.interface = 7\nhost = \"::1\"",
        "[[nic]]\nshm = {}\nprogress = 7",
        "[[nic]]\nshm = 7\ndiscovery.beacon_ms = 10\nhost = \"fe80::1%lo\"",
        "[[nic]]\nshm = {}\nprogress.inline = 7\n[process]",
        "[[nic]]\ndpdk.device = 7\nhost = \"::1\"",
        "[[nic]]\ndpdk.device = \"a\"\nhost = \"::1\"\ndpdk.huge_pages = 7\ndpdk.memory_mb = 0",
        "[[nic]]\ndpdk.device = \"a\"\nhost = \"::1\"\ndpdk.args = 7\n\
         [[nic]]\ndpdk.device = \"b\"\nhost = \"::1\"\ndpdk.args = [\"-v\"]",
        "[[nic]]\nshm = {}\n[process]\nidle = 7\nspin_us = 10",
        "[[nic]]\nshm = {}\n[[process.application]]\nuser = []",
        "[[nic]]\naf_packet.interface = \"a\"\nhost = \"::1\"\nstatic.n_port_ids = 3\n\
         static.neighbour = [{ host = \"::2\", n_port_ids = \"00.00.02\" }]",
        "[[nic]]\naf_packet.interface = \"a\"\nhost = \"::1\"\nstatic = 3",
    ] {
        only_error(text);
    }
}

/// Each key of version 0.1 is refused with the table and key to write instead, which parse.
#[test]
fn every_key_of_version_0_1_is_refused_with_the_line_to_write() {
    let known = tables();
    let moved = flat::moved_keys();
    assert!(moved.len() > 70, "{}", moved.len());
    for (old, present) in moved {
        let (key, value) = old.split_once(" = ").unwrap_or((&old, "7"));
        let text = format!("[[nic]]\nshm = {{}}\n{key} = {value}\n");
        let message = only_error(&text);
        assert!(message.starts_with("line 3: nic \"VINIC0\": "), "{message}");
        if present.is_empty() {
            assert!(message.ends_with(": remove it"), "{message}");
            continue;
        }
        if key == "progress" {
            assert!(message.contains(&present), "{message}");
            continue;
        }
        assert!(message.contains("as in version 0.1: write"), "{message}");
        // The first table, or another one: what a table of several is there for depends on the network.
        let is_written = |present: &str| match present.split_once(' ') {
            None => message.contains(present),
            Some((table, key)) => {
                let known = known
                    .iter()
                    .find(|known| known.header == table)
                    .expect(table);
                let exists = known.keys.iter().any(|known| known.name == key);
                exists
                    && message.contains(&format!("write {key} = 7 in "))
                    && message.contains(table)
            }
        };
        assert!(
            present.split(", ").any(is_written),
            "{old}: {present}: {message}"
        );
    }
}

#[test]
fn key_of_version_0_1_is_written_in_the_table_of_its_network() {
    for (network, table) in [
        ("port = \"af_packet\"", "[nic.af_packet]"),
        ("port = \"af_xdp\"", "[nic.af_xdp]"),
        ("transport = \"vi-tcp\"", "[nic.vi_tcp]"),
    ] {
        let message = Config::parse(&format!("[[nic]]\n{network}\nprobe_interval_ms = 7"));
        let message = message.unwrap_err().to_string();
        let lines: Vec<&str> = message.lines().collect();
        let expected = [
            format!(
                "line 2: nic \"VINIC0\": {network}: as in version 0.1: write the table {table}"
            ),
            format!(
                "line 3: nic \"VINIC0\": probe_interval_ms = 7: as in version 0.1: write probe_interval_ms = 7 in {table}"
            ),
        ];
        assert_eq!(lines, expected);
    }
    let tables = "[[nic]]\n[nic.tls]\n[[nic.neighbour]]\n[nic.fault]\n";
    let message = Config::parse(tables).unwrap_err().to_string();
    for table in [
        "[nic.vi_tcp.tls]",
        "[[nic.static.neighbour]]",
        "[nic.fc_vi.fault]",
    ] {
        assert!(
            message.contains(&format!("write the table {table}")),
            "{message}"
        );
    }
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    for (text, line) in [
        ("[[nic", 1),
        ("[[nic]]\nmax_vi 3\n", 2),
        ("[[nic]]\nname = \"x\n", 2),
        ("[[nic]]\n\nlimits.max_vi = 1,000\n", 3),
        ("[process]\n[process]\n", 2),
        ("\u{0}", 1),
    ] {
        let message = Config::parse(text).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("line {line}: ")),
            "{text:?}: {message}"
        );
        assert!(
            message.contains("TOML") || message.contains("remove one"),
            "{text:?}: {message}"
        );
    }
}

/// A user database without entries.
struct NoUsers;

impl UserDatabase for NoUsers {
    fn own_uid(&self) -> u32 {
        7
    }
    fn uid(&self, _: &str) -> std::io::Result<Option<u32>> {
        Ok(None)
    }
    fn gid(&self, _: &str) -> std::io::Result<Option<u32>> {
        Ok(None)
    }
}

#[test]
fn error_begins_with_file_and_line() {
    let path = std::env::temp_dir().join(format!("unit-{}-errors.toml", std::process::id()));
    std::fs::write(
        &path,
        "[[nic]]\nlimits.max_vi = 0\nshm = {}\n[process]\nusers = [\"no such user of this host\"]\n",
    )
    .unwrap();
    let read = Config::read(&path).unwrap_err().to_string();
    let served = Config::read_with(&path, Some(&NoUsers))
        .unwrap_err()
        .to_string();
    std::fs::remove_file(&path).unwrap();
    let path = path.display();
    let first = format!("{path}:2: nic \"VINIC0\": limits: max_vi = 0: must be 1 to 4096");
    assert_eq!(read, first);
    let second = format!(
        "{path}:5: process: users: \"no such user of this host\": no such user on this host: `getent passwd` lists them"
    );
    assert_eq!(served, format!("{first}\n{second}"));
    let missing = Config::read(Path::new("no/such/file.toml"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("no/such/file.toml: cannot be read: "),
        "{missing}"
    );
}

proptest::proptest! {
    /// Random edits of an example cause no panic, and every error has a valid line.
    #[test]
    fn errors_of_edited_examples_have_valid_lines(
        example in 0..64usize,
        edits in proptest::collection::vec((0..4000usize, 0..40usize, "[ -~\n\\PC]{0,12}"), 1..6),
    ) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
        files.sort();
        let file = &files[example % files.len()];
        let mut text: Vec<char> = std::fs::read_to_string(file).unwrap().chars().collect();
        for (at, length, new) in edits {
            let at = at % (text.len() + 1);
            let end = (at + length).min(text.len());
            text.splice(at..end, new.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = Config::parse(&text) {
            let last = text.matches('\n').count() + 1;
            for error in error.to_string().lines() {
                let line = error.strip_prefix("line ").and_then(|rest| rest.split(':').next());
                let line = line.and_then(|line| line.parse::<usize>().ok());
                assert!(line.is_some_and(|line| (1..=last).contains(&line)), "{error}\n{text}");
            }
        }
    }
}
