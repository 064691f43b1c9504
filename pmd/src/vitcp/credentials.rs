//! TLS credentials of a NIC: certificate, private key and authorities of `[nic.tls]`, read once.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use vi_core::log_limiter::LogLimiter;

use crate::config::TlsConfig;

/// Limit of a file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Mode bits that give access to users other than the owner.
const GROUP_AND_OTHERS: u32 = 0o077;

/// TLS configurations of a NIC for outgoing and incoming connections.
pub(crate) struct Credentials {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) log_limiter: &'static LogLimiter,
}

impl Credentials {
    /// Reads the files. `host` is our address, for which peers require our certificate to be valid.
    ///
    /// # Errors
    /// The configuration key, the file, the problem and the remedy.
    pub(crate) fn read(
        config: &TlsConfig,
        host: IpAddr,
        log_limiter: &'static LogLimiter,
    ) -> Result<Self, String> {
        let TlsConfig {
            certificate,
            private_key,
            authorities,
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

type Verifier = Arc<dyn rustls::server::danger::ClientCertVerifier>;

/// Creates the verifier of client certificates, which are mandatory.
fn verifier(roots: Arc<RootCertStore>, provider: Arc<CryptoProvider>) -> Result<Verifier, String> {
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| format!("tls.authorities: {error}"))
}

/// Warns if the certificate is not valid for our address. Only peers that connect to this host check that.
fn warn_if_not_for_host(chain: &[CertificateDer<'_>], path: &Path, host: IpAddr) {
    let own = ServerName::IpAddress(host.into());
    let fits = chain
        .first()
        .and_then(|certificate| ParsedCertificate::try_from(certificate).ok())
        .is_some_and(|parsed| rustls::client::verify_server_name(&parsed, &own).is_ok());
    if !fits {
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
