//! Every key of every table with every kind of invalid value: the error states line, key and what to do.

use super::super::file::Table;
use super::super::*;

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
    let nic = match key {
        "interface" => "[[nic]]\nport = \"af_packet\"\nhost = \"192.0.2.1\"\n",
        "host" | "port_name" | "node_name" | "beacon_ms" | "discovery_ms" | "rx_frames"
        | "tx_frames" | "probe_interval_ms" | "n_port_ids" => {
            "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"192.0.2.1\"\n"
        }
        "queue" | "queues" | "copy" => {
            "[[nic]]\nport = \"af_xdp\"\ninterface = \"a\"\nhost = \"192.0.2.1\"\n"
        }
        "device" => "[[nic]]\nport = \"dpdk\"\nhost = \"192.0.2.1\"\n",
        "args" | "huge_pages" | "mtu_bytes" => {
            "[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0\"\nhost = \"192.0.2.1\"\n"
        }
        "memory_mb" => {
            "[[nic]]\nport = \"dpdk\"\ndevice = \"net_null0\"\nhost = \"192.0.2.1\"\nhuge_pages = true\n"
        }
        "core" => "[[nic]]\nprogress = \"pinned\"\n",
        "tcp_port" | "flow_control" | "credits_low" | "key_file" | "tls" => {
            "[[nic]]\ntransport = \"vi-tcp\"\n"
        }
        _ if key.starts_with("recovery_") => "[[nic]]\nrecovery = true\n",
        _ => "[[nic]]\n",
    };
    match T::HEADER {
        "" => String::new(),
        "[[nic]]" if key == "host" => "[[nic]]\n".into(),
        "[[nic]]" => nic.into(),
        "[nic.fault]" => "[[nic]]\n[nic.fault]\n".into(),
        "[[nic.neighbour]]" => {
            let other = if key == "host" {
                "n_port_ids = \"00.01.09\"\n"
            } else {
                "host = \"192.0.2.2\"\n"
            };
            format!(
                "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"192.0.2.1\"\nn_port_ids = \"00.01.01\"\n\
                 [[nic.neighbour]]\n{other}"
            )
        }
        "[nic.tls]" if key.starts_with("max_") => {
            "[[nic]]\ntransport = \"vi-tcp\"\n[nic.tls]\ncertificate = \"a\"\nprivate_key = \"b\"\nauthorities = \"c\"\n".into()
        }
        "[process]" if key == "spin_us" => "[[nic]]\n[process]\nidle = \"hybrid\"\n".into(),
        "[[process.application]]" if key != "user" && key != "group" => {
            "[[nic]]\n[[process.application]]\nuser = 7\n".into()
        }
        header => format!("[[nic]]\n{header}\n"),
    }
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
    let keys = keys::of::<T>();
    assert!(!keys.is_empty(), "{}", T::HEADER);
    let numbers = T::numbers();
    for key in keys {
        let number = numbers.iter().find(|number| number.key == *key);
        let must_be = keys::must_be::<T>(key);
        let must_be = must_be.unwrap_or_else(|| panic!("{} {key}: no requirement", T::HEADER));
        case::<T>(key, WRONG_TYPE, &[WRONG_TYPE, &must_be]).check();
        let Some(number) = number else {
            assert!(
                wrong_values.iter().any(|row| row.0 == *key),
                "{} {key}: no row for it",
                T::HEADER
            );
            continue;
        };
        assert!(T::form(key).is_none(), "{key}: two forms");
        let range = format!("{} to {}", number.low, number.high);
        for wrong in [
            "\"many\"",
            "1.5",
            "true",
            "-1",
            "99999999999999999999999",
            "[3]",
        ] {
            case::<T>(key, wrong, &[wrong, &range]).check();
        }
        let low = number.low.checked_sub(1);
        for wrong in low.into_iter().chain(number.high.checked_add(1)) {
            case::<T>(key, &wrong.to_string(), &[&format!("= {wrong}"), &range]).check();
        }
        for right in [number.low, number.high] {
            // The largest integer that all TOML parsers support.
            let right = right.min(i64::MAX as u64);
            let text = case::<T>(key, &right.to_string(), &[]).text;
            if let Err(error) = Config::parse(&text) {
                let message = error.to_string();
                assert!(message.contains("must be at"), "{text}\n{message}");
            }
        }
    }
    for number in &numbers {
        assert!(
            keys.contains(&number.key),
            "{} has no key {}",
            T::HEADER,
            number.key
        );
    }
    for (key, value, word) in wrong_values {
        assert!(keys.contains(key), "{} has no key {key}", T::HEADER);
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
    if let Some(key) = keys.iter().find(|key| key.len() > 3) {
        let mistyped = &key[..key.len() - 1];
        case::<T>(mistyped, "1", &[&format!("; did you mean `{key}`?")]).check();
    }
}

#[test]
fn every_key_of_a_nic() {
    let long = format!("{:?}", "x".repeat(65));
    let long_ring = format!("\"ring:{}\"", "x".repeat(33));
    every_key::<NicConfig>(&[
        ("name", "7", "in quotes"),
        (
            "port",
            "\"shmem\"",
            "\"shm\", \"af_packet\", \"af_xdp\" or \"dpdk\"",
        ),
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
        ("copy", "\"never\"", "\"auto\", \"zero-copy\" or \"copy\""),
        ("segment", "\"a/b\"", "letters, digits"),
        ("segment", &long, "1 to 64"),
        ("directory", "[]", "path"),
        ("interface", "\"a-name-of-16-byt\"", "at most 15"),
        ("n_port_ids", "\"7\"", "\"00.01.01\" or a range"),
        ("n_port_ids", "\"00.01.09-00.01.01\"", "ascending order"),
        ("n_port_ids", "\"00.01.01-00.05.01\"", "1 to 256"),
        ("port_name", "\"20:00\"", "eight bytes"),
        ("node_name", "\"0000000000000000\"", "eight bytes"),
        ("host", "\"ten\"", "an IP address in quotes"),
        ("host", "\"0.0.0.0\"", "one host"),
        ("host", "\"ff02::1\"", "one host"),
        ("shortcut", "1", "true or false"),
        ("transport", "\"tcp\"", "\"fc-vi\" or \"vi-tcp\""),
        ("flow_control", "1", "true or false"),
        ("tls", "7", "[nic.tls]"),
        ("neighbour", "7", "[[nic.neighbour]]"),
        ("neighbour", "[7]", "[[nic.neighbour]]"),
        ("hosts_file", "7", "path"),
        ("progress", "\"pined\"", "\"inline\" or \"pinned\""),
        ("protection", "\"Strict\"", "\"strict\" or \"lenient\""),
        ("lock_memory", "\"always\"", "\"required\""),
        ("recovery", "\"yes\"", "true or false"),
        ("fault", "7", "[nic.fault]"),
        ("capture", "7", "path"),
        ("key_file", "7", "path"),
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
    let nic = "[[nic]]\ntransport = \"vi-tcp\"\n[nic.tls]\n";
    let config = Config::parse(&[nic, &certificate, &key, &authorities].concat()).unwrap();
    let expected = TlsConfig {
        certificate: "/certificate.pem".into(),
        private_key: "/private_key.pem".into(),
        authorities: "/authorities.pem".into(),
        ..TlsConfig::default()
    };
    assert_eq!(config.nics[0].tls.as_ref(), Some(&expected));
    let empty = [nic, &certificate, "private_key = \"\"\n", &authorities].concat();
    assert_eq!(
        only_error(&empty),
        "line 5: nic \"VINIC0\": tls: private_key = \"\": must be the path of a PEM file"
    );
}

#[test]
fn every_key_of_injected_faults() {
    every_key::<FaultConfig>(&[]);
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
    let longest = format!("[[nic]]\n[process]\nsocket = {}\n", path(107));
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
    let message = only_error("[[nic]]\n[alias]\n\nclan0 = 7\n");
    assert_eq!(
        message,
        "line 4: alias: clan0 = 7: must be the name of a NIC, in quotes"
    );
}

#[test]
fn nics_share_a_core_in_the_process_only() {
    let core = "progress = \"pinned\"\ncore = 1\n";
    let two = format!("[[nic]]\n{core}[[nic]]\n{core}");
    let message = only_error(&two);
    assert!(
        message.starts_with("line 6: nic \"VINIC1\": core = 1: already used by nic \"VINIC0\""),
        "{message}"
    );
    let served = Config::parse("[[nic]]\ncore = 1\n[[nic]]\ncore = 1\n[process]\n").unwrap();
    for nic in &served.nics {
        assert_eq!((nic.progress, nic.core), (Progress::Pinned, Some(1)));
    }
    assert_eq!(served.process, Some(ProcessConfig::default()));
}

#[test]
fn nic_of_the_process_with_faults_requires_shortcut() {
    for (key, value) in [("capture", "\"/a\""), ("fault", "{ loss_ppm = 1 }")] {
        for shortcut in [true, false] {
            let text = format!("[[nic]]\n{key} = {value}\nshortcut = {shortcut}\n[process]\n");
            let config = Config::parse(&text).unwrap();
            assert_eq!(config.nics[0].shortcut, shortcut);
        }
        // Not required without [process].
        Config::parse(&format!("[[nic]]\n{key} = {value}\n")).unwrap();
    }
}

#[test]
fn all_errors_of_a_file_are_reported_in_line_order() {
    let text = "[[nic]]\nmax_vi = 0\nport = \"shmem\"\nsegment = 7\n\n[[nic]]\nname = \"fast\"\nprot = 1\n\
                max_cq = \"x\"\n[process]\nidle = 1\nusers = 3\n[process.quota]\nrate_share = 0\n";
    let error = Config::parse(text).unwrap_err();
    let expected = [
        "line 2: nic \"VINIC0\": max_vi = 0: must be 1 to 4096",
        "line 3: nic \"VINIC0\": port = \"shmem\": must be \"shm\", \"af_packet\", \"af_xdp\" or \"dpdk\"",
        "line 4: nic \"VINIC0\": segment = 7: must be 1 to 64 letters, digits, '.', '_' or '-', in quotes",
        "line 8: nic \"fast\": unknown key `prot` in [[nic]]; did you mean `port`?",
        "line 9: nic \"fast\": max_cq = \"x\": must be a number, 1 to 65536",
        "line 11: process: idle = 1: must be \"spin\" or \"hybrid\"",
        "line 12: process: users = 3: must be a list of users, names in quotes or numbers: [\"alice\", 1001]",
        "line 14: process: quota: rate_share = 0: must be 1 to 100",
    ];
    assert_eq!(error.to_string().lines().collect::<Vec<_>>(), expected);
    assert_eq!(error.count(), expected.len());
}

#[test]
fn invalid_key_causes_exactly_one_error() {
    // Not also a missing interface, or a core without progress = "pinned".
    for text in [
        "[[nic]]\nport = \"af_packet\"\ninterface = 7\nhost = \"::1\"",
        "[[nic]]\nprogress = 7\ncore = 1\ntakeover_us = 10",
        "[[nic]]\nport = 7\ninterface = \"a\"\nsegment = \"s\"",
        "[[nic]]\nport = \"dpdk\"\ndevice = 7\nhost = \"::1\"",
        "[[nic]]\nport = \"dpdk\"\ndevice = \"a\"\nhost = \"::1\"\nhuge_pages = 7\nmemory_mb = 0",
        "[[nic]]\nport = \"dpdk\"\ndevice = \"a\"\nhost = \"::1\"\nargs = 7\n\
         [[nic]]\nport = \"dpdk\"\ndevice = \"b\"\nhost = \"::1\"\nargs = [\"-v\"]",
        "[[nic]]\n[process]\nidle = 7\nspin_us = 10",
        "[[nic]]\n[[process.application]]\nuser = []",
        "[[nic]]\nport = \"af_packet\"\ninterface = \"a\"\nhost = \"::1\"\nn_port_ids = 3\n\
         neighbour = [{ host = \"::2\", n_port_ids = \"00.00.02\" }]",
    ] {
        only_error(text);
    }
}

#[test]
fn invalid_toml_is_reported_with_its_line() {
    for (text, line) in [
        ("[[nic", 1),
        ("[[nic]]\nmax_vi 3\n", 2),
        ("[[nic]]\nname = \"x\n", 2),
        ("[[nic]]\n\nmax_vi = 1,000\n", 3),
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

#[test]
fn error_begins_with_file_and_line() {
    let path = std::env::temp_dir().join(format!("unit-{}-errors.toml", std::process::id()));
    std::fs::write(
        &path,
        "[[nic]]\nmax_vi = 0\n[process]\nusers = [\"no such user of this host\"]\n",
    )
    .unwrap();
    let read = Config::read(&path).unwrap_err().to_string();
    let served = Config::read_to_serve(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let path = path.display();
    let first = format!("{path}:2: nic \"VINIC0\": max_vi = 0: must be 1 to 4096");
    assert_eq!(read, first);
    let second = format!(
        "{path}:4: process: users: \"no such user of this host\": no such user on this host: `getent passwd` lists them"
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
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
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
