//! The user of the peer's program, for requests and connections.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;

use crate::common::datapath::{SHM, with_process_of};
use crate::common::{Endpoint, WAIT, open, tcp, tcp_host, unique_discriminator};
use vipl::{Nic, VipError};

fn own_user() -> Option<u32> {
    Some(fs::metadata("/proc/self").unwrap().uid())
}

/// Connects and returns the client's user as the request reports it; checks that both VIs report the same user.
fn user_of_client(client: &Endpoint, server: &Endpoint) -> Option<u32> {
    let address = server.address(&unique_discriminator());
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
        client.request(&address).unwrap();
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
    let test = "user_through_a_datapath_process_is_that_of_the_attached_program";
    let tcp_keys = format!("vi_tcp = {{}}\nhost = \"{}\"\n", tcp_host(4));
    for (keys, is_tcp) in [(SHM, false), (tcp_keys.as_str(), true)] {
        with_process_of(test, keys, "", |process| {
            let attached = || end(process.attach());
            assert_eq!(user_of_client(&attached(), &attached()), own_user());
            // The user of a program on another NIC is unknown, also if it is the same process.
            if is_tcp {
                let other = end(tcp(5));
                assert_eq!(user_of_client(&other, &attached()), None);
                assert_eq!(user_of_client(&attached(), &other), None);
            }
        });
    }
}
