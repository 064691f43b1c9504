//! VI/TCP with TLS: peers without a valid certificate are refused, and errors of the configuration are reported.

use crate::common;
use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::tls::{
    Authority, Files, UNEXPIRED_YEAR, nic, valid, vitcp_port, wait_for_counter,
};
use crate::common::{
    Endpoint, TIMEOUT, WAIT, connect, counter, open_as, pattern, unique_discriminator,
};
use pmd::config::TlsConfig;
use vipl::{Nic, Timeout, ViState, VipError};

/// Limit for a refusal without delay: far below any timeout, on any machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Requests a connection from a waiting server and checks that the client is rejected at once, without a request to the
/// server.
fn expect_refusal(client: &Endpoint, server: &Endpoint) {
    let address = server.address(&unique_discriminator());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let timeout = Timeout::After(Duration::from_secs(2));
            server.nic.connect_wait(&address, timeout).map(drop)
        });
        let begun = Instant::now();
        assert_eq!(client.request(&address), Err(VipError::Reject));
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        assert_eq!(client.vi.state().unwrap(), ViState::Idle);
        assert_eq!(waiting.join().unwrap(), Err(VipError::Timeout));
    });
}

/// Valid certificates of a client and a server.
struct Pair {
    files: Files,
    authority: Authority,
    valid: [TlsConfig; 2],
}

impl Pair {
    fn new(name: &str) -> Self {
        let files = Files::new(name);
        let authority = Authority::new(&files, "authority");
        let valid = [1, 2].map(|number| authority.certify_host(&files, number, UNEXPIRED_YEAR));
        Self {
            files,
            authority,
            valid,
        }
    }

    /// Checks that these configurations do not connect.
    fn expect_refusal(
        &self,
        client: Option<&TlsConfig>,
        server: Option<&TlsConfig>,
    ) -> (Endpoint, Endpoint) {
        let client = Endpoint::on(nic(&self.files, 1, client), |vi| vi);
        let server = Endpoint::on(nic(&self.files, 2, server), |vi| vi);
        expect_refusal(&client, &server);
        (client, server)
    }
}

#[test]
fn certificates_of_an_unknown_authority_are_refused_at_both_sides() {
    let pair = Pair::new("authorities");
    let other = Authority::new(&pair.files, "other");
    // Certificates of the other authority, but trust in ours.
    let untrusted = [1, 2].map(|number| TlsConfig {
        authorities: pair.authority.path().to_owned(),
        ..other.certify_host(&pair.files, number, UNEXPIRED_YEAR)
    });
    for (client, server) in [
        (&untrusted[0], &pair.valid[1]),
        (&pair.valid[0], &untrusted[1]),
    ] {
        let (client, server) = pair.expect_refusal(Some(client), Some(server));
        assert_eq!(counter(client.nic.handle(), "drop_tls_handshake"), 1);
        wait_for_counter(&server, "drop_tls_handshake", 1);
    }
}

#[test]
fn a_certificate_for_another_address_is_refused() {
    let pair = Pair::new("address");
    let other = pair.authority.certify_host(&pair.files, 3, UNEXPIRED_YEAR);
    pair.expect_refusal(Some(&pair.valid[0]), Some(&other));
    // The address in a client certificate is not checked.
    let client = Endpoint::on(nic(&pair.files, 1, Some(&other)), |vi| vi);
    let server = Endpoint::on(nic(&pair.files, 2, Some(&pair.valid[1])), |vi| vi);
    connect(&client, &server);
}

#[test]
fn expired_certificates_are_refused() {
    let pair = Pair::new("expired");
    let expired = [1, 2].map(|number| pair.authority.certify_host(&pair.files, number, 2020));
    pair.expect_refusal(Some(&expired[0]), Some(&pair.valid[1]));
    pair.expect_refusal(Some(&pair.valid[0]), Some(&expired[1]));
}

#[test]
fn connection_without_tls_is_refused_in_both_directions() {
    let pair = Pair::new("plain");
    let (client, server) = pair.expect_refusal(Some(&pair.valid[0]), None);
    assert_eq!(counter(client.nic.handle(), "drop_tls_handshake"), 1);
    assert!(counter(server.nic.handle(), "drop_unfit_incoming") > 0);
    drop((client, server));
    // Without TLS the draft lets the client retry until its timeout, which is short here.
    let client = Endpoint::on(nic(&pair.files, 1, None), |vi| vi);
    let server = Endpoint::on(nic(&pair.files, 2, Some(&pair.valid[1])), |vi| vi);
    let (own, address) = (client.address(b"client"), server.address(b"server"));
    let short = Timeout::After(Duration::from_secs(2));
    let begun = Instant::now();
    let refused = client.vi.connect(&own, &address, short);
    assert!(
        matches!(refused, Err(VipError::Timeout | VipError::Reject)),
        "{refused:?}"
    );
    assert!(begun.elapsed() < AT_ONCE);
    wait_for_counter(&server, "drop_tls_handshake", 1);
}

/// Opens a TCP connection to a NIC that expects TLS.
fn raw(files: &Files, number: u32) -> TcpStream {
    let address = SocketAddr::new(files.host(number), vitcp_port());
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

#[test]
fn silent_malformed_and_aborted_handshakes_are_dropped() {
    let files = Files::new("garbage");
    let [client_tls, server_tls] = valid(&files, [1, 2]);
    let server = open_as(|config| {
        files.configure(config, 2, Some(&server_tls));
        config.ulp_timeout_ms = Some(500);
    });
    let server = Endpoint::on(server, |vi| vi);
    let mut silent = raw(&files, 2);
    let mut garbage = raw(&files, 2);
    garbage.write_all(&pattern(7, 400)).unwrap();
    // An incomplete record, without FIN.
    let mut slow = raw(&files, 2);
    slow.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])
        .unwrap();
    let cut = raw(&files, 2);
    (&cut).write_all(&[0x16, 3, 1]).unwrap();
    cut.shutdown(Shutdown::Both).unwrap();
    for stream in [&mut silent, &mut garbage, &mut slow] {
        // The response is at most an alert, then end of file or a reset.
        let mut response = Vec::new();
        let ended = stream.read_to_end(&mut response);
        let reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(
            ended.is_ok() || ended.as_ref().is_err_and(reset),
            "{ended:?}"
        );
        assert!(response.is_empty() || response[0] == 0x15, "{response:?}");
    }
    wait_for_counter(&server, "drop_tls_handshake", 2);
    wait_for_counter(&server, "drop_silent_incoming", 2);
    let client = Endpoint::on(nic(&files, 1, Some(&client_tls)), |vi| vi);
    connect(&client, &server);
}

#[test]
fn server_that_closes_or_sends_garbage_is_a_rejection() {
    let files = Files::new("closes");
    let [tls] = valid(&files, [1]);
    let client = Endpoint::on(nic(&files, 1, Some(&tls)), |vi| vi);
    let own = client.address(b"client");
    let server = open_as(|config| files.configure(config, 3, None));
    let remote = server.local_address(b"server").unwrap();
    drop(server);
    let listener = TcpListener::bind((files.host(3), vitcp_port())).unwrap();
    for garbage in [b"".as_slice(), b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let begun = Instant::now();
        let refused = thread::scope(|scope| {
            let request = scope.spawn(|| client.vi.connect(&own, &remote, WAIT));
            while !request.is_finished() {
                listener.set_nonblocking(true).unwrap();
                if let Ok((mut stream, _)) = listener.accept() {
                    stream.write_all(garbage).unwrap();
                }
                thread::yield_now();
            }
            request.join().unwrap()
        });
        assert_eq!(refused, Err(VipError::Reject));
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    }
}

#[test]
fn second_program_on_a_tls_port_is_refused() {
    let files = Files::new("alone");
    let [tls] = valid(&files, [1]);
    let first = nic(&files, 1, Some(&tls));
    let same = common::config(|config| {
        files.configure(config, 1, Some(&tls));
        config.limits.max_cq = 7;
    });
    let refused = Nic::open_with(&same).map(drop).unwrap_err();
    let message = vipl::provider::last_error().unwrap_or_default();
    assert_eq!(refused, VipError::ErrorResource);
    assert!(
        message.contains("another program has the port") && message.contains("[nic.vi_tcp]"),
        "{message}"
    );
    drop(first);
    drop(Nic::open_with(&same).expect("the port is free again"));
}

/// Each file with each error: the message names the key, the file and what to do.
#[test]
fn unusable_tls_files_are_reported_by_open() {
    let pair = Pair::new("files");
    let [tls, other] = &pair.valid;
    let files = &pair.files;
    let no_pem = files.write("no-pem.pem", "nothing\n");
    let missing = files.path("missing.pem");
    let broken = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    let broken = files.write("broken.pem", broken);
    let open = files.write(
        "open.key",
        &std::fs::read_to_string(&tls.private_key).unwrap(),
    );
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o640)).unwrap();
    let pipe = files.path("pipe.pem");
    let at = CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path of this frame.
    assert_eq!(unsafe { libc::mkfifo(at.as_ptr(), 0o600) }, 0);
    let long = files.write("long.pem", &"#".repeat((1 << 20) + 1));
    type Part = (&'static str, fn(&mut TlsConfig) -> &mut PathBuf);
    let certificate: Part = ("certificate", |tls| &mut tls.certificate);
    let private_key: Part = ("private_key", |tls| &mut tls.private_key);
    let authorities: Part = ("authorities", |tls| &mut tls.authorities);
    let rows = [
        (certificate, &missing, "give a PEM file"),
        (certificate, &no_pem, "contains no certificate"),
        (certificate, &broken, "is not PEM"),
        (certificate, &pipe, "is not a regular file"),
        (private_key, &missing, "cannot be read"),
        (private_key, &no_pem, "contains no private key"),
        (private_key, &open, "mode 0640): chmod 600 it"),
        (private_key, &pipe, "is not a regular file"),
        (private_key, &other.private_key, "does not match"),
        (authorities, &missing, "cannot be read"),
        (authorities, &no_pem, "contains no certificate"),
        (authorities, &long, "is longer than 1048576 bytes"),
    ];
    for ((key, part), file, expected) in rows {
        let mut tls = tls.clone();
        part(&mut tls).clone_from(file);
        let config = common::config(|config| files.configure(config, 1, Some(&tls)));
        let refused = Nic::open_with(&config).map(drop);
        assert_eq!(refused, Err(VipError::ErrorResource), "{key}");
        let message = vipl::provider::last_error().unwrap_or_default();
        let setting = format!("tls.{key} = {file:?}");
        assert!(
            message.contains(&setting) && message.contains(expected),
            "{message}"
        );
    }
}
