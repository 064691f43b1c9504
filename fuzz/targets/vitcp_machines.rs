//! Fuzzes the connection state machines of VI/TCP: any events, and two peers over a network.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::machines::check(data));
