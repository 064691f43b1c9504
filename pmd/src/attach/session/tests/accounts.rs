//! Tests of limits on all applications of a user together.

use vi_types::{LimitOf, LimitReached};

use super::*;
use crate::attach::subordinate_users::SubordinateUsers;
use crate::config::UserQuota;

const USER: libc::uid_t = 1000;
const OTHER: libc::uid_t = 1001;

/// Two applications of a user may have one and a half quotas.
fn quota() -> Quota {
    Quota {
        max_vi: 4,
        max_ptags: 4,
        max_regions: 4,
        max_registered_bytes: 4 * PAGE_BYTES,
        max_incoming: 4,
        of_user: UserQuota {
            max_vi: 6,
            max_ptags: 8,
            max_regions: 6,
            max_registered_bytes: 6 * PAGE_BYTES,
            max_incoming: 1,
        },
        ..Quota::default()
    }
}

/// An application with a NIC handle and a protection tag.
struct Application {
    session: Arc<Session>,
    nic: u64,
    ptag: u64,
}

impl Application {
    /// Attaches an application of this user; each has a process ID of its own.
    fn of(process: &Process, uid: libc::uid_t) -> Self {
        let client = {
            let mut held = process.device.lock();
            let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
            Clients::attach(&mut poller.path, client_of(uid))
        };
        let init = process.init(client.0);
        let number = process.device.shared.number;
        static LAST_PID: AtomicU32 = AtomicU32::new(1_000_000);
        let pid = LAST_PID.fetch_add(1, Ordering::Relaxed) as libc::pid_t;
        let peer = Peer { pid, uid, gid: 0 };
        let limits = SlotLimits::from(&ProcessConfig::default());
        let pidfd = init.pidfd.try_clone().unwrap();
        let init = SessionInit {
            peer,
            quota: quota(),
            files: process.files.attach((peer, number), pidfd, limits),
            account: process.accounts.of(uid, number),
            ..init
        };
        let session = Session::new(process.device, init);
        let nic = handle(session.execute(Request::Open, Vec::new()));
        let ptag = handle(session.execute(Request::CreatePtag { nic }, Vec::new()));
        Self { session, nic, ptag }
    }

    fn call(&self, request: Request) -> Outcome<Reply> {
        self.session.execute(request, Vec::new())
    }

    fn create_vi(&self) -> Outcome<u64> {
        let settings = ViAttributes {
            ptag: Some(PtagHandle::from_raw(self.ptag)),
            ..settings()
        };
        self.session.create_vi(self.nic, &settings)
    }

    fn create_tag(&self) -> Outcome<Reply> {
        self.call(Request::CreatePtag { nic: self.nic })
    }

    fn register(&self, file: &OwnedFd, page: u64) -> Outcome<Reply> {
        let request = Request::Register {
            nic: self.nic,
            address: 0x1000_0000 + page * PAGE_BYTES,
            length_bytes: PAGE_BYTES,
            settings: MemAttributes {
                ptag: Some(PtagHandle::from_raw(self.ptag)),
                ..MemAttributes::default()
            },
            writable: true,
            shared_at: Some(page * PAGE_BYTES),
            is_bounce_buffer: false,
        };
        let file = file.try_clone().unwrap();
        self.session.execute(request, vec![file])
    }
}

fn limit_of_user(limit: Limit, value: u64) -> CallError {
    LimitReached::all_in_use(limit, value, LimitOf::User).into()
}

fn limit_of_program(limit: Limit, value: u64) -> CallError {
    LimitReached::all_in_use(limit, value, LimitOf::Program).into()
}

#[test]
fn applications_of_a_user_have_no_more_than_its_limit_together() {
    let process = Process::new("accounts");
    let [one, two] = [(); 2].map(|()| Application::of(&process, USER));
    let other = Application::of(&process, OTHER);
    let vis: Vec<_> = (0..4).map(|_| one.create_vi().unwrap()).collect();
    let program = Err(limit_of_program(Limit::MaxVi, 4));
    assert_eq!(one.create_vi(), program, "its own limit");
    for _ in 0..2 {
        two.create_vi().unwrap();
    }
    let user = Err(limit_of_user(Limit::MaxVi, 6));
    assert_eq!(two.create_vi(), user);
    // A third attachment has nothing of its own.
    let three = Application::of(&process, USER);
    assert_eq!(three.create_vi(), user);
    for _ in 0..4 {
        other.create_vi().unwrap();
    }
    one.call(Request::DestroyVi { vi: vis[0] }).unwrap();
    three.create_vi().unwrap();
    assert_eq!(two.create_vi(), user);

    // Each has one already.
    for _ in 0..3 {
        one.create_tag().unwrap();
        other.create_tag().unwrap();
    }
    for _ in 0..2 {
        two.create_tag().unwrap();
    }
    let refused = three.create_tag().unwrap_err();
    assert_eq!(refused, limit_of_user(Limit::MaxPtags, 8));
    // Its objects are released when its session ends, also while a thread has the session.
    one.session.end();
    two.create_vi().unwrap();
    two.create_vi().unwrap();
    assert_eq!(two.create_vi(), program);
    three.create_tag().unwrap();
    for application in [&two, &three, &other] {
        application.session.end();
    }
}

#[test]
fn concurrent_calls_of_a_users_applications_stay_within_its_limit() {
    let process = Process::new("accounts-threads");
    for _ in 0..20 {
        let applications = [(); 4].map(|()| Application::of(&process, USER));
        let created: usize = std::thread::scope(|scope| {
            let create = |application: &Application| {
                (0..4).filter(|_| application.create_vi().is_ok()).count()
            };
            let threads = applications
                .each_ref()
                .map(|application| scope.spawn(move || create(application)));
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(created, 6);
        for application in &applications {
            application.session.end();
        }
    }
}

#[test]
fn files_and_regions_of_a_user_count_together_also_those_of_detached_applications() {
    let process = Process::new("accounts-files");
    let [one, two] = [(); 2].map(|()| Application::of(&process, USER));
    let other = Application::of(&process, OTHER);
    let files: Vec<_> = (0..3).map(|_| filled_file(4 * PAGE_BYTES)).collect();
    one.register(&files[0], 0).unwrap();
    let refused = |reply: Outcome<Reply>| match reply {
        Ok(Reply::Refused(why)) => why,
        reply => panic!("not refused: {reply:?}"),
    };
    let why = refused(two.register(&files[1], 0));
    let text = "has 16384 bytes, and 8192 are left of max_registered_bytes = 24576 of its user";
    assert!(why.contains(text), "{why}");
    other.register(&files[2], 0).unwrap();
    // Its file stays mapped as long as the program lives.
    one.session.end();
    drop(one);
    let why = refused(two.register(&files[1], 0));
    assert!(why.contains(text), "{why}");
    let small = filled_file(2 * PAGE_BYTES);
    for _ in 0..4 {
        two.register(&small, 1).unwrap();
    }
    let three = Application::of(&process, USER);
    // Regions in one file, which counts for each application.
    let why = refused(three.register(&small, 1));
    assert!(why.contains("0 are left"), "{why}");
    for application in [&two, &three, &other] {
        application.session.end();
    }
}

#[test]
fn connection_request_beyond_the_limit_of_the_user_is_rejected() {
    let process = Process::new("accounts-conns");
    let [server, second] = [(); 2].map(|()| Application::of(&process, USER));
    let client = Application::of(&process, OTHER);
    let address = |name: &[u8]| NetAddress {
        host: HostAddress(process.device.host),
        discriminator: Discriminator::new(name).unwrap(),
    };
    let long = Some(Duration::from_secs(20));
    let connect = |name: &'static [u8]| {
        let vi = client.create_vi().unwrap();
        let (local, remote) = (address(b""), address(name));
        let limit = long;
        let request = || Request::Connect {
            vi,
            local,
            remote,
            limit,
        };
        // Until the other application listens.
        loop {
            match client.call(request()) {
                Err(CallError::NoMatch) => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    };
    let wait = |application: &Application, name: &[u8]| {
        let (nic, local, limit) = (application.nic, address(name), long);
        application.call(Request::ConnectWait { nic, local, limit })
    };
    std::thread::scope(|scope| {
        // Both wait before one of them has a request.
        let waiting = scope.spawn(|| wait(&second, b"second"));
        while second.session.names().count() == 0 {
            std::thread::yield_now();
        }
        let first = scope.spawn(|| connect(b"first"));
        let Ok(Reply::Request { conn, .. }) = wait(&server, b"first") else {
            panic!("no request");
        };
        let refused = connect(b"second").unwrap_err();
        assert_eq!(refused, CallError::Rejected);
        let reached = waiting.join().unwrap().unwrap_err();
        assert_eq!(reached, limit_of_user(Limit::MaxIncoming, 1));
        let reached = wait(&second, b"second").unwrap_err();
        assert_eq!(reached, limit_of_user(Limit::MaxIncoming, 1), "at once");
        server.call(Request::ConnectReject { conn }).unwrap();
        assert_eq!(first.join().unwrap().unwrap_err(), CallError::Rejected);
    });
    for application in [&server, &second, &client] {
        application.session.end();
    }
}

#[test]
fn subordinate_users_share_the_account_of_their_user() {
    let process = Process::new("accounts-subordinate");
    let users = SubordinateUsers::of_numbers("1000:100000:65536");
    process.accounts.set_subordinate_users(users);
    let users = [100_000, 165_535, USER].map(|uid| Application::of(&process, uid));
    let created: usize = users
        .iter()
        .map(|user| (0..4).filter(|_| user.create_vi().is_ok()).count())
        .sum();
    assert_eq!(created, 6);
    let independent = Application::of(&process, 165_536);
    independent.create_vi().unwrap();
    for application in users.iter().chain([&independent]) {
        application.session.end();
    }
}
