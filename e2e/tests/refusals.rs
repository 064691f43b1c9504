//! What a user is told when a NIC cannot be opened.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, program, unprivileged, unprivileged_user};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Runs an EchoServer that must refuse to start, and gives its words.
fn refusal(command: &mut std::process::Command) -> String {
    let ended = Running::start("EchoServer", command).finish(TIMEOUT);
    assert_eq!(
        ended.status.code(),
        Some(1),
        "{}\n{}",
        ended.status,
        ended.text
    );
    assert!(!ended.text.contains("panicked"), "{}", ended.text);
    ended.text
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn a_corrupt_configuration_is_refused_with_file_line_and_key() {
    let installation = Installation::new();
    let scratch = Scratch::new("corrupt");
    let name = |file: &str| scratch.file(file).to_str().expect("UTF-8").to_owned();
    let refuse = |file: &str, text: &str, words: &[&str]| {
        let path = scratch.write(file, text);
        let mut server = program(installation.program("EchoServer"));
        let said = refusal(server.env("VIADUCT_CONFIG", path));
        assert_says(&said, &[&name(file)]);
        assert_says(&said, words);
        assert_says(&said, &["VIP_ERROR_RESOURCE"]);
    };
    refuse(
        "unknown.toml",
        "[[nic]]\nprot = \"shm\"\n",
        &["unknown.toml:2: ", "prot: unknown key: did you mean port?"],
    );
    refuse(
        "type.toml",
        "[[nic]]\n\nmax_vi = \"many\"\n",
        &["type.toml:3: ", "max_vi = \"many\"", "1 to 4096"],
    );
    refuse(
        "syntax.toml",
        "[[nic]\nport = \"shm\"\n",
        &["syntax.toml:1: "],
    );
    refuse(
        "choice.toml",
        "[[nic]]\nport = \"infiniband\"\n",
        &["choice.toml:2: ", "infiniband", "af_packet"],
    );
    refuse(
        "range.toml",
        "[[nic]]\nmax_vi = 5000\n",
        &["range.toml:2: ", "VINIC0", "max_vi = 5000", "1 to 4096"],
    );
    refuse(
        "missing.toml",
        "[[nic]]\nport = \"af_packet\"\n",
        &["missing.toml:1: ", "VINIC0", "interface"],
    );
    refuse(
        "twice.toml",
        "[[nic]]\nname = \"a\"\n[[nic]]\nname = \"a\"\n",
        &["twice.toml:4: ", "\"a\"", "twice"],
    );
    refuse("binary.toml", "\u{0}\u{1}\u{7f}", &["binary.toml:1: "]);

    let mut server = program(installation.program("EchoServer"));
    server.env("VIADUCT_CONFIG", scratch.file("nowhere.toml"));
    assert_says(
        &refusal(&mut server),
        &[&name("nowhere.toml"), "cannot be read"],
    );
}

#[test]
fn unknown_device_is_refused_with_those_there_are() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("device");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let server = || {
        let mut server = program(installation.program("EchoServer"));
        server.env("VIADUCT_CONFIG", &config).args(["-d", "VINIC7"]);
        server
    };
    let said = refusal(&mut server());
    assert_says(&said, &["VINIC7", "VIP_INVALID_PARAMETER"]);
    assert_says(
        &said,
        &["vipl: warn: no NIC is called \"VINIC7\"; there are VINIC0"],
    );
    // Who probes for device names can have it quiet.
    let said = refusal(server().env("VIADUCT_LOG", "error"));
    assert!(!said.contains("vipl: "), "{said}");
}

/// Both ends on a file system that has room for the segment, and for no ring.
#[test]
fn connection_without_memory_for_its_ring_fails_at_once_and_says_why() {
    let installation = Installation::new();
    let scratch = Scratch::new("rings");
    let directory = scratch.file("small");
    fs::create_dir(&directory).expect("room");
    let config = NicText::shm(&directory).write(&scratch, "nic.toml");
    let mut server = program("unshare");
    server.args(["--mount", "--propagation", "private", "sh", "-c"]);
    server.arg("mount -t tmpfs -o size=256k tmpfs \"$0\" && exec \"$@\"");
    server
        .arg(&directory)
        .arg(installation.program("EchoServer"));
    server.env("VIADUCT_CONFIG", &config);
    let mut server = Running::start("server", &mut server);
    server.wait_for("EchoServer: listening", TIMEOUT);
    let mut client = program("nsenter");
    client.arg(format!("--mount=/proc/{}/ns/mnt", server.id()));
    client
        .arg("--")
        .arg(installation.program("EchoClient"))
        .arg("localhost");
    let said = refusal(client.env("VIADUCT_CONFIG", &config));
    assert_says(
        &said,
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
fn file_size_limit_is_an_error_of_the_call() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("file-size");
    let scratch = Scratch::new("file-size");
    let capture = scratch.file("frames");
    let config = NicText::shm(segment.path()).key("capture", format!("{capture:?}"));
    let config = config.write(&scratch, "nic.toml");
    let limited = |bytes: u32| {
        let mut server = program("prlimit");
        server.arg(format!("--fsize={bytes}")).arg("--");
        server.arg(installation.program("EchoServer"));
        refusal(server.env("VIADUCT_CONFIG", &config))
    };
    let said = limited(4096);
    assert_says(
        &said,
        &["set the length of", "File too large", "VIP_ERROR_RESOURCE"],
    );
}

#[test]
fn without_permission_the_way_to_get_it_is_told() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("permission");
    let config = NicText::af_packet(End::Left).write(&scratch, "nic.toml");
    let command = unprivileged(installation.program("EchoServer"));
    let mut server = wire.left.enter(command);
    let said = refusal(server.env("VIADUCT_CONFIG", config));
    assert_says(&said, &["setcap", "cap_net_raw", "VIP_ERROR_RESOURCE"]);
}

/// Listens at a path as a user without rights could, and says how much the first one to connect sends.
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
        println!("\nnote: no other user here: a listener of another user is not tried");
        return;
    }
    let installation = Installation::new();
    let scratch = Scratch::new("listener");
    // Everybody can make files there.
    let directory = scratch.file("run");
    fs::create_dir(&directory).expect("room");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).expect("chmod");
    let socket = directory.join("pmd.sock");
    let config = scratch.file("program.toml");
    let text = format!("[process]\nsocket = {socket:?}\n[[nic]]\nname = \"VINIC0\"\n");
    fs::write(&config, text).expect("room");
    let other = (victim - 1).to_string();
    let mut listener = program("python3");
    listener.args(["-c", LISTENER]).arg(&socket).arg(&other);
    let mut listener = Running::start("listener", &mut listener);
    listener.wait_for("listening", TIMEOUT);
    let mut server = unprivileged(installation.program("EchoServer"));
    let said = refusal(server.env("VIADUCT_CONFIG", config));
    let who = format!("the listener is user {other}, and neither root, nor user {victim}");
    assert_says(&said, &[&who, "VIP_ERROR_RESOURCE"]);
    let received = listener.succeed(TIMEOUT);
    assert!(received.contains("received 0"), "{received}");
}

#[test]
fn an_interface_that_is_missing_or_down_is_named() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("interface");
    let refused = |end: End| {
        let config = NicText::af_packet(end).write(&scratch, "nic.toml");
        let mut server = wire.left.program(installation.program("EchoServer"));
        refusal(server.env("VIADUCT_CONFIG", config))
    };
    assert_says(
        &refused(End::Right),
        &["right", "ip link", "VIP_ERROR_RESOURCE"],
    );
    wire.left.ip("link set left down");
    assert_says(
        &refused(End::Left),
        &["ip link set left up", "VIP_ERROR_RESOURCE"],
    );
    wire.left.ip("link set left mtu 301 up");
    assert_says(
        &refused(End::Left),
        &["left", "mtu 1500", "VIP_ERROR_RESOURCE"],
    );
}

/// An ordinary user starts a program of root's with set-user-ID, and chooses its environment.
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
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("our own file");
    let text = format!("[[nic]]\nname = \"CHOSEN\"\nsegment = \"chosen\"\ncapture = {victim:?}\n");
    let config = scratch.write("chosen.toml", &text);
    let server = scratch.file("EchoServer");
    fs::copy(installation.program("EchoServer"), &server).expect("room for a program");
    let start = |mode: u32| {
        fs::set_permissions(&server, fs::Permissions::from_mode(mode)).expect("our own file");
        let mut command = unprivileged(&server);
        command
            .env("VIADUCT_CONFIG", &config)
            .env("VIADUCT_LOG", "debug");
        refusal(command.args(["-d", "CHOSEN"]))
    };
    // Without set-user-ID it reads the configuration, and may not write to the file.
    assert_says(&start(0o755), &["CHOSEN", "victim", "belongs to user 0"]);
    let said = start(0o4755);
    assert_says(
        &said,
        &[
            "VIADUCT_CONFIG is not read",
            "/etc/viaduct/vipl.toml",
            "CHOSEN",
        ],
    );
    assert!(
        !said.contains("victim") && !said.contains("debug"),
        "{said}"
    );
    let kept = fs::read_to_string(&victim).expect("our own file");
    assert_eq!(kept, "of root alone");
}
