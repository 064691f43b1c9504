//! VI/TCP with pre-shared keys: peers without a valid proof are rejected.

use crate::common;
use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::common::datapath::{serve_if_child, with_process_of};
use crate::common::{
    Endpoint, LEVELS, WAIT, deliver, open_as, pattern, tcp_host, tcp_keys, unique_discriminator,
    use_tcp,
};
use pmd::config::NicConfig;
use vipl::{ConnectionOptions, NetAddress, Nic, ViState, VipError};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER_KEY: &str = "f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const MAX_BYTES: usize = ConnectionOptions::MAX_KEYED_SECURITY_BYTES;

const FIRST_HOST: u32 = 30;

fn host(number: u32) -> Ipv4Addr {
    tcp_host(FIRST_HOST + number)
}

/// Serialises the tests of this file, which share addresses and counters.
fn serialise() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A key file, removed when dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    /// A key for each of these hosts.
    fn new(keys: &[(u32, &str)]) -> Self {
        let lines = keys
            .iter()
            .map(|(number, key)| format!("\"{}\" = \"{key}\"\n", host(*number)));
        Self::of(&lines.collect::<String>())
    }

    /// One key for all hosts.
    fn for_all(key: &str) -> Self {
        Self::of(&format!("\"*\" = \"{key}\"\n"))
    }

    fn of(text: &str) -> Self {
        let name = String::from_utf8(unique_discriminator()).unwrap();
        let path = std::env::temp_dir().join(format!("viaduct-keys-{name}"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _removed = fs::remove_file(&self.0);
    }
}

fn configure(config: &mut NicConfig, number: u32, keys: Option<&KeyFile>) {
    use_tcp(config, FIRST_HOST + number);
    tcp_keys(config).key_file = keys.map(|keys| keys.0.clone());
}

fn nic(number: u32, keys: Option<&KeyFile>) -> Nic {
    open_as(|config| configure(config, number, keys))
}

/// Opens a second NIC of this host, which shares the TCP port.
fn same_port(number: u32, keys: Option<&KeyFile>) -> Nic {
    open_as(|config| {
        configure(config, number, keys);
        config.spin_us = Some(51);
    })
}

fn end(number: u32, keys: Option<&KeyFile>) -> Endpoint {
    Endpoint::on(nic(number, keys), |vi| vi)
}

fn counter(end: &Endpoint, name: &str) -> u64 {
    common::counter(end.nic.handle(), name)
}

/// Accepts the first request; returns the client's address and its security information.
fn serve(server: &Endpoint, address: &NetAddress) -> (NetAddress, Vec<u8>) {
    let mut request = server.nic.connect_wait(address, WAIT).unwrap();
    let client = (*request.remote(), request.security().unwrap());
    request.accept(&server.vi).unwrap();
    client
}

/// Sets the security information of a VI.
fn set_security(end: &Endpoint, bytes: &[u8]) -> Result<(), VipError> {
    let options = ConnectionOptions {
        security: bytes.to_vec(),
        ..ConnectionOptions::default()
    };
    end.vi.set_connection_options(&options)
}

/// The security information of the peer of a connection.
fn security_of_peer(end: &Endpoint) -> Vec<u8> {
    end.vi.negotiated_options().unwrap().security
}

/// Sends a message in each direction.
fn exchange(a: &Endpoint, b: &Endpoint) {
    deliver(a, b, &pattern(1, 100));
    deliver(b, a, &pattern(1, 100));
}

#[test]
fn shared_key_connects_at_every_level_and_exchanges_security_information() {
    let _serial = serialise();
    let (clients, servers) = (KeyFile::new(&[(2, KEY)]), KeyFile::for_all(KEY));
    for level in LEVELS {
        let client = Endpoint::on(nic(1, Some(&clients)), |vi| vi.reliability(level));
        let server = Endpoint::on(nic(2, Some(&servers)), |vi| vi.reliability(level));
        for (client_bytes, server_bytes) in [(0, 0), (1, MAX_BYTES), (MAX_BYTES, 1), (64, 64)] {
            let of_client = pattern(1, client_bytes);
            let of_server = pattern(2, server_bytes);
            set_security(&client, &of_client).unwrap();
            set_security(&server, &of_server).unwrap();
            let address = server.address(&unique_discriminator());
            thread::scope(|scope| {
                let served = scope.spawn(|| serve(&server, &address));
                client.request(&address).unwrap();
                assert_eq!(served.join().unwrap().1, of_client);
            });
            assert_eq!(security_of_peer(&client), of_server);
            assert_eq!(security_of_peer(&server), of_client);
            exchange(&client, &server);
            for end in [&client, &server] {
                end.vi.disconnect().unwrap();
            }
        }
        assert!(counter(&server, "challenges") >= 4);
        assert_eq!(counter(&server, "drop_wrong_proof"), 0);
    }
}

#[test]
fn keys_reduce_the_maximum_of_security_information() {
    let _serial = serialise();
    let keys = KeyFile::for_all(KEY);
    let keyed = end(1, Some(&keys));
    let long = [1; MAX_BYTES + 1];
    let refused = set_security(&keyed, &long);
    assert_eq!(refused, Err(VipError::InvalidParameter));
    let unchanged = keyed.vi.connection_options();
    assert_eq!(unchanged, Ok(ConnectionOptions::default()));
    set_security(&keyed, &long[1..]).unwrap();
    set_security(&end(2, None), &long).unwrap();
}

/// The client is rejected for each mismatch of the keys; the server is not notified, and keeps its receive for the next
/// client.
#[test]
fn client_without_a_valid_proof_is_rejected() {
    let _serial = serialise();
    let right = KeyFile::new(&[(2, KEY)]);
    let servers = [
        KeyFile::new(&[(1, KEY), (3, KEY)]),
        KeyFile::new(&[(3, KEY)]),
    ];
    let wrong = KeyFile::new(&[(2, OTHER_KEY)]);
    let unknown = KeyFile::new(&[(3, KEY)]);
    let cases = [
        // Keys of the client and of the server; counters of the server and of the client.
        (Some(&wrong), 0, "drop_wrong_proof", "not_accepted"),
        (None, 0, "drop_unanswered_challenge", "key_wanted"),
        (Some(&right), 1, "drop_no_key", "not_accepted"),
        (None, 1, "drop_no_key", "not_accepted"),
        (Some(&unknown), 0, "connects", "drop_no_key"),
    ];
    for (client_keys, server_keys, server_counter, client_counter) in cases {
        let what = format!("{server_counter}, {client_counter}");
        let server = end(2, Some(&servers[server_keys]));
        server.post_receives(1, 8);
        let address = server.address(&unique_discriminator());
        let client = end(1, client_keys);
        let honest = end(3, Some(&right));
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&server, &address));
            for _ in 0..3 {
                assert_eq!(client.request(&address), Err(VipError::Reject), "{what}");
                assert_eq!(client.vi.state().unwrap(), ViState::Idle);
            }
            assert_eq!(server.vi.state().unwrap(), ViState::Idle, "{what}");
            assert!(!served.is_finished(), "{what}");
            honest.request(&address).unwrap();
            let (remote, _) = served.join().unwrap();
            assert_eq!(remote.host, honest.address(b"").host, "{what}");
        });
        honest.send_bytes(b"honest");
        server.expect_message(b"honest");
        assert_eq!(counter(&server, "connects"), 1, "{what}");
        assert_eq!(counter(&client, "connects"), 0, "{what}");
        assert_eq!(counter(&client, client_counter), 3, "{what}");
        if server_counter != "connects" {
            assert_eq!(counter(&server, server_counter), 3, "{what}");
        }
        assert!(server.errors.none() && client.errors.none(), "{what}");
    }
}

/// The server must prove the key, too: the client leaves a server without keys after its accept.
#[test]
fn client_refuses_a_server_without_proof() {
    let _serial = serialise();
    let keys = KeyFile::for_all(KEY);
    let (client, server) = (end(1, Some(&keys)), end(2, None));
    set_security(&client, b"confidential").unwrap();
    let address = server.address(&unique_discriminator());
    thread::scope(|scope| {
        let served = scope.spawn(|| serve(&server, &address));
        assert_eq!(client.request(&address), Err(VipError::Reject));
        // No security information for an unproven server.
        assert_eq!(served.join().unwrap().1, b"");
    });
    assert_eq!(client.vi.state().unwrap(), ViState::Idle);
    assert_eq!(counter(&client, "drop_unproven"), 1);
    assert_eq!(counter(&client, "connects"), 0);
}

fn request_peer(end: &Endpoint, other: u32, name: &[u8]) -> Result<(), VipError> {
    let own = end.address(name);
    let mut remote = own;
    remote.host = vipl::HostAddress(host(other).to_ipv6_mapped().octets());
    end.vi.connect_peer(&own, &remote, WAIT)
}

#[test]
fn simultaneous_peer_requests_are_authenticated_each_time() {
    let _serial = serialise();
    let keys = KeyFile::new(&[(1, KEY), (2, KEY)]);
    let ends = [end(1, Some(&keys)), end(2, Some(&keys))];
    let name = unique_discriminator();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for (end, other) in ends.iter().zip([2, 1]) {
            let (name, start) = (&name, &start);
            scope.spawn(move || {
                for round in 0..100_u32 {
                    set_security(end, &round.to_ne_bytes()).unwrap();
                    end.post_receives(1, 4);
                    start.wait();
                    request_peer(end, other, name).unwrap();
                    end.vi.connect_peer_wait().unwrap();
                    assert_eq!(security_of_peer(end), round.to_ne_bytes());
                    end.send_bytes(&round.to_ne_bytes());
                    end.expect_message(&round.to_ne_bytes());
                    start.wait();
                    end.vi.disconnect().unwrap();
                }
            });
        }
    });
    let challenges: u64 = ends.iter().map(|end| counter(end, "challenges")).sum();
    assert!(challenges >= 100, "{challenges}");
    for end in &ends {
        assert_eq!(counter(end, "connects"), 100);
        assert_eq!(counter(end, "drop_wrong_proof"), 0);
    }
}

#[test]
fn peers_with_different_keys_are_rejected() {
    let _serial = serialise();
    let files = [KeyFile::for_all(KEY), KeyFile::for_all(OTHER_KEY)];
    let ends = [end(1, Some(&files[0])), end(2, Some(&files[1]))];
    let name = unique_discriminator();
    for (end, other) in ends.iter().zip([2, 1]) {
        request_peer(end, other, &name).unwrap();
    }
    for end in &ends {
        assert_eq!(end.vi.connect_peer_wait().err(), Some(VipError::Reject));
        assert_eq!(counter(end, "connects"), 0);
    }
    let wrong = ends.map(|end| counter(&end, "drop_wrong_proof"));
    let wrong: u64 = wrong.iter().sum();
    assert!(wrong >= 1, "{wrong}");
}

/// Two programs share a port: the listener client verifies the proof itself, also if the listener owner has read it.
#[test]
fn handed_off_request_is_verified_by_the_listener_client() {
    let _serial = serialise();
    let right = KeyFile::for_all(KEY);
    let good = KeyFile::new(&[(1, KEY), (4, KEY)]);
    let bad = KeyFile::new(&[(1, OTHER_KEY), (4, KEY)]);
    let [client, honest] = [1, 4].map(|number| end(number, Some(&right)));
    // Keys of the listener owner, which reads the request, and of the listener client; whether it is accepted.
    let cases = [
        (Some(&good), Some(&good), true),
        (None, Some(&good), true),
        (Some(&good), Some(&bad), false),
        (Some(&bad), Some(&good), false),
        (None, Some(&bad), false),
    ];
    for (number, (owner_keys, client_keys, is_accepted)) in (10..).zip(cases) {
        let listener_owner = end(number, owner_keys);
        let listener_client = Endpoint::on(same_port(number, client_keys), |vi| vi);
        let discriminator = unique_discriminator();
        let address = listener_client.address(&discriminator);
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&listener_client, &address));
            let expected = is_accepted.then_some(()).ok_or(VipError::Reject);
            assert_eq!(client.request(&address), expected, "{number}");
            let mut accepted = &client;
            if !is_accepted {
                honest.request(&address).unwrap();
                accepted = &honest;
            }
            let (remote, _) = served.join().unwrap();
            assert_eq!(remote.host, accepted.address(b"").host);
            exchange(accepted, &listener_client);
        });
        let challenger = match owner_keys {
            Some(_) => &listener_owner,
            None => &listener_client,
        };
        assert!(counter(challenger, "challenges") > 0, "{number}");
        assert!(counter(&listener_client, "taken_over") > 0, "{number}");
        for end in [&client, &honest] {
            end.vi.disconnect().unwrap();
        }
    }
}

/// A listener client without keys cannot respond for the listener owner, which has keys.
#[test]
fn request_is_not_handed_off_to_a_program_without_keys() {
    let _serial = serialise();
    let keys = KeyFile::for_all(KEY);
    let (client, listener_owner) = (end(1, Some(&keys)), end(2, Some(&keys)));
    let listener_client = Endpoint::on(same_port(2, None), |vi| vi);
    let name = unique_discriminator();
    let address = listener_client.address(&name);
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            start.wait();
            serve(&listener_owner, &address)
        });
        let timeout = vipl::Timeout::After(std::time::Duration::from_secs(5));
        let (nic, address) = (&listener_client.nic, &address);
        let waits = scope.spawn(move || nic.connect_wait(address, timeout).err());
        let own = client.address(b"client");
        // No other listener exists until the listener client waits.
        while counter(&listener_client, "taken_over") == 0 {
            let refused = client.vi.connect(&own, address, WAIT);
            assert_eq!(refused.err(), Some(VipError::NoMatch));
        }
        start.wait();
        client.request(address).unwrap();
        served.join().unwrap();
        assert_eq!(waits.join().unwrap(), Some(VipError::Timeout));
    });
    exchange(&client, &listener_owner);
}

#[test]
fn keys_are_checked_through_a_datapath_process() {
    serve_if_child();
    let _serial = serialise();
    let keys = KeyFile::for_all(KEY);
    let text = format!("host = \"{}\"\nvi_tcp.key_file = {:?}\n", host(3), keys.0);
    let test = "keys_are_checked_through_a_datapath_process";
    with_process_of(test, &text, "", |process| {
        let server = Endpoint::on(process.attach(), |vi| vi);
        let refused = set_security(&server, &[1; MAX_BYTES + 1]);
        assert_eq!(refused, Err(VipError::InvalidParameter));
        set_security(&server, &[2; MAX_BYTES]).unwrap();
        let wrong = KeyFile::for_all(OTHER_KEY);
        let (trusted, untrusted) = (end(1, Some(&keys)), end(2, Some(&wrong)));
        set_security(&trusted, b"trusted").unwrap();
        let address = server.address(&unique_discriminator());
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&server, &address));
            assert_eq!(untrusted.request(&address), Err(VipError::Reject));
            trusted.request(&address).unwrap();
            assert_eq!(served.join().unwrap().1, b"trusted");
        });
        assert_eq!(security_of_peer(&trusted), [2; MAX_BYTES]);
        exchange(&trusted, &server);
    });
}

#[test]
fn open_nic_with_an_invalid_key_file_fails() {
    let _serial = serialise();
    let open =
        |keys: &KeyFile| Nic::open_with(&common::config(|c| configure(c, 1, Some(keys)))).err();
    let keys = KeyFile::for_all("too short");
    assert_eq!(open(&keys), Some(VipError::ErrorResource));
    let keys = KeyFile::for_all(KEY);
    fs::set_permissions(&keys.0, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(open(&keys), Some(VipError::ErrorResource));
    fs::set_permissions(&keys.0, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(open(&keys), None);
}
