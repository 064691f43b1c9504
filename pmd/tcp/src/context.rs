//! What all parts of a VI/TCP NIC use: settings, timers, counters.

use std::fmt::Arguments;
use std::net::SocketAddr;

use super::Settings;
use super::counters::{Counter, Counters};
use super::socket::{SocketOptions, socket_address};
use super::timers::Timers;

/// Settings, timers and counters of a NIC.
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) timers: Timers,
    /// Of sockets and connections.
    pub(super) counters: Counters,
    /// Of data transfer.
    pub(super) transfer_counters: vitcp_lite::transfer::Counters,
}

impl Context {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            timers: Timers::default(),
            counters: Counters::default(),
            transfer_counters: Default::default(),
        }
    }

    pub(super) fn count(&mut self, counter: Counter) {
        self.counters.count(counter);
    }

    /// Returns the address at which the NIC listens.
    pub(super) fn local_address(&self) -> SocketAddr {
        let settings = &self.settings;
        socket_address(settings.host.0, settings.port, settings.scope)
    }

    pub(super) fn socket_options(&self) -> SocketOptions {
        SocketOptions {
            keepalive: core::time::Duration::from_millis(self.settings.probe_ms),
        }
    }

    /// Logs a rate-limited line, which a peer or an application can cause.
    pub(super) fn log_limited(&self, level: log::Level, line: Arguments<'_>) {
        let subject = format!("vi-tcp {}", self.local_address());
        self.settings.log_limiter.log(level, &subject, line);
    }
}
