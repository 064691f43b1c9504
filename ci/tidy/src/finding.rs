//! Findings of rules.

use std::fmt;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule's name, as used in exceptions.
    pub rule: &'static str,
    /// The file, relative to the root of the tree.
    pub path: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// The violation.
    pub message: String,
    /// How to fix it.
    pub advice: &'static str,
    /// A note is printed and does not fail the test.
    pub is_note: bool,
}

impl Finding {
    /// Creates a finding that fails the test.
    pub fn new(
        rule: &'static str,
        path: &str,
        line: usize,
        message: String,
        advice: &'static str,
    ) -> Self {
        Self {
            rule,
            path: path.to_owned(),
            line,
            message,
            advice,
            is_note: false,
        }
    }

    /// Converts it into a note.
    pub fn into_note(self) -> Self {
        Self {
            is_note: true,
            ..self
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_note {
            f.write_str("note: ")?;
        }
        f.write_str(&self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": [{}] {}; {}", self.rule, self.message, self.advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_displayed_with_file_line_rule_and_advice() {
        let finding = Finding::new("words", "a/b.rs", 7, "bad word".into(), "remove it");
        assert_eq!(finding.to_string(), "a/b.rs:7: [words] bad word; remove it");
        let whole = Finding {
            line: 0,
            ..finding.into_note()
        };
        assert_eq!(
            whole.to_string(),
            "note: a/b.rs: [words] bad word; remove it"
        );
    }
}
