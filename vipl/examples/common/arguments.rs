//! The command line.

/// The words behind the program's name.
///
/// # Errors
/// One is not UTF-8, on which `std::env::args` panics.
pub(crate) fn arguments() -> Result<impl Iterator<Item = String>, String> {
    let words = std::env::args_os().skip(1).map(|word| {
        word.into_string()
            .map_err(|word| format!("{} is not UTF-8 text", word.display()))
    });
    Ok(words.collect::<Result<Vec<_>, _>>()?.into_iter())
}
