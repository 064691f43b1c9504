//! Libraries that a test preloads into a program.

use std::path::PathBuf;
use std::process::Command;

use crate::installation::workspace;
use crate::process::succeed;
use crate::scratch::Scratch;

/// Builds the library of a source below `e2e/programs`.
///
/// # Panics
/// It does not build.
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
