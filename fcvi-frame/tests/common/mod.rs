//! Golden frames, one per commented hex file.

use std::fs;
use std::path::Path;

/// Name and bytes of the golden frame in each file of `testdata` or a directory in it, in the order
/// of names.
pub(crate) fn golden_frames(directory: &str) -> Vec<(String, Vec<u8>)> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata"));
    let mut frames: Vec<_> = fs::read_dir(root.join(directory))
        .expect("a directory of golden frames")
        .map(|entry| entry.expect("a golden frame").path())
        .filter(|path| path.is_file())
        .map(|path| {
            let extension = path.extension();
            assert!(
                extension.is_some_and(|extension| extension == "hex"),
                "{path:?}"
            );
            let name = path.file_stem().expect("a file name").to_string_lossy();
            let text = fs::read_to_string(&path).expect("a text file");
            (name.to_string(), from_hex(&name, &text))
        })
        .collect();
    frames.sort();
    assert!(!frames.is_empty(), "no golden frames in {directory:?}");
    frames
}

/// Parses pairs of hexadecimal digits; `#` begins a comment.
fn from_hex(name: &str, text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split('#').take(1))
        .flat_map(str::split_ascii_whitespace)
        .map(|pair| match (pair.len(), u8::from_str_radix(pair, 16)) {
            (2, Ok(byte)) => byte,
            _ => panic!("{name}.hex: {pair:?} is not a byte"),
        })
        .collect()
}
