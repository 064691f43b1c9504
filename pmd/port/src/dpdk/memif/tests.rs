use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::socket::Message;
use super::*;
use crate::dpdk::{DpdkConfig, DpdkError, DpdkPort, EalConfig};
use crate::rng::Rng;
use crate::{BURST, MacBytes, MbufBatch, Port};

const OURS: MacBytes = [0x0e, 0xfd, 0, 0, 1, 1];
const THEIRS: MacBytes = [0x0e, 0xfd, 0, 0, 1, 2];
/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn keys(device: &str) -> (bool, Address, String) {
    let keys = Keys::of(device).expect("good keys");
    (keys.is_server, keys.socket, keys.rest)
}

#[test]
fn the_keys_of_a_device_name_its_socket() {
    let name = |name: &str| Address::Name(name.to_owned());
    assert_eq!(
        keys("net_memif0"),
        (false, name("/run/memif.sock"), "net_memif0".to_owned())
    );
    let device = "net_memif1,id=3,socket=a,role=server,bsize=2048";
    let rest = "net_memif1,id=3,role=server,bsize=2048";
    assert_eq!(keys(device), (true, name("a"), rest.to_owned()));
    let device = "net_memif2,role=client,socket-abstract=no,socket=/run/b";
    let path = Address::Path("/run/b".into());
    let rest = "net_memif2,role=client".to_owned();
    assert_eq!(keys(device), (false, path, rest));
    Keys::of("net_memif0,socket-abstract=perhaps").expect_err("neither");
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

/// A name that no other run of these tests has.
fn name_of(test: &str) -> String {
    format!("viaduct-{test}-{}", process::id())
}

/// Tries until something is there, while these ports do what they do.
fn wait_for<T>(
    what: &str,
    ports: &mut [&mut DpdkPort],
    mut look: impl FnMut(&mut [&mut DpdkPort]) -> Option<T>,
) -> T {
    let begin = Instant::now();
    loop {
        for port in &mut *ports {
            port.upkeep();
            burst(port);
        }
        if let Some(found) = look(ports) {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        thread::yield_now();
    }
}

/// A frame each way; returns how many came.
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
    let mut came = 0;
    while let Some(mbuf) = batch.pop() {
        came += 1;
        port.free(mbuf);
    }
    came
}

fn counter(port: &DpdkPort, name: &str) -> u64 {
    let counters = port.stats().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

/// A client that is told apart by nothing comes, both see each other's frames, and it goes.
fn serve_one(server: &mut DpdkPort, number: u32, socket: &str) {
    let mut client = open(
        &format!("net_memif{number},role=client,socket={socket}"),
        THEIRS,
    );
    wait_for("frames both ways", &mut [server, &mut client], |ports| {
        let came = ports.iter_mut().all(|port| burst(port) > 0);
        came.then_some(())
    });
    drop(client);
    wait_for("its end", &mut [server], |ports| {
        (!ports[0].link_up()).then_some(())
    });
}

/// A process that speaks memif by hand, as far as a test wants.
struct Stranger(Socket);

impl Stranger {
    /// Comes to a server and is greeted.
    fn new(socket: &str, server: &mut DpdkPort) -> Self {
        let socket = Socket::connect(&Address::Name(socket.to_owned())).expect("a server");
        let stranger = Self(socket);
        assert_eq!(stranger.hear(server), Some(2), "HELLO");
        stranger
    }

    fn say(&self, kind: u16, body: &[u8], fd: Option<OwnedFd>) {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(body);
        bytes.resize(socket::MESSAGE_BYTES, 0);
        self.0.send(&Message { bytes, fd }).expect("room for it");
    }

    /// What kind of message comes next, or the end.
    fn hear(&self, server: &mut DpdkPort) -> Option<u16> {
        let fd = self.0.as_raw_fd();
        let there = |_: &mut [&mut DpdkPort]| {
            socket::wait(&[fd], Some(Duration::ZERO)).expect("a socket")[0].then_some(())
        };
        wait_for("a message", &mut [server], there);
        let message = self.0.receive().ok().flatten()?;
        message.bytes.first_chunk().copied().map(u16::from_le_bytes)
    }

    /// Gives the server memory with a ring each way, which is returned, and has it use them.
    fn agree(&self, server: &mut DpdkPort) -> File {
        const RING_BYTES: u32 = 128 + (16 << 10);
        let memory = memory(1 << 22);
        for ring in 0..2 {
            let cookie = 0x3e3_1f20_u32.to_ne_bytes();
            let at = u64::from(ring * RING_BYTES);
            std::os::unix::fs::FileExt::write_all_at(&memory, &cookie, at).expect("memory");
        }
        let ack = |stranger: &Self, server: &mut DpdkPort| {
            assert_eq!(stranger.hear(server), Some(1), "ACK");
        };
        // Version 2.0, interface 0, Ethernet.
        self.say(3, &[0, 2, 0, 0, 0, 0, 0], None);
        ack(self, server);
        let size = (1u64 << 22).to_le_bytes();
        let ours = memory.try_clone().expect("a descriptor");
        self.say(4, &[&[0, 0], &size[..]].concat(), Some(ours.into()));
        ack(self, server);
        for (ring, to_server) in [(0, 1u8), (1, 0)] {
            let (never, _other) = io::pipe().expect("a pipe");
            let offset = (ring * RING_BYTES).to_le_bytes();
            let body = [&[to_server, 0, 0, 0, 0, 0], &offset[..], &[10, 0, 0]].concat();
            self.say(5, &body, Some(never.into()));
            ack(self, server);
        }
        self.say(6, b"a stranger", None);
        assert_eq!(self.hear(server), Some(7), "CONNECTED");
        wait_for("the link", &mut [server], |ports| {
            ports[0].link_up().then_some(())
        });
        memory
    }
}

/// Memory that can be shared, and that nothing keeps from being cut short.
fn memory(bytes: u64) -> File {
    // SAFETY: a text, and a number.
    let fd = unsafe { libc::memfd_create(c"stranger".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel made the descriptor for us just now.
    let file = File::from(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
    file.set_len(bytes).expect("memory");
    file
}

#[test]
fn a_server_outlives_whoever_comes_and_goes() {
    let socket = name_of("comes-and-goes");
    let mut server = open(&format!("net_memif20,role=server,socket={socket}"), OURS);
    let address = Address::Name(socket.clone());
    // Before they are greeted, or just then. DPDK's own server ends its process by some dozens of them.
    for _ in 0..2000 {
        match Socket::connect(&address) {
            Ok(gone) => drop(gone),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
    }
    serve_one(&mut server, 21, &socket);
    // In the middle of what they have to say.
    let hello = Stranger::new(&socket, &mut server);
    hello.say(3, &[0, 2, 0, 0, 0, 0, 0], None);
    drop(hello);
    serve_one(&mut server, 21, &socket);
}

#[test]
fn who_says_nothing_or_nonsense_is_sent_away() {
    let socket = name_of("nonsense");
    let mut server = open(&format!("net_memif22,role=server,socket={socket}"), OURS);
    let silent = Stranger::new(&socket, &mut server);
    // While it holds the line, others hear that it is taken.
    let other = Socket::connect(&Address::Name(socket.clone())).expect("a server");
    assert_eq!(Stranger(other).hear(&mut server), None);
    assert_eq!(silent.hear(&mut server), None, "not for ever");
    let seed = 7;
    let mut rng = Rng::new(seed);
    for round in 0..50 {
        let stranger = Stranger::new(&socket, &mut server);
        let kind = rng.below(10) as u16;
        let body: Vec<u8> = (0..60).map(|_| rng.next_u64() as u8).collect();
        stranger.say(kind, &body, None);
        // Told why, or not.
        while let Some(heard) = stranger.hear(&mut server) {
            assert_ne!(
                heard, 7,
                "seed {seed}, round {round}: connected by {kind} {body:?}"
            );
        }
    }
    // Of what has memory in common with us, only the end is heard.
    let stranger = Stranger::new(&socket, &mut server);
    stranger.agree(&mut server);
    stranger.say(4, &[0xff; 60], None);
    assert_eq!(stranger.hear(&mut server), None);
    serve_one(&mut server, 23, &socket);
}

#[test]
fn a_burst_is_given_up_when_the_memory_is_cut_short() {
    let socket = name_of("cut-short");
    let mut server = open(&format!("net_memif24,role=server,socket={socket}"), OURS);
    for round in 1..=10 {
        let stranger = Stranger::new(&socket, &mut server);
        let memory = stranger.agree(&mut server);
        memory.set_len(0).expect("nothing forbids it");
        wait_for("a burst that faults", &mut [&mut server], |ports| {
            (counter(ports[0], "bursts_given_up") >= round).then_some(())
        });
        drop(stranger);
        wait_for("its end", &mut [&mut server], |ports| {
            (!ports[0].link_up()).then_some(())
        });
    }
    server.upkeep();
    let mut lent = Vec::new();
    while let Some(mbuf) = server.alloc(THEIRS) {
        lent.push(mbuf);
    }
    assert_eq!(lent.len(), 512, "all that may be lent at a time");
    lent.into_iter().for_each(|mbuf| server.free(mbuf));
    serve_one(&mut server, 25, &socket);
}

#[test]
fn a_socket_is_one_servers() {
    let home = std::env::temp_dir().join(name_of("sockets"));
    DirBuilder::new().create(&home).expect("a directory");
    let home = Temporary(home);
    let path = home.0.join("socket");
    let device = |number: u32| {
        let path = path.display();
        format!("net_memif{number},role=server,socket-abstract=no,socket={path}")
    };
    // What a server left that is no more.
    drop(Socket::listen(&Address::Path(path.clone())).expect("a socket"));
    assert!(path.exists());
    let first = open(&device(26), OURS);
    let refused = try_open(&device(27), THEIRS).map(drop);
    let text = refused.expect_err("it is taken").to_string();
    assert!(text.contains("is another's: name another one"), "{text}");
    drop(first);
    assert!(!path.exists(), "it goes with its server");
    // As often as one likes.
    drop(open(&device(26), OURS));
    // Somebody else's file is nobody's to take.
    File::create(&path)
        .expect("a file")
        .write_all(b"text")
        .expect("room");
    assert!(try_open(&device(26), OURS).is_err(), "a file is there");
    fs::remove_file(&path).expect("still there");
}
