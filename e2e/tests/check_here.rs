//! `fcvi-pmd check --here`: whether a configuration can be used on this host.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::certificates::Certificates;
use e2e::installation::built;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

fn fcvi_pmd() -> PathBuf {
    built().join("fcvi-pmd")
}

/// Runs a check; gives how it ended and what it printed.
fn check(mut command: Command, config: &Path) -> (Option<i32>, String) {
    let output = command.args(["check", "--here"]).arg(config).output();
    let output = output.expect("fcvi-pmd is built");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).expect("text"))
}

/// The configuration is refused by this program, with all of these words.
fn assert_refused(command: Command, config: &Path, words: &[&str]) {
    let (code, said) = check(command, config);
    assert_eq!(code, Some(1), "{said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// A directory in which this user's process can listen.
fn process_table(scratch: &Scratch) -> String {
    format!("[process]\nsocket = {:?}\n", scratch.file("pmd.sock"))
}

#[test]
fn check_here_passes_what_starts() {
    let wire = Wire::new(2500);
    let scratch = Scratch::new("passes");
    let segment = Scratch::in_memory("passes");
    let text = format!(
        "[[nic]]\nname = \"shm\"\ndirectory = {:?}\n\
         [[nic]]\nname = \"rail\"\nport = \"af_packet\"\ninterface = \"left\"\nhost = \"192.0.2.1\"\n\
         [[nic]]\nname = \"tcp\"\ntransport = \"vi-tcp\"\n{}",
        segment.path(),
        process_table(&scratch)
    );
    let config = scratch.write("pmd.toml", &text);
    let (code, said) = check(wire.left.program(fcvi_pmd()), &config);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.ends_with("it can be used on this host\n"), "{said}");
    let left = fs::read_dir(scratch.path()).expect("the scratch directory");
    assert_eq!(left.count(), 1, "the configuration alone is left");
}

/// A NIC's table or the process's with a mistake, and the words by which it is told.
struct Mistake {
    nic: String,
    process: String,
    words: &'static [&'static str],
}

fn of_nic(nic: impl Into<String>, words: &'static [&'static str]) -> Mistake {
    let (nic, process) = (nic.into(), String::new());
    Mistake {
        nic,
        process,
        words,
    }
}

fn of_process(process: impl Into<String>, words: &'static [&'static str]) -> Mistake {
    let (nic, process) = (String::new(), process.into());
    Mistake {
        nic,
        process,
        words,
    }
}

fn wire_nic(port: &str, interface: &str) -> String {
    format!("port = \"{port}\"\ninterface = \"{interface}\"\nhost = \"192.0.2.1\"\n")
}

fn tcp_nic(keys: &str) -> String {
    format!("transport = \"vi-tcp\"\n{keys}")
}

/// The keys of a NIC at an address.
fn tcp_at(address: SocketAddr) -> String {
    let (host, port) = (address.ip(), address.port());
    format!("host = \"{host}\"\ntcp_port = {port}\n")
}

/// A file that only this user can read.
fn secret(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = scratch.write(name, text);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our own file");
    path
}

/// Mistakes of interfaces, cores, directories and files.
fn mistakes_of_nics(scratch: &Scratch) -> Vec<Mistake> {
    let (file, directory) = (scratch.write("file", ""), scratch.path());
    let capture = |path: &Path| format!("capture = {path:?}\nshortcut = false\n");
    let link = scratch.file("link");
    symlink(&file, &link).expect("a link");
    let dpdk = "port = \"dpdk\"\ndevice = \"net_null0\"\nhost = \"192.0.2.1\"\n";
    vec![
        of_nic("core = 999\n", &["core = 999", "may use"]),
        of_nic(wire_nic("af_packet", "nowhere0"), &["nowhere0", "ip link"]),
        of_nic(wire_nic("af_packet", "lo"), &["lo", "Ethernet"]),
        of_nic(wire_nic("af_xdp", "nowhere0"), &["nowhere0", "ip link"]),
        of_nic(wire_nic("af_xdp", "lo"), &["lo", "Ethernet"]),
        of_nic(dpdk, &["dpdk", "built without DPDK"]),
        of_nic(format!("directory = {file:?}\n"), &["file"]),
        of_nic("directory = \"/nowhere/at/all\"\n", &["/nowhere/at/all"]),
        of_nic(
            capture(Path::new("/nowhere/frames")),
            &["capture: /nowhere"],
        ),
        of_nic(capture(Path::new("/proc/frames")), &["capture: /proc"]),
        of_nic(capture(directory), &["capture: ", "directory"]),
        of_nic(capture(&link), &["capture: ", "link"]),
        of_nic(
            "hosts_file = \"/nowhere/hosts\"\n",
            &["hosts_file: /nowhere/hosts"],
        ),
        of_nic(
            format!("hosts_file = {directory:?}\n"),
            &["hosts_file: ", "no file"],
        ),
    ]
}

/// Mistakes of addresses and keys; a program listens at `taken` that shares its port with none.
fn mistakes_of_tcp_nics(scratch: &Scratch, taken: SocketAddr) -> Vec<Mistake> {
    let keys = |path: &Path| tcp_nic(&format!("key_file = {path:?}\n"));
    let open_key = scratch.write("open-key", "");
    let [empty, garbage] = [("empty", ""), ("garbage", "no key\n")];
    let [empty, garbage] = [empty, garbage].map(|(name, text)| secret(scratch, name, text));
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
            &["another program has the port", "set another tcp_port"],
        ),
        of_nic(
            tcp_nic("host = \"127.0.0.1\"\ndirectory = \"/nowhere/at/all\"\n"),
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
        of_nic(keys(&open_key), &["key_file", "mode is 644"]),
        of_nic(keys(&empty), &["key_file", "no key"]),
        of_nic(keys(&garbage), &["key_file", "garbage:1"]),
        of_nic(keys(scratch.path()), &["key_file", "no file"]),
    ]
}

/// Mistakes of certificates and their keys.
fn mistakes_of_tls(scratch: &Scratch, certificates: &Certificates) -> Vec<Mistake> {
    let [own, other] = ["127.0.0.1", "127.0.0.2"].map(|host| certificates.of(host));
    let tls = |certificate: &Path, key: &Path, authorities: &Path| {
        let files = format!(
            "[nic.tls]\ncertificate = {certificate:?}\nprivate_key = {key:?}\nauthorities = {authorities:?}\n"
        );
        tcp_nic(&format!("host = \"127.0.0.1\"\n{files}"))
    };
    let (certificate, key, authorities) = (own.certificate(), own.private_key(), own.authorities());
    let (garbage, nowhere) = (
        secret(scratch, "pem", "no PEM\n"),
        Path::new("/nowhere/pem"),
    );
    let open_key = scratch.write("open.pem", &fs::read_to_string(key).expect("a key"));
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
            tls(&garbage, key, authorities),
            &["tls.certificate", "no certificate"],
        ),
        of_nic(
            tls(certificate, &garbage, authorities),
            &["tls.private_key", "no private key"],
        ),
        of_nic(
            tls(certificate, key, &garbage),
            &["tls.authorities", "no certificate"],
        ),
        of_nic(
            tls(certificate, other.private_key(), authorities),
            &["tls.private_key", "is not of"],
        ),
        of_nic(
            tls(certificate, &open_key, authorities),
            &["tls.private_key", "chmod 600"],
        ),
    ]
}

/// Mistakes of the process.
fn mistakes_of_processes(scratch: &Scratch, taken: SocketAddr) -> Vec<Mistake> {
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
            &["directory cannot be made"],
        ),
        of_process(
            format!("socket = {occupied:?}\n"),
            &["something else is there"],
        ),
    ]
}

#[test]
fn check_here_names_each_mistake() {
    let scratch = Scratch::new("mistakes");
    let certificates = Certificates::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let mistakes = [
        mistakes_of_nics(&scratch),
        mistakes_of_tcp_nics(&scratch, address),
        mistakes_of_tls(&scratch, &certificates),
        mistakes_of_processes(&scratch, address),
    ];
    for mistake in mistakes.into_iter().flatten() {
        let Mistake {
            nic,
            process,
            words,
        } = mistake;
        let process = match process.contains("socket") {
            true => format!("[process]\n{process}"),
            false => process_table(&scratch) + &process,
        };
        let text = format!("[[nic]]\nname = \"tried\"\n{nic}{process}");
        let config = scratch.write("pmd.toml", &text);
        let (code, said) = check(program(fcvi_pmd()), &config);
        assert_eq!(code, Some(1), "{text}\n{said}");
        let told: Vec<_> = said
            .lines()
            .filter(|line| line.starts_with("fcvi-pmd: "))
            .collect();
        let [told] = told[..] else {
            panic!("{text}\n{said}");
        };
        for word in words {
            assert!(told.contains(word), "{word}: {said}");
        }
    }
}

#[test]
fn check_here_names_an_interface_that_is_down() {
    let wire = Wire::new(2500);
    wire.right.ip("link set right down");
    let scratch = Scratch::new("down");
    let text = format!(
        "[[nic]]\n{}{}",
        wire_nic("af_packet", "right"),
        process_table(&scratch)
    );
    let config = scratch.write("pmd.toml", &text);
    assert_refused(
        wire.right.program(fcvi_pmd()),
        &config,
        &["ip link set right up"],
    );
}

#[test]
fn check_here_names_a_missing_permission_and_a_process_that_runs() {
    if unprivileged_user() == 0 {
        println!("\nnote: no other user here: its permissions are not tried");
        return;
    }
    let wire = Wire::new(2500);
    let scratch = Scratch::new("permission");
    let text = format!(
        "[[nic]]\nport = \"af_packet\"\ninterface = \"left\"\nhost = \"192.0.2.1\"\n{}",
        process_table(&scratch)
    );
    let config = scratch.write("pmd.toml", &text);
    let words = ["cap_net_raw", "pmd.sock", "Permission denied"];
    assert_refused(wire.left.enter(unprivileged(fcvi_pmd())), &config, &words);
}

#[test]
fn check_here_leaves_no_directory_of_a_socket_behind() {
    let scratch = Scratch::new("leaves");
    let socket = scratch.file("deep/er/pmd.sock");
    let segment = Scratch::in_memory("leaves");
    let text = format!(
        "[[nic]]\ndirectory = {:?}\n[process]\nsocket = {socket:?}\n",
        segment.path()
    );
    let config = scratch.write("pmd.toml", &text);
    let (code, said) = check(program(fcvi_pmd()), &config);
    assert_eq!(code, Some(0), "{said}");
    let left = fs::read_dir(scratch.path()).expect("the scratch directory");
    assert_eq!(left.count(), 1, "the configuration alone is left");
}

#[test]
fn check_here_names_a_core_outside_of_the_affinity_mask() {
    let scratch = Scratch::new("core");
    let text = format!("[[nic]]\ncore = 1\n{}", process_table(&scratch));
    let config = scratch.write("pmd.toml", &text);
    let mut confined = program("taskset");
    confined.args(["-c", "0"]).arg(fcvi_pmd());
    assert_refused(confined, &config, &["core = 1", "may use 0"]);
}

#[test]
fn check_here_names_an_mtu_that_is_too_small() {
    let wire = Wire::new(2500);
    wire.right.ip("link set right mtu 128");
    let scratch = Scratch::new("mtu");
    let nic = wire_nic("af_packet", "right");
    let config = scratch.write(
        "pmd.toml",
        &format!("[[nic]]\n{nic}{}", process_table(&scratch)),
    );
    assert_refused(wire.right.program(fcvi_pmd()), &config, &["MTU"]);
}

#[test]
fn check_here_accepts_a_port_that_a_program_of_this_user_shares() {
    let wire = Wire::new(1500);
    wire.give_addresses();
    let scratch = Scratch::new("shares");
    let shared = Scratch::in_memory("shares");
    let nic = NicText::vi_tcp(End::Left).key("directory", format!("{:?}", shared.path()));
    let config = scratch.write("nic.toml", nic.text());
    let mut program = wire.left.program(env!("CARGO_BIN_EXE_vi-peer"));
    program.env("VIADUCT_CONFIG", &config);
    let mut program = Running::start("vi-peer", program.args(["reject-all", "shares"]));
    program.wait_for("listening", TIMEOUT);
    let (code, said) = check(wire.left.program(fcvi_pmd()), &config);
    assert_eq!(code, Some(0), "{said}");
    // One with another directory does not find it.
    let other = Scratch::in_memory("other");
    let nic = NicText::vi_tcp(End::Left).key("directory", format!("{:?}", other.path()));
    let config = scratch.write("nic.toml", nic.text());
    let words = ["another program has the port", "another `directory`"];
    assert_refused(wire.left.program(fcvi_pmd()), &config, &words);
    let left = fs::read_dir(other.path()).expect("a directory of the test");
    assert_eq!(left.count(), 0, "nothing is left behind");
    program.kill();
}
