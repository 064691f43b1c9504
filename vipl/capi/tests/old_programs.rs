//! Programs as they were written for VIPL around 2000, built as their makefiles did it, in each language, from
//! an installed library and from the built tree.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{Installation, Running, succeed, tests_directory};

/// The rules of docs/spec/vipl-rules.md.
const RULES: std::ops::RangeInclusive<u32> = 1..=20;

/// `CC SOURCES -o PROGRAM $(pkg-config --cflags --libs vipl)`, and nothing else that is of this library.
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

/// Every rule, by a program in this language.
fn keeps_all_rules(installation: &Installation, compiler: &str) {
    let sources = ["rules.c", "rules_one.c", "rules_two.c", "old.c"];
    let program = build(installation, compiler, "rules", &sources);
    for rule in RULES {
        let mut command = installation.command(&program);
        let output = command.arg(rule.to_string()).output().expect("it runs");
        assert_eq!(
            output.status.code(),
            Some(0),
            "{compiler}: rule {rule}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn rules_in_c89_from_the_built_tree() {
    keeps_all_rules(&Installation::linked("rules-c89"), "cc -std=c89");
}

#[test]
fn rules_in_c11_from_an_installation() {
    keeps_all_rules(&Installation::new("rules-c11"), "cc -std=c11");
}

#[test]
fn rules_in_cxx_from_an_installation() {
    let compiler = "c++ -x c++ -std=c++98";
    keeps_all_rules(&Installation::new("rules-cxx"), compiler);
}

#[test]
fn rules_in_c89_over_tcp() {
    keeps_all_rules(&Installation::over_tcp("rules-tcp"), "cc -std=c89");
}

/// Each of several processes has a VI to every other.
fn full_mesh_of_processes(installation: &Installation) {
    const RANKS: usize = 4;
    let program = build(installation, "cc -std=c89", "mesh", &["mesh.c", "old.c"]);
    let mut running: Vec<Running> = (0..RANKS)
        .map(|rank| {
            let mut command = installation.command(&program);
            command.arg(rank.to_string()).args(["localhost"; RANKS + 1]);
            Running::start(&mut command)
        })
        .collect();
    for one in &mut running {
        one.await_line("messages with each of 3 peers");
    }
    for one in running {
        one.succeed();
    }
}

#[test]
fn a_full_mesh_of_processes() {
    full_mesh_of_processes(&Installation::new("mesh"));
}

#[test]
fn a_full_mesh_of_processes_over_tcp() {
    full_mesh_of_processes(&Installation::over_tcp("mesh-tcp"));
}
