//! Programs that run with standard input, output or error closed.

mod common;

use common::{Installation, Linkage};

fn no_descriptor_gets_the_number_of_a_standard_stream(installation: &Installation) {
    let sources = ["c/standard_streams.c"];
    let compiler = ["cc", "-std=gnu11"];
    let path = installation.compile("standard_streams", &sources, &compiler, Linkage::Shared);
    installation.run_checks(&mut installation.command(&path));
}

#[test]
fn shared_memory_nic_takes_no_number_of_a_closed_standard_stream() {
    no_descriptor_gets_the_number_of_a_standard_stream(&Installation::new("streams"));
}

#[test]
fn vi_tcp_nic_takes_no_number_of_a_closed_standard_stream() {
    no_descriptor_gets_the_number_of_a_standard_stream(&Installation::over_tcp("streams-tcp"));
}
