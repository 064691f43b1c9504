//! `fcvi-pmd check` and `fcvi-pmd neighbours`.

use std::path::Path;
use std::process::Command;

use e2e::datapath::fcvi_pmd_path;
use e2e::installation::workspace;
use e2e::nics::{End, NicText};
use e2e::own_port::OwnPort;
use e2e::process::{Running, TIMEOUT, assert_contains, output_of_failure, program};
use e2e::scratch::Scratch;
use e2e::wire::{Namespace, Wire};
use serde_json::Value;

fn fcvi_pmd(namespace: Option<&Namespace>, words: &[&str], config: &Path) -> Command {
    let path = fcvi_pmd_path();
    let mut command = match namespace {
        Some(namespace) => namespace.program(path),
        None => program(path),
    };
    command.args(words).arg(config);
    command
}

#[test]
fn check_describes_nics_and_reports_errors_and_warnings() {
    let scratch = Scratch::new("check");
    let example = workspace().join("configs/two-hosts-af_packet.toml");
    let mut check = fcvi_pmd(None, &["check"], &example);
    let output = Running::start("check", &mut check).succeed(TIMEOUT);
    assert!(
        output.starts_with("VINIC0: af_packet on eth0, "),
        "{output}"
    );
    for (text, word) in [
        (
            "[[nic]]\nshm = {}\nlimits.max_vi = 5000\n",
            "max_vi = 5000: must be 1 to",
        ),
        ("", "add [[nic]]"),
    ] {
        let config = scratch.write("wrong.toml", text);
        let mut check = fcvi_pmd(None, &["check"], &config);
        assert_contains(&output_of_failure(&mut check), &[word]);
    }
    // A warning only.
    let config = scratch.write(
        "more.toml",
        "[[nic]]\nshm = {}\nprogress.pinned.core = 1\n[process]\n",
    );
    let mut check = fcvi_pmd(None, &["check"], &config);
    let output = Running::start("check", &mut check).succeed(TIMEOUT);
    let warning =
        "warning: NIC VINIC0: max_applications = 64 applications with the quota of [process.quota]";
    assert!(
        output.contains(warning) && output.contains("max_vi 64 x 128 > 1024"),
        "{output}"
    );
    let config = scratch.write(
        "many.toml",
        "[[nic]]\nshm = {}\nprogress.pinned.core = 1\nlimits.max_v = 3\n[process]\nusers = [\"no such user\"]\n",
    );
    let mut check = fcvi_pmd(None, &["check"], &config);
    let output = output_of_failure(&mut check);
    let lines: Vec<&str> = output.lines().collect();
    let expected = [
        format!(
            "{}:4: nic \"VINIC0\": limits: unknown key `max_v` in [nic.limits]; did you mean `max_vi`?",
            config.display()
        ),
        format!(
            "{}:6: process: users: \"no such user\": no such user on this host: `getent passwd` lists them",
            config.display()
        ),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn two_ports_on_a_wire_list_each_other() {
    let wire = Wire::new(2500);
    let scratch = Scratch::new("neighbours");
    let left = NicText::discovering("left", End::Left.host()).write(&scratch, "left.toml");
    let right = NicText::discovering("right", End::Right.host()).write(&scratch, "right.toml");
    let mut watching = OwnPort::start(&wire.left, "left", &left);
    let own = watching.wait_until_up();

    let words = ["neighbours", "--json", "--for", "8", "--config"];
    let mut list = fcvi_pmd(Some(&wire.right), &words, &right);
    let output = Running::start("right", &mut list).succeed(TIMEOUT);
    let list: Value = serde_json::from_str(&output).expect("one JSON object");
    assert_eq!(list["own"]["state"], "up");
    let other = number(&list["own"]["port_name"]);
    let [neighbour] = list["neighbours"].as_array().expect("a list").as_slice() else {
        panic!("not exactly one neighbour: {output}");
    };
    assert_eq!(number(&neighbour["port_name"]), own.port_name);
    assert_eq!(number(&neighbour["node_name"]), own.node_name);
    assert_eq!(number(&neighbour["n_port_id"]), u64::from(own.port_id));
    assert_eq!(neighbour["login"], "logged in");
    assert_eq!(neighbour["speaks_fc_vi"], true);
    assert_eq!(neighbour["host"], End::Left.host());
    assert_eq!(neighbour["mac"], wire.left.link("left")["address"]);
    assert_eq!(neighbour["data_field_bytes"], 2112);

    // The watching port has seen its login and its logout.
    let seen = watching.wait_for_login(other, "logged in", TIMEOUT);
    assert_eq!(u64::from(seen.port_id), number(&list["own"]["n_port_id"]));
    watching.wait_for_login(other, "logged out", TIMEOUT);
    watching.stop();
}

fn number(text: &Value) -> u64 {
    let text = text.as_str().expect("text");
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u64::from_str_radix(&digits, 16).expect("hexadecimal digits")
}

#[test]
fn configured_neighbours_are_listed_as_such() {
    let wire = Wire::new(1500);
    let scratch = Scratch::new("neighbours");
    let config = NicText::af_packet(End::Left).write(&scratch, "left.toml");
    let words = ["neighbours", "--for", "0", "--config"];
    let output = Running::start("left", &mut fcvi_pmd(Some(&wire.left), &words, &config));
    let output = output.succeed(TIMEOUT);
    let lines: Vec<&str> = output.lines().collect();
    assert!(
        lines[0].starts_with("VINIC0: N_Port_ID 00.01.01, "),
        "{output}"
    );
    assert!(lines[0].contains("; no discovery: "), "{output}");
    assert_eq!(lines[1], "neighbour: N_Port_ID 00.02.01, host 192.0.2.2");
    assert_eq!(lines.len(), 1 + 16, "{output}");
}

#[test]
fn error_for_an_unknown_nic_lists_all_nics() {
    let scratch = Scratch::new("neighbours");
    let config = scratch.write(
        "two.toml",
        "[[nic]]\nshm = {}\n[[nic]]\nshm = {}\nname = \"fast\"\n",
    );
    let words = ["neighbours", "--device", "slow", "--config"];
    let output = output_of_failure(&mut fcvi_pmd(None, &words, &config));
    let expected = "no NIC \"slow\": the configuration has VINIC0, fast";
    assert_contains(&output, &[expected]);
}
