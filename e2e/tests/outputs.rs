//! Notification of the service manager, and failing outputs: unread logs, closed terminals, broken pipes, full disks.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use e2e::datapath::{DatapathProcess, fcvi_pmd_path, polling_core};
use e2e::echo::listen;
use e2e::installation::{Installation, built};
use e2e::nics::NicText;
use e2e::process::{Ended, Running, TIMEOUT, program};
use e2e::scratch::Scratch;
use e2e::vi_peer;

/// The capacity of a pipe: pipe(7).
const PIPE_BYTES: usize = 65_536;

/// A service manager that receives the notifications of one process.
struct Manager(UnixDatagram);

impl Manager {
    fn new(socket: UnixDatagram) -> Self {
        let limit = Some(TIMEOUT);
        socket.set_read_timeout(limit).expect("a timeout");
        Self(socket)
    }

    /// Creates one with an abstract address; also returns the value of `NOTIFY_SOCKET`.
    fn with_abstract_address(name: &str) -> (Self, String) {
        let name = format!("viaduct-e2e-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let socket = UnixDatagram::bind_addr(&address).expect("a free name");
        (Self::new(socket), format!("@{name}"))
    }

    fn receive(&self) -> String {
        let mut bytes = [0; 4096];
        let count = self
            .0
            .recv(&mut bytes)
            .expect("a notification within the timeout");
        String::from_utf8_lossy(&bytes[..count]).trim().to_owned()
    }

    fn expect(&self, reports: &[&str]) {
        for report in reports {
            assert_eq!(self.receive(), *report);
        }
    }
}

fn config(scratch: &Scratch, segment: &Scratch, name: &str) -> PathBuf {
    let nic = NicText::shm(segment.path());
    let text = DatapathProcess::text(scratch, "idle = \"hybrid\"", &nic);
    scratch.write(name, &text)
}

fn fcvi_pmd(words: &[&str], config: &Path) -> Command {
    let mut command = program(fcvi_pmd_path());
    command.args(words).arg("--config").arg(config);
    command
}

#[test]
fn service_manager_is_notified_at_paths_and_abstract_addresses() {
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("notify");
    let config = config(&scratch, &segment, "pmd.toml");
    let path = scratch.file("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("a free path");
    let managers = [
        Manager::with_abstract_address("notify"),
        (Manager::new(socket), path.to_str().expect("UTF-8").into()),
    ];
    for (manager, address) in managers {
        let mut command = fcvi_pmd(&["run"], &config);
        let process = Running::start("fcvi-pmd", command.env("NOTIFY_SOCKET", &address));
        manager.expect(&["READY=1"]);
        process.signal("HUP");
        manager.expect(&["RELOADING=1", "READY=1"]);
        process.signal("TERM");
        manager.expect(&["STOPPING=1"]);
        let output = process.succeed(TIMEOUT);
        assert!(!output.contains("service manager"), "{address}: {output}");
    }
}

/// A datapath process whose standard error is a full pipe and which has dropped log lines.
struct UnreadLog {
    process: Running,
    log: PipeReader,
    config: PathBuf,
    _scratch: [Scratch; 2],
}

impl UnreadLog {
    fn start(name: &str) -> Self {
        let segment = Scratch::in_memory("segment");
        let scratch = Scratch::new("unread");
        // Each reload logs the long name of the file.
        let config = config(&scratch, &segment, &format!("{}.toml", "x".repeat(200)));
        let (manager, address) = Manager::with_abstract_address(name);
        let (log, stderr) = io::pipe().expect("a pipe");
        let mut command = fcvi_pmd(&["run"], &config);
        command.env("NOTIFY_SOCKET", address);
        let process = Running::start_with("fcvi-pmd", &mut command, Stdio::piped(), stderr);
        drop(command);
        manager.expect(&["READY=1"]);
        let this = Self {
            process,
            log,
            config,
            _scratch: [scratch, segment],
        };
        let limit = Instant::now() + TIMEOUT;
        while this.lost_lines() == 0 {
            assert!(Instant::now() < limit, "no log line was dropped");
            for _ in 0..100 {
                this.process.signal("HUP");
                manager.expect(&["RELOADING=1", "READY=1"]);
            }
        }
        this
    }

    fn stat(&self, words: &[&str]) -> String {
        let words = [&["stat"], words].concat();
        let stat = Running::start("stat", &mut fcvi_pmd(&words, &self.config));
        stat.succeed(TIMEOUT)
    }

    fn lost_lines(&self) -> u64 {
        let text = self.stat(&["--json"]);
        let all: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        all["process"]["log_lines_lost"].as_u64().expect("a number")
    }
}

#[test]
fn unread_log_delays_neither_programs_nor_the_stop() {
    let unread = UnreadLog::start("unread");
    assert!(unread.stat(&[]).contains(" log lines lost"));
    // A program attaches and detaches.
    vi_peer::explore(vi_peer::local(&unread.config)).succeed(TIMEOUT);
    unread.process.signal("TERM");
    let ended = unread.process.finish(TIMEOUT);
    assert!(ended.status.success(), "{}", ended.status);
}

#[test]
fn dropped_log_lines_are_reported_when_the_log_is_read_again() {
    let UnreadLog { process, log, .. } = &mut UnreadLog::start("read-again");
    let reported = BufReader::new(log).lines().find_map(|line| {
        let line = line.expect("a log");
        let (number, _) = line.strip_prefix("log: ")?.split_once(" lines lost")?;
        number.parse::<u64>().ok()
    });
    assert!(reported.expect("a report of the loss") > 0);
    process.signal("TERM");
}

/// Creates a full pipe.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().expect("a pipe");
    writer
        .write_all(&[b'\n'; PIPE_BYTES])
        .expect("the pipe is filled");
    (reader, writer)
}

#[test]
fn library_does_not_wait_for_the_reader_of_its_log() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("library");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let (_reader, writer) = full_pipe();
    let start = |name: &str, words: &[&str]| {
        let mut command = program(installation.program(name));
        command.env("VIADUCT_CONFIG", &config).args(words);
        let stderr = writer.try_clone().expect("a descriptor");
        // Opening a NIC logs a line at this level.
        command.env("VIADUCT_LOG", "info");
        Running::start_with(name, &mut command, Stdio::piped(), stderr)
    };
    let mut server = start("EchoServer", &["-c", "1"]);
    server.wait_for("EchoServer: listening", TIMEOUT);
    let output = start("EchoClient", &["-i", "10", "localhost"]).succeed(TIMEOUT);
    assert!(output.contains(" 0 errors"), "{output}");
    server.succeed(TIMEOUT);
}

/// Python: starts a program on a new terminal, closes the terminal after the first output, and prints the program's
/// exit status, or minus the signal that ended it. Standard error is the terminal, or a file.
const TERMINAL: &str = r#"
import fcntl, os, pty, struct, subprocess, sys, termios
controller, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
def own_session():
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
errors = open(sys.argv[1], "w") if sys.argv[1] else terminal
program = subprocess.Popen(sys.argv[2:], stdin=terminal, stdout=terminal, stderr=errors, preexec_fn=own_session)
os.close(terminal)
shown = b""
while b"q quit" not in shown:
    shown += os.read(controller, 65536)
os.close(controller)
print("status", program.wait(), flush=True)
"#;

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("terminal");
    let process = DatapathProcess::local(&scratch, &NicText::shm(segment.path()));
    let errors = scratch.write("errors", "");
    for file in ["", errors.to_str().expect("UTF-8")] {
        let mut command = program("python3");
        command.args(["-c", TERMINAL, file]);
        command.arg(fcvi_pmd_path());
        command.args(["top", "--config"]).arg(process.config());
        let output = Running::start("top", &mut command).succeed(TIMEOUT);
        assert_eq!(output, "status 1\n", "standard error: {file:?}");
    }
    let output = fs::read_to_string(errors).expect("the file of standard error");
    assert_eq!(output, "fcvi-pmd: the terminal was closed\n");
    process.stop_and_check();
}

/// Creates a pipe without a reader.
fn broken_pipe() -> PipeWriter {
    let (_, writer) = io::pipe().expect("a pipe");
    writer
}

fn full_disk() -> File {
    let mut options = File::options();
    options.write(true).open("/dev/full").expect("a device")
}

/// Checks of commands whose outputs fail: an error for a full disk, no error for a broken pipe.
struct Outputs<'a>(&'a dyn Fn(&[&str]) -> Command);

impl Outputs<'_> {
    fn check(&self, words: &[&str]) {
        let Self(command) = self;
        let start = |stdout: Stdio, stderr: Stdio| {
            let running = Running::start_with(words[0], &mut command(words), stdout, stderr);
            running.finish(TIMEOUT)
        };
        let ended = start(full_disk().into(), Stdio::piped());
        let Ended { status, text } = &ended;
        assert_eq!(status.code(), Some(1), "{words:?}: {status}\n{text}");
        assert!(
            text.contains("No space left on device"),
            "{words:?}: {text}"
        );
        assert!(!text.contains("panicked"), "{words:?}: {text}");

        let ended = start(broken_pipe().into(), Stdio::piped());
        let Ended { status, text } = &ended;
        let is_quiet = status.success() || status.signal() == Some(SIGPIPE);
        assert!(is_quiet, "{words:?}: {status}\n{text}");
        assert!(!text.contains("pipe"), "{words:?}: {text}");
    }

    /// Checks that the exit status does not depend on failures of standard error.
    fn check_errors(&self, words: &[&str], code: i32) {
        let Self(command) = self;
        for stderr in [Stdio::from(full_disk()), Stdio::from(broken_pipe())] {
            let mut command = command(words);
            let running = Running::start_with(words[0], &mut command, Stdio::piped(), stderr);
            let Ended { status, text } = running.finish(TIMEOUT);
            let is_quiet = status.code() == Some(code) || status.signal() == Some(SIGPIPE);
            assert!(is_quiet, "{words:?}: {status}\n{text}");
        }
    }
}

/// The signal that ends a C program that writes to a broken pipe.
const SIGPIPE: i32 = 13;

#[test]
fn fcvi_pmd_exits_cleanly_when_its_output_fails() {
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("full");
    let nic = NicText::shm(segment.path());
    let process = DatapathProcess::local(&scratch, &nic);
    let config = process.config().to_str().expect("UTF-8");
    let command = |words: &[&str]| {
        let mut command = program(fcvi_pmd_path());
        command.args(words);
        command
    };
    let outputs = Outputs(&command);
    outputs.check(&["check", config]);
    outputs.check(&["stat", "--config", config]);
    outputs.check(&["stat", "--json", "--config", config]);
    outputs.check(&["top", "--once", "--interval", "0.1", "--config", config]);
    outputs.check(&["capture", "--for", "0.1", "-w", "-", "--config", config]);
    outputs.check(&["--help"]);
    outputs.check(&["check", "--help"]);
    outputs.check(&["--version"]);
    outputs.check_errors(
        &["capture", "--for", "0.1", "-w", "-", "--config", config],
        0,
    );
    outputs.check_errors(&["check", "/nowhere.toml"], 1);
    outputs.check_errors(&["run", "--config", "/nowhere.toml"], 1);
    outputs.check_errors(&["no-command"], 2);
    process.stop_and_check();
}

#[test]
fn vibench_exits_cleanly_when_its_output_fails() {
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("full");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let config = config.to_str().expect("UTF-8");
    let command = |words: &[&str]| {
        let mut command = program(built().join("vibench"));
        command.args(words);
        command
    };
    let outputs = Outputs(&command);
    let short = ["--seconds", "0.1", "--warmup", "0"];
    outputs.check(&[&["latency"], &short[..]].concat());
    outputs.check(&[&["rate", "--no-control"], &short[..]].concat());
    outputs.check(&["connect", "--connections", "20"]);
    let core = polling_core().to_string();
    outputs.check(&[
        "core-latency",
        "--cores",
        &format!("0,{core}"),
        "--seconds",
        "0.01",
    ]);
    outputs.check(&["port", "ping", "--segment", "outputs", "--frames", "1"]);
    outputs.check(&["--help"]);
    outputs.check_errors(&[&["latency"], &short[..]].concat(), 0);
    outputs.check_errors(&["latency", "--cores", "99999,99998"], 1);
    outputs.check_errors(&["latency", "--connect", "nowhere"], 1);
    // Without the failure it would listen indefinitely.
    let mut listening = command(&["latency", "--listen", "--config", config]);
    let ended = Running::start_with("listen", &mut listening, full_disk(), Stdio::piped());
    let Ended { status, text } = ended.finish(TIMEOUT);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
}

#[test]
fn c_examples_exit_cleanly_when_their_output_fails() {
    let installation = Installation::new();
    let segment = Scratch::in_memory("segment");
    let scratch = Scratch::new("full");
    let config = NicText::shm(segment.path()).write(&scratch, "nic.toml");
    let command = |words: &[&str]| {
        let mut command = program(installation.program(words[0]));
        command.args(&words[1..]).env("VIADUCT_CONFIG", &config);
        command
    };
    let outputs = Outputs(&command);
    for name in [
        "EchoServer",
        "EchoClient",
        "EchoNotify",
        "RdmaWrite",
        "Peers",
    ] {
        outputs.check(&[name, "-h"]);
        outputs.check_errors(&[name, "-?"], 2);
    }
    for name in ["EchoServer", "EchoNotify"] {
        let mut server = command(&[name, "-c", "1"]);
        let server = Running::start_with(name, &mut server, full_disk(), Stdio::piped());
        let Ended { status, text } = server.finish(TIMEOUT);
        assert_eq!(status.code(), Some(1), "{name}: {text}");
        assert!(text.contains("No space left on device"), "{name}: {text}");
    }
    let server = listen(&mut command(&["EchoServer", "-c", "1"]));
    let mut client = command(&["EchoClient", "-i", "1", "localhost"]);
    let client = Running::start_with("EchoClient", &mut client, full_disk(), Stdio::piped());
    let Ended { status, text } = client.finish(TIMEOUT);
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    server.succeed(TIMEOUT);
}
