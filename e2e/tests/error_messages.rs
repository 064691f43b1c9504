//! Texts of errors and warnings: names, values, limits, and what to do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use e2e::datapath::{DatapathProcess, fcvi_pmd};
use e2e::echo::listen;
use e2e::installation::{Installation, built};
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT, assert_contains, output_of_exit, output_of_failure, program};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

fn check(config: &Path) -> Command {
    let mut command = fcvi_pmd();
    command.arg("check").arg(config);
    command
}

#[test]
fn check_describes_vi_tcp_and_refuses_link_local_addresses_that_cannot_listen() {
    let scratch = Scratch::new("check");
    let tcp = NicText::vi_tcp_at("192.0.2.1").key("vi_tcp.port", 9000);
    let interface = NicText::vi_tcp_at("fe80::1%lo");
    for (nic, address) in [(tcp, "192.0.2.1:9000"), (interface, "[fe80::1%lo]:8420")] {
        let mut check = check(&nic.write(&scratch, "tcp.toml"));
        let output = Running::start("check", &mut check).succeed(TIMEOUT);
        assert_contains(&output, &[&format!("VINIC0: VI/TCP at {address}")]);
    }
    for (host, network, words) in [
        (
            "fe80::1",
            "vi_tcp",
            "host = \"fe80::1\": a link-local address requires its interface: host = \"fe80::1%eth0\"",
        ),
        (
            "192.0.2.1%lo",
            "vi_tcp",
            "host = \"192.0.2.1%lo\": only a link-local address, fe80::..., may have an interface",
        ),
        (
            "fe80::1%lo",
            "shm",
            "host = \"fe80::1%lo\": an interface (%NAME) is valid only with [nic.vi_tcp]",
        ),
    ] {
        let text = format!("[[nic]]\n{network} = {{}}\nhost = \"{host}\"\n");
        let output = output_of_failure(&mut check(&scratch.write("refused.toml", &text)));
        assert_contains(&output, &[words, "refused.toml:3: "]);
    }
}

#[test]
fn link_local_addresses_carry_connections() {
    let wire = Wire::new(1500);
    let installation = Installation::new();
    let scratch = Scratch::new("link-local");
    let hosts = [(End::Left, "fe80::a:1"), (End::Right, "fe80::a:2")];
    for (end, host) in hosts {
        let (namespace, interface) = (wire.end(end), end.interface());
        namespace.ip("link set lo up");
        namespace.ip(&format!("addr add {host}/64 dev {interface} nodad"));
    }
    let command = |(end, host): (End, &str), name: &str, words: &[&str]| {
        let nic = NicText::vi_tcp_at(&format!("{host}%{}", end.interface()));
        let config = nic.write(&scratch, &format!("{name}.toml"));
        let mut command = wire.end(end).program(installation.program(name));
        command.env("VIADUCT_CONFIG", config).args(words);
        command
    };
    let server = listen(&mut command(hosts[1], "EchoServer", &["-c", "1"]));
    // A host name without an interface is resolved with that of the NIC.
    let mut client = command(hosts[0], "EchoClient", &["-i", "10", "fe80::a:2"]);
    let output = Running::start("EchoClient", &mut client).succeed(TIMEOUT);
    assert_contains(&output, &["50 messages", " 0 errors"]);
    server.succeed(TIMEOUT);
}

#[test]
fn errors_quote_values_and_names_as_configured() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("names");
    let failure = |nic: NicText, words: &[&str]| {
        let config = nic.write(&scratch, "nic.toml");
        let mut server = program(installation.program("EchoServer"));
        server
            .env("VIADUCT_CONFIG", config)
            .env("VIADUCT_LOG", "debug");
        output_of_failure(server.args(words))
    };
    let nic = || NicText::shm(segment.path());
    let pinned = nic().key("progress.pinned.core", 1000);
    let output = failure(pinned, &[]);
    let core = "core = 1000: this process may not use it; it may use ";
    assert_contains(&output, &[core]);
    let is_debug = output.contains("Some(") || output.contains('[');
    assert!(!is_debug, "{output}");
    let output = failure(NicText::vi_tcp_at("fe80::1%nowhere"), &[]);
    let interface = "no interface \"nowhere\": `ip link` lists interfaces";
    assert_contains(&output, &["host = \"fe80::1%nowhere\": ", interface]);
    let output = failure(nic().and(nic()), &["-d", "VINIC7"]);
    let names = "no NIC is called \"VINIC7\"; there are VINIC0, VINIC1";
    assert_contains(&output, &[names]);
}

#[test]
fn errors_show_names_that_are_not_utf_8() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("bytes");
    let not_utf_8 = OsStr::from_bytes(b"\xffnowhere.toml");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let server = |config: &OsStr| {
        let mut command = program(installation.program("EchoServer"));
        command.env("VIADUCT_CONFIG", config);
        command
    };
    let expect = |command: &mut Command, parts: &[&str]| {
        assert_contains(&output_of_failure(command), parts);
    };
    // A missing file, and a file that is not UTF-8.
    let missing = "nowhere.toml: cannot be read";
    expect(&mut check(Path::new(not_utf_8)), &[missing]);
    expect(&mut server(not_utf_8), &[missing, "VIP_ERROR_RESOURCE"]);
    let binary = scratch.file("binary.toml");
    std::fs::write(&binary, b"[[nic]]\nshm.interface = \"\xff\"\n").expect("the file is written");
    expect(&mut check(&binary), &["binary.toml:2: not UTF-8"]);
    // Environment and command line.
    let (level, config) = (OsStr::from_bytes(b"\xff"), config.as_os_str());
    let levels = "must be off, error, warn, info, debug or trace";
    let mut command = server(config);
    command.env("VIADUCT_LOG", level).args(["-d", "VINIC7"]);
    expect(&mut command, &["VIADUCT_LOG=", levels]);
    let protection = ["VIPL_PROTECTION=", "must be strict or lenient"];
    expect(server(config).env("VIPL_PROTECTION", level), &protection);
    let mut command = server(config);
    command.env("VIADUCT_LOG", "debug").arg("-d").arg(not_utf_8);
    let refused = ["VipOpenNic: ", "not UTF-8", "VIP_INVALID_PARAMETER"];
    expect(&mut command, &refused);
    let mut vibench = program(built().join("vibench"));
    vibench.args(["latency", "--device"]).arg(not_utf_8);
    assert_contains(&output_of_exit(&mut vibench, 2), &["invalid UTF-8"]);
}

#[test]
fn error_for_a_host_outside_of_the_segment_says_what_to_do() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("loopback");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let mut client = program(installation.program("EchoClient"));
    client.env("VIADUCT_CONFIG", config).arg("127.0.0.1");
    let output = output_of_failure(&mut client);
    assert_contains(
        &output,
        &[
            "NIC VINIC0: connection request to 127.0.0.1: not on segment e2e, whose programs have the host ::1",
            "connect to localhost, or set host = \"127.0.0.1\" in the configuration of all programs of the segment",
            "VIP_NOT_REACHABLE",
        ],
    );
}

#[test]
fn connection_loss_by_a_lowered_mtu_is_logged() {
    let wire = Wire::new(2500);
    let installation = Installation::new();
    let scratch = Scratch::new("mtu");
    let nic = |end| NicText::af_packet(end).long_timeouts();
    let run = |program: &Path| wire.left.program(program);
    let mut process = DatapathProcess::start(&scratch, "", &nic(End::Left), run);
    let config = nic(End::Right).write(&scratch, "right.toml");
    let mut server = wire.right.program(installation.program("EchoServer"));
    let mut server = listen(server.env("VIADUCT_CONFIG", config));
    let mut client = wire.left.program(installation.program("EchoClient"));
    client.env("VIADUCT_CONFIG", process.config());
    client.args(["-i", "1000000000", "-s", "65536", End::Right.host()]);
    let client = Running::start("EchoClient", &mut client);
    server.wait_for("EchoServer: client 1 connected", TIMEOUT);
    wire.left.ip("link set left mtu 1400");
    let ended = client.finish(TIMEOUT);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.text);
    // Also if the other side was sending.
    let dropped = "left: the MTU was lowered from 2500 to 1400 bytes: longer frames are dropped, sent \
                   or received: `ip link set left mtu 2500`";
    let log = process.output();
    log.wait_until(dropped, TIMEOUT, |line| line.contains(dropped));
    let lost = "connection lost while the MTU of left is too low";
    log.wait_until(lost, TIMEOUT, |line| line.contains(lost));
    let counters = &process.stat()["nics"][0]["counters"];
    assert!(counters["breaks_by_mtu"].as_u64() >= Some(1), "{counters}");
    process.stop_and_check();
}
