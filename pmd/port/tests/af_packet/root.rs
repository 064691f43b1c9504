//! Runs tests that need root.

use std::process::Command;

/// Runs a test body as root; without root, runs the test again as the root of
/// a new user namespace.
pub(crate) fn as_root(test: &str, body: impl FnOnce()) {
    // SAFETY: takes nothing and always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        return body();
    }
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .output()
        .expect("these tests need root, or `unshare` to become root of a user namespace");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "these tests need root or unprivileged user namespaces:\n{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
