//! Tests of programs of two users on one NIC: reserved discriminators and user IDs of peers.

use crate::config::{Network, ViTcp};
use vi_types::PtagHandle;

use super::*;

const OWNER: libc::uid_t = 1000;
const OTHER: libc::uid_t = 1001;
/// Longer than anything takes on a busy machine.
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
/// A timeout that expires at once.
const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// An application with a NIC handle and one VI.
struct Application {
    session: Arc<Session>,
    nic: u64,
    vi: u64,
}

impl Application {
    fn of(process: &Process, uid: libc::uid_t) -> Self {
        let client = {
            let mut held = process.device.lock();
            let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
            Clients::attach(&mut poller.path, client_of(uid))
        };
        let init = process.init(client.0);
        let peer = Peer { uid, ..init.peer };
        let session = Session::new(process.device, SessionInit { peer, ..init });
        let nic = handle(session.execute(Request::Open, Vec::new()));
        let ptag = handle(session.execute(Request::CreatePtag { nic }, Vec::new()));
        let settings = ViAttributes {
            ptag: Some(PtagHandle::from_raw(ptag)),
            ..settings()
        };
        let vi = handle(session.execute(Request::CreateVi { nic, settings }, Vec::new()));
        Self { session, nic, vi }
    }

    fn call(&self, request: Request) -> Outcome<Reply> {
        self.session.execute(request, Vec::new())
    }

    fn address(&self, name: &str) -> NetAddress {
        NetAddress {
            host: HostAddress(self.session.device.host),
            discriminator: Discriminator::new(name.as_bytes()).unwrap(),
        }
    }

    fn wait(&self, name: &str, limit: Option<Duration>) -> Outcome<Reply> {
        let (nic, local) = (self.nic, self.address(name));
        self.call(Request::ConnectWait { nic, local, limit })
    }

    fn connect(&self, own: &str, remote: &str, limit: Option<Duration>) -> Outcome<Reply> {
        let (local, remote) = (self.address(own), self.address(remote));
        let vi = self.vi;
        self.call(Request::Connect {
            vi,
            local,
            remote,
            limit,
        })
    }

    fn user_of_request(&self, conn: u64) -> Outcome<Reply> {
        self.call(Request::UserOf { conn })
    }

    fn peer_user(&self) -> Outcome<Reply> {
        let vi = self.vi;
        self.call(Request::PeerUser { vi })
    }

    fn connect_peer(&self, own: &str, remote: &str) -> Outcome<Reply> {
        let (local, remote) = (self.address(own), self.address(remote));
        let vi = self.vi;
        self.call(Request::ConnectPeer {
            vi,
            local,
            remote,
            limit: TIMEOUT,
        })
    }
}

fn error(outcome: Outcome<Reply>) -> CallError {
    outcome.expect_err("it was not refused")
}

/// The error for a discriminator of another user.
const RESERVED: CallError = CallError::Resource(ResourceError::Discriminator);

#[test]
fn wait_on_a_discriminator_of_another_user_is_refused_until_its_nic_handles_are_closed() {
    let process = Process::new("listener");
    let [first, second] = [(); 2].map(|()| Application::of(&process, OWNER));
    let other = Application::of(&process, OTHER);
    for owner in [&first, &second] {
        assert_eq!(error(owner.wait("service", AT_ONCE)), CallError::Timeout);
    }
    // No call waits for a request on it now.
    let refused = || error(other.wait("service", AT_ONCE));
    assert_eq!(refused(), RESERVED);
    assert_eq!(error(other.wait("another", AT_ONCE)), CallError::Timeout);
    let nic = first.nic;
    first.call(Request::Close { nic }).unwrap();
    assert_eq!(refused(), RESERVED, "one handle is still open");
    second.session.end();
    assert_eq!(refused(), CallError::Timeout, "it is free");
    let taken = Application::of(&process, OWNER);
    assert_eq!(error(taken.wait("service", AT_ONCE)), RESERVED);
    for session in [first.session, other.session, taken.session] {
        session.end();
    }
}

#[test]
fn request_from_a_discriminator_of_another_user_is_refused_and_leaves_the_vi_idle() {
    let process = Process::new("name");
    let owner = Application::of(&process, OWNER);
    let other = Application::of(&process, OTHER);
    let unmatched = error(owner.connect("client", "unused", TIMEOUT));
    assert_eq!(unmatched, CallError::NoMatch);
    let connect = |own| error(other.connect(own, "unused", TIMEOUT));
    assert_eq!(connect("client"), RESERVED);
    assert_eq!(error(other.connect_peer("client", "x")), RESERVED);
    let waits = other.wait("client", AT_ONCE);
    assert_eq!(error(waits), RESERVED);
    assert_eq!(connect("another"), CallError::NoMatch);
    assert_eq!(connect(""), CallError::NoMatch, "no discriminator");
    // The requests of two peers are matched by the remote discriminator.
    owner.connect_peer("", "meeting").unwrap();
    let refused = error(other.connect_peer("", "meeting"));
    assert_eq!(refused, RESERVED);
    let refused = error(other.wait("meeting", AT_ONCE));
    assert_eq!(refused, RESERVED);
    owner.session.end();
    assert_eq!(connect("client"), CallError::NoMatch, "it is free");
    other.connect_peer("client", "meeting").unwrap();
    other.session.end();
}

#[test]
fn discriminator_is_not_reserved_for_a_closed_nic_handle() {
    let process = Process::new("closed");
    let owner = Application::of(&process, OWNER);
    let other = Application::of(&process, OTHER);
    let nic = owner.nic;
    owner.call(Request::Close { nic }).unwrap();
    let closed = [
        owner.wait("service", AT_ONCE),
        owner.connect("service", "unused", TIMEOUT),
        owner.connect_peer("service", "unused"),
    ];
    for outcome in closed {
        assert_eq!(error(outcome), CallError::InvalidParameter);
    }
    assert_eq!(error(other.wait("service", AT_ONCE)), CallError::Timeout);
    for session in [owner.session, other.session] {
        session.end();
    }
}

fn user(outcome: Outcome<Reply>) -> Option<libc::uid_t> {
    match outcome {
        Ok(Reply::User(user)) => user,
        other => panic!("no user: {other:?}"),
    }
}

fn check_user_of_client(process: &Process) {
    let [server, other] = [(); 2].map(|()| Application::of(process, OWNER));
    let client = Application::of(process, OTHER);
    assert_eq!(error(client.peer_user()), CallError::InvalidState);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            loop {
                match client.connect("client", "service", TIMEOUT) {
                    Err(CallError::NoMatch) => std::thread::yield_now(),
                    outcome => break outcome,
                }
            }
        });
        let Ok(Reply::Request { conn, .. }) = server.wait("service", TIMEOUT) else {
            panic!("no request");
        };
        assert_eq!(user(server.user_of_request(conn)), Some(OTHER));
        let not_its_own = error(other.user_of_request(conn));
        assert_eq!(not_its_own, CallError::InvalidParameter);
        let vi = server.vi;
        server.call(Request::ConnectAccept { conn, vi }).unwrap();
        let accepted = error(server.user_of_request(conn));
        assert_eq!(accepted, CallError::InvalidParameter);
        connecting.join().unwrap().unwrap();
    });
    assert_eq!(user(server.peer_user()), Some(OTHER));
    assert_eq!(user(client.peer_user()), Some(OWNER));
    for application in [server, other, client] {
        application.session.end();
    }
}

#[test]
fn user_of_request_and_peer_user_return_the_user_over_fc_vi() {
    for shortcut in [false, true] {
        let name = format!("learns-{shortcut}");
        let process = Process::with(&name, |config| config.fc_vi.shortcut = shortcut);
        check_user_of_client(&process);
    }
}

#[test]
fn user_of_request_and_peer_user_return_the_user_over_vi_tcp() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let host = core::net::Ipv4Addr::new(127, 77, high, low);
    let process = Process::with("learns-tcp", |config| {
        config.network = Network::ViTcp(ViTcp::default());
        config.host = Some(host.into());
    });
    check_user_of_client(&process);
}
