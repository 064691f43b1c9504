//! A datapath process that is a child of the test program: the same program once more, with one test of it.

use std::fs;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pmd::attach::server::Server;
use pmd::config::Config;

/// Names the configuration of the process, in the child.
const SERVE: &str = "VIADUCT_TEST_SERVE";
const READY: &str = "the process is ready";

/// The process of the test `name`, and the directory that it has to itself.
pub(crate) struct DatapathProcess {
    child: Child,
    directory: Directory,
}

/// In the child: serves until its input ends. Each test begins with it, and is over where it says so.
pub(crate) fn has_served() -> bool {
    let Some(config) = std::env::var_os(SERVE) else {
        return false;
    };
    pmd::obey_ptrace_rules().unwrap();
    let config = Config::read_to_serve(Path::new(&config)).unwrap();
    let server = Server::start(config, |_| Vec::new()).unwrap();
    println!("{READY}");
    stdin().read_to_end(&mut Vec::new()).unwrap();
    server.stop();
    true
}

impl DatapathProcess {
    /// Starts the process of this test; `process` are further keys of `[process]`, and tables; DIRECTORY in it stands
    /// for the test's own.
    pub(crate) fn start(test: &str, process: &str) -> Self {
        let nic = "port = \"shm\"\nsegment = \"attached\"\ndirectory = DIRECTORY\n\
                   e_d_tov_ms = 60000\nsilent_port_ms = 60000\n";
        Self::start_with(test, nic, process)
    }

    /// The same whose NIC has these keys.
    pub(crate) fn start_with(test: &str, nic: &str, process: &str) -> Self {
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
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(SERVE, config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut this = Self { child, directory };
        let mut said = BufReader::new(this.child.stdout.as_mut().unwrap()).lines();
        assert!(said.any(|line| line.unwrap().ends_with(READY)));
        this
    }

    /// Where programs attach.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.0.join("pmd.sock")
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        // Its last words have a reader until then.
        let mut rest = String::new();
        let mut said = self.child.stdout.take().unwrap();
        said.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
    }
}

impl Drop for DatapathProcess {
    fn drop(&mut self) {
        // Both fail only where it has ended in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that goes with its owner.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // Whatever is left is in a directory for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
