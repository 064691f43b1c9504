//! Non-blocking TCP sockets with vectored I/O, and epoll.

use core::mem::offset_of;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use pmd_port::fork::Descriptor;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::Credentials;
use super::TlsSession;
use super::context::Context;
use super::counters::Counter;
use super::stream_error::{is_tls_error, is_truncated};
use vitcp_lite::source::host_of;
use vitcp_lite::transfer::{CloseReason, MemoryRange, MemoryRanges};

/// Backlog of a listening socket.
const BACKLOG: i32 = 1024;
/// Unanswered keepalive probes after which a host is lost.
const PROBES: u32 = 3;
/// Approximate limit of encrypted bytes that TCP has not taken; written with one system call.
pub(super) const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Maximum bytes that one call of [`Stream::discard`] discards.
const DISCARDED_BYTES: usize = 128 << 10;
/// Lower limit and default of the assumed TCP segment size in bytes.
const MIN_SEGMENT_BYTES: u32 = 536;

/// Socket options of the connections of a NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketOptions {
    /// Keepalive interval; zero disables keepalive.
    pub(super) keepalive: Duration,
}

/// Builds a socket address of a host address in IPv6 form. `scope`: the interface of a link-local
/// address; 0 for others.
pub(super) fn socket_address(host: [u8; 16], port: u16, scope: u32) -> SocketAddr {
    let v6 = Ipv6Addr::from(host);
    match v6.to_ipv4_mapped() {
        Some(v4) => SocketAddr::new(v4.into(), port),
        None => SocketAddrV6::new(v6, port, 0, scope).into(),
    }
}

/// Returns the interface number of a link-local address; 0 for others.
pub(super) fn scope_of(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// Returns an address in a form that compares equal for the same host and port: an IPv4-mapped
/// address as IPv4, and without flow label.
pub(super) fn normalized(address: SocketAddr) -> SocketAddr {
    socket_address(host_of(address), address.port(), scope_of(address))
}

fn normalized_name(name: io::Result<SockAddr>) -> io::Result<SocketAddr> {
    let address = name?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    Ok(normalized(address))
}

/// A TCP socket of a connection, with TLS if the NIC is configured so.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Descriptor,
    tls: Option<Box<TlsSession>>,
}

impl Stream {
    /// Starts a connect from the host of `local`, with an ephemeral port, to `remote`.
    pub(super) fn connect(
        local: SocketAddr,
        remote: SocketAddr,
        options: SocketOptions,
        credentials: Option<&Credentials>,
    ) -> io::Result<Self> {
        let descriptor = new_socket(local)?;
        let socket = SockRef::from(&descriptor);
        set_options(&socket, options)?;
        // The port is chosen at connect, unique for the remote address only: the range of ephemeral
        // ports limits connections to each host, not all of them together.
        set_flag(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT)?;
        let mut from = local;
        from.set_port(0);
        socket.bind(&from.into())?;
        match socket.connect(&remote.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        let peer = remote.ip();
        let tls = credentials.map(|credentials| TlsSession::client(credentials, peer));
        Ok(Self {
            socket: descriptor,
            tls: tls.transpose()?,
        })
    }

    /// Creates a stream of a connection that another process of this host accepted.
    pub(super) fn passed(socket: Descriptor, options: SocketOptions) -> io::Result<Self> {
        Self::from_descriptor(socket.into_foreign(), options)
    }

    /// Marks the socket as shared with another process of this host: its close may block.
    pub(super) fn set_foreign(&mut self) {
        self.socket.set_foreign();
    }

    /// Checks whether the socket may be shared with another process of this host.
    pub(super) fn is_foreign(&self) -> bool {
        self.socket.is_foreign()
    }

    fn from_descriptor(descriptor: Descriptor, options: SocketOptions) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        socket.set_nonblocking(true)?;
        set_options(&socket, options)?;
        Ok(Self {
            socket: descriptor,
            tls: None,
        })
    }

    fn socket(&self) -> SockRef<'_> {
        SockRef::from(&self.socket)
    }

    /// Checks whether the connection uses TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Checks whether the TLS handshake is incomplete; false without TLS.
    pub(super) fn is_handshaking(&self) -> bool {
        (self.tls.as_ref()).is_some_and(|tls| !tls.is_established())
    }

    /// As [`TlsSession::permit_handshake`].
    pub(super) fn permit_handshake(&mut self, permitted: bool) {
        if let Some(tls) = &mut self.tls {
            tls.permit_handshake(permitted);
        }
    }

    /// Returns the number of TLS records that the last reads processed.
    #[inline]
    pub(super) fn take_records(&mut self) -> u32 {
        self.tls.as_mut().map_or(0, |tls| tls.take_records())
    }

    /// Checks whether the peer's certificate is valid for its address; true without TLS.
    pub(super) fn is_certified_for(&self, address: IpAddr) -> bool {
        (self.tls.as_ref()).is_none_or(|tls| tls.is_certified_for(address))
    }

    /// Checks whether more data may be readable although the last read was short.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_more())
    }

    /// Checks whether accepted data waits for space in the TCP send buffer; false without TLS.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        (self.tls.as_ref()).is_some_and(|tls| tls.has_unsent())
    }

    /// Writes waiting TLS data when TCP may have space again. Returns true if none is left.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        match &mut self.tls {
            None => true,
            // A broken connection is reported by the next read.
            Some(tls) => tls.flush(&self.socket, false).unwrap_or(true),
        }
    }

    /// Returns and clears the pending error of the connect.
    pub(super) fn take_error(&self) -> io::Result<()> {
        self.socket().take_error()?.map_or(Ok(()), Err)
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        normalized_name(self.socket().local_addr())
    }

    pub(super) fn remote_address(&self) -> io::Result<SocketAddr> {
        normalized_name(self.socket().peer_addr())
    }

    /// Returns the current maximum segment size of TCP in bytes, and whether TCP timestamps are in use.
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
                info.tcpi_snd_mss.max(MIN_SEGMENT_BYTES),
                info.tcpi_options & TIMESTAMPS != 0,
            ),
            _ => (MIN_SEGMENT_BYTES, true),
        }
    }

    /// Sends these memory ranges, in order; returns the bytes that TCP took. `more`: TCP holds a
    /// partial segment back until more is written, or [`Stream::push`].
    ///
    /// # Safety
    /// The memory may be read. Unmapped memory is an error; with TLS it must be mapped.
    #[inline]
    pub(super) unsafe fn send(&mut self, ranges: &MemoryRanges, more: bool) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            // SAFETY: passed on from our caller.
            return unsafe { tls.send(&self.socket, ranges, more) };
        }
        let fd = self.socket.as_raw_fd();
        let mut flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        if more {
            flags |= libc::MSG_MORE;
        }
        loop {
            let sent = match iovecs(ranges) {
                // SAFETY: the caller vouches for the range.
                [one] => unsafe { send(fd, one.iov_base, one.iov_len, flags) },
                many => {
                    let mut header = empty_header();
                    header.msg_iov = many.as_ptr().cast_mut();
                    header.msg_iovlen = many.len();
                    // SAFETY: the header points to ranges that the caller vouches for.
                    unsafe { libc::sendmsg(fd, &raw const header, flags) }
                }
            };
            if let Some(result) = syscall_result(sent) {
                return result;
            }
        }
    }

    /// Reads into these memory ranges, in order; returns the bytes, 0 at the end of the stream.
    ///
    /// # Safety
    /// The memory may be written, and no reference to its bytes exists. Unmapped memory is an error; with
    /// TLS it must be mapped.
    #[inline]
    pub(super) unsafe fn receive(&mut self, ranges: &MemoryRanges) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            // SAFETY: passed on from our caller.
            return unsafe { tls.receive(&self.socket, ranges) };
        }
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        loop {
            let got = match iovecs(ranges) {
                // SAFETY: the caller vouches for the range.
                [one] => unsafe { receive(fd, one.iov_base, one.iov_len, flags) },
                many => {
                    let mut header = empty_header();
                    header.msg_iov = many.as_ptr().cast_mut();
                    header.msg_iovlen = many.len();
                    // SAFETY: the header points to ranges that the caller vouches for.
                    unsafe { libc::recvmsg(fd, &raw mut header, flags) }
                }
            };
            if let Some(result) = syscall_result(got) {
                return result;
            }
        }
    }

    /// Sends a partial segment that TCP holds back.
    pub(super) fn push(&self) {
        // Setting the option sends pending data, even if it was set. A broken connection is reported by
        // the next read.
        let _ignored = self.socket().set_tcp_nodelay(true);
    }

    /// Sends bytes; returns the count that TCP took.
    pub(super) fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(tls) = &mut self.tls {
            return tls.send_bytes(&self.socket, bytes);
        }
        loop {
            let (fd, from) = (self.socket.as_raw_fd(), bytes.as_ptr().cast());
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the kernel reads a slice of the caller's.
            let sent = unsafe { send(fd, from, bytes.len(), flags) };
            if let Some(result) = syscall_result(sent) {
                return result;
            }
        }
    }

    /// Reads bytes; 0 at the end of the stream.
    pub(super) fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => receive_into(&self.socket, bytes),
            Some(tls) => tls.receive_bytes(&self.socket, bytes),
        }
    }

    /// Discards received raw bytes, without TLS, at most [`DISCARDED_BYTES`]; returns their number, 0 at the end of the
    /// stream.
    pub(super) fn discard(&mut self) -> io::Result<usize> {
        let (fd, nowhere) = (self.socket.as_raw_fd(), core::ptr::null_mut());
        // TCP drops the bytes instead of copying them.
        let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        loop {
            // SAFETY: of a TCP socket the kernel writes nothing with `MSG_TRUNC`.
            let got = unsafe { receive(fd, nowhere, DISCARDED_BYTES, flags) };
            if let Some(result) = syscall_result(got) {
                return result;
            }
        }
    }

    /// Closes the sending direction: close_notify with TLS, then FIN. False if earlier data waits for
    /// space in TCP: call again later.
    pub(super) fn finish(&mut self) -> bool {
        if let Some(tls) = &mut self.tls
            && !tls.finish(&self.socket)
        {
            return false;
        }
        self.shut_down();
        true
    }

    /// As [`Stream::finish`], without close_notify.
    pub(super) fn finish_without_notify(&mut self) -> bool {
        let flushed = self.flush();
        if flushed {
            self.shut_down();
        }
        flushed
    }

    /// Shuts the sending direction down: FIN after the data in the send buffer.
    pub(super) fn shut_down(&self) {
        // It fails only for a connection that is closed already.
        let _ignored = self.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Checks whether TCP has bytes that the peer's TCP has not acknowledged.
    pub(super) fn has_unacknowledged(&self) -> bool {
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

    /// Sends a TLS close_notify if TCP has space for it; the caller closes the connection next.
    pub(super) fn send_close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            let _sent = tls.finish(&self.socket);
        }
    }
}

/// Returns memory ranges in the form that system calls take.
fn iovecs(ranges: &MemoryRanges) -> &[libc::iovec] {
    const _: () = assert!(
        size_of::<MemoryRange>() == size_of::<libc::iovec>()
            && align_of::<MemoryRange>() == align_of::<libc::iovec>()
            && offset_of!(MemoryRange, address) == offset_of!(libc::iovec, iov_base)
            && offset_of!(MemoryRange, bytes) == offset_of!(libc::iovec, iov_len)
    );
    let ranges = ranges.as_slice();
    // SAFETY: both types are an address and a length, of the same layout, and any value of either is valid. Only the
    // kernel follows the addresses.
    unsafe { core::slice::from_raw_parts(ranges.as_ptr().cast(), ranges.len()) }
}

/// Reads bytes of a socket; 0 at the end of the stream.
pub(super) fn receive_into(socket: &Descriptor, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        let (fd, to) = (socket.as_raw_fd(), bytes.as_mut_ptr().cast());
        // SAFETY: the kernel writes to a slice of the caller's.
        let got = unsafe { receive(fd, to, bytes.len(), libc::MSG_DONTWAIT) };
        if let Some(result) = syscall_result(got) {
            return result;
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// `send` without the cancellation point of the C library: it never blocks here.
///
/// # Safety
/// As for `libc::send`.
#[inline]
unsafe fn send(fd: RawFd, from: *const libc::c_void, bytes: usize, flags: libc::c_int) -> isize {
    let none = core::ptr::null::<libc::sockaddr>();
    // SAFETY: `sendto` without an address, passed on from our caller.
    let sent = unsafe { libc::syscall(libc::SYS_sendto, fd, from, bytes, flags, none, 0usize) };
    sent as isize
}

/// `recv` likewise.
///
/// # Safety
/// As for `libc::recv`.
#[inline]
unsafe fn receive(fd: RawFd, to: *mut libc::c_void, bytes: usize, flags: libc::c_int) -> isize {
    let none = core::ptr::null_mut::<libc::sockaddr>();
    // SAFETY: `recvfrom` that asks for no address, passed on from our caller.
    let got = unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, bytes, flags, none, none) };
    got as isize
}

fn empty_header() -> libc::msghdr {
    // SAFETY: integers and null pointers are valid as zero bytes.
    unsafe { core::mem::zeroed() }
}

/// Converts the result of a system call; `None` if it was interrupted and must be repeated.
fn syscall_result(result: isize) -> Option<io::Result<usize>> {
    if let Ok(bytes) = usize::try_from(result) {
        return Some(Ok(bytes));
    }
    let error = io::Error::last_os_error();
    (error.kind() != io::ErrorKind::Interrupted).then_some(Err(error))
}

/// Returns why a connection breaks on which a system call failed, and counts an error of TLS.
pub(super) fn close_reason(error: &io::Error, context: &mut Context) -> CloseReason {
    log::debug!("vi-tcp: connection failed: {error}");
    match error.raw_os_error() {
        Some(libc::EFAULT) => CloseReason::MemoryInvalid,
        _ if is_tls_error(error) => {
            context.count(Counter::DropTls);
            CloseReason::Tls
        }
        _ if is_truncated(error) => {
            context.count(Counter::TlsCut);
            CloseReason::Tls
        }
        _ => CloseReason::ConnectionLost,
    }
}

fn new_socket(address: SocketAddr) -> io::Result<Descriptor> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let domain = Domain::for_address(address);
    Descriptor::make(|| Socket::new(domain, kind, Some(Protocol::TCP)).map(Into::into))
}

/// Checks that an address is local and has no listener, by a temporary bind.
pub fn try_bind(address: SocketAddr) -> io::Result<()> {
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

/// Sets TCP_NODELAY, since the caller batches writes, and keepalive and user timeout, which detect a
/// lost host whether data is in flight or not.
fn set_options(socket: &SockRef<'_>, options: SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if options.keepalive.is_zero() {
        return Ok(());
    }
    // The kernel counts in seconds.
    let probe = Duration::from_secs(options.keepalive.as_millis().div_ceil(1000) as u64);
    let keepalive = TcpKeepalive::new()
        .with_time(probe)
        .with_interval(probe)
        .with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(probe * (PROBES + 1)))
}

/// A listening TCP socket.
#[derive(Debug)]
pub(super) struct ListenSocket(Descriptor);

impl ListenSocket {
    /// Listens at an address and port of this host.
    pub(super) fn bind(at: SocketAddr) -> io::Result<Self> {
        let descriptor = new_socket(at)?;
        let socket = SockRef::from(&descriptor);
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self(descriptor))
    }

    /// Creates it of a descriptor that another process of this host passed.
    pub(super) fn shared(socket: Descriptor) -> Self {
        Self(socket.into_foreign())
    }

    /// Marks the socket as shared with another process of this host.
    pub(super) fn set_foreign(&mut self) {
        self.0.set_foreign();
    }

    /// Accepts the next connection; `WouldBlock` if there is none.
    pub(super) fn accept(
        &self,
        options: SocketOptions,
        credentials: Option<&Credentials>,
    ) -> io::Result<Stream> {
        // It never blocks, so a fork does not wait for it.
        let accept = || {
            SockRef::from(&self.0)
                .accept()
                .map(|(socket, _)| socket.into())
        };
        let mut stream = Stream::from_descriptor(Descriptor::make(accept)?, options)?;
        stream.tls = credentials.map(TlsSession::server).transpose()?;
        Ok(stream)
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
