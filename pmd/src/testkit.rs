//! What tests of several modules share.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A connection whose close blocks for a minute unless its peer reads.
pub(crate) fn lingering() -> (OwnedFd, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // The peer takes little, and most of what is written stays here.
    socket2::SockRef::from(&listener)
        .set_recv_buffer_size(1)
        .unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    // Little in all, so that a peer that reads is soon done.
    let room = socket2::SockRef::from(&near);
    room.set_send_buffer_size(1 << 14).unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    let minute = Some(Duration::from_secs(60));
    socket2::SockRef::from(&near).set_linger(minute).unwrap();
    (near.into(), peer)
}
