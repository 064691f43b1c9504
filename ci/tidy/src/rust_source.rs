//! Tokens of a Rust file, and its text without comments and literals.
//!
//! Comments are what the tokens leave of a text; doc comments are tokens whose text starts with a slash pair.

use std::cell::OnceCell;

use proc_macro2::{Delimiter, Group, LexError, TokenStream, TokenTree};

/// The tokens of a Rust file.
pub struct RustSource {
    /// All code.
    pub all: Code,
    /// The code without items under `#[cfg(test)]`.
    pub production: Code,
    /// Names of modules declared as `#[cfg(test)] mod name;`.
    pub test_modules: Vec<String>,
    syntax: OnceCell<syn::Result<syn::File>>,
}

/// Code of a file.
#[derive(Debug)]
pub struct Code {
    /// The text with everything else replaced by spaces, byte for byte: comments, and literals except numbers.
    pub text: String,
    /// The tokens, including literals and doc comments.
    pub tokens: TokenStream,
}

impl RustSource {
    /// Reads the tokens of a file.
    ///
    /// # Errors
    /// The text is not a sequence of tokens with balanced brackets.
    pub fn new(text: &str) -> Result<Self, LexError> {
        let tokens: TokenStream = text.parse()?;
        let mut test_modules = Vec::new();
        let production = without_tests(tokens.clone(), &mut test_modules);
        Ok(Self {
            all: Code::new(text, tokens),
            production: Code::new(text, production),
            test_modules,
            syntax: OnceCell::new(),
        })
    }

    /// Returns the syntax tree of the production code, which is parsed once.
    ///
    /// # Errors
    /// It is not valid Rust.
    pub fn syntax(&self) -> Result<&syn::File, &syn::Error> {
        let tokens = || self.production.tokens.clone();
        self.syntax.get_or_init(|| syn::parse2(tokens())).as_ref()
    }
}

impl Code {
    fn new(text: &str, tokens: TokenStream) -> Self {
        let blanked = text.bytes().map(|b| if b == b'\n' { b } else { b' ' });
        let mut code = blanked.collect();
        copy_code(text.as_bytes(), tokens.clone(), &mut code);
        Self {
            text: String::from_utf8(code).expect("only whole tokens are copied"),
            tokens,
        }
    }

    /// Returns the lines of the text with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }
}

/// Returns the number (from 1) of the line with the byte at `offset` of `text`.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// Returns the offsets of `word` as a whole word in `text`.
pub fn word_offsets<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let bytes = text.as_bytes();
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = at.checked_sub(1).map(|i| bytes[i]);
            let after = bytes.get(at + word.len()).copied();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// True if the token is this identifier or keyword.
pub fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == word)
}

/// True if the token is this punctuation character.
pub fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// True if the token is a group in braces.
pub fn is_braced(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

/// Copies the code of `tokens` from `text` to the same offsets of `code`.
fn copy_code(text: &[u8], tokens: TokenStream, code: &mut Vec<u8>) {
    for token in tokens {
        let range = token.span().byte_range();
        let first = &text[range.start..];
        if first.starts_with(b"//") || first.starts_with(b"/*") {
            continue;
        }
        match token {
            TokenTree::Group(group) => {
                code[range.start] = text[range.start];
                code[range.end - 1] = text[range.end - 1];
                copy_code(text, group.stream(), code);
            }
            TokenTree::Literal(_) if !first[0].is_ascii_digit() => {}
            _ => code[range.clone()].copy_from_slice(&text[range]),
        }
    }
}

/// Removes items under `#[cfg(test)]`; adds those that are `mod name;` to `modules`.
fn without_tests(tokens: TokenStream, modules: &mut Vec<String>) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let attributes = tokens[at..]
            .chunks_exact(2)
            .take_while(|a| is_punct(&a[0], '#'));
        let item = at + 2 * attributes.count();
        if tokens[at..item].iter().any(selects_tests) {
            at = item + item_length(&tokens[item..]);
            if let [.., keyword, TokenTree::Ident(name), end] = &tokens[item..at]
                && is_word(keyword, "mod")
                && is_punct(end, ';')
            {
                modules.push(name.to_string());
            }
            continue;
        }
        let mut token = token.clone();
        if let TokenTree::Group(group) = &mut token {
            let span = group.span();
            *group = Group::new(group.delimiter(), without_tests(group.stream(), modules));
            group.set_span(span);
        }
        kept.push(token);
        at += 1;
    }
    kept.into_iter().collect()
}

/// True for `[cfg(...)]` that names `test` outside `not(...)`.
fn selects_tests(attribute: &TokenTree) -> bool {
    fn names_test(condition: TokenStream) -> bool {
        let tokens: Vec<TokenTree> = condition.into_iter().collect();
        (0..tokens.len()).any(|at| match &tokens[at] {
            TokenTree::Group(_) if at > 0 && is_word(&tokens[at - 1], "not") => false,
            TokenTree::Group(group) => names_test(group.stream()),
            token => is_word(token, "test"),
        })
    }
    let TokenTree::Group(attribute) = attribute else {
        return false;
    };
    let mut tokens = attribute.stream().into_iter();
    tokens.next().is_some_and(|name| is_word(&name, "cfg")) && names_test(tokens.collect())
}

/// Returns the number of tokens of the item or statement at the start of `tokens`.
fn item_length(tokens: &[TokenTree]) -> usize {
    let is_semicolon = |token: &TokenTree| is_punct(token, ';');
    let is_end = |token: &TokenTree| is_braced(token) || is_semicolon(token);
    let Some(end) = tokens.iter().position(is_end) else {
        return tokens.len();
    };
    // A `use` group and an initial value are followed by a semicolon.
    let follows = tokens.get(end + 1).is_some_and(is_semicolon);
    end + 1 + usize::from(is_braced(&tokens[end]) && follows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> RustSource {
        RustSource::new(text).expect("the sample has valid tokens")
    }

    fn squeezed(code: &Code) -> String {
        code.text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn code(text: &str) -> String {
        let source = source(text);
        assert_eq!(source.all.text.len(), text.len());
        squeezed(&source.all)
    }

    fn production(text: &str) -> String {
        squeezed(&source(text).production)
    }

    #[test]
    fn comments_are_blanked() {
        assert_eq!(code("a // unsafe\nb"), "a b");
        assert_eq!(code("a /* x /* unsafe */ y */ b / c"), "a b / c");
        assert_eq!(code("//! unsafe\n/// unsafe\nfn f() {}"), "fn f() {}");
        assert_eq!(code("/** unsafe */ fn f() { /*! unsafe */ }"), "fn f() { }");
    }

    #[test]
    fn literals_are_blanked() {
        assert_eq!(code(r#"f("a \" unsafe", b"x", c"y", 7)"#), "f( , , , 7)");
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
    fn test_items_are_removed_from_production_code() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n";
        assert_eq!(production(text), "fn a() {} fn c() {}");
        assert!(source(text).test_modules.is_empty());
        let nested = "impl A { /// Doc.\n #[cfg(test)] fn a() -> B { x } fn b() {} }";
        assert_eq!(production(nested), "impl A { fn b() {} }");
        assert_eq!(production("#[cfg(test)] use a::{b, c}; use d;"), "use d;");
    }

    #[test]
    fn cfg_not_test_is_not_test_code() {
        for text in [
            "#[cfg(not(test))] fn a() {}",
            "#[cfg(not(any(test, miri)))] fn a() {}",
        ] {
            assert_eq!(production(text), text);
        }
        let kit = source("#[cfg(any(test, feature = \"x\"))]\npub mod kit;\n");
        assert_eq!(squeezed(&kit.production), "");
        assert_eq!(kit.test_modules, ["kit"]);
    }

    #[test]
    fn truncated_texts_are_rejected() {
        for text in ["\"", "r#\"", "/*", "b'", "'\\", "#[cfg(test", "fn f() {"] {
            assert!(RustSource::new(text).is_err(), "{text}");
        }
        assert_eq!(production("#[cfg(test)]"), "");
    }
}
