//! Segments out of a stream of bytes, however it is cut.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::stream::check(data));
