use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::message_validator::{
    ACK, ADD_REGION, ADD_RING, CONNECT, CONNECTED, DISCONNECT, HELLO, INIT,
};
use super::socket::Message;
use super::*;
use crate::dpdk::{DpdkConfig, DpdkError, DpdkPort, EalConfig};
use crate::rng::Rng;
use crate::{BURST, MacBytes, MbufBatch, Port};

const OURS: MacBytes = [0x0e, 0xfd, 0, 0, 1, 1];
const THEIRS: MacBytes = [0x0e, 0xfd, 0, 0, 1, 2];
/// Generous: for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn keys(device: &str) -> (bool, Address, String) {
    let keys = SocketKeys::parse(device).expect("valid keys");
    (keys.is_server, keys.socket, keys.other_keys)
}

#[test]
fn socket_keys_are_parsed_and_removed_from_the_device() {
    let name = |name: &str| Address::Name(name.to_owned());
    assert_eq!(
        keys("net_memif0"),
        (false, name("/run/memif.sock"), "net_memif0".to_owned())
    );
    let device = "net_memif1,id=3,socket=a,role=server,bsize=2048";
    let others = "net_memif1,id=3,role=server,bsize=2048";
    assert_eq!(keys(device), (true, name("a"), others.to_owned()));
    let device = "net_memif2,role=client,socket-abstract=no,socket=/run/b";
    let path = Address::Path("/run/b".into());
    let others = "net_memif2,role=client".to_owned();
    assert_eq!(keys(device), (false, path, others));
    SocketKeys::parse("net_memif0,socket-abstract=perhaps").expect_err("neither yes nor no");
}

fn try_open(device: &str, mac: MacBytes) -> Result<DpdkPort, DpdkError> {
    DpdkPort::open(DpdkConfig {
        eal: EalConfig {
            memory_mb: 512,
            ..EalConfig::default()
        },
        rx_frames: 1024,
        tx_frames: 512,
        ..DpdkConfig::new(device, mac)
    })
}

fn open(device: &str, mac: MacBytes) -> DpdkPort {
    try_open(device, mac).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a socket name that is unique to this process and test.
fn unique_name(test: &str) -> String {
    format!("viaduct-{test}-{}", process::id())
}

/// Runs the ports (upkeep and bursts) until `poll` returns a value.
fn wait_for<T>(
    what: &str,
    ports: &mut [&mut DpdkPort],
    mut poll: impl FnMut(&mut [&mut DpdkPort]) -> Option<T>,
) -> T {
    let begin = Instant::now();
    loop {
        for port in &mut *ports {
            port.upkeep();
            burst(port);
        }
        if let Some(found) = poll(ports) {
            return found;
        }
        assert!(begin.elapsed() < TIMEOUT, "timed out waiting for {what}");
        thread::yield_now();
    }
}

/// Sends one frame and receives a burst; returns the number of received frames.
fn burst(port: &mut DpdkPort) -> usize {
    let to = match port.capabilities().mac {
        OURS => THEIRS,
        _ => OURS,
    };
    let mut batch = MbufBatch::new();
    if let Some(mut mbuf) = port.alloc(to) {
        let bytes = [&to[..], &port.capabilities().mac, &[0x89, 0x06], &[7; 50]].concat();
        mbuf.buffer_mut()[..bytes.len()].copy_from_slice(&bytes);
        mbuf.set_len(bytes.len());
        batch.push(mbuf).expect("an empty batch");
        port.tx_burst(&mut batch);
        batch.pop().into_iter().for_each(|mbuf| port.free(mbuf));
    }
    port.rx_burst(&mut batch, BURST);
    let mut received = 0;
    while let Some(mbuf) = batch.pop() {
        received += 1;
        port.free(mbuf);
    }
    received
}

fn counter(port: &DpdkPort, name: &str) -> u64 {
    let counters = port.stats().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

/// Connects a DPDK client, exchanges frames, and disconnects it.
fn serve_client(server: &mut DpdkPort, number: u32, socket: &str) {
    let mut client = open(
        &format!("net_memif{number},role=client,socket={socket}"),
        THEIRS,
    );
    wait_for("frames both ways", &mut [server, &mut client], |ports| {
        let received = ports.iter_mut().all(|port| burst(port) > 0);
        received.then_some(())
    });
    drop(client);
    wait_for("the link to go down", &mut [server], |ports| {
        (!ports[0].link_up()).then_some(())
    });
}

/// A memif client that sends arbitrary control messages.
struct RawClient(Socket);

impl RawClient {
    /// Connects to a server and receives its HELLO.
    fn new(socket: &str, server: &mut DpdkPort) -> Self {
        let socket = Socket::connect(&Address::Name(socket.to_owned())).expect("a server");
        let client = Self(socket);
        assert_eq!(client.receive(server), Some(HELLO));
        client
    }

    fn send(&self, kind: u16, body: &[u8], fd: Option<OwnedFd>) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(body);
        bytes.resize(socket::MESSAGE_BYTES, 0);
        self.0.send(&Message { bytes, fd }).expect("a send buffer");
    }

    /// Returns the type of the next message, or `None` at the end of the stream.
    fn receive(&self, server: &mut DpdkPort) -> Option<u16> {
        let fd = self.0.as_raw_fd();
        let readable = |_: &mut [&mut DpdkPort]| {
            socket::wait(&[fd], Some(Duration::ZERO)).expect("a socket")[0].then_some(())
        };
        wait_for("a message", &mut [server], readable);
        let message = self.0.receive().ok().flatten()?;
        message.bytes.first_chunk().copied().map(u16::from_le_bytes)
    }

    /// Sends a message; `true` if it was acknowledged, `false` if the connection was closed.
    fn request(&self, server: &mut DpdkPort, (kind, body, fd): RawMessage) -> bool {
        self.send(kind, &body, fd);
        match self.receive(server) {
            Some(ACK) => true,
            Some(DISCONNECT) | None => false,
            other => panic!("{other:?}"),
        }
    }

    /// Shares memory with a ring in each direction with the server and connects; returns the memory.
    fn connect(&self, server: &mut DpdkPort) -> File {
        let memory = memory(REGION_BYTES);
        for ring in 0..2 {
            let cookie = 0x3e3_1f20_u32.to_ne_bytes();
            memory
                .write_all_at(&cookie, ring * RING_BYTES)
                .expect("memory");
        }
        let ours = memory.try_clone().expect("a descriptor");
        for message in [
            init(),
            region(0, REGION_BYTES, ours.into()),
            ring(true, 0, 0, 0, 10),
            ring(false, 0, 0, RING_BYTES, 10),
        ] {
            assert!(self.request(server, message));
        }
        self.send(CONNECT, b"raw client", None);
        assert_eq!(self.receive(server), Some(CONNECTED));
        wait_for("the link", &mut [server], |ports| {
            ports[0].link_up().then_some(())
        });
        memory
    }
}

/// Bytes of the shared region, with a ring of 1024 slots to the server and one from it; and bytes of such a ring.
const REGION_BYTES: u64 = 1 << 22;
const RING_BYTES: u64 = 128 + (16 << 10);

/// Type, body and file descriptor of a message.
type RawMessage = (u16, Vec<u8>, Option<OwnedFd>);

/// Version 2.0, interface 0, Ethernet.
fn init() -> RawMessage {
    (INIT, vec![0, 2, 0, 0, 0, 0, 0], None)
}

fn region(index: u16, bytes: u64, fd: OwnedFd) -> RawMessage {
    let body = [&index.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    (ADD_REGION, body, Some(fd))
}

fn ring(to_server: bool, index: u16, region: u16, offset: u64, log2: u8) -> RawMessage {
    let mut body = vec![u8::from(to_server), 0];
    body.extend(index.to_le_bytes());
    body.extend(region.to_le_bytes());
    body.extend((offset as u32).to_le_bytes());
    body.extend([log2, 0, 0]);
    (ADD_RING, body, Some(eventfd()))
}

fn eventfd() -> OwnedFd {
    // SAFETY: passes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel just created the descriptor for this call.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Creates shareable memory without a seal against truncation.
fn memory(bytes: u64) -> File {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { libc::memfd_create(c"client".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel just created the descriptor for this call.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes).expect("memory");
    file
}

#[test]
fn server_survives_early_client_disconnects() {
    let socket = unique_name("early-disconnect");
    let mut server = open(&format!("net_memif20,role=server,socket={socket}"), OURS);
    let address = Address::Name(socket.clone());
    // Before or at the HELLO. Some dozens of these make DPDK's own server abort its process.
    for _ in 0..2000 {
        match Socket::connect(&address) {
            Ok(client) => drop(client),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
    }
    serve_client(&mut server, 21, &socket);
    // During the negotiation.
    let client = RawClient::new(&socket, &mut server);
    assert!(client.request(&mut server, init()));
    drop(client);
    serve_client(&mut server, 21, &socket);
}

#[test]
fn silent_or_invalid_client_is_disconnected() {
    let socket = unique_name("invalid");
    let mut server = open(&format!("net_memif22,role=server,socket={socket}"), OURS);
    let silent = RawClient::new(&socket, &mut server);
    // While it is connected, other clients are closed.
    let other = Socket::connect(&Address::Name(socket.clone())).expect("a server");
    assert_eq!(RawClient(other).receive(&mut server), None);
    assert_eq!(silent.receive(&mut server), None, "negotiation timed out");
    let seed = 7;
    let mut rng = Rng::new(seed);
    for round in 0..50 {
        let client = RawClient::new(&socket, &mut server);
        let kind = rng.below(10) as u16;
        let body: Vec<u8> = (0..60).map(|_| rng.next_u64() as u8).collect();
        client.send(kind, &body, None);
        // A DISCONNECT may precede the end of the stream.
        while let Some(received) = client.receive(&mut server) {
            assert_ne!(
                received, CONNECTED,
                "seed {seed}, round {round}: connected by {kind} {body:?}"
            );
        }
    }
    // Once memory is shared, any message but DISCONNECT closes the connection.
    let client = RawClient::new(&socket, &mut server);
    client.connect(&mut server);
    client.send(ACK, &[], None);
    assert_eq!(client.receive(&mut server), None);
    serve_client(&mut server, 23, &socket);
}

/// Invalid regions and rings, which DPDK would accept, and then access memory out of bounds.
#[test]
fn client_with_invalid_regions_or_rings_is_disconnected() {
    let socket = unique_name("invalid-rings");
    let mut server = open(&format!("net_memif27,role=server,socket={socket}"), OURS);
    let short = || memory(4096).into();
    let whole = || memory(REGION_BYTES).into();
    let good_region = || region(0, REGION_BYTES, whole());
    let (reader, _writer) = io::pipe().expect("a pipe");
    let of_pipe = (ADD_RING, ring(true, 0, 0, 0, 10).1, Some(reader.into()));
    // The last message of each sequence is the invalid one.
    let sequences: Vec<(&str, Vec<RawMessage>)> = vec![
        ("no INIT", vec![good_region()]),
        ("two INITs", vec![init(), init()]),
        (
            "a descriptor with INIT",
            vec![(INIT, init().1, Some(eventfd()))],
        ),
        (
            "no descriptor",
            vec![init(), (ADD_REGION, vec![0; 10], None)],
        ),
        (
            "a short region",
            vec![init(), region(0, REGION_BYTES, short())],
        ),
        (
            "a second region first",
            vec![init(), region(1, 4096, whole())],
        ),
        (
            "the same region twice",
            vec![init(), good_region(), good_region()],
        ),
        (
            "a ring without regions",
            vec![init(), ring(true, 0, 0, 0, 10)],
        ),
        (
            "a ring in an unknown region",
            vec![init(), good_region(), ring(true, 0, 256, 0, 10)],
        ),
        (
            "a ring beyond the region's end",
            vec![
                init(),
                good_region(),
                ring(true, 0, 0, REGION_BYTES - 128, 10),
            ],
        ),
        (
            "a ring with too many slots",
            vec![init(), good_region(), ring(true, 0, 0, 0, 63)],
        ),
        (
            "a ring twice",
            vec![
                init(),
                good_region(),
                ring(true, 0, 0, 0, 10),
                ring(true, 0, 0, 0, 10),
            ],
        ),
        (
            "a ring too many",
            vec![
                init(),
                good_region(),
                ring(true, 0, 0, 0, 10),
                ring(true, 1, 0, RING_BYTES, 10),
            ],
        ),
        ("a ring with a pipe", vec![init(), good_region(), of_pipe]),
        (
            "one ring only",
            vec![
                init(),
                good_region(),
                ring(true, 0, 0, 0, 10),
                (CONNECT, vec![], None),
            ],
        ),
        ("CONNECTED", vec![init(), (CONNECTED, vec![], None)]),
        ("HELLO", vec![init(), (HELLO, vec![], None)]),
    ];
    for (what, messages) in sequences {
        let client = RawClient::new(&socket, &mut server);
        let count = messages.len();
        for (at, message) in messages.into_iter().enumerate() {
            let acknowledged = client.request(&mut server, message);
            assert_eq!(acknowledged, at + 1 < count, "{what}: {at}");
        }
    }
    serve_client(&mut server, 28, &socket);
}

/// A slot names a region that does not exist.
#[test]
fn burst_with_invalid_slot_is_aborted() {
    let socket = unique_name("invalid-slot");
    let mut server = open(&format!("net_memif29,role=server,socket={socket}"), OURS);
    let client = RawClient::new(&socket, &mut server);
    let memory = client.connect(&mut server);
    // Flags, region, length and offset of the first slot; then the head index of the ring, which marks it as filled.
    let slot = [[0u8, 0, 200, 0], [60, 0, 0, 0], [0, 0, 0, 0]].concat();
    memory.write_all_at(&slot, 128).expect("memory");
    memory.write_all_at(&1u16.to_ne_bytes(), 6).expect("memory");
    wait_for("a burst that faults", &mut [&mut server], |ports| {
        (counter(ports[0], "bursts_given_up") > 0).then_some(())
    });
    drop(client);
    wait_for("the link to go down", &mut [&mut server], |ports| {
        (!ports[0].link_up()).then_some(())
    });
    serve_client(&mut server, 30, &socket);
}

#[test]
fn burst_in_truncated_memory_is_aborted_and_its_buffers_recovered() {
    let socket = unique_name("truncated");
    let mut server = open(&format!("net_memif24,role=server,socket={socket}"), OURS);
    for round in 1..=10 {
        let client = RawClient::new(&socket, &mut server);
        let memory = client.connect(&mut server);
        memory.set_len(0).expect("memory without a seal");
        wait_for("a burst that faults", &mut [&mut server], |ports| {
            (counter(ports[0], "bursts_given_up") >= round).then_some(())
        });
        drop(client);
        wait_for("the link to go down", &mut [&mut server], |ports| {
            (!ports[0].link_up()).then_some(())
        });
    }
    server.upkeep();
    let mut lent = Vec::new();
    while let Some(mbuf) = server.alloc(THEIRS) {
        lent.push(mbuf);
    }
    assert_eq!(lent.len(), 512, "the limit of buffers to send");
    lent.into_iter().for_each(|mbuf| server.free(mbuf));
    serve_client(&mut server, 25, &socket);
}

#[test]
fn socket_file_is_replaced_only_if_stale() {
    let directory = std::env::temp_dir().join(unique_name("sockets"));
    DirBuilder::new().create(&directory).expect("a directory");
    let directory = TempPath(directory);
    let path = directory.0.join("socket");
    let device = |number: u32| {
        let path = path.display();
        format!("net_memif{number},role=server,socket-abstract=no,socket={path}")
    };
    // The stale file of a server that has exited.
    drop(Socket::listen(&Address::Path(path.clone())).expect("a socket"));
    assert!(path.exists());
    let first = open(&device(26), OURS);
    let refused = try_open(&device(31), THEIRS).map(drop);
    let text = refused.expect_err("the socket is in use").to_string();
    assert!(
        text.contains("is in use, or its path is a file: set another one"),
        "{text}"
    );
    drop(first);
    assert!(!path.exists(), "removed with its server");
    // It can be opened again.
    drop(open(&device(26), OURS));
    // A regular file is not replaced.
    File::create(&path)
        .expect("a file")
        .write_all(b"text")
        .expect("disk space");
    assert!(try_open(&device(26), OURS).is_err(), "a regular file");
    fs::remove_file(&path).expect("the file is kept");
}
