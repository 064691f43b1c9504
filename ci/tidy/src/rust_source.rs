//! Scanner of Rust files: blanks comments and literals, and finds lines of test code.
//!
//! It is not a parser: it distinguishes code from comments and literals, and finds the ends of items.

/// A scanned Rust file.
#[derive(Debug)]
pub struct RustSource {
    /// The text with comments and the insides of literals replaced by spaces, byte for byte.
    pub code: String,
    /// Names of modules declared as `#[cfg(test)] mod name;`.
    pub test_modules: Vec<String>,
    test_lines: Vec<bool>,
}

impl RustSource {
    /// Scans the text of a file.
    pub fn new(text: &str) -> Self {
        let code = blank_comments_and_literals(text);
        let mut source = Self {
            test_lines: vec![false; code.lines().count()],
            test_modules: Vec::new(),
            code,
        };
        source.find_test_items();
        source
    }

    /// True if the line (from 1) belongs to an item under `#[cfg(test)]`.
    pub fn is_test_line(&self, line: usize) -> bool {
        line.checked_sub(1)
            .and_then(|index| self.test_lines.get(index))
            .is_some_and(|&is_test| is_test)
    }

    /// Returns the code's lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }

    /// Returns the number (from 1) of the line with the byte at `offset`.
    pub fn line_of(&self, offset: usize) -> usize {
        line_of(&self.code, offset)
    }

    fn find_test_items(&mut self) {
        let bytes = self.code.as_bytes();
        let mut items = Vec::new();
        for (start, _) in self.code.match_indices("#[cfg(") {
            let attribute_end = matching(bytes, start + 1);
            if !selects_tests(&self.code[start..attribute_end]) {
                continue;
            }
            let (item_start, item_end) = item(bytes, attribute_end);
            let text = &self.code[item_start..item_end];
            if let Some(name) = out_of_line_module(text) {
                self.test_modules.push(name.to_owned());
            }
            items.push((line_of(&self.code, start), line_of(&self.code, item_end)));
        }
        for (first, last) in items {
            for line in first..=last {
                if let Some(flag) = self.test_lines.get_mut(line - 1) {
                    *flag = true;
                }
            }
        }
    }
}

/// Returns the number (from 1) of the line with the byte at `offset` of `text`.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// True if a byte can be part of an identifier.
pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Returns the offsets of `word` as a whole word in `text`.
pub fn word_offsets<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = at.checked_sub(1).map(|i| bytes[i]);
            let after = bytes.get(at + word.len()).copied();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// Returns the offset after the bracket that matches the one at `open`, or the end of the text.
pub fn matching(code: &[u8], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Returns the offset of the first byte at or after `at` that is not white space.
pub fn skip_space(code: &[u8], at: usize) -> usize {
    code[at..]
        .iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .map_or(code.len(), |skipped| at + skipped)
}

fn selects_tests(attribute: &str) -> bool {
    let squeezed: String = attribute.split_whitespace().collect();
    word_offsets(&squeezed, "test").any(|at| !squeezed[..at].ends_with("not("))
}

/// Returns start and end of the item that follows at `at`, without further attributes.
fn item(code: &[u8], at: usize) -> (usize, usize) {
    let mut start = skip_space(code, at);
    while code[start..].starts_with(b"#[") {
        start = skip_space(code, matching(code, start + 1));
    }
    let mut end = start;
    while end < code.len() {
        match code[end] {
            b'{' => return (start, matching(code, end)),
            b';' => return (start, end + 1),
            b'(' | b'[' => end = matching(code, end),
            _ => end += 1,
        }
    }
    (start, end)
}

/// Returns the name in `mod name;`, with any visibility.
fn out_of_line_module(item: &str) -> Option<&str> {
    let at = word_offsets(item, "mod").next()?;
    let name = item[at + 3..].trim().strip_suffix(';')?.trim_end();
    name.bytes().all(is_word).then_some(name)
}

/// Replaces comments and the insides of literals by spaces; keeps line ends.
fn blank_comments_and_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (end, keeps_text) = token(bytes, at);
        if !keeps_text {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    String::from_utf8(out).expect("only whole tokens are blanked")
}

/// Returns the end of the token at `at`, and true if it is code.
fn token(bytes: &[u8], at: usize) -> (usize, bool) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let end = rest.iter().position(|&byte| byte == b'\n');
        return (end.map_or(bytes.len(), |length| at + length), false);
    }
    if rest.starts_with(b"/*") {
        return (block_comment_end(bytes, at), false);
    }
    if rest[0] == b'"' {
        return (string_end(bytes, at), false);
    }
    if rest[0] == b'\'' {
        return char_end(bytes, at).map_or((at + 1, true), |end| (end, false));
    }
    if !is_word(rest[0]) {
        return (at + 1, true);
    }
    let length = rest.iter().position(|&byte| !is_word(byte));
    let end = length.map_or(bytes.len(), |length| at + length);
    match (&bytes[at..end], bytes.get(end)) {
        (b"r" | b"br" | b"cr", Some(b'"' | b'#')) => {
            raw_string_end(bytes, end).map_or((end, true), |end| (end, false))
        }
        (b"b" | b"c", Some(b'"')) => (string_end(bytes, end), false),
        (b"b", Some(b'\'')) => char_end(bytes, end).map_or((end, true), |end| (end, false)),
        _ => (end, true),
    }
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the end of a raw string; `None` for a raw identifier.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at..].iter().position(|&byte| byte != b'#')?;
    if bytes[at + hashes] != b'"' {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = at + hashes + 1;
    let length = bytes[body..]
        .windows(close.len())
        .position(|window| window == close);
    Some(length.map_or(bytes.len(), |length| body + length + close.len()))
}

/// Returns the end of a character literal; `None` if the quote starts a lifetime or a label.
fn char_end(bytes: &[u8], quote: usize) -> Option<usize> {
    let first = *bytes.get(quote + 1)?;
    if first == b'\\' {
        let after_escaped = quote + 3;
        let rest = bytes.get(after_escaped..)?;
        let length = rest.iter().position(|&byte| byte == b'\'')?;
        return Some(after_escaped + length + 1);
    }
    // One character, of up to four bytes, and the closing quote.
    let character_bytes = match first {
        0..=0x7f => 1,
        0x80..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xff => 4,
    };
    let close = quote + 1 + character_bytes;
    (bytes.get(close) == Some(&b'\'')).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        let source = RustSource::new(text);
        assert_eq!(source.code.len(), text.len());
        source.code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_blanked() {
        assert_eq!(code("a // unsafe\nb"), "a b");
        assert_eq!(code("a /* x /* unsafe */ y */ b"), "a b");
        assert_eq!(code("//! unsafe\n/// unsafe\nfn f() {}"), "fn f() {}");
    }

    #[test]
    fn literals_are_blanked() {
        assert_eq!(code(r#"f("a \" unsafe", b"x", c"y")"#), "f( , , )");
        assert_eq!(code("f(r#\"a \" unsafe\"#, br\"\\\") g"), "f( , ) g");
        assert_eq!(code(r"x('\'', '{', b'}', 'é', '\u{7d}')"), "x( , , , , )");
    }

    #[test]
    fn lifetimes_and_raw_identifiers_are_kept() {
        assert_eq!(code("fn f<'a>(x: &'a str) {}"), "fn f<'a>(x: &'a str) {}");
        assert_eq!(
            code("let r#type = r; 'l: loop {}"),
            "let r#type = r; 'l: loop {}"
        );
    }

    #[test]
    fn test_lines_are_found() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n";
        let source = RustSource::new(text);
        let test: Vec<usize> = (1..=7).filter(|&l| source.is_test_line(l)).collect();
        assert_eq!(test, [2, 3, 4, 5, 6]);
        assert!(source.test_modules.is_empty());
    }

    #[test]
    fn cfg_not_test_is_not_test_code() {
        let source = RustSource::new("#[cfg(not(test))]\nfn a() {}\n");
        assert!(!source.is_test_line(2));
        let source = RustSource::new("#[cfg(any(test, feature = \"x\"))]\npub mod kit;\n");
        assert!(source.is_test_line(2));
        assert_eq!(source.test_modules, ["kit"]);
    }

    #[test]
    fn truncated_texts_are_accepted() {
        for text in [
            "\"",
            "'",
            "r#\"",
            "/*",
            "b'",
            "'\\",
            "#[cfg(test)]",
            "#[cfg(test",
            "fn f() {",
        ] {
            RustSource::new(text);
        }
    }
}
