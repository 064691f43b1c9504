//! Handlers that do not return, a main thread that exits, and cancelled threads.

mod common;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use common::{Installation, Linkage, Running, succeed};

const C: &[&str] = &["cc", "-std=gnu11"];
const CPLUSPLUS: &[&str] = &["c++", "-x", "c++", "-std=gnu++17"];
/// Timeout of the exit of a thread or a process, for loaded machines.
const TIMEOUT: Duration = Duration::from_secs(60);

fn compile(installation: &Installation, compiler: &[&str]) -> PathBuf {
    let sources = ["c/thread_exits.c"];
    installation.compile("thread_exits", &sources, compiler, Linkage::Shared)
}

/// Checks that a handler that does not return aborts the process with an error that names the call.
fn check_handler_exit_aborts(name: &str, compiler: &[&str]) {
    let installation = Installation::new(name);
    let program = compile(&installation, compiler);
    for call in ["VipErrorCallback", "VipSendNotify", "VipCQNotify"] {
        let output = installation.command(&program).arg(call).output();
        let output = output.expect("the program runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        let expected = format!(
            "vipl: error: {call}: the handler exited by an exception or by pthread_exit; \
             a handler must return\n"
        );
        assert!(printed.ends_with(&expected), "{call}: {printed}");
        // timeout(1) reports the signal like a shell.
        let is_aborted = |status: ExitStatus| {
            status.signal() == Some(libc::SIGABRT) || status.code() == Some(128 + libc::SIGABRT)
        };
        assert!(is_aborted(output.status), "{call}: {}", output.status);
    }
}

#[test]
fn handler_exit_by_pthread_exit_aborts_and_names_the_call() {
    check_handler_exit_aborts("thread-exits-c", C);
}

#[test]
fn handler_exit_by_exception_aborts_and_names_the_call() {
    check_handler_exit_aborts("thread-exits-cpp", CPLUSPLUS);
}

fn check_waiting_call_delays_cancellation(installation: &Installation) {
    let program = compile(installation, C);
    let output = succeed(installation.command(&program).arg("cancel"));
    assert_eq!(output.stdout, b"cancelled after the calls\n");
}

#[test]
fn waiting_call_over_shared_memory_delays_thread_cancellation() {
    check_waiting_call_delays_cancellation(&Installation::new("cancel"));
}

#[test]
fn waiting_call_over_vi_tcp_delays_thread_cancellation() {
    check_waiting_call_delays_cancellation(&Installation::over_tcp("cancel-tcp"));
}

/// Polls until a value is available; panics with `message` on timeout.
fn poll_until<T>(message: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(start.elapsed() < TIMEOUT, "{message}");
        thread::yield_now();
    }
}

#[test]
fn process_without_main_thread_is_terminated_by_sigterm() {
    let installation = Installation::new("main-thread");
    let program = compile(&installation, C);
    // Without timeout(1).
    let limited = installation.command(&program);
    let variables = limited
        .get_envs()
        .filter_map(|(key, value)| Some((key, value?)));
    let mut running = Running::start(Command::new(&program).envs(variables));
    let status = format!("/proc/{}/status", running.id());
    poll_until("the main thread does not exit", || {
        let status = fs::read_to_string(&status).expect("the status of the process");
        status.contains("State:\tZ").then_some(())
    });
    assert!(running.exit_status().is_none(), "other threads run");
    succeed(Command::new("kill").arg(running.id().to_string()));
    let status = poll_until("the process does not exit", || running.exit_status());
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
}
