//! Certificates of a test run: an authority, and hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::scratch::Scratch;

/// An authority, and a directory with what it made.
#[derive(Debug)]
pub struct Certificates {
    files: Scratch,
    issuer: Issuer<'static, KeyPair>,
}

/// The files of one host.
#[derive(Clone, Debug)]
pub struct Identity {
    certificate: PathBuf,
    private_key: PathBuf,
    authorities: PathBuf,
}

impl Default for Certificates {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificates {
    /// A new authority.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn new() -> Self {
        let files = Scratch::new("certificates");
        let mut params = CertificateParams::default();
        (params.distinguished_name).push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate");
        files.write("authorities.pem", &own.pem());
        let issuer = Issuer::new(params, key);
        Self { files, issuer }
    }

    /// A certificate for this address, and its key, which nobody but us can read.
    ///
    /// # Panics
    /// If it is no address, or a file cannot be written.
    pub fn of(&self, host: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, host);
        let address = host.parse().expect("an address");
        params.subject_alt_names.push(SanType::IpAddress(address));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let own = params.signed_by(&key, &self.issuer).expect("a certificate");
        let name = host.replace(':', "-");
        let private_key = self.files.file(&format!("{name}.key"));
        fs::write(&private_key, "").expect("a file");
        fs::set_permissions(&private_key, fs::Permissions::from_mode(0o600)).expect("its mode");
        fs::write(&private_key, key.serialize_pem()).expect("a file");
        Identity {
            certificate: self.files.write(&format!("{name}.pem"), &own.pem()),
            private_key,
            authorities: self.files.file("authorities.pem"),
        }
    }
}

impl Identity {
    /// Its certificate.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The key of its certificate.
    pub fn private_key(&self) -> &Path {
        &self.private_key
    }

    /// The certificate of the authority.
    pub fn authorities(&self) -> &Path {
        &self.authorities
    }

    /// The value of the key `tls` of a NIC.
    pub fn table(&self) -> String {
        let Self {
            certificate,
            private_key,
            authorities,
        } = self;
        format!(
            "{{ certificate = {certificate:?}, private_key = {private_key:?}, authorities = {authorities:?} }}"
        )
    }

    /// Has the second implementation of VI/TCP speak TLS.
    pub fn give(&self, command: &mut Command) {
        command.arg("--tls-certificate").arg(&self.certificate);
        command.arg("--tls-key").arg(&self.private_key);
        command.arg("--tls-authorities").arg(&self.authorities);
    }
}
