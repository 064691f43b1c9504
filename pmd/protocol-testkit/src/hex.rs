//! Frames in hexadecimal, as in the files of `testdata`.

/// Parses pairs of hexadecimal digits; `#` begins a comment.
///
/// # Panics
/// If a pair is not a byte.
pub fn parse(text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split('#').take(1))
        .flat_map(str::split_ascii_whitespace)
        .map(|pair| u8::from_str_radix(pair, 16).expect("a byte"))
        .collect()
}
