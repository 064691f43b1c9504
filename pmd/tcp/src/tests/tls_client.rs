//! A TLS client that the test drives step by step, and its certificates.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use rustls::ClientConnection;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use crate::Credentials;
use crate::testkit::{LOG_LIMITER, Program};
use vi_config::TlsConfig;

/// An authority, and the directory of its certificates.
pub(super) struct Certificates {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    authority: String,
}

impl Certificates {
    pub(super) fn new(test: &str) -> Self {
        let name = format!("viaduct-vitcp-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        Self {
            directory,
            issuer: Issuer::new(params, key),
            authority,
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.join(name);
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        path
    }

    /// Issues a certificate for a host.
    pub(super) fn issue(&self, name: &str, host: Ipv4Addr) -> TlsConfig {
        self.issue_with(name, host, 0)
    }

    /// Issues a certificate whose chain has `more` certificates.
    pub(super) fn issue_with(&self, name: &str, host: Ipv4Addr, more: usize) -> TlsConfig {
        let mut params = CertificateParams::default();
        let host = IpAddr::V4(host);
        params.subject_alt_names.push(SanType::IpAddress(host));
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &self.issuer).unwrap().pem();
        let chain = own + &self.authority.repeat(more);
        TlsConfig {
            certificate: self.write(&format!("{name}.pem"), &chain),
            private_key: self.write(&format!("{name}.key"), &key.serialize_pem()),
            authorities: self.write("authority.pem", &self.authority),
            ..TlsConfig::default()
        }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.directory);
    }
}

/// A TLS connection to the program under test.
pub(super) struct TlsClient<'a> {
    program: &'a Program,
    tcp: TcpStream,
    session: ClientConnection,
}

impl<'a> TlsClient<'a> {
    /// Connects from a host, and sends the first message of the handshake.
    pub(super) fn begin(program: &'a Program, host: Ipv4Addr, tls: &TlsConfig) -> Self {
        let credentials = Credentials::read(tls, host.into(), &LOG_LIMITER).unwrap();
        let name = program.at.ip().into();
        let session = ClientConnection::new(credentials.client.clone(), name).unwrap();
        let tcp = program.dial_from(host);
        let mut client = Self {
            program,
            tcp,
            session,
        };
        client.send();
        client
    }

    /// As [`TlsClient::begin`], and completes its side of the handshake.
    pub(super) fn new(program: &'a Program, host: Ipv4Addr, tls: &TlsConfig) -> Self {
        let mut client = Self::begin(program, host, tls);
        program.poll_until(|| {
            client.progress();
            (!client.is_handshaking()).then_some(())
        });
        client
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    fn send(&mut self) {
        while self.session.wants_write() && self.session.write_tls(&mut self.tcp).is_ok() {}
    }

    /// Receives what has arrived, and sends what TCP takes.
    pub(super) fn progress(&mut self) {
        if self.session.read_tls(&mut self.tcp).is_ok() {
            self.session.process_new_packets().unwrap();
        }
        self.send();
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.session.writer().write_all(bytes).unwrap();
        self.send();
    }

    /// Writes a record for each of these; [`TlsClient::progress`] sends them.
    pub(super) fn write_records<'b>(&mut self, records: impl Iterator<Item = &'b [u8]>) {
        self.session.set_buffer_limit(None);
        records.for_each(|bytes| self.session.writer().write_all(bytes).unwrap());
        self.send();
    }

    /// Receives the next response; returns its segment type.
    pub(super) fn response_type(&mut self) -> u8 {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        let program = self.program;
        program.poll_until(|| {
            self.progress();
            let read = self.session.reader().read(&mut header);
            read.is_ok_and(|bytes| bytes == SEGMENT_HEADER_BYTES)
                .then_some(header[1] >> 3)
        })
    }
}
