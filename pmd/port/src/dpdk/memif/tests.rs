use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::rules::{ACK, ADD_REGION, ADD_RING, CONNECT, CONNECTED, DISCONNECT, HELLO, INIT};
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

/// A client of ours comes, both see each other's frames, and it goes.
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
        assert_eq!(stranger.hear(server), Some(HELLO));
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

    /// Says something that is taken, or refused.
    fn ask(&self, server: &mut DpdkPort, (kind, body, fd): Saying) -> bool {
        self.say(kind, &body, fd);
        match self.hear(server) {
            Some(ACK) => true,
            Some(DISCONNECT) | None => false,
            other => panic!("{other:?}"),
        }
    }

    /// Gives the server memory with a ring each way, which is returned, and has it use them.
    fn agree(&self, server: &mut DpdkPort) -> File {
        let memory = memory(REGION_BYTES);
        for ring in 0..2 {
            let cookie = 0x3e3_1f20_u32.to_ne_bytes();
            memory
                .write_all_at(&cookie, ring * RING_BYTES)
                .expect("memory");
        }
        let ours = memory.try_clone().expect("a descriptor");
        for saying in [
            init(),
            region(0, REGION_BYTES, ours.into()),
            ring(true, 0, 0, 0, 10),
            ring(false, 0, 0, RING_BYTES, 10),
        ] {
            assert!(self.ask(server, saying));
        }
        self.say(CONNECT, b"a stranger", None);
        assert_eq!(self.hear(server), Some(CONNECTED));
        wait_for("the link", &mut [server], |ports| {
            ports[0].link_up().then_some(())
        });
        memory
    }
}

/// What a stranger shares: a region in which there are a ring to the server and one from it, of 1024 slots.
const REGION_BYTES: u64 = 1 << 22;
const RING_BYTES: u64 = 128 + (16 << 10);

/// A message.
type Saying = (u16, Vec<u8>, Option<OwnedFd>);

/// Version 2.0, interface 0, Ethernet.
fn init() -> Saying {
    (INIT, vec![0, 2, 0, 0, 0, 0, 0], None)
}

fn region(index: u16, bytes: u64, fd: OwnedFd) -> Saying {
    let body = [&index.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    (ADD_REGION, body, Some(fd))
}

fn ring(to_server: bool, index: u16, region: u16, offset: u64, log2: u8) -> Saying {
    let mut body = vec![u8::from(to_server), 0];
    body.extend(index.to_le_bytes());
    body.extend(region.to_le_bytes());
    body.extend((offset as u32).to_le_bytes());
    body.extend([log2, 0, 0]);
    (ADD_RING, body, Some(bell()))
}

fn bell() -> OwnedFd {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel made the descriptor for us just now.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Memory that can be shared, and that nothing keeps from being cut short.
fn memory(bytes: u64) -> File {
    // SAFETY: a text, and a number.
    let fd = unsafe { libc::memfd_create(c"stranger".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel made the descriptor for us just now.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
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
    assert!(hello.ask(&mut server, init()));
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
                heard, CONNECTED,
                "seed {seed}, round {round}: connected by {kind} {body:?}"
            );
        }
    }
    // Of what has memory in common with us, only the end is heard.
    let stranger = Stranger::new(&socket, &mut server);
    stranger.agree(&mut server);
    stranger.say(ACK, &[], None);
    assert_eq!(stranger.hear(&mut server), None);
    serve_one(&mut server, 23, &socket);
}

/// Whatever DPDK would believe, and read or write wherever it is told to.
#[test]
fn who_shares_what_is_not_there_is_sent_away() {
    let socket = name_of("not-there");
    let mut server = open(&format!("net_memif27,role=server,socket={socket}"), OURS);
    let short = || memory(4096).into();
    let whole = || memory(REGION_BYTES).into();
    let good_region = || region(0, REGION_BYTES, whole());
    let (reader, _writer) = io::pipe().expect("a pipe");
    let of_pipe = (ADD_RING, ring(true, 0, 0, 0, 10).1, Some(reader.into()));
    // The last message of each is what is wrong.
    let talks: Vec<(&str, Vec<Saying>)> = vec![
        ("no beginning", vec![good_region()]),
        ("two of them", vec![init(), init()]),
        ("a descriptor with it", vec![(INIT, init().1, Some(bell()))]),
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
        ("a ring in none", vec![init(), ring(true, 0, 0, 0, 10)]),
        (
            "a ring in another",
            vec![init(), good_region(), ring(true, 0, 256, 0, 10)],
        ),
        (
            "a ring beyond its end",
            vec![
                init(),
                good_region(),
                ring(true, 0, 0, REGION_BYTES - 128, 10),
            ],
        ),
        (
            "a ring without end",
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
        ("a server's word", vec![init(), (CONNECTED, vec![], None)]),
        ("a greeting", vec![init(), (HELLO, vec![], None)]),
    ];
    for (what, sayings) in talks {
        let stranger = Stranger::new(&socket, &mut server);
        let count = sayings.len();
        for (at, saying) in sayings.into_iter().enumerate() {
            let taken = stranger.ask(&mut server, saying);
            assert_eq!(taken, at + 1 < count, "{what}: {at}");
        }
    }
    serve_one(&mut server, 28, &socket);
}

/// A slot that says that its frame is in a region that does not exist.
#[test]
fn a_burst_is_given_up_that_is_led_astray() {
    let socket = name_of("astray");
    let mut server = open(&format!("net_memif29,role=server,socket={socket}"), OURS);
    let stranger = Stranger::new(&socket, &mut server);
    let memory = stranger.agree(&mut server);
    // Flags, region, length and offset of the first slot; then the head of the ring, which says that it is filled.
    let slot = [[0u8, 0, 200, 0], [60, 0, 0, 0], [0, 0, 0, 0]].concat();
    memory.write_all_at(&slot, 128).expect("memory");
    memory.write_all_at(&1u16.to_ne_bytes(), 6).expect("memory");
    wait_for("a burst that faults", &mut [&mut server], |ports| {
        (counter(ports[0], "bursts_given_up") > 0).then_some(())
    });
    drop(stranger);
    wait_for("its end", &mut [&mut server], |ports| {
        (!ports[0].link_up()).then_some(())
    });
    serve_one(&mut server, 30, &socket);
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
    let refused = try_open(&device(31), THEIRS).map(drop);
    let text = refused.expect_err("it is taken").to_string();
    assert!(
        text.contains("is another's, or a file is there: name another one"),
        "{text}"
    );
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
