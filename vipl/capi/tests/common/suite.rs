//! The conformance suite: building and running its programs, and parsing their output.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guide::{CALLS, Phase};
use super::{Installation, succeed, tests_directory};

/// A program of the suite.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// Directory of its phase.
    pub(crate) folder: &'static str,
    /// Its name, without `.c`.
    pub(crate) name: String,
}

impl Program {
    /// Returns its source path relative to the suite, as used in documents.
    pub(crate) fn source(&self) -> String {
        format!("{}/{}.c", self.folder, self.name)
    }
}

/// Returns the programs of a phase, sorted by name.
pub(crate) fn programs(phase: Phase) -> Vec<Program> {
    let folder = tests_directory().join("conformance").join(phase.folder());
    let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut programs: Vec<Program> = files
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .map(|path| Program {
            folder: phase.folder(),
            name: path
                .file_stem()
                .and_then(|name| name.to_str())
                .expect("a UTF-8 name")
                .to_owned(),
        })
        .collect();
    programs.sort();
    assert!(!programs.is_empty(), "no program in {}", folder.display());
    programs
}

/// A test and its declarations.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestDeclaration {
    pub(crate) name: String,
    pub(crate) clauses: Vec<String>,
    /// Call and return code, the code without `VIP_`.
    pub(crate) returns: Vec<(String, String)>,
    /// Row, level, side.
    pub(crate) rows: Vec<(String, String, String)>,
}

/// The suite, built against an installation.
pub(crate) struct Suite<'a> {
    installation: &'a Installation,
    link: &'static str,
}

impl<'a> Suite<'a> {
    /// Builds these programs with the shared library.
    pub(crate) fn build(installation: &'a Installation, programs: &[Program]) -> Self {
        Self::build_with(installation, programs, "shared")
    }

    /// Builds these programs with the static library.
    pub(crate) fn build_static(installation: &'a Installation, programs: &[Program]) -> Self {
        Self::build_with(installation, programs, "static")
    }

    fn build_with(
        installation: &'a Installation,
        programs: &[Program],
        link: &'static str,
    ) -> Self {
        let this = Self { installation, link };
        let mut make = Command::new("make");
        make.arg("-C").arg(tests_directory().join("conformance"));
        make.args(["--no-print-directory", "-j2"])
            .arg(format!("LINK={link}"))
            .arg(format!("BUILD={}", this.directory().display()))
            .arg(format!(
                "PKG_CONFIG_PATH={}",
                installation.prefix().join("lib/pkgconfig").display()
            ));
        make.args(programs.iter().map(|program| this.path(program)));
        succeed(&mut make);
        this
    }

    fn directory(&self) -> PathBuf {
        self.installation.file(self.link)
    }

    /// Returns the path of a built program.
    pub(crate) fn path(&self, program: &Program) -> PathBuf {
        self.directory().join(program.folder).join(&program.name)
    }

    /// Returns the declarations of a program's tests.
    pub(crate) fn declarations(&self, program: &Program) -> Vec<TestDeclaration> {
        let mut command = self.installation.command(&self.path(program));
        let output = succeed(command.arg("--list"));
        parse_list(&String::from_utf8(output.stdout).expect("text"))
    }

    /// Runs a program, all of whose tests must pass; returns its parsed output.
    pub(crate) fn run(&self, program: &Program, command: &mut Command) -> Run {
        let name = program.source();
        let directory = self
            .installation
            .file(&format!("{}-{}", self.link, program.name));
        fs::create_dir_all(&directory).expect("the program's directory");
        let output = succeed(command.arg(&directory));
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(
            printed.ends_with(" passed, 0 failed\n"),
            "{name}: {printed}"
        );
        let run = Run::parse(&printed);
        run.check_returns(&name);
        run
    }
}

fn parse_list(printed: &str) -> Vec<TestDeclaration> {
    let mut tests: Vec<TestDeclaration> = Vec::new();
    for line in printed.lines() {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match words.as_slice() {
            [kind, name, clauses @ ..] if kind == "test" => tests.push(TestDeclaration {
                name: name.clone(),
                clauses: clauses.to_vec(),
                ..TestDeclaration::default()
            }),
            [kind, _, call, code] if kind == "shows" => {
                let code = code.strip_prefix("VIP_").expect("a VIP_RETURN").to_owned();
                let test = tests.last_mut().expect("a preceding test line");
                test.returns.push((call.clone(), code));
            }
            [kind, _, row, level, side] if kind == "row" => {
                let test = tests.last_mut().expect("a preceding test line");
                test.rows.push((row.clone(), level.clone(), side.clone()));
            }
            _ => panic!("unknown line {line:?}"),
        }
    }
    tests
}

/// The parsed output of a program.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) ran: BTreeSet<String>,
    /// Tests that require two processes.
    pub(crate) skipped: BTreeSet<String>,
    /// Test, call, return code.
    returns: BTreeSet<(String, String, String)>,
}

impl Run {
    fn parse(printed: &str) -> Self {
        let mut run = Self::default();
        for line in printed.lines() {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["run", test] => drop(run.ran.insert((*test).to_owned())),
                ["skipped", test] => drop(run.skipped.insert((*test).to_owned())),
                ["returned", test, call, code] => {
                    let words = [test, call, code].map(|word| (*word).to_owned());
                    run.returns.insert(words.into());
                }
                _ => {}
            }
        }
        run
    }

    /// Checks that the guide lists each returned code for its call, and that it is not declared as never returned.
    fn check_returns(&self, program: &str) {
        use super::exceptions::NEVER_RETURNED;
        for (test, name, code) in &self.returns {
            let code = code.strip_prefix("VIP_").unwrap_or(code);
            let listed = CALLS
                .iter()
                .any(|call| call.name == name && call.codes.contains(&code));
            let excepted = NEVER_RETURNED
                .iter()
                .any(|never| never.0 == name && never.1 == code);
            assert!(
                listed && !excepted,
                "{program}, {test}: {name} returned {code} (listed: {listed}, declared as never returned: {excepted})"
            );
        }
    }
}

/// The command prefix that starts the remote process on the same host.
pub(crate) const REMOTE_ON_THIS_HOST: &str = "env";

/// Returns a command that runs a program as two processes on one host.
pub(crate) fn two_processes(installation: &Installation, path: &Path) -> Command {
    let mut command = installation.command(path);
    command.env("VIPL_TEST_PEER", REMOTE_ON_THIS_HOST);
    command
}
