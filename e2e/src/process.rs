//! Child processes that are killed with their test, and their output.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Upper limit for a step of a test on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The ID of an account without privileges.
const UNPRIVILEGED: u32 = 65534;

/// Fails the test unless it runs as root, also of a user namespace.
///
/// # Panics
/// Without root.
pub fn require_root() {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .and_then(|ids| ids.split_ascii_whitespace().nth(1));
    assert_eq!(
        effective,
        Some("0"),
        "network namespaces need root: run ci/test e2e, which creates a user namespace, or run as root"
    );
}

/// Environment variables that programs of the tests do not inherit.
const VARIABLES: [&str; 3] = ["VIADUCT_CONFIG", "VIADUCT_LOG", "VIPL_PROTECTION"];

/// Returns a command without [`VARIABLES`].
pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// Returns a command whose process is killed when the thread of the test ends.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(name);
    command
}

/// Like [`program`], as an ordinary user without capabilities.
pub fn unprivileged(name: impl AsRef<OsStr>) -> Command {
    if has_user(UNPRIVILEGED) {
        return as_user(UNPRIVILEGED, name);
    }
    let mut command = command("setpriv");
    // In a user namespace, root without capabilities has the rights of the user that created it.
    command
        .args([
            "--inh-caps",
            "-all",
            "--bounding-set",
            "-all",
            "--no-new-privs",
            "--",
        ])
        .args(["setpriv", "--pdeathsig", "KILL", "--"])
        .arg(name);
    command
}

/// Like [`program`], as this user, without capabilities or supplementary groups.
pub fn as_user(user: u32, name: impl AsRef<OsStr>) -> Command {
    let id = user.to_string();
    let mut command = command("setpriv");
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .args(["setpriv", "--pdeathsig", "KILL", "--"])
        .arg(name);
    command
}

/// Returns the user ID of [`unprivileged`] programs; 0 if there is no other user.
pub fn unprivileged_user() -> u32 {
    if has_user(UNPRIVILEGED) {
        UNPRIVILEGED
    } else {
        0
    }
}

/// Whether the user namespace maps this user ID.
///
/// # Panics
/// There is no procfs.
pub fn has_user(id: u32) -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").expect("procfs");
    let id = u64::from(id);
    map.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
            (words.next(), words.next(), words.next())
        else {
            return false;
        };
        (first..first.saturating_add(count)).contains(&id)
    })
}

/// Runs a command to completion.
///
/// # Panics
/// If it fails, with its output.
pub fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    output
}

/// Runs a command that must fail, with exit code 1; returns its output.
///
/// # Panics
/// If it does not, or panics.
pub fn output_of_failure(command: &mut Command) -> String {
    output_of_exit(command, 1)
}

/// As [`output_of_failure`], with another exit code.
///
/// # Panics
/// If it has another one, or panics.
pub fn output_of_exit(command: &mut Command, code: i32) -> String {
    let Ended { status, text } = Running::start("failing", command).finish(TIMEOUT);
    assert_eq!(status.code(), Some(code), "{command:?}: {status}\n{text}");
    assert!(!text.contains("panicked"), "{command:?}: {text}");
    text
}

/// Checks that a text contains all these parts.
///
/// # Panics
/// If not.
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

/// A line of output.
#[derive(Clone, Debug)]
pub struct Line {
    /// When it was read.
    pub at: Instant,
    /// The line, without its newline.
    pub text: String,
}

/// Exit status and output of a program.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output and standard error.
    pub text: String,
}

impl Ended {
    /// Returns the output of a program that succeeded.
    ///
    /// # Panics
    /// If it failed.
    pub fn expect_success(self, name: &str) -> String {
        assert!(
            self.status.success(),
            "{name}: {}\n{}",
            self.status,
            self.text
        );
        self.text
    }
}

/// A running program; killed on drop. Its output is printed if the test has failed.
pub struct Running {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Line>,
    output: Vec<Line>,
    /// Indices of the lines in `output` that no wait has returned yet.
    unmatched: Vec<usize>,
}

impl Running {
    /// Starts a command and reads its output.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Self {
        Self::start_with(name, command, Stdio::piped(), Stdio::piped())
    }

    /// Like [`Self::start`], with other outputs; those that are [`Stdio::piped`] are read.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start_with(
        name: &str,
        command: &mut Command,
        stdout: impl Into<Stdio>,
        stderr: impl Into<Stdio>,
    ) -> Self {
        command.stdin(Stdio::piped()).stdout(stdout).stderr(stderr);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            read_lines(stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            read_lines(stderr, sender);
        }
        Self {
            name: name.to_owned(),
            input: child.stdin.take(),
            child,
            lines,
            output: Vec::new(),
            unmatched: Vec::new(),
        }
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that begins with `start`. Each line is returned once; waits may match in any order.
    ///
    /// # Panics
    /// After the limit, or when the program ends.
    pub fn wait_for(&mut self, start: &str, limit: Duration) -> Line {
        self.wait_until(start, limit, |line| line.starts_with(start))
    }

    /// Waits for a line for which `fits` returns true; `what` describes it in errors. Each line is returned once.
    ///
    /// # Panics
    /// After the limit, or when the program ends.
    pub fn wait_until(&mut self, what: &str, limit: Duration, fits: impl Fn(&str) -> bool) -> Line {
        let deadline = Instant::now() + limit;
        loop {
            let is_it = |at: &usize| fits(&self.output[*at].text);
            if let Some(found) = self.unmatched.iter().position(is_it) {
                return self.output[self.unmatched.remove(found)].clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.record(line),
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "{}: no {what:?} within {limit:?}\n{}",
                        self.name,
                        self.text()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!(
                        "{} ended without printing {what:?}\n{}",
                        self.name,
                        self.text()
                    )
                }
            }
        }
    }

    /// Waits for `time`, during which the program must print nothing.
    ///
    /// # Panics
    /// If it prints a line, or ends.
    pub fn expect_silence(&mut self, time: Duration) {
        match self.lines.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended\n{}", self.name, self.text())
            }
            Ok(line) => panic!(
                "{}: unexpected output {:?}\n{}",
                self.name,
                line.text,
                self.text()
            ),
        }
    }

    /// Whether it has printed a line that begins with `start`.
    pub fn has_printed(&mut self, start: &str) -> bool {
        while let Ok(line) = self.lines.try_recv() {
            self.record(line);
        }
        self.output.iter().any(|line| line.text.starts_with(start))
    }

    /// Discards earlier output; later waits match new lines only.
    pub fn discard_output(&mut self) {
        self.output.extend(self.lines.try_iter());
        self.unmatched.clear();
    }

    fn record(&mut self, line: Line) {
        self.unmatched.push(self.output.len());
        self.output.push(line);
    }

    /// Writes a line to standard input.
    ///
    /// # Panics
    /// If the program has closed it.
    pub fn send_line(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open standard input");
        writeln!(input, "{line}").unwrap_or_else(|e| panic!("{}: {e}\n", self.name));
    }

    /// Sends a signal by its name.
    pub fn signal(&self, signal: &str) {
        succeed(Command::new("kill").args([&format!("-{signal}"), &self.id().to_string()]));
    }

    /// Kills the program with SIGKILL; returns the time of the kill.
    ///
    /// # Panics
    /// If it had already ended.
    pub fn kill(mut self) -> Instant {
        let ended = self.child.try_wait().expect("the child's status");
        assert!(
            ended.is_none(),
            "{} had ended: {ended:?}\n{}",
            self.name,
            self.text()
        );
        let at = Instant::now();
        self.child.kill().expect("a child that runs can be killed");
        self.child.wait().expect("the child's status");
        at
    }

    /// Closes standard input and waits for the end of the program.
    ///
    /// # Panics
    /// After the limit.
    pub fn finish(mut self, limit: Duration) -> Ended {
        self.input = None;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.output.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} did not end in {limit:?}\n{}", self.name, self.text())
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Ended {
            status: self.child.wait().expect("the child's status"),
            text: self.text(),
        }
    }

    /// Like [`Self::finish`], for a program that must succeed; returns its output.
    ///
    /// # Panics
    /// If it fails, or after the limit.
    pub fn succeed(self, limit: Duration) -> String {
        let name = self.name.clone();
        self.finish(limit).expect_success(&name)
    }

    /// Returns all output so far, including unread lines.
    fn text(&self) -> String {
        let rest = self.lines.try_iter();
        self.output
            .iter()
            .cloned()
            .chain(rest)
            .fold(String::new(), |text, line| text + &line.text + "\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Errors mean that the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("output of {}:\n{}", self.name, self.text());
        }
    }
}

fn read_lines(stream: impl Read + Send + 'static, lines: Sender<Line>) {
    thread::spawn(move || {
        for bytes in BufReader::new(stream).split(b'\n') {
            let Ok(bytes) = bytes else { return };
            let line = Line {
                at: Instant::now(),
                text: String::from_utf8_lossy(&bytes).into_owned(),
            };
            // The `Running` was dropped.
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}
