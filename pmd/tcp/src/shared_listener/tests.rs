//! Shared listener of several programs of a host: the test takes the roles of all but one, and of remote hosts.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use super::*;
use crate::testkit::{NAMED, NO_MATCH, Program, TIMEOUT, in_directory, request};
use vi_core::control_socket::Listener;
use vi_core::control_socket::testkit::lingering_connection;

impl Program {
    /// Connects as a listener client.
    fn connect_client(&self) -> Socket {
        let client = address(self.at).connect().unwrap();
        client.take_descriptors();
        client
    }

    /// Takes descriptors of programs that are not accepted, as kernels before Linux 6.16 do.
    fn take_descriptors(&self) {
        const SO_PASSRIGHTS: libc::c_int = 83;
        let nic = self.lock();
        let Role::ListenerOwner { local, .. } = &nic.tcp.connector.shared_listener.role else {
            panic!("not the listener owner");
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

    fn receive(&self, client: &Socket) -> (Message, Vec<OwnedFd>) {
        self.poll_until(|| match client.receive::<Message>() {
            Ok(message) => Some(message.expect("a message")),
            Err(error) if is_would_block(&error) => None,
            Err(error) => panic!("{error}"),
        })
    }
}

fn listen_for(peer: Option<Ipv4Addr>, count: u32) -> Message {
    Message::Listen {
        key: ListenKey {
            peer: peer.map(|host| host.to_ipv6_mapped().octets()),
            called: NAMED.to_vec(),
        },
        count,
        seen: 0,
    }
}

fn address(at: SocketAddr) -> LocalAddress {
    LocalAddress::of(None, at).unwrap()
}

/// Creates the directory of a test.
fn base(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("viaduct-unit-{}-{test}", std::process::id()));
    fs::create_dir(&path).unwrap();
    path
}

/// Acts as the listener owner; returns the TCP socket, the Unix listener, and the program's connection to it.
fn fake_owner(program: &Program) -> (ListenSocket, LocalListener, Socket) {
    let listen_socket = ListenSocket::bind(program.at).unwrap();
    let name = address(program.at).listen().unwrap().unwrap();
    assert!(program.listen());
    let client = name.listener().accept().unwrap();
    let fds = [listen_socket.as_fd().as_raw_fd()];
    client.send(&Message::Joined, &fds).unwrap();
    program.poll();
    (listen_socket, name, client)
}

/// A dying program closes its descriptors one by one: a client may see its end before the socket is free, and connect again.
#[test]
fn port_stays_open_while_its_owner_dies() {
    let program = Program::new(1, |_| ());
    let (listen_socket, name, client) = fake_owner(&program);
    drop(listen_socket);
    let mut initiator = program.dial();
    initiator.write_all(&request(false)).unwrap();
    for client in [Some(client), None, None] {
        drop(client);
        for _ in 0..100 {
            program.poll();
        }
        // It connects as a client once more, to the dying owner.
        drop(program.poll_until(|| name.listener().accept().ok()));
        program.dial();
    }
    drop(name);
    assert_eq!(program.response_type(&mut initiator), NO_MATCH);
}

/// While another program has the lock and does not accept, there is no owner; a client then becomes it without a call.
#[test]
fn client_becomes_owner_when_the_lock_is_free() {
    let program = Program::new(2, |_| ());
    let (listen_socket, listener, client) = fake_owner(&program);
    listener.listener().shut_down();
    let squatter = listener;
    drop((listen_socket, client));
    let mut initiator = program.dial();
    initiator.write_all(&request(false)).unwrap();
    for _ in 0..100 {
        program.poll();
    }
    drop(squatter);
    assert_eq!(program.response_type(&mut initiator), NO_MATCH);
}

/// A call that listens does not block for long beside an owner that does not accept.
#[test]
fn listen_beside_owner_that_does_not_accept_fails() {
    let program = Program::new(3, |_| ());
    let _port = ListenSocket::bind(program.at).unwrap();
    let address = address(program.at);
    let _name = self::address(program.at).listen().unwrap().unwrap();
    let waiting: Vec<_> = core::iter::from_fn(|| address.connect().ok()).collect();
    assert!(!waiting.is_empty());
    let (done, is_done) = channel();
    let call = thread::spawn(move || {
        let listens = program.listen();
        done.send(()).unwrap();
        listens
    });
    is_done
        .recv_timeout(TIMEOUT)
        .expect("the call does not return");
    assert!(!call.join().unwrap());
}

/// Returned requests are queued: processing one must not read the client again, recursively.
#[test]
fn many_returned_requests_are_processed_without_recursion() {
    let small_stack = thread::Builder::new().stack_size(256 << 10);
    let test = small_stack.spawn(|| {
        let program = Program::new(4, |_| ());
        assert!(program.listen());
        let client = program.connect_client();
        assert!(matches!(program.receive(&client), (Message::Joined, _)));
        let handoff = HandoffRequest {
            request: request(false),
            challenge: None,
            tried: Vec::new(),
        };
        let clients = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut sent, mut others) = (0, Vec::new());
        loop {
            // Each is another connection.
            let tcp = TcpStream::connect(clients.local_addr().unwrap()).unwrap();
            others.push(clients.accept().unwrap());
            let message = Message::Return(handoff.clone());
            if client.send(&message, &[tcp.as_raw_fd()]).is_err() {
                break;
            }
            sent += 1;
        }
        assert!(sent > 50, "{sent}");
        let mut initiator = program.dial();
        initiator.write_all(&request(false)).unwrap();
        assert_eq!(program.response_type(&mut initiator), NO_MATCH);
        program.poll_until(|| (program.counter("no_match") > sent).then_some(()));
    });
    test.unwrap().join().unwrap();
}

/// A client listens for a peer at one host: a request of another host with the same discriminator does not match.
#[test]
fn peer_request_is_handed_off_by_host() {
    let program = Program::new(5, |_| ());
    assert!(program.listen());
    let hosts = [1, 2].map(|number| Ipv4Addr::from_bits(0x7F6F_0000 | number));
    let client = program.connect_client();
    assert!(matches!(program.receive(&client), (Message::Joined, _)));
    client.send(&listen_for(Some(hosts[0]), 1), &[]).unwrap();
    let mut unrelated = program.dial_from(hosts[1]);
    unrelated.write_all(&request(true)).unwrap();
    assert_eq!(program.response_type(&mut unrelated), NO_MATCH);
    program
        .dial_from(hosts[0])
        .write_all(&request(true))
        .unwrap();
    assert!(matches!(
        program.receive(&client),
        (Message::Handoff(..), _)
    ));
}

/// Listens that programs reported before a request count, though the owner has not read them yet.
#[test]
fn pending_listens_are_read_before_no_match() {
    let program = Program::new(6, |_| ());
    assert!(program.listen());
    let clients = [(); 3].map(|()| program.connect_client());
    clients[2].send(&listen_for(None, 1), &[]).unwrap();
    program.dial().write_all(&request(false)).unwrap();
    assert!(matches!(program.receive(&clients[2]), (Message::Joined, _)));
    assert!(matches!(
        program.receive(&clients[2]),
        (Message::Handoff(..), _)
    ));
}

/// Silent connections at the limit do not lock out a peer with a request.
#[test]
fn silent_connections_are_evicted_for_a_new_one() {
    let program = Program::new(7, |config| config.settings.max_incoming = 4);
    assert!(program.listen());
    let mut silent: Vec<_> = (0..8).map(|_| program.dial()).collect();
    program.poll_until(|| (program.counter("tcp_accepted") == 8).then_some(()));
    let mut initiator = program.dial();
    initiator.write_all(&request(false)).unwrap();
    assert_eq!(program.response_type(&mut initiator), NO_MATCH);
    assert!(program.counter("drop_incoming_full") >= 5);
    // The oldest are closed, the newest is not.
    let mut one = [0];
    assert_eq!(silent[0].read(&mut one).unwrap(), 0);
    assert!(is_would_block(&silent[7].read(&mut one).unwrap_err()));
}

/// A killed program leaves its socket and its lock file; the next program replaces them.
#[test]
fn socket_of_a_killed_program_is_replaced() {
    let program = Program::new(8, |_| ());
    let address = address(program.at);
    drop(Listener::bind(&address.path()).unwrap());
    let refused = address.connect().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    assert!(program.listen());
    let client = program.connect_client();
    assert!(matches!(program.receive(&client), (Message::Joined, _)));
}

/// Files of dead programs at other ports are removed, those of running ones are not, and none is left in the end.
#[test]
fn files_of_dead_programs_are_swept() {
    let base = base("swept");
    let ports = [9, 10, 11].map(|test| Program::new(test, |c| in_directory(c, &base)));
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

/// Descriptors that a program passes with invalid messages, with messages that need none, or more than needed: none of
/// them is closed under the NIC's backend lock, nor in the close of the NIC.
#[test]
fn blocking_close_of_passed_descriptors_delays_neither_poll_nor_close() {
    let program = Program::new(12, |_| ());
    assert!(program.listen());
    program.take_descriptors();
    let started = Instant::now();
    let mut peers = Vec::new();
    let mut pass = |client: &Socket, message: &Message, times: usize| {
        let fds: Vec<_> = (0..times)
            .map(|_| {
                let (local, peer) = lingering_connection();
                peers.push(peer);
                local
            })
            .collect();
        let numbers: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        client.send(message, &numbers).unwrap();
    };
    let handoff = || HandoffRequest {
        request: b"none".to_vec(),
        challenge: None,
        tried: Vec::new(),
    };
    let client = program.connect_client();
    assert!(matches!(program.receive(&client), (Message::Joined, _)));
    pass(&client, &listen_for(None, 1), 2);
    pass(&client, &Message::Return(handoff()), 2);
    // This ends its role as a client.
    pass(&client, &Message::Joined, 1);
    program.poll_until(|| {
        client
            .receive::<Message>()
            .is_ok_and(|end| end.is_none())
            .then_some(())
    });
    // Descriptors not received when the NIC is closed: of a client, and of a program that is not accepted yet.
    let client = program.connect_client();
    assert!(matches!(program.receive(&client), (Message::Joined, _)));
    pass(&client, &listen_for(None, 1), 1);
    let waiting = program.connect_client();
    pass(&waiting, &listen_for(None, 1), 1);
    drop((client, waiting, program));
    assert!(started.elapsed() < TIMEOUT, "the NIC waited for a close");
    // Now the deferred closes can complete, these and others of the process.
    thread::scope(|scope| {
        for mut peer in peers {
            scope.spawn(move || io::copy(&mut peer, &mut io::sink()).unwrap());
        }
    });
}

fn as_another_user<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::uid_t = 65_534;
    let run = || {
        // SAFETY: takes no memory. The system call concerns this thread alone; that of the C library all.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        let refused = io::Error::last_os_error();
        assert_eq!(done, 0, "this test needs root: {refused}");
        run()
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn directory_of_shared_listener_is_private() {
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

/// A program of another user reaches the socket all the same, and passes a descriptor whose close blocks.
#[test]
fn program_of_another_user_is_rejected_without_delaying_poll() {
    let base = base("open");
    let program = Program::new(14, |config| in_directory(config, &base));
    assert!(program.listen());
    program.take_descriptors();
    let LocalAddress { directory, name } = LocalAddress::of(Some(&base), program.at).unwrap();
    let path = directory.path().join(name);
    for (path, mode) in [(&*base, 0o755), (directory.path(), 0o755), (&*path, 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let started = Instant::now();
    let (local, mut peer) = lingering_connection();
    let attacker = as_another_user(|| {
        let attacker = Socket::connect(&path).unwrap();
        let fds = [local.as_raw_fd()];
        attacker.send(&listen_for(None, 1), &fds).unwrap();
        attacker
    });
    drop(local);
    program.poll_until(|| (program.counter("drop_local_program") == 1).then_some(()));
    // TCP connections are still served.
    let client = LocalAddress::of(Some(&base), program.at);
    assert!(client.is_err(), "its mode is not 0700");
    program.dial().write_all(&request(false)).unwrap();
    program.poll_until(|| (program.counter("no_match") == 1).then_some(()));
    assert!(started.elapsed() < TIMEOUT, "the NIC waited for the close");
    io::copy(&mut peer, &mut io::sink()).unwrap();
    drop((attacker, program));
    fs::remove_dir_all(&base).unwrap();
}

/// When the queue of deferred closes is full, nothing more is received from other programs until some are closed.
#[test]
fn full_close_queue_pauses_other_programs_but_not_tcp() {
    let program = Program::new(15, |_| ());
    assert!(program.listen());
    let (mut peers, mut sent) = (Vec::new(), 0);
    let client = program.connect_client();
    assert!(matches!(program.receive(&client), (Message::Joined, _)));
    while program.counter("local_pauses") == 0 {
        assert!(
            sent <= 2 * pmd_port::deferred_close::LIMIT,
            "the queue is never full"
        );
        let (local, peer) = lingering_connection();
        peers.push(peer);
        let fds = [local.as_raw_fd()];
        client.send(&listen_for(None, 1), &fds).unwrap();
        drop(local);
        sent += 1;
        program.poll();
    }
    let mut initiator = program.dial();
    initiator.write_all(&request(false)).unwrap();
    program.poll_until(|| (program.counter("tcp_accepted") == 1).then_some(()));
    let other = program.connect_client();
    drop(client);
    for mut peer in peers {
        thread::spawn(move || io::copy(&mut peer, &mut io::sink()));
    }
    assert!(matches!(program.receive(&other), (Message::Joined, _)));
}

/// A poll reads a limited number of messages of a program; the rest waits for the next poll.
#[test]
fn messages_read_per_poll_are_bounded() {
    let program = Program::new(16, |_| ());
    assert!(program.listen());
    let client = program.connect_client();
    assert!(matches!(program.receive(&client), (Message::Joined, _)));
    let fd = client.as_fd().as_raw_fd();
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
    for _ in 0..4 * MAX_MESSAGES {
        client.send(&listen_for(None, 1), &[]).unwrap();
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
