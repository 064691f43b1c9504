//! VI/TCP in a process that has reached its limit of file descriptors.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::scripted_peer::{
    CONNECT_NO_MATCH, CONNECT_REQUEST, ConnectionSetup, END, ScriptedPeer,
};
use common::{TIMEOUT, counter, own_host, tcp, wait_until};
use socket2::{Domain, Socket, Type};
use vipl::ReliabilityLevel;

/// Sets the limit of file descriptors: new ones are below `limit`.
fn limit_file_descriptors(limit: u64) {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes a local value.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) };
    limits.rlim_cur = limit;
    // SAFETY: reads a local value.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) };
    assert_eq!((got, set), (0, 0));
}

/// A connection that cannot be accepted stays pending without busy polling, and is accepted when a descriptor is free.
#[test]
fn connection_is_accepted_without_busy_polling_when_a_descriptor_is_free() {
    let host = own_host();
    let nic = tcp(0);
    let ptag = nic.create_ptag().unwrap();
    let _vi = nic.vi(&ptag).build().unwrap();
    // A descriptor for the client socket, and none for the accepted one.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    limit_file_descriptors(next);
    socket
        .connect(&SocketAddrV4::new(host, 8420).into())
        .unwrap();
    let mut tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let setup = ConnectionSetup::new(ReliabilityLevel::ReliableDelivery);
    let ce = setup.ce_header(b"unused");
    tcp.write_all(&ScriptedPeer::segment(CONNECT_REQUEST, END, (7, 0), &ce))
        .unwrap();
    let refused = || counter(nic.handle(), "drop_unfit_incoming");
    wait_until("accept is retried", || refused() >= 3);
    // About a hundred times per second; at most 200.
    let (tries, since) = (refused(), Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        std::thread::yield_now();
    }
    let tries = refused() - tries;
    let limit = since.elapsed().as_millis() as u64 / 5;
    assert!(tries <= limit, "{tries} tries");
    limit_file_descriptors(next + 64);
    let mut response = [0; 24];
    tcp.read_exact(&mut response).unwrap();
    assert_eq!(response[1] >> 3, CONNECT_NO_MATCH);
}
