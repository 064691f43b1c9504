//! Connections: dropped requests, the name service, and peer requests of several programs.

use std::thread;
use std::time::Duration;

use crate::common::{
    Endpoint, MAX_TRANSFER_BYTES, SecondProcess, WAIT, counter, is_child, open, open_as,
    unique_discriminator,
};
use pmd::config::{Limits, Network, NicConfig};
use vipl::{HostAddress, Nic, ReliabilityLevel, Timeout, ViState, VipError};

#[test]
fn rejected_or_dropped_request_is_a_rejection() {
    let (client, server) = (Endpoint::with(|vi| vi.rdma_write(true)), Endpoint::new());
    let address = server.address(&unique_discriminator());
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = server.nic.connect_wait(&address, WAIT).unwrap();
            assert_eq!(*request.remote(), client.address(b"client"));
            let found = request.attributes();
            assert_eq!(found.max_transfer_bytes, MAX_TRANSFER_BYTES as u64);
            let level = ReliabilityLevel::ReliableDelivery as u16;
            assert_eq!((found.reliability, found.rdma_write), (level, true));
            request.reject().unwrap();
            drop(server.nic.connect_wait(&address, WAIT).unwrap());
        });
        for _ in 0..2 {
            assert_eq!(client.request(&address), Err(VipError::Reject));
        }
    });
}

#[test]
fn names_resolve_while_the_name_service_runs() {
    let nic = open();
    let hosts = std::env::temp_dir().join(format!("viaduct-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "192.0.2.7 only-here\n").unwrap();
    nic.name_service(Some(&hosts)).unwrap();
    std::fs::remove_file(&hosts).unwrap();
    let own = nic.host_by_name("LOCALHOST", 0).unwrap();
    assert_eq!(own, nic.host_address());
    let address = nic.host_by_name("only-here", 0).unwrap();
    assert_eq!(address, HostAddress::from_ipv4([192, 0, 2, 7]));
    assert_eq!(nic.host_by_address(&address).unwrap(), "only-here");
    let remote = nic.remote_address("localhost", b"x").unwrap();
    assert_eq!(remote, nic.local_address(b"x").unwrap());
    nic.shut_down_name_service().unwrap();
    let refused = nic.host_by_name("only-here", 0);
    assert_eq!(refused.unwrap_err(), VipError::ErrorNameservice);
}

/// A discriminator that VipConnectWait would write beyond the 16 bytes of the program's buffer (VIPL 3.3.1).
#[test]
fn request_with_a_longer_discriminator_than_the_servers_limit_is_refused() {
    const LONG: &[u8] = b"seventeen bytes..";
    let open = |name: &str, max_discriminator_bytes| {
        let config = NicConfig {
            name: name.to_owned(),
            limits: Limits {
                max_discriminator_bytes,
                ..Limits::default()
            },
            network: Network::segment(format!("discriminators-{}", std::process::id())),
            ..NicConfig::default()
        };
        Nic::open_with(&config).expect("a NIC")
    };
    let (server, client) = (open("SHORT", 16), open("LONG", 44));
    let limit = |nic: &Nic| nic.attributes().max_discriminator_len;
    assert_eq!((limit(&server), limit(&client)), (16, 44));
    assert!(server.local_address(LONG).is_err());
    let ptag = client.create_ptag().unwrap();
    let vi = client.vi(&ptag).build().unwrap();
    let request = |name: &[u8]| {
        let addresses = [name, b"server"].map(|name| client.local_address(name).unwrap());
        let [local, remote] = addresses;
        vi.connect(&local, &remote, WAIT).map(drop)
    };
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            let address = server.local_address(b"server").unwrap();
            let request = server.connect_wait(&address, WAIT).unwrap();
            let name = request.remote().discriminator;
            request.reject().unwrap();
            name
        });
        assert_eq!(request(LONG), Err(VipError::ErrorResource));
        let mut rejected = request(b"sixteen bytes...");
        while rejected == Err(VipError::NoMatch) {
            rejected = request(b"sixteen bytes...");
        }
        assert_eq!(rejected, Err(VipError::Reject));
        assert_eq!(served.join().unwrap().as_bytes(), b"sixteen bytes...");
    });
    assert!(counter(server.handle(), "drop_long_discriminator") >= 1);
}

/// An endpoint on another N_Port of this process.
fn other_port() -> Endpoint {
    Endpoint::on(open_as(|config| config.spin_us = Some(51)), |vi| vi)
}

fn request_peer(end: &Endpoint, name: &[u8], timeout: Timeout) {
    let (own, remote) = (end.address(b"unused"), end.address(name));
    end.vi.connect_peer(&own, &remote, timeout).unwrap();
}

fn expect_no_match(end: &Endpoint, name: &[u8]) {
    request_peer(end, name, Timeout::After(Duration::from_millis(100)));
    assert_eq!(end.vi.connect_peer_wait(), Err(VipError::Timeout));
}

/// Each request is matched with exactly one other, and none with an earlier one.
#[test]
fn requests_with_one_discriminator_are_paired() {
    const ENDS: u32 = 20;
    let nic = open();
    let ends: Vec<Endpoint> = (0..ENDS)
        .map(|_| Endpoint::on(nic.clone(), |vi| vi))
        .collect();
    for round in 0..50 {
        let name = unique_discriminator();
        for end in &ends {
            end.post_receives(1, 4);
            let own = end.address(&name);
            end.vi.connect_peer(&own, &own, WAIT).unwrap();
        }
        for end in &ends {
            end.vi.connect_peer_wait().unwrap();
        }
        for (end, number) in ends.iter().zip(round * ENDS..) {
            end.send_bytes(&number.to_be_bytes());
        }
        let mut received: Vec<_> = ends
            .iter()
            .map(|end| end.recv().ok().unwrap().first_bytes().to_vec())
            .collect();
        received.sort_unstable();
        let expected: Vec<_> = (round * ENDS..(round + 1) * ENDS)
            .map(|number| number.to_be_bytes().to_vec())
            .collect();
        assert_eq!(received, expected);
        for end in &ends {
            end.vi.disconnect().unwrap();
        }
    }
}

/// The NIC responds to the request, even if its program makes no call.
#[test]
fn peer_request_of_an_inactive_program_is_matched() {
    let (inactive, active) = (Endpoint::new(), other_port());
    let name = unique_discriminator();
    request_peer(&inactive, &name, Timeout::Infinite);
    request_peer(&active, &name, WAIT);
    active.vi.connect_peer_wait().unwrap();
    inactive.vi.connect_peer_wait().unwrap();
    assert_eq!(inactive.vi.state().unwrap(), ViState::Connected);
}

/// Another program of the host is killed while requests are pending: they stay pending.
#[test]
fn killed_program_ends_only_its_own_requests() {
    const READY: &[u8] = b"peer-ready";
    const VICTIM: &[u8] = b"peer-victim";
    if is_child() {
        let (victim, reporter) = (Endpoint::new(), Endpoint::new());
        request_peer(&victim, VICTIM, Timeout::Infinite);
        reporter.connect_to(READY);
        loop {
            thread::park();
        }
    }
    let (survivor, observer) = (Endpoint::new(), Endpoint::new());
    let name = unique_discriminator();
    request_peer(&survivor, &name, Timeout::Infinite);
    let mut victim = SecondProcess::start("killed_program_ends_only_its_own_requests");
    observer.accept(&observer.address(READY));
    victim.kill();
    observer.errors.next_of(&observer.vi);
    assert_eq!(survivor.vi.connect_peer_done(), Err(VipError::NotDone));
    let next = other_port();
    expect_no_match(&next, VICTIM);
    request_peer(&next, &name, WAIT);
    next.vi.connect_peer_wait().unwrap();
    survivor.vi.connect_peer_wait().unwrap();
}

/// A pending request ends when its NIC is closed, and is no longer matched.
#[test]
fn dropped_vi_withdraws_its_peer_request() {
    let name = unique_discriminator();
    let dropped = Endpoint::new();
    request_peer(&dropped, &name, Timeout::Infinite);
    drop(dropped);
    expect_no_match(&other_port(), &name);
}
