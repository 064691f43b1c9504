//! Opens a port: its chunks, the program on the interface, its sockets and addresses.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::bpf::{Mode, Program, XdpLink};
use super::config::{AfXdpConfig, AfXdpError, CopyMode};
use super::counts::{Counts, TransferMode};
use super::driver::AfXdpPort;
use super::queue::{Receiver, Sender};
use super::send::Standstill;
use super::socket::{SocketEpoll, XdpSocket};
use super::steering::{Maps, Steering};
use super::umem::Umem;
use crate::af_packet::addresses::Addresses;
use crate::af_packet::link::LinkMonitor;
use crate::af_packet::socket::Queues;
use crate::af_packet::{ETHERNET_HEADER_BYTES, find_interface, frame_bytes, open_socket};
use crate::mapping::Mapping;
use crate::port::{Capabilities, WakeSource};

/// Headroom that the kernel reserves before a received frame.
const HEADROOM_BYTES: u32 = 256;
/// A received frame may have a tag, which the port removes.
const TAG_BYTES: u32 = 4;
/// Chunk sizes: the kernel accepts powers of two from 2048 to the page size.
const SMALL_CHUNK_BYTES: u32 = 2048;
const LARGE_CHUNK_BYTES: u32 = 4096;
/// Upper bound of the bytes that the kernel accounts for one frame besides its length.
const SEND_OVERHEAD_BYTES: usize = 1024;

/// How long to wait for an owner that was killed: the kernel releases its queue
/// and its program some time after the process has ended.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between attempts; there is no event to wait for.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

fn os(call: &'static str) -> impl Fn(io::Error) -> AfXdpError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AfXdpError::NotPermitted,
        _ => AfXdpError::Os { call, source },
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Retries while the interface or queue is busy, until [`TIMEOUT`].
fn retry_while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && start.elapsed() < TIMEOUT => {
                WakeSource::Poll.sleep(RETRY_INTERVAL)?;
            }
            result => return result,
        }
    }
}

fn open_xdp_socket() -> Result<XdpSocket, AfXdpError> {
    XdpSocket::open().map_err(|source| match source.raw_os_error() {
        Some(libc::EAFNOSUPPORT) => AfXdpError::NoKernelSupport {
            lacking: "AF_XDP sockets",
        },
        _ => os("opening an AF_XDP socket")(source),
    })
}

/// Returns the chunk size for frames of this MTU.
fn chunk_bytes(interface: &str, mtu_bytes: u32) -> Result<u32, AfXdpError> {
    let overhead_bytes = HEADROOM_BYTES + ETHERNET_HEADER_BYTES + TAG_BYTES;
    let limit_bytes = LARGE_CHUNK_BYTES - overhead_bytes;
    if mtu_bytes > limit_bytes {
        return Err(AfXdpError::MtuTooLong {
            interface: interface.to_owned(),
            mtu_bytes,
            limit_bytes,
        });
    }
    Ok(if mtu_bytes + overhead_bytes > SMALL_CHUNK_BYTES {
        LARGE_CHUNK_BYTES
    } else {
        SMALL_CHUNK_BYTES
    })
}

/// Attaches the program to the interface: in its driver if that supports it.
fn attach(
    config: &AfXdpConfig,
    index: i32,
    program: &Program,
) -> Result<(XdpLink, Mode), AfXdpError> {
    let interface = || config.interface.clone();
    let refused = |source: io::Error| match source.raw_os_error() {
        _ if is_busy(&source) => AfXdpError::AnotherProgram {
            interface: interface(),
        },
        // No argument of the call can be invalid.
        Some(libc::EINVAL) => AfXdpError::NoKernelSupport {
            lacking: "links of XDP programs",
        },
        _ => AfXdpError::ProgramRefused {
            interface: interface(),
            source,
        },
    };
    match retry_while_busy(|| XdpLink::new(program, index, Mode::Native)) {
        Ok(link) => Ok((link, Mode::Native)),
        Err(source) if is_busy(&source) => Err(refused(source)),
        Err(source) if config.copy == CopyMode::ZeroCopy => Err(AfXdpError::ZeroCopyRefused {
            interface: interface(),
            queue: config.queue,
            source,
        }),
        Err(_) => retry_while_busy(|| XdpLink::new(program, index, Mode::Generic))
            .map(|link| (link, Mode::Generic))
            .map_err(refused),
    }
}

/// Loads the program that redirects frames to the sockets, and attaches it to the interface.
fn steer(config: &AfXdpConfig, index: i32, addresses: &Addresses) -> Result<Steering, AfXdpError> {
    let maps =
        Maps::new(config.queue + config.queues).map_err(|source| match source.raw_os_error() {
            Some(libc::ENOSYS | libc::EINVAL) => AfXdpError::NoKernelSupport {
                lacking: "maps of AF_XDP sockets",
            },
            _ => os("making the maps of the XDP program")(source),
        })?;
    let program = maps
        .load(addresses.ethertypes(), &addresses.with_station(config.mac))
        .map_err(os("loading the XDP program"))?;
    let (link, mode) = attach(config, index, &program)?;
    Ok(Steering::new(link, maps, mode))
}

/// Binds the sockets of the port to their queues; the first socket registers the memory.
struct QueueBinder<'a> {
    config: &'a AfXdpConfig,
    /// Where the program runs.
    mode: Mode,
    index: i32,
    /// `None` if the interface does not report them.
    queues: Option<Queues>,
    umem: &'a Umem,
    rx_chunks: u32,
    tx_chunks: u32,
}

impl QueueBinder<'_> {
    fn memory_error(&self, source: io::Error) -> AfXdpError {
        let memory_bytes = self.umem.memory().len();
        match source.raw_os_error() {
            Some(libc::ENOBUFS) => AfXdpError::MemoryLimit { memory_bytes },
            _ => AfXdpError::Memory {
                memory_bytes,
                source,
            },
        }
    }

    fn bind(&self, socket: &XdpSocket, queue: u32, owner: Option<&XdpSocket>) -> io::Result<()> {
        let flags = match (owner, self.config.copy) {
            // The first socket's flags hold for all.
            (Some(_), _) => libc::XDP_SHARED_UMEM,
            // A generic program sees copies only, whatever the driver supports.
            (None, CopyMode::Auto) if self.mode == Mode::Generic => {
                libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY
            }
            (None, CopyMode::Auto) => libc::XDP_USE_NEED_WAKEUP,
            (None, CopyMode::ZeroCopy) => libc::XDP_USE_NEED_WAKEUP | libc::XDP_ZEROCOPY,
            (None, CopyMode::Copy) => libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY,
        };
        retry_while_busy(|| socket.bind(self.index, queue, flags, owner))
    }

    /// Returns whether the interface reports that it has this queue.
    fn receives_at(&self, queue: u32) -> bool {
        self.queues.is_some_and(|queues| queue < queues.receiving)
    }

    fn map_bind_error(&self, result: io::Result<()>, queue: u32) -> Result<(), AfXdpError> {
        let interface = || self.config.interface.clone();
        let zero_copy = self.config.copy == CopyMode::ZeroCopy;
        result.map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => AfXdpError::QueueTaken {
                interface: interface(),
                queue,
            },
            Some(libc::EINVAL | libc::EOPNOTSUPP) if zero_copy => AfXdpError::ZeroCopyRefused {
                interface: interface(),
                queue,
                source,
            },
            // Supported since Linux 5.10.
            Some(libc::EINVAL) if queue > self.config.queue && self.receives_at(queue) => {
                AfXdpError::NoKernelSupport {
                    lacking: "memory that queues share",
                }
            }
            // No other argument of the call can be invalid.
            Some(libc::EINVAL) => AfXdpError::NoSuchQueue {
                interface: interface(),
                queue,
            },
            _ => os("binding to a queue of the interface")(source),
        })
    }

    /// Binds to the first queue, which is also the send queue.
    fn bind_first(&self, socket: XdpSocket) -> Result<(Receiver, Sender), AfXdpError> {
        // The kernel binds to a queue that cannot send, and sends nothing there.
        if let Some(Queues { sending, receiving }) = self.queues
            && (sending..receiving).contains(&self.config.queue)
        {
            return Err(AfXdpError::NoSendQueue {
                interface: self.config.interface.clone(),
                queue: self.config.queue,
                queues: sending,
            });
        }
        socket
            .register(self.umem.memory(), self.umem.chunk_bytes())
            .map_err(|source| self.memory_error(source))?;
        let sender =
            Sender::new(&socket, self.tx_chunks).map_err(|source| self.memory_error(source))?;
        let receiver = Receiver::new(socket, self.umem, self.rx_chunks, 0)
            .map_err(|source| self.memory_error(source))?;
        let queue = self.config.queue;
        self.map_bind_error(self.bind(&receiver.socket, queue, None), queue)?;
        Ok((receiver, sender))
    }

    /// Binds to all queues; returns the receivers in order, and the sender.
    fn bind_all(&self, first: XdpSocket) -> Result<(Vec<Receiver>, Sender), AfXdpError> {
        let (first, sender) = self.bind_first(first)?;
        let mut receivers = vec![first];
        for index in 1..self.config.queues {
            receivers.push(self.bind_further(index, &receivers[0].socket)?);
        }
        Ok((receivers, sender))
    }

    /// Binds to a further queue, sharing the memory of the first socket.
    fn bind_further(&self, index: u32, first: &XdpSocket) -> Result<Receiver, AfXdpError> {
        let socket = open_xdp_socket()?;
        Sender::create_unused_ring(&socket).map_err(|source| self.memory_error(source))?;
        let receiver = Receiver::new(socket, self.umem, self.rx_chunks, index)
            .map_err(|source| self.memory_error(source))?;
        let queue = self.config.queue + index;
        self.map_bind_error(self.bind(&receiver.socket, queue, Some(first)), queue)?;
        Ok(receiver)
    }
}

/// Creates an epoll descriptor over the sockets, if there are several.
fn epoll_over(receivers: &[Receiver]) -> io::Result<Option<SocketEpoll>> {
    match receivers {
        [_] => Ok(None),
        _ => SocketEpoll::new(receivers.iter().map(|receiver| &receiver.socket)).map(Some),
    }
}

impl AfXdpPort {
    /// Checks the first steps of [`Self::open`]: the configuration, the permissions for the sockets, the interface.
    /// Nothing is attached to the interface.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn check(config: &AfXdpConfig) -> Result<(), AfXdpError> {
        config.check()?;
        let _socket = open_xdp_socket()?;
        let control = open_socket()?;
        let (_, link) = find_interface(&control, &config.interface)?;
        chunk_bytes(&config.interface, link.mtu_bytes).map(drop)
    }

    /// Opens a port on an interface of the calling thread's network namespace.
    ///
    /// Blocks for up to some seconds while the kernel releases the interface's
    /// queue of a previous owner that was killed.
    ///
    /// # Errors
    /// Each reason has its own [`AfXdpError`], whose text includes the remedy.
    pub fn open(config: AfXdpConfig) -> Result<Self, AfXdpError> {
        config.check()?;
        let first_socket = open_xdp_socket()?;
        let control = open_socket()?;
        let (interface, link) = find_interface(&control, &config.interface)?;
        let chunk_bytes = chunk_bytes(&config.interface, link.mtu_bytes)?;
        let max_frame_bytes = frame_bytes(link.mtu_bytes);
        let rx_chunks = config.rx_frames.next_power_of_two();
        let tx_chunks = config.tx_frames.next_power_of_two();
        let chunks = (rx_chunks * config.queues, tx_chunks);
        let memory_bytes = (chunks.0 + chunks.1) as usize * chunk_bytes as usize;
        let memory = Mapping::anonymous(memory_bytes)
            .and_then(|memory| memory.wipe_in_children().map(|()| memory))
            .map_err(|source| AfXdpError::Memory {
                memory_bytes,
                source,
            })?;
        let umem = Umem::new(memory, chunk_bytes, chunks, max_frame_bytes);
        let mut addresses = Addresses::new(&config.common(), interface);
        let steering = steer(&config, interface.index, &addresses)?;
        let binder = QueueBinder {
            config: &config,
            mode: steering.mode(),
            index: interface.index,
            queues: control.queues(interface.index).ok(),
            umem: &umem,
            rx_chunks,
            tx_chunks,
        };
        let (receivers, sender) = binder.bind_all(first_socket)?;
        let zero_copy = receivers[0]
            .socket
            .is_zero_copy()
            .map_err(os("reading the transfer mode of the socket"))?;
        receivers[0]
            .socket
            .set_send_buffer(tx_chunks as usize * (max_frame_bytes as usize + SEND_OVERHEAD_BYTES));
        let epoll = epoll_over(&receivers).map_err(os("creating an epoll descriptor"))?;
        addresses.join(&control, config.mac)?;
        for (queue, receiver) in (config.queue..).zip(&receivers) {
            steering
                .insert(queue, &receiver.socket)
                .map_err(os("redirecting frames to the socket"))?;
        }
        let transfer_mode = TransferMode {
            native: steering.mode() == Mode::Native,
            zero_copy,
        };
        Ok(Self {
            capabilities: Capabilities {
                driver: "af_xdp",
                device: config.interface,
                mac: config.mac,
                interface_mac: Some(interface.mac),
                max_frame_bytes: max_frame_bytes as usize,
                lossless: false,
                send_alone: false,
                next_buffer_bytes: 0,
            },
            steering,
            receivers: receivers.into_boxed_slice(),
            rx_chunks,
            next_source: 0,
            sender,
            pending: false,
            blocked: false,
            failed: false,
            standstill: Standstill::new(config.standstill_limit),
            to_self: VecDeque::with_capacity(tx_chunks as usize),
            epoll,
            control,
            addresses,
            link: LinkMonitor::new(interface.index, link),
            transfer_mode,
            counts: Counts::default(),
            umem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_size_follows_the_mtu() {
        for (mtu_bytes, expected) in [(302, 2048), (1500, 2048), (1774, 2048), (1775, 4096)] {
            assert_eq!(chunk_bytes("eth0", mtu_bytes).expect("fits"), expected);
        }
        assert_eq!(chunk_bytes("eth0", 3822).expect("fits"), 4096);
        let error = chunk_bytes("eth0", 3823).expect_err("too long");
        assert!(error.to_string().contains("3822"), "{error}");
    }

    #[test]
    fn only_busy_errors_are_retried() {
        let mut results = [libc::EBUSY, libc::EEXIST, 0].into_iter();
        let attempt = || match results.next() {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(error)),
            None => panic!("one attempt too many"),
        };
        retry_while_busy(attempt).expect("free at the third attempt");
        let error = retry_while_busy(|| Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL)))
            .expect_err("at once");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
