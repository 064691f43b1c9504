//! Handlers that do not return, a main thread that ends, and threads that are cancelled.

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
/// How long the kernel and a loaded machine may take to end a thread or a process.
const LIMIT: Duration = Duration::from_secs(60);

fn compile(installation: &Installation, compiler: &[&str]) -> PathBuf {
    let sources = ["c/leaving.c"];
    installation.compile("leaving", &sources, compiler, Linkage::Shared)
}

/// Every handler that is left so ends the process by SIGABRT, and says which it was.
fn a_handler_that_is_left_ends_the_process_and_is_named(name: &str, compiler: &[&str]) {
    let installation = Installation::new(name);
    let program = compile(&installation, compiler);
    for call in ["VipErrorCallback", "VipSendNotify", "VipCQNotify"] {
        let output = installation.command(&program).arg(call).output();
        let output = output.expect("the program runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        let expected = format!(
            "vipl: error: a handler given to {call} was left by an exception or by pthread_exit; \
             a handler must return\n"
        );
        assert!(printed.ends_with(&expected), "{call}: {printed}");
        // timeout(1), which runs the program, ends as a shell does.
        let is_aborted = |status: ExitStatus| {
            status.signal() == Some(libc::SIGABRT) || status.code() == Some(128 + libc::SIGABRT)
        };
        assert!(is_aborted(output.status), "{call}: {}", output.status);
    }
}

#[test]
fn handler_left_by_pthread_exit_ends_the_process_and_is_named() {
    a_handler_that_is_left_ends_the_process_and_is_named("leaving-c", C);
}

#[test]
fn handler_left_by_an_exception_ends_the_process_and_is_named() {
    a_handler_that_is_left_ends_the_process_and_is_named("leaving-cpp", CPLUSPLUS);
}

fn a_waiting_call_returns_before_its_thread_is_cancelled(installation: &Installation) {
    let program = compile(installation, C);
    let output = succeed(installation.command(&program).arg("cancel"));
    assert_eq!(output.stdout, b"cancelled after the calls\n");
}

#[test]
fn waiting_call_on_shared_memory_returns_before_its_thread_is_cancelled() {
    a_waiting_call_returns_before_its_thread_is_cancelled(&Installation::new("cancel"));
}

#[test]
fn waiting_call_over_vi_tcp_returns_before_its_thread_is_cancelled() {
    a_waiting_call_returns_before_its_thread_is_cancelled(&Installation::over_tcp("cancel-tcp"));
}

/// Looks again and again until there is something.
fn await_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

#[test]
fn program_whose_main_thread_has_ended_ends_by_sigterm() {
    let installation = Installation::new("main-thread");
    let program = compile(&installation, C);
    // Without timeout(1) around it.
    let limited = installation.command(&program);
    let variables = limited
        .get_envs()
        .filter_map(|(key, value)| Some((key, value?)));
    let mut running = Running::start(Command::new(&program).envs(variables));
    let status = format!("/proc/{}/status", running.id());
    await_some("the main thread does not end", || {
        let status = fs::read_to_string(&status).expect("a process that was not waited for");
        status.contains("State:\tZ").then_some(())
    });
    assert!(running.ended().is_none(), "other threads run");
    succeed(Command::new("kill").arg(running.id().to_string()));
    let status = await_some("it does not end", || running.ended());
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
}
