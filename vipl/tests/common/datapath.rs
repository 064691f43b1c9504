//! A datapath process as a child of the test program: the same executable, started with one of its tests.

use std::fs;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use pmd::attach::server::Server;
use pmd::config::read_to_serve;
use vipl::Nic;

use super::test_command;

/// Environment variable with the path of the configuration; set only in the child.
const SERVE: &str = "VIADUCT_TEST_SERVE";
const READY: &str = "the process is ready";

/// The datapath process of a test, and its own directory.
pub(crate) struct DatapathProcess {
    child: Child,
    directory: Directory,
}

/// Keys of `[[nic]]` of a NIC on a segment in the directory of the test.
pub(crate) const SHM: &str = "shm.segment = \"attached\"\nshm.directory = DIRECTORY\n";

/// Runs the test of this name with a datapath process on a segment. `process` has further keys of `[process]`, and
/// tables; DIRECTORY in it is replaced by the directory of the test.
pub(crate) fn with_process(test: &str, process: &str, run: impl FnOnce(&DatapathProcess)) {
    let nic = format!("{SHM}fc_vi.e_d_tov_ms = 60000\nfc_vi.silent_port_ms = 60000\n");
    with_process_of(test, &nic, process, run);
}

/// As [`with_process`], with these keys of `[[nic]]`.
pub(crate) fn with_process_of(
    test: &str,
    nic: &str,
    process: &str,
    run: impl FnOnce(&DatapathProcess),
) {
    serve_if_child();
    let process = DatapathProcess::start(test, nic, process);
    run(&process);
    process.stop();
}

/// In the child: serves until end of file on standard input and exits, also if the test starts further processes. A test
/// that creates files calls it first.
pub(crate) fn serve_if_child() {
    let Some(config) = std::env::var_os(SERVE) else {
        return;
    };
    vi_core::memory::drop_cap_sys_ptrace().unwrap();
    let config = read_to_serve(Path::new(&config)).unwrap();
    let server = Server::start(config, inline_messages).unwrap();
    println!("{READY}");
    stdin().read_to_end(&mut Vec::new()).unwrap();
    server.stop();
    std::process::exit(0);
}

/// The status that the process reports: the number of messages that it passed in inline buffers.
fn inline_messages(server: &Server) -> Vec<u8> {
    let status = server.status();
    let applications = status.applications.iter();
    let messages: u64 = applications.map(|one| one.inline_messages).sum();
    messages.to_string().into_bytes()
}

impl DatapathProcess {
    /// Starts the process of this test; [`with_process_of`] has the arguments.
    pub(crate) fn start(test: &str, nic: &str, process: &str) -> Self {
        let name = format!("viaduct-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let directory = Directory(directory);
        let socket = directory.0.join("pmd.sock");
        let text = format!(
            "[[nic]]\nulp_timeout_ms = 60000\n{nic}\n\
             [process]\nsocket = {socket:?}\nidle = \"hybrid\"\n{process}\n"
        );
        let text = text.replace("DIRECTORY", &format!("{:?}", directory.0));
        let config = directory.0.join("pmd.toml");
        fs::write(&config, text).unwrap();
        let child = test_command(test)
            .arg("--test-threads=1")
            .env(SERVE, config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut this = Self { child, directory };
        let mut output = BufReader::new(this.child.stdout.as_mut().unwrap()).lines();
        assert!(output.any(|line| line.unwrap().ends_with(READY)));
        this
    }

    /// Path of the control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.0.join("pmd.sock")
    }

    /// Opens its NIC.
    pub(crate) fn attach(&self) -> Nic {
        Nic::attach(&self.socket(), "VINIC0").unwrap()
    }

    /// The number of messages that the process passed in inline buffers, sent and received.
    pub(crate) fn inline_messages(&self) -> u64 {
        let status = pmd::attach::query_status(&self.socket()).unwrap();
        String::from_utf8(status).unwrap().parse().unwrap()
    }

    /// Process identifier.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the process in order and waits for it.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        // Reads to end of file, so that the child can write all of its output.
        let mut output = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut output).unwrap();
        assert!(self.child.wait().unwrap().success(), "{output}");
    }
}

impl Drop for DatapathProcess {
    fn drop(&mut self) {
        // Both fail only if it has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is removed when dropped.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // On failure the files remain in the directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
