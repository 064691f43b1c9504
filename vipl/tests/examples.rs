//! The examples as a user starts them: programs of their own that find each other.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Removes the configuration, and ends the server if the test did not get so far.
struct Run {
    config: PathBuf,
    server: Option<Child>,
}

impl Run {
    /// A segment that only the programs of this test share.
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

    /// An example, which was built together with this test.
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
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        // Five sizes, 50 messages each.
        assert!(
            said.contains("250 messages") && said.contains(" 0 errors"),
            "{said}"
        );
    }
    let status = run.server.take().unwrap().wait().unwrap();
    assert!(
        status.success(),
        "the server leaves when it has served its clients: {status}"
    );
}

#[test]
fn a_client_without_a_server_fails_in_words() {
    let run = Run::new("nobody");
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
fn a_table_is_read_row_by_row() {
    let run = Run::new("rdma-read");
    let output = run.example("rdma_read").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("the reader says that it is done") && said.contains("8 rows of 1024 bytes"),
        "{said}"
    );
}

#[test]
fn rdma_writes_arrive_as_they_were_sent() {
    let run = Run::new("rdma");
    let output = run.example("rdma_write").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said} {}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        said.contains("the flag is set") && said.contains("immediate data 42: "),
        "{said}"
    );
}

/// Four parts, of which each pair meets; whoever is started later finds the others waiting.
#[test]
fn parts_of_a_program_connect_with_each_other() {
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
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        let expected = format!("peers: part {rank} of {PARTS}: the sum is 6\n");
        assert_eq!(said, expected);
    }
}

/// An example with an output that fails.
fn end(run: &Run, words: &[&str], stdout: impl Into<Stdio>) -> (Option<i32>, String) {
    let mut command = run.example(words[0]);
    command.args(&words[1..]).stdout(stdout);
    let output = command.stderr(Stdio::piped()).spawn();
    let output = output.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn examples_end_in_order_when_their_output_fails() {
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
        let (code, said) = end(&run, words, full());
        assert_eq!(code, Some(1), "{words:?}: {said}");
        assert!(
            said.contains("No space left on device"),
            "{words:?}: {said}"
        );
        let (_, broken_pipe) = std::io::pipe().unwrap();
        let (code, said) = end(&run, words, broken_pipe);
        // The other end of a connection may report that it is gone.
        let is_quiet = code == Some(0) && !said.contains("pipe") && !said.contains("panicked");
        assert!(is_quiet, "{words:?}: {code:?} {said}");
    }
    let mut run = Run::new("full-client");
    run.server = Some(
        run.example("echo_server")
            .args(["-c", "1"])
            .spawn()
            .unwrap(),
    );
    let (code, said) = end(&run, &["echo_client", "-i", "1", "localhost"], full());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
}

#[test]
fn arguments_that_are_not_utf_8_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    let run = Run::new("bytes");
    let word = std::ffi::OsStr::from_bytes(b"\xff");
    for name in ["echo_client", "echo_server", "echo_notify", "peers"] {
        let output = run.example(name).arg(word).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains("usage: "), "{name}: {said}");
    }
}
