//! TLS credentials of a NIC: certificate, private key and authorities of `[nic.vi_tcp.tls]`, read once.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore,
    ServerConfig, SignatureScheme,
};
use vi_core::log_limiter::LogLimiter;

use vi_config::TlsConfig;

/// Limit of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Maximum certificates that a client sends beside its own: at most 16 signatures are checked for these.
const MAX_INTERMEDIATES: usize = 3;
/// Mode bits that give access to users other than the owner.
const GROUP_AND_OTHERS: u32 = 0o077;

/// TLS configurations of a NIC for outgoing and incoming connections.
pub struct Credentials {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) log_limiter: &'static LogLimiter,
}

impl Credentials {
    /// Reads the files. `host` is our address, for which peers require our certificate to be valid.
    ///
    /// # Errors
    /// The configuration key, the file, the problem and the remedy.
    pub fn read(
        config: &TlsConfig,
        host: IpAddr,
        log_limiter: &'static LogLimiter,
    ) -> Result<Self, String> {
        let TlsConfig {
            certificate,
            private_key,
            authorities,
            ..
        } = config;
        let chain = certificates("certificate", certificate)?;
        let key = key(private_key)?;
        let mut roots = RootCertStore::empty();
        for authority in certificates("authorities", authorities)? {
            roots.add(authority).map_err(|error| {
                let remedy = "give the certificates of authorities";
                file_error("authorities", authorities, &error.to_string(), remedy)
            })?;
        }
        warn_if_not_for_host(&chain, certificate, host);
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        let mismatch = |error: rustls::Error| {
            let remedy = "give the certificate of that key, first in its file, or the other key";
            let problem = format!("does not match {certificate:?} ({error})");
            file_error("private_key", private_key, &problem, remedy)
        };
        let version = |error: rustls::Error| format!("tls: {error}");
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(version)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(mismatch)?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(version)?
            .with_client_cert_verifier(verifier(roots, provider)?)
            .with_single_cert(chain, key)
            .map_err(mismatch)?;
        // No session resumption: every connection verifies the certificates.
        client.resumption = Resumption::disabled();
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
            log_limiter,
        })
    }
}

/// Creates the verifier of client certificates, which are mandatory.
fn verifier(
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map(|verifier| Arc::new(ShortChains(verifier)) as Arc<dyn ClientCertVerifier>)
        .map_err(|error| format!("tls.authorities: {error}"))
}

/// Verifies client certificates of short chains only: a verification tries the certificates that the peer sends in
/// many orders, and anyone can send some that have to be tried.
#[derive(Debug)]
struct ShortChains(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ShortChains {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if intermediates.len() > MAX_INTERMEDIATES {
            return Err(CertificateError::UnknownIssuer.into());
        }
        self.0.verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Checks whether a certificate has this address among its subjectAltNames.
pub(super) fn is_valid_for(certificate: &CertificateDer<'_>, address: IpAddr) -> bool {
    let name = ServerName::IpAddress(address.into());
    let parsed = ParsedCertificate::try_from(certificate);
    parsed.is_ok_and(|parsed| rustls::client::verify_server_name(&parsed, &name).is_ok())
}

/// Warns if the certificate is not valid for our address. Only peers that connect to this host check that, and those of
/// peer requests.
fn warn_if_not_for_host(chain: &[CertificateDer<'_>], path: &Path, host: IpAddr) {
    let own = chain.first();
    if !own.is_some_and(|certificate| is_valid_for(certificate, host)) {
        log::warn!(
            "tls.certificate = {path:?}: is not valid for {host}: peers that connect to this host \
             refuse it: add the address to its subjectAltName"
        );
    }
}

fn file_error(key: &str, path: &Path, problem: &str, remedy: &str) -> String {
    format!("tls.{key} = {path:?}: {problem}: {remedy}")
}

fn read_file(key: &str, path: &Path, remedy: &str) -> Result<(File, Vec<u8>), String> {
    let read = || {
        // The open of a FIFO or device must not block.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(path)?;
        let mut text = Vec::new();
        let is_file = file.metadata()?.is_file();
        if is_file {
            let limit = MAX_FILE_BYTES + 1;
            file.by_ref().take(limit).read_to_end(&mut text)?;
        }
        Ok((file, is_file, text))
    };
    let (file, is_file, text) = read().map_err(|error: std::io::Error| {
        file_error(key, path, &format!("cannot be read ({error})"), remedy)
    })?;
    if !is_file {
        return Err(file_error(key, path, "is not a regular file", remedy));
    }
    if text.len() as u64 > MAX_FILE_BYTES {
        let problem = format!("is longer than {MAX_FILE_BYTES} bytes");
        return Err(file_error(key, path, &problem, remedy));
    }
    Ok((file, text))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let remedy = "give a PEM file of certificates";
    let (_, text) = read_file(key, path, remedy)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error: pem::Error| {
        file_error(key, path, &format!("is not PEM ({error})"), remedy)
    })?;
    match found.is_empty() {
        true => Err(file_error(key, path, "contains no certificate", remedy)),
        false => Ok(found),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    const KEY: &str = "private_key";
    let remedy = "give a PEM file with the private key of the certificate";
    let (file, text) = read_file(KEY, path, remedy)?;
    let (owner, mode) = file
        .metadata()
        .map(|is| (is.uid(), is.permissions().mode()))
        .map_err(|error| file_error(KEY, path, &error.to_string(), remedy))?;
    let own = nix::unistd::geteuid().as_raw();
    if owner != own && owner != 0 {
        let problem = format!("is owned by another user (uid {owner})");
        let remedy = "chown it to the user of the program or to root";
        return Err(file_error(KEY, path, &problem, remedy));
    }
    if mode & GROUP_AND_OTHERS != 0 {
        let problem = format!("is accessible to other users (mode {:04o})", mode & 0o7777);
        return Err(file_error(KEY, path, &problem, "chmod 600 it"));
    }
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => {
            Err(file_error(KEY, path, "contains no private key", remedy))
        }
        Err(error) => {
            let problem = format!("is not PEM ({error})");
            Err(file_error(KEY, path, &problem, remedy))
        }
    }
}
