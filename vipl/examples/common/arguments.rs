//! Command line arguments.

/// Returns the arguments after the program's name.
///
/// # Errors
/// If one is not UTF-8, for which `std::env::args` panics.
pub(crate) fn arguments() -> Result<impl Iterator<Item = String>, String> {
    let arguments = std::env::args_os().skip(1).map(|argument| {
        argument
            .into_string()
            .map_err(|argument| format!("{} is not UTF-8", argument.display()))
    });
    Ok(arguments.collect::<Result<Vec<_>, _>>()?.into_iter())
}
