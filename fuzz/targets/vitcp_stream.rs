//! Fuzzes the decoder of VI/TCP segments from a byte stream, split in any way.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::stream::check(data));
