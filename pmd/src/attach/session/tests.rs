//! Tests of sessions that end during calls, of limits, and of protection.

use vi_core::memory::backing::Backing;
use vi_core::memory::client_mapping::MappedMemory;
use vi_core::memory::client_process::drop_cap_sys_ptrace;
use vi_core::memory::testkit::{filled_file, sealed_file};
use vi_core::memory::{Access, TagCheck};
use vi_core::sys;
use vi_types::{Discriminator, Limit, MemAttributes, NetAddress, PtagHandle};

use super::*;
use crate::attach::accounts::UserAccounts;
use crate::attach::client::{Client, Limits};
use crate::attach::client_slots::{ClientSlots, SlotLimits};
use crate::attach::mapped_files::MappedFiles;
use crate::attach::shared_queues::{RingSizes, SharedQueues};
use crate::config::{Network, NicConfig, ProcessConfig};
use crate::nic_backend::Backend;
use crate::open;

mod accounts;
mod users;

const PAGE_BYTES: u64 = 4096;

/// A NIC with the state of a datapath process.
struct Process {
    device: &'static Device,
    nic: u64,
    slots: Arc<ClientSlots>,
    files: Arc<MappedFiles>,
    reservations: Arc<Reservations>,
    accounts: Arc<UserAccounts>,
}

impl Process {
    fn new(test: &str) -> Self {
        Self::with(test, |_| {})
    }

    fn with(test: &str, change: impl FnOnce(&mut NicConfig)) -> Self {
        let mut config = NicConfig {
            network: Network::segment(format!("unit-{}-session-{test}", std::process::id())),
            ..NicConfig::default()
        };
        change(&mut config);
        let (device, nic) = open::open(&config).unwrap();
        Self {
            device,
            nic,
            slots: Arc::default(),
            files: Arc::new(MappedFiles::new().unwrap()),
            reservations: Arc::default(),
            accounts: Arc::default(),
        }
    }

    fn application(&self, number: u32) -> Arc<Session> {
        self.application_with(number, Quota::default())
    }

    fn application_with(&self, number: u32, quota: Quota) -> Arc<Session> {
        let init = SessionInit {
            quota,
            ..self.init(number)
        };
        Session::new(self.device, init)
    }

    fn init(&self, number: u32) -> SessionInit {
        let (attach_socket, _) = Socket::pair().unwrap();
        let peer = attach_socket.peer().unwrap();
        let limits = SlotLimits::from(&ProcessConfig::default());
        let pidfd = attach_socket.peer_process().unwrap();
        let id = (peer, self.device.shared.number);
        SessionInit {
            peer,
            client: ClientId(number),
            quota: Quota::default(),
            foreign_memory: false,
            counters: Arc::default(),
            files: self.files.attach(id, pidfd.try_clone().unwrap(), limits),
            pidfd,
            attach_socket: Arc::new(attach_socket),
            call_limiter: Arc::default(),
            slot: self.slots.allocate(peer.uid, limits).unwrap(),
            account: self.accounts.of(peer.uid, self.device.shared.number),
            reservations: Arc::clone(&self.reservations),
        }
    }

    /// The application that owns the VI with this handle.
    fn client_of_vi(&self, vi: u64) -> Option<ClientId> {
        let index = vi_types::ViIndex(RawHandle::unpack(vi).index);
        let mut held = self.device.lock();
        let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
        poller.path.vi(index).unwrap().client
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(
            self.device.nic_handles.count(),
            1,
            "handles of ended sessions"
        );
        assert_eq!(
            self.device.shared.regions.usage().regions,
            0,
            "regions of ended sessions"
        );
        open::close(self.device, self.nic).unwrap();
    }
}

fn handle(reply: Outcome<Reply>) -> u64 {
    match reply {
        Ok(Reply::Handle(handle)) => handle,
        other => panic!("no handle: {other:?}"),
    }
}

/// An idle application on the data path.
fn client() -> Client {
    client_of(0)
}

fn client_of(uid: libc::uid_t) -> Client {
    let (queues, _) = SharedQueues::create(RingSizes::for_segments(1)).unwrap();
    let (attach_socket, _) = Socket::pair().unwrap();
    let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
    let limits = Limits {
        segments: 1,
        descriptors: 1,
        share: 1,
    };
    Client::new(
        uid,
        queues,
        wakeup,
        Arc::new(attach_socket),
        Arc::default(),
        limits,
    )
}

fn settings() -> ViAttributes {
    ViAttributes {
        reliability: 2,
        max_transfer_bytes: 4096,
        ..ViAttributes::default()
    }
}

#[test]
fn nic_handle_opened_while_the_session_ends_is_closed() {
    let process = Process::new("opened");
    let application = process.application(0);
    handle(application.execute(Request::Open, Vec::new()));
    application.end();
    assert_eq!(
        application.open(),
        Err(ResourceError::ProcessGone.into()),
        "a call in progress"
    );
    assert_eq!(process.device.nic_handles.count(), 1);
}

#[test]
fn register_fails_while_the_nic_handle_is_closed() {
    let process = Process::new("registered");
    let application = process.application(0);
    let nic = handle(application.execute(Request::Open, Vec::new()));
    let ptag = handle(application.execute(Request::CreatePtag { nic }, Vec::new()));
    // The tag of another handle exists; only the handle is closed.
    let other = handle(application.execute(Request::Open, Vec::new()));
    let ptag_of_other = handle(application.execute(Request::CreatePtag { nic: other }, Vec::new()));
    assert_ne!(ptag, ptag_of_other);
    nic::close(nic).unwrap();
    let memory = MappedMemory::map(sealed_file(PAGE_BYTES), 0, PAGE_BYTES).unwrap();
    let settings = MemAttributes {
        ptag: Some(PtagHandle::from_raw(ptag_of_other)),
        ..MemAttributes::default()
    };
    let entered = application.enter(
        nic,
        (0x1000, 64),
        (&settings, true),
        Backing::Mapped(memory),
    );
    assert_eq!(entered, Err(CallError::InvalidParameter));
    application.end();
}

#[test]
fn region_of_read_only_pages_permits_no_write_access() {
    let process = Process::new("read-only");
    let application = process.application(0);
    let nic = handle(application.execute(Request::Open, Vec::new()));
    let ptag = handle(application.execute(Request::CreatePtag { nic }, Vec::new()));
    let settings = MemAttributes {
        ptag: Some(PtagHandle::from_raw(ptag)),
        rdma_write: true,
        rdma_read: true,
    };
    let number = process
        .device
        .nic_handles
        .tag(process.device.shared.number, ptag);
    let tag = TagCheck::of(application.owner(), number.unwrap());
    for writable in [true, false] {
        let request = Request::Register {
            nic,
            address: 0x1000,
            length_bytes: 64,
            settings,
            writable,
            shared_at: Some(0),
            is_bounce_buffer: false,
        };
        let registered = application.execute(request, vec![filled_file(PAGE_BYTES)]);
        let Ok(Reply::Region(region)) = registered else {
            panic!("no region: {registered:?}");
        };
        let may = |access| {
            process
                .device
                .shared
                .regions
                .check(region, tag, 0x1000, 64, access)
        };
        assert!(may(Access::Read) && may(Access::RemoteRead));
        assert_eq!([Access::Write, Access::RemoteWrite].map(may), [writable; 2]);
    }
    application.end();
}

#[test]
fn vi_destroyed_before_it_was_assigned_does_not_take_over_a_new_one_with_its_index() {
    let process = Process::new("served");
    let [early, late] = [0, 1].map(|number| process.application(number));
    let nics = [&early, &late].map(|app| handle(app.execute(Request::Open, Vec::new())));
    let tags = [(&early, nics[0]), (&late, nics[1])]
        .map(|(app, nic)| handle(app.execute(Request::CreatePtag { nic }, Vec::new())));
    let tagged = |ptag| ViAttributes {
        ptag: Some(PtagHandle::from_raw(ptag)),
        ..settings()
    };
    let destroyed = nic::create_vi(nics[0], &tagged(tags[0]), 0, 0).unwrap();
    early.end();
    let request = Request::CreateVi {
        nic: nics[1],
        settings: tagged(tags[1]),
    };
    let vi = handle(late.execute(request, Vec::new()));
    assert_eq!(
        RawHandle::unpack(vi).index,
        RawHandle::unpack(destroyed).index,
        "the same index"
    );
    assert_eq!(early.serve(destroyed), Err(CallError::InvalidParameter));
    assert_eq!(process.client_of_vi(vi), late.client());
    assert_ne!(early.owner(), late.owner());
    late.end();
}

#[test]
fn second_end_of_a_session_does_not_remove_the_next_client_with_its_id() {
    let process = Process::new("twice");
    let first = process.application(0);
    first.end();
    let add = || {
        let mut held = process.device.lock();
        let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
        Clients::attach(&mut poller.path, client())
    };
    assert_eq!(add(), ClientId(0));
    // As a stopping process does with all sessions.
    first.end();
    assert_ne!(add(), ClientId(0), "the identifier is in use");
    process.application(0).end();
    process.application(1).end();
}

/// The kernel checks the process that has the ID now, which may be another user's program.
#[test]
fn private_memory_is_registered_only_for_programs_of_the_own_user() {
    drop_cap_sys_ptrace().unwrap();
    let process = Process::new("foreign");
    let memory = [7u8; 64];
    for (number, other) in [(0, false), (1, true)] {
        let mut init = process.init(number);
        init.foreign_memory = true;
        init.peer.uid += u32::from(other);
        let application = Arc::new(Session::new(process.device, init));
        let nic = handle(application.execute(Request::Open, Vec::new()));
        let ptag = handle(application.execute(Request::CreatePtag { nic }, Vec::new()));
        let register = Request::Register {
            nic,
            address: memory.as_ptr().expose_provenance() as u64,
            length_bytes: 64,
            settings: MemAttributes {
                ptag: Some(PtagHandle::from_raw(ptag)),
                ..MemAttributes::default()
            },
            shared_at: None,
            writable: true,
            is_bounce_buffer: false,
        };
        match application.execute(register, Vec::new()).unwrap() {
            Reply::Region(_) if !other => {}
            Reply::MemoryUnreachable(why) if other => {
                assert!(why.contains("is another one"), "{why}")
            }
            reply => panic!("{reply:?}"),
        }
        application.end();
    }
}

/// Otherwise the slot of an ended application would be in use until its delayed calls return.
#[test]
fn end_of_a_session_does_not_wait_for_delayed_calls() {
    let process = Process::new("pace");
    let application = process.application(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| application.wait(Duration::from_secs(3600)));
        application.end();
        waits.join().unwrap();
    });
}

#[test]
fn count_guard_decrements_after_a_panic() {
    let count = AtomicU32::new(3);
    let outcome = std::panic::catch_unwind(|| {
        let one = CountGuard::new(&count);
        assert_eq!((one.before, count.load(Ordering::Relaxed)), (3, 4));
        panic!("in a call");
    });
    assert!(outcome.is_err());
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[test]
fn accepted_requests_and_resources_of_a_closed_nic_handle_are_removed() {
    let process = Process::new("forgotten");
    let [server, client] = [0, 1].map(|number| process.application(number));
    let nics = [&server, &client].map(|app| handle(app.execute(Request::Open, Vec::new())));
    let make = |app: &Arc<Session>, nic| {
        let ptag = handle(app.execute(Request::CreatePtag { nic }, Vec::new()));
        let settings = ViAttributes {
            ptag: Some(PtagHandle::from_raw(ptag)),
            ..settings()
        };
        handle(app.execute(Request::CreateVi { nic, settings }, Vec::new()))
    };
    let vis = [make(&server, nics[0]), make(&client, nics[1])];
    let host = HostAddress(process.device.host);
    let address = |name: &[u8]| NetAddress {
        host,
        discriminator: Discriminator::new(name).unwrap(),
    };
    let limit = Some(Duration::from_secs(20));
    let accepting = {
        let server = Arc::clone(&server);
        let local = address(b"here");
        let (nic, vi) = (nics[0], vis[0]);
        std::thread::spawn(move || {
            let request = Request::ConnectWait { nic, local, limit };
            let Ok(Reply::Request { conn, .. }) = server.execute(request, Vec::new()) else {
                panic!("no request");
            };
            let accept = Request::ConnectAccept { conn, vi };
            server.execute(accept, Vec::new()).unwrap();
        })
    };
    let connect = Request::Connect {
        vi: vis[1],
        local: address(b"there"),
        remote: address(b"here"),
        limit,
    };
    loop {
        match client.execute(connect.clone(), Vec::new()) {
            Ok(_) => break,
            Err(CallError::NoMatch) => std::thread::yield_now(),
            Err(error) => panic!("{error:?}"),
        }
    }
    accepting.join().unwrap();
    assert!(server.owned().conns.is_empty(), "it was accepted");
    server
        .execute(Request::Close { nic: nics[0] }, Vec::new())
        .unwrap();
    assert!(server.owned().tags.is_empty(), "destroyed with the handle");
    server.end();
    client.end();
}

#[test]
fn concurrent_calls_create_exactly_the_quota() {
    const LIMIT: usize = 5;
    let process = Process::new("at-once");
    let quota = Quota {
        max_vi: LIMIT as u32,
        max_regions: LIMIT as u32,
        max_calls: 2,
        ..Quota::default()
    };
    for number in 0..20 {
        let application = process.application_with(number, quota);
        let nic = handle(application.execute(Request::Open, Vec::new()));
        let ptag = handle(application.execute(Request::CreatePtag { nic }, Vec::new()));
        let start = std::sync::Barrier::new(4);
        let make = || {
            start.wait();
            let (mut vis, mut regions) = (0, 0);
            for _ in 0..LIMIT {
                let settings = ViAttributes {
                    ptag: Some(PtagHandle::from_raw(ptag)),
                    ..settings()
                };
                let vi = Request::CreateVi { nic, settings };
                vis += usize::from(application.execute(vi, Vec::new()).is_ok());
                let region = Request::Register {
                    nic,
                    address: 0x1000,
                    length_bytes: 64,
                    settings: MemAttributes {
                        ptag: Some(PtagHandle::from_raw(ptag)),
                        ..MemAttributes::default()
                    },
                    writable: true,
                    shared_at: Some(0),
                    is_bounce_buffer: false,
                };
                let made = application.execute(region, vec![filled_file(PAGE_BYTES)]);
                regions += usize::from(made.is_ok());
                let _refused = application.execute(Request::Open, Vec::new());
            }
            (vis, regions)
        };
        let (vis, regions) = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(make));
            threads
                .map(|thread| thread.join().unwrap())
                .into_iter()
                .fold((0, 0), |(vis, regions), (more_vis, more_regions)| {
                    (vis + more_vis, regions + more_regions)
                })
        });
        assert_eq!((vis, regions), (LIMIT, LIMIT));
        assert_eq!(application.owned().nics.len(), 2);
        application.end();
    }
}

mod files;
