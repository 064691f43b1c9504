//! VI/TCP with TLS: nobody gets in who cannot show who he is, and what is wrong with a configuration is told.

mod common;

use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::tls::{Authority, FAR_YEAR, Files, counter, good, nic, vitcp_port, wait_for_counter};
use common::{End, PATIENCE, WAIT, connect, open_as, pattern, persist, unique_discriminator};
use pmd::config::TlsConfig;
use vipl::{Nic, Timeout, ViState, VipError};

/// A refusal is told at once: far from any time-out, on any machine.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Asks a server that waits for somebody: it must be told at once that nothing comes of it, and the server must hear of
/// nobody.
fn refused(client: &End, server: &End) {
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let own = client.nic.local_address(b"client").unwrap();
    thread::scope(|scope| {
        let heard = scope.spawn(|| {
            let wait = Timeout::After(Duration::from_secs(2));
            server.nic.connect_wait(&address, wait).map(drop)
        });
        let begun = Instant::now();
        let asked = persist(|| client.vi.connect(&own, &address, WAIT));
        assert_eq!(asked, Err(VipError::Reject));
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        assert_eq!(client.vi.state().unwrap(), ViState::Idle);
        assert_eq!(heard.join().unwrap(), Err(VipError::Timeout));
    });
}

/// What a client and a server have, one of whom is not to be believed.
struct Pair {
    files: Files,
    authority: Authority,
    good: [TlsConfig; 2],
}

impl Pair {
    fn new(name: &str) -> Self {
        let files = Files::new(name);
        let authority = Authority::new(&files, "authority");
        let good = [1, 2].map(|number| {
            authority.certify(
                &files,
                &format!("host-{number}"),
                files.host(number),
                FAR_YEAR,
            )
        });
        Self {
            files,
            authority,
            good,
        }
    }

    fn refuses(&self, client: Option<&TlsConfig>, server: Option<&TlsConfig>) -> (End, End) {
        let client = End::on(nic(&self.files, 1, client), |vi| vi);
        let server = End::on(nic(&self.files, 2, server), |vi| vi);
        refused(&client, &server);
        (client, server)
    }
}

#[test]
fn certificates_of_others_authorities_are_refused_at_both_ends() {
    let pair = Pair::new("authorities");
    let other = Authority::new(&pair.files, "other");
    // Whose certificate is of the other authority, but who believes ours.
    let strangers = [1, 2].map(|number| TlsConfig {
        authorities: pair.authority.path().to_owned(),
        ..other.certify(
            &pair.files,
            &format!("stranger-{number}"),
            pair.files.host(number),
            FAR_YEAR,
        )
    });
    let (client, server) = pair.refuses(Some(&strangers[0]), Some(&pair.good[1]));
    assert_eq!(counter(&client.nic, "drop_tls_handshake"), 1);
    wait_for_counter(&server, "drop_tls_handshake", 1);
    drop((client, server));
    let (client, server) = pair.refuses(Some(&pair.good[0]), Some(&strangers[1]));
    assert_eq!(counter(&client.nic, "drop_tls_handshake"), 1);
    wait_for_counter(&server, "drop_tls_handshake", 1);
}

#[test]
fn a_certificate_for_another_address_is_refused() {
    let pair = Pair::new("address");
    let other = pair
        .authority
        .certify(&pair.files, "other", pair.files.host(3), FAR_YEAR);
    pair.refuses(Some(&pair.good[0]), Some(&other));
    // The end that asks need not be where its certificate says.
    let client = End::on(nic(&pair.files, 1, Some(&other)), |vi| vi);
    let server = End::on(nic(&pair.files, 2, Some(&pair.good[1])), |vi| vi);
    connect(&client, &server);
}

#[test]
fn certificates_that_are_over_are_refused() {
    let pair = Pair::new("expired");
    let over = [1, 2].map(|number| {
        let name = format!("over-{number}");
        pair.authority
            .certify(&pair.files, &name, pair.files.host(number), 2020)
    });
    pair.refuses(Some(&over[0]), Some(&pair.good[1]));
    pair.refuses(Some(&pair.good[0]), Some(&over[1]));
}

#[test]
fn who_speaks_no_tls_is_refused_and_refuses() {
    let pair = Pair::new("plain");
    let (client, server) = pair.refuses(Some(&pair.good[0]), None);
    assert_eq!(counter(&client.nic, "drop_tls_handshake"), 1);
    assert!(counter(&server.nic, "drop_unfit_incoming") > 0);
    drop((client, server));
    // Without TLS the draft has the client ask again until its time is over, which is short here.
    let client = End::on(nic(&pair.files, 1, None), |vi| vi);
    let server = End::on(nic(&pair.files, 2, Some(&pair.good[1])), |vi| vi);
    let address = server.nic.local_address(b"server").unwrap();
    let own = client.nic.local_address(b"client").unwrap();
    let short = Timeout::After(Duration::from_secs(2));
    let begun = Instant::now();
    let asked = client.vi.connect(&own, &address, short);
    assert!(
        matches!(asked, Err(VipError::Timeout | VipError::Reject)),
        "{asked:?}"
    );
    assert!(begun.elapsed() < AT_ONCE);
    wait_for_counter(&server, "drop_tls_handshake", 1);
}

/// A TCP connection to a NIC that speaks TLS.
fn raw(files: &Files, number: u32) -> TcpStream {
    let address = SocketAddr::new(files.host(number), vitcp_port());
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn silence_garbage_and_ends_in_the_handshake_harm_nobody() {
    let files = Files::new("garbage");
    let [near, far] = good(&files, [1, 2]);
    let server = open_as(|config| {
        files.put(config, 2, Some(&far));
        config.ulp_timeout_ms = Some(500);
    });
    let server = End::on(server, |vi| vi);
    let mut silent = raw(&files, 2);
    let mut garbage = raw(&files, 2);
    garbage.write_all(&pattern(7, 400)).unwrap();
    // A record that announces more than it brings, and no end.
    let mut slow = raw(&files, 2);
    slow.write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])
        .unwrap();
    let cut = raw(&files, 2);
    (&cut).write_all(&[0x16, 3, 1]).unwrap();
    cut.shutdown(Shutdown::Both).unwrap();
    for stream in [&mut silent, &mut garbage, &mut slow] {
        // What is said to that is an alert at most, then the end.
        let mut said = Vec::new();
        let ended = stream.read_to_end(&mut said);
        let reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(
            ended.is_ok() || ended.as_ref().is_err_and(reset),
            "{ended:?}"
        );
        assert!(said.is_empty() || said[0] == 0x15, "{said:?}");
    }
    wait_for_counter(&server, "drop_tls_handshake", 2);
    wait_for_counter(&server, "drop_silent_incoming", 2);
    let client = End::on(nic(&files, 1, Some(&near)), |vi| vi);
    connect(&client, &server);
}

#[test]
fn a_host_that_only_closes_or_talks_nonsense_is_no_peer() {
    let files = Files::new("closes");
    let [near] = good(&files, [1]);
    let client = End::on(nic(&files, 1, Some(&near)), |vi| vi);
    let own = client.nic.local_address(b"client").unwrap();
    let far = open_as(|config| files.put(config, 3, None));
    let there = far.local_address(b"server").unwrap();
    drop(far);
    let listener = TcpListener::bind((files.host(3), vitcp_port())).unwrap();
    for nonsense in [b"".as_slice(), b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let begun = Instant::now();
        let asked = thread::scope(|scope| {
            let asked = scope.spawn(|| client.vi.connect(&own, &there, WAIT));
            while !asked.is_finished() {
                listener.set_nonblocking(true).unwrap();
                if let Ok((mut stream, _)) = listener.accept() {
                    stream.write_all(nonsense).unwrap();
                }
                thread::yield_now();
            }
            asked.join().unwrap()
        });
        assert_eq!(asked, Err(VipError::Reject));
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
    }
}

#[test]
fn one_program_has_the_port() {
    let files = Files::new("alone");
    let [tls] = good(&files, [1]);
    let first = nic(&files, 1, Some(&tls));
    let same = common::config(|config| {
        files.put(config, 1, Some(&tls));
        config.max_cq = 7;
    });
    let refused = Nic::open_with(&same).map(drop).unwrap_err();
    let said = vipl::provider::last_error().unwrap_or_default();
    assert_eq!(refused, VipError::ErrorResource);
    assert!(
        said.contains("another program has the port") && said.contains("tcp_port"),
        "{said}"
    );
    drop(first);
    drop(Nic::open_with(&same).expect("it is free again"));
}

/// Each file wrong in each way: the key, the file and the way out are named.
#[test]
fn files_that_cannot_be_used_are_told_when_the_nic_is_opened() {
    let pair = Pair::new("files");
    let [tls, other] = &pair.good;
    let files = &pair.files;
    let nothing = files.write("nothing.pem", "nothing\n");
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
    type Part = fn(&mut TlsConfig) -> &mut PathBuf;
    let certificate: Part = |tls| &mut tls.certificate;
    let private_key: Part = |tls| &mut tls.private_key;
    let authorities: Part = |tls| &mut tls.authorities;
    let rows = [
        ("certificate", certificate, &missing, "give a PEM file"),
        (
            "certificate",
            certificate,
            &nothing,
            "has no certificate in it",
        ),
        ("certificate", certificate, &broken, "is no PEM"),
        ("certificate", certificate, &pipe, "is no file"),
        ("private_key", private_key, &missing, "cannot be read"),
        (
            "private_key",
            private_key,
            &nothing,
            "has no private key in it",
        ),
        (
            "private_key",
            private_key,
            &open,
            "mode 0640): chmod 600 it",
        ),
        ("private_key", private_key, &pipe, "is no file"),
        ("private_key", private_key, &other.private_key, "is not of"),
        ("authorities", authorities, &missing, "cannot be read"),
        (
            "authorities",
            authorities,
            &nothing,
            "has no certificate in it",
        ),
        (
            "authorities",
            authorities,
            &long,
            "is longer than 1048576 bytes",
        ),
    ];
    for (key, part, file, says) in rows {
        let mut tls = tls.clone();
        part(&mut tls).clone_from(file);
        let config = common::config(|config| files.put(config, 1, Some(&tls)));
        assert_eq!(
            Nic::open_with(&config).map(drop),
            Err(VipError::ErrorResource),
            "{key}"
        );
        let said = vipl::provider::last_error().unwrap_or_default();
        let wrong = format!("tls.{key} = {file:?}");
        assert!(said.contains(&wrong) && said.contains(says), "{said}");
    }
}
