//! The shared memory allocator of `viaduct.h`.

mod common;

use common::Installation;

#[test]
fn shared_memory_is_allocated_and_freed() {
    let installation = Installation::new("shared");
    let path = installation.compile_with_harness("shared_memory", "c/shared_memory.c");
    installation.run_checks(&mut installation.command(&path));
}
