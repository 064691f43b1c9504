//! The driver's system calls: AF_XDP sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::af_packet::socket::{check, option, set_option};
use crate::fork::Descriptor;
use crate::mapping::Mapping;

/// A socket of the family AF_XDP.
#[derive(Debug)]
pub(super) struct XdpSocket(Descriptor);

impl XdpSocket {
    pub(super) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        Descriptor::make(|| {
            // SAFETY: takes three integers and touches no memory of ours.
            let fd = check(unsafe { libc::socket(libc::AF_XDP, kind, 0) })?;
            // SAFETY: the descriptor is new and has no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .map(Self)
    }

    fn set<T>(&self, name: libc::c_int, value: &T) -> io::Result<()> {
        set_option(self.as_fd(), libc::SOL_XDP, name, value)
    }

    fn get<T>(&self, name: libc::c_int, value: &mut T) -> io::Result<()> {
        option(self.as_fd(), libc::SOL_XDP, name, value)
    }

    /// Registers memory that is divided into chunks for this socket and all sockets that share it.
    /// The kernel pins the pages until the last of them is closed.
    pub(super) fn register(&self, memory: &Mapping, chunk_bytes: u32) -> io::Result<()> {
        let request = libc::xdp_umem_reg {
            addr: memory.as_ptr().as_ptr() as u64,
            len: memory.len() as u64,
            chunk_size: chunk_bytes,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.set(libc::XDP_UMEM_REG, &request)
    }

    /// Makes the kernel allocate a ring of `entries` entries, a power of two.
    pub(super) fn make_ring(&self, name: libc::c_int, entries: u32) -> io::Result<()> {
        self.set(name, &entries)
    }

    /// Returns the offsets of the words and entries in each ring.
    pub(super) fn ring_offsets(&self) -> io::Result<libc::xdp_mmap_offsets> {
        const NONE: libc::xdp_ring_offset = libc::xdp_ring_offset {
            producer: 0,
            consumer: 0,
            desc: 0,
            flags: 0,
        };
        let mut offsets = libc::xdp_mmap_offsets {
            rx: NONE,
            tx: NONE,
            fr: NONE,
            cr: NONE,
        };
        self.get(libc::XDP_MMAP_OFFSETS, &mut offsets)?;
        Ok(offsets)
    }

    /// Binds to a queue of an interface, with `XDP_...` flags; with
    /// `XDP_SHARED_UMEM` the memory is that of `owner`.
    pub(super) fn bind(
        &self,
        interface: i32,
        queue: u32,
        flags: u16,
        owner: Option<&Self>,
    ) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface.cast_unsigned(),
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: owner.map_or(0, |owner| owner.0.as_raw_fd().cast_unsigned()),
        };
        // SAFETY: the pointer and the length describe one live sockaddr_xdp.
        check(unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_xdp>() as libc::socklen_t,
            )
        })?;
        Ok(())
    }

    /// Returns whether the interface itself reads and writes the chunks.
    pub(super) fn is_zero_copy(&self) -> io::Result<bool> {
        let mut options = libc::xdp_options { flags: 0 };
        self.get(libc::XDP_OPTIONS, &mut options)?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Returns the kernel's counters since the socket was opened.
    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        let mut statistics = libc::xdp_statistics {
            rx_dropped: 0,
            rx_invalid_descs: 0,
            tx_invalid_descs: 0,
            rx_ring_full: 0,
            rx_fill_ring_empty_descs: 0,
            tx_ring_empty_descs: 0,
        };
        self.get(libc::XDP_STATISTICS, &mut statistics)?;
        Ok(statistics)
    }

    /// Requests a send buffer of this size. A smaller one only means that a
    /// burst takes several system calls, so an error is ignored.
    pub(super) fn set_send_buffer(&self, bytes: usize) {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let _ = set_option(self.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
    }

    /// Makes the kernel send the frames of the send ring.
    #[inline]
    pub(super) fn wake_sender(&self) -> io::Result<()> {
        // SAFETY: no buffer and no address are passed.
        let result = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                core::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                core::ptr::null(),
                0,
            )
        };
        check(result as libc::c_int)?;
        Ok(())
    }

    /// Makes the interface's driver take chunks from the fill ring.
    pub(super) fn wake_receiver(&self) {
        // SAFETY: no buffer and no address are passed.
        unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                core::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
                core::ptr::null_mut(),
            )
        };
        // An error means that the interface is down, which upkeep detects.
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An epoll descriptor that is readable if any of several sockets is.
#[derive(Debug)]
pub(super) struct SocketEpoll(Descriptor);

impl SocketEpoll {
    pub(super) fn new<'a>(sockets: impl Iterator<Item = &'a XdpSocket>) -> io::Result<Self> {
        let epoll = Descriptor::make(|| {
            // SAFETY: takes one integer.
            let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
            // SAFETY: the descriptor is new and has no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })?;
        for socket in sockets {
            let mut event = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0,
            };
            // SAFETY: both descriptors are open, and the event outlives the call.
            check(unsafe {
                libc::epoll_ctl(
                    epoll.as_raw_fd(),
                    libc::EPOLL_CTL_ADD,
                    socket.0.as_raw_fd(),
                    &raw mut event,
                )
            })?;
        }
        Ok(Self(epoll))
    }
}

impl AsFd for SocketEpoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
