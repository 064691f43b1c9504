//! Parses string values of a configuration: worldwide names and N_Port_ID ranges.

use fcvi_frame::fc::NPortId;

/// Parses a worldwide name: eight bytes in hexadecimal, with or without colons.
pub(super) fn name(key: &str, text: &str) -> Result<u64, String> {
    let digits: String = text.chars().filter(|c| *c != ':').collect();
    let name = Some(digits.as_str())
        .filter(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .filter(|name| *name != 0);
    name.ok_or_else(|| {
        format!("{key} = {text:?}: must be eight bytes in hexadecimal, \"20:00:52:54:00:00:00:01\"")
    })
}

/// Maximum number of N_Port_IDs of one range.
const MAX_IDS: u32 = 256;

/// Parses a range of N_Port_IDs; returns the first and the last one.
pub(super) fn range(text: &str) -> Result<(u32, u32), String> {
    let invalid =
        || format!("n_port_ids = {text:?}: must be \"00.01.01\" or a range \"00.01.01-00.01.08\"");
    let id = |text: &str| {
        text.trim()
            .parse::<NPortId>()
            .ok()
            .map(NPortId::get)
            .filter(|id| *id != 0 && *id < 0x00FF_FFF0)
    };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (id(first), id(last)),
        None => (id(text), id(text)),
    };
    let (first, last) = (first.ok_or_else(invalid)?, last.ok_or_else(invalid)?);
    if last < first || last - first >= MAX_IDS {
        return Err(format!(
            "n_port_ids = {text:?}: must be a range of 1 to {MAX_IDS} IDs in ascending order"
        ));
    }
    Ok((first, last))
}

/// Parses a range of N_Port_IDs; returns all of them.
pub(super) fn ids(text: &str) -> Result<Vec<NPortId>, String> {
    let (first, last) = range(text)?;
    Ok((first..=last).filter_map(NPortId::new).collect())
}
