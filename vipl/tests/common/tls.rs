//! Certificates, created by each test, and NICs that use them for TLS.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use pmd::config::{NicConfig, TlsConfig, ViTcp};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType, date_time_ymd};
use vipl::{Nic, VipError};

use super::{
    Endpoint, FIRST_OF_TLS, counter, open_as, tcp_host, tcp_keys, unique_discriminator, use_tcp,
    wait_until,
};

/// The directory of a test, removed when dropped, and its addresses.
pub(crate) struct Files {
    directory: PathBuf,
    first_host: u32,
}

/// Number of addresses of each test.
const HOSTS: u32 = 4;

impl Files {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("viaduct-tls-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self {
            directory,
            first_host: FIRST_OF_TLS + HOSTS * NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The address of NIC `number`, counted from 0.
    pub(crate) fn host(&self, number: u32) -> IpAddr {
        assert!(number < HOSTS);
        tcp_host(self.first_host + number).into()
    }

    /// Configures VI/TCP at the address of NIC `number`, with TLS if `tls` is given.
    pub(crate) fn configure(&self, config: &mut NicConfig, number: u32, tls: Option<&TlsConfig>) {
        use_tcp(config, self.first_host + number);
        tcp_keys(config).tls = tls.cloned();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes a file of mode 0600.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    path: PathBuf,
}

impl Authority {
    pub(crate) fn new(files: &Files, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap();
        let path = files.write(&format!("{name}.pem"), &own.pem());
        let issuer = Issuer::new(params, key);
        Self { issuer, path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Issues a certificate for NIC `number` that is valid to the end of `year`.
    pub(crate) fn certify_host(&self, files: &Files, number: u32, year: i32) -> TlsConfig {
        let name = String::from_utf8(unique_discriminator()).unwrap();
        self.certify(files, &name, files.host(number), year)
    }

    /// Issues a certificate for this address that is valid to the end of `year`.
    pub(crate) fn certify(&self, files: &Files, name: &str, host: IpAddr, year: i32) -> TlsConfig {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(SanType::IpAddress(host));
        (params.not_before, params.not_after) =
            (date_time_ymd(year - 200, 1, 1), date_time_ymd(year, 12, 31));
        let key = KeyPair::generate().unwrap();
        let own = params.signed_by(&key, &self.issuer).unwrap();
        TlsConfig {
            certificate: files.write(&format!("{name}.pem"), &own.pem()),
            private_key: files.write(&format!("{name}.key"), &key.serialize_pem()),
            authorities: self.path.clone(),
            ..TlsConfig::default()
        }
    }
}

/// Last year of certificates that do not expire during a test.
pub(crate) const UNEXPIRED_YEAR: i32 = 2200;

/// Valid certificates of one authority, for the NICs of these numbers.
pub(crate) fn valid<const N: usize>(files: &Files, numbers: [u32; N]) -> [TlsConfig; N] {
    let authority = Authority::new(files, "authority");
    numbers.map(|number| authority.certify_host(files, number, UNEXPIRED_YEAR))
}

/// Opens NIC `number`.
pub(crate) fn nic(files: &Files, number: u32, tls: Option<&TlsConfig>) -> Nic {
    open_as(|config| files.configure(config, number, tls))
}

/// Polls the endpoint's NIC until the counter is at least `least`.
pub(crate) fn wait_for_counter(end: &Endpoint, name: &str, least: u64) {
    wait_until(name, || {
        let polled = end.vi.recv_done();
        assert!(matches!(polled, Ok(None) | Err(VipError::NotDone)));
        counter(end.nic.handle(), name) >= least
    });
}

/// The default TCP port of VI/TCP.
pub(crate) fn vitcp_port() -> u16 {
    ViTcp::default().port
}
