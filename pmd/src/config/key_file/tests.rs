//! Every mistake of a key file says where it is and what to do, and nothing of a key.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

const KEY: &str = "00112233445566778899aabbccddeeff";
/// A piece of every key of these tests.
const SECRET: &str = "2233445566";

/// A file that is gone after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &[u8], mode: u32) -> Self {
        let name = format!("unit-{}-keys-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Self(path)
    }

    fn read(&self) -> Result<Option<Keys>, String> {
        let nic = NicConfig {
            key_file: Some(self.0.clone()),
            ..NicConfig::default()
        };
        nic.read_keys()
    }

    /// What is said of it, without the path.
    fn mistake(&self) -> String {
        let said = self.read().expect_err("there is a mistake");
        assert!(!said.contains(SECRET), "{said}");
        said.replace(&self.0.display().to_string(), "FILE")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// Files with one mistake each, and what is said of it.
fn mistakes() -> Vec<(String, &'static str)> {
    let long = "33445566".repeat(17);
    vec![
        (
            "".into(),
            "FILE: has no key, so nobody could be spoken with: add",
        ),
        (
            format!("\n\"192.0.2.1\" = \"{KEY}\"\n\"::1\" = \"2233445566\"\n"),
            "FILE:3: ::1: the key must be 16 to 64 bytes",
        ),
        (
            format!("\"::1\" = \"{KEY}2\"\n"),
            "FILE:1: ::1: the key must be 16 to 64 bytes",
        ),
        (
            format!("\"::1\" = \"{long}\"\n"),
            "FILE:1: ::1: the key must be 16 to 64 bytes",
        ),
        (
            format!("\"::1\" = \"{KEY}-{KEY}\"\n"),
            "FILE:1: ::1: the key must be 16 to 64 bytes",
        ),
        (
            "\"::1\" = 2233445566\n".into(),
            "FILE:1: ::1: the key must be 16 to 64 bytes",
        ),
        (
            format!("\"::1\" = [\"{KEY}\"]\n"),
            "FILE:1: ::1: the key must be 16 to 64 bytes",
        ),
        (
            format!("192.0.2.1 = \"{KEY}\"\n"),
            "FILE:1: must begin with an IP address or * in quotes",
        ),
        (
            format!("\"{KEY}\" = \"192.0.2.1\"\n"),
            "FILE:1: must begin with an IP address or * in quotes",
        ),
        (
            format!("\"*\" = \"{KEY}\"\n\n\"host-{KEY}\" = \"{KEY}\"\n"),
            "FILE:3: must begin with an IP address or * in quotes",
        ),
        (
            format!("\"::1\" = \"{KEY}\"\n\"::1\" = \"{KEY}\"\n"),
            "FILE:2: the address is there twice: remove one",
        ),
        (
            format!("\"192.0.2.1\" = \"{KEY}\"\n\"::ffff:192.0.2.1\" = \"{KEY}\"\n"),
            "192.0.2.1: the address is there twice: remove one",
        ),
        (
            format!("\"::1\" = {KEY}\n"),
            "FILE:1: not TOML: a line must be \"ADDRESS\" = \"KEY\"",
        ),
        (
            format!("\"*\" = \"{KEY}\"\n\"::1\" = \"{KEY}\n"),
            "FILE:2: not TOML: a line must be \"ADDRESS\" = \"KEY\"",
        ),
        (
            format!("::1 = \"{KEY}\"\n"),
            "FILE:1: not TOML: a line must be \"ADDRESS\" = \"KEY\"",
        ),
    ]
}

#[test]
fn every_mistake_has_its_line_and_its_remedy() {
    for (number, (text, expected)) in mistakes().into_iter().enumerate() {
        let file = Scratch::new(&format!("mistake-{number}"), text.as_bytes(), 0o600);
        let said = file.mistake();
        assert!(said.starts_with("key_file: FILE"), "{said}");
        assert!(said.contains(expected), "{said}\nwanted: {expected}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let two = format!("\"::1\" = \"1\"\n\"*\" = \"{KEY}\"\n\"::2\" = \"\"\n");
    let said = Scratch::new("two", two.as_bytes(), 0o400).mistake();
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].contains("FILE:1: ::1:") && lines[1].contains("FILE:3: ::2:"),
        "{said}"
    );
}

#[test]
fn keys_of_16_to_64_bytes_are_taken() {
    for bytes in [16, 17, 32, 64] {
        let key = &"A5b6".repeat(32)[..2 * bytes];
        let text = format!(
            "# ours\n\"192.0.2.1\" = \"{key}\"\n'2001:db8::1' = '{key}'\n\"*\" = \"{key}\""
        );
        let file = Scratch::new(&format!("fits-{bytes}"), text.as_bytes(), 0o600);
        let keys = file.read().unwrap().expect("it has keys");
        assert_eq!(format!("{keys:?}"), "Keys { hosts: 2, others: true }");
    }
    assert!(NicConfig::default().read_keys().unwrap().is_none());
    assert_eq!(bytes_of("00ffA5"), Some(vec![0, 255, 0xA5]));
}

#[test]
fn a_file_that_others_may_read_or_change_is_refused() {
    let text = format!("\"*\" = \"{KEY}\"\n");
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o777] {
        let file = Scratch::new(&format!("mode-{mode:o}"), text.as_bytes(), mode);
        let expected = format!(
            "key_file: FILE: others than its owner may read or write it, its mode is {mode:o}: `chmod 600` it"
        );
        assert_eq!(file.mistake(), expected);
    }
    for mode in [0o600, 0o400, 0o700] {
        let file = Scratch::new(&format!("mode-{mode:o}"), text.as_bytes(), mode);
        assert!(file.read().is_ok());
    }
}

#[test]
fn a_file_of_another_user_is_refused() {
    let kept = |owner| Kept {
        is_file: true,
        owner,
        mode: 0o100_600,
    };
    for (owner, user) in [(7, 7), (0, 7), (0, 0)] {
        assert_eq!(kept(owner).mistake(user), None);
    }
    for (owner, user) in [(7, 8), (7, 0)] {
        let said = kept(owner).mistake(user).unwrap();
        assert!(said.contains(&format!("belongs to user {owner}")), "{said}");
        assert!(
            said.contains(&format!("user {user} or of root, `chown`")),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_file_of_text_is_refused() {
    let said = |path: &str| {
        let nic = NicConfig {
            key_file: Some(path.into()),
            ..NicConfig::default()
        };
        nic.read_keys().expect_err("it is refused")
    };
    let directory = std::env::temp_dir().display().to_string();
    assert_eq!(
        said(&directory),
        format!("key_file: {directory}: is no file: give the path of one")
    );
    assert!(said("/dev/null").contains("/dev/null: is no file"));
    assert!(said("/no/such/file").starts_with("key_file: /no/such/file: cannot be read: "));
    // Nobody ever writes to it.
    let fifo = std::env::temp_dir().join(format!("unit-{}-keys-fifo", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let of_fifo = said(&fifo.display().to_string());
    fs::remove_file(&fifo).unwrap();
    assert!(of_fifo.contains("is no file"), "{of_fifo}");
    let binary = Scratch::new("binary", &[0xFF; 40], 0o600);
    assert_eq!(
        binary.mistake(),
        "key_file: FILE: is no text in UTF-8: is it the right file?"
    );
    let long = Scratch::new("long", &vec![b'\n'; (1 << 20) + 1], 0o600);
    assert!(long.mistake().contains("is longer than 1048576 bytes"));
}

#[test]
fn every_message_is_in_the_guide() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
    let guide = fs::read_to_string(guide).unwrap();
    let begin = guide.find("| message of a key file |").expect("its table");
    let table = guide[begin..].split("\n\n").next().unwrap();
    for message in [
        "is no file",
        "belongs to user",
        "others than its owner may read or write it",
        "is longer than",
        "is no text in UTF-8",
        "has no key",
        "the key must be 16 to 64 bytes in hexadecimal",
        "must begin with an IP address or * in quotes",
        "the address is there twice",
        "not TOML: a line must be",
    ] {
        assert!(table.contains(message), "not in the guide: {message}");
    }
}
