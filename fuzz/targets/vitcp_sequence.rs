//! Fuzzes message numbers and descriptor flow control of VI/TCP.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::sequence::check(data));
