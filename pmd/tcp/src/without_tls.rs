//! What takes the place of TLS in a build without the feature `tls`: a NIC with `[nic.vi_tcp.tls]` cannot be opened.

use std::io;
use std::net::IpAddr;

use pmd_port::fork::Descriptor;
use vi_core::log_limiter::LogLimiter;
use vitcp_lite::transfer::MemoryRanges;

use vi_config::TlsConfig;

/// TLS credentials, which do not exist.
pub enum Credentials {}

impl Credentials {
    /// Refuses the configuration.
    ///
    /// # Errors
    /// Always.
    pub fn read(
        _config: &TlsConfig,
        _host: IpAddr,
        _log_limiter: &'static LogLimiter,
    ) -> Result<Self, String> {
        Err(
            "[nic.vi_tcp.tls] needs TLS, which this program was built without: build it with the feature `tls` of \
             the crate `vipl`"
                .to_owned(),
        )
    }
}

/// A TLS session, which does not exist.
#[derive(Debug)]
pub(super) enum TlsSession {}

impl TlsSession {
    pub(super) fn client(credentials: &Credentials, _peer: IpAddr) -> io::Result<Box<Self>> {
        match *credentials {}
    }

    pub(super) fn server(credentials: &Credentials) -> io::Result<Box<Self>> {
        match *credentials {}
    }

    pub(super) fn is_established(&self) -> bool {
        match *self {}
    }

    pub(super) fn permit_handshake(&mut self, _permitted: bool) {
        match *self {}
    }

    pub(super) fn take_records(&mut self) -> u32 {
        match *self {}
    }

    pub(super) fn is_certified_for(&self, _address: IpAddr) -> bool {
        match *self {}
    }

    pub(super) fn has_more(&self) -> bool {
        match *self {}
    }

    pub(super) fn has_unsent(&self) -> bool {
        match *self {}
    }

    pub(super) fn flush(&mut self, _socket: &Descriptor, _more: bool) -> io::Result<bool> {
        match *self {}
    }

    /// # Safety
    /// None: it cannot be called.
    pub(super) unsafe fn send(
        &mut self,
        _socket: &Descriptor,
        _ranges: &MemoryRanges,
        _more: bool,
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn send_bytes(&mut self, _socket: &Descriptor, _bytes: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn finish(&mut self, _socket: &Descriptor) -> bool {
        match *self {}
    }

    /// # Safety
    /// None: it cannot be called.
    pub(super) unsafe fn receive(
        &mut self,
        _socket: &Descriptor,
        _ranges: &MemoryRanges,
    ) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn receive_bytes(
        &mut self,
        _socket: &Descriptor,
        _to: &mut [u8],
    ) -> io::Result<usize> {
        match *self {}
    }
}
