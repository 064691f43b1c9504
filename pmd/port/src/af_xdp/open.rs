//! Opening a port: its chunks, the program on the interface, its sockets and addresses.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use super::bpf::{Link, Mode, Program};
use super::config::{AfXdpConfig, AfXdpError, CopyMode};
use super::counts::{Counts, Path};
use super::driver::AfXdpPort;
use super::queue::{Receiver, Sender};
use super::send::Standstill;
use super::socket::{Any, XdpSocket};
use super::steering::{Maps, Steering};
use super::umem::Umem;
use crate::af_packet::addresses::Addresses;
use crate::af_packet::link::LinkWatch;
use crate::af_packet::socket::Queues;
use crate::af_packet::{ETHERNET_HEADER_BYTES, find_interface, frame_bytes, open_socket};
use crate::mapping::Mapping;
use crate::port::{Capabilities, WakeSource};

/// What the kernel keeps free before a received frame.
const HEADROOM_BYTES: u32 = 256;
/// A received frame may have a tag, which the port takes out.
const TAG_BYTES: u32 = 4;
/// Sizes of chunks: the kernel takes powers of two from 2048 to the page size.
const SMALL_CHUNK_BYTES: u32 = 2048;
const LARGE_CHUNK_BYTES: u32 = 4096;
/// What the kernel accounts for one frame besides its bytes, at most.
const SEND_OVERHEAD_BYTES: usize = 1024;

/// So long an owner that was killed is waited for: the kernel takes its queue
/// and its program away some time after the process is gone.
const PATIENCE: Duration = Duration::from_secs(2);
/// There is no event to wait for.
const PAUSE: Duration = Duration::from_millis(2);

fn os(call: &'static str) -> impl Fn(io::Error) -> AfXdpError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => AfXdpError::NotPermitted,
        _ => AfXdpError::Os { call, source },
    }
}

fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Tries until somebody else has let go, for a bounded time.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && start.elapsed() < PATIENCE => {
                WakeSource::Poll.sleep(PAUSE)?;
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

/// How large chunks are for frames of this MTU.
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

/// Puts the program on the interface: in its driver if that can be.
fn attach(config: &AfXdpConfig, index: i32, program: &Program) -> Result<(Link, Mode), AfXdpError> {
    let interface = || config.interface.clone();
    let refused = |source: io::Error| match source.raw_os_error() {
        _ if is_busy(&source) => AfXdpError::AnotherProgram {
            interface: interface(),
        },
        // Nothing of what it was given can be invalid.
        Some(libc::EINVAL) => AfXdpError::NoKernelSupport {
            lacking: "links of XDP programs",
        },
        _ => AfXdpError::ProgramRefused {
            interface: interface(),
            source,
        },
    };
    match patiently(|| Link::new(program, index, Mode::Native)) {
        Ok(link) => Ok((link, Mode::Native)),
        Err(source) if is_busy(&source) => Err(refused(source)),
        Err(source) if config.copy == CopyMode::ZeroCopy => Err(AfXdpError::ZeroCopyRefused {
            interface: interface(),
            queue: config.queue,
            source,
        }),
        Err(_) => patiently(|| Link::new(program, index, Mode::Generic))
            .map(|link| (link, Mode::Generic))
            .map_err(refused),
    }
}

/// Has the program loaded that steers to the sockets, and puts it on the interface.
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

/// Binds the sockets of the port one after the other; the first one brings the memory.
struct Opening<'a> {
    config: &'a AfXdpConfig,
    /// Where the program runs.
    mode: Mode,
    index: i32,
    /// As far as the interface says it.
    queues: Option<Queues>,
    umem: &'a Umem,
    rx_chunks: u32,
    tx_chunks: u32,
}

impl Opening<'_> {
    fn memory(&self, source: io::Error) -> AfXdpError {
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
            // The first one's flags hold for all.
            (Some(_), _) => libc::XDP_SHARED_UMEM,
            // A program behind the driver sees copies only, whatever the driver could do.
            (None, CopyMode::Auto) if self.mode == Mode::Generic => {
                libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY
            }
            (None, CopyMode::Auto) => libc::XDP_USE_NEED_WAKEUP,
            (None, CopyMode::ZeroCopy) => libc::XDP_USE_NEED_WAKEUP | libc::XDP_ZEROCOPY,
            (None, CopyMode::Copy) => libc::XDP_USE_NEED_WAKEUP | libc::XDP_COPY,
        };
        patiently(|| socket.bind(self.index, queue, flags, owner))
    }

    /// True if the interface says that it has this queue.
    fn receives_at(&self, queue: u32) -> bool {
        self.queues.is_some_and(|queues| queue < queues.receiving)
    }

    fn bound(&self, result: io::Result<()>, queue: u32) -> Result<(), AfXdpError> {
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
            // Since Linux 5.10 it can.
            Some(libc::EINVAL) if queue > self.config.queue && self.receives_at(queue) => {
                AfXdpError::NoKernelSupport {
                    lacking: "memory that queues share",
                }
            }
            // Nothing else of what it was given can be invalid.
            Some(libc::EINVAL) => AfXdpError::NoSuchQueue {
                interface: interface(),
                queue,
            },
            _ => os("binding to a queue of the interface")(source),
        })
    }

    /// The first queue, at which frames are sent too.
    fn first(&self, socket: XdpSocket) -> Result<(Receiver, Sender), AfXdpError> {
        // The kernel binds to a queue without a send side, and sends nothing there.
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
            .map_err(|source| self.memory(source))?;
        let sender = Sender::new(&socket, self.tx_chunks).map_err(|source| self.memory(source))?;
        let receiver = Receiver::new(socket, self.umem, self.rx_chunks, 0)
            .map_err(|source| self.memory(source))?;
        let queue = self.config.queue;
        self.bound(self.bind(&receiver.socket, queue, None), queue)?;
        Ok((receiver, sender))
    }

    /// All queues in order, and where frames are sent.
    fn all(&self, first: XdpSocket) -> Result<(Vec<Receiver>, Sender), AfXdpError> {
        let (first, sender) = self.first(first)?;
        let mut receivers = vec![first];
        for index in 1..self.config.queues {
            receivers.push(self.further(index, &receivers[0].socket)?);
        }
        Ok((receivers, sender))
    }

    /// The further queues.
    fn further(&self, index: u32, first: &XdpSocket) -> Result<Receiver, AfXdpError> {
        let socket = open_xdp_socket()?;
        Sender::none(&socket).map_err(|source| self.memory(source))?;
        let receiver = Receiver::new(socket, self.umem, self.rx_chunks, index)
            .map_err(|source| self.memory(source))?;
        let queue = self.config.queue + index;
        self.bound(self.bind(&receiver.socket, queue, Some(first)), queue)?;
        Ok(receiver)
    }
}

/// What tells of several queues.
fn watch(receivers: &[Receiver]) -> io::Result<Option<Any>> {
    match receivers {
        [_] => Ok(None),
        _ => Any::of(receivers.iter().map(|receiver| &receiver.socket)).map(Some),
    }
}

impl AfXdpPort {
    /// Checks what [`Self::open`] checks first: the configuration, the permissions for the sockets, the interface.
    /// Nothing is attached to the interface.
    ///
    /// # Errors
    /// As those of [`Self::open`].
    pub fn check(config: &AfXdpConfig) -> Result<(), AfXdpError> {
        config.check()?;
        let _socket = open_xdp_socket()?;
        let control = open_socket()?;
        let (_, link) = find_interface(&control, &config.interface)?;
        chunk_bytes(&config.interface, link.mtu_bytes).map(drop)
    }

    /// Opens a port on an interface of the calling thread's network namespace.
    ///
    /// Blocks for up to some seconds while a former owner of the interface's
    /// queue, which was killed, is still there.
    ///
    /// # Errors
    /// Each reason has its own [`AfXdpError`], whose text says what to do.
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
        let opening = Opening {
            config: &config,
            mode: steering.mode(),
            index: interface.index,
            queues: control.queues(interface.index).ok(),
            umem: &umem,
            rx_chunks,
            tx_chunks,
        };
        let (receivers, sender) = opening.all(first_socket)?;
        let zero_copy = receivers[0]
            .socket
            .is_zero_copy()
            .map_err(os("asking how frames are handed over"))?;
        receivers[0].socket.ask_for_send_room(
            tx_chunks as usize * (max_frame_bytes as usize + SEND_OVERHEAD_BYTES),
        );
        let any = watch(&receivers).map_err(os("watching several queues"))?;
        addresses.join(&control, config.mac)?;
        for (queue, receiver) in (config.queue..).zip(&receivers) {
            steering
                .insert(queue, &receiver.socket)
                .map_err(os("steering frames to the socket"))?;
        }
        let path = Path {
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
            any,
            control,
            addresses,
            link: LinkWatch::new(interface.index, link),
            path,
            counts: Counts::default(),
            umem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_large_as_the_mtu_needs() {
        for (mtu_bytes, expected) in [(302, 2048), (1500, 2048), (1774, 2048), (1775, 4096)] {
            assert_eq!(chunk_bytes("eth0", mtu_bytes).expect("fits"), expected);
        }
        assert_eq!(chunk_bytes("eth0", 3822).expect("fits"), 4096);
        let error = chunk_bytes("eth0", 3823).expect_err("too long");
        assert!(error.to_string().contains("3822"), "{error}");
    }

    #[test]
    fn only_a_busy_queue_is_waited_for() {
        let mut answers = [libc::EBUSY, libc::EEXIST, 0].into_iter();
        let attempt = || match answers.next() {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(error)),
            None => panic!("one attempt too many"),
        };
        patiently(attempt).expect("free at the third attempt");
        let error = patiently(|| Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL)))
            .expect_err("at once");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
