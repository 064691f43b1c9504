//! Frames of FC-VI and FIP, and what is inside.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::frame::check(data));
