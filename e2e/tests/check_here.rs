//! `fcvi-pmd check --here`: whether a configuration can be used on this host.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use e2e::certificates::Certificates;
use e2e::datapath::{fcvi_pmd, fcvi_pmd_path};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, assert_contains, program, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;
use e2e::vi_peer;
use e2e::wire::Wire;

/// Runs a check; returns its exit code and output.
fn check(mut command: Command, config: &Path) -> (Option<i32>, String) {
    let output = command.args(["check", "--here"]).arg(config).output();
    let output = output.expect("fcvi-pmd is built");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

/// Checks that the command rejects the configuration with an error that contains all words.
fn assert_refused(command: Command, config: &Path, words: &[&str]) {
    let (code, output) = check(command, config);
    assert_eq!(code, Some(1), "{output}");
    assert_contains(&output, words);
}

/// Returns a table `[process]` whose socket is in a writable directory.
fn process_table(scratch: &Scratch) -> String {
    format!("[process]\nsocket = {:?}\n", scratch.file("pmd.sock"))
}

#[test]
fn check_here_accepts_usable_configuration() {
    let wire = Wire::new(2500);
    let scratch = Scratch::new("passes");
    let segment = Scratch::in_memory("passes");
    let text = format!(
        "[[nic]]\nname = \"shm\"\nshm.directory = {:?}\n\
         [[nic]]\nname = \"rail\"\naf_packet.interface = \"left\"\nhost = \"192.0.2.1\"\n\
         [[nic]]\nvi_tcp = {{}}\nname = \"tcp\"\n{}",
        segment.path(),
        process_table(&scratch)
    );
    let config = scratch.write("pmd.toml", &text);
    let (code, output) = check(wire.left.program(fcvi_pmd_path()), &config);
    assert_eq!(code, Some(0), "{output}");
    assert!(output.ends_with("usable on this host\n"), "{output}");
    let left = fs::read_dir(scratch.path()).expect("the scratch directory");
    assert_eq!(left.count(), 1, "only the configuration is left");
}

type Words = &'static [&'static str];
/// An invalid table of a NIC, an invalid table of the process, and words of the expected error.
type InvalidTable = (String, String, Words);

fn of_nic(nic: impl Into<String>, words: Words) -> InvalidTable {
    (nic.into(), String::new(), words)
}

fn of_process(process: impl Into<String>, words: Words) -> InvalidTable {
    ("shm = {}\n".into(), process.into(), words)
}

fn wire_nic(port: &str, interface: &str) -> String {
    format!("{port}.interface = \"{interface}\"\nhost = \"192.0.2.1\"\n")
}

fn tcp_nic(keys: &str) -> String {
    format!("vi_tcp.flow_control = false\n{keys}")
}

/// Returns the keys of a NIC at an address.
fn tcp_at(address: SocketAddr) -> String {
    let (host, port) = (address.ip(), address.port());
    format!("host = \"{host}\"\nvi_tcp.port = {port}\n")
}

/// Invalid interfaces, cores, directories and files.
fn invalid_nics(scratch: &Scratch) -> Vec<InvalidTable> {
    let (file, directory) = (scratch.write("file", ""), scratch.path());
    let capture = |path: &Path| {
        format!("shm.segment = \"s\"\nfc_vi.capture = {path:?}\nfc_vi.shortcut = false\n")
    };
    let link = scratch.file("link");
    symlink(&file, &link).expect("a link");
    let dpdk = "dpdk.device = \"net_null0\"\nhost = \"192.0.2.1\"\n";
    vec![
        of_nic(
            "shm.segment = \"s\"\nprogress.pinned.core = 999\n",
            &["core = 999", "may use"],
        ),
        of_nic(wire_nic("af_packet", "nowhere0"), &["nowhere0", "ip link"]),
        of_nic(wire_nic("af_packet", "lo"), &["lo", "Ethernet"]),
        of_nic(wire_nic("af_xdp", "nowhere0"), &["nowhere0", "ip link"]),
        of_nic(wire_nic("af_xdp", "lo"), &["lo", "Ethernet"]),
        of_nic(dpdk, &["dpdk", "built without DPDK"]),
        of_nic(format!("shm.directory = {file:?}\n"), &["file"]),
        of_nic(
            "shm.directory = \"/nowhere/at/all\"\n",
            &["/nowhere/at/all"],
        ),
        of_nic(
            capture(Path::new("/nowhere/frames")),
            &["capture: /nowhere"],
        ),
        of_nic(capture(Path::new("/proc/frames")), &["capture: /proc"]),
        of_nic(capture(directory), &["capture: ", "directory"]),
        of_nic(capture(&link), &["capture: ", "link"]),
        of_nic(
            "shm = {}\nhosts_file = \"/nowhere/hosts\"\n",
            &["hosts_file: /nowhere/hosts"],
        ),
        of_nic(
            format!("shm = {{}}\nhosts_file = {directory:?}\n"),
            &["hosts_file: ", "not a regular file"],
        ),
    ]
}

/// Invalid addresses and keys; `taken` is in use by a listener that does not share its port.
fn invalid_tcp_nics(scratch: &Scratch, taken: SocketAddr) -> Vec<InvalidTable> {
    let keys = |path: &Path| tcp_nic(&format!("vi_tcp.key_file = {path:?}\n"));
    let garbage = scratch.write("garbage", "no key\n");
    fs::set_permissions(&garbage, fs::Permissions::from_mode(0o600)).expect("our own file");
    vec![
        of_nic(
            tcp_nic("host = \"192.0.2.77\"\n"),
            &["192.0.2.77", "Cannot assign"],
        ),
        of_nic(
            tcp_nic("host = \"2001:db8::77\"\n"),
            &["2001:db8::77", "assign"],
        ),
        of_nic(
            tcp_nic(&tcp_at(taken)),
            &[
                "another program has the port",
                "set another port in [nic.vi_tcp]",
            ],
        ),
        of_nic(
            tcp_nic("host = \"127.0.0.1\"\nvi_tcp.directory = \"/nowhere/at/all\"\n"),
            &["/nowhere/at/all", "`directory` of the NIC"],
        ),
        of_nic(
            tcp_nic("host = \"fe80::1%nowhere0\"\n"),
            &["nowhere0", "ip link"],
        ),
        of_nic(
            keys(Path::new("/nowhere/keys")),
            &["key_file", "/nowhere/keys"],
        ),
        // Other errors of this file: pmd/src/config/key_file/tests.rs.
        of_nic(keys(&garbage), &["key_file", "garbage:1"]),
    ]
}

/// Invalid certificates and private keys; all errors of these files: vipl/tests/tcp/tls_refusals.rs.
fn invalid_tls(certificates: &Certificates) -> Vec<InvalidTable> {
    let [own, other] = ["127.0.0.1", "127.0.0.2"].map(|host| certificates.issue(host));
    let tls = |certificate: &Path, key: &Path, authorities: &Path| {
        let files = format!(
            "[nic.vi_tcp.tls]\ncertificate = {certificate:?}\nprivate_key = {key:?}\nauthorities = {authorities:?}\n"
        );
        tcp_nic(&format!("host = \"127.0.0.1\"\n{files}"))
    };
    let (certificate, key, authorities) = (own.certificate(), own.private_key(), own.authorities());
    let nowhere = Path::new("/nowhere/pem");
    vec![
        of_nic(
            tls(nowhere, key, authorities),
            &["tls.certificate", "/nowhere/pem"],
        ),
        of_nic(
            tls(certificate, nowhere, authorities),
            &["tls.private_key", "/nowhere/pem"],
        ),
        of_nic(
            tls(certificate, key, nowhere),
            &["tls.authorities", "/nowhere/pem"],
        ),
        of_nic(
            tls(certificate, other.private_key(), authorities),
            &["tls.private_key", "does not match"],
        ),
    ]
}

/// Invalid keys of the process.
fn invalid_processes(scratch: &Scratch, taken: SocketAddr) -> Vec<InvalidTable> {
    let occupied = scratch.write("occupied", "");
    vec![
        of_process(format!("metrics = \"{taken}\"\n"), &["metrics", "in use"]),
        of_process(
            "metrics = \"192.0.2.77:9464\"\n",
            &["metrics", "Cannot assign"],
        ),
        of_process("socket = \"/proc/pmd.sock\"\n", &["/proc/pmd.sock"]),
        of_process(
            "socket = \"/proc/nowhere/pmd.sock\"\n",
            &["directory cannot be created"],
        ),
        of_process(
            format!("socket = {occupied:?}\n"),
            &["the file is no socket"],
        ),
    ]
}

#[test]
fn check_here_reports_each_invalid_value() {
    let scratch = Scratch::new("invalid");
    let certificates = Certificates::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let tables = [
        invalid_nics(&scratch),
        invalid_tcp_nics(&scratch, address),
        invalid_tls(&certificates),
        invalid_processes(&scratch, address),
    ];
    for (nic, process, words) in tables.into_iter().flatten() {
        let process = match process.contains("socket") {
            true => format!("[process]\n{process}"),
            false => process_table(&scratch) + &process,
        };
        let text = format!("[[nic]]\nname = \"nic\"\n{nic}{process}");
        let config = scratch.write("pmd.toml", &text);
        let (code, output) = check(fcvi_pmd(), &config);
        assert_eq!(code, Some(1), "{text}\n{output}");
        let errors: Vec<_> = output
            .lines()
            .filter(|line| line.starts_with("fcvi-pmd: "))
            .collect();
        let [error] = errors[..] else {
            panic!("{text}\n{output}");
        };
        assert_contains(error, words);
    }
}

#[test]
fn check_here_reports_an_interface_that_is_down() {
    let wire = Wire::new(2500);
    wire.right.ip("link set right down");
    let scratch = Scratch::new("down");
    let nic = wire_nic("af_packet", "right");
    let text = format!("[[nic]]\n{nic}{}", process_table(&scratch));
    let config = scratch.write("pmd.toml", &text);
    let command = wire.right.program(fcvi_pmd_path());
    assert_refused(command, &config, &["ip link set right up"]);
}

#[test]
fn check_here_reports_missing_permissions() {
    if unprivileged_user() == 0 {
        println!("\nnote: skipped: the user namespace has no other user");
        return;
    }
    let wire = Wire::new(2500);
    let scratch = Scratch::new("permission");
    let text = format!(
        "[[nic]]\naf_packet.interface = \"left\"\nhost = \"192.0.2.1\"\n{}",
        process_table(&scratch)
    );
    let config = scratch.write("pmd.toml", &text);
    let words = ["cap_net_raw", "pmd.sock", "Permission denied"];
    assert_refused(
        wire.left.enter(unprivileged(fcvi_pmd_path())),
        &config,
        &words,
    );
}

#[test]
fn check_here_removes_created_socket_directories() {
    let scratch = Scratch::new("leaves");
    let socket = scratch.file("deep/er/pmd.sock");
    let segment = Scratch::in_memory("leaves");
    let text = format!(
        "[[nic]]\nshm.directory = {:?}\n[process]\nsocket = {socket:?}\n",
        segment.path()
    );
    let config = scratch.write("pmd.toml", &text);
    let (code, output) = check(fcvi_pmd(), &config);
    assert_eq!(code, Some(0), "{output}");
    let left = fs::read_dir(scratch.path()).expect("the scratch directory");
    assert_eq!(left.count(), 1, "only the configuration is left");
}

#[test]
fn check_here_reports_a_core_outside_of_the_affinity_mask() {
    let scratch = Scratch::new("core");
    let text = format!(
        "[[nic]]\nshm = {{}}\nprogress.pinned.core = 1\n{}",
        process_table(&scratch)
    );
    let config = scratch.write("pmd.toml", &text);
    let mut confined = program("taskset");
    confined.args(["-c", "0"]).arg(fcvi_pmd_path());
    assert_refused(confined, &config, &["core = 1", "may use 0"]);
}

#[test]
fn check_here_reports_an_mtu_that_is_too_small() {
    let wire = Wire::new(2500);
    wire.right.ip("link set right mtu 128");
    let scratch = Scratch::new("mtu");
    let nic = wire_nic("af_packet", "right");
    let text = format!("[[nic]]\n{nic}{}", process_table(&scratch));
    let config = scratch.write("pmd.toml", &text);
    assert_refused(wire.right.program(fcvi_pmd_path()), &config, &["MTU"]);
}

#[test]
fn check_here_accepts_a_shared_port_of_the_same_user() {
    let wire = Wire::new(1500);
    wire.assign_addresses();
    let scratch = Scratch::new("shares");
    let shared = Scratch::in_memory("shares");
    let nic = NicText::vi_tcp(End::Left).key("network.directory", format!("{:?}", shared.path()));
    let config = scratch.write("nic.toml", nic.text());
    let mut program = vi_peer::within(&wire.left, &config);
    let mut program = Running::start("vi-peer", program.args(["reject-all", "shares"]));
    program.wait_for("listening", TIMEOUT);
    let (code, output) = check(wire.left.program(fcvi_pmd_path()), &config);
    assert_eq!(code, Some(0), "{output}");
    // With another `directory` the listener cannot be shared.
    let other = Scratch::in_memory("other");
    let nic = NicText::vi_tcp(End::Left).key("network.directory", format!("{:?}", other.path()));
    let config = scratch.write("nic.toml", nic.text());
    let words = ["another program has the port", "another `directory`"];
    assert_refused(wire.left.program(fcvi_pmd_path()), &config, &words);
    let left = fs::read_dir(other.path()).expect("a directory of the test");
    assert_eq!(left.count(), 0, "the check left files");
    program.kill();
}
