//! Child processes of this test binary, for what must happen in a process of its own.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;

/// Environment variable with the task of a child process.
const TASK: &str = "AF_XDP_TEST_TASK";

/// Returns the task of this process, if it is such a child.
pub(crate) fn task() -> Option<String> {
    std::env::var(TASK).ok()
}

/// Reports a line to the process that started this one.
pub(crate) fn report(text: &str) {
    println!("\n{text}");
}

/// A child process, killed on drop.
pub(crate) struct TestProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl TestProcess {
    /// Starts a child inside of the namespace, with this test and a task.
    pub(crate) fn start(namespace: &Namespace, test: &str, task: &str) -> Self {
        let mut child = namespace.run(|| {
            Command::new(std::env::current_exe().expect("the path of this program"))
                .args(["--exact", test, "--nocapture"])
                .env(TASK, task)
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program again")
        });
        let output = child.stdout.take().expect("a pipe");
        let lines = BufReader::new(output).lines();
        Self { child, lines }
    }

    /// Waits until the child reports this line.
    pub(crate) fn wait_for_line(&mut self, text: &str) {
        let lines = self.lines.by_ref();
        let found = lines.any(|line| line.expect("text") == text);
        assert!(found, "the process ended before it reported {text:?}");
    }

    /// Waits until the child ends successfully.
    pub(crate) fn wait_for_success(mut self) {
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "{status}");
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // Both fail for a child that was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
