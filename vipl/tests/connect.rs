//! Connections: establishment, rejection, disconnect, and the descriptors that are flushed then.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{
    Endpoint, MAX_TRANSFER_BYTES, TIMEOUT, WAIT, connect, open, pair, retry_no_match,
    unique_discriminator,
};
use pmd::config::NicConfig;
use vipl::{ErrorCode, HostAddress, NetAddress, Nic, ReliabilityLevel, Timeout, ViState, VipError};

fn own(end: &Endpoint) -> NetAddress {
    end.nic.local_address(b"client").unwrap()
}

#[test]
fn connect_without_listener_is_no_match_at_once() {
    let client = Endpoint::new();
    let nowhere = client.nic.local_address(&unique_discriminator()).unwrap();
    let begun = Instant::now();
    for _ in 0..100 {
        let outcome = client
            .vi
            .connect(&own(&client), &nowhere, Timeout::Infinite);
        assert_eq!(outcome.unwrap_err(), VipError::NoMatch);
    }
    assert!(begun.elapsed() < TIMEOUT / 2);
    assert_eq!(client.vi.state().unwrap(), ViState::Idle);
}

#[test]
fn connect_to_an_unresponsive_server_times_out() {
    let (client, server) = (Endpoint::new(), Endpoint::new());
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let pause = Duration::from_millis(200);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.nic.connect_wait(&address, WAIT).unwrap());
        // Until the server has received one: a request that times out before is withdrawn.
        let mut timed_out = false;
        while !timed_out || !waiting.is_finished() {
            let refused = (client.vi).connect(&own(&client), &address, Timeout::After(pause));
            match refused.unwrap_err() {
                VipError::Timeout => timed_out = true,
                error => assert_eq!(error, VipError::NoMatch),
            }
        }
        let mut request = waiting.join().unwrap();
        assert_eq!(
            request.accept(&server.vi),
            Err(VipError::Timeout),
            "the request has timed out"
        );
        assert_eq!(
            request.accept(&server.vi),
            Err(VipError::InvalidParameter),
            "the request is removed"
        );
    });
    assert_eq!(client.vi.state().unwrap(), ViState::Idle);
}

#[test]
fn rejected_or_dropped_request_is_a_rejection() {
    let (client, server) = (Endpoint::new(), Endpoint::new());
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            server
                .nic
                .connect_wait(&address, WAIT)
                .unwrap()
                .reject()
                .unwrap();
            drop(server.nic.connect_wait(&address, WAIT).unwrap());
        });
        for _ in 0..2 {
            let outcome = retry_no_match(|| client.vi.connect(&own(&client), &address, WAIT));
            assert_eq!(outcome.unwrap_err(), VipError::Reject);
        }
    });
}

#[test]
fn connect_exchanges_addresses_and_attributes() {
    let client = Endpoint::with(|vi| vi.rdma_write(true));
    let server = Endpoint::new();
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            assert_eq!(*request.remote(), own(&client));
            assert_eq!(
                request.attributes().max_transfer_bytes,
                MAX_TRANSFER_BYTES as u64
            );
            assert_eq!(
                request.attributes().reliability,
                ReliabilityLevel::ReliableDelivery as u16
            );
            assert!(request.attributes().rdma_write);
            request.accept(&server.vi).unwrap();
        });
        let attributes =
            retry_no_match(|| client.vi.connect(&own(&client), &address, WAIT)).unwrap();
        assert!(!attributes.rdma_write && attributes.ptag.is_none());
    });
    assert_eq!(client.vi.state().unwrap(), ViState::Connected);
    assert_eq!(server.vi.state().unwrap(), ViState::Connected);
}

#[test]
fn conflicting_accept_fails_and_can_be_retried_with_another_vi() {
    let (client, server) = (Endpoint::new(), Endpoint::new());
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let smaller = server
        .nic
        .vi(&server.ptag)
        .max_transfer_bytes(4096)
        .build()
        .unwrap();
    let unreliable = server
        .nic
        .vi(&server.ptag)
        .max_transfer_bytes(MAX_TRANSFER_BYTES as u64);
    let unreliable = unreliable
        .reliability(ReliabilityLevel::UnreliableDelivery)
        .build()
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            assert_eq!(request.accept(&smaller), Err(VipError::InvalidMtu));
            assert_eq!(
                request.accept(&unreliable),
                Err(VipError::InvalidReliabilityLevel)
            );
            request.accept(&server.vi).unwrap();
        });
        retry_no_match(|| client.vi.connect(&own(&client), &address, WAIT)).unwrap();
    });
}

#[test]
fn invalid_connect_arguments_are_refused() {
    let (client, server) = pair();
    let address = server.nic.local_address(b"anywhere").unwrap();
    let again = client.vi.connect(&own(&client), &address, WAIT);
    assert_eq!(
        again.unwrap_err(),
        VipError::InvalidState,
        "connected already"
    );

    let idle = Endpoint::new();
    let zero = idle.vi.connect(&own(&idle), &address, Timeout::Immediate);
    assert_eq!(zero.unwrap_err(), VipError::InvalidParameter);
    let elsewhere = NetAddress {
        host: HostAddress([0x20; 16]),
        ..own(&idle)
    };
    let foreign = idle.vi.connect(&elsewhere, &address, WAIT);
    assert_eq!(foreign.unwrap_err(), VipError::InvalidParameter);
    let foreign = idle.nic.connect_wait(&elsewhere, Timeout::Immediate);
    assert_eq!(foreign.unwrap_err(), VipError::InvalidParameter);
    assert_eq!(
        idle.nic
            .connect_wait(&address, Timeout::Immediate)
            .unwrap_err(),
        VipError::Timeout
    );
    assert_eq!(
        idle.nic.local_address(&[0; 100]).unwrap_err(),
        VipError::InvalidParameter
    );
    assert!(idle.nic.local_address(&[0; 16]).is_ok());
}

#[test]
fn accept_on_a_connected_vi_is_invalid_state() {
    let (client, server) = pair();
    let late = Endpoint::new();
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            assert_eq!(request.accept(&server.vi), Err(VipError::InvalidState));
            request.reject().unwrap();
        });
        let outcome = retry_no_match(|| late.vi.connect(&own(&late), &address, WAIT));
        assert_eq!(outcome.unwrap_err(), VipError::Reject);
    });
    assert_eq!(client.vi.state().unwrap(), ViState::Connected);
}

#[test]
fn disconnect_flushes_in_order_and_notifies_only_the_peer() {
    let (client, server) = pair();
    for end in [&client, &server] {
        for size in 1..=4 {
            end.vi.post_recv(end.descriptor(size)).unwrap();
        }
    }
    client.vi.disconnect().unwrap();
    assert_eq!(client.vi.state().unwrap(), ViState::Idle);
    assert_eq!(server.errors.next_of(&server.vi), ErrorCode::ConnLost);
    assert_eq!(server.vi.state().unwrap(), ViState::Error);
    for end in [&client, &server] {
        for size in 1..=4 {
            let flushed = end.vi.recv_done().unwrap().unwrap();
            assert!(flushed.status.is_flushed(), "{:?}", flushed.status);
            assert_eq!(
                flushed.descriptor.buffer(0).len(),
                size,
                "in the order of posting"
            );
        }
        assert!(end.vi.recv_done().unwrap().is_none());
    }
    assert!(client.errors.none(), "the disconnecting side gets no error");
    // In Error each descriptor is flushed at once; in Idle sends are, and receives stay posted.
    server.vi.post_recv(server.descriptor(1)).unwrap();
    assert!(server.recv().status.is_flushed());
    client.vi.post_send(client.message(b"x")).unwrap();
    assert!(
        client
            .vi
            .send_wait(WAIT)
            .unwrap()
            .unwrap()
            .status
            .is_flushed()
    );
    client.vi.post_recv(client.descriptor(1)).unwrap();
    assert_eq!(client.vi.recv_done().unwrap_err(), VipError::NotDone);
}

#[test]
fn vis_can_disconnect_twice_and_reconnect() {
    let (client, server) = pair();
    for round in 0..5 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
        client.send(client.message(b"hello")).ok().unwrap();
        assert_eq!(
            server.recv().ok().unwrap().first_bytes(),
            b"hello",
            "round {round}"
        );
        for end in [&client, &server] {
            end.vi.disconnect().unwrap();
            end.vi.disconnect().unwrap();
        }
        connect(&client, &server);
    }
}

#[test]
fn names_resolve_while_the_name_service_runs() {
    let nic = open();
    assert_eq!(
        nic.host_by_name("localhost", 0).unwrap_err(),
        VipError::ErrorNameservice
    );
    let hosts = std::env::temp_dir().join(format!("viaduct-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "192.0.2.7 only-here\n").unwrap();
    nic.name_service(Some(&hosts)).unwrap();
    std::fs::remove_file(&hosts).unwrap();
    assert_eq!(
        nic.name_service(None).unwrap_err(),
        VipError::ErrorNameservice,
        "started already"
    );
    assert_eq!(
        nic.host_by_name("LOCALHOST", 0).unwrap(),
        nic.host_address()
    );
    let address = nic.host_by_name("only-here", 0).unwrap();
    assert_eq!(address, HostAddress::from_ipv4([192, 0, 2, 7]));
    assert_eq!(nic.host_by_address(&address).unwrap(), "only-here");
    assert_eq!(
        nic.host_by_name("only-here", 1).unwrap_err(),
        VipError::ErrorNameservice
    );
    assert_eq!(
        nic.remote_address("localhost", b"x").unwrap(),
        nic.local_address(b"x").unwrap()
    );
    nic.shut_down_name_service().unwrap();
    assert_eq!(
        nic.host_by_name("only-here", 0).unwrap_err(),
        VipError::ErrorNameservice
    );
    assert_eq!(
        nic.shut_down_name_service().unwrap_err(),
        VipError::ErrorNameservice
    );
}

/// A discriminator that VipConnectWait would write beyond the 16 bytes of the program's buffer (VIPL 3.3.1).
#[test]
fn request_with_a_longer_discriminator_than_the_servers_limit_is_refused() {
    const LONG: &[u8] = b"seventeen bytes..";
    let open = |name: &str, max_discriminator_bytes| {
        let config = NicConfig {
            name: name.to_owned(),
            segment: format!("discriminators-{}", std::process::id()),
            max_discriminator_bytes,
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
    let counters = vipl::provider::counters(server.handle()).unwrap();
    let refused = counters
        .iter()
        .find(|(name, _)| name == "drop_long_discriminator");
    assert!(refused.unwrap().1 >= 1, "{counters:?}");
}
