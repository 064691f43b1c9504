//! A private installation of libvipl, C programs compiled against it, and child processes that are killed
//! when their test ends.

// Each test binary uses a part of this module.
#![allow(dead_code)]

pub(crate) mod exceptions;
pub(crate) mod guide;
pub(crate) mod rows;
pub(crate) mod suite;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of a program, in seconds, after which it is killed.
const PROGRAM_TIMEOUT_S: &str = "120";
/// Timeout of a program under valgrind, in seconds.
const VALGRIND_TIMEOUT_S: &str = "600";

/// How a program links with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    /// libvipl.so, found by its run path.
    Shared,
    /// libvipl.a.
    Static,
}

/// An installation of libvipl under a private prefix, with a private NIC configuration.
pub(crate) struct Installation {
    root: PathBuf,
    /// Whether VINIC0 is a VI/TCP NIC on the loopback interface.
    over_tcp: bool,
}

impl Installation {
    /// Installs the build of this test run.
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, &[], "")
    }

    /// Like `new`, with additional keys for VINIC0.
    pub(crate) fn with_keys(name: &str, keys: &str) -> Self {
        Self::with(name, &[], keys)
    }

    /// Like `new`, with VI/TCP as the transport of VINIC0.
    pub(crate) fn over_tcp(name: &str) -> Self {
        let mut this = Self::new(name);
        this.over_tcp = true;
        // A loopback address that is unique among tests.
        let [_, _, second, first] = std::process::id().to_be_bytes();
        let number = name
            .bytes()
            .fold(0x80, |sum: u8, byte| sum.wrapping_add(byte))
            | 0x80;
        let tcp = format!(
            "[[nic]]\nvi_tcp = {{}}\nname = \"VINIC0\"\nhost = \"127.{number}.{second}.{first}\"\n\
             ulp_timeout_ms = 240000\n"
        );
        let config = fs::read_to_string(this.config()).expect("the NIC configuration");
        let others = config.find("[[nic]]\nname = \"SMALL\"").expect("more NICs");
        fs::write(this.config(), tcp + &config[others..]).expect("the NIC configuration");
        this
    }

    /// Like `new`, as links to the build directory.
    pub(crate) fn linked(name: &str) -> Self {
        Self::with(name, &["--link"], "")
    }

    fn with(name: &str, options: &[&str], keys: &str) -> Self {
        let id = format!("{name}-{}", std::process::id());
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&id);
        fs::create_dir_all(&root).expect("the test's directory");
        let this = Self {
            root,
            over_tcp: false,
        };
        let built = std::env::current_exe().expect("own path");
        let built = built.parent().expect("the directory of the test program");
        let install = workspace().join("ci/install-capi");
        succeed(
            Command::new(install)
                .arg("--from")
                .arg(built)
                .args(options)
                .arg(this.prefix()),
        );
        fs::write(this.config(), nics(&id, keys)).expect("the NIC configuration");
        this
    }

    /// Returns the prefix of the installation.
    pub(crate) fn prefix(&self) -> PathBuf {
        self.root.join("prefix")
    }

    /// Returns the directory of the test's files.
    pub(crate) fn directory(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a file of this test.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn config(&self) -> PathBuf {
        self.file("viaduct.toml")
    }

    /// Compiles a test program; `compiler` is the command with its language options.
    pub(crate) fn compile(
        &self,
        program: &str,
        sources: &[&str],
        compiler: &[&str],
        linkage: Linkage,
    ) -> PathBuf {
        let output = self.file(program);
        let lib = self.prefix().join("lib");
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-g",
            "-O1",
            "-pthread",
        ]);
        command
            .arg("-I")
            .arg(self.prefix().join("include"))
            .arg("-o")
            .arg(&output);
        command.args(sources.iter().map(|source| tests_directory().join(source)));
        match linkage {
            Linkage::Shared => {
                command.arg("-L").arg(&lib).arg("-lvipl");
                command.arg(format!("-Wl,-rpath,{}", lib.display()));
            }
            Linkage::Static => {
                // The archive by name, then the private libraries of vipl.pc.
                command.args(["-x", "none"]).arg(lib.join("libvipl.a"));
                command.args([
                    "-lgcc_s",
                    "-lutil",
                    "-lrt",
                    "-lpthread",
                    "-lm",
                    "-ldl",
                    "-lc",
                ]);
            }
        }
        succeed(&mut command);
        output
    }

    /// Compiles a test program that uses the harness of the conformance suite.
    pub(crate) fn compile_with_harness(&self, program: &str, source: &str) -> PathBuf {
        let harness = tests_directory().join("conformance/harness");
        let files = fs::read_dir(&harness).expect("the harness");
        let mut sources: Vec<PathBuf> = files
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|end| end == "c"))
            .collect();
        sources.push(tests_directory().join(source));
        let sources: Vec<&str> = sources
            .iter()
            .map(|path| path.to_str().expect("a UTF-8 path"))
            .collect();
        let include = format!("-I{}", harness.display());
        let compiler = ["cc", "-std=c99", &include];
        self.compile(program, &sources, &compiler, Linkage::Shared)
    }

    /// Runs a test program in this installation's directory; all its checks must pass.
    pub(crate) fn run_checks(&self, command: &mut Command) {
        let output = succeed(command.arg(self.directory()));
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(printed.ends_with(" passed, 0 failed\n"), "{printed}");
    }

    /// Returns a command that runs `program` on this installation's NICs, with a timeout.
    pub(crate) fn command(&self, program: &Path) -> Command {
        self.command_with_timeout(PROGRAM_TIMEOUT_S, program)
    }

    /// Like `command`, under valgrind, which fails on any error and any definite leak.
    pub(crate) fn command_under_valgrind(&self, program: &Path) -> Command {
        let mut command = self.command_with_timeout(VALGRIND_TIMEOUT_S, Path::new("valgrind"));
        command.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
        command
            .args(["--errors-for-leak-kinds=definite", "--fair-sched=yes"])
            .arg(program);
        command.env("VIPL_TEST_SMALL", "1");
        command
    }

    fn command_with_timeout(&self, timeout_s: &str, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["--foreground", "--kill-after=10", timeout_s])
            .arg(program);
        command.env("VIADUCT_CONFIG", self.config());
        command.env("FRAGILE_SEGMENT", self.fragile_segment());
        if self.over_tcp {
            command.env("VIPL_TEST_UNKNOWN_HOST", "refuses");
        }
        command
            .env_remove("VIPL_PROTECTION")
            .env_remove("VIADUCT_LOG");
        command
    }

    /// Returns the path of the segment file of the NIC that a test damages.
    fn fragile_segment(&self) -> PathBuf {
        let user = fs::metadata(&self.root)
            .expect("the test's directory")
            .uid();
        let id = self.root.file_name().expect("a name").display();
        Path::new(FRAGILE_DIRECTORY).join(format!("viaduct-{user}-fragile-{id}/segment"))
    }

    /// Builds the C examples with their Makefile.
    pub(crate) fn make_examples(&self) {
        let directory = workspace().join("examples/c");
        let mut command = Command::new("make");
        command
            .arg("-C")
            .arg(directory)
            .arg(format!("BUILD={}", self.root.display()));
        command.arg(format!(
            "PKG_CONFIG_PATH={}",
            self.prefix().join("lib/pkgconfig").display()
        ));
        succeed(&mut command);
    }
}

/// Directory of the segment that a test damages.
const FRAGILE_DIRECTORY: &str = "/dev/shm";

/// Returns the configuration of the suite's NICs: one with the default limits, one with low limits and two static
/// neighbours, two with injected wire faults, and one that a test damages. The first two and the last lose nothing:
/// with their long timeouts no request is retransmitted, even on a slow machine under valgrind.
fn nics(id: &str, keys: &str) -> String {
    let nic = |name: &str, keys: &str| {
        let segment = name.to_lowercase();
        format!("[[nic]]\nname = \"{name}\"\nshm.segment = \"{segment}-{id}\"\n{keys}\n")
    };
    let long_timeouts =
        "fc_vi.e_d_tov_ms = 240000\nulp_timeout_ms = 240000\nfc_vi.silent_port_ms = 240000";
    let short_timeouts = "fc_vi.e_d_tov_ms = 200\nfc_vi.r_a_tov_ms = 200\nulp_timeout_ms = 400";
    let low_limits = "limits.max_vi = 4\nlimits.max_ptags = 4\nlimits.max_cq = 3\nlimits.max_cq_entries = 64\nlimits.max_regions = 3\n\
                  limits.max_registered_bytes = 33554432\nlimits.max_incoming = 1\nlimits.max_notifies_per_queue = 3\n\
                  limits.max_transfer_bytes = 8388608\n\
                  static.neighbour = [{ host = \"192.0.2.9\", n_port_ids = \"00.09.01\" }, \
                  { host = \"192.0.2.8\", n_port_ids = \"00.08.01\" }]";
    [
        nic("VINIC0", &format!("{long_timeouts}\n{keys}")),
        nic("SMALL", &format!("{long_timeouts}\n{low_limits}")),
        nic(
            "LOSSY",
            &format!("{short_timeouts}\n[nic.fc_vi.fault]\nseed = 3\nloss_ppm = 20000"),
        ),
        nic(
            "DAMAGED",
            &format!("{short_timeouts}\n[nic.fc_vi.fault]\nseed = 5\ncorruption_ppm = 20000"),
        ),
        nic(
            "FRAGILE",
            &format!("{long_timeouts}\nshm.directory = \"{FRAGILE_DIRECTORY}\""),
        ),
        "[alias]\n\"/dev/old0\" = \"VINIC0\"\n".to_owned(),
    ]
    .concat()
}

impl Drop for Installation {
    fn drop(&mut self) {
        // The files of a failed test are kept for inspection.
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// Returns the root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the directory of the tests.
pub(crate) fn tests_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Returns the calls that vipl.h declares.
pub(crate) fn declared_calls() -> BTreeSet<String> {
    let header = tests_directory().join("../include/vipl.h");
    let header = fs::read_to_string(header).expect("the header");
    let prototypes = header.split("extern VIP_RETURN ").skip(1);
    prototypes
        .filter_map(|rest| Some(rest.split_once('(')?.0.to_owned()))
        .collect()
}

/// Returns the path of an example of the Rust crate, with the profile of this test. `ci/test` has built it; otherwise it is
/// built here, since cargo does not build the examples of other packages.
pub(crate) fn rust_example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let built = test.ancestors().nth(2).expect("PROFILE/deps/TEST");
    let program = built.join("examples").join(name);
    if std::env::var_os("TEST_PACKAGE").is_some() {
        return program;
    }
    let target = built.parent().expect("the target directory");
    let profile = match built.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(other) => other,
        None => panic!("{} has no name", built.display()),
    };
    succeed(
        Command::new(env!("CARGO"))
            .args(["build", "--locked", "--offline", "--package", "vipl"])
            .args(["--example", name, "--profile", profile, "--target-dir"])
            .arg(target)
            .current_dir(workspace()),
    );
    program
}

/// Runs a command and returns its output; panics with the output unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> Output {
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

/// A child process; dropping it kills its process group.
pub(crate) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a command in its own process group, with pipes as standard input and output.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.process_group(0);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, stdout }
    }

    /// Reads the child's output until a line contains `part`.
    pub(crate) fn await_line(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            let bytes = self.stdout.read_line(&mut line).expect("text");
            assert_ne!(bytes, 0, "the program exited without printing {part:?}");
        }
    }

    /// Closes the child's input and waits for success; returns the output that was not read yet.
    pub(crate) fn succeed(mut self) -> String {
        drop(self.child.stdin.take());
        let mut printed = String::new();
        self.stdout.read_to_string(&mut printed).expect("text");
        let status = self.child.wait().expect("the child's status");
        assert!(status.success(), "{status}\n{printed}");
        printed
    }

    /// Kills the child with SIGKILL; panics if it has exited.
    pub(crate) fn kill(mut self) {
        assert!(self.kill_group(), "the program exited before it was killed");
    }

    /// Returns the process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status once the child has exited.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child's status")
    }

    /// Kills the process group; returns false if the child has exited.
    fn kill_group(&mut self) -> bool {
        let running = matches!(self.child.try_wait(), Ok(None));
        if running {
            let group = format!("-{}", self.child.id());
            succeed(Command::new("kill").args(["-KILL", "--", &group]));
            self.child.wait().expect("the child's status");
        }
        running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Waits until a file exists.
pub(crate) fn await_file(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        assert!(
            Instant::now() < deadline,
            "timed out waiting for {}",
            path.display()
        );
        thread::sleep(Duration::from_millis(5));
    }
}
