//! The example programs, run as separate processes that connect with each other.

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
        let text = format!("[[nic]]\nname = \"VINIC0\"\nport = \"shm\"\nsegment = \"{segment}\"\n");
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
fn echo_clients_get_back_what_they_sent() {
    echo_through("echo_server");
}

#[test]
fn echo_clients_get_back_what_they_sent_to_handlers() {
    echo_through("echo_notify");
}

fn echo_through(server: &str) {
    const CLIENTS: usize = 3;
    let mut run = Run::new(server);
    let count = CLIENTS.to_string();
    run.server = Some(run.example(server).args(["-c", &count]).spawn().unwrap());
    let clients: Vec<Child> = (0..CLIENTS)
        .map(|_| {
            let mut client = run.example("echo_client");
            client
                .args(["-i", "50", "localhost"])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        // Five sizes, 50 messages each.
        assert!(
            text.contains("250 messages") && text.contains(" 0 errors"),
            "{text}"
        );
    }
    let status = run.server.take().unwrap().wait().unwrap();
    assert!(
        status.success(),
        "the server exits after the last client: {status}"
    );
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
fn rdma_read_example_reads_all_rows() {
    let run = Run::new("rdma-read");
    let output = run.example("rdma_read").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("the reader has finished") && text.contains("8 rows of 1024 bytes"),
        "{text}"
    );
}

#[test]
fn rdma_write_example_reports_the_written_data() {
    let run = Run::new("rdma");
    let output = run.example("rdma_write").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("the flag is set") && text.contains("immediate data 42: "),
        "{text}"
    );
}

/// Four processes, of which each pair connects, in any order of their start.
#[test]
fn peers_example_connects_all_pairs() {
    const PARTS: usize = 4;
    let run = Run::new("peers");
    let parts: Vec<Child> = (0..PARTS)
        .map(|rank| {
            let words = [rank, PARTS].map(|number| number.to_string());
            let mut part = run.example("peers");
            part.args(words).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (rank, part) in parts.into_iter().enumerate() {
        let output = part.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let expected = format!("peers: part {rank} of {PARTS}: the sum is 6\n");
        assert_eq!(text, expected);
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
