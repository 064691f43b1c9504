//! libvipl installed below a prefix, and the C examples built against it, as a user does both.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::succeed;
use crate::scratch::Scratch;

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The directory into which cargo has put the programs and libraries of this profile.
///
/// # Panics
/// If this program is not where cargo puts tests.
pub fn built() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let deps = own.parent().expect("a program lies in a directory");
    deps.parent().expect("tests lie one deeper").to_path_buf()
}

/// The C examples, installed where every user can run them.
#[derive(Debug)]
pub struct Installation {
    scratch: Scratch,
}

impl Installation {
    /// Installs the library that cargo has built and builds the examples against it.
    ///
    /// # Panics
    /// If something is missing or does not build.
    pub fn new() -> Self {
        let this = Self {
            scratch: Scratch::new("installation"),
        };
        let library = built().join("libvipl_capi.so");
        assert!(
            library.exists(),
            "{} is missing: cargo build -p vipl-capi",
            library.display()
        );
        let prefix = this.scratch.file("prefix");
        succeed(
            Command::new(workspace().join("ci/install-capi"))
                .arg("--from")
                .arg(built())
                .arg(&prefix),
        );
        succeed(
            Command::new("make")
                .arg("-C")
                .arg(workspace().join("examples/c"))
                .arg(format!("BUILD={}", this.scratch.path().display()))
                .arg(format!(
                    "PKG_CONFIG_PATH={}",
                    prefix.join("lib/pkgconfig").display()
                )),
        );
        this
    }

    /// One of the examples.
    pub fn program(&self, name: &str) -> PathBuf {
        self.scratch.file(name)
    }
}

impl Default for Installation {
    fn default() -> Self {
        Self::new()
    }
}
