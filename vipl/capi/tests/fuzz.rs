//! Calls with random arguments: no call crashes, and each returns a VIP_RETURN code.

mod common;

use common::Installation;

#[test]
fn calls_with_random_arguments_return() {
    let installation = Installation::new("fuzz");
    let path = installation.compile_with_harness("fuzz", "c/fuzz.c");
    installation.run_checks(&mut installation.command(&path));
}
