//! Detection of descriptors that a peer passed and that were not received: the close of the socket closes them, which
//! may block.

use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use socket2::SockRef;

use super::Socket;

/// Messages that are examined; a socket with more counts as one that holds descriptors.
const MAX_MESSAGES: usize = 64;
/// 64-bit words of ancillary data for the credentials of a sender and nothing else.
const CREDENTIALS_WORDS: usize = 4;

/// A message at the head of a socket.
enum Head {
    End,
    Message { has_descriptors: bool },
}

impl Socket {
    /// Returns true unless no descriptor is left in a socket that was shut down, so that nothing more is sent to it.
    /// Discards messages.
    pub fn may_hold_descriptors(&self) -> bool {
        // Each message then has ancillary data, also one of no bytes, and the end has none.
        if SockRef::from(&self.0).set_passcred(true).is_err() {
            return true;
        }
        for _ in 0..MAX_MESSAGES {
            match self.peek() {
                Ok(Head::End) => return false,
                Ok(Head::Message {
                    has_descriptors: false,
                }) => {
                    let mut byte = [MaybeUninit::uninit()];
                    let discarded =
                        SockRef::from(&self.0).recv_with_flags(&mut byte, libc::MSG_DONTWAIT);
                    if discarded.is_err() {
                        return true;
                    }
                }
                Ok(Head::Message {
                    has_descriptors: true,
                })
                | Err(_) => return true,
            }
        }
        true
    }

    /// Examines the first message, and leaves it in the socket. Its descriptors are not received: there is no space.
    fn peek(&self) -> std::io::Result<Head> {
        let mut byte = [0u8; 1];
        let mut ancillary = [0u64; CREDENTIALS_WORDS];
        let mut vector = libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: byte.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&ancillary);
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: everything that the header points to lives in this frame.
        let received = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, flags) };
        if received < 0 {
            return Err(std::io::Error::last_os_error());
        }
        if received == 0 && header.msg_controllen == 0 {
            return Ok(Head::End);
        }
        Ok(Head::Message {
            has_descriptors: header.msg_flags & libc::MSG_CTRUNC != 0,
        })
    }
}
