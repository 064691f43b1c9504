//! libvipl installed below a prefix, and C programs built against it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::succeed;
use crate::scratch::Scratch;

/// Returns the root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the directory with the programs and libraries that cargo has built for this profile.
///
/// # Panics
/// The test program is not in cargo's target directory.
pub fn built() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this program");
    let deps = own.parent().expect("a program is in a directory");
    deps.parent()
        .expect("tests are in a subdirectory")
        .to_path_buf()
}

/// Returns the release build of `vibench`; the tests are debug builds.
///
/// # Panics
/// If it is not built.
pub fn vibench() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    let program = target.join("release/vibench");
    assert!(
        program.exists(),
        "{} is missing: cargo build --release -p vibench",
        program.display()
    );
    program
}

/// The installed library, and the C examples in a directory that each user can read.
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
        succeed(
            Command::new(workspace().join("ci/install-capi"))
                .arg("--from")
                .arg(built())
                .arg(this.prefix()),
        );
        this.make("examples/c", this.scratch.path());
        this
    }

    fn prefix(&self) -> PathBuf {
        self.scratch.file("prefix")
    }

    /// Runs make in a directory of the workspace.
    fn make(&self, directory: &str, output: &Path) {
        let packages = self.prefix().join("lib/pkgconfig");
        succeed(
            Command::new("make")
                .arg("-C")
                .arg(workspace().join(directory))
                .arg(format!("BUILD={}", output.display()))
                .arg(format!("PKG_CONFIG_PATH={}", packages.display())),
        );
    }

    /// Builds the conformance suite; returns the programs of one phase, a directory of the suite.
    ///
    /// # Panics
    /// If it does not build, or the directory is empty.
    pub fn conformance(&self, phase: &str) -> Vec<PathBuf> {
        let output = self.scratch.file("conformance");
        self.make("vipl/capi/tests/conformance", &output);
        let entries = std::fs::read_dir(output.join(phase)).expect("a directory of programs");
        let mut programs: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        programs.sort();
        assert!(!programs.is_empty(), "no program of {phase}");
        programs
    }

    /// Builds a program in the style of the year 2000: `cc SOURCES $(pkg-config --cflags --libs vipl)`, C89.
    ///
    /// # Panics
    /// If it does not build.
    pub fn old_program(&self, name: &str, sources: &[&str]) -> PathBuf {
        self.compile("c89", "vipl/capi/tests/old_programs", name, sources)
    }

    /// Builds a C program from one source file in a directory of the workspace.
    ///
    /// # Panics
    /// If it does not build.
    pub fn test_program(&self, directory: &str, name: &str) -> PathBuf {
        let source = format!("{name}.c");
        self.compile("gnu11", directory, name, &[&source])
    }

    fn compile(&self, standard: &str, directory: &str, name: &str, sources: &[&str]) -> PathBuf {
        let program = self.scratch.file(name);
        let script = format!(
            "cc -std={standard} -Wall -Wextra -pedantic -Werror -O1 -g -pthread {} -o {} \
             $(pkg-config --cflags --libs vipl) -Wl,-rpath,$(pkg-config --variable=libdir vipl)",
            sources.join(" "),
            program.display(),
        );
        succeed(
            Command::new("sh")
                .args(["-e", "-c", &script])
                .current_dir(workspace().join(directory))
                .env("PKG_CONFIG_PATH", self.prefix().join("lib/pkgconfig")),
        );
        program
    }

    /// Returns the path of an example.
    pub fn program(&self, name: &str) -> PathBuf {
        self.scratch.file(name)
    }
}

impl Default for Installation {
    fn default() -> Self {
        Self::new()
    }
}
