//! Fuzzes parsing and emitting of VI/TCP headers, mainly the CE header.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::headers::check(data));
