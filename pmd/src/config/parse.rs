//! Values of a configuration that are more than TOML says.

use fcvi_frame::fc::NPortId;

use super::{ConfigError, error};

/// A worldwide name: eight bytes in hexadecimal, with or without colons.
pub(super) fn name(key: &str, text: &str) -> Result<u64, ConfigError> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    let name = Some(digits.as_str())
        .filter(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .filter(|name| *name != 0);
    name.ok_or_else(|| {
        error(format!(
            "{key} = {text:?}: must be eight bytes in hexadecimal, \"20:00:52:54:00:00:00:01\""
        ))
    })
}

/// Ports of one host, at most.
const MAX_IDS: u32 = 256;

pub(super) fn ids(text: &str) -> Result<Vec<NPortId>, ConfigError> {
    let bad = || {
        error(format!(
            "n_port_ids = {text:?}: must be \"00.01.01\" or a range \"00.01.01-00.01.08\""
        ))
    };
    let id = |text: &str| {
        text.trim()
            .parse::<NPortId>()
            .ok()
            .filter(|id| id.get() != 0 && id.get() < 0x00FF_FFF0)
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (id(first), id(last)),
        None => (id(text), id(text)),
    };
    let (first, last) = (first.ok_or_else(bad)?.get(), last.ok_or_else(bad)?.get());
    if last < first || last - first >= MAX_IDS {
        return Err(error(format!(
            "n_port_ids = {text:?}: 1 to {MAX_IDS} of them, in rising order"
        )));
    }
    Ok((first..=last).filter_map(NPortId::new).collect())
}
