//! Messages over a Unix socket, whole and in order, with descriptors beside them.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use pmd_port::descriptor_number::{above_standard_streams, move_above_standard_streams};
use pmd_port::fork::Descriptor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::message::{MAX_MESSAGE_BYTES, Reply};
use crate::sys;

/// A part of an answer that is too long for one message.
const PART_BYTES: usize = 4096;
/// Descriptors in one message, at most.
pub(crate) const MAX_FDS: usize = 2;
/// Words of ancillary data for them, and so aligned as its header wants it.
const ANCILLARY_WORDS: usize = 4;
/// Words for as many as the system passes with one message (`SCM_MAX_FD`, 253).
const MOST_ANCILLARY_WORDS: usize = 2 + 253usize.div_ceil(2);

/// `SO_PEERPIDFD` of asm-generic/socket.h.
const SO_PEERPIDFD: libc::c_int = 77;
/// `SO_PASSRIGHTS`, likewise.
const SO_PASSRIGHTS: libc::c_int = 83;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) pid: libc::pid_t,
    pub(crate) uid: libc::uid_t,
    pub(crate) gid: libc::gid_t,
}

/// One end of a conversation, which no child keeps: the other end hears when this one is gone.
#[derive(Debug)]
pub(crate) struct Socket(Descriptor);

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A path as the kernel wants it.
fn address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: integers and an array of them are valid as zero bytes.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a socket's path has 1 to 107 bytes",
        ));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    let header = core::mem::offset_of!(libc::sockaddr_un, sun_path);
    // A name outside of the file system begins with a zero, and has none at its end.
    let end = usize::from(!bytes.starts_with(&[0]));
    Ok((address, (header + bytes.len() + end) as libc::socklen_t))
}

fn new_socket() -> io::Result<Descriptor> {
    Descriptor::make(|| {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: three integers; gives a new descriptor or -1.
        let fd = checked(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        // SAFETY: the descriptor is new and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    })
}

/// Has a socket, and those that are accepted by it, take descriptors or refuse them to the sender.
/// Before Linux 6.16 this fails, and all of them take them.
fn take_descriptors(socket: &Descriptor, takes: bool) -> io::Result<libc::c_int> {
    let value = libc::c_int::from(takes);
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, from) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the kernel reads a value of this frame, of that size.
    checked(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, from, length) })
}

fn set_nonblocking(socket: &Descriptor) -> io::Result<()> {
    socket2::SockRef::from(socket).set_nonblocking(true)
}

/// Where conversations begin; its name is free when it is dropped, also if a child lives on.
#[derive(Debug)]
pub(crate) struct Listener(Descriptor);

impl Listener {
    /// Listens at a path where nothing is. Nobody passes descriptors before
    /// [`Socket::take_descriptors`].
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        let (address, length) = address(path)?;
        let socket = new_socket()?;
        // Whoever closes them can be held up by who passed them, and so whoever turns him away.
        let _old_kernel = take_descriptors(&socket, false);
        // SAFETY: an address of this frame and its length.
        checked(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        // SAFETY: two integers.
        checked(unsafe { libc::listen(socket.as_raw_fd(), 128) })?;
        Ok(Self(socket))
    }

    /// The next conversation.
    pub(crate) fn accept(&self) -> io::Result<Socket> {
        loop {
            let (fd, none) = (self.0.as_raw_fd(), core::ptr::null_mut());
            // SAFETY: no address is wanted; gives a new descriptor or -1.
            let new = unsafe { libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC) };
            match checked(new) {
                Ok(new) => {
                    // SAFETY: the descriptor is new and nobody else has it.
                    let new = unsafe { OwnedFd::from_raw_fd(new) };
                    // Not within `make`: it may wait, and nobody could fork meanwhile.
                    let new = Socket(Descriptor::make(|| Ok(new))?);
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

    /// As on a kernel that does not know `SO_PASSRIGHTS`: what is accepted takes descriptors.
    #[cfg(test)]
    pub(crate) fn take_descriptors(&self) {
        let _old_kernel = take_descriptors(&self.0, true);
    }

    /// Has its end, and those of all sockets that it accepts, left to the release thread, for who polls: what
    /// was passed to a socket and not received is released when that is closed.
    pub(crate) fn into_foreign(self) -> Self {
        Self(self.0.into_foreign())
    }

    /// From now on `accept` never waits: without a conversation it is `WouldBlock`.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        set_nonblocking(&self.0)
    }

    /// Its descriptor, to be watched.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Ends every `accept`, now and later.
    pub(crate) fn shut_down(&self) {
        // SAFETY: two integers. It fails only if it was done before.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Socket {
    /// From now on nothing waits: without a message, or room for one, it is `WouldBlock`.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        set_nonblocking(&self.0)
    }

    /// As [`Descriptor::close_apart_on_drop`]: what the peer passed and nobody received is closed with it.
    pub(crate) fn close_apart_on_drop(mut self) -> io::Result<Self> {
        self.0.close_apart_on_drop()?;
        Ok(self)
    }

    /// As [`Descriptor::close_file`]: in this thread, whoever has the socket, too.
    pub(crate) fn close_file(&self) {
        self.0.close_file();
    }

    /// As [`Listener::into_foreign`].
    pub(crate) fn into_foreign(mut self) -> Self {
        self.0.set_foreign();
        self
    }

    /// Its descriptor, to be watched.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Both ends of a conversation with ourselves.
    #[cfg(test)]
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        let socket = |fd: OwnedFd| Descriptor::make(|| Ok(fd)).map(Self);
        Ok((socket(one.into())?, socket(other.into())?))
    }

    /// Begins a conversation with who listens at a path.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let (address, length) = address(path)?;
        let socket = new_socket()?;
        // SAFETY: an address of this frame and its length.
        checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(Self(socket))
    }

    /// As [`Socket::connect`], but never waits, and nor does what it gives: where too many wait to be let in, it is
    /// `WouldBlock`.
    pub(crate) fn connect_at_once(path: &Path) -> io::Result<Self> {
        let (address, length) = address(path)?;
        let socket = new_socket()?;
        set_nonblocking(&socket)?;
        // SAFETY: an address of this frame and its length.
        checked(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) })?;
        Ok(Self(socket))
    }

    /// Who began the conversation, or listened for it; the kernel vouches.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
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

    /// What says whether the process at the other end lives, and means no other that gets its
    /// number later.
    pub(crate) fn peer_process(&self) -> io::Result<OwnedFd> {
        let peer = self.peer()?;
        if peer.pid == 0 {
            return Err(io::Error::other("it is in another PID namespace"));
        }
        match self.peer_pidfd() {
            // Kernels before 6.5 have only its number.
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
        // SAFETY: the descriptor is new and nobody else has it.
        above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// From now on the other end may pass descriptors.
    pub(crate) fn take_descriptors(&self) {
        let _old_kernel = take_descriptors(&self.0, true);
    }

    /// Gives up on an answer after so long.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        let patience = patience.unwrap_or(Duration::ZERO);
        let time = libc::timeval {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_usec: patience.subsec_micros().into(),
        };
        let length = size_of::<libc::timeval>() as libc::socklen_t;
        let (fd, from) = (self.0.as_raw_fd(), (&raw const time).cast());
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            // SAFETY: the kernel reads a value of this frame, of that size.
            checked(unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, from, length) })?;
        }
        Ok(())
    }

    /// Sends a message, with copies of these descriptors.
    pub(crate) fn send(&self, message: &impl Serialize, fds: &[RawFd]) -> io::Result<()> {
        let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
        if bytes.len() > MAX_MESSAGE_BYTES || fds.len() > MAX_FDS {
            return Err(io::Error::other("a message is too long"));
        }
        self.send_bytes(&bytes, fds)
    }

    fn send_bytes(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let mut ancillary = [0u64; ANCILLARY_WORDS];
        let mut piece = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let length = size_of_val(fds) as u32;
            header.msg_control = ancillary.as_mut_ptr().cast();
            // SAFETY: arithmetic on a length.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
            // SAFETY: reads the header only.
            let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
            // SAFETY: the header has room for ancillary data, so there is a first one.
            let first = unsafe { &mut *first };
            first.cmsg_level = libc::SOL_SOCKET;
            first.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: arithmetic on a length.
            first.cmsg_len = unsafe { libc::CMSG_LEN(length) } as usize;
            // SAFETY: the data of a header in `ancillary`.
            let data = unsafe { libc::CMSG_DATA(first) };
            // SAFETY: `ancillary` has room for MAX_FDS descriptors behind the header.
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

    /// Sends the first request of a conversation; gives the answer. A process that rejects a connection without reading its
    /// request closes it behind the reason.
    pub(crate) fn begin<T: DeserializeOwned>(
        &self,
        request: &impl Serialize,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.first_answer(self.send(request, &[]))
    }

    /// The answer to a first request that was sent, or could not be.
    pub(super) fn first_answer<T: DeserializeOwned>(
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
            answer => answer,
        }
    }

    /// The next message and the descriptors that came with it; `None` at the end of the
    /// conversation. A message that is no message of ours is `InvalidData`. Where its descriptors get no
    /// number it is lost, and the error is EMFILE or ENFILE.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = [0u8; MAX_MESSAGE_BYTES];
        let mut ancillary = [0u64; ANCILLARY_WORDS];
        let (length, fds) = self.receive_bytes(&mut bytes, &mut ancillary)?;
        let message = parse(bytes.get(..length?).unwrap_or_default())?;
        Ok(message.map(|message| (message, fds)))
    }

    /// As [`Socket::receive`], for who polls: whatever descriptors come, also with a message that is none, are left
    /// to the release thread when they are dropped.
    pub(crate) fn receive_foreign<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Vec<Descriptor>)>> {
        let mut bytes = [0u8; MAX_MESSAGE_BYTES];
        // Those for which there is no room the system would release in this call.
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

    /// The length of a message, or that it is none, and whatever descriptors came.
    fn receive_bytes(
        &self,
        bytes: &mut [u8],
        ancillary: &mut [u64],
    ) -> io::Result<(io::Result<usize>, Vec<OwnedFd>)> {
        let mut piece = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: integers and null pointers are valid as zero bytes.
        let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = ancillary.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(ancillary);
        let got = loop {
            let (fd, flags) = (self.0.as_raw_fd(), libc::MSG_CMSG_CLOEXEC);
            // SAFETY: everything that the header points to lives in this frame.
            let got = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
            if got >= 0 {
                break got as usize;
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
        // Too long, or with more descriptors than there was room for: those that came are closed.
        let is_cut = header.msg_flags & libc::MSG_CTRUNC != 0;
        if is_cut && fds.len() <= MAX_FDS {
            // There was room for more of them: the system gave no number, or refused them. Another one shows which.
            let refused = "the system refused a descriptor: look at its security policy";
            let error = sys::Event::new().err();
            return Ok((Err(error.unwrap_or_else(|| io::Error::other(refused))), fds));
        }
        if is_cut || header.msg_flags & libc::MSG_TRUNC != 0 || fds.len() > MAX_FDS {
            let error = io::Error::new(io::ErrorKind::InvalidData, "the message is too long");
            return Ok((Err(error), fds));
        }
        Ok((Ok(got), fds))
    }

    /// The groups of who is at the other end, the primary one first.
    pub(crate) fn peer_groups(&self) -> io::Result<Vec<libc::gid_t>> {
        let mut groups = vec![self.peer()?.gid];
        let mut room: Vec<libc::gid_t> = vec![0; 64];
        loop {
            let mut length = size_of_val(room.as_slice()) as libc::socklen_t;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
            let (fd, to) = (self.0.as_raw_fd(), room.as_mut_ptr().cast());
            // SAFETY: the kernel writes at most `length` bytes to a vector of that size.
            let got = unsafe { libc::getsockopt(fd, level, option, to, &raw mut length) };
            let count = length as usize / size_of::<libc::gid_t>();
            match checked(got) {
                Ok(_) => {
                    groups.extend(room.into_iter().take(count));
                    return Ok(groups);
                }
                Err(error) if error.raw_os_error() == Some(libc::ERANGE) => room.resize(count, 0),
                Err(error) => return Err(error),
            }
        }
    }

    /// Its descriptor, to be waited for.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// True if the other end is gone.
    pub(crate) fn is_over(&self) -> bool {
        let mut byte = 0u8;
        let (fd, to) = (self.0.as_raw_fd(), (&raw mut byte).cast());
        // SAFETY: one byte of this frame.
        let got = unsafe { libc::recv(fd, to, 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
        let waits = || io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        got == 0 || (got < 0 && !waits())
    }

    /// Reads nothing any more: a thread that waits for a message finds the end, the peer does not.
    pub(crate) fn shut_down_reading(&self) {
        // SAFETY: two integers. It fails only if the peer is gone.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RD) };
    }

    /// Says nothing any more: for the other end this is over. What it says is still heard.
    pub(crate) fn shut_down_writing(&self) {
        // SAFETY: two integers. It fails only if the other end is gone.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
    }

    /// Waits until the other end is gone, or says something, for so long at most.
    pub(crate) fn await_end(&self, limit: Duration) {
        sys::await_one(self.fd(), limit);
    }

    /// Ends the conversation, also for a thread that waits for a message.
    pub(crate) fn shut_down(&self) {
        // SAFETY: two integers. It fails only if the other end is gone.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The file may be closed later, and by another thread: the peer learns of the end now. A child of a fork has
        // another file under the number.
        self.shut_down();
    }
}

/// The process that has a peer's number, if it is one of the same user and lives: whoever got the
/// number since is then no stranger to the one who had it.
fn process_of(peer: Peer) -> io::Result<OwnedFd> {
    let process = sys::process(peer.pid)?;
    let status = fs::read_to_string(format!("/proc/{}/status", peer.pid))?;
    let mut lines = status.lines();
    let users = lines.find_map(|line| line.strip_prefix("Uid:"));
    // Real, effective, saved and of the file system.
    let effective = users.and_then(|users| users.split_whitespace().nth(1)?.parse().ok());
    // It lived while it was looked at: what was read is of this process.
    if effective != Some(peer.uid) || sys::is_over(&process) {
        return Err(io::Error::other("the one that connected is gone"));
    }
    Ok(process)
}

/// The message in these bytes; `None` at the end of the conversation.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<T>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|e| invalid(e.to_string()))?;
    if !rest.is_empty() {
        return Err(invalid("there is more behind the message".to_owned()));
    }
    Ok(Some(message))
}

/// Sends what is too long for one message.
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

/// The descriptors that came with a message, now ours.
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the header in; what it points to is alive.
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
                // SAFETY: the kernel made the descriptor for us just now.
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
