//! Every error of a key file states its location and what to do, and contains no part of a key.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

const KEY: &str = "00112233445566778899aabbccddeeff";
/// Part of every key of these tests.
const SECRET: &str = "2233445566";

/// A file that is removed on drop.
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
        read_keys(Some(&self.0))
    }

    /// Returns the error text, without the path.
    fn error(&self) -> String {
        let text = self.read().expect_err("there is an error");
        assert!(!text.contains(SECRET), "{text}");
        text.replace(&self.0.display().to_string(), "FILE")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

/// Files with one error each, and part of its text.
fn errors() -> Vec<(String, &'static str)> {
    let long = "33445566".repeat(17);
    vec![
        (
            "".into(),
            "FILE: contains no key, which would prevent all connections: add",
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
            "FILE:2: duplicate address: remove one",
        ),
        (
            format!("\"192.0.2.1\" = \"{KEY}\"\n\"::ffff:192.0.2.1\" = \"{KEY}\"\n"),
            "192.0.2.1: duplicate address: remove one",
        ),
        (
            format!("\"::1\" = {KEY}\n"),
            "FILE:1: invalid TOML: a line must be \"ADDRESS\" = \"KEY\"",
        ),
        (
            format!("\"*\" = \"{KEY}\"\n\"::1\" = \"{KEY}\n"),
            "FILE:2: invalid TOML: a line must be \"ADDRESS\" = \"KEY\"",
        ),
        (
            format!("::1 = \"{KEY}\"\n"),
            "FILE:1: invalid TOML: a line must be \"ADDRESS\" = \"KEY\"",
        ),
    ]
}

#[test]
fn every_error_states_its_line_and_what_to_do() {
    for (number, (contents, expected)) in errors().into_iter().enumerate() {
        let file = Scratch::new(&format!("error-{number}"), contents.as_bytes(), 0o600);
        let text = file.error();
        assert!(text.starts_with("key_file: FILE"), "{text}");
        assert!(text.contains(expected), "{text}\nwanted: {expected}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let two = format!("\"::1\" = \"1\"\n\"*\" = \"{KEY}\"\n\"::2\" = \"\"\n");
    let text = Scratch::new("two", two.as_bytes(), 0o400).error();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].contains("FILE:1: ::1:") && lines[1].contains("FILE:3: ::2:"),
        "{text}"
    );
}

#[test]
fn keys_of_16_to_64_bytes_are_accepted() {
    for bytes in [16, 17, 32, 64] {
        let key = &"A5b6".repeat(32)[..2 * bytes];
        let text = format!(
            "# ours\n\"192.0.2.1\" = \"{key}\"\n'2001:db8::1' = '{key}'\n\"*\" = \"{key}\""
        );
        let file = Scratch::new(&format!("fits-{bytes}"), text.as_bytes(), 0o600);
        let keys = file.read().unwrap().expect("it has keys");
        assert_eq!(format!("{keys:?}"), "Keys { hosts: 2, others: true }");
    }
    assert!(read_keys(None).unwrap().is_none());
    assert_eq!(parse_hex("00ffA5"), Some(vec![0, 255, 0xA5]));
}

#[test]
fn file_accessible_to_other_users_is_refused() {
    let text = format!("\"*\" = \"{KEY}\"\n");
    for mode in [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o644, 0o777] {
        let file = Scratch::new(&format!("mode-{mode:o}"), text.as_bytes(), mode);
        let expected = format!(
            "key_file: FILE: is accessible to other users, its mode is {mode:o}: run `chmod 600`"
        );
        assert_eq!(file.error(), expected);
    }
    for mode in [0o600, 0o400, 0o700] {
        let file = Scratch::new(&format!("mode-{mode:o}"), text.as_bytes(), mode);
        assert!(file.read().is_ok());
    }
}

#[test]
fn file_of_another_user_is_refused() {
    let attributes = |owner| FileAttributes {
        is_file: true,
        owner,
        mode: 0o100_600,
    };
    for (owner, user) in [(7, 7), (0, 7), (0, 0)] {
        assert_eq!(attributes(owner).error(user), None);
    }
    for (owner, user) in [(7, 8), (7, 0)] {
        let text = attributes(owner).error(user).unwrap();
        assert!(text.contains(&format!("belongs to user {owner}")), "{text}");
        assert!(
            text.contains(&format!("user {user} or root, run `chown`")),
            "{text}"
        );
    }
}

#[test]
fn path_of_anything_but_a_text_file_is_refused() {
    let error = |path: &str| read_keys(Some(Path::new(path))).expect_err("it is refused");
    let directory = std::env::temp_dir().display().to_string();
    assert_eq!(
        error(&directory),
        format!("key_file: {directory}: is not a regular file: set the path of one")
    );
    assert!(error("/dev/null").contains("/dev/null: is not a regular file"));
    assert!(error("/no/such/file").starts_with("key_file: /no/such/file: cannot be read: "));
    // It has no writer.
    let fifo = std::env::temp_dir().join(format!("unit-{}-keys-fifo", std::process::id()));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let of_fifo = error(&fifo.display().to_string());
    fs::remove_file(&fifo).unwrap();
    assert!(of_fifo.contains("is not a regular file"), "{of_fifo}");
    let binary = Scratch::new("binary", &[0xFF; 40], 0o600);
    assert_eq!(
        binary.error(),
        "key_file: FILE: is not UTF-8 text: is it the right file?"
    );
    let long = Scratch::new("long", &vec![b'\n'; (1 << 20) + 1], 0o600);
    assert!(long.error().contains("is longer than 1048576 bytes"));
}

#[test]
fn every_error_is_documented() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let guide = fs::read_to_string(guide).unwrap();
    let begin = guide.find("| message of a key file |").expect("its table");
    let table = guide[begin..].split("\n\n").next().unwrap();
    for message in [
        "is not a regular file",
        "belongs to user",
        "is accessible to other users",
        "is longer than",
        "is not UTF-8 text",
        "contains no key",
        "the key must be 16 to 64 bytes in hexadecimal",
        "must begin with an IP address or * in quotes",
        "duplicate address",
        "invalid TOML: a line must be",
    ] {
        assert!(table.contains(message), "not documented: {message}");
    }
}
