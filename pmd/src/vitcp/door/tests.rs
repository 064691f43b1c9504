//! Programs of one host at one port, of which a test plays all but one, and strangers at that port.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::sync::mpsc::channel;
use std::thread;

use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use super::*;
use crate::config::{NicConfig, TransportKind};
use crate::device::{self, Device};
use crate::nic;
use crate::vi::ViSettings;

/// Long enough for any machine.
const LONG: Duration = Duration::from_secs(20);
const NAMED: &[u8] = b"called";

/// The NIC under test: it moves on only when it is polled.
struct Program {
    device: &'static Device,
    nic: u64,
    ptag: u64,
    at: End,
}

impl Program {
    /// `test` gives it an address that no other test has.
    fn new(test: u32, change: impl FnOnce(&mut NicConfig)) -> Self {
        let host = Ipv4Addr::from_bits(0x7F60_0000 | test << 16 | std::process::id() & 0xFFFF);
        let mut config = NicConfig {
            transport: TransportKind::ViTcp,
            host: Some(IpAddr::V4(host)),
            ulp_timeout_ms: Some(600_000),
            ..NicConfig::default()
        };
        change(&mut config);
        let (device, nic) = device::open_unattended(&config).unwrap();
        let at = End {
            host: device.host,
            port: config.tcp_port,
        };
        let ptag = nic::create_ptag(nic).unwrap();
        Self {
            device,
            nic,
            ptag,
            at,
        }
    }

    /// Has it listen, or say that it cannot.
    fn listen(&self) -> bool {
        let settings = ViSettings {
            reliability: 2,
            max_transfer_bytes: 1 << 16,
            ptag: self.ptag,
            rdma_write: false,
            qos: 0,
            rdma_read: false,
        };
        nic::create_vi(self.nic, &settings, 0, 0).is_ok()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = nic::counters(self.nic).unwrap();
        counters.iter().find(|(known, _)| known == name).unwrap().1
    }

    /// Polls it until something is so.
    fn poll_until<T>(&self, mut so: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.device.poll();
            if let Some(so) = so() {
                return so;
            }
            assert!(begun.elapsed() < LONG, "it does not come about");
        }
    }

    fn dial(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.at.address()).unwrap();
        tcp.set_nonblocking(true).unwrap();
        tcp
    }

    /// A connection from another host of ours.
    fn dial_from(&self, host: Ipv4Addr) -> TcpStream {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket
            .bind(&SocketAddr::new(host.into(), 0).into())
            .unwrap();
        socket.connect(&self.at.address().into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.into()
    }

    /// The type of the segment that answers, when it is there.
    fn answer(&self, tcp: &mut TcpStream) -> u8 {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        self.poll_until(|| match tcp.read(&mut header) {
            Ok(SEGMENT_HEADER_BYTES) => Some(header[1] >> 3),
            Ok(bytes) => panic!("{bytes} bytes of an answer"),
            Err(error) if is_for_later(&error) => None,
            Err(error) => panic!("{error}"),
        })
    }

    /// What a program says that wants to be a member of this one, and is.
    fn join(&self) -> Socket {
        let member = Socket::connect_at_once(&name(self.at)).unwrap();
        member.take_descriptors();
        member
    }

    fn hear(&self, member: &Socket) -> (Message, Vec<OwnedFd>) {
        self.poll_until(|| match member.receive::<Message>() {
            Ok(heard) => Some(heard.expect("a message")),
            Err(error) if is_for_later(&error) => None,
            Err(error) => panic!("{error}"),
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        device::close(self.device, self.nic);
    }
}

const NO_MATCH: u8 = 8;

/// A Connect Request for [`NAMED`].
fn request(peer: bool) -> Vec<u8> {
    let mut request = vec![1, 5 << 3 | 2, 0, 24 + 44];
    request.resize(SEGMENT_HEADER_BYTES, 0);
    // Reliable Delivery, and whether it is a peer's.
    request.extend([0, if peer { 0x37 } else { 0x27 }, 0, 1]);
    request.extend((1u32 << 16).to_be_bytes());
    request.extend([b'c'; 1]);
    request.resize(SEGMENT_HEADER_BYTES + 24, 0);
    request.extend([0, 1, 0, NAMED.len() as u8]);
    request.extend(NAMED);
    request.resize(SEGMENT_HEADER_BYTES + 44, 0);
    request
}

fn waits(peer: Option<Ipv4Addr>, count: u32) -> Message {
    Message::Waits {
        what: What {
            peer: peer.map(|host| host.to_ipv6_mapped().octets()),
            called: NAMED.to_vec(),
        },
        count,
        seen: 0,
    }
}

/// A keeper that a test plays: its port, and its name.
fn keeper(program: &Program) -> (Listening, Listener, Socket) {
    let listening = Listening::bind(program.at).unwrap();
    let name = Listener::bind(&name(program.at)).unwrap();
    assert!(program.listen());
    let member = name.accept().unwrap();
    let fds = [listening.as_fd().as_raw_fd()];
    member.send(&Message::Welcome, &fds).unwrap();
    program.device.poll();
    (listening, name, member)
}

/// The system takes a dying program's descriptors one after the other: its members may hear of its end before its
/// name is free, and then a program that waits at the name gets nowhere.
#[test]
fn a_port_stays_open_while_its_keeper_dies() {
    let program = Program::new(1, |_| ());
    let (listening, name, member) = keeper(&program);
    drop(listening);
    let mut client = program.dial();
    client.write_all(&request(false)).unwrap();
    for member in [Some(member), None, None] {
        drop(member);
        for _ in 0..100 {
            program.device.poll();
        }
        // It is a member once more, of who lives no more.
        drop(name.accept().unwrap());
        program.dial();
    }
    drop(name);
    assert_eq!(program.answer(&mut client), NO_MATCH);
}

/// The name may be another program's that has no use for it: nobody keeps the port then, and as soon as it can be
/// done somebody does, without any call.
#[test]
fn a_member_keeps_the_port_as_soon_as_it_can() {
    let program = Program::new(2, |_| ());
    let (listening, listener, member) = keeper(&program);
    drop(listener);
    let at = name(program.at);
    let at = UnixAddress::from_abstract_name(&at.as_os_str().as_bytes()[1..]).unwrap();
    let squatter = UnixDatagram::bind_addr(&at).unwrap();
    drop((listening, member));
    let mut client = program.dial();
    client.write_all(&request(false)).unwrap();
    let begun = Instant::now();
    for _ in 0..100 {
        program.device.poll();
    }
    assert!(begun.elapsed() < PATIENCE, "a turn waits for nobody");
    drop(squatter);
    assert_eq!(program.answer(&mut client), NO_MATCH);
}

/// Whoever has the name and lets nobody in does not hold up a call for long.
#[test]
fn a_name_that_lets_nobody_in_holds_up_nobody() {
    let program = Program::new(3, |_| ());
    let _port = Listening::bind(program.at).unwrap();
    let path = name(program.at);
    let _name = Listener::bind(&path).unwrap();
    let waiting: Vec<_> = core::iter::from_fn(|| Socket::connect_at_once(&path).ok()).collect();
    assert!(!waiting.is_empty());
    let (done, is_done) = channel();
    let listens = thread::spawn(move || {
        let listens = program.listen();
        done.send(()).unwrap();
        listens
    });
    is_done.recv_timeout(LONG).expect("it waits for ever");
    assert!(!listens.join().unwrap());
}

/// What one member gives back is no reason to listen to it again in the middle of that.
#[test]
fn a_heap_of_requests_that_were_given_back_is_worked_off() {
    let small_stack = thread::Builder::new().stack_size(256 << 10);
    let works = small_stack.spawn(|| {
        let program = Program::new(4, |_| ());
        assert!(program.listen());
        let member = program.join();
        assert!(matches!(program.hear(&member), (Message::Welcome, _)));
        let tcp = program.dial();
        let handed = Handed {
            request: request(false),
            challenge: None,
            tried: Vec::new(),
        };
        let mut given = 0;
        let fds = [tcp.as_raw_fd()];
        while member.send(&Message::Back(handed.clone()), &fds).is_ok() {
            given += 1;
        }
        assert!(given > 50, "{given}");
        let mut client = program.dial();
        client.write_all(&request(false)).unwrap();
        assert_eq!(program.answer(&mut client), NO_MATCH);
        program.poll_until(|| (program.counter("no_match") > given).then_some(()));
    });
    works.unwrap().join().unwrap();
}

/// A member waits for a peer at one host: another host that calls it by its name is no reason to keep that one out.
#[test]
fn a_peer_is_waited_for_at_its_host() {
    let program = Program::new(5, |_| ());
    assert!(program.listen());
    let hosts = [1, 2].map(|number| Ipv4Addr::from_bits(0x7F6F_0000 | number));
    let member = program.join();
    assert!(matches!(program.hear(&member), (Message::Welcome, _)));
    member.send(&waits(Some(hosts[0]), 1), &[]).unwrap();
    let mut stranger = program.dial_from(hosts[1]);
    stranger.write_all(&request(true)).unwrap();
    assert_eq!(program.answer(&mut stranger), NO_MATCH);
    program
        .dial_from(hosts[0])
        .write_all(&request(true))
        .unwrap();
    assert!(matches!(program.hear(&member), (Message::Take(..), _)));
}

/// What programs have said before a client asked counts, though the keeper has heard none of them yet.
#[test]
fn all_who_wait_are_heard_before_nobody_is_said_to() {
    let program = Program::new(6, |_| ());
    assert!(program.listen());
    let members = [(); 3].map(|()| program.join());
    members[2].send(&waits(None, 1), &[]).unwrap();
    program.dial().write_all(&request(false)).unwrap();
    assert!(matches!(program.hear(&members[2]), (Message::Welcome, _)));
    assert!(matches!(program.hear(&members[2]), (Message::Take(..), _)));
}

/// Those who come in and say nothing keep nobody out.
#[test]
fn silent_strangers_give_way_to_who_asks() {
    let program = Program::new(7, |config| config.max_incoming = 4);
    assert!(program.listen());
    let mut silent: Vec<_> = (0..8).map(|_| program.dial()).collect();
    program.poll_until(|| (program.counter("tcp_accepted") == 8).then_some(()));
    let mut client = program.dial();
    client.write_all(&request(false)).unwrap();
    assert_eq!(program.answer(&mut client), NO_MATCH);
    assert!(program.counter("drop_incoming_full") >= 5);
    // The oldest are gone, the youngest not.
    let mut one = [0];
    assert_eq!(silent[0].read(&mut one).unwrap(), 0);
    assert!(is_for_later(&silent[7].read(&mut one).unwrap_err()));
}
