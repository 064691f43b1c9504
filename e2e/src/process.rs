//! A program that cannot outlive its test, and what it says.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than any step of a test takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The number of the user `nobody`.
const NOBODY: u32 = 65534;

/// Ends the test with advice unless it runs as root.
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
        "network namespaces need root: run this as ci/test e2e, which takes a user namespace, or as root"
    );
}

/// What the environment of the tests must not decide.
const VARIABLES: [&str; 3] = ["VIADUCT_CONFIG", "VIADUCT_LOG", "VIPL_PROTECTION"];

/// A command without the settings of whoever runs the tests.
pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new(name);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// A command whose process is killed when the thread of the test ends, in whatever way.
pub fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(name);
    command
}

/// The same as an ordinary user without any capability.
pub fn unprivileged(name: impl AsRef<OsStr>) -> Command {
    if has_user(NOBODY) {
        return as_user(NOBODY, name);
    }
    let mut command = command("setpriv");
    // In a user namespace of an ordinary user, root without capabilities is that user.
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

/// A program of this user, without capabilities or groups.
pub fn as_user(user: u32, name: impl AsRef<OsStr>) -> Command {
    let id = user.to_string();
    let mut command = command("setpriv");
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .args(["setpriv", "--pdeathsig", "KILL", "--"])
        .arg(name);
    command
}

/// The owner of files for [`unprivileged`] programs.
pub fn unprivileged_user() -> u32 {
    if has_user(NOBODY) { NOBODY } else { 0 }
}

/// Does this user exist in our user namespace?
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

/// Runs a command to its end; anything but success is the test's failure, with all it has printed.
///
/// # Panics
/// If it fails.
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

/// A line that a program has printed.
#[derive(Clone, Debug)]
pub struct Line {
    /// When it was read.
    pub at: Instant,
    /// The line, without its end.
    pub text: String,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// All it has printed, standard error too.
    pub text: String,
}

impl Ended {
    /// The text of a program that succeeded.
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

/// A running program; killed when it is dropped. When that is because its test fails, its words are printed.
pub struct Running {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Line>,
    said: Vec<Line>,
    /// Lines that nobody has waited for, as places in `said`.
    unclaimed: Vec<usize>,
}

impl Running {
    /// Starts a command and reads what it prints.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(name: &str, command: &mut Command) -> Self {
        Self::start_with(name, command, Stdio::piped(), Stdio::piped())
    }

    /// The same with other outputs; one of them is [`Stdio::piped`], and read.
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
            said: Vec::new(),
            unclaimed: Vec::new(),
        }
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line that begins with `start`; each line is found once, in whatever order they are
    /// waited for.
    ///
    /// # Panics
    /// If it does not come in time.
    pub fn wait_for(&mut self, start: &str, limit: Duration) -> Line {
        self.wait_until(start, limit, |line| line.starts_with(start))
    }

    /// Waits for a line that fits, which is called `what` when it does not come; each line is found once.
    ///
    /// # Panics
    /// If it does not come in time.
    pub fn wait_until(&mut self, what: &str, limit: Duration, fits: impl Fn(&str) -> bool) -> Line {
        let deadline = Instant::now() + limit;
        loop {
            let is_it = |at: &usize| fits(&self.said[*at].text);
            if let Some(found) = self.unclaimed.iter().position(is_it) {
                return self.said[self.unclaimed.remove(found)].clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.hear(line),
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "{} did not say {what:?} in {limit:?}\n{}",
                        self.name,
                        self.text()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!(
                        "{} ended without saying {what:?}\n{}",
                        self.name,
                        self.text()
                    )
                }
            }
        }
    }

    /// Waits for as long, and nothing may be said meanwhile.
    ///
    /// # Panics
    /// If something is said, or the program ends.
    pub fn stay_silent(&mut self, time: Duration) {
        match self.lines.recv_timeout(time) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                panic!("{} ended\n{}", self.name, self.text())
            }
            Ok(line) => panic!(
                "{} was to be silent, and said {:?}\n{}",
                self.name,
                line.text,
                self.text()
            ),
        }
    }

    /// Has it said a line that begins with `start`?
    pub fn has_said(&mut self, start: &str) -> bool {
        while let Ok(line) = self.lines.try_recv() {
            self.hear(line);
        }
        self.said.iter().any(|line| line.text.starts_with(start))
    }

    /// Forgets what was said so far: only newer lines are waited for.
    pub fn skip(&mut self) {
        self.said.extend(self.lines.try_iter());
        self.unclaimed.clear();
    }

    fn hear(&mut self, line: Line) {
        self.unclaimed.push(self.said.len());
        self.said.push(line);
    }

    /// Writes a line to the program's input.
    ///
    /// # Panics
    /// If the program does not read.
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("input that is open");
        writeln!(input, "{line}").unwrap_or_else(|e| panic!("{}: {e}\n", self.name));
    }

    /// Sends a signal by its name.
    pub fn signal(&self, signal: &str) {
        succeed(Command::new("kill").args([&format!("-{signal}"), &self.id().to_string()]));
    }

    /// Kills the program in the middle of whatever it does; gives the time of the deed.
    ///
    /// # Panics
    /// If it had ended before.
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

    /// Closes the program's input and waits for its end.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn finish(mut self, limit: Duration) -> Ended {
        self.input = None;
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.said.push(line),
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

    /// [`Self::finish`] of a program that must succeed; gives what it printed.
    ///
    /// # Panics
    /// If it does not, or not in time.
    pub fn succeed(self, limit: Duration) -> String {
        let name = self.name.clone();
        self.finish(limit).expect_success(&name)
    }

    /// All it has said, for whoever will not listen any more.
    fn text(&self) -> String {
        let rest = self.lines.try_iter();
        self.said
            .iter()
            .cloned()
            .chain(rest)
            .fold(String::new(), |text, line| text + &line.text + "\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when the process has ended, which is what they are for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("{} had said:\n{}", self.name, self.text());
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
            // Nobody listens to a program that has been let go.
            if lines.send(line).is_err() {
                return;
            }
        }
    });
}
