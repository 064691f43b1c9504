//! Control messages with file descriptors over Unix seqpacket sockets.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use pmd_port::descriptor_number::{above_standard_streams, move_above_standard_streams};
use pmd_port::fork::Descriptor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{Domain, SockAddr, SockRef, Type};

use crate::sys;

mod passed_descriptors;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

/// Maximum length of a message in bytes.
pub const MAX_MESSAGE_BYTES: usize = 8192;
/// Maximum number of descriptors in a message.
pub const MAX_FDS: usize = 2;
/// 64-bit words of ancillary data for [`MAX_FDS`] descriptors: aligned as its header requires.
const ANCILLARY_WORDS: usize = 4;
/// Words for as many descriptors as the kernel passes with one message (`SCM_MAX_FD`, 253).
const MOST_ANCILLARY_WORDS: usize = 2 + 253usize.div_ceil(2);

/// `SO_PEERPIDFD` of asm-generic/socket.h.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS`, likewise.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Credentials of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Process ID.
    pub pid: libc::pid_t,
    /// User ID.
    pub uid: libc::uid_t,
    /// Group ID.
    pub gid: libc::gid_t,
}

/// One end of a connection. A forked child does not keep it, so that the peer detects when this process closes it.
#[derive(Debug)]
pub struct Socket(Descriptor);

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The socket address of a path.
fn address(path: &Path) -> io::Result<SockAddr> {
    // An empty path would have the kernel choose an address.
    let address = SockAddr::unix(path).ok();
    let address = address.filter(|_| !path.as_os_str().is_empty());
    address.ok_or_else(|| {
        let why = "a socket path has 1 to 107 bytes";
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

fn new_socket() -> io::Result<Descriptor> {
    Descriptor::make(|| socket2::Socket::new(Domain::UNIX, Type::SEQPACKET, None).map(Into::into))
}

/// Sets whether a socket, and those that it accepts, take passed descriptors, or the send fails (`SO_PASSRIGHTS`).
/// Before Linux 6.16 this fails, and all sockets take them.
fn take_descriptors(socket: &Descriptor, takes: bool) -> io::Result<libc::c_int> {
    let value = libc::c_int::from(takes);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, from) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the kernel reads a value of this frame, of that size.
    checked(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, from, length) })
}

fn set_nonblocking(socket: &Descriptor) -> io::Result<()> {
    SockRef::from(socket).set_nonblocking(true)
}

/// A listening socket. It stops listening on drop, also if a forked child lives on.
#[derive(Debug)]
pub struct Listener(Descriptor);

impl Listener {
    /// Listens at a path where no file is. Peers cannot pass descriptors before [`Socket::take_descriptors`].
    pub fn bind(path: &Path) -> io::Result<Self> {
        let address = address(path)?;
        let socket = new_socket()?;
        // The peer can make the close of a passed descriptor block, also where its connection is rejected.
        let _old_kernel = take_descriptors(&socket, false);
        SockRef::from(&socket).bind(&address)?;
        SockRef::from(&socket).listen(128)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection.
    pub fn accept(&self) -> io::Result<Socket> {
        loop {
            match SockRef::from(&self.0).accept() {
                Ok((new, _unnamed)) => {
                    // Not within `make`, which blocks forks: accept may wait.
                    let new = Socket(Descriptor::make(|| Ok(new.into()))?);
                    return Ok(match self.0.is_foreign() {
                        true => new.into_foreign(),
                        false => new,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Accepted sockets take descriptors, as on a kernel without `SO_PASSRIGHTS`.
    #[cfg(any(test, feature = "testkit"))]
    pub fn take_descriptors(&self) {
        let _old_kernel = take_descriptors(&self.0, true);
    }

    /// Leaves the close of this and of all accepted sockets to the deferred-close thread, for callers that poll:
    /// descriptors that were passed to a socket and not received are closed with it.
    pub fn into_foreign(self) -> Self {
        Self(self.0.into_foreign())
    }

    /// Makes `accept` return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        set_nonblocking(&self.0)
    }

    /// The descriptor, to be polled.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Makes every present and later `accept` fail.
    pub fn shut_down(&self) {
        // Fails only if it was shut down before.
        let _result = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }
}

impl Socket {
    /// Makes sends and receives return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        set_nonblocking(&self.0)
    }

    /// As [`Descriptor::close_unlocked_on_drop`]: passed descriptors that were not received are closed with the socket.
    pub fn close_unlocked_on_drop(mut self) -> io::Result<Self> {
        self.0.close_unlocked_on_drop()?;
        Ok(self)
    }

    /// As [`Descriptor::close_file`]: in this thread, whatever other owners the socket has.
    pub fn close_file(&self) {
        self.0.close_file();
    }

    /// As [`Listener::into_foreign`].
    pub fn into_foreign(mut self) -> Self {
        self.0.set_foreign();
        self
    }

    /// The descriptor, to be polled.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Two connected sockets of this process.
    #[cfg(any(test, feature = "testkit"))]
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = socket2::Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        let socket = |fd: OwnedFd| Descriptor::make(|| Ok(fd)).map(Self);
        Ok((socket(one.into())?, socket(other.into())?))
    }

    /// Connects to the listener at a path.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let address = address(path)?;
        let socket = new_socket()?;
        SockRef::from(&socket).connect(&address)?;
        Ok(Self(socket))
    }

    /// As [`Socket::connect`], but neither this call nor the socket ever waits: `WouldBlock` if the backlog of the
    /// listener is full.
    pub fn connect_nonblocking(path: &Path) -> io::Result<Self> {
        let address = address(path)?;
        let socket = new_socket()?;
        set_nonblocking(&socket)?;
        SockRef::from(&socket).connect(&address)?;
        Ok(Self(socket))
    }

    /// Returns the credentials of the process that connected or listened, as the kernel reports them.
    pub fn peer(&self) -> io::Result<Peer> {
        let mut peer = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let (fd, to) = (self.0.as_raw_fd(), (&raw mut peer).cast());
        // SAFETY: the kernel writes at most `length` bytes to a value of that size.
        checked(unsafe { libc::getsockopt(fd, level, option, to, &raw mut length) })?;
        Ok(Peer {
            pid: peer.pid,
            uid: peer.uid,
            gid: peer.gid,
        })
    }

    /// Returns a pidfd of the peer's process: it never refers to another process that gets the same process ID later.
    pub fn peer_process(&self) -> io::Result<OwnedFd> {
        let peer = self.peer()?;
        if peer.pid == 0 {
            return Err(io::Error::other("it is in another PID namespace"));
        }
        match self.peer_pidfd() {
            // Kernels before 6.5 report only the process ID.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => process_of(peer),
            found => found,
        }
    }

    fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        let mut fd: libc::c_int = -1;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        let (own, to) = (self.0.as_raw_fd(), (&raw mut fd).cast());
        // SAFETY: the kernel writes at most `length` bytes to a value of that size.
        checked(unsafe {
            libc::getsockopt(own, libc::SOL_SOCKET, SO_PEERPIDFD, to, &raw mut length)
        })?;
        // SAFETY: the descriptor is new and has no other owner.
        above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Permits the peer to pass descriptors.
    pub fn take_descriptors(&self) {
        let _old_kernel = take_descriptors(&self.0, true);
    }

    /// Sets the timeout of sends and receives; `None`: no timeout.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        let socket = SockRef::from(&self.0);
        socket.set_read_timeout(timeout)?;
        socket.set_write_timeout(timeout)
    }

    /// Sends a message, with copies of these descriptors.
    pub fn send(&self, message: &impl Serialize, fds: &[RawFd]) -> io::Result<()> {
        let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
        if bytes.len() > MAX_MESSAGE_BYTES || fds.len() > MAX_FDS {
            return Err(io::Error::other("message too long"));
        }
        self.send_bytes(&bytes, fds)
    }

    fn send_bytes(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let mut ancillary = [0u64; ANCILLARY_WORDS];
        let mut vector = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let length = size_of_val(fds) as u32;
            header.msg_control = ancillary.as_mut_ptr().cast();
            // SAFETY: arithmetic on a length.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
            // SAFETY: reads the header only.
            let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
            // SAFETY: the header has space for ancillary data, so there is a first one.
            let first = unsafe { &mut *first };
            first.cmsg_level = libc::SOL_SOCKET;
            first.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: arithmetic on a length.
            first.cmsg_len = unsafe { libc::CMSG_LEN(length) } as usize;
            // SAFETY: the data of a header in `ancillary`.
            let data = unsafe { libc::CMSG_DATA(first) };
            // SAFETY: `ancillary` has space for MAX_FDS descriptors behind the header.
            unsafe { data.cast::<RawFd>().copy_from(fds.as_ptr(), fds.len()) };
        }
        loop {
            // SAFETY: everything that the header points to lives in this frame.
            let sent =
                unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Sends the first request of a connection, and returns the reply. A process that rejects a connection without
    /// reading the request sends the reason and closes the connection.
    pub fn send_first<T: DeserializeOwned>(
        &self,
        request: &impl Serialize,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.first_reply(self.send(request, &[]))
    }

    /// Receives the reply to a first request; `sent` is the result of the send.
    pub fn first_reply<T: DeserializeOwned>(
        &self,
        sent: io::Result<()>,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        match sent.and_then(|()| self.receive()) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                // Closed with the request unread, which the system reports before what was sent.
                match self.receive() {
                    Ok(Some(reason)) => Ok(Some(reason)),
                    Ok(None) | Err(_) => Err(error),
                }
            }
            reply => reply,
        }
    }

    /// Receives the next message and the descriptors passed with it; `None` once the peer has closed the connection.
    ///
    /// # Errors
    /// `InvalidData` for a malformed message. EMFILE or ENFILE if no descriptor number is left for its descriptors: the
    /// message is lost.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = [0u8; MAX_MESSAGE_BYTES];
        let mut ancillary = [0u64; ANCILLARY_WORDS];
        let (length, fds) = self.receive_bytes(&mut bytes, &mut ancillary)?;
        let message = parse(bytes.get(..length?).unwrap_or_default())?;
        Ok(message.map(|message| (message, fds)))
    }

    /// As [`Socket::receive`], for callers that poll: the close of all passed descriptors, also those of a malformed
    /// message, is left to the deferred-close thread.
    pub fn receive_foreign<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<Descriptor>)>> {
        let mut bytes = [0u8; MAX_MESSAGE_BYTES];
        // The kernel would close those without space in this call.
        let mut ancillary = [0u64; MOST_ANCILLARY_WORDS];
        let (length, fds) = self.receive_bytes(&mut bytes, &mut ancillary)?;
        let foreign = |fd| Descriptor::make(|| Ok(fd)).map(Descriptor::into_foreign);
        let fds = fds
            .into_iter()
            .map(foreign)
            .collect::<io::Result<Vec<_>>>()?;
        let message = parse(bytes.get(..length?).unwrap_or_default())?;
        Ok(message.map(|message| (message, fds)))
    }

    /// Receives a message: its length or why it is invalid, and all descriptors that were passed with it.
    fn receive_bytes(
        &self,
        bytes: &mut [u8],
        ancillary: &mut [u64],
    ) -> io::Result<(io::Result<usize>, Vec<OwnedFd>)> {
        let mut vector = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(ancillary);
        let length = loop {
            let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
            // SAFETY: everything that the header points to lives in this frame.
            let received = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
            if received >= 0 {
                break received as usize;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        let mut fds = descriptors(&header);
        if let Err(error) = fds.iter_mut().try_for_each(move_above_standard_streams) {
            return Ok((Err(error), fds));
        }
        // Too long, or with more descriptors than there was space for: those received are closed.
        let is_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
        if is_cut && fds.len() <= MAX_FDS {
            // There was space for more descriptors: no number is left, or the kernel refused them. A new descriptor
            // shows which.
            let refused = "the kernel refused a passed descriptor: check its security policy";
            let error = sys::EventFd::new().err();
            return Ok((Err(error.unwrap_or_else(|| io::Error::other(refused))), fds));
        }
        if is_cut || header.msg_flags & libc::MSG_TRUNC != 0 || fds.len() > MAX_FDS {
            let error = io::Error::new(io::ErrorKind::InvalidData, "message too long");
            return Ok((Err(error), fds));
        }
        Ok((Ok(length), fds))
    }

    /// Returns the groups of the peer, the primary one first.
    pub fn peer_groups(&self) -> io::Result<Vec<libc::gid_t>> {
        let mut groups = vec![self.peer()?.gid];
        let mut room: Vec<libc::gid_t> = vec![0; 64];
        loop {
            let mut length = size_of_val(room.as_slice()) as libc::socklen_t;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
            let (fd, to) = (self.0.as_raw_fd(), room.as_mut_ptr().cast());
            // SAFETY: the kernel writes at most `length` bytes to a vector of that size.
            let result = unsafe { libc::getsockopt(fd, level, option, to, &raw mut length) };
            let count = length as usize / size_of::<libc::gid_t>();
            match checked(result) {
                Ok(_) => {
                    groups.extend(room.into_iter().take(count));
                    return Ok(groups);
                }
                Err(error) if error.raw_os_error() == Some(libc::ERANGE) => room.resize(count, 0),
                Err(error) => return Err(error),
            }
        }
    }

    /// The descriptor, to be waited for.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// True if the peer has closed the connection.
    pub fn is_closed(&self) -> bool {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match SockRef::from(&self.0).recv_with_flags(&mut [MaybeUninit::uninit()], flags) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Shuts down the reading side: a thread that waits for a message finds the end; the peer does not.
    pub fn shut_down_reading(&self) {
        // Fails only if the peer has closed the connection.
        let _result = SockRef::from(&self.0).shutdown(Shutdown::Read);
    }

    /// Shuts down the writing side: the peer finds the end. Its messages are still received.
    pub fn shut_down_writing(&self) {
        // Fails only if the peer has closed the connection.
        let _result = SockRef::from(&self.0).shutdown(Shutdown::Write);
    }

    /// Waits until the peer closes the connection or sends a message, for `limit` at most.
    pub fn wait_for_close(&self, limit: Duration) {
        sys::await_one(self.as_fd(), limit);
    }

    /// Shuts down both sides, also for a thread that waits for a message.
    pub fn shut_down(&self) {
        // Fails only if the peer has closed the connection.
        let _result = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The file may be closed later, by another thread: the peer must detect the end now. A forked child has another
        // file under the number.
        self.shut_down();
    }
}

/// Returns a pidfd of the process with the peer's ID, if it lives and has the peer's user: if the ID was reused, at
/// least the user is the same.
fn process_of(peer: Peer) -> io::Result<OwnedFd> {
    let process = sys::pidfd_open(peer.pid)?;
    let status = fs::read_to_string(format!("/proc/{}/status", peer.pid))?;
    let mut lines = status.lines();
    let users = lines.find_map(|line| line.strip_prefix("Uid:"));
    // Real, effective, saved and file system user ID.
    let effective = users.and_then(|users| users.split_whitespace().nth(1)?.parse().ok());
    // It is still alive, so the status file was that of this process.
    if effective != Some(peer.uid) || sys::has_exited(&process) {
        return Err(io::Error::other("the process that connected has ended"));
    }
    Ok(process)
}

/// Parses a message; `None` for no bytes: the end of the connection.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<T>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|e| invalid(e.to_string()))?;
    if !rest.is_empty() {
        return Err(invalid("extra bytes behind the message".to_owned()));
    }
    Ok(Some(message))
}

/// Takes ownership of the descriptors that were passed with a message.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled in the header; the memory that it points to is alive.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null, or a header inside the ancillary data.
    while let Some(each) = unsafe { next.as_ref() } {
        if each.cmsg_level == libc::SOL_SOCKET && each.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: arithmetic on a length.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = (each.cmsg_len.saturating_sub(head)) / size_of::<RawFd>();
            // SAFETY: the data of this header.
            let data = unsafe { libc::CMSG_DATA(each) }.cast::<RawFd>();
            for number in 0..count {
                // SAFETY: inside the data of this header, by its length.
                let at = unsafe { data.add(number) };
                // SAFETY: as above; it need not be aligned.
                let fd = unsafe { at.read_unaligned() };
                // SAFETY: the kernel has just created the descriptor for this process.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: `each` is a header of this ancillary data.
        next = unsafe { libc::CMSG_NXTHDR(header, each) };
    }
    fds
}

#[cfg(test)]
mod tests;
