//! Resource limits and refused system calls of programs that are attached to a datapath process.

use std::path::PathBuf;

use e2e::datapath::{DatapathProcess, here};
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{program, succeed};
use e2e::scratch::Scratch;

/// A process, and the program that makes every call.
struct Scene {
    process: DatapathProcess,
    calls: PathBuf,
    _installation: Installation,
    _files: Scratch,
    _segment: Scratch,
}

impl Scene {
    fn new(name: &str) -> Self {
        let installation = Installation::new();
        let (files, segment) = (Scratch::new(name), Scratch::in_memory(name));
        let nic = NicText::shm(segment.path());
        Self {
            process: DatapathProcess::start(&files, "idle = \"hybrid\"", &nic, here),
            calls: installation.test_program("vipl/capi/tests/c", "limits"),
            _installation: installation,
            _files: files,
            _segment: segment,
        }
    }

    /// Makes every call under a limit of the program's, in steps; gives what it says.
    fn make_calls(&self, limit: &str) -> String {
        let mut calls = program(&self.calls);
        calls.env("VIADUCT_CONFIG", self.process.config());
        let output = succeed(calls.arg(limit));
        String::from_utf8(output.stdout).expect("text")
    }

    /// How many calls are refused that are made without a limit of the program's.
    fn refused(&self) -> usize {
        let said = self.make_calls("none");
        let number = said
            .split(' ')
            .nth(1)
            .and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{said}"))
    }

    fn end(self) {
        let ended = self.process.stop();
        assert!(ended.status.success(), "{}", ended.text);
    }
}

#[test]
fn attached_programs_survive_each_limit_and_each_refused_system_call() {
    let scene = Scene::new("attached");
    for limit in ["AS", "FSIZE", "NOFILE", "max_map_count", "EPERM", "ENOSYS"] {
        println!("\nnote: attached: {}", scene.make_calls(limit).trim_end());
    }
    assert_eq!(scene.refused(), 0, "the process serves the next program");
    scene.end();
}
