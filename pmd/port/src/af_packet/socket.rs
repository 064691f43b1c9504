//! The driver's system calls: a packet socket and its options and ioctls.

use core::mem::zeroed;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::fork::Descriptor;
use crate::port::MacBytes;

/// Constant properties of an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface {
    pub(crate) index: i32,
    pub(crate) mac: MacBytes,
    pub(crate) ethernet: bool,
}

/// Properties of an interface that can change while a port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkState {
    /// Set up by the administrator.
    pub(crate) up: bool,
    /// Up and with carrier.
    pub(crate) running: bool,
    pub(crate) mtu_bytes: u32,
}

/// Numbers of queues of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queues {
    pub(crate) receiving: u32,
    pub(crate) sending: u32,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receiving: u32,
    sending: u32,
    other: u32,
    combined: u32,
}

const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// A raw packet socket that receives nothing until it is bound.
#[derive(Debug)]
pub(crate) struct Socket(Descriptor);

/// Converts the result of a system call; -1 is the error in `errno`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// Sets a socket option of the C type `T`.
pub(crate) fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe one live value; callers
    // pass the C type of the option.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (value as *const T).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Reads a socket option of the C type `T`.
pub(crate) fn option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe one live value; callers
    // pass the C type of the option.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (value as *mut T).cast(),
            &mut len,
        )
    })?;
    Ok(())
}

fn empty_request() -> libc::ifreq {
    // SAFETY: ifreq is a C struct of bytes and integers, valid when zeroed.
    unsafe { zeroed() }
}

impl Socket {
    /// Opens the socket. With protocol 0 it receives no frames until the filter is attached.
    pub(crate) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        Descriptor::make(|| {
            // SAFETY: takes three integers and touches no memory of ours.
            let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
            // SAFETY: the descriptor is new and has no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .map(Self)
    }

    /// Looks up an interface; the name has at most 15 bytes and no NUL.
    pub(crate) fn interface(&self, name: &str) -> io::Result<Interface> {
        let mut request = empty_request();
        for (to, &from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
            *to = from as libc::c_char;
        }
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: SIOCGIFHWADDR filled this member of the union.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        let mut mac = MacBytes::default();
        for (to, &from) in mac.iter_mut().zip(&address.sa_data) {
            *to = from as u8;
        }
        Ok(Interface {
            index,
            mac,
            ethernet: address.sa_family == libc::ARPHRD_ETHER,
        })
    }

    /// Reads the link state. By index, since a name may change too.
    pub(crate) fn link_state(&self, index: i32) -> io::Result<LinkState> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex = index;
        self.ioctl(libc::SIOCGIFNAME, &mut request)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS filled this member of the union.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU filled this member of the union.
        let mtu_bytes = unsafe { request.ifr_ifru.ifru_mtu };
        let up = flags & libc::IFF_UP != 0;
        Ok(LinkState {
            up,
            running: up && flags & libc::IFF_RUNNING != 0,
            mtu_bytes: u32::try_from(mtu_bytes).unwrap_or(0),
        })
    }

    /// Reads the number of queues of an interface; not every driver supports that.
    pub(crate) fn queues(&self, index: i32) -> io::Result<Queues> {
        let mut request = empty_request();
        request.ifr_ifru.ifru_ifindex = index;
        self.ioctl(libc::SIOCGIFNAME, &mut request)?;
        let mut channels = Channels {
            command: ETHTOOL_GCHANNELS,
            ..Channels::default()
        };
        request.ifr_ifru.ifru_data = (&raw mut channels).cast();
        self.ioctl(libc::SIOCETHTOOL, &mut request)?;
        Ok(Queues {
            receiving: channels.receiving + channels.combined,
            sending: channels.sending + channels.combined,
        })
    }

    fn ioctl(&self, request: libc::c_ulong, argument: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: every request used here reads and writes one ifreq, which is
        // valid and ours, as is the value that its pointer refers to for the one
        // request that has one; the descriptor is open. The request's type
        // differs between C libraries.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument as *mut _) })?;
        Ok(())
    }

    /// Attaches the filter program.
    pub(crate) fn attach_filter(&self, program: &mut [libc::sock_filter]) -> io::Result<()> {
        let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let value = libc::sock_fprog {
            len,
            filter: program.as_mut_ptr(),
        };
        self.set_option(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &value)
    }

    /// Sets an integer option of level SOL_PACKET.
    pub(crate) fn set_packet_option(
        &self,
        option: libc::c_int,
        value: libc::c_int,
    ) -> io::Result<()> {
        self.set_option(libc::SOL_PACKET, option, &value)
    }

    /// Makes the kernel allocate a ring.
    pub(crate) fn make_ring(
        &self,
        option: libc::c_int,
        request: &libc::tpacket_req,
    ) -> io::Result<()> {
        self.set_option(libc::SOL_PACKET, option, request)
    }

    /// Requests a send buffer of this size. A smaller one only means that a
    /// burst takes several system calls, so errors are ignored.
    pub(crate) fn set_send_buffer(&self, bytes: usize) {
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        let forced = self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
        if forced.is_err() {
            let _ = self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
        }
    }

    /// Makes the interface receive for an address, or for all of them, until the
    /// socket is closed.
    pub(crate) fn join(&self, index: i32, kind: libc::c_int, mac: MacBytes) -> io::Result<()> {
        self.membership(libc::PACKET_ADD_MEMBERSHIP, index, kind, mac)
    }

    /// Reverts one [`Socket::join`] of the same kind and address.
    pub(crate) fn leave(&self, index: i32, kind: libc::c_int, mac: MacBytes) -> io::Result<()> {
        self.membership(libc::PACKET_DROP_MEMBERSHIP, index, kind, mac)
    }

    fn membership(
        &self,
        option: libc::c_int,
        index: i32,
        kind: libc::c_int,
        mac: MacBytes,
    ) -> io::Result<()> {
        let mut address = [0; 8];
        address[..6].copy_from_slice(&mac);
        let value = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: kind as libc::c_ushort,
            mr_alen: 6,
            mr_address: address,
        };
        self.set_option(libc::SOL_PACKET, option, &value)
    }

    fn set_option<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        set_option(self.0.as_fd(), level, option, value)
    }

    /// Binds to all protocols of an interface: only then does the kernel deliver
    /// frames that other programs of this host send.
    pub(crate) fn bind(&self, index: i32) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: index,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the pointer and the length describe one live sockaddr_ll.
        check(unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        })?;
        Ok(())
    }

    /// Makes the kernel send the ready frames of the ring; returns how many
    /// bytes it took.
    #[inline]
    pub(crate) fn kick(&self) -> io::Result<usize> {
        // SAFETY: no buffer and no address are passed: a socket with a send
        // ring takes its frames from the ring.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                core::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                core::ptr::null(),
                0,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Returns the number of frames that found the receive ring full since the last call.
    pub(crate) fn take_ring_full(&self) -> io::Result<u64> {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        self.option(libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats)?;
        Ok(stats.tp_drops.into())
    }

    /// Clears the pending error of the socket, since poll(2) returns at once
    /// while there is one.
    pub(crate) fn take_error(&self) {
        let mut error: libc::c_int = 0;
        // Always succeeds on an open socket; the error itself (the interface
        // was taken down) is returned again by the next send.
        let _ = self.option(libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
    }

    fn option<T>(&self, level: libc::c_int, option: libc::c_int, value: &mut T) -> io::Result<()> {
        self::option(self.0.as_fd(), level, option, value)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
