//! The connection options of `viaduct.h`, on VIs over VI/TCP.

mod common;

use common::Installation;

#[test]
fn connection_options_are_set_and_negotiated() {
    let installation = Installation::over_tcp("connection_options");
    let path = installation.compile_with_harness("connection_options", "c/connection_options.c");
    installation.run_checks(&mut installation.command(&path));
}
