//! FIP frames: golden frames of a Linux kernel, malformed frames, and comparison with tshark.

#[path = "../common/dissector.rs"]
mod dissector;
mod golden;
#[path = "../common/hex.rs"]
mod hex;
mod malformed;
mod tshark;

macro_rules! golden {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../testdata/fip/", $name, ".hex")))),*]
    };
}

/// Name and text of every file in `testdata/fip`.
const FILES: &[(&str, &str)] = golden![
    "linux_beacon",
    "linux_claim_notification",
    "linux_claim_response",
    "linux_flogi",
    "linux_flogi_acc",
    "linux_probe_request",
];

/// Name and bytes of every golden frame.
fn golden_frames() -> Vec<(&'static str, Vec<u8>)> {
    FILES
        .iter()
        .map(|(name, text)| (*name, hex::from_hex(name, text)))
        .collect()
}

fn golden(name: &str) -> Vec<u8> {
    golden_frames()
        .into_iter()
        .find_map(|(found, bytes)| (found == name).then_some(bytes))
        .unwrap_or_else(|| panic!("no golden frame {name}"))
}
