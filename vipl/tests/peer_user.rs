//! The user of the peer's program, for requests and connections.

mod common;

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::thread;

use common::datapath::{DatapathProcess, serve_if_child};
use common::{Endpoint, WAIT, open, open_as, own_host, retry_no_match, unique_discriminator};
use pmd::config::TransportKind;
use vipl::{Nic, VipError};

fn own_user() -> Option<u32> {
    Some(fs::metadata("/proc/self").unwrap().uid())
}

/// Connects and returns the client's user as the request reports it; checks that both VIs report the same user.
fn user_of_client(client: &Endpoint, server: &Endpoint) -> Option<u32> {
    let address = server.nic.local_address(&unique_discriminator()).unwrap();
    let own = client.nic.local_address(&unique_discriminator()).unwrap();
    for end in [client, server] {
        assert_eq!(end.vi.peer_user(), Err(VipError::InvalidState));
    }
    let user = thread::scope(|scope| {
        let served = scope.spawn(|| {
            let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
            let user = request.user().unwrap();
            request.accept(&server.vi).unwrap();
            assert_eq!(request.user(), Err(VipError::InvalidParameter));
            user
        });
        retry_no_match(|| client.vi.connect(&own, &address, WAIT)).unwrap();
        served.join().unwrap()
    });
    for end in [client, server] {
        assert_eq!(end.vi.peer_user(), Ok(user));
    }
    client.vi.disconnect().unwrap();
    assert_eq!(client.vi.peer_user(), Err(VipError::InvalidState));
    server.vi.disconnect().unwrap();
    user
}

fn end(nic: Nic) -> Endpoint {
    Endpoint::on(nic, |vi| vi)
}

fn tcp(number: u32) -> Nic {
    open_as(|config| {
        let own = own_host().to_bits() ^ (number << 16);
        config.transport = TransportKind::ViTcp;
        config.host = Some(Ipv4Addr::from_bits(own).into());
    })
}

#[test]
fn user_of_a_vi_of_the_same_nic_is_that_of_the_program() {
    for nic in [open(), tcp(1)] {
        let user = user_of_client(&end(nic.clone()), &end(nic));
        assert_eq!(user, own_user());
    }
}

#[test]
fn user_of_another_nic_is_not_known() {
    assert_eq!(user_of_client(&end(tcp(2)), &end(tcp(3))), None);
}

#[test]
fn user_through_a_datapath_process_is_that_of_the_attached_program() {
    if serve_if_child() {
        return;
    }
    let name = "user_through_a_datapath_process_is_that_of_the_attached_program";
    let host = Ipv4Addr::from_bits(own_host().to_bits() ^ (4 << 16));
    let tcp_keys = format!("transport = \"vi-tcp\"\nhost = \"{host}\"\n");
    let shm_keys = "port = \"shm\"\nsegment = \"attached\"\ndirectory = DIRECTORY\n";
    for (keys, other) in [(shm_keys, None), (tcp_keys.as_str(), Some(tcp(5)))] {
        let process = DatapathProcess::start_with(name, keys, "");
        let attached = || end(Nic::attach(&process.socket(), "VINIC0").unwrap());
        assert_eq!(user_of_client(&attached(), &attached()), own_user());
        // The user of a program on another NIC is unknown, also if it is the same process.
        if let Some(nic) = other {
            let other = end(nic);
            assert_eq!(user_of_client(&other, &attached()), None);
            assert_eq!(user_of_client(&attached(), &other), None);
        }
        process.stop();
    }
}
