//! The conformance suite: its programs, what they declare, what they do.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guide::{CALLS, Phase};
use super::{Installation, succeed, tests_directory};

/// A program of the suite.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// The folder of its phase.
    pub(crate) folder: &'static str,
    /// Its name, without `.c`.
    pub(crate) name: String,
}

impl Program {
    /// Its source, as documents name it.
    pub(crate) fn source(&self) -> String {
        format!("{}/{}.c", self.folder, self.name)
    }
}

/// The programs of a phase, by name.
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
                .expect("a name that is text")
                .to_owned(),
        })
        .collect();
    programs.sort();
    assert!(!programs.is_empty(), "no program in {}", folder.display());
    programs
}

/// A test and what it declares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) clauses: Vec<String>,
    /// Call and code, the code without `VIP_`.
    pub(crate) answers: Vec<(String, String)>,
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

    /// A built program.
    pub(crate) fn path(&self, program: &Program) -> PathBuf {
        self.directory().join(program.folder).join(&program.name)
    }

    /// What a program declares.
    pub(crate) fn declared(&self, program: &Program) -> Vec<Declared> {
        let mut command = self.installation.command(&self.path(program));
        let output = succeed(command.arg("--list"));
        read_list(&String::from_utf8(output.stdout).expect("text"))
    }

    /// Runs a program; every test must pass. Gives what it printed.
    pub(crate) fn run(&self, program: &Program, command: &mut Command) -> Run {
        let name = program.source();
        let directory = self
            .installation
            .file(&format!("{}-{}", self.link, program.name));
        fs::create_dir_all(&directory).expect("a directory for the program");
        let output = succeed(command.arg(&directory));
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(
            printed.ends_with(" passed, 0 failed\n"),
            "{name}: {printed}"
        );
        let run = Run::read(&printed);
        run.check_answers(&name);
        run
    }
}

fn read_list(printed: &str) -> Vec<Declared> {
    let mut tests: Vec<Declared> = Vec::new();
    for line in printed.lines() {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match words.as_slice() {
            [kind, name, clauses @ ..] if kind == "test" => tests.push(Declared {
                name: name.clone(),
                clauses: clauses.to_vec(),
                ..Declared::default()
            }),
            [kind, _, call, code] if kind == "shows" => {
                let code = code.strip_prefix("VIP_").expect("a VIP_RETURN").to_owned();
                let test = tests.last_mut().expect("a test before");
                test.answers.push((call.clone(), code));
            }
            [kind, _, row, level, side] if kind == "row" => {
                let test = tests.last_mut().expect("a test before");
                test.rows.push((row.clone(), level.clone(), side.clone()));
            }
            _ => panic!("{line:?} is not understood"),
        }
    }
    tests
}

/// What a program printed about its tests.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) ran: BTreeSet<String>,
    /// Tests that want two processes.
    pub(crate) elsewhere: BTreeSet<String>,
    /// Test, call, code.
    answers: BTreeSet<(String, String, String)>,
}

impl Run {
    fn read(printed: &str) -> Self {
        let mut run = Self::default();
        for line in printed.lines() {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["run", test] => drop(run.ran.insert((*test).to_owned())),
                ["elsewhere", test] => drop(run.elsewhere.insert((*test).to_owned())),
                ["answer", test, call, code] => {
                    let words = [test, call, code].map(|word| (*word).to_owned());
                    run.answers.insert(words.into());
                }
                _ => {}
            }
        }
        run
    }

    /// No call may answer what the guide does not list for it, or what is said never to occur.
    fn check_answers(&self, program: &str) {
        use super::exceptions::NEVER;
        for (test, name, code) in &self.answers {
            let code = code.strip_prefix("VIP_").unwrap_or(code);
            let listed = CALLS
                .iter()
                .any(|call| call.name == name && call.codes.contains(&code));
            let never = NEVER.iter().any(|never| never.0 == name && never.1 == code);
            assert!(
                listed && !never,
                "{program}, {test}: {name} answers {code} (listed: {listed}, said never to occur: {never})"
            );
        }
    }
}

/// The words that start the far process of a run on one host.
pub(crate) const FAR_ON_THIS_HOST: &str = "env";

/// A program's command as two processes of one host.
pub(crate) fn two_processes(installation: &Installation, path: &Path) -> Command {
    let mut command = installation.command(path);
    command.env("VIPL_TEST_PEER", FAR_ON_THIS_HOST);
    command
}
