//! Runs tshark to dissect frames into fields.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// Writes a classic pcap file: a header of 24 bytes, and 16 bytes before each frame.
pub(crate) fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    const MAGIC: u32 = 0xA1B2_C3D4;
    const LINKTYPE_ETHERNET: u32 = 1;
    let mut file = Vec::new();
    let words = |file: &mut Vec<u8>, words: &[u32]| {
        file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    };
    let version = 2 | (4 << 16);
    words(
        &mut file,
        &[MAGIC, version, 0, 0, 65_535, LINKTYPE_ETHERNET],
    );
    for (number, frame) in frames.iter().enumerate() {
        let length = frame.len() as u32;
        words(&mut file, &[number as u32, 0, length, length]);
        file.extend_from_slice(frame);
    }
    std::fs::write(path, file).expect("a capture file can be written");
}

/// Runs tshark; returns one line per frame, with the fields separated by tabs.
pub(crate) fn tshark_fields(path: &Path, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args([
        "-n",
        "-o",
        "fc.reassemble:FALSE",
        "-T",
        "fields",
        "-E",
        "occurrence=f",
        "-r",
    ]);
    command.arg(path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("tshark is not installed: apt-get install tshark")
        }
        Err(error) => panic!("running tshark failed: {error}"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed: {errors}");
    let lines = String::from_utf8(output.stdout).expect("tshark writes text");
    lines.lines().map(str::to_string).collect()
}
