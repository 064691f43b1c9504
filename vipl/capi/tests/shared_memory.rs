//! The shared memory allocator of `viaduct.h`.

mod common;

use common::Installation;

fn check(installation: &Installation) {
    let path = installation.compile_with_harness("shared_memory", "c/shared_memory.c");
    installation.run_checks(&mut installation.command(&path));
}

#[test]
fn shared_memory_is_allocated_used_and_freed() {
    check(&Installation::new("shared"));
}

#[test]
fn shared_memory_is_used_over_tcp() {
    check(&Installation::over_tcp("shared-tcp"));
}
