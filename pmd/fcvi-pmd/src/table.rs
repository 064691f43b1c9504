//! Text tables with aligned columns.

/// The alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Its title.
    pub(crate) title: &'static str,
    /// The alignment of its cells.
    pub(crate) alignment: Alignment,
    /// Maximum width in characters; longer cells are truncated.
    pub(crate) width: usize,
}

/// A column of words.
pub(crate) const fn words(title: &'static str, width: usize) -> Column {
    let alignment = Alignment::Left;
    Column {
        title,
        alignment,
        width,
    }
}

/// A column of numbers.
pub(crate) const fn numbers(title: &'static str, width: usize) -> Column {
    let alignment = Alignment::Right;
    Column {
        title,
        alignment,
        width,
    }
}

/// Formats a table, the titles first; columns are as wide as their widest cell.
pub(crate) fn lines<const N: usize>(columns: &[Column; N], rows: &[[String; N]]) -> Vec<String> {
    let titles = columns.each_ref().map(|column| column.title.to_owned());
    let cut: Vec<[String; N]> = core::iter::once(&titles)
        .chain(rows)
        .map(|row| core::array::from_fn(|at| fit(&row[at], columns[at].width)))
        .collect();
    let widths: [usize; N] = core::array::from_fn(|at| {
        cut.iter()
            .map(|row| row[at].chars().count())
            .max()
            .unwrap_or(0)
    });
    let line = |row: &[String; N]| {
        let cells: [String; N] = core::array::from_fn(|at| match columns[at].alignment {
            Alignment::Left => format!("{:<width$}", row[at], width = widths[at]),
            Alignment::Right => format!("{:>width$}", row[at], width = widths[at]),
        });
        cells.join(" ").trim_end().to_owned()
    };
    cut.iter().map(line).collect()
}

/// Replaces control characters and truncates a cell to the width of its column.
fn fit(text: &str, width: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let mut short: String = clean.chars().take(width.saturating_sub(1)).collect();
    short.push('~');
    short
}

/// Formats a count in at most six characters: `12345`, `123.5k`, `1.2G`.
pub(crate) fn short(count: u64) -> String {
    scaled(count as f64)
}

/// Formats a rate in at most six characters.
pub(crate) fn scaled(value: f64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if value < 99_999.5 {
        return format!("{value:.0}");
    }
    let mut value = value;
    let mut unit = "";
    for next in UNITS {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_aligned_truncated_and_free_of_control_characters() {
        let columns = [words("NAME", 6), numbers("COUNT", 8)];
        let rows = [
            ["a".to_owned(), "7".to_owned()],
            ["much too long".to_owned(), "12".to_owned()],
            ["\u{1b}[31m".to_owned(), "123456789".to_owned()],
        ];
        let expected = [
            "NAME      COUNT",
            "a             7",
            "much ~       12",
            "?[31m  1234567~",
        ];
        assert_eq!(lines(&columns, &rows), expected);
    }

    #[test]
    fn short_formats_counts_in_six_characters() {
        for (count, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100.0k"),
            (999_940, "999.9k"),
            (999_960, "1.0M"),
            (1_234_567_890, "1.2G"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(short(count), text);
            assert!(short(count).len() <= 6);
        }
    }
}
