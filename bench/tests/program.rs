//! Short runs of the program: output, JSON files, exit codes and error texts.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn json_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("vibench-{name}-{}.json", std::process::id()))
}

fn vibench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vibench"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs the program, which must succeed; returns its standard output.
fn succeed(arguments: &[&str]) -> String {
    let output = vibench(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that the program fails with these words.
fn expect_failure(arguments: &[&str], words: &str) {
    let output = vibench(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_expected = !output.status.success() && stderr.contains(words);
    assert!(is_expected, "{arguments:?}: {stderr}");
}

/// Reads and removes a file of results.
fn take_results(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Runs a successful measurement over shared memory and returns its results.
fn measure(name: &str, arguments: &[&str]) -> Vec<Value> {
    measure_on("shm", name, arguments)
}

/// Runs a successful measurement, checks `port` and the output, and returns the results.
fn measure_on(port: &str, name: &str, arguments: &[&str]) -> Vec<Value> {
    let path = json_path(name);
    let mut all = arguments.to_vec();
    let text = path.to_str().unwrap().to_owned();
    all.extend(["--seconds", "0.05", "--warmup", "0.01", "--json", &text]);
    let table = succeed(&all);
    let results = take_results(&path).as_array().unwrap().clone();
    for result in &results {
        assert!(result["ended_early"].is_null(), "{result}");
        assert_eq!(result["port"], port);
        assert_eq!(result["rounds"], 5);
        assert!(result["delivered"].as_u64().unwrap() > 0, "{result}");
        assert!(result["messages_per_s"].as_f64().unwrap() > 0.0, "{result}");
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
    }
    // The lines below the table: the cores, and an explanation of the control.
    let has_line = |begin: &str| {
        table
            .lines()
            .any(|line| line.trim_start().starts_with(begin))
    };
    assert!(has_line("cores: "), "{table}");
    assert!(has_line("control: ") && has_line("ratio: "), "{table}");
    // Losses at Unreliable Delivery are indented lines below the row.
    let rows = table.lines().filter(|line| !line.starts_with(' '));
    assert_eq!(rows.count(), 2 + results.len(), "{table}");
    results
}

/// Runs two sides of `vibench port` and returns the result of each.
fn run_port_sides(name: &str, sides: [&str; 2]) -> [Value; 2] {
    let segment = format!("vibench-{name}-{}", std::process::id());
    let paths = ["first", "second"].map(|side| json_path(&format!("{name}-{side}")));
    let children = [0, 1].map(|side| {
        Command::new(env!("CARGO_BIN_EXE_vibench"))
            .arg("port")
            .args(sides[side].split(' '))
            .args(["--segment", &segment, "--json"])
            .arg(&paths[side])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    for child in children {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{sides:?}: {stderr}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("frames/s"), "{text}");
    }
    paths.map(|path| {
        let results = take_results(&path);
        assert_eq!(results[0]["port"], "shm");
        results[0].clone()
    })
}

#[test]
fn port_send_and_receive_count_frames() {
    let receive = "receive --frames 20000";
    let [sent, received] =
        run_port_sides("port-stream", ["send --size 256 --frames 20000", receive]);
    assert_eq!(
        (&sent["role"], &received["role"]),
        (&"send".into(), &"receive".into())
    );
    assert_eq!(received["frames"], 20_000);
    assert_eq!(received["bytes"], 20_000 * 256);
    assert_eq!(received["lost"], 0);
    assert!(received["frames_per_s"].as_f64().unwrap() > 0.0);
    assert!(received["half_round_trip_ns"].is_null() && received["damaged"].is_null());
}

#[test]
fn port_send_and_receive_filled_frames() {
    let sides = [
        "send --filled --size 2124 --frames 20000",
        "receive --filled --frames 20000",
    ];
    let [sent, received] = run_port_sides("port-filled", sides);
    assert_eq!(
        (&sent["frames"], &received["damaged"]),
        (&20_000.into(), &0.into())
    );
    assert_eq!(received["bytes"], 20_000 * 2124);
}

#[test]
fn port_ping_and_echo_measure_round_trips() {
    let echo = "echo --frames 500";
    let [pinged, echoed] = run_port_sides("port-ping", ["ping --frames 500", echo]);
    assert_eq!(echoed["frames"], 500);
    let round_trips = pinged["frames"].as_u64().unwrap();
    assert_eq!(round_trips + pinged["lost"].as_u64().unwrap(), 500);
    assert!(pinged["half_round_trip_ns"]["p50"].as_f64().unwrap() > 0.0);
}

/// Shell script that measures a veth pair in a network namespace. Arguments: the program, and a directory with a
/// configuration for each end, which receives the results.
const VETH_SCRIPT: &str = r#"
set -e
ip link add left type veth peer name right
for end in left right; do ip link set $end up; done
for end in left right; do until ip link show $end | grep -q 'state UP'; do :; done; done
"$1" port send --config "$2/left.toml" && exit 1
"$1" port receive --config "$2/right.toml" --mac 02:00:00:00:00:02 --frames 1000 --json "$2/right.json" > "$2/right.txt" &
until grep -q station "$2/right.txt"; do kill -0 $!; done
"$1" port send --config "$2/left.toml" --mac 02:00:00:00:00:01 --to 02:00:00:00:00:02 \
    --frames 1000 --size 1500 --json "$2/left.json"
wait $!
ip link set right down
until ip link show left | grep -q NO-CARRIER; do :; done
"$1" port send --config "$2/left.toml" --to 02:00:00:00:00:02 --frames 100 --json "$2/down.json"
"#;

#[test]
fn port_send_and_receive_over_veth() {
    for driver in ["af_packet", "af_xdp"] {
        let name = format!("vibench-wire-{driver}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        for end in ["left", "right"] {
            let nic = format!("[[nic]]\n{driver}.interface = \"{end}\"\nhost = \"192.0.2.1\"\n");
            std::fs::write(folder.join(end).with_extension("toml"), nic).unwrap();
        }
        let output = Command::new("unshare")
            .args(["--net", "--pid", "--kill-child", "--", "timeout", "60"])
            .args(["sh", "-c", VETH_SCRIPT, "sh", env!("CARGO_BIN_EXE_vibench")])
            .arg(&folder)
            .output()
            .expect("util-linux is installed");
        let read = |file: &str| std::fs::read_to_string(folder.join(file));
        let texts = ["left.json", "right.json", "down.json"].map(read);
        std::fs::remove_dir_all(&folder).unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{driver}, as root: {stderr}");
        assert!(stderr.contains("--to is missing"), "{stderr}");
        let [sent, received, dropped] = texts.map(|text| {
            let results: Value = serde_json::from_str(&text.unwrap()).unwrap();
            results[0].clone()
        });
        assert_eq!(
            (&sent["port"], &sent["frames"]),
            (&driver.into(), &1000.into())
        );
        assert_eq!(received["bytes"], 1000 * 1500);
        assert_eq!(received["lost"], 0);
        if driver == "af_xdp" {
            // With af_packet the kernel drops the frames, and does not count them here.
            assert_eq!(dropped["counters"]["drop_tx_link_down"], 100);
            assert_eq!(dropped["frames"], 0);
        }
    }
}

#[test]
fn invalid_arguments_fail_with_error_text() {
    for (arguments, expected) in [
        (
            &["rate", "--config", "no-such-file.toml"][..],
            "no-such-file.toml",
        ),
        (&["rate", "--batch", "64", "--window", "32"], "batch"),
        (&["latency", "--op", "write", "--size", "0"], "0 bytes"),
        (&["latency", "--cores", "0,99999"], "99999"),
        (&["latency", "--connect", "there"], "--config"),
        (
            &["latency", "--cores", "0"],
            "--cores 0: client and server both run on this host: give two cores, A,B",
        ),
        // Fails before the measurement, which would take an hour.
        (
            &["latency", "--seconds", "3600", "--json", "/nowhere/x.json"],
            "/nowhere/x.json",
        ),
        (
            &[
                "connect",
                "--connections",
                "1000000000",
                "--json",
                "/nowhere/x.json",
            ],
            "/nowhere/x.json",
        ),
        (
            &["port", "receive", "--json", "/nowhere/x.json"],
            "/nowhere/x.json",
        ),
    ] {
        expect_failure(arguments, expected);
    }
}

#[test]
fn port_without_peer_fails_with_hint() {
    let segment = format!("vibench-alone-{}", std::process::id());
    for (arguments, words) in [
        (
            &["port", "send", "--mac", "02:00:00:00:00:01"][..],
            "assigns station addresses",
        ),
        (
            &["port", "send", "--config", "/no/such/file"],
            "/no/such/file",
        ),
        (
            &["port", "send", "--segment", &segment],
            "start the other side first",
        ),
    ] {
        expect_failure(arguments, words);
    }
}

/// Each benchmark of each operation, at two or all of the reliability levels that have the operation.
#[test]
fn each_benchmark_measures_each_operation() {
    let all = ["ud", "rd", "rr"].as_slice();
    let reliable = &all[1..];
    for (benchmark, op, levels, sizes) in [
        ("latency", "send", reliable, "8,4096"),
        ("latency", "write", reliable, "8,4096"),
        ("latency", "read", reliable, "0,5000"),
        ("rate", "send", all, "64"),
        ("rate", "write", all, "64"),
        ("rate", "read", reliable, "13"),
        ("bandwidth", "send", &all[..2], "64K"),
        ("bandwidth", "write", &all[..2], "64K"),
        ("bandwidth", "read", reliable, "64K"),
    ] {
        for level in levels {
            let name = format!("{benchmark}-{op}-{level}");
            let arguments = ["--op", op, "--level", level, "--size", sizes];
            let results = measure(&name, &[&[benchmark], &arguments[..]].concat());
            assert_eq!(results.len(), sizes.split(',').count());
            for result in results {
                let found = (&result["op"], &result["level"]);
                assert_eq!(found, (&op.into(), &(*level).into()));
                assert!(*level == "ud" || result["lost"] == 0, "{result}");
                let half = &result["half_round_trip_ns"];
                if benchmark == "latency" {
                    assert_percentiles(half);
                    assert!(result["control"]["half_round_trip_ns"]["p50"].is_f64());
                } else {
                    assert!(half.is_null(), "{result}");
                }
            }
        }
    }
}

fn assert_percentiles(half: &Value) {
    let values = ["p50", "p90", "p99", "p999"].map(|key| half[key].as_f64().unwrap());
    assert!(values[0] > 0.0 && values.is_sorted(), "{half}");
}

#[test]
fn bytes_of_messages_are_touched() {
    for arguments in [
        &["latency", "--op", "send", "--size", "100"][..],
        &["latency", "--op", "write", "--size", "100"],
        &["bandwidth", "--op", "send", "--size", "64K"],
        &["bandwidth", "--op", "write", "--size", "64K"],
    ] {
        let results = measure("touch", &[arguments, &["--touch"]].concat());
        assert_eq!(results[0]["touches"], true);
    }
}

/// The raw control polls, and is not measured.
#[test]
fn messages_are_awaited_by_blocking_calls() {
    let path = json_path("wait");
    let json = path.to_str().unwrap();
    let round = ["--seconds", "0.05", "--json", json];
    for pause_us in ["0", "100"] {
        succeed(&[&["latency", "--wait", pause_us], &round[..]].concat());
        let result = &take_results(&path)[0];
        assert!(result["ended_early"].is_null(), "{result}");
        assert_eq!(result["pause_us"].to_string(), pause_us);
        assert_percentiles(&result["half_round_trip_ns"]);
        assert!(result["control"].is_null(), "{result}");
    }
}

#[test]
fn streams_over_several_connections() {
    for level in ["rd", "ud"] {
        let arguments = ["rate", "--active", "5", "--idle", "7", "--level", level];
        let results = measure(&format!("active-{level}"), &arguments);
        assert_eq!(results[0]["connections"], 5);
    }
    let writes = ["bandwidth", "--op", "write", "--active", "3"];
    let counted = [&writes[..], &["--messages", "1000"]].concat();
    let results = measure("active-messages", &counted);
    assert_eq!(
        (&results[0]["delivered"], &results[0]["lost"]),
        (&5000.into(), &0.into())
    );
}

/// Writes a VI/TCP configuration for an address of this host, with a TCP port derived from the process ID.
fn vi_tcp(name: &str, host: &str) -> PathBuf {
    let tcp_port = 10_000 + std::process::id() % 20_000;
    let nic = format!("[[nic]]\nhost = \"{host}\"\nvi_tcp.port = {tcp_port}\n");
    let path = json_path(&format!("vi-tcp-{name}")).with_extension("toml");
    std::fs::write(&path, nic).unwrap();
    path
}

#[test]
fn vi_tcp_is_compared_with_raw_tcp() {
    let config = vi_tcp("alone", "127.0.0.3");
    let file = config.to_str().unwrap();
    for (benchmark, op, level, bytes) in [
        ("latency", "send", "rd", 88),
        ("latency", "write", "rr", 104),
        ("latency", "read", "rd", 104),
        ("rate", "send", "rd", 88),
        ("rate", "send", "ud", 88),
        ("bandwidth", "write", "rd", 104),
        ("rate", "read", "rr", 104),
    ] {
        let name = format!("vi-tcp-{benchmark}-{op}-{level}");
        let what = [benchmark, "--op", op, "--level", level, "--size", "64"];
        let results = measure_on("vi-tcp", &name, &[&what[..], &["--config", file]].concat());
        let control = format!("raw TCP, messages of {bytes} bytes");
        assert_eq!(results[0]["control"]["name"], control);
        if level != "ud" {
            assert_eq!(results[0]["lost"], 0);
        }
    }
    let active = ["rate", "--active", "4", "--idle", "20", "--config", file];
    let results = measure_on("vi-tcp", "vi-tcp-active", &active);
    assert_eq!(results[0]["connections"], 4);

    for (arguments, words) in [
        (
            &["latency", "--shortcut", "--config", file][..],
            "--shortcut",
        ),
        (&["port", "echo", "--config", file], "vi_tcp"),
    ] {
        expect_failure(arguments, words);
    }
    std::fs::remove_file(&config).unwrap();
}

/// A server process (`--listen`), interrupted by `end` and killed on drop.
struct Listener(Child);

impl Listener {
    fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vibench"))
            .args(["rate", "--listen", "--config"])
            .arg(config)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let listener = Self(child);
        assert!(line.contains("listening"), "{line}");
        listener
    }

    fn end(mut self) {
        let interrupt = ["-INT", &self.0.id().to_string()];
        let kill = Command::new("kill").args(interrupt).status().unwrap();
        assert!(kill.success() && self.0.wait().unwrap().success());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The process has exited already, unless a test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn vi_tcp_between_two_addresses() {
    let hosts = ["127.0.0.4", "127.0.0.5"];
    let [client, server] = hosts.map(|host| vi_tcp(host, host));
    let listener = Listener::start(&server);
    let common = ["--connect", hosts[1], "--config", client.to_str().unwrap()];
    for benchmark in ["latency", "rate"] {
        let name = format!("vi-tcp-two-{benchmark}");
        let results = measure_on("vi-tcp", &name, &[&[benchmark], &common[..]].concat());
        assert_eq!(results[0]["lost"], 0);
    }
    let connect = ["connect", "--connections", "100", "--peers", "20"];
    let table = succeed(&[&connect[..], &common].concat());
    assert!(table.contains("100 connections over vi-tcp"), "{table}");
    listener.end();
    for config in [client, server] {
        std::fs::remove_file(config).unwrap();
    }
}

#[test]
fn shortcut_runs_both_ends_in_one_process() {
    for (benchmark, op) in [
        ("latency", "send"),
        ("bandwidth", "write"),
        ("rate", "send"),
    ] {
        let arguments = [benchmark, "--op", op, "--shortcut"];
        let results = measure_on("shortcut", &format!("shortcut-{benchmark}"), &arguments);
        assert_eq!(results[0]["lost"], 0);
    }
}

#[test]
fn reads_with_message_limit_deliver_that_many() {
    let arguments = ["--op", "read", "--messages", "1000"];
    let stream = measure("read-messages", &[&["rate"], &arguments[..]].concat());
    assert_eq!(stream[0]["delivered"], 5000);
    let latency = measure("read-latency", &[&["latency"], &arguments[..]].concat());
    assert_eq!(latency[0]["delivered"], 5000);
}

#[test]
fn odd_sizes_and_batch_of_one() {
    measure("odd", &["rate", "--size", "1,13,2097", "--batch", "1"]);
    measure(
        "odd-write",
        &["rate", "--op", "write", "--size", "1,13,2097"],
    );
    measure(
        "odd-latency",
        &["latency", "--op", "write", "--size", "1,13"],
    );
    measure("empty", &["latency", "--size", "0"]);
}

#[test]
fn rounds_with_message_limit_deliver_that_many() {
    let results = measure("messages", &["rate", "--messages", "1000", "--rounds", "5"]);
    assert_eq!(results[0]["delivered"], 5000);
}

#[test]
fn connect_reports_client_server_and_peer_connections() {
    let path = json_path("connect");
    let words = "connect --connections 305 --peers 20 --level rd,ud,rr --max-growth 65536 --json";
    let mut words: Vec<&str> = words.split(' ').collect();
    words.push(path.to_str().unwrap());
    let table = succeed(&words);
    let results = take_results(&path);
    let result = &results[0];
    assert_eq!(result["benchmark"], "connect");
    assert_eq!(result["connections"], 305, "{result}");
    assert_eq!(result["half_made"], 0, "{result}");
    assert!(result["ended_early"].is_null(), "{result}");
    assert!(result["connections_per_s"].as_f64().unwrap() > 0.0);
    assert!(result["setup_ns"]["p50"].as_f64().unwrap() > 0.0);
    let steps = result["steps"].as_array().unwrap();
    let levels: Vec<&Value> = steps.iter().map(|step| &step["level"]).collect();
    assert_eq!(levels[..4], ["rd", "ud", "rr", "rd"]);
    for step in steps {
        assert!(step["resident_kib"].as_u64().unwrap() > 0, "{step}");
        assert!(step["far_resident_kib"].as_u64().unwrap() > 0, "{step}");
    }
    assert_eq!(table.lines().count(), 2 + 10 + 1, "{table}");
}

/// Interrupts a run after the first line of its table, which begins with `header`, and checks that it succeeds.
/// Returns the other lines, and the results.
fn interrupt_run(name: &str, arguments: &[&str], header: &str) -> (Vec<String>, Value) {
    let path = json_path(name);
    let mut child = Command::new(env!("CARGO_BIN_EXE_vibench"))
        .args(arguments)
        .arg("--json")
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with(header), "{first}");
    let interrupt = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupt.success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success(), "{rest:?}");
    let results = take_results(&path);
    assert_eq!(results[0]["ended_early"], "interrupted", "{results}");
    (rest, results)
}

#[test]
fn interrupted_connect_run_succeeds() {
    let arguments = ["connect", "--connections", "100000000"];
    let (_, results) = interrupt_run("connect-interrupt", &arguments, "lv");
    assert_eq!(results[0]["half_made"], 0, "{results}");
}

#[test]
fn interrupted_latency_run_writes_results() {
    let arguments = ["latency", "--seconds", "600", "--rounds", "100"];
    let (rest, _) = interrupt_run("interrupt", &arguments, "benchmark");
    assert!(
        rest.iter().any(|line| line.contains("interrupted")),
        "{rest:?}"
    );
}

#[test]
fn run_that_is_interrupted_while_it_connects_writes_results() {
    let arguments = ["rate", "--active", "1000", "--seconds", "600"];
    let (_, results) = interrupt_run("connecting-interrupt", &arguments, "benchmark");
    let connections = results[0]["connections"].as_u64().unwrap();
    assert!(connections < 1000, "{results}");
}

#[test]
fn cores_are_printed_and_connect_accepts_one_core() {
    let hosts = ["127.0.0.6", "127.0.0.7"];
    let [client, server] = hosts.map(|host| vi_tcp(host, host));
    let listener = Listener::start(&server);
    let connect = ["--connect", hosts[1], "--config", client.to_str().unwrap()];
    for (cores, others, printed) in [
        ("1,0", &[][..], "1 (client), 0 (server)"),
        ("1", &connect, "1 (client); server on 127.0.0.7"),
    ] {
        let short = [
            "latency",
            "--seconds",
            "0.1",
            "--no-control",
            "--cores",
            cores,
        ];
        let table = succeed(&[&short, others].concat());
        let printed = format!("  cores: {printed}");
        assert!(table.lines().any(|line| line == printed), "{table}");
        assert!(!table.contains("ratio: "), "no control: {table}");
    }
    listener.end();
    for config in [client, server] {
        std::fs::remove_file(config).unwrap();
    }
}
