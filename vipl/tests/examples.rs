//! The example programs that need no other one, and their errors. All pairs of Rust and C examples:
//! `vipl/capi/tests/examples.rs`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A configuration and a server; when dropped, the file is removed and a running server killed.
struct Run {
    config: PathBuf,
    server: Option<Child>,
}

impl Run {
    /// Writes a configuration with a segment that only the programs of this test use.
    fn new(name: &str) -> Self {
        let segment = format!("viaduct-examples-{name}-{}", std::process::id());
        let config = std::env::temp_dir().join(format!("{segment}.toml"));
        let text = format!("[[nic]]\nname = \"VINIC0\"\nshm.segment = \"{segment}\"\n");
        std::fs::write(&config, text).unwrap();
        Self {
            config,
            server: None,
        }
    }

    /// The command of an example, which is built together with this test.
    fn example(&self, name: &str) -> Command {
        let test = std::env::current_exe().unwrap();
        let profile = test
            .ancestors()
            .nth(2)
            .expect("tests lie in target/<profile>/deps");
        let mut command = Command::new(profile.join("examples").join(name));
        command.env("VIADUCT_CONFIG", &self.config);
        command
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
        std::fs::remove_file(&self.config).unwrap();
    }
}

#[test]
fn client_without_a_server_prints_an_error() {
    let run = Run::new("no-server");
    let output = run
        .example("echo_client")
        .args(["no-such-host.invalid"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("echo_client: "));
    let output = run.example("echo_client").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage:"));
}

#[test]
fn rdma_examples_report_what_was_read_and_written() {
    for (name, lines) in [
        (
            "rdma_read",
            ["the reader has finished", "8 rows of 1024 bytes"],
        ),
        ("rdma_write", ["the flag is set", "immediate data 42: "]),
    ] {
        let output = Run::new(name).example(name).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text} {errors}");
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }
}

/// Runs an example with this standard output; returns its exit code and its standard error.
fn run_with_stdout(run: &Run, words: &[&str], stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut command = run.example(words[0]);
    command.args(&words[1..]).stdout(stdout);
    let output = command.stderr(Stdio::piped()).spawn();
    let output = output.unwrap().wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

#[test]
fn examples_exit_cleanly_when_their_output_fails() {
    let full = || {
        let mut options = std::fs::File::options();
        options.write(true).open("/dev/full").unwrap()
    };
    for words in [
        &["echo_server", "-c", "1"][..],
        &["echo_notify", "-c", "1"],
        &["rdma_read"],
        &["rdma_write"],
    ] {
        let run = Run::new(&format!("full-{}", words[0]));
        let (code, text) = run_with_stdout(&run, words, full());
        assert_eq!(code, Some(1), "{words:?}: {text}");
        assert!(
            text.contains("No space left on device"),
            "{words:?}: {text}"
        );
        let (_, broken_pipe) = std::io::pipe().unwrap();
        let (code, text) = run_with_stdout(&run, words, broken_pipe);
        // The peer may report the lost connection.
        let is_quiet = code == Some(0) && !text.contains("pipe") && !text.contains("panicked");
        assert!(is_quiet, "{words:?}: {code:?} {text}");
    }
    let mut run = Run::new("full-client");
    run.server = Some(
        run.example("echo_server")
            .args(["-c", "1"])
            .spawn()
            .unwrap(),
    );
    let (code, text) = run_with_stdout(&run, &["echo_client", "-i", "1", "localhost"], full());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
}

#[test]
fn arguments_that_are_not_utf_8_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let run = Run::new("bytes");
    let word = std::ffi::OsStr::from_bytes(b"\xff");
    for name in ["echo_client", "echo_server", "echo_notify", "peers"] {
        let output = run.example(name).arg(word).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {text}");
        assert!(text.contains("usage: "), "{name}: {text}");
    }
}
