//! Connection requests over VI/TCP to hosts without a listener, with a late listener, and without a route
//! (VIPL 3.3.4, 3.3.6).

use std::net::Ipv4Addr;
use std::time::Instant;

use crate::common::{Endpoint, LEVELS, WAIT, counter, tcp, tcp_host, wait_until};
use vipl::{Discriminator, HostAddress, NetAddress, ReliabilityLevel, Timeout, ViState, VipError};

/// The address of a discriminator on a host.
fn at(host: Ipv4Addr, name: &[u8]) -> NetAddress {
    NetAddress {
        host: HostAddress(host.to_ipv6_mapped().octets()),
        discriminator: Discriminator::new(name).unwrap(),
    }
}

/// Each test has its own numbers.
fn end(number: u32, level: ReliabilityLevel) -> Endpoint {
    Endpoint::on(tcp(number), |vi| vi.reliability(level))
}

fn expect_receive_posted(end: &Endpoint) {
    assert_eq!(end.vi.recv_done().err(), Some(VipError::NotDone));
}

#[test]
fn request_to_host_without_listener_is_no_match() {
    for level in LEVELS {
        let client = end(11, level);
        client.post_receives(1, 8);
        let own = client.address(b"client");
        let remote = at(tcp_host(12), b"unused");
        let refused = client.vi.connect(&own, &remote, Timeout::Infinite);
        assert_eq!(refused.err(), Some(VipError::NoMatch), "{level:?}");
        assert_eq!(client.vi.state(), Ok(ViState::Idle));
        expect_receive_posted(&client);
    }
}

#[test]
fn request_without_route_moves_reliable_vi_to_error() {
    for level in LEVELS {
        let client = end(13, level);
        let own = client.address(b"client");
        // The kernel has no route from a loopback address to another network.
        let remote = at(Ipv4Addr::new(198, 51, 100, 1), b"x");
        for is_peer in [false, true] {
            client.post_receives(1, 8);
            let refused = if is_peer {
                client.vi.connect_peer(&own, &remote, WAIT).unwrap();
                client.vi.connect_peer_wait()
            } else {
                client.vi.connect(&own, &remote, WAIT)
            };
            assert_eq!(refused.err(), Some(VipError::NotReachable), "{level:?}");
            if level == ReliabilityLevel::UnreliableDelivery {
                assert_eq!(client.vi.state(), Ok(ViState::Idle));
                expect_receive_posted(&client);
            } else {
                assert_eq!(client.vi.state(), Ok(ViState::Error));
                assert!(client.recv().status.is_flushed());
            }
            client.vi.disconnect().unwrap();
            while client.vi.recv_done().unwrap().is_some() {}
        }
    }
}

/// The guide: the second peer may start at any time before the timeout of the first peer's request.
#[test]
fn peer_request_connects_to_host_that_listens_later() {
    for level in LEVELS {
        // Of two simultaneous requests the one of the higher address is used.
        for (early, late) in [(14, 15), (15, 14)] {
            let first = end(early, level);
            let request = |end: &Endpoint, other: u32| {
                let own = end.address(b"peer");
                let remote = at(tcp_host(other), b"both");
                end.vi.connect_peer(&own, &remote, WAIT).unwrap();
            };
            let failed = || counter(first.nic.handle(), "tcp_connecting_failed");
            let before = failed();
            request(&first, late);
            wait_until("the request is repeated", || failed() >= before + 2);
            let pending = first.vi.connect_peer_done();
            assert_eq!(pending, Err(VipError::NotDone), "{level:?}");
            let second = end(late, level);
            request(&second, early);
            second.vi.connect_peer_wait().unwrap();
            first.vi.connect_peer_wait().unwrap();
            assert_eq!(first.vi.state(), Ok(ViState::Connected));
        }
    }
}

#[test]
fn peer_request_to_host_without_listener_times_out() {
    let first = end(16, ReliabilityLevel::ReliableDelivery);
    let own = first.address(b"peer");
    let limit = Timeout::After(std::time::Duration::from_millis(200));
    let begun = Instant::now();
    let remote = at(tcp_host(17), b"both");
    first.vi.connect_peer(&own, &remote, limit).unwrap();
    let outcome = first.vi.connect_peer_wait();
    assert_eq!(outcome.err(), Some(VipError::Timeout));
    assert!(begun.elapsed().as_millis() >= 200);
    assert_eq!(first.vi.state(), Ok(ViState::Idle));
}
