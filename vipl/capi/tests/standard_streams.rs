//! Programs with closed standard input, output or error: no file descriptor of the library gets one of their numbers.

mod common;

use common::{Installation, Linkage};

fn check_closed_standard_streams(installation: &Installation) {
    let sources = ["c/standard_streams.c"];
    let compiler = ["cc", "-std=gnu11"];
    let path = installation.compile("standard_streams", &sources, &compiler, Linkage::Shared);
    installation.run_checks(&mut installation.command(&path));
}

#[test]
fn shared_memory_nic_does_not_reuse_closed_standard_streams() {
    check_closed_standard_streams(&Installation::new("streams"));
}

#[test]
fn vi_tcp_nic_does_not_reuse_closed_standard_streams() {
    check_closed_standard_streams(&Installation::over_tcp("streams-tcp"));
}
