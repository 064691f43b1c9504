//! The headers of VI/TCP, above all the CE header, read and written.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::headers::check(data));
