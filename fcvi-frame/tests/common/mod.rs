//! The golden frames, one per commented hex file.

macro_rules! golden {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../testdata/", $name, ".hex")))),*]
    };
}

/// Name and text of every file in `testdata`.
const FILES: &[(&str, &str)] = golden![
    "crc_vector",
    "fcvi_connect_resp1",
    "fcvi_connect_resp2",
    "fcvi_connect_resp3",
    "fcvi_connect_rqst",
    "fcvi_disconnect_resp",
    "fcvi_disconnect_rqst",
    "fcvi_read_resp",
    "fcvi_read_rqst",
    "fcvi_send_resp",
    "fcvi_send_resp_gaps",
    "fcvi_send_rqst",
    "fcvi_send_rqst_further",
    "fcvi_write_resp",
    "fcvi_write_rqst",
    "linux_adisc",
    "linux_adisc_acc",
    "linux_fcp_data_first",
    "linux_fcp_data_last",
];

/// Name and bytes of every golden frame.
pub(crate) fn golden_frames() -> Vec<(&'static str, Vec<u8>)> {
    FILES
        .iter()
        .map(|(name, text)| (*name, from_hex(name, text)))
        .collect()
}

/// Pairs of digits; `#` begins a comment.
fn from_hex(name: &str, text: &str) -> Vec<u8> {
    text.lines()
        .flat_map(|line| line.split('#').take(1))
        .flat_map(str::split_ascii_whitespace)
        .map(|pair| match (pair.len(), u8::from_str_radix(pair, 16)) {
            (2, Ok(byte)) => byte,
            _ => panic!("{name}.hex: {pair:?} is not a byte"),
        })
        .collect()
}
