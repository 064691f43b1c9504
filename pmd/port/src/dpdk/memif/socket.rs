//! Sockets for memif's messages, some of which carry a file descriptor.

use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::descriptor_number::move_above_standard_streams;
use crate::fork::Descriptor;

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 128;
/// Size of the buffer for one descriptor and the sender's credentials, in words for alignment of ancillary data.
const ANCILLARY_WORDS: usize = 8;

/// Address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// An abstract name, in the network namespace.
    Name(String),
    /// A file.
    Path(PathBuf),
}

/// A message and its file descriptor.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) fd: Option<OwnedFd>,
}

/// A connected or listening SOCK_SEQPACKET socket, nonblocking, and closed in children by fork and exec.
#[derive(Debug)]
pub(super) struct Socket(Descriptor);

fn checked(number: libc::c_int) -> io::Result<libc::c_int> {
    match number {
        -1 => Err(io::Error::last_os_error()),
        number => Ok(number),
    }
}

impl Address {
    /// Checks the length of the address.
    pub(super) fn check(&self) -> io::Result<()> {
        self.to_raw().map(|_| ())
    }

    /// Returns the address in the kernel's format, and its length.
    fn to_raw(&self) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
        // SAFETY: a C struct of integers, valid when zeroed.
        let mut raw: libc::sockaddr_un = unsafe { zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let (first, text) = match self {
            // A zero byte, then the name without a terminator.
            Self::Name(name) => (1, name.as_bytes()),
            Self::Path(path) => (0, path.as_os_str().as_encoded_bytes()),
        };
        if text.is_empty() || first + text.len() >= raw.sun_path.len() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a socket's name must have 1 to 106 bytes",
            ));
        }
        for (to, &from) in raw.sun_path[first..].iter_mut().zip(text) {
            *to = from as libc::c_char;
        }
        let bytes = size_of::<libc::sockaddr_un>() - raw.sun_path.len() + first + text.len();
        let terminated = matches!(self, Self::Path(_));
        Ok((raw, bytes as libc::socklen_t + u32::from(terminated)))
    }
}

impl Socket {
    fn new() -> io::Result<Self> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        Descriptor::make(|| {
            // SAFETY: passes no pointers.
            let fd = checked(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
            // SAFETY: the kernel just created the descriptor for this call.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .map(Self)
    }

    /// Creates a listening socket.
    pub(super) fn listen(address: &Address) -> io::Result<Self> {
        let socket = Self::new()?;
        let (raw, length) = address.to_raw()?;
        let fd = socket.0.as_raw_fd();
        // SAFETY: the address is a local variable of the given length.
        checked(unsafe { libc::bind(fd, (&raw const raw).cast(), length) })?;
        // SAFETY: passes no pointers.
        checked(unsafe { libc::listen(fd, 8) })?;
        Ok(socket)
    }

    /// Connects to a listening socket; `WouldBlock` if its backlog is full.
    pub(super) fn connect(address: &Address) -> io::Result<Self> {
        let socket = Self::new()?;
        let (raw, length) = address.to_raw()?;
        let fd = socket.0.as_raw_fd();
        // SAFETY: the address is a local variable of the given length.
        checked(unsafe { libc::connect(fd, (&raw const raw).cast(), length) })?;
        Ok(socket)
    }

    /// Accepts the next pending connection; `None` if there is none.
    pub(super) fn accept(&self) -> io::Result<Option<Self>> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let (no_address, no_length) = (core::ptr::null_mut(), core::ptr::null_mut());
        let accepted = Descriptor::make(|| {
            let listener = self.0.as_raw_fd();
            // SAFETY: null pointers: no address is requested.
            let fd = checked(unsafe { libc::accept4(listener, no_address, no_length, flags) })?;
            // SAFETY: the kernel just created the descriptor for this call.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        });
        match accepted {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Returns the process id of the peer.
    pub(super) fn peer_process(&self) -> io::Result<libc::pid_t> {
        let mut peer = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (fd, option) = (self.0.as_raw_fd(), libc::SO_PEERCRED);
        let to = (&raw mut peer).cast();
        // SAFETY: the pointer is valid for a record of the given length.
        checked(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, to, &mut length) })?;
        Ok(peer.pid)
    }

    /// True if the peer has not received everything that was sent.
    pub(super) fn has_unread_output(&self) -> io::Result<bool> {
        let mut bytes: libc::c_int = 0;
        let (fd, to) = (self.0.as_raw_fd(), &raw mut bytes);
        // SAFETY: the kernel writes one local integer.
        checked(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, to) })?;
        Ok(bytes > 0)
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        let mut ancillary = [0u64; ANCILLARY_WORDS];
        let mut piece = libc::iovec {
            iov_base: message.bytes.as_ptr().cast_mut().cast(),
            iov_len: message.bytes.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        if let Some(fd) = &message.fd {
            let length = size_of::<RawFd>() as u32;
            header.msg_control = ancillary.as_mut_ptr().cast();
            // SAFETY: arithmetic on a length.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
            // SAFETY: reads the header only.
            let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
            // SAFETY: the header has a buffer for ancillary data, so the pointer is not null.
            let first = unsafe { &mut *first };
            first.cmsg_level = libc::SOL_SOCKET;
            first.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: arithmetic on a length.
            first.cmsg_len = unsafe { libc::CMSG_LEN(length) } as usize;
            // SAFETY: the data of a header in `ancillary`.
            let data = unsafe { libc::CMSG_DATA(first) }.cast::<RawFd>();
            // SAFETY: the buffer holds a descriptor behind the header.
            unsafe { data.write_unaligned(fd.as_raw_fd()) };
        }
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_NOSIGNAL);
        // SAFETY: everything that the header points to is a local variable or borrowed for the call.
        match unsafe { libc::sendmsg(fd, &raw const header, flags) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Receives the next message; `None` at the end of the stream, `WouldBlock` if no message is pending. A message
    /// that is too long or has several descriptors is `InvalidData`.
    pub(super) fn receive(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0u8; MESSAGE_BYTES];
        let mut ancillary = [0u64; ANCILLARY_WORDS];
        let mut piece = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.as_mut_ptr().cast();
        header.msg_controllen = size_of::<[u64; ANCILLARY_WORDS]>();
        let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
        // SAFETY: everything that the header points to is a local variable or borrowed for the call.
        let got = match unsafe { libc::recvmsg(fd, &raw mut header, flags) } {
            -1 => return Err(io::Error::last_os_error()),
            got => got as usize,
        };
        let mut fds = descriptors(&header);
        fds.iter_mut().try_for_each(move_above_standard_streams)?;
        let truncated = header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        if truncated || fds.len() > 1 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((got > 0).then(|| Message {
            bytes: bytes[..got].to_vec(),
            fd: fds.pop(),
        }))
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Takes ownership of the descriptors of a received message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in the header; its buffers are alive.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or a header inside the ancillary data.
    while let Some(each) = unsafe { next.as_ref() } {
        if each.cmsg_level == libc::SOL_SOCKET && each.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: arithmetic on a length.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            // SAFETY: the data of this header.
            let data = unsafe { libc::CMSG_DATA(each) }.cast::<RawFd>();
            for number in 0..each.cmsg_len.saturating_sub(head) / size_of::<RawFd>() {
                // SAFETY: inside the data of this header, by its length.
                let at = unsafe { data.add(number) };
                // SAFETY: as above; it need not be aligned.
                let fd = unsafe { at.read_unaligned() };
                // SAFETY: the kernel just created the descriptor for this call.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `each` is a header of this ancillary data.
        next = unsafe { libc::CMSG_NXTHDR(header, each) };
    }
    fds
}

/// Waits until a descriptor is readable or closed by its peer, or until the timeout; returns for each descriptor
/// whether it is ready. Negative descriptors are ignored.
pub(super) fn wait(fds: &[RawFd], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let entry = |&fd: &RawFd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<_> = fds.iter().map(entry).collect();
    // Rounded up, to avoid a busy loop in the last millisecond.
    let ms = |time: Duration| time.as_micros().div_ceil(1000).min(i32::MAX as u128) as libc::c_int;
    let timeout_ms = timeout.map_or(-1, ms);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: the pointer is valid for `count` entries.
    let ready = checked(unsafe { libc::poll(entries.as_mut_ptr(), count, timeout_ms) });
    match ready {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(vec![false; fds.len()]),
        Err(error) => Err(error),
        Ok(_) => Ok(entries.iter().map(|entry| entry.revents != 0).collect()),
    }
}
