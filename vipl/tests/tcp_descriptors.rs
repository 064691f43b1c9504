//! VI/TCP in a process that may open no more files.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::stranger::{CONNECT_NO_MATCH, CONNECT_REQUEST, END, Meeting, Stranger};
use common::tls::counter;
use common::{PATIENCE, open_as, own_host};
use pmd::config::TransportKind;
use socket2::{Domain, Socket, Type};
use vipl::ReliabilityLevel;

/// No descriptor of this number or above may be had from now on.
fn limit_files(most: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes a value of this frame.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = most;
    // SAFETY: reads a value of this frame.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!((got, set), (0, 0));
}

/// Whoever cannot be let in waits, without keeping the program busy, and is let in when that can be.
#[test]
fn who_cannot_be_let_in_waits_and_keeps_nobody_busy() {
    let host = own_host();
    let nic = open_as(|config| {
        config.transport = TransportKind::ViTcp;
        config.host = Some(host.into());
    });
    let ptag = nic.create_ptag().unwrap();
    let _vi = nic.vi(&ptag).build().unwrap();
    // The test's own end of the connection, and nothing for the other.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    limit_files(next);
    socket
        .connect(&SocketAddrV4::new(host, 8420).into())
        .unwrap();
    let mut tcp = TcpStream::from(socket);
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let meeting = Meeting::at(ReliabilityLevel::ReliableDelivery);
    let ce = meeting.ce_header(b"nobody");
    tcp.write_all(&Stranger::segment(CONNECT_REQUEST, END, (7, 0), &ce))
        .unwrap();
    let refused = || counter(&nic, "drop_unfit_incoming");
    let begun = Instant::now();
    while refused() < 3 {
        assert!(begun.elapsed() < PATIENCE, "it is tried now and then");
        std::thread::yield_now();
    }
    // A hundred times a second, or a few more often: not as fast as can be.
    let (tries, since) = (refused(), Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        std::thread::yield_now();
    }
    let tries = refused() - tries;
    let most = since.elapsed().as_millis() as u64 / 5;
    assert!(tries <= most, "{tries} tries");
    limit_files(next + 64);
    let mut answer = [0; 24];
    tcp.read_exact(&mut answer).unwrap();
    assert_eq!(answer[1] >> 3, CONNECT_NO_MATCH);
}
