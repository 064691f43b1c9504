//! Environment variables, which privileged programs do not read.
//!
//! The environment of a program with set-user-ID, set-group-ID or file capabilities comes from an unprivileged user, who
//! could name a configuration that has the program overwrite any file. The kernel marks such programs with `AT_SECURE`.

use std::ffi::OsString;

/// Reports whether the program has more privileges than the user who started it.
pub fn is_privileged() -> bool {
    // SAFETY: getauxval(3) takes a number and reads what the kernel gave the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Gives the value of a variable; `None` in a privileged program.
pub fn variable(name: &str) -> Option<OsString> {
    match is_privileged() {
        true => None,
        false => std::env::var_os(name),
    }
}
