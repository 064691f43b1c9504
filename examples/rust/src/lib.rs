//! The programs of the guide, compiled and run as documentation tests.

#![doc = include_str!("../../../docs/guides/rust.md")]
