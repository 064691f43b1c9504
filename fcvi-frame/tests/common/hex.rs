//! Parser of commented hex files.

/// Parses pairs of hexadecimal digits; `#` begins a comment.
pub(crate) fn from_hex(name: &str, text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split('#').take(1))
        .flat_map(str::split_ascii_whitespace)
        .map(|pair| match (pair.len(), u8::from_str_radix(pair, 16)) {
            (2, Ok(byte)) => byte,
            _ => panic!("{name}.hex: {pair:?} is not a byte"),
        })
        .collect()
}
