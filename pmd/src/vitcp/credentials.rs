//! Who we are to other hosts, and whom we believe: the files of a NIC's `[nic.tls]`, read once.

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

use crate::config::TlsConfig;
use crate::log_limiter::LogLimiter;

/// Longer files hold no certificates of one host.
const MOST_FILE_BYTES: u64 = 1 << 20;
/// Who may use a private key beside its owner.
const OTHERS: u32 = 0o077;

/// What both ends of TLS connections need of a NIC.
pub(crate) struct Credentials {
    pub(super) asking: Arc<ClientConfig>,
    pub(super) asked: Arc<ServerConfig>,
    pub(super) log_limiter: &'static LogLimiter,
}

impl Credentials {
    /// Reads the files. `host` is our own address, for which others want our certificate to be.
    ///
    /// # Errors
    /// What is wrong with which file of which key, and what to do.
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
                let way_out = "give the certificates of authorities";
                wrong("authorities", authorities, &error.to_string(), way_out)
            })?;
        }
        warn_of_other_host(&chain, certificate, host);
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        let unfit = |error: rustls::Error| {
            let way_out = "give the certificate of that key, first in its file, or the other key";
            let problem = format!("is not of {certificate:?} ({error})");
            wrong("private_key", private_key, &problem, way_out)
        };
        let version = |error: rustls::Error| format!("tls: {error}");
        let mut asking = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(version)?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unfit)?;
        let mut asked = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(version)?
            .with_client_cert_verifier(verifier(roots, provider)?)
            .with_single_cert(chain, key)
            .map_err(unfit)?;
        // Every connection has its certificates verified anew: there is no ticket that outlives one.
        asking.resumption = Resumption::disabled();
        asked.session_storage = Arc::new(NoServerSessionStorage {});
        asked.send_tls13_tickets = 0;
        Ok(Self {
            asking: Arc::new(asking),
            asked: Arc::new(asked),
            log_limiter,
        })
    }
}

type Verifier = Arc<dyn rustls::server::danger::ClientCertVerifier>;

/// Nobody without a certificate gets in.
fn verifier(roots: Arc<RootCertStore>, provider: Arc<CryptoProvider>) -> Result<Verifier, String> {
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| format!("tls.authorities: {error}"))
}

/// Who asks us would refuse such a certificate; who only asks others may have one.
fn warn_of_other_host(chain: &[CertificateDer<'_>], path: &Path, host: IpAddr) {
    let own = ServerName::IpAddress(host.into());
    let fits = chain
        .first()
        .and_then(|certificate| ParsedCertificate::try_from(certificate).ok())
        .is_some_and(|parsed| rustls::client::verify_server_name(&parsed, &own).is_ok());
    if !fits {
        log::warn!(
            "tls.certificate = {path:?}: is not for {host}: who asks this host for a connection \
             refuses it: name the address in its subjectAltName"
        );
    }
}

fn wrong(key: &str, path: &Path, problem: &str, way_out: &str) -> String {
    format!("tls.{key} = {path:?}: {problem}: {way_out}")
}

fn text(key: &str, path: &Path, way_out: &str) -> Result<(File, Vec<u8>), String> {
    let read = || {
        // Not to be held up by what is no file.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(path)?;
        let mut text = Vec::new();
        let is_file = file.metadata()?.is_file();
        if is_file {
            let most = MOST_FILE_BYTES + 1;
            file.by_ref().take(most).read_to_end(&mut text)?;
        }
        Ok((file, is_file, text))
    };
    let (file, is_file, text) = read().map_err(|error: std::io::Error| {
        wrong(key, path, &format!("cannot be read ({error})"), way_out)
    })?;
    if !is_file {
        return Err(wrong(key, path, "is no file", way_out));
    }
    if text.len() as u64 > MOST_FILE_BYTES {
        let problem = format!("is longer than {MOST_FILE_BYTES} bytes");
        return Err(wrong(key, path, &problem, way_out));
    }
    Ok((file, text))
}

fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let way_out = "give a PEM file of certificates";
    let (_, text) = text(key, path, way_out)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found
        .map_err(|error: pem::Error| wrong(key, path, &format!("is no PEM ({error})"), way_out))?;
    match found.is_empty() {
        true => Err(wrong(key, path, "has no certificate in it", way_out)),
        false => Ok(found),
    }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    const KEY: &str = "private_key";
    let way_out = "give a PEM file with the private key of the certificate";
    let (file, text) = text(KEY, path, way_out)?;
    let (owner, mode) = file
        .metadata()
        .map(|is| (is.uid(), is.permissions().mode()))
        .map_err(|error| wrong(KEY, path, &error.to_string(), way_out))?;
    let own = nix::unistd::geteuid().as_raw();
    if owner != own && owner != 0 {
        let problem = format!("is of another user (uid {owner})");
        return Err(wrong(KEY, path, &problem, "give it to ours, or to root"));
    }
    if mode & OTHERS != 0 {
        let problem = format!("is open to others (mode {:04o})", mode & 0o7777);
        return Err(wrong(KEY, path, &problem, "chmod 600 it"));
    }
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => Err(wrong(KEY, path, "has no private key in it", way_out)),
        Err(error) => Err(wrong(KEY, path, &format!("is no PEM ({error})"), way_out)),
    }
}
