//! VI/TCP between ends that share a key: who does not prove to have it is heard by nobody.

mod common;

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

use common::datapath::{DatapathProcess, has_served};
use common::{End, WAIT, open_as, own_host, pattern, persist, unique_discriminator};
use pmd::config::{NicConfig, TransportKind};
use vipl::{NetAddress, Nic, ReliabilityLevel, ViChoices, ViState, VipError, provider};

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const OTHER: &str = "f00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const MOST: usize = ViChoices::MAX_KEYED_SECURITY_BYTES;

/// An address that only this test run has.
fn host(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(own_host().to_bits() ^ (number << 16))
}

/// These tests have their addresses, and what is counted there, in common: one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of keys, until the test is over.
struct KeyFile(PathBuf);

impl KeyFile {
    /// The keys for these hosts.
    fn new(keys: &[(u32, &str)]) -> Self {
        let lines = keys
            .iter()
            .map(|(number, key)| format!("\"{}\" = \"{key}\"\n", host(*number)));
        Self::of(&lines.collect::<String>())
    }

    /// One key for everybody.
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
        let _gone = fs::remove_file(&self.0);
    }
}

fn configure(config: &mut NicConfig, number: u32, keys: Option<&KeyFile>) {
    config.transport = TransportKind::ViTcp;
    config.host = Some(host(number).into());
    config.key_file = keys.map(|keys| keys.0.clone());
}

fn nic(number: u32, keys: Option<&KeyFile>) -> Nic {
    open_as(|config| configure(config, number, keys))
}

/// Another program at the same port.
fn beside(number: u32, keys: Option<&KeyFile>) -> Nic {
    open_as(|config| {
        configure(config, number, keys);
        config.spin_us += 1;
    })
}

fn end(number: u32, keys: Option<&KeyFile>) -> End {
    End::on(nic(number, keys), |vi| vi)
}

fn counter(end: &End, name: &str) -> u64 {
    let counters = provider::counters(end.nic.handle()).unwrap();
    let found = counters.iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("{name}: {counters:?}")).1
}

fn ask(client: &End, address: &NetAddress) -> Result<(), VipError> {
    let own = client.nic.local_address(b"client").unwrap();
    persist(|| client.vi.connect(&own, address, WAIT)).map(|_| ())
}

/// The server takes the first request that it hears of; who asked, and what it said.
fn serve(server: &End, address: &NetAddress) -> (NetAddress, Vec<u8>) {
    let mut request = server.nic.connect_wait(address, WAIT).unwrap();
    let heard = (*request.remote(), request.security().unwrap());
    request.accept(&server.vi).unwrap();
    heard
}

fn says(bytes: &[u8]) -> ViChoices {
    ViChoices {
        security: bytes.to_vec(),
        ..ViChoices::default()
    }
}

/// A message each way.
fn talk(ends: [&End; 2]) {
    for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        to.vi.post_recv(to.room(100)).unwrap();
        from.send(from.message(&pattern(1, 100))).ok().unwrap();
        assert!(to.recv().ok().unwrap().first_bytes() == pattern(1, 100));
    }
}

#[test]
fn the_same_key_connects_at_every_level_and_consumers_hear_each_other() {
    let _alone = alone();
    let (clients, servers) = (KeyFile::new(&[(2, KEY)]), KeyFile::for_all(KEY));
    let levels = [
        ReliabilityLevel::Unreliable,
        ReliabilityLevel::ReliableDelivery,
        ReliabilityLevel::ReliableReception,
    ];
    for level in levels {
        let client = End::on(nic(1, Some(&clients)), |vi| vi.reliability(level));
        let server = End::on(nic(2, Some(&servers)), |vi| vi.reliability(level));
        for (asks, answers) in [(0, 0), (1, MOST), (MOST, 1), (64, 64)] {
            let (ours, theirs) = (pattern(1, asks), pattern(2, answers));
            client.vi.set_choices(&says(&ours)).unwrap();
            server.vi.set_choices(&says(&theirs)).unwrap();
            let address = server.nic.local_address(&unique_discriminator()).unwrap();
            thread::scope(|scope| {
                let served = scope.spawn(|| serve(&server, &address));
                ask(&client, &address).unwrap();
                assert_eq!(served.join().unwrap().1, ours);
            });
            assert_eq!(client.vi.agreement().unwrap().security, theirs);
            assert_eq!(server.vi.agreement().unwrap().security, ours);
            talk([&client, &server]);
            for end in [&client, &server] {
                end.vi.disconnect().unwrap();
            }
        }
        assert!(counter(&server, "challenges") >= 4);
        assert_eq!(counter(&server, "drop_wrong_proof"), 0);
    }
}

#[test]
fn there_is_less_room_for_consumers_where_there_are_keys() {
    let _alone = alone();
    let keys = KeyFile::for_all(KEY);
    let keyed = end(1, Some(&keys));
    let long = says(&[1; MOST + 1]);
    assert_eq!(keyed.vi.set_choices(&long), Err(VipError::InvalidParameter));
    assert_eq!(keyed.vi.choices().unwrap(), ViChoices::default());
    keyed.vi.set_choices(&says(&[1; MOST])).unwrap();
    end(2, None).vi.set_choices(&long).unwrap();
}

/// The client is refused, whatever is wrong with the keys of the two; the server hears nothing of it, and has its
/// receive for the client that comes next.
#[test]
fn who_does_not_prove_to_have_the_key_is_not_heard() {
    let _alone = alone();
    let right = KeyFile::new(&[(2, KEY)]);
    let servers = [
        KeyFile::new(&[(1, KEY), (3, KEY)]),
        KeyFile::new(&[(3, KEY)]),
    ];
    let wrong = KeyFile::new(&[(2, OTHER)]);
    let unknown = KeyFile::new(&[(3, KEY)]);
    let cases = [
        // The client's keys, the server's, what the server counts, what the client does.
        (Some(&wrong), 0, "drop_wrong_proof", "not_accepted"),
        (None, 0, "drop_unanswered_challenge", "key_wanted"),
        (Some(&right), 1, "drop_no_key", "not_accepted"),
        (None, 1, "drop_no_key", "not_accepted"),
        (Some(&unknown), 0, "connects", "drop_no_key"),
    ];
    for (client_keys, server_keys, counted, told) in cases {
        let what = format!("{counted}, {told}");
        let server = end(2, Some(&servers[server_keys]));
        server.vi.post_recv(server.room(8)).unwrap();
        let address = server.nic.local_address(&unique_discriminator()).unwrap();
        let client = end(1, client_keys);
        let honest = end(3, Some(&right));
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&server, &address));
            for _ in 0..3 {
                assert_eq!(ask(&client, &address), Err(VipError::Reject), "{what}");
                assert_eq!(client.vi.state().unwrap(), ViState::Idle);
            }
            assert_eq!(server.vi.state().unwrap(), ViState::Idle, "{what}");
            assert!(!served.is_finished(), "{what}");
            ask(&honest, &address).unwrap();
            let (heard, _) = served.join().unwrap();
            assert_eq!(
                heard.host,
                honest.nic.local_address(b"").unwrap().host,
                "{what}"
            );
        });
        honest.send(honest.message(b"honest")).ok().unwrap();
        assert_eq!(server.recv().ok().unwrap().first_bytes(), b"honest");
        assert_eq!(counter(&server, "connects"), 1, "{what}");
        assert_eq!(counter(&client, "connects"), 0, "{what}");
        assert_eq!(counter(&client, told), 3, "{what}");
        if counted != "connects" {
            assert_eq!(counter(&server, counted), 3, "{what}");
        }
        assert!(server.errors.none() && client.errors.none(), "{what}");
    }
}

/// Whoever is asked must prove itself, too: a server without keys accepts, and is left.
#[test]
fn a_server_that_proves_nothing_is_refused() {
    let _alone = alone();
    let keys = KeyFile::for_all(KEY);
    let (client, server) = (end(1, Some(&keys)), end(2, None));
    client.vi.set_choices(&says(b"for friends only")).unwrap();
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        let served = scope.spawn(|| serve(&server, &address));
        assert_eq!(ask(&client, &address), Err(VipError::Reject));
        assert_eq!(
            served.join().unwrap().1,
            b"",
            "nothing was told to a stranger"
        );
    });
    assert_eq!(client.vi.state().unwrap(), ViState::Idle);
    assert_eq!(counter(&client, "drop_unproven"), 1);
    assert_eq!(counter(&client, "connects"), 0);
}

fn ask_peer(end: &End, other: u32, name: &[u8]) -> Result<(), VipError> {
    let own = end.nic.local_address(name).unwrap();
    let mut meeting = own;
    meeting.host = vipl::HostAddress(host(other).to_ipv6_mapped().octets());
    end.vi.connect_peer(&own, &meeting, WAIT)
}

#[test]
fn peers_that_cross_prove_themselves_each_time() {
    let _alone = alone();
    let keys = KeyFile::new(&[(1, KEY), (2, KEY)]);
    let ends = [end(1, Some(&keys)), end(2, Some(&keys))];
    let name = unique_discriminator();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        for (end, other) in ends.iter().zip([2, 1]) {
            let (name, start) = (&name, &start);
            scope.spawn(move || {
                for round in 0..100_u32 {
                    end.vi.set_choices(&says(&round.to_ne_bytes())).unwrap();
                    end.vi.post_recv(end.room(4)).unwrap();
                    start.wait();
                    ask_peer(end, other, name).unwrap();
                    end.vi.connect_peer_wait().unwrap();
                    assert_eq!(end.vi.agreement().unwrap().security, round.to_ne_bytes());
                    end.send(end.message(&round.to_ne_bytes())).ok().unwrap();
                    assert_eq!(end.recv().ok().unwrap().first_bytes(), round.to_ne_bytes());
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
fn peers_with_different_keys_stay_strangers() {
    let _alone = alone();
    let files = [KeyFile::for_all(KEY), KeyFile::for_all(OTHER)];
    let ends = [end(1, Some(&files[0])), end(2, Some(&files[1]))];
    let name = unique_discriminator();
    for (end, other) in ends.iter().zip([2, 1]) {
        ask_peer(end, other, &name).unwrap();
    }
    for end in &ends {
        assert_eq!(end.vi.connect_peer_wait().err(), Some(VipError::Reject));
        assert_eq!(counter(end, "connects"), 0);
    }
    let wrong: u64 = ends
        .iter()
        .map(|end| counter(end, "drop_wrong_proof"))
        .sum();
    assert!(wrong >= 1, "{wrong}");
}

/// Two programs at one port: the one that waits looks at the proof itself, whoever has read it first.
#[test]
fn a_request_that_is_handed_on_is_proven_to_the_one_who_gets_it() {
    let _alone = alone();
    let right = KeyFile::for_all(KEY);
    let good = KeyFile::new(&[(1, KEY), (4, KEY)]);
    let bad = KeyFile::new(&[(1, OTHER), (4, KEY)]);
    let [client, honest] = [1, 4].map(|number| end(number, Some(&right)));
    // The keys of who reads the request, and of who waits for it; is the client heard?
    let cases = [
        (Some(&good), Some(&good), true),
        (None, Some(&good), true),
        (Some(&good), Some(&bad), false),
        (Some(&bad), Some(&good), false),
        (None, Some(&bad), false),
    ];
    for (number, (first, second, heard)) in (10..).zip(cases) {
        let keeper = end(number, first);
        let member = End::on(beside(number, second), |vi| vi);
        let address = member.nic.local_address(&unique_discriminator()).unwrap();
        thread::scope(|scope| {
            let served = scope.spawn(|| serve(&member, &address));
            let expected = if heard { Ok(()) } else { Err(VipError::Reject) };
            assert_eq!(ask(&client, &address), expected, "{number}");
            let mut first_heard = &client;
            if !heard {
                ask(&honest, &address).unwrap();
                first_heard = &honest;
            }
            let (remote, _) = served.join().unwrap();
            assert_eq!(
                remote.host,
                first_heard.nic.local_address(b"").unwrap().host
            );
            talk([first_heard, &member]);
        });
        let challenged = if first.is_some() { &keeper } else { &member };
        assert!(counter(challenged, "challenges") > 0, "{number}");
        assert!(counter(&member, "taken_over") > 0, "{number}");
        for end in [&client, &honest] {
            end.vi.disconnect().unwrap();
        }
    }
}

/// A member without keys cannot answer for the keeper, which has some.
#[test]
fn a_program_without_keys_is_not_handed_what_it_cannot_answer() {
    let _alone = alone();
    let keys = KeyFile::for_all(KEY);
    let (client, keeper) = (end(1, Some(&keys)), end(2, Some(&keys)));
    let member = End::on(beside(2, None), |vi| vi);
    let name = unique_discriminator();
    let address = member.nic.local_address(&name).unwrap();
    let start = Barrier::new(2);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            start.wait();
            serve(&keeper, &address)
        });
        let patience = vipl::Timeout::After(std::time::Duration::from_secs(5));
        let (nic, address) = (&member.nic, &address);
        let waits = scope.spawn(move || nic.connect_wait(address, patience).err());
        let own = client.nic.local_address(b"client").unwrap();
        // Until the member waits, nobody does.
        while counter(&member, "taken_over") == 0 {
            let asked = client.vi.connect(&own, address, WAIT);
            assert_eq!(asked.err(), Some(VipError::NoMatch));
        }
        start.wait();
        ask(&client, address).unwrap();
        served.join().unwrap();
        assert_eq!(waits.join().unwrap(), Some(VipError::Timeout));
    });
    talk([&client, &keeper]);
}

#[test]
fn through_a_datapath_process_it_is_the_same() {
    let _alone = alone();
    if has_served() {
        return;
    }
    let keys = KeyFile::for_all(KEY);
    let there = host(3);
    let text = format!(
        "transport = \"vi-tcp\"\nhost = \"{there}\"\nkey_file = {:?}\n",
        keys.0
    );
    let name = "through_a_datapath_process_it_is_the_same";
    let process = DatapathProcess::start_with(name, &text, "");
    let server = End::on(Nic::attach(&process.socket(), "VINIC0").unwrap(), |vi| vi);
    let long = says(&[1; MOST + 1]);
    assert_eq!(
        server.vi.set_choices(&long),
        Err(VipError::InvalidParameter)
    );
    server.vi.set_choices(&says(&[2; MOST])).unwrap();
    let wrong = KeyFile::for_all(OTHER);
    let (friend, stranger) = (end(1, Some(&keys)), end(2, Some(&wrong)));
    friend.vi.set_choices(&says(b"friend")).unwrap();
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        let served = scope.spawn(|| serve(&server, &address));
        assert_eq!(ask(&stranger, &address), Err(VipError::Reject));
        ask(&friend, &address).unwrap();
        assert_eq!(served.join().unwrap().1, b"friend");
    });
    assert_eq!(friend.vi.agreement().unwrap().security, [2; MOST]);
    talk([&friend, &server]);
    process.stop();
}

#[test]
fn a_nic_whose_keys_cannot_be_read_does_not_open() {
    let _alone = alone();
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
