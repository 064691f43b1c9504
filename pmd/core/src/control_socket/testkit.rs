//! Connections for tests of descriptors that are passed.

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Returns a connection whose close blocks for up to a minute until its peer reads, and the peer.
///
/// # Panics
/// If a system call fails.
pub fn lingering_connection() -> (OwnedFd, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // The receive buffer is small, so that most of the data stays in the send buffer.
    socket2::SockRef::from(&listener)
        .set_recv_buffer_size(1)
        .unwrap();
    let mut local = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    // Small, so that the peer can read everything quickly.
    let socket = socket2::SockRef::from(&local);
    socket.set_send_buffer_size(1 << 14).unwrap();
    local.set_nonblocking(true).unwrap();
    while local.write(&[0; 1 << 16]).is_ok() {}
    local.set_nonblocking(false).unwrap();
    let minute = Some(Duration::from_secs(60));
    socket2::SockRef::from(&local).set_linger(minute).unwrap();
    (local.into(), peer)
}
