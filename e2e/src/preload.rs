//! Libraries for `LD_PRELOAD`.

use std::path::PathBuf;
use std::process::Command;

use crate::installation::workspace;
use crate::process::succeed;
use crate::scratch::Scratch;

/// Builds a library from a source file below `e2e/programs`.
///
/// # Panics
/// If it does not build.
pub fn build(scratch: &Scratch, source: &str) -> PathBuf {
    let library = scratch.file("preloaded.so");
    let options = [
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
    ];
    succeed(
        Command::new("cc")
            .args(options)
            .arg(&library)
            .arg(workspace().join("e2e/programs").join(source))
            .arg("-ldl"),
    );
    library
}
