//! The calls of `viaduct.h`.

mod common;

use common::Installation;

#[test]
fn memory_that_can_be_shared() {
    let installation = Installation::new("shared");
    let path = installation.compile_with_harness("shared", "c/shared.c");
    installation.run_checks(&mut installation.command(&path));
}
