//! Error texts and refused calls when a NIC cannot be opened or a connection fails for lack of resources.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use e2e::echo::listen;
use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{
    Running, TIMEOUT, assert_contains, output_of_failure, program, unprivileged, unprivileged_user,
};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Other errors of the file: pmd/config/src/tests/errors.rs.
#[test]
fn configuration_error_names_file_line_and_key() {
    let installation = Installation::new();
    let scratch = Scratch::new("corrupt");
    scratch.write("unknown.toml", "[[nic]]\nsmh = {}\n");
    let unknown = "unknown key `smh` in [[nic]]; did you mean `shm`?";
    for (file, place, error) in [
        ("unknown.toml", ":2: ", unknown),
        ("nowhere.toml", ": ", "cannot be read"),
    ] {
        let path = scratch.file(file);
        let mut server = program(installation.program("EchoServer"));
        let output = output_of_failure(server.env("VIADUCT_CONFIG", &path));
        let place = format!("{}{place}", path.display());
        assert_contains(&output, &[&place, error, "VIP_ERROR_RESOURCE"]);
    }
}

#[test]
fn error_for_an_unknown_device_lists_all_nics() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("device");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let server = || {
        let mut server = program(installation.program("EchoServer"));
        server.env("VIADUCT_CONFIG", &config).args(["-d", "VINIC7"]);
        server
    };
    let output = output_of_failure(&mut server());
    assert_contains(&output, &["VINIC7", "VIP_INVALID_PARAMETER"]);
    assert_contains(
        &output,
        &["vipl: warn: no NIC is called \"VINIC7\"; there are VINIC0"],
    );
    // The warning can be disabled, e.g. by programs that probe device names.
    let output = output_of_failure(server().env("VIADUCT_LOG", "error"));
    assert!(!output.contains("vipl: "), "{output}");
}

/// Both programs use a file system with space for the segment but not for a ring.
#[test]
fn connection_without_memory_for_its_ring_fails_with_the_reason() {
    let installation = Installation::new();
    let scratch = Scratch::new("rings");
    let directory = scratch.file("small");
    fs::create_dir(&directory).expect("a directory");
    let config = NicText::shm(&directory).write(&scratch, "nic.toml");
    let mut server = program("unshare");
    server.args(["--mount", "--propagation", "private", "sh", "-c"]);
    server.arg("mount -t tmpfs -o size=256k tmpfs \"$0\" && exec \"$@\"");
    server
        .arg(&directory)
        .arg(installation.program("EchoServer"));
    server.env("VIADUCT_CONFIG", &config);
    let server = listen(&mut server);
    let mut client = program("nsenter");
    client.arg(format!("--mount=/proc/{}/ns/mnt", server.id()));
    client
        .arg("--")
        .arg(installation.program("EchoClient"))
        .arg("localhost");
    let output = output_of_failure(client.env("VIADUCT_CONFIG", &config));
    assert_contains(
        &output,
        &[
            "the ring to or from another program",
            "No space left on device",
            "0 MiB in all",
            "directory",
            "VIP_NOT_REACHABLE",
        ],
    );
    server.kill();
}

#[test]
fn file_size_limit_fails_the_call() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("file-size");
    let scratch = Scratch::new("file-size");
    let capture = scratch.file("frames");
    let config = NicText::shm(segment.path()).key("fc_vi.capture", format!("{capture:?}"));
    let config = config.write(&scratch, "nic.toml");
    let limited = |bytes: u32| {
        let mut server = program("prlimit");
        server.arg(format!("--fsize={bytes}")).arg("--");
        server.arg(installation.program("EchoServer"));
        output_of_failure(server.env("VIADUCT_CONFIG", &config))
    };
    let output = limited(4096);
    assert_contains(
        &output,
        &["set the length of", "File too large", "VIP_ERROR_RESOURCE"],
    );
}

#[test]
fn error_for_a_missing_permission_says_how_to_grant_it() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("permission");
    let config = NicText::af_packet(End::Left).write(&scratch, "nic.toml");
    let command = unprivileged(installation.program("EchoServer"));
    let mut server = wire.left.enter(command);
    let output = output_of_failure(server.env("VIADUCT_CONFIG", config));
    assert_contains(&output, &["setcap", "cap_net_raw", "VIP_ERROR_RESOURCE"]);
}

/// Python: listens at a path as an unprivileged user, and prints the number of bytes that the first client sends.
const LISTENER: &str = r#"
import os, socket, sys
user = int(sys.argv[2])
os.setgroups([])
os.setgid(user)
os.setuid(user)
MESSAGES_IN_ORDER = 5
listener = socket.socket(socket.AF_UNIX, MESSAGES_IN_ORDER)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
listener.listen()
print("listening", flush=True)
connection, _ = listener.accept()
print("received", len(connection.recv(65536)), flush=True)
"#;

#[test]
fn listener_of_another_user_is_not_attached_to() {
    let victim = unprivileged_user();
    if victim == 0 {
        println!("\nnote: skipped: the user namespace has no other user");
        return;
    }
    let installation = Installation::new();
    let scratch = Scratch::new("listener");
    // All users can create files there.
    let directory = scratch.file("run");
    fs::create_dir(&directory).expect("a directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).expect("chmod");
    let socket = directory.join("pmd.sock");
    let config = scratch.file("program.toml");
    let text = format!("[process]\nsocket = {socket:?}\n[[nic]]\nshm = {{}}\nname = \"VINIC0\"\n");
    fs::write(&config, text).expect("the file is written");
    let other = (victim - 1).to_string();
    let mut listener = program("python3");
    listener.args(["-c", LISTENER]).arg(&socket).arg(&other);
    let mut listener = Running::start("listener", &mut listener);
    listener.wait_for("listening", TIMEOUT);
    let mut server = unprivileged(installation.program("EchoServer"));
    let output = output_of_failure(server.env("VIADUCT_CONFIG", config));
    let reason = format!("the listener is user {other}, and neither root, nor user {victim}");
    assert_contains(&output, &[&reason, "VIP_ERROR_RESOURCE"]);
    let received = listener.succeed(TIMEOUT);
    assert!(received.contains("received 0"), "{received}");
}

#[test]
fn error_for_an_unusable_interface_names_it() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("interface");
    let refused = |end: End| {
        let config = NicText::af_packet(end).write(&scratch, "nic.toml");
        let mut server = wire.left.program(installation.program("EchoServer"));
        output_of_failure(server.env("VIADUCT_CONFIG", config))
    };
    let code = "VIP_ERROR_RESOURCE";
    assert_contains(&refused(End::Right), &["right", "ip link", code]);
    wire.left.ip("link set left down");
    assert_contains(&refused(End::Left), &["ip link set left up", code]);
    wire.left.ip("link set left mtu 301 up");
    assert_contains(&refused(End::Left), &["left", "mtu 1500", code]);
}

/// An ordinary user runs a set-user-ID program of root with a chosen environment.
#[test]
fn privileged_program_ignores_the_environment() {
    assert_ne!(
        unprivileged_user(),
        0,
        "set-user-ID needs root of the host, and another user"
    );
    let installation = Installation::new();
    let scratch = Scratch::new("privileged");
    let victim = scratch.write("victim", "of root alone");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("a file of the test");
    let text = format!(
        "[[nic]]\nname = \"CHOSEN\"\nshm.segment = \"chosen\"\nfc_vi.capture = {victim:?}\n"
    );
    let config = scratch.write("chosen.toml", &text);
    let server = scratch.file("EchoServer");
    fs::copy(installation.program("EchoServer"), &server).expect("the program is copied");
    let start = |mode: u32| {
        fs::set_permissions(&server, fs::Permissions::from_mode(mode)).expect("a file of the test");
        let mut command = unprivileged(&server);
        command
            .env("VIADUCT_CONFIG", &config)
            .env("VIADUCT_LOG", "debug");
        output_of_failure(command.args(["-d", "CHOSEN"]))
    };
    // Without set-user-ID it reads the configuration and cannot write the file.
    assert_contains(&start(0o755), &["CHOSEN", "victim", "belongs to user 0"]);
    let output = start(0o4755);
    assert_contains(
        &output,
        &[
            "VIADUCT_CONFIG is ignored",
            "/etc/viaduct/vipl.toml",
            "CHOSEN",
        ],
    );
    assert!(
        !output.contains("victim") && !output.contains("debug"),
        "{output}"
    );
    let kept = fs::read_to_string(&victim).expect("a file of the test");
    assert_eq!(kept, "of root alone");
}
