//! Golden frames, one per commented hex file.

mod hex;

use hex::from_hex;

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
    "linux_plogi",
    "linux_plogi_acc",
    "linux_prli",
    "linux_prli_acc",
    "linux_rtv",
    "linux_rtv_acc",
];

/// Name and bytes of every golden frame.
pub(crate) fn golden_frames() -> Vec<(&'static str, Vec<u8>)> {
    FILES
        .iter()
        .map(|(name, text)| (*name, from_hex(name, text)))
        .collect()
}
