//! This program once more: for what has to happen in a process of its own.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;

/// Set for that process: what it is asked to do.
const TASK: &str = "AF_XDP_TEST_TASK";

/// What this process is asked to do, if it is one of those.
pub(crate) fn task() -> Option<String> {
    std::env::var(TASK).ok()
}

/// Says something to the process that started this one.
pub(crate) fn say(text: &str) {
    println!("\n{text}");
}

/// The process; killed when this is dropped.
pub(crate) struct Again {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Again {
    /// Starts it inside of the namespace, with this one of the tests and a task.
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

    /// Waits until it says this.
    pub(crate) fn until(&mut self, text: &str) {
        let lines = self.lines.by_ref();
        let found = lines.any(|line| line.expect("text") == text);
        assert!(found, "the process ended before it said {text:?}");
    }

    /// Waits until it ends well.
    pub(crate) fn end(mut self) {
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        // Both fail for one that was waited for, and only then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
