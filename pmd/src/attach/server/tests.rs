//! Tests of programs that end during the attach handshake, of limits, and of failed NICs.

use crate::config::{Network, NicConfig, Shm};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use fcvi_frame::fc::NPortId;
use pmd_port::PortFailure;
use vi_types::{Discriminator, HostAddress, NetAddress};

use super::*;
use crate::attach::client::Clients;
use crate::nic_backend::Backend;
use vi_core::control_socket::testkit::lingering_connection;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn id_of(test: &str) -> String {
    format!("unit-{}-{test}", std::process::id())
}

/// A running process; the socket file is removed on drop also if it was not stopped.
pub(super) struct Running(Arc<Server>);

impl core::ops::Deref for Running {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it was stopped.
        let _ = fs::remove_file(socket_of(&self.process()));
    }
}

/// A process with one NIC.
pub(super) fn server(test: &str) -> Running {
    let id = id_of(test);
    let socket = std::env::temp_dir().join(format!("viaduct-{id}.sock"));
    let text = format!(
        "[process]\nsocket = {socket:?}\nidle = \"hybrid\"\n[[nic]]\nshm.segment = \"{id}\"\n"
    );
    Running(Server::start(Config::parse(&text).unwrap(), |_| Vec::new()).unwrap())
}

fn connect(server: &Server) -> Socket {
    let path = socket_of(&server.process());
    let socket = Socket::connect(&path).unwrap();
    socket.set_timeout(Some(LONG)).unwrap();
    socket
}

fn attach_request() -> Request {
    Request::Attach {
        version: VERSION,
        device: "VINIC0".to_owned(),
    }
}

fn send_attach(server: &Server) -> Socket {
    let socket = connect(server);
    socket.send(&attach_request(), &[]).unwrap();
    socket
}

/// Attaches, and returns the attach connection and the key.
fn attach(server: &Server) -> (Socket, [u8; 16]) {
    let (attach_socket, _rings) = request_rings(server);
    attach_socket.send(&Request::RingsMapped, &[]).unwrap();
    match reply(&attach_socket) {
        Reply::Attached { key, .. } => (attach_socket, key),
        other => panic!("{other:?}"),
    }
}

/// Begins to attach, and returns the attach connection and the memory of the rings.
fn request_rings(server: &Server) -> (Socket, OwnedFd) {
    let attach_socket = send_attach(server);
    match attach_socket.receive::<Reply>().unwrap() {
        Some((Reply::Rings, mut fds)) => (attach_socket, fds.remove(0)),
        other => panic!("{other:?}"),
    }
}

fn send_join(server: &Server, key: [u8; 16]) -> Socket {
    let socket = connect(server);
    let join = Request::Join {
        version: VERSION,
        key,
    };
    socket.send(&join, &[]).unwrap();
    socket
}

pub(super) fn reply(socket: &Socket) -> Reply {
    socket.receive().unwrap().unwrap().0
}

/// Opens a call connection and a NIC handle.
fn open(server: &Server, key: [u8; 16]) -> (Socket, u64) {
    let call = send_join(server, key);
    assert!(matches!(reply(&call), Reply::Done));
    call.send(&Request::Open, &[]).unwrap();
    match reply(&call) {
        Reply::Handle(nic) => (call, nic),
        other => panic!("{other:?}"),
    }
}

/// Attaches, and returns the reason of the refusal.
fn refusal(server: &Server) -> String {
    let attach_socket = send_attach(server);
    let last = match reply(&attach_socket) {
        Reply::Rings => {
            attach_socket.send(&Request::RingsMapped, &[]).unwrap();
            reply(&attach_socket)
        }
        other => other,
    };
    match last {
        Reply::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// As on a kernel where a receiver cannot refuse descriptors.
#[test]
fn rejected_connections_whose_close_blocks_delay_no_other() {
    let server = server("release");
    server.listener.take_descriptors();
    let path = socket_of(&server.process());
    server.process().max_pending_per_process = 2;
    let pending = [connect(&server), connect(&server)];
    let mut peers = Vec::new();
    {
        // No connection is rejected before its descriptor is passed.
        let _held = server.process();
        for _ in 0..3 {
            let (lingering, peer) = lingering_connection();
            let socket = Socket::connect(&path).unwrap();
            socket
                .send(&attach_request(), &[lingering.as_raw_fd()])
                .unwrap();
            peers.push((socket, peer));
        }
    }
    for (socket, _) in &peers {
        let reply = socket.first_reply(Ok(()));
        let Ok(Some((Reply::Refused(why), _))) = reply else {
            panic!("{reply:?}");
        };
        assert!(why.starts_with("max_pending_per_process = 2 "), "{why}");
        socket.wait_for_close(LONG);
        assert!(socket.is_closed());
    }
    drop(pending);
    // The dropped connections count for a moment longer.
    server.process().max_pending_per_process = 100;
    let (_life, _) = attach(&server);
    server.stop();
}

/// On every kernel: call connections take descriptors, and those that were not received are closed with the socket.
#[test]
fn call_connections_whose_close_blocks_delay_no_other() {
    let server = server("calls-release");
    let (_life, key) = attach(&server);
    let call = send_join(&server, key);
    assert!(matches!(reply(&call), Reply::Done));
    let (lingering, peer) = lingering_connection();
    {
        // The thread of the connection waits for the NIC.
        let _held = server.nics[0].device.lock();
        call.send(&Request::Open, &[]).unwrap();
        // An unexpected descriptor ends the connection while the next message is still in the socket.
        let harmless = fs::File::open("/dev/null").unwrap();
        call.send(&Request::Open, &[harmless.as_raw_fd()]).unwrap();
        call.send(&Request::Open, &[lingering.as_raw_fd()]).unwrap();
        drop(lingering);
    }
    // The end follows the reply, or replaces it.
    while let Ok(Some(_)) = call.receive::<Reply>() {}
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(attach(&server)));
        let other = is_done.recv_timeout(LONG);
        // Unblocks the close in any case.
        drop(peer);
        assert!(other.is_ok(), "it was delayed");
    });
    server.stop();
}

/// Waits until no application is attached.
fn wait_until_unused(server: &Server) {
    let device = server.nics[0].device;
    let deadline = Instant::now() + LONG;
    loop {
        let is_served = {
            let mut held = device.lock();
            Clients::of_backend(held.as_mut().unwrap()).is_some_and(|clients| clients.has_any())
        };
        if !is_served && server.sessions().is_empty() && device.nic_handles.count() == 1 {
            return;
        }
        assert!(Instant::now() < deadline, "something is left");
        std::thread::yield_now();
    }
}

#[test]
fn program_that_ends_during_the_handshake_leaves_nothing() {
    let server = server("steps");
    for step in 0..7 {
        let mut dying = Vec::new();
        if step == 0 {
            dying.push(connect(&server));
        } else if step == 1 {
            dying.push(send_attach(&server));
        } else if step == 6 {
            dying.push(request_rings(&server).0);
        } else {
            let (attach_socket, key) = attach(&server);
            dying.push(attach_socket);
            if step > 2 {
                let call = send_join(&server, key);
                if step > 3 {
                    assert!(matches!(reply(&call), Reply::Done));
                    call.send(&Request::Open, &[]).unwrap();
                }
                if step > 4 {
                    assert!(matches!(reply(&call), Reply::Handle(_)));
                }
                dying.push(call);
            }
        }
        drop(dying);
        wait_until_unused(&server);
    }
    server.stop();
}

/// The program waits for a connection without a timeout when it ends.
#[test]
fn blocking_call_ends_with_its_program() {
    let server = server("blocks");
    let (attach_socket, key) = attach(&server);
    let (call, nic) = open(&server, key);
    let device = server.nics[0].device;
    let discriminator = Discriminator::new(b"here").unwrap();
    let host = HostAddress(device.host);
    let local = NetAddress {
        host,
        discriminator,
    };
    let wait = Request::ConnectWait {
        nic,
        local,
        limit: None,
    };
    call.send(&wait, &[]).unwrap();
    let session = server.sessions().values().next().cloned().unwrap();
    drop(attach_socket);
    wait_until_unused(&server);
    // Its thread releases the session when the call has returned.
    wait_until("the call is still in progress", || {
        session.calls.load(Ordering::Relaxed) == 0
    });
    drop(call);
    server.stop();
}

/// The reply would need a lock that the program holds while it waits.
#[test]
fn attach_to_the_own_process_is_an_error() {
    let server = server("itself");
    let path = socket_of(&server.process());
    let link = path.with_extension("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [path.clone(), link.clone()] {
        let (sender, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(open::attach(&path, "VINIC0").map(drop)));
        let error = result.recv_timeout(LONG).expect("a result").unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("this program is that process itself"),
            "{text}"
        );
    }
    fs::remove_file(&link).unwrap();
    server.stop();
    let gone = open::attach(&path, "VINIC0").map(drop).unwrap_err();
    let text = gone.to_string();
    assert!(text.contains("no datapath process at"), "{text}");
}

#[test]
fn attach_is_limited_per_user_until_an_application_ends() {
    let server = server("often");
    server.process().max_applications_per_user = Some(2);
    let [first, _second] = [(); 2].map(|()| attach(&server));
    let why = refusal(&server);
    assert!(
        why.contains("max_applications_per_user = 2 of user"),
        "{why}"
    );
    drop(first);
    wait_until("its slot is not free", || {
        !matches!(reply(&send_attach(&server)), Reply::Refused(_))
    });
    server.stop();
}

/// An application can block the thread that closes a descriptor that it passed.
#[test]
fn slot_is_in_use_until_the_last_thread_of_the_session_has_ended() {
    let server = server("slot");
    server.process().max_applications_per_user = Some(1);
    let (attach_socket, _) = attach(&server);
    // As held by a blocked thread.
    let session = server.sessions().values().next().cloned().unwrap();
    drop(attach_socket);
    wait_until("the session still exists", || server.sessions().is_empty());
    let why = refusal(&server);
    assert!(why.contains("max_applications_per_user = 1"), "{why}");
    drop(session);
    drop(attach(&server));
    server.stop();
}

#[test]
fn call_rate_limit_continues_after_another_attach() {
    let server = server("rate");
    drop(attach(&server));
    server.process().quota.max_calls_per_second = Some(1);
    let own = connect(&server).peer().unwrap().uid;
    let limiter = server.calls.of(own);
    for _ in 0..60 {
        limiter.delay(Instant::now(), 1);
    }
    let why = refusal(&server);
    assert!(why.contains("max_calls_per_second = 1"), "{why}");
    drop(limiter);
    server.stop();
}

#[test]
fn nic_that_could_not_be_reopened_is_reopened_at_a_later_attach() {
    let server = server("down");
    let served = &server.nics[0];
    nic::close(*served.nic.lock().unwrap()).unwrap();
    // Another NIC uses the segment with other parameters.
    let other = NicConfig {
        network: Network::Shm(Shm {
            segment: id_of("down"),
            ring_frames: 16,
            ..Shm::default()
        }),
        ..NicConfig::default()
    };
    let (device, handle) = open::open(&other).unwrap();
    let why = refusal(&server);
    assert!(
        why.contains("is down; it cannot be reopened") && why.contains("is in use with"),
        "{why}"
    );
    // Its core continues.
    let sleeps = || served.core.counters.sleeps.load(Ordering::Relaxed);
    let before = sleeps();
    wait_until("the core does not sleep", || sleeps() > before + 2);
    open::close(device, handle).unwrap();
    let (attach_socket, key) = attach(&server);
    open(&server, key);
    drop(attach_socket);
    wait_until_unused(&server);
    server.stop();
}

/// Whether it is opened again does not depend on programs that use it.
#[test]
fn failed_nic_is_reopened_although_applications_keep_it_open() {
    let server = server("failed");
    let served = &server.nics[0];
    let (first, first_key) = attach(&server);
    let (second, second_key) = attach(&server);
    let (call, nic) = open(&server, first_key);
    let (waiting, nic_of_second) = open(&server, second_key);
    let wait = Request::ConnectWait {
        nic: nic_of_second,
        local: NetAddress {
            host: HostAddress(served.device.host),
            discriminator: Discriminator::new(b"waiting").unwrap(),
        },
        limit: None,
    };
    waiting.send(&wait, &[]).unwrap();
    {
        let mut held = served.device.lock();
        let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
        poller.failure = Some(PortFailure::SegmentRemoved);
    }
    // An application that has it open cannot open it once more.
    call.send(&Request::Open, &[]).unwrap();
    assert!(matches!(reply(&call), Reply::Failed(_)), "it failed");
    // Neither of them closes anything.
    let (next, key) = attach(&server);
    open(&server, key);
    // Both learn that their memory is no longer accessed, and their calls end.
    for attach_socket in [&first, &second] {
        assert!(attach_socket.receive::<Reply>().unwrap().is_none());
    }
    call.send(&Request::CreatePtag { nic }, &[]).unwrap_err();
    let ended = waiting.receive::<Reply>();
    let is_end = matches!(ended, Ok(None | Some((Reply::Failed(_), _))));
    assert!(is_end, "{ended:?}");
    drop((first, second, next));
    wait_until_unused(&server);
    server.stop();
}

#[test]
fn stopping_process_refuses_to_attach() {
    let server = server("ends");
    // A connection that was accepted before, and continues after all sessions were ended.
    let (process, application) = Socket::pair().unwrap();
    application.set_timeout(Some(LONG)).unwrap();
    application.send(&attach_request(), &[]).unwrap();
    let limits = PendingLimits::from(&*server.process());
    let peer = process.peer().unwrap();
    let pending = server.pending.add(peer, limits).unwrap();
    server.stopping.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| server.serve_connection(pending, process));
        assert!(matches!(reply(&application), Reply::Rings));
        application.send(&Request::RingsMapped, &[]).unwrap();
        let reply = reply(&application);
        assert!(
            matches!(&reply, Reply::Refused(why) if why.contains("the process is stopping")),
            "{reply:?}"
        );
        drop(application);
    });
    wait_until_unused(&server);
    server.stop();
}

/// A peer can block the thread that closes a descriptor which it passed.
#[test]
fn connection_ends_at_an_unexpected_descriptor() {
    let server = server("passed");
    let pass = |socket: &Socket, request: &Request| match socket.send(request, &[socket.fd()]) {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => false,
        Err(error) => panic!("{error}"),
    };
    let first = connect(&server);
    if pass(&first, &attach_request()) {
        // Before Linux 6.16 the kernel passes it.
        assert!(first.receive::<Reply>().unwrap().is_none(), "not closed");
    }
    let (attach_socket, key) = attach(&server);
    let (call, _) = open(&server, key);
    assert!(pass(&call, &Request::Open));
    assert!(call.receive::<Reply>().unwrap().is_none(), "not closed");
    // The attach connection carries no messages: a message ends it.
    pass(&attach_socket, &Request::Open);
    drop(attach_socket);
    wait_until_unused(&server);
    server.stop();
}

#[test]
fn discovered_hosts_may_exceed_one_message() {
    const HOSTS: u32 = 1000;
    let server = server("hosts");
    let (_life, key) = attach(&server);
    let (call, nic) = open(&server, key);
    {
        let mut held = server.nics[0].device.lock();
        let Some(Backend::FcVi(poller)) = held.as_mut() else {
            panic!("another transport");
        };
        for number in 1..=HOSTS {
            let mut host = [0xFD; 16];
            host[12..].copy_from_slice(&number.to_be_bytes());
            let id = NPortId::new(0x02_00_00 + number).unwrap();
            poller
                .transport
                .neighbours
                .add_discovered(id, HostAddress(host));
        }
    }
    call.send(&Request::DiscoveredHosts { nic }, &[]).unwrap();
    let mut bytes = Vec::new();
    loop {
        match reply(&call) {
            Reply::Part(part, last) => {
                bytes.extend(part);
                if last {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    let hosts: Vec<[u8; 16]> = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(hosts.len(), HOSTS as usize);
    // The connection is still usable.
    call.send(&Request::Close { nic }, &[]).unwrap();
    assert!(matches!(reply(&call), Reply::Done));
    server.stop();
}

#[test]
fn reload_returns_the_settings_that_need_a_restart() {
    let server = server("reload");
    let mut new = server.config.clone();
    let old = new.process.clone().unwrap();
    let none: [&str; 0] = [];
    assert_eq!(server.reload(&new), none);
    let process = new.process.as_mut().unwrap();
    process.metrics = Some("127.0.0.1:1".parse().unwrap());
    process.idle = crate::config::Idle::Spin;
    process.spin_us += 1;
    process.socket = Some("/other.sock".into());
    process.max_applications = 7;
    new.alias.insert("other".to_owned(), "VINIC0".to_owned());
    new.nic[0].limits.max_vi = 3;
    let later = [
        "socket of [process]",
        "metrics of [process]",
        "idle of [process]",
        "spin_us of [process]",
        "[[nic]]",
        "[alias]",
    ];
    for _ in 0..2 {
        assert_eq!(server.reload(&new), later);
    }
    let now = server.process().clone();
    assert_eq!(now.max_applications, 7);
    let kept = (now.socket, now.metrics, now.idle, now.spin_us);
    assert_eq!(kept, (old.socket, old.metrics, old.idle, old.spin_us));
    let original = server.config.clone();
    assert_eq!(server.reload(&original), none);
    server.stop();
}

mod files;
mod releases;
mod waiting_calls;
