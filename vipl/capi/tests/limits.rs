//! Resource limits of the process, each lowered in steps for every call; and system calls, each of which fails.

mod common;

use std::env;
use std::fs;

use common::{Installation, Linkage, succeed};

/// Runs the program for one limit; it forks a process for each step.
fn every_step_of_a_limit_is_survived(name: &str, installation: &Installation) {
    let compiler = ["cc", "-std=gnu11"];
    let program = installation.compile("limits", &["c/limits.c"], &compiler, Linkage::Shared);
    // In a directory that other users can read.
    let config = env::temp_dir().join(format!("viaduct-limits-{name}-{}", std::process::id()));
    fs::copy(installation.file("viaduct.toml"), &config).expect("a copy of the configuration");
    let mut command = installation.command(&program);
    let output = succeed(command.env("VIADUCT_CONFIG", &config).arg(name));
    println!("{}", String::from_utf8_lossy(&output.stdout));
    fs::remove_file(config).expect("the copied configuration");
}

fn on_both_transports(name: &str) {
    let shared_memory = Installation::new(&format!("limit-{name}"));
    every_step_of_a_limit_is_survived(name, &shared_memory);
    let vi_tcp = Installation::over_tcp(&format!("limit-tcp-{name}"));
    every_step_of_a_limit_is_survived(name, &vi_tcp);
}

#[test]
fn address_space_lowered_in_steps_is_survived() {
    on_both_transports("AS");
}

#[test]
fn file_size_lowered_in_steps_is_survived() {
    on_both_transports("FSIZE");
}

#[test]
fn descriptors_lowered_in_steps_are_survived() {
    on_both_transports("NOFILE");
}

#[test]
fn processes_lowered_in_steps_are_survived() {
    on_both_transports("NPROC");
}

#[test]
fn mappings_lowered_in_steps_are_survived() {
    on_both_transports("max_map_count");
}

#[test]
fn locked_memory_lowered_in_steps_is_survived() {
    let keys = "lock_memory = \"required\"";
    let installation = Installation::with_keys("limit-MEMLOCK", keys);
    every_step_of_a_limit_is_survived("MEMLOCK", &installation);
}

// Over the transport that makes more system calls; the other error is tested over both.
#[test]
fn system_calls_failing_one_by_one_with_eperm_are_survived() {
    every_step_of_a_limit_is_survived("EPERM", &Installation::over_tcp("limit-tcp-EPERM"));
}

#[test]
fn system_calls_failing_one_by_one_with_enosys_are_survived() {
    on_both_transports("ENOSYS");
}
