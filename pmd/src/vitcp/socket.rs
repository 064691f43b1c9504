//! TCP sockets that never block: made, watched, written from many places and read into many.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::fork::Descriptor;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::credentials::Credentials;
use super::secure::Secure;
use crate::datapath::stream::Pieces;

/// Connections that the kernel completes before they are accepted.
const BACKLOG: i32 = 1024;
/// Probes of a silent host without an answer, after which it is lost.
const PROBES: u32 = 3;
/// Bytes that one TCP segment is taken to carry where the path does not tell.
const LEAST_SEGMENT_BYTES: u32 = 536;

/// How the connections of a NIC behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habits {
    /// A host that was silent for so long is asked whether it is there; zero: never.
    pub(super) probe: Duration,
}

/// What the system says of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) host: [u8; 16],
    pub(super) port: u16,
    /// The interface of a link-local address; 0 for others.
    pub(super) scope: u32,
}

impl End {
    pub(super) fn of(address: io::Result<SockAddr>) -> io::Result<Self> {
        let address = address?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let host = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let scope = match address {
            SocketAddr::V4(_) => 0,
            SocketAddr::V6(v6) => v6.scope_id(),
        };
        Ok(Self {
            host,
            port: address.port(),
            scope,
        })
    }

    pub(super) fn address(self) -> SocketAddr {
        let v6 = Ipv6Addr::from(self.host);
        match v6.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), self.port),
            None => SocketAddrV6::new(v6, self.port, 0, self.scope).into(),
        }
    }
}

/// One TCP connection, or what may become one; TLS stands between it and us if the NIC is told so.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Descriptor,
    secure: Option<Box<Secure>>,
}

impl Stream {
    /// Begins to connect from `local`, whose port the system chooses, to `remote`.
    pub(super) fn connect(
        local: End,
        remote: End,
        habits: Habits,
        credentials: Option<&Credentials>,
    ) -> io::Result<Self> {
        let descriptor = new_socket(local.address())?;
        let socket = SockRef::from(&descriptor);
        tune(&socket, habits)?;
        // Four numbers name a connection, not the port alone: as many to each host as there are ports.
        set_flag(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
        let from = End { port: 0, ..local };
        socket.bind(&from.address().into())?;
        match socket.connect(&remote.address().into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let peer = remote.address().ip();
        let secure = credentials.map(|credentials| Secure::asking(credentials, peer));
        Ok(Self {
            socket: descriptor,
            secure: secure.transpose()?,
        })
    }

    /// A connection that another process of this host took.
    pub(super) fn passed(socket: Descriptor, habits: Habits) -> io::Result<Self> {
        Self::taken(socket.into_foreign(), habits)
    }

    /// Another process of this host may have it open, too: who closes it last may have to wait.
    pub(super) fn set_foreign(&mut self) {
        self.socket.set_foreign();
    }

    /// May another process of this host have it open?
    pub(super) fn is_foreign(&self) -> bool {
        self.socket.is_foreign()
    }

    fn taken(descriptor: Descriptor, habits: Habits) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        socket.set_nonblocking(true)?;
        tune(&socket, habits)?;
        Ok(Self {
            socket: descriptor,
            secure: None,
        })
    }

    fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.socket)
    }

    /// Is there TLS, or to be?
    pub(super) fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// Does one end not know yet who the other is?
    pub(super) fn is_unproven(&self) -> bool {
        (self.secure.as_ref()).is_some_and(|secure| !secure.is_established())
    }

    /// May there be more to be read, though the last read brought less than was asked for?
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.has_more())
    }

    /// Does something that was taken wait for room in TCP?
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        (self.secure.as_ref()).is_some_and(|secure| secure.is_waiting())
    }

    /// TCP may have room again: what waits for that is written. True if nothing waits any more.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        match &mut self.secure {
            None => true,
            // If TCP is gone that is read, too.
            Some(secure) => secure.flush(&self.socket, false).unwrap_or(true),
        }
    }

    /// Why it could not be made, once it is known.
    pub(super) fn take_error(&self) -> io::Result<()> {
        self.socket().take_error()?.map_or(Ok(()), Err)
    }

    pub(super) fn near(&self) -> io::Result<End> {
        End::of(self.socket().local_addr())
    }

    pub(super) fn far(&self) -> io::Result<End> {
        End::of(self.socket().peer_addr())
    }

    /// What one TCP segment of this connection carries, as far as the path has told, and whether
    /// its segments have timestamps.
    pub(super) fn segment_bytes(&self) -> (u32, bool) {
        // SAFETY: integers are valid as zero bytes.
        let mut info: libc::tcp_info = unsafe { core::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        let (fd, to) = (self.socket.as_raw_fd(), (&raw mut info).cast());
        // SAFETY: the kernel writes at most `length` bytes to a value of that size.
        let got =
            unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut length) };
        const TIMESTAMPS: u8 = 1;
        match got {
            0 if info.tcpi_snd_mss > 0 => (
                info.tcpi_snd_mss.max(LEAST_SEGMENT_BYTES),
                info.tcpi_options & TIMESTAMPS != 0,
            ),
            _ => (LEAST_SEGMENT_BYTES, true),
        }
    }

    /// Writes from these places, in their order; how many bytes the system took. `more`: a part of
    /// a segment waits for what follows, or for [`Stream::push`].
    ///
    /// # Safety
    /// The pieces may be read; what is not mapped is an error, but must be mapped for TLS.
    #[inline]
    pub(super) unsafe fn send(&mut self, pieces: &Pieces, more: bool) -> io::Result<usize> {
        if let Some(secure) = &mut self.secure {
            // SAFETY: passed on from our caller.
            return unsafe { secure.send(&self.socket, pieces, more) };
        }
        let fd = self.socket.as_raw_fd();
        let mut flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        if more {
            flags |= libc::MSG_MORE;
        }
        loop {
            let sent = match pieces.as_slice() {
                // SAFETY: the caller vouches for the piece.
                [one] => unsafe { send(fd, one.iov_base, one.iov_len, flags) },
                many => {
                    let mut header = empty_header();
                    header.msg_iov = many.as_ptr().cast_mut();
                    header.msg_iovlen = many.len();
                    // SAFETY: the header points to pieces that the caller vouches for.
                    unsafe { libc::sendmsg(fd, &raw const header, flags) }
                }
            };
            if let Some(result) = outcome(sent) {
                return result;
            }
        }
    }

    /// Reads into these places, in their order; 0 at the end of what the other end sends.
    ///
    /// # Safety
    /// The pieces may be written, and nobody has a reference to their bytes; what is not mapped
    /// is an error, but must be mapped for TLS.
    #[inline]
    pub(super) unsafe fn receive(&mut self, pieces: &Pieces) -> io::Result<usize> {
        if let Some(secure) = &mut self.secure {
            // SAFETY: passed on from our caller.
            return unsafe { secure.receive(&self.socket, pieces) };
        }
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        loop {
            let got = match pieces.as_slice() {
                // SAFETY: the caller vouches for the piece.
                [one] => unsafe { receive(fd, one.iov_base, one.iov_len, flags) },
                many => {
                    let mut header = empty_header();
                    header.msg_iov = many.as_ptr().cast_mut();
                    header.msg_iovlen = many.len();
                    // SAFETY: the header points to pieces that the caller vouches for.
                    unsafe { libc::recvmsg(fd, &raw mut header, flags) }
                }
            };
            if let Some(result) = outcome(got) {
                return result;
            }
        }
    }

    /// What was written goes, though it is only a part of a segment.
    pub(super) fn push(&self) {
        // The system sends what waits when this is set, also if it was; one that is gone is told of.
        let _gone = self.socket().set_tcp_nodelay(true);
    }

    /// Writes bytes; how many the system took.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(secure) = &mut self.secure {
            return secure.send_bytes(&self.socket, bytes);
        }
        loop {
            let (fd, from) = (self.socket.as_raw_fd(), bytes.as_ptr().cast());
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the kernel reads a slice of the caller's.
            let sent = unsafe { send(fd, from, bytes.len(), flags) };
            if let Some(result) = outcome(sent) {
                return result;
            }
        }
    }

    /// Reads bytes; 0 at the end of what the other end sends.
    pub(super) fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.secure {
            None => receive_into(&self.socket, bytes),
            Some(secure) => secure.receive_bytes(&self.socket, bytes),
        }
    }

    /// Reads what nobody wants to know any more; 0 at the end.
    pub(super) fn drain(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive_into(&self.socket, buffer)
    }

    /// Says that nothing more comes from here. False if what was sent before waits for room in TCP:
    /// then it is to be called again.
    pub(super) fn finish(&mut self) -> bool {
        if let Some(secure) = &mut self.secure
            && !secure.finish(&self.socket)
        {
            return false;
        }
        self.shut_down();
        true
    }

    /// As [`Stream::finish`], where nothing may be said with TLS any more.
    pub(super) fn cut(&mut self) -> bool {
        let flushed = self.flush();
        if flushed {
            self.shut_down();
        }
        flushed
    }

    /// Behind what TCP has comes its end.
    pub(super) fn shut_down(&self) {
        // A connection that is gone has been told.
        let _gone = self.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Has TCP bytes that the other end's has not acknowledged?
    pub(super) fn has_unheard(&self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes an integer of this frame.
        let got = unsafe {
            libc::ioctl(
                self.socket.as_raw_fd(),
                libc::TIOCOUTQ,
                core::ptr::from_mut(&mut bytes),
            )
        };
        got == 0 && bytes > 0
    }

    /// Says with TLS that this is the end, if there is room for that: it is closed next.
    pub(super) fn part(&mut self) {
        if let Some(secure) = &mut self.secure {
            let _waits = secure.finish(&self.socket);
        }
    }
}

/// Reads bytes of a socket; 0 at the end of what the other end sends.
pub(super) fn receive_into(socket: &Descriptor, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        let (fd, to) = (socket.as_raw_fd(), bytes.as_mut_ptr().cast());
        // SAFETY: the kernel writes to a slice of the caller's.
        let got = unsafe { receive(fd, to, bytes.len(), libc::MSG_DONTWAIT) };
        if let Some(result) = outcome(got) {
            return result;
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `send`, without what the C library has around it where a thread can be cancelled: our callers
/// never wait there.
///
/// # Safety
/// As for `libc::send`.
#[inline]
unsafe fn send(fd: RawFd, from: *const libc::c_void, bytes: usize, flags: libc::c_int) -> isize {
    let nobody = core::ptr::null::<libc::sockaddr>();
    // SAFETY: `sendto` without an address, passed on from our caller.
    let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, from, bytes, flags, nobody, 0usize) };
    sent as isize
}

/// `recv` likewise.
///
/// # Safety
/// As for `libc::recv`.
#[inline]
unsafe fn receive(fd: RawFd, to: *mut libc::c_void, bytes: usize, flags: libc::c_int) -> isize {
    let nobody = core::ptr::null_mut::<libc::sockaddr>();
    // SAFETY: `recvfrom` that asks for no address, passed on from our caller.
    let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, bytes, flags, nobody, nobody) };
    got as isize
}

fn empty_header() -> libc::msghdr {
    // SAFETY: integers and null pointers are valid as zero bytes.
    unsafe { core::mem::zeroed() }
}

/// `None`: once more.
fn outcome(result: isize) -> Option<io::Result<usize>> {
    if let Ok(bytes) = usize::try_from(result) {
        return Some(Ok(bytes));
    }
    let error = io::Error::last_os_error();
    (error.kind() != io::ErrorKind::Interrupted).then_some(Err(error))
}

/// Must whoever got this try again later?
pub(super) fn is_for_later(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn new_socket(address: SocketAddr) -> io::Result<Descriptor> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let domain = Domain::for_address(address);
    Descriptor::make(|| Socket::new(domain, kind, Some(Protocol::TCP)).map(Into::into))
}

/// Binds to an address for a moment: it is one of this host, and nobody listens there.
pub(crate) fn try_bind(address: SocketAddr) -> io::Result<()> {
    let descriptor = new_socket(address)?;
    let socket = SockRef::from(&descriptor);
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

fn set_flag(socket: &SockRef<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<()> {
    let value: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let (fd, from) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the kernel reads a value of this frame, of that size.
    match unsafe { libc::setsockopt(fd, level, option, from, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Small messages go at once: what belongs together is written together. A host that is gone is
/// noticed, whether anything is on its way to it or not.
fn tune(socket: &SockRef<'_>, habits: Habits) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if habits.probe.is_zero() {
        return Ok(());
    }
    // The kernel counts in seconds.
    let probe = Duration::from_secs(habits.probe.as_millis().div_ceil(1000) as u64);
    let keepalive = TcpKeepalive::new()
        .with_time(probe)
        .with_interval(probe)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(probe * (PROBES + 1)))
}

/// Where connections come in.
#[derive(Debug)]
pub(super) struct Listening(Descriptor);

impl Listening {
    /// Listens at an address and port of this host.
    pub(super) fn bind(at: End) -> io::Result<Self> {
        let descriptor = new_socket(at.address())?;
        let socket = SockRef::from(&descriptor);
        socket.set_reuse_address(true)?;
        socket.bind(&at.address().into())?;
        socket.listen(BACKLOG)?;
        Ok(Self(descriptor))
    }

    /// That which another process of this host listens at, too.
    pub(super) fn shared(socket: Descriptor) -> Self {
        Self(socket.into_foreign())
    }

    /// Another process of this host has it open, too.
    pub(super) fn set_foreign(&mut self) {
        self.0.set_foreign();
    }

    /// The next connection that came in, if there is one.
    pub(super) fn accept(
        &self,
        habits: Habits,
        credentials: Option<&Credentials>,
    ) -> io::Result<Stream> {
        // It never waits, so nobody who forks does.
        let accept = || {
            SockRef::from(&self.0)
                .accept()
                .map(|(socket, _)| socket.into())
        };
        let mut stream = Stream::taken(Descriptor::make(accept)?, habits)?;
        stream.secure = credentials.map(Secure::asked).transpose()?;
        Ok(stream)
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What happened on a socket that is watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The number under which it is watched.
    pub(super) number: u64,
    /// There is something to be read, or the end.
    pub(super) readable: bool,
    /// There is room again, or the connection is made or failed.
    pub(super) writable: bool,
    /// Behind what is to be read comes the end.
    pub(super) over: bool,
}

/// Tells which of many sockets something happened on, at the cost of those alone.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    /// It was logged that a look failed.
    failure_logged: bool,
}

/// Sockets that one look tells of, at most.
const SEEN_AT_ONCE: usize = 64;

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self {
            epoll: Epoll(above_standard_streams(epoll.0)?),
            events: vec![EpollEvent::empty(); SEEN_AT_ONCE],
            failure_logged: false,
        })
    }

    /// Tells each change of a connection once: whoever is told of one reads until nothing is
    /// left, and writes until there is no room.
    pub(super) fn add(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        let changes = EpollFlags::EPOLLIN
            | EpollFlags::EPOLLOUT
            | EpollFlags::EPOLLRDHUP
            | EpollFlags::EPOLLET;
        Ok(self.epoll.add(socket, EpollEvent::new(changes, number))?)
    }

    /// Tells of it as long as something waits there.
    pub(super) fn add_while_readable(&self, socket: impl AsFd, number: u64) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number);
        Ok(self.epoll.add(socket, event)?)
    }

    /// Tells no more of a socket that stays open.
    pub(super) fn remove(&self, socket: impl AsFd) {
        // One that was never added is none that it tells of.
        let _never_added = self.epoll.delete(socket);
    }

    /// Looks; on how many sockets something happened since the last look.
    pub(super) fn look(&mut self) -> usize {
        match self.epoll.wait(&mut self.events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => {
                // Only a filter of system calls makes it fail, and then each look does.
                if !core::mem::replace(&mut self.failure_logged, true) {
                    log::error!("no TCP connection is served any more: epoll_wait: {error}");
                }
                0
            }
        }
    }

    /// Waits until something happens, for so long at most.
    pub(super) fn wait(&mut self, limit: Duration) {
        let limit = EpollTimeout::try_from(limit).unwrap_or(EpollTimeout::ZERO);
        // Whoever waits looks himself.
        let _seen = self.epoll.wait(&mut self.events, limit);
    }

    /// One of those that the last look found.
    pub(super) fn seen(&self, at: usize) -> Option<Seen> {
        let event = self.events.get(at)?;
        let happened = event.events();
        let broken = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        let over = EpollFlags::EPOLLRDHUP | broken;
        Some(Seen {
            number: event.data(),
            readable: happened.intersects(EpollFlags::EPOLLIN | over),
            writable: happened.intersects(EpollFlags::EPOLLOUT | broken),
            over: happened.intersects(over),
        })
    }

    /// What becomes readable when something has happened.
    pub(super) fn descriptor(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}
