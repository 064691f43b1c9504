//! FIP frames: golden frames of a Linux kernel, malformed frames, and comparison with tshark.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/dissector.rs"]
mod dissector;
mod golden;
mod malformed;
mod tshark;

/// Name and bytes of every golden FIP frame.
fn golden_frames() -> Vec<(String, Vec<u8>)> {
    common::golden_frames("fip")
}

fn golden(name: &str) -> Vec<u8> {
    golden_frames()
        .into_iter()
        .find_map(|(found, bytes)| (found == name).then_some(bytes))
        .unwrap_or_else(|| panic!("no golden frame {name}"))
}
