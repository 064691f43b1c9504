//! Replies that are too long for one message.

use std::io;

use vi_core::control_socket::Socket;

use super::message::Reply;

/// Length of a part of a reply.
const PART_BYTES: usize = 4096;

/// Sends a reply in parts.
pub(crate) fn send_parts(socket: &Socket, bytes: &[u8]) -> io::Result<()> {
    let mut parts = bytes.chunks(PART_BYTES).peekable();
    if parts.peek().is_none() {
        return socket.send(&Reply::Part(Vec::new(), true), &[]);
    }
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        socket.send(&Reply::Part(part.to_vec(), last), &[])?;
    }
    Ok(())
}
