//! Programs of one host at one port, of which a test plays all but one, and strangers at that port.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use vitcp_lite::profile::SEGMENT_HEADER_BYTES;

use super::*;
use crate::attach::socket::Listener;
use crate::config::{NicConfig, TransportKind};
use crate::control;
use crate::device::{self, Device};
use crate::nic;
use crate::testkit::lingering;
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
            host: Some(host.into()),
            ulp_timeout_ms: Some(600_000),
            ..NicConfig::default()
        };
        change(&mut config);
        let (device, nic) = device::open_unattended(&config).unwrap();
        let at = End {
            host: device.host,
            port: config.tcp_port,
            scope: 0,
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
            assert!(
                begun.elapsed() < LONG,
                "it does not come about: {:?}",
                nic::counters(self.nic)
            );
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
        let member = address(self.at).connect().unwrap();
        member.take_descriptors();
        member
    }

    /// As a kernel before Linux 6.16, has descriptors passed by programs that are not accepted.
    fn take_descriptors(&self) {
        const SO_PASSRIGHTS: libc::c_int = 83;
        let held = self.device.hold();
        let poller = held
            .as_ref()
            .and_then(crate::driver::Driver::engine)
            .unwrap();
        let crate::transport::Transport::ViTcp(tcp) = &poller.engine else {
            panic!("another transport");
        };
        let Role::Keeper { local, .. } = &tcp.door.role else {
            panic!("it does not accept");
        };
        let takes: libc::c_int = 1;
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        let (fd, from) = (
            local.listener().as_fd().as_raw_fd(),
            (&raw const takes).cast(),
        );
        // SAFETY: the kernel reads a value of this frame, of that size.
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, from, length) };
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
        device::close(self.device, self.nic).unwrap();
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

fn address(at: End) -> LocalAddress {
    LocalAddress::of(None, at).unwrap()
}

/// A directory of a test, in which programs find each other.
fn base(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("viaduct-unit-{}-{test}", std::process::id()));
    fs::create_dir(&path).unwrap();
    path
}

/// A keeper that a test plays: its port, and its name.
fn keeper(program: &Program) -> (Listening, LocalListener, Socket) {
    let listening = Listening::bind(program.at).unwrap();
    let name = address(program.at).listen().unwrap().unwrap();
    assert!(program.listen());
    let member = name.listener().accept().unwrap();
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
        drop(program.poll_until(|| name.listener().accept().ok()));
        program.dial();
    }
    drop(name);
    assert_eq!(program.answer(&mut client), NO_MATCH);
}

/// Another program may have the lock and not accept: nobody keeps the port then, and as soon as it can be
/// done somebody does, without any call.
#[test]
fn a_member_keeps_the_port_as_soon_as_it_can() {
    let program = Program::new(2, |_| ());
    let (listening, listener, member) = keeper(&program);
    listener.listener().shut_down();
    let squatter = listener;
    drop((listening, member));
    let mut client = program.dial();
    client.write_all(&request(false)).unwrap();
    for _ in 0..100 {
        program.device.poll();
    }
    drop(squatter);
    assert_eq!(program.answer(&mut client), NO_MATCH);
}

/// Whoever has the name and lets nobody in does not hold up a call for long.
#[test]
fn a_name_that_lets_nobody_in_holds_up_nobody() {
    let program = Program::new(3, |_| ());
    let _port = Listening::bind(program.at).unwrap();
    let address = address(program.at);
    let _name = self::address(program.at).listen().unwrap().unwrap();
    let waiting: Vec<_> = core::iter::from_fn(|| address.connect().ok()).collect();
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

/// A stranger may have the port for as long as it likes: the turn is free while a call waits for it.
#[test]
fn call_that_waits_for_a_port_holds_no_turn() {
    let base = base("taken");
    let program = Program::new(17, |config| config.directory = Some(base.clone()));
    let stranger = Listening::bind(program.at).unwrap();
    thread::scope(|scope| {
        let call = scope.spawn(|| control::start_listening(program.device, program.nic, LONG));
        while fs::read_dir(&base).unwrap().next().is_none() {
            assert!(!call.is_finished(), "it did not wait");
            thread::yield_now();
        }
        let held = program.device.hold();
        drop(stranger);
        drop(held);
        assert_eq!(call.join().unwrap(), Ok(()));
    });
    drop(program);
    fs::remove_dir_all(base).unwrap();
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
        let handed = Handed {
            request: request(false),
            challenge: None,
            tried: Vec::new(),
        };
        let clients = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut given, mut others) = (0, Vec::new());
        loop {
            // Each is another connection.
            let tcp = TcpStream::connect(clients.local_addr().unwrap()).unwrap();
            others.push(clients.accept().unwrap());
            let back = Message::Back(handed.clone());
            if member.send(&back, &[tcp.as_raw_fd()]).is_err() {
                break;
            }
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

/// A program that was killed leaves its socket and its lock file; the next one takes their place.
#[test]
fn socket_of_a_killed_program_is_replaced() {
    let program = Program::new(8, |_| ());
    let address = address(program.at);
    drop(Listener::bind(&address.path()).unwrap());
    let refused = address.connect().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert!(program.listen());
    let member = program.join();
    assert!(matches!(program.hear(&member), (Message::Welcome, _)));
}

/// Files of dead programs at other ports are removed, those of living ones are not, and none is left in the end.
#[test]
fn files_of_dead_programs_are_swept() {
    // Those of other tests would sweep here, too.
    let base = base("swept");
    let ports = [9, 10, 11].map(|test| Program::new(test, |c| c.directory = Some(base.clone())));
    let [dead, living, program] = &ports;
    let address = |program: &Program| LocalAddress::of(Some(&base), program.at).unwrap();
    let file = |program: &Program| {
        let LocalAddress { directory, name } = address(program);
        directory.path().join(name)
    };
    assert!(living.listen());
    let of_dead = address(dead);
    drop(Listener::bind(&of_dead.path()).unwrap());
    drop(of_dead.lock().unwrap().unwrap());
    assert!(file(dead).exists());
    assert!(program.listen());
    assert!(!file(dead).exists());
    assert!(file(living).exists() && file(program).exists());
    drop(ports);
    assert_eq!(of_dead.directory.file_names().unwrap().count(), 0);
    fs::remove_dir_all(&base).unwrap();
}

/// Descriptors that a program passes, with messages that are none, with those that want none, or
/// more than are wanted: none of them is closed in the NIC's turn, nor in the close of the NIC.
#[test]
fn passed_descriptors_whose_close_blocks_hold_up_neither_turn_nor_close() {
    let program = Program::new(12, |_| ());
    assert!(program.listen());
    program.take_descriptors();
    let begun = Instant::now();
    let mut peers = Vec::new();
    let mut pass = |member: &Socket, message: &Message, times: usize| {
        let fds: Vec<_> = (0..times)
            .map(|_| {
                let (near, peer) = lingering();
                peers.push(peer);
                near
            })
            .collect();
        let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        member.send(message, &numbers).unwrap();
    };
    let handed = || Handed {
        request: b"none".to_vec(),
        challenge: None,
        tried: Vec::new(),
    };
    let member = program.join();
    assert!(matches!(program.hear(&member), (Message::Welcome, _)));
    pass(&member, &waits(None, 1), 2);
    pass(&member, &Message::Back(handed()), 2);
    // It is a member no more after that.
    pass(&member, &Message::Welcome, 1);
    program.poll_until(|| {
        member
            .receive::<Message>()
            .is_ok_and(|end| end.is_none())
            .then_some(())
    });
    // What nobody has received when the NIC is closed, of a member and of one that is not accepted yet.
    let member = program.join();
    assert!(matches!(program.hear(&member), (Message::Welcome, _)));
    pass(&member, &waits(None, 1), 1);
    let waiting = program.join();
    pass(&waiting, &waits(None, 1), 1);
    drop((member, waiting, program));
    assert!(begun.elapsed() < LONG, "a close was waited for");
    // The others can be closed now, and whatever else the process passes to that thread.
    thread::scope(|scope| {
        for mut peer in peers {
            scope.spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
        }
    });
}

/// Runs as another user, as far as the system lets this process.
fn as_another_user<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::uid_t = 65_534;
    let run = || {
        // SAFETY: takes no memory; the system call is of this thread alone, the library's is of all.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        let refused = io::Error::last_os_error();
        assert_eq!(done, 0, "this test needs root: {refused}");
        run()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn directory_of_programs_at_a_port_is_closed_to_other_users() {
    let program = Program::new(13, |_| ());
    assert!(program.listen());
    let LocalAddress { directory, name } = address(program.at);
    let found = fs::metadata(directory.path()).unwrap();
    let own = nix::unistd::geteuid().as_raw();
    assert_eq!((found.mode() & 0o7777, found.uid()), (0o700, own));
    let path = directory.path().join(name);
    let refused = as_another_user(|| Socket::connect(&path).unwrap_err());
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
}

/// Another user's program that gets to the socket all the same, and passes what blocks who closes it.
#[test]
fn program_of_another_user_is_rejected_and_its_descriptors_hold_up_no_turn() {
    let base = base("open");
    let program = Program::new(14, |config| config.directory = Some(base.clone()));
    assert!(program.listen());
    program.take_descriptors();
    let LocalAddress { directory, name } = LocalAddress::of(Some(&base), program.at).unwrap();
    let path = directory.path().join(name);
    for (path, mode) in [(&*base, 0o755), (directory.path(), 0o755), (&*path, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let begun = Instant::now();
    let (near, mut peer) = lingering();
    let attacker = as_another_user(|| {
        let attacker = Socket::connect(&path).unwrap();
        attacker.send(&waits(None, 1), &[near.as_raw_fd()]).unwrap();
        attacker
    });
    drop(near);
    program.poll_until(|| (program.counter("drop_local_program") == 1).then_some(()));
    // The next one is served.
    let member = LocalAddress::of(Some(&base), program.at);
    assert!(member.is_err(), "its mode is not 0700");
    program.dial().write_all(&request(false)).unwrap();
    program.poll_until(|| (program.counter("no_match") == 1).then_some(()));
    assert!(begun.elapsed() < LONG, "the close was waited for");
    io::copy(&mut peer, &mut io::sink()).unwrap();
    drop((attacker, program));
    fs::remove_dir_all(&base).unwrap();
}

/// As many descriptors as the queue of the release thread takes: then nothing more is accepted of other
/// programs, until some are closed.
#[test]
fn full_release_queue_pauses_other_programs_and_no_tcp() {
    let program = Program::new(15, |_| ());
    assert!(program.listen());
    let (mut peers, mut sent) = (Vec::new(), 0);
    let member = program.join();
    assert!(matches!(program.hear(&member), (Message::Welcome, _)));
    while program.counter("local_pauses") == 0 {
        assert!(sent <= 2 * pmd_port::release::LIMIT, "nothing is full");
        let (near, peer) = lingering();
        peers.push(peer);
        member.send(&waits(None, 1), &[near.as_raw_fd()]).unwrap();
        drop(near);
        sent += 1;
        program.device.poll();
    }
    let mut client = program.dial();
    client.write_all(&request(false)).unwrap();
    program.poll_until(|| (program.counter("tcp_accepted") == 1).then_some(()));
    let other = program.join();
    drop(member);
    for mut peer in peers {
        thread::spawn(move || io::copy(&mut peer, &mut io::sink()));
    }
    assert!(matches!(program.hear(&other), (Message::Welcome, _)));
}

/// More messages than one visit reads: the rest waits for the next.
#[test]
fn messages_of_one_program_in_a_visit_are_bounded() {
    let program = Program::new(16, |_| ());
    assert!(program.listen());
    let member = program.join();
    assert!(matches!(program.hear(&member), (Message::Welcome, _)));
    let fd = member.as_fd().as_raw_fd();
    let bytes: libc::c_int = 16 << 20;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let from = (&raw const bytes).cast();
    // SAFETY: the kernel reads a value of this frame, of that size.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, from, length) };
    assert_eq!(
        set,
        0,
        "this test needs root: {}",
        io::Error::last_os_error()
    );
    for _ in 0..4 * MESSAGES_AT_ONCE {
        member.send(&waits(None, 1), &[]).unwrap();
    }
    let unread = || {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the kernel writes an integer of this frame.
        let done = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
        assert_eq!(done, 0);
        bytes
    };
    let all = unread();
    let left = program.poll_until(|| (unread() < all).then(&unread));
    assert!(left > all / 2, "{left} of {all}");
    program.poll_until(|| (unread() == 0).then_some(()));
}
