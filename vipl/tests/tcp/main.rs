//! VI/TCP: what only this transport has, and its errors, keys and TLS.

#[path = "../common/mod.rs"]
mod common;

mod connection_options;
mod tcp;
mod tcp_connect;
mod tcp_deregistration;
mod tcp_errors;
mod tcp_keys;
mod tcp_segments;
mod tls;
mod tls_refusals;
