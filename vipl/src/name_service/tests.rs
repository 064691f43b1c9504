//! Tests of the name service: parsing, lookup and limits.

use std::fs;

use proptest::prelude::*;

use super::*;

const OWN: HostAddress = HostAddress([0xFD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x2A]);

fn service(text: &str) -> NameService {
    let read = NameService::from_text(text.as_bytes(), OWN, "thishost".to_owned());
    read.unwrap().0
}

fn v4(a: u8, b: u8, c: u8, d: u8) -> HostAddress {
    HostAddress::from_ipv4([a, b, c, d])
}

fn v6(text: &str) -> HostAddress {
    HostAddress(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
}

/// A directory that is removed with its contents at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("viaduct-names-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, contents: &[u8]) -> PathBuf {
        let path = self.0.join("hosts");
        fs::write(&path, contents).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn by_name_and_by_address_resolve_entries_of_the_file() {
    let names =
        service("10.0.0.1 alpha alpha.example.org # the first\n\n# comment\n\tfd00::7   beta\r\n");
    assert_eq!(names.by_name("alpha", 0), Some(v4(10, 0, 0, 1)));
    assert_eq!(names.by_name("alpha.example.org", 0), Some(v4(10, 0, 0, 1)));
    assert_eq!(names.by_name("beta", 0), Some(v6("fd00::7")));
    assert_eq!(names.by_name("gamma", 0), None);
    assert_eq!(names.by_address(&v4(10, 0, 0, 1)), Some("alpha"));
    assert_eq!(names.by_address(&v6("fd00::7")), Some("beta"));
    assert_eq!(names.by_address(&v4(10, 0, 0, 2)), None);
    assert_eq!(names.skipped_lines(), 0);
}

#[test]
fn lookup_ignores_case_and_returns_the_original_spelling() {
    let names = service("10.0.0.1 Alpha\n");
    assert_eq!(names.by_name("aLPHA", 0), Some(v4(10, 0, 0, 1)));
    assert_eq!(names.by_address(&v4(10, 0, 0, 1)), Some("Alpha"));
}

#[test]
fn by_name_returns_distinct_addresses_in_the_order_of_the_file() {
    let names = service("10.0.0.2 a\n10.0.0.1 A\n10.0.0.2 a\n::ffff:10.0.0.1 a\nfd00::1 a\n");
    let all: Vec<_> = (0..).map_while(|index| names.by_name("a", index)).collect();
    assert_eq!(all, [v4(10, 0, 0, 2), v4(10, 0, 0, 1), v6("fd00::1")]);
    assert_eq!(names.by_name("a", u64::MAX), None);
}

#[test]
fn by_name_of_this_host_returns_the_nics_address_before_those_of_the_file() {
    let names = service(
        "127.0.0.1 localhost\n::1 localhost other\n127.0.1.1 ThisHost\n10.9.9.9 thishost\n\
         fd00::2a thishost\n",
    );
    for name in ["localhost", "LocalHost", "thishost", "THISHOST"] {
        assert_eq!(names.by_name(name, 0), Some(OWN), "{name}");
    }
    assert_eq!(names.by_name("localhost", 1), None);
    let of_file = [1, 2].map(|index| names.by_name("thishost", index));
    assert_eq!(of_file, [Some(v4(127, 0, 1, 1)), Some(v4(10, 9, 9, 9))]);
    assert_eq!(
        names.by_name("thishost", 3),
        None,
        "the NIC's own address was the first"
    );
    assert_eq!(
        names.by_name("other", 0),
        Some(v6("::1")),
        "another name of the same line is used"
    );
    assert_eq!(names.by_address(&OWN), Some("thishost"));
    assert_eq!(names.by_address(&v4(10, 9, 9, 9)), Some("thishost"));
}

#[test]
fn by_address_without_a_host_name_returns_localhost() {
    let (names, _) = NameService::from_text(b"10.0.0.1 a", OWN, String::new()).unwrap();
    assert_eq!(names.by_address(&OWN), Some("localhost"));
    assert_eq!(
        names.by_name("", 0),
        None,
        "the empty name does not resolve"
    );
}

#[test]
fn by_name_of_a_textual_address_returns_it() {
    let names = service("");
    assert_eq!(names.by_name("10.1.2.3", 0), Some(v4(10, 1, 2, 3)));
    assert_eq!(names.by_name("FD00::2", 0), Some(v6("fd00::2")));
    assert_eq!(names.by_name("10.1.2.3", 1), None);
    assert_eq!(names.by_name("10.1.2", 0), None);
}

#[test]
fn unusable_lines_are_counted_and_the_others_used() {
    let text: &[u8] = b"fe80::1%eth0 zoned\nnonsense\n10.0.0.300 high\n10.0.0.1\n\xFF\xFE 10.0.0.1\n10.0.0.2 good\n";
    let (names, first) = NameService::from_text(text, OWN, String::new()).unwrap();
    assert_eq!(names.skipped_lines(), 5);
    assert_eq!(first, Some((1, SkipReason::ZoneId)));
    assert_eq!(names.by_name("good", 0), Some(v4(10, 0, 0, 2)));
    assert_eq!(names.by_name("zoned", 0), None);
    let long = format!(
        "10.0.0.1 {}\n10.0.0.1 short",
        "x".repeat(MAX_NAME_BYTES + 1)
    );
    let (names, first) = NameService::from_text(long.as_bytes(), OWN, String::new()).unwrap();
    assert_eq!(first, Some((1, SkipReason::BadName)));
    assert_eq!(names.by_name("short", 0), Some(v4(10, 0, 0, 1)));
}

#[test]
fn addresses_per_name_and_entries_are_limited() {
    let one_name: String = (0..300)
        .map(|n| format!("10.0.{}.{} a\n", n / 256, n % 256))
        .collect();
    let names = service(&one_name);
    assert_eq!(names.skipped_lines(), 300 - MAX_ADDRESSES_PER_NAME as u64);
    assert!(
        names
            .by_name("a", MAX_ADDRESSES_PER_NAME as u64 - 1)
            .is_some()
    );
    assert_eq!(names.by_name("a", MAX_ADDRESSES_PER_NAME as u64), None);

    let many: String = (0..MAX_ENTRIES + 2)
        .map(|n| format!("::1 {n:x}\n"))
        .collect();
    let names = service(&many);
    assert_eq!(names.skipped_lines(), 2);
    assert!(
        names
            .by_name(&format!("{:x}", MAX_ENTRIES - 1), 0)
            .is_some()
    );
}

#[test]
fn open_reads_the_given_file_and_fails_if_it_is_missing() {
    let scratch = Scratch::new("read");
    let path = scratch.file(b"192.0.2.1 only-here\n");
    let names = NameService::open(Some(&path), OWN).unwrap();
    assert_eq!(names.by_name("only-here", 0), Some(v4(192, 0, 2, 1)));
    assert_eq!(names.by_name("localhost", 0), Some(OWN));

    let missing = scratch.0.join("missing");
    let error = NameService::open(Some(&missing), OWN).unwrap_err();
    assert!(
        matches!(&error, NameServiceError::Unreadable { .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("missing"), "{error}");
    let error = NameService::open(Some(&scratch.0), OWN).unwrap_err();
    assert!(
        matches!(error, NameServiceError::NotAFile { .. }),
        "{error:?}"
    );
}

#[test]
fn open_of_a_pipe_fails_immediately() {
    let scratch = Scratch::new("pipe");
    let path = scratch.0.join("pipe");
    let status = std::process::Command::new("mkfifo")
        .arg(&path)
        .status()
        .unwrap();
    assert!(status.success());
    let error = NameService::open(Some(&path), OWN).unwrap_err();
    assert!(
        matches!(error, NameServiceError::NotAFile { .. }),
        "{error:?}"
    );
}

#[test]
fn open_of_a_long_file_uses_the_complete_lines_within_the_limit() {
    let scratch = Scratch::new("size");
    let mut contents = b"192.0.2.1 a\n192.0.2.2 b #".to_vec();
    contents.resize(MAX_FILE_BYTES as usize, b' ');
    let resolves = |contents: &[u8]| {
        let names = NameService::open(Some(&scratch.file(contents)), OWN).unwrap();
        ["a", "b", "localhost"].map(|name| names.by_name(name, 0).is_some())
    };
    assert_eq!(resolves(&contents), [true; 3]);
    contents.push(b' ');
    assert_eq!(
        resolves(&contents),
        [true, false, true],
        "the line of b is truncated"
    );
}

#[test]
fn open_without_a_file_uses_the_systems_hosts_file_and_name() {
    let names = NameService::open(None, OWN).unwrap();
    assert_eq!(names.by_name("localhost", 0), Some(OWN));
    let host = host_name();
    assert!(!host.is_empty());
    assert_eq!(names.by_name(&host.to_ascii_uppercase(), 0), Some(OWN));
    assert_eq!(names.by_address(&OWN), Some(host.as_str()));
}

proptest! {
    #[test]
    fn from_text_accepts_any_bytes(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let (names, _) = NameService::from_text(&text, OWN, "thishost".to_owned()).unwrap();
        let lines = text.split(|&byte| byte == b'\n').count() as u64;
        prop_assert!(names.skipped_lines() <= lines);
        prop_assert_eq!(names.by_name("localhost", 0), Some(OWN));
    }

    #[test]
    fn by_name_finds_every_pair(pairs in proptest::collection::vec(("[a-z]{1,6}", any::<[u8; 16]>()), 1..40)) {
        let text: String = pairs
            .iter()
            .map(|(name, bytes)| format!("{} {name}\n", std::net::Ipv6Addr::from(*bytes)))
            .collect();
        let names = service(&text);
        for (name, bytes) in &pairs {
            let mut all = (0..).map_while(|index| names.by_name(name, index));
            prop_assert!(all.any(|address| address == HostAddress(*bytes)));
        }
    }
}
