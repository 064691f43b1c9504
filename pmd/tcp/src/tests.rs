//! Peers that flood or deceive a NIC: a poll is bounded, others make progress, and only the peer that was meant connects.

mod tls_client;

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use vi_types::{ConnectRequest, Discriminator, HostAddress, NetAddress, ViIndex, ViState};

use self::tls_client::{Certificates, TlsClient};
use super::budget::{MAX_POLL_UNITS, MAX_TURN_UNITS};
use super::connection::Connection;
use super::stream_error::is_would_block;

use super::testkit::{CONNECT_ACCEPT, NAMED, NO_MATCH, Program, request, with_tls};
use super::{MAX_ACCEPTS, ViTcp};
use vitcp_lite::Source;

const CONNECT_REJECT: u8 = 7;
/// More consecutive crossings than tests wait for.
const MAX_CROSSINGS: u64 = 20;
/// Local addresses of hosts that tests act as.
const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 111, 0, 1), Ipv4Addr::new(127, 111, 0, 2)];

/// Has a VI accept the next request for [`NAMED`].
fn accept(program: &Program, vi: u32, request: impl FnOnce()) {
    let called = Discriminator::new(NAMED).unwrap();
    let listener = program.with(|tcp, _| tcp.connector.listen(0, called));
    request();
    let indication =
        program.poll_until(|| program.with(|tcp, _| tcp.connector.take_indication(listener)));
    let conn = indication.conn;
    let accepted = program.with(|tcp, path| tcp.connector.accept(conn, ViIndex(vi), path));
    assert_eq!(accepted, Ok(()));
}

/// Connects a VI to a host that the test acts as.
fn connect(program: &Program, vi: u32) -> TcpStream {
    let mut peer = program.dial();
    accept(program, vi, || peer.write_all(&request(false)).unwrap());
    assert_eq!(program.response_type(&mut peer), CONNECT_ACCEPT);
    peer
}

fn connection(tcp: &ViTcp, vi: u32) -> Option<&Connection> {
    let number = tcp.connector.endpoints.connection_of(ViIndex(vi))?;
    tcp.connector.connections.get(number)
}

/// Returns the number of segments that the connection of a VI has received.
fn received(program: &Program, vi: u32) -> u32 {
    program.with(|tcp, _| connection(tcp, vi).unwrap().transfer.rx.last_message())
}

/// NOPs with these message numbers.
fn nops(numbers: core::ops::RangeInclusive<u32>) -> Vec<u8> {
    numbers
        .flat_map(|number| {
            let mut segment = [0; 24];
            segment[..4].copy_from_slice(&[1, 4 << 3 | 2, 0, 24]);
            segment[12..16].copy_from_slice(&number.to_be_bytes());
            segment
        })
        .collect()
}

/// Writes until TCP has no space; returns the bytes written.
fn fill(peer: &mut TcpStream, bytes: &[u8]) -> usize {
    let mut written = 0;
    loop {
        match peer.write(&bytes[written..]) {
            Ok(0) => return written,
            Ok(more) => written += more,
            Err(error) if is_would_block(&error) => return written,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn flood_of_small_segments_is_bounded_per_poll_and_delays_no_other_connection() {
    let program = Program::new(20, |_| ());
    (0..4).for_each(|_| assert!(program.listen()));
    let mut floods = [0, 1, 2].map(|vi| connect(&program, vi));
    let mut honest = connect(&program, 3);
    let bytes = nops(1..=200_000);
    let mut expected = 0;
    for peer in &mut floods {
        let socket = socket2::SockRef::from(&*peer);
        socket.set_send_buffer_size(4 << 20).unwrap();
        expected += fill(peer, &bytes) / 24;
    }
    honest.write_all(&nops(1..=1)).unwrap();
    let received_by =
        |vis: core::ops::Range<u32>| vis.map(|vi| received(&program, vi)).sum::<u32>();
    let (mut before, mut at_honest) = (0, None);
    while received_by(0..3) < expected as u32 {
        program.poll();
        let now = received_by(0..3);
        let most = MAX_POLL_UNITS + MAX_TURN_UNITS;
        assert!(now - before <= most, "{} segments in a poll", now - before);
        before = now;
        if received(&program, 3) == 1 && at_honest.is_none() {
            let each = [0, 1, 2].map(|vi| received(&program, vi));
            at_honest = Some(each);
        }
    }
    // Every poll serves two connections or more, in turn.
    let each = at_honest.expect("the honest peer was starved");
    let most = 20 * MAX_TURN_UNITS;
    assert!(expected as u32 > 3 * most, "too few to tell: {expected}");
    assert!(each.iter().all(|segments| *segments < most), "{each:?}");
}

#[test]
fn tls_records_count_towards_the_limits_of_a_poll() {
    let certificates = Certificates::new("records");
    let host = Program::host(21);
    let program = Program::new(21, |config| {
        with_tls(config, certificates.issue("server", host));
    });
    assert!(program.listen());
    let client = certificates.issue("client", HOSTS[0]);
    let mut peer = TlsClient::new(&program, HOSTS[0], &client);
    accept(&program, 0, || peer.write(&request(false)));
    assert_eq!(peer.response_type(), CONNECT_ACCEPT);
    peer.write_records(nops(1..=30_000).chunks(24));
    let mut before = 0;
    program.poll_until(|| {
        peer.progress();
        let now = received(&program, 0);
        // A record and a segment of five units, and the records of a read that began before the limit.
        let most = MAX_TURN_UNITS / 5 + 512;
        assert!(now - before <= most, "{} records in a poll", now - before);
        before = now;
        (now == 30_000).then_some(())
    });
}

#[test]
fn accepts_of_a_poll_are_bounded() {
    let program = Program::new(22, |_| ());
    assert!(program.listen());
    let _peers: Vec<_> = (0..5 * MAX_ACCEPTS).map(|_| program.dial()).collect();
    let mut before = 0;
    program.poll_until(|| {
        let now = program.counter("tcp_accepted");
        assert!(now - before <= MAX_ACCEPTS.into());
        before = now;
        (now == u64::from(5 * MAX_ACCEPTS)).then_some(())
    });
}

#[test]
fn poll_serves_one_handshake_and_a_source_has_its_share() {
    const SHARE: u32 = 4;
    const FLOOD: u32 = 12;
    let certificates = Certificates::new("handshakes");
    let host = Program::host(23);
    let program = Program::new(23, |config| {
        let mut tls = certificates.issue("server", host);
        tls.max_handshakes_per_source = SHARE;
        with_tls(config, tls);
    });
    let tls = HOSTS.map(|host| certificates.issue(&host.to_string(), host));
    let started = Instant::now();
    let mut flood: Vec<_> = (0..FLOOD)
        .map(|_| TlsClient::begin(&program, HOSTS[0], &tls[0]))
        .collect();
    let mut before = 0;
    program.poll_until(|| {
        let now = program.counter("tls_handshakes");
        assert!(now - before <= 1, "several in one poll");
        before = now;
        (now == SHARE.into()).then_some(())
    });
    let mut honest = TlsClient::begin(&program, HOSTS[1], &tls[1]);
    program.poll_until(|| {
        honest.progress();
        (!honest.is_handshaking()).then_some(())
    });
    let most = 2 + SHARE + (started.elapsed().as_secs_f64() * f64::from(SHARE)) as u32;
    let count = program.counter("tls_handshakes");
    assert!(count <= most.into(), "{count} handshakes of {most}");
    assert!(program.counter("tls_handshakes_delayed") > 0);
    // The others wait, and are not dropped.
    program.poll_until(|| {
        flood.iter_mut().for_each(TlsClient::progress);
        (program.counter("tls_handshakes") == (FLOOD + 1).into()).then_some(())
    });
    let least = f64::from(FLOOD - SHARE - 1) / f64::from(SHARE);
    assert!(started.elapsed().as_secs_f64() >= least);
}

/// Each certificate of a chain can be tried in many places, at a signature each.
#[test]
fn long_chain_of_a_client_is_refused_before_it_is_tried() {
    let certificates = Certificates::new("chains");
    let host = Program::host(24);
    let program = Program::new(24, |config| {
        with_tls(config, certificates.issue("server", host));
    });
    assert!(program.listen());
    for (more, refused) in [(3, 0), (4, 1)] {
        let client = certificates.issue_with(&format!("client{more}"), HOSTS[0], more);
        let mut peer = TlsClient::new(&program, HOSTS[0], &client);
        peer.write(&request(false));
        match refused {
            0 => assert_eq!(peer.response_type(), NO_MATCH),
            _ => program
                .poll_until(|| (program.counter("drop_tls_handshake") == refused).then_some(())),
        }
        assert_eq!(program.counter("drop_tls_handshake"), refused);
    }
}

#[test]
fn peer_request_needs_a_certificate_for_the_address_of_its_sender() {
    let certificates = Certificates::new("peers");
    let host = Program::host(25);
    let program = Program::new(25, |config| {
        with_tls(config, certificates.issue("server", host));
    });
    assert!(program.listen());
    let address = |host: Ipv4Addr, name: &[u8]| NetAddress {
        host: HostAddress(host.to_ipv6_mapped().octets()),
        discriminator: Discriminator::new(name).unwrap(),
    };
    let (local, remote) = (address(host, b"c"), address(HOSTS[0], NAMED));
    let command = ConnectRequest {
        local: &local,
        remote: &remote,
        timeout_ns: None,
    };
    program
        .with(|tcp, path| tcp.connector.connect_peer(0, ViIndex(0), &command, path))
        .unwrap();
    let [valid, other] = HOSTS.map(|host| certificates.issue(&host.to_string(), host));
    let mut impostor = TlsClient::new(&program, HOSTS[0], &other);
    impostor.write(&request(true));
    assert_eq!(impostor.response_type(), CONNECT_REJECT);
    assert_eq!(program.counter("drop_wrong_certificate"), 1);
    let state = || program.with(|tcp, _| tcp.state(ViIndex(0)));
    assert_eq!(state(), Some(ViState::ConnectPending));
    // Of a client's certificate the address is not required.
    let mut client = TlsClient::new(&program, HOSTS[0], &other);
    client.write(&request(false));
    assert_eq!(client.response_type(), NO_MATCH);
    // While the VI's own request has a TCP connection, it remains, since its address is the higher one: then the peer's is
    // refused, and repeated.
    let mut crossings = 0;
    let _peer = loop {
        let mut peer = TlsClient::new(&program, HOSTS[0], &valid);
        peer.write(&request(true));
        let kind = peer.response_type();
        assert_eq!(
            program.counter("peer_crossed"),
            crossings + u64::from(kind == NO_MATCH)
        );
        if kind != NO_MATCH {
            assert_eq!(kind, CONNECT_ACCEPT);
            break peer;
        }
        crossings += 1;
        assert!(crossings < MAX_CROSSINGS, "no request is accepted");
    };
    assert_eq!(state(), Some(ViState::Connected));
}

/// The misses of a user of this NIC count for that user, those of other hosts for their address.
#[test]
fn rdma_misses_of_local_peers_count_for_their_user() {
    let program = Program::new(26, |_| ());
    (0..4).for_each(|_| assert!(program.listen()));
    let host = HostAddress(Program::host(26).to_ipv6_mapped().octets());
    let address = |name: &[u8]| NetAddress {
        host,
        discriminator: Discriminator::new(name).unwrap(),
    };
    let (local, remote) = (address(b"c"), address(NAMED));
    let command = ConnectRequest {
        local: &local,
        remote: &remote,
        timeout_ns: None,
    };
    let key = |vi| program.with(|tcp, _| connection(tcp, vi).unwrap().transfer.rx.miss_key);
    for (users, keys) in [
        ([7, 8], [Some(Source::User(8)), Some(Source::User(7))]),
        ([7, 7], [None, None]),
    ] {
        let set =
            |tcp: &mut ViTcp| (0..2).for_each(|vi| tcp.set_user(ViIndex(vi), users[vi as usize]));
        program.with(|tcp, _| set(tcp));
        accept(&program, 1, || {
            let begun =
                program.with(|tcp, path| tcp.connector.connect(0, ViIndex(0), &command, path));
            assert_eq!(begun, Ok(()));
        });
        program.poll_until(|| {
            let state = program.with(|tcp, _| tcp.state(ViIndex(0)));
            (state == Some(ViState::Connected)).then_some(())
        });
        assert_eq!([key(0), key(1)], keys);
        program
            .with(|tcp, path| (0..2).for_each(|vi| tcp.connector.disconnect(0, ViIndex(vi), path)));
    }
    let remote = connect(&program, 2);
    let expected = Source::address(remote.local_addr().unwrap());
    assert_eq!(key(2), Some(expected));
}
