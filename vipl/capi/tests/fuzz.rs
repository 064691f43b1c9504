//! Any call with any argument: nothing crashes, every answer is a return code.

mod common;

use common::Installation;

#[test]
fn any_call_with_any_argument() {
    let installation = Installation::new("fuzz");
    let path = installation.compile_with_harness("fuzz", "c/fuzz.c");
    installation.run_checks(&mut installation.command(&path));
}
