//! Certificates of a test: an authority, and hosts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::scratch::Scratch;

/// A certificate authority, and the directory with its files.
#[derive(Debug)]
pub struct Certificates {
    files: Scratch,
    issuer: Issuer<'static, KeyPair>,
}

/// The certificate files of one host.
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
    /// Creates an authority.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn new() -> Self {
        let files = Scratch::new("certificates");
        let mut params = CertificateParams::default();
        (params.distinguished_name).push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key is generated");
        let own = params.self_signed(&key).expect("a certificate is signed");
        files.write("authorities.pem", &own.pem());
        let issuer = Issuer::new(params, key);
        Self { files, issuer }
    }

    /// Issues a certificate for an address. The file of its private key has mode 600.
    ///
    /// # Panics
    /// If `host` is not an address, or a file cannot be written.
    pub fn issue(&self, host: &str) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, host);
        let address = host.parse().expect("an address");
        params.subject_alt_names.push(SanType::IpAddress(address));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key is generated");
        let own = params
            .signed_by(&key, &self.issuer)
            .expect("a certificate is signed");
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
    /// Returns the path of the certificate.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// Returns the path of the private key.
    pub fn private_key(&self) -> &Path {
        &self.private_key
    }

    /// Returns the path of the authority's certificate.
    pub fn authorities(&self) -> &Path {
        &self.authorities
    }

    /// Returns the value of the key `tls` of a NIC.
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

    /// Adds the TLS options of the Python programs of VI/TCP to a command.
    pub fn add_options(&self, command: &mut Command) {
        command.arg("--tls-certificate").arg(&self.certificate);
        command.arg("--tls-key").arg(&self.private_key);
        command.arg("--tls-authorities").arg(&self.authorities);
    }
}
