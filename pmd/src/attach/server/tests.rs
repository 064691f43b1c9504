//! Programs that die between two steps of attaching, and NICs that fail.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use fcvi_frame::connect::HostAddress;
use fcvi_frame::fc::NPortId;
use pmd_port::PortFailure;

use super::*;
use crate::driver::Driver;
use crate::testkit::lingering;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

fn id_of(test: &str) -> String {
    format!("unit-{}-{test}", std::process::id())
}

/// A process that runs; of one that was not stopped no socket is left.
struct Running(Arc<Server>);

impl core::ops::Deref for Running {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already when it was stopped.
        let _ = fs::remove_file(&self.process().socket);
    }
}

/// A process with one NIC.
fn server(test: &str) -> Running {
    let id = id_of(test);
    let socket = std::env::temp_dir().join(format!("viaduct-{id}.sock"));
    let text = format!(
        "[process]\nsocket = {socket:?}\nidle = \"hybrid\"\n[[nic]]\nport = \"shm\"\nsegment = \"{id}\"\n"
    );
    Running(Server::start(Config::parse(&text).unwrap(), |_| Vec::new()).unwrap())
}

fn connect(server: &Server) -> Socket {
    let path = server.process().socket.clone();
    let socket = Socket::connect(&path).unwrap();
    socket.set_patience(Some(LONG)).unwrap();
    socket
}

fn to_attach() -> Request {
    Request::Attach {
        version: VERSION,
        device: "VINIC0".to_owned(),
    }
}

fn ask_to_attach(server: &Server) -> Socket {
    let socket = connect(server);
    socket.send(&to_attach(), &[]).unwrap();
    socket
}

/// The conversation that a program lives by, and its key.
fn attach(server: &Server) -> (Socket, [u8; 16]) {
    let (life, _rings) = ask_for_rings(server);
    life.send(&Request::RingsMapped, &[]).unwrap();
    match answer(&life) {
        Reply::Attached { key, .. } => (life, key),
        other => panic!("{other:?}"),
    }
}

/// The conversation that a program would live by, and its rings.
fn ask_for_rings(server: &Server) -> (Socket, OwnedFd) {
    let life = ask_to_attach(server);
    match life.receive::<Reply>().unwrap() {
        Some((Reply::Rings, mut fds)) => (life, fds.remove(0)),
        other => panic!("{other:?}"),
    }
}

fn ask_to_join(server: &Server, key: [u8; 16]) -> Socket {
    let socket = connect(server);
    let join = Request::Join {
        version: VERSION,
        key,
    };
    socket.send(&join, &[]).unwrap();
    socket
}

fn answer(socket: &Socket) -> Reply {
    socket.receive().unwrap().unwrap().0
}

/// A conversation for calls, and the opening that it made.
fn open(server: &Server, key: [u8; 16]) -> (Socket, u64) {
    let call = ask_to_join(server, key);
    assert!(matches!(answer(&call), Reply::Done));
    call.send(&Request::Open, &[]).unwrap();
    match answer(&call) {
        Reply::Handle(nic) => (call, nic),
        other => panic!("{other:?}"),
    }
}

/// Why nobody may attach.
fn refusal(server: &Server) -> String {
    let life = ask_to_attach(server);
    let answered = match answer(&life) {
        Reply::Rings => {
            life.send(&Request::RingsMapped, &[]).unwrap();
            answer(&life)
        }
        answered => answered,
    };
    match answered {
        Reply::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// As on a kernel where a receiver cannot refuse descriptors.
#[test]
fn turned_away_connections_whose_release_blocks_hold_up_no_other() {
    let server = server("release");
    server.listener.take_descriptors();
    let path = server.process().socket.clone();
    server.process().max_pending_per_process = 2;
    let pending = [connect(&server), connect(&server)];
    let mut peers = Vec::new();
    {
        // None is turned away before it has passed its descriptor.
        let _held = server.process();
        for _ in 0..3 {
            let (near, peer) = lingering();
            let socket = Socket::connect(&path).unwrap();
            socket.send(&to_attach(), &[near.as_raw_fd()]).unwrap();
            peers.push((socket, peer));
        }
    }
    for (socket, _) in &peers {
        let answer = socket.first_answer(Ok(()));
        let Ok(Some((Reply::Refused(why), _))) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.starts_with("max_pending_per_process = 2 "), "{why}");
        socket.await_end(LONG);
        assert!(socket.is_over());
    }
    drop(pending);
    // Those that are gone count for a moment longer.
    server.process().max_pending_per_process = 100;
    let (_life, _) = attach(&server);
    server.stop();
}

/// On every kernel: sockets for calls take descriptors, and those that nobody received are closed with the socket.
#[test]
fn call_sockets_whose_release_blocks_hold_up_no_other() {
    let server = server("calls-release");
    let (_life, key) = attach(&server);
    let call = ask_to_join(&server, key);
    assert!(matches!(answer(&call), Reply::Done));
    let (near, peer) = lingering();
    {
        // The thread of the socket waits for the NIC.
        let _held = server.nics[0].device.hold();
        call.send(&Request::Open, &[]).unwrap();
        // A descriptor that nobody asked for ends the conversation, and the next message is still in the socket then.
        let harmless = fs::File::open("/dev/null").unwrap();
        call.send(&Request::Open, &[harmless.as_raw_fd()]).unwrap();
        call.send(&Request::Open, &[near.as_raw_fd()]).unwrap();
        drop(near);
    }
    // The end comes behind the answer, or takes its place.
    while let Ok(Some(_)) = call.receive::<Reply>() {}
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| done.send(attach(&server)));
        let other = is_done.recv_timeout(LONG);
        // Nothing blocks any more, whatever came of it.
        drop(peer);
        assert!(other.is_ok(), "it was held up");
    });
    server.stop();
}

/// Waits until nothing of any program is left.
fn await_nobody(server: &Server) {
    let device = server.nics[0].device;
    let deadline = Instant::now() + LONG;
    loop {
        let is_served = {
            let mut held = device.hold();
            let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
            poller.path.clients.serves_any()
        };
        if !is_served && server.sessions().is_empty() && device.instances.count() == 1 {
            return;
        }
        assert!(Instant::now() < deadline, "something is left");
        std::thread::yield_now();
    }
}

#[test]
fn nothing_is_left_of_who_dies_between_two_steps() {
    let server = server("steps");
    for step in 0..7 {
        let mut dying = Vec::new();
        if step == 0 {
            dying.push(connect(&server));
        } else if step == 1 {
            dying.push(ask_to_attach(&server));
        } else if step == 6 {
            dying.push(ask_for_rings(&server).0);
        } else {
            let (life, key) = attach(&server);
            dying.push(life);
            if step > 2 {
                let call = ask_to_join(&server, key);
                if step > 3 {
                    assert!(matches!(answer(&call), Reply::Done));
                    call.send(&Request::Open, &[]).unwrap();
                }
                if step > 4 {
                    assert!(matches!(answer(&call), Reply::Handle(_)));
                }
                dying.push(call);
            }
        }
        drop(dying);
        await_nobody(&server);
    }
    server.stop();
}

/// It waits for a connection without a limit when it dies.
#[test]
fn a_call_that_blocks_ends_with_its_program() {
    let server = server("blocks");
    let (life, key) = attach(&server);
    let (call, nic) = open(&server, key);
    let device = server.nics[0].device;
    let discriminator = fcvi_frame::connect::Discriminator::new(b"here").unwrap();
    let host = HostAddress(device.host);
    let local = (&fcvi_frame::connect::NetAddress {
        host,
        discriminator,
    })
        .into();
    let wait = Request::ConnectWait {
        nic,
        local,
        limit: None,
    };
    call.send(&wait, &[]).unwrap();
    let session = server.sessions().values().next().cloned().unwrap();
    drop(life);
    await_nobody(&server);
    // Its thread lets go of the session when the call has returned.
    await_that("the call is still under way", || {
        session.calls.load(Ordering::Relaxed) == 0
    });
    drop(call);
    server.stop();
}

/// Its own answer would need what it holds while it waits.
#[test]
fn who_attaches_to_itself_is_told() {
    let server = server("itself");
    let path = server.process().socket.clone();
    let link = path.with_extension("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for path in [path.clone(), link.clone()] {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(device::attach(&path, "VINIC0").map(drop)));
        let error = told.recv_timeout(LONG).expect("an answer").unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("this program is that process itself"),
            "{said}"
        );
    }
    fs::remove_file(&link).unwrap();
    server.stop();
    let gone = device::attach(&path, "VINIC0").map(drop).unwrap_err();
    let said = gone.to_string();
    assert!(said.contains("no datapath process at"), "{said}");
}

/// Being allowed to attach is not enough.
#[test]
fn only_root_and_the_user_of_the_process_capture() {
    let server = server("captures");
    let own = geteuid().as_raw();
    let order = super::super::message::CaptureOrder {
        device: "no such NIC".to_owned(),
        filter: String::new(),
        longest_bytes: 0,
        buffer_bytes: 1 << 20,
        most_frames: 1,
    };
    for uid in [0, own, own + 1, 65534, u32::MAX] {
        let (ours, its) = Socket::pair().unwrap();
        let peer = Peer {
            pid: 1,
            uid,
            gid: own,
        };
        server.capture(&ours, peer, &order).unwrap();
        match answer(&its) {
            Reply::UnknownNic(_) => assert!(uid == 0 || uid == own, "{uid} was let in"),
            Reply::Refused(why) => {
                assert!(uid != 0 && uid != own, "{uid} was not let in");
                let expected = format!("user {uid}: only root and the user of fcvi-pmd may");
                assert!(why.starts_with(&expected), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    server.stop();
}

#[test]
fn a_user_attaches_as_often_as_it_may_and_again_when_one_has_ended() {
    let server = server("often");
    server.process().max_applications_per_user = Some(2);
    let [first, _second] = [(); 2].map(|()| attach(&server));
    let why = refusal(&server);
    assert!(
        why.contains("max_applications_per_user = 2 of user"),
        "{why}"
    );
    drop(first);
    await_that("its place is not free", || {
        !matches!(answer(&ask_to_attach(&server)), Reply::Refused(_))
    });
    server.stop();
}

/// Whoever closes what an application passed may be held up for as long as that likes.
#[test]
fn who_is_gone_has_its_place_until_the_last_thread_of_it_is() {
    let server = server("place");
    server.process().max_applications_per_user = Some(1);
    let (life, _) = attach(&server);
    // As a thread that is held up has it.
    let session = server.sessions().values().next().cloned().unwrap();
    drop(life);
    await_that("it is still there", || server.sessions().is_empty());
    let why = refusal(&server);
    assert!(why.contains("max_applications_per_user = 1"), "{why}");
    drop(session);
    drop(attach(&server));
    server.stop();
}

#[test]
fn who_attaches_again_goes_on_at_the_pace_that_it_had() {
    let server = server("pace");
    drop(attach(&server));
    server.process().quota.max_calls_per_second = Some(1);
    let own = connect(&server).peer().unwrap().uid;
    let pace = server.calls.of(own);
    for _ in 0..60 {
        pace.step(Instant::now(), 1);
    }
    let why = refusal(&server);
    assert!(why.contains("max_calls_per_second = 1"), "{why}");
    drop(pace);
    server.stop();
}

#[test]
fn a_nic_that_could_not_be_brought_up_says_so_and_is_brought_up_when_it_can_be() {
    let server = server("down");
    let served = &server.nics[0];
    nic::close(*served.nic.lock().unwrap()).unwrap();
    // Somebody else has the segment, and other plans for it.
    let other = NicConfig {
        segment: id_of("down"),
        ring_frames: 16,
        ..NicConfig::default()
    };
    let (device, opening) = device::open(&other).unwrap();
    let why = refusal(&server);
    assert!(
        why.contains("is down, and cannot be brought up anew") && why.contains("is in use with"),
        "{why}"
    );
    // Its core takes no part in that.
    let sleeps = || served.core.counters.sleeps.load(Ordering::Relaxed);
    let before = sleeps();
    await_that("the core is awake", || sleeps() > before + 2);
    device::close(device, opening).unwrap();
    let (life, key) = attach(&server);
    open(&server, key);
    drop(life);
    await_nobody(&server);
    server.stop();
}

#[test]
fn a_nic_that_failed_is_brought_up_when_those_who_have_it_are_gone() {
    let server = server("failed");
    let served = &server.nics[0];
    let (life, key) = attach(&server);
    {
        let mut held = served.device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        poller.failure = Some(PortFailure::SegmentRemoved);
    }
    let (next, _rings) = ask_for_rings(&server);
    next.send(&Request::RingsMapped, &[]).unwrap();
    // Whoever attaches meanwhile is in the way, too.
    let call = ask_to_join(&server, key);
    assert!(matches!(answer(&call), Reply::Done));
    call.send(&Request::Open, &[]).unwrap();
    assert!(matches!(answer(&call), Reply::Failed(_)), "it failed");
    drop(life);
    let Reply::Attached { key, .. } = answer(&next) else {
        panic!("it is not attached");
    };
    open(&server, key);
    drop(next);
    await_nobody(&server);
    server.stop();
}

#[test]
fn nobody_attaches_to_a_process_that_ends() {
    let server = server("ends");
    // One that was let in before, and goes on after all others were ended.
    let (near, far) = Socket::pair().unwrap();
    far.set_patience(Some(LONG)).unwrap();
    far.send(&to_attach(), &[]).unwrap();
    let most = MostPending::from(&*server.process());
    let in_door = server.doors.enter(near.peer().unwrap(), most).unwrap();
    server.over.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| server.converse(in_door, near));
        assert!(matches!(answer(&far), Reply::Rings));
        far.send(&Request::RingsMapped, &[]).unwrap();
        let reply = answer(&far);
        assert!(
            matches!(&reply, Reply::Refused(why) if why.contains("this process ends")),
            "{reply:?}"
        );
        drop(far);
    });
    await_nobody(&server);
    server.stop();
}

/// Whoever closes a descriptor can be held up by who passed it.
#[test]
fn descriptors_come_with_calls_only() {
    let server = server("passed");
    let pass = |socket: &Socket, request: &Request| match socket.send(request, &[socket.fd()]) {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => false,
        Err(error) => panic!("{error}"),
    };
    let begins = connect(&server);
    if pass(&begins, &to_attach()) {
        // Before Linux 6.16 they come.
        assert!(begins.receive::<Reply>().unwrap().is_none(), "it goes on");
    }
    let (life, key) = attach(&server);
    let (call, _) = open(&server, key);
    assert!(pass(&call, &Request::Open));
    assert!(call.receive::<Reply>().unwrap().is_none(), "it goes on");
    // What it lives by has nothing to say: it ends.
    pass(&life, &Request::Open);
    drop(life);
    await_nobody(&server);
    server.stop();
}

#[test]
fn more_hosts_than_a_message_holds_are_told() {
    const HOSTS: u32 = 1000;
    let server = server("hosts");
    let (_life, key) = attach(&server);
    let (call, nic) = open(&server, key);
    {
        let mut held = server.nics[0].device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        for number in 1..=HOSTS {
            let mut host = [0xFD; 16];
            host[12..].copy_from_slice(&number.to_be_bytes());
            let id = NPortId::new(0x02_00_00 + number).unwrap();
            poller.neighbours.found(id, HostAddress(host));
        }
    }
    call.send(&Request::DiscoveredHosts { nic }, &[]).unwrap();
    let mut bytes = Vec::new();
    loop {
        match answer(&call) {
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
    // The conversation goes on.
    call.send(&Request::Close { nic }, &[]).unwrap();
    assert!(matches!(answer(&call), Reply::Done));
    server.stop();
}

#[test]
fn what_needs_a_start_is_said_until_it_is_as_it_was() {
    let server = server("reload");
    let mut new = server.config.clone();
    let old = new.process.clone().unwrap();
    let none: [&str; 0] = [];
    assert_eq!(server.reload(&new), none);
    let process = new.process.as_mut().unwrap();
    process.metrics = Some("127.0.0.1:1".parse().unwrap());
    process.idle = crate::config::Idle::Spin;
    process.spin_us += 1;
    process.socket.set_extension("other");
    process.max_applications = 7;
    new.alias.insert("other".to_owned(), "VINIC0".to_owned());
    new.nics[0].max_vi = 3;
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
    let as_it_was = server.config.clone();
    assert_eq!(server.reload(&as_it_was), none);
    server.stop();
}

mod files;
