//! `fcvi-pmd check --here`: whether a configuration can be used on this host.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::installation::built;
use e2e::process::{program, unprivileged, unprivileged_user};
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

fn mistakes(scratch: &Scratch, taken: SocketAddr) -> Vec<Mistake> {
    let open_key = scratch.write("open-key", "");
    fs::set_permissions(&open_key, fs::Permissions::from_mode(0o644)).expect("our own file");
    let file = scratch.write("file", "");
    let tls = "[nic.tls]\ncertificate = \"/nowhere/c\"\nprivate_key = \"/nowhere/k\"\n\
               authorities = \"/nowhere/a\"\n";
    let tcp = |keys: &str| format!("transport = \"vi-tcp\"\n{keys}");
    vec![
        of_nic("core = 999\n", &["core = 999", "may use"]),
        of_nic(wire_nic("af_packet", "nowhere0"), &["nowhere0", "ip link"]),
        of_nic(wire_nic("af_packet", "lo"), &["lo", "Ethernet"]),
        of_nic(wire_nic("af_xdp", "nowhere0"), &["nowhere0", "ip link"]),
        of_nic(format!("directory = {file:?}\n"), &["file"]),
        of_nic("directory = \"/nowhere/at/all\"\n", &["/nowhere/at/all"]),
        of_nic(
            "capture = \"/nowhere/frames\"\nshortcut = false\n",
            &["capture: /nowhere"],
        ),
        of_nic(
            "hosts_file = \"/nowhere/hosts\"\n",
            &["hosts_file: /nowhere/hosts"],
        ),
        of_nic(
            tcp("host = \"192.0.2.77\"\n"),
            &["192.0.2.77", "Cannot assign"],
        ),
        of_nic(
            tcp("key_file = \"/nowhere/keys\"\n"),
            &["key_file", "/nowhere/keys"],
        ),
        of_nic(
            tcp(&format!("key_file = {open_key:?}\n")),
            &["key_file", "mode is 644"],
        ),
        of_nic(tcp(tls), &["tls.certificate", "/nowhere/c"]),
        of_process(format!("metrics = \"{taken}\"\n"), &["metrics", "in use"]),
        of_process(
            "metrics = \"192.0.2.77:9464\"\n",
            &["metrics", "Cannot assign"],
        ),
        of_process("socket = \"/proc/pmd.sock\"\n", &["/proc/pmd.sock"]),
    ]
}

#[test]
fn check_here_names_each_mistake() {
    let scratch = Scratch::new("mistakes");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    for mistake in mistakes(&scratch, address) {
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
    let (code, said) = check(wire.right.program(fcvi_pmd()), &config);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("ip link set right up"), "{said}");
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
    let (code, said) = check(wire.left.enter(unprivileged(fcvi_pmd())), &config);
    assert_eq!(code, Some(1), "{said}");
    for word in ["cap_net_raw", "pmd.sock", "Permission denied"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
