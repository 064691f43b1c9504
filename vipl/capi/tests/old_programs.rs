//! Programs in the style of VIPL programs around 2000, built like by their makefiles, in each language, with an
//! installed library and with the build directory.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Installation, Running, succeed, tests_directory};

/// The rules of docs/spec/vipl-rules.md.
const RULES: std::ops::RangeInclusive<u32> = 1..=20;

/// Builds a program with `CC SOURCES -o PROGRAM $(pkg-config --cflags --libs vipl)` and no other flags of this
/// library.
fn build(installation: &Installation, compiler: &str, name: &str, sources: &[&str]) -> PathBuf {
    let program = installation.file(name);
    let script = format!(
        "{compiler} -Wall -Wextra -pedantic -Werror -O1 -g -pthread {} -o {} \
         $(pkg-config --cflags --libs vipl) -Wl,-rpath,$(pkg-config --variable=libdir vipl)",
        sources.join(" "),
        program.display(),
    );
    succeed(
        Command::new("sh")
            .args(["-e", "-c", &script])
            .current_dir(tests_directory().join("old_programs"))
            .env(
                "PKG_CONFIG_PATH",
                installation.prefix().join("lib/pkgconfig"),
            ),
    );
    program
}

/// Runs the test program of each rule, compiled as this language.
fn check_all_rules(installation: &Installation, compiler: &str) {
    let sources = [
        "rules.c",
        "rules_one_process.c",
        "rules_two_processes.c",
        "common.c",
    ];
    let program = build(installation, compiler, "rules", &sources);
    for rule in RULES {
        let mut command = installation.command(&program);
        let output = command
            .arg(rule.to_string())
            .output()
            .expect("the program starts");
        assert_eq!(
            output.status.code(),
            Some(0),
            "{compiler}: rule {rule}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn rules_in_c89_with_build_directory() {
    check_all_rules(&Installation::linked("rules-c89"), "cc -std=c89");
}

#[test]
fn rules_in_c11_with_installation() {
    check_all_rules(&Installation::new("rules-c11"), "cc -std=c11");
}

#[test]
fn rules_in_cxx_with_installation() {
    let compiler = "c++ -x c++ -std=c++98";
    check_all_rules(&Installation::new("rules-cxx"), compiler);
}

#[test]
fn rules_in_c89_over_tcp() {
    check_all_rules(&Installation::over_tcp("rules-tcp"), "cc -std=c89");
}

/// Runs several processes, each with a VI to each other one.
fn run_full_mesh(installation: &Installation) {
    const RANKS: usize = 4;
    let program = build(installation, "cc -std=c89", "mesh", &["mesh.c", "common.c"]);
    let mut running: Vec<Running> = (0..RANKS)
        .map(|rank| {
            let mut command = installation.command(&program);
            command.arg(rank.to_string()).args(["localhost"; RANKS + 1]);
            Running::start(&mut command)
        })
        .collect();
    for process in &mut running {
        process.await_line("messages with each of 3 peers");
    }
    for process in running {
        process.succeed();
    }
}

#[test]
fn full_mesh_of_processes() {
    run_full_mesh(&Installation::new("mesh"));
}

#[test]
fn full_mesh_of_processes_over_tcp() {
    run_full_mesh(&Installation::over_tcp("mesh-tcp"));
}
