//! The calls of `viaduct.h` on VIs that speak VI/TCP.

mod common;

use common::Installation;

#[test]
fn what_vis_choose_and_agree_on() {
    let installation = Installation::over_tcp("choices");
    let path = installation.compile_with_harness("choices", "c/choices.c");
    installation.run_checks(&mut installation.command(&path));
}
