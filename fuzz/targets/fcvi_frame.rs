//! Fuzzes frames of FC-VI and FIP, and their payloads.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::frame::check(data));
