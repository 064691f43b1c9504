//! Environment variables, ignored in privileged programs.
//!
//! The environment of a program with set-user-ID, set-group-ID or file capabilities comes from an unprivileged user,
//! which could name a configuration that makes the program overwrite any file. The kernel marks such programs with
//! `AT_SECURE`.

use std::ffi::OsString;

/// Returns whether the program has more privileges than the user that started it.
pub fn is_privileged() -> bool {
    // SAFETY: getauxval(3) takes a number and reads the auxiliary vector of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the value of a variable; `None` in a privileged program.
pub fn variable(name: &str) -> Option<OsString> {
    match is_privileged() {
        true => None,
        false => std::env::var_os(name),
    }
}
