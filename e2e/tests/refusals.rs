//! What a user is told when a NIC cannot be opened.

use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{PATIENCE, Running, program, unprivileged};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// Runs an EchoServer that must refuse to start, and gives its words.
fn refusal(command: &mut std::process::Command) -> String {
    let ended = Running::start("EchoServer", command).finish(PATIENCE);
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
fn an_unknown_device_is_refused_quietly_and_on_request_with_those_there_are() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("device");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let server = || {
        let mut server = program(installation.program("EchoServer"));
        server.env("VIADUCT_CONFIG", &config).args(["-d", "VINIC7"]);
        server
    };
    // Programs probe for device names: that is no error of the library.
    let said = refusal(&mut server());
    assert_says(&said, &["VINIC7", "VIP_INVALID_PARAMETER"]);
    assert!(!said.contains("vipl: "), "{said}");
    let said = refusal(server().env("VIADUCT_LOG", "debug"));
    assert_says(&said, &["no NIC is called \"VINIC7\"", "VINIC0"]);
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
