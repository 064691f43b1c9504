//! What an application may have when its end comes in the middle of its calls.

use fcvi_frame::connect;

use super::*;
use crate::attach::arena::{Arena, RingSizes};
use crate::attach::client::{Client, Limits};
use crate::attach::mapped_files::MappedFiles;
use crate::attach::message::NetAddress;
use crate::attach::places::{MostAttached, Places};
use crate::config::ProcessConfig;
use crate::device;
use crate::memory::client::obey_ptrace_rules;
use crate::memory::mapped::MappedMemory;
use crate::memory::place::Place;
use crate::memory::testkit::{filled_file, sealed_file};
use crate::memory::{Access, TagCheck};
use crate::nic::MemSettings;
use crate::sys;

mod users;

const PAGE_BYTES: u64 = 4096;

/// A NIC that applications are served on, its own opening, and their places.
struct Process {
    device: &'static Device,
    nic: u64,
    places: Arc<Places>,
    files: Arc<MappedFiles>,
    reservations: Arc<Reservations>,
}

impl Process {
    fn new(test: &str) -> Self {
        Self::with(test, |_| {})
    }

    fn with(test: &str, change: impl FnOnce(&mut NicConfig)) -> Self {
        let mut config = NicConfig {
            segment: format!("unit-{}-session-{test}", std::process::id()),
            ..NicConfig::default()
        };
        change(&mut config);
        let (device, nic) = device::open(&config).unwrap();
        Self {
            device,
            nic,
            places: Arc::default(),
            files: Arc::new(MappedFiles::new().unwrap()),
            reservations: Arc::default(),
        }
    }

    fn application(&self, number: u32) -> Arc<Session> {
        self.application_with(number, Quota::default())
    }

    fn application_with(&self, number: u32, quota: Quota) -> Arc<Session> {
        let arrival = Arrival {
            quota,
            ..self.arrival(number)
        };
        Arc::new(Session::new(self.device, arrival))
    }

    fn arrival(&self, number: u32) -> Arrival {
        let (life, _) = Socket::pair().unwrap();
        let peer = life.peer().unwrap();
        let most = MostAttached::from(&ProcessConfig::default());
        let lives = life.peer_process().unwrap();
        let id = (peer, self.device.number());
        Arrival {
            peer,
            client: ClientId(number),
            quota: Quota::default(),
            foreign_memory: false,
            counters: Arc::default(),
            files: self.files.attach(id, lives.try_clone().unwrap(), most),
            lives,
            life: Arc::new(life),
            pace: Arc::default(),
            place: self.places.take(peer.uid, most).unwrap(),
            reservations: Arc::clone(&self.reservations),
        }
    }

    /// The application that a VI of this handle is served for.
    fn server_of(&self, vi: u64) -> Option<ClientId> {
        let index = vi_engine::ViIndex(RawHandle::unpack(vi).index);
        let mut held = self.device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        poller.path.vi(index).unwrap().client
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(self.device.instances.count(), 1, "openings of the dead");
        assert_eq!(
            self.device.regions.usage().regions,
            0,
            "regions of the dead"
        );
        device::close(self.device, self.nic).unwrap();
    }
}

fn handle(reply: Outcome<Reply>) -> u64 {
    match reply {
        Ok(Reply::Handle(handle)) => handle,
        other => panic!("no handle: {other:?}"),
    }
}

/// An application as the poller knows it, which does nothing.
fn client() -> Client {
    client_of(0)
}

fn client_of(uid: libc::uid_t) -> Client {
    let (arena, _) = Arena::create(RingSizes::for_segments(1)).unwrap();
    let (life, _) = Socket::pair().unwrap();
    let (wakeup, _) = sys::WakeupSet::new().unwrap().add_client().unwrap();
    let limits = Limits {
        segments: 1,
        descriptors: 1,
        share: 1,
    };
    Client::new(uid, arena, wakeup, Arc::new(life), Arc::default(), limits)
}

fn settings() -> ViSettings {
    ViSettings {
        reliability: 2,
        max_transfer_bytes: 4096,
        ..ViSettings::default()
    }
}

#[test]
fn what_is_opened_while_the_application_ends_is_closed_again() {
    let process = Process::new("opened");
    let application = process.application(0);
    handle(application.answer(Request::Open, Vec::new()));
    application.end();
    assert_eq!(
        application.open(),
        Err(ResourceError::ProcessGone.into()),
        "a call that was under way"
    );
    assert_eq!(process.device.instances.count(), 1);
}

#[test]
fn what_is_registered_while_the_opening_ends_is_not_left() {
    let process = Process::new("registered");
    let application = process.application(0);
    let nic = handle(application.answer(Request::Open, Vec::new()));
    let ptag = handle(application.answer(Request::CreatePtag { nic }, Vec::new()));
    // The tag of another opening stays; only the opening is gone.
    let other = handle(application.answer(Request::Open, Vec::new()));
    let ptag_of_other = handle(application.answer(Request::CreatePtag { nic: other }, Vec::new()));
    assert_ne!(ptag, ptag_of_other);
    nic::close(nic).unwrap();
    let memory = MappedMemory::map(sealed_file(PAGE_BYTES), 0, PAGE_BYTES).unwrap();
    let settings = MemSettings {
        ptag: ptag_of_other,
        ..MemSettings::default()
    };
    let entered = application.enter(nic, (0x1000, 64), (&settings, true), Place::Mapped(memory));
    assert_eq!(entered, Err(ControlError::InvalidParameter));
    application.end();
}

#[test]
fn pages_that_the_application_may_not_write_are_not_written() {
    let process = Process::new("read-only");
    let application = process.application(0);
    let nic = handle(application.answer(Request::Open, Vec::new()));
    let ptag = handle(application.answer(Request::CreatePtag { nic }, Vec::new()));
    let settings = MemSettings {
        ptag,
        rdma_write: true,
        rdma_read: true,
    };
    let number = process.device.instances.tag(process.device.number(), ptag);
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
        let registered = application.answer(request, vec![filled_file(PAGE_BYTES)]);
        let Ok(Reply::Region(region)) = registered else {
            panic!("no region: {registered:?}");
        };
        let may = |access| {
            process
                .device
                .regions
                .check(region, tag, 0x1000, 64, access)
        };
        assert!(may(Access::Read) && may(Access::RemoteRead));
        assert_eq!([Access::Write, Access::RemoteWrite].map(may), [writable; 2]);
    }
    application.end();
}

#[test]
fn a_vi_that_ended_before_it_was_served_gives_its_place_to_another() {
    let process = Process::new("served");
    let [early, late] = [0, 1].map(|number| process.application(number));
    let nics = [&early, &late].map(|app| handle(app.answer(Request::Open, Vec::new())));
    let tags = [(&early, nics[0]), (&late, nics[1])]
        .map(|(app, nic)| handle(app.answer(Request::CreatePtag { nic }, Vec::new())));
    let tagged = |ptag| ViSettings { ptag, ..settings() };
    let gone = nic::create_vi(nics[0], &tagged(tags[0]), 0, 0).unwrap();
    early.end();
    let request = Request::CreateVi {
        nic: nics[1],
        settings: tagged(tags[1]),
    };
    let vi = handle(late.answer(request, Vec::new()));
    assert_eq!(
        RawHandle::unpack(vi).index,
        RawHandle::unpack(gone).index,
        "the same place"
    );
    assert_eq!(early.serve(gone), Err(ControlError::InvalidParameter));
    assert_eq!(process.server_of(vi), late.client());
    assert_ne!(early.owner(), late.owner());
    late.end();
}

#[test]
fn who_ended_is_not_taken_for_the_next_one_in_its_place() {
    let process = Process::new("twice");
    let first = process.application(0);
    first.end();
    let add = || {
        let mut held = process.device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        poller.path.add_client(client())
    };
    assert_eq!(add(), ClientId(0));
    // As a process that ends does with all of them.
    first.end();
    assert_ne!(add(), ClientId(0), "the place is taken");
    process.application(0).end();
    process.application(1).end();
}

/// The kernel asks for the process that has the number, which may be another user's program now.
#[test]
fn private_memory_is_registered_by_programs_of_the_processs_own_user_only() {
    obey_ptrace_rules().unwrap();
    let process = Process::new("foreign");
    let memory = [7u8; 64];
    for (number, other) in [(0, false), (1, true)] {
        let mut arrival = process.arrival(number);
        arrival.foreign_memory = true;
        arrival.peer.uid += u32::from(other);
        let application = Arc::new(Session::new(process.device, arrival));
        let nic = handle(application.answer(Request::Open, Vec::new()));
        let ptag = handle(application.answer(Request::CreatePtag { nic }, Vec::new()));
        let register = Request::Register {
            nic,
            address: memory.as_ptr().expose_provenance() as u64,
            length_bytes: 64,
            settings: MemSettings {
                ptag,
                ..MemSettings::default()
            },
            shared_at: None,
            writable: true,
            is_bounce_buffer: false,
        };
        match application.answer(register, Vec::new()).unwrap() {
            Reply::Region(_) if !other => {}
            Reply::MemoryUnreachable(why) if other => {
                assert!(why.contains("is another one"), "{why}")
            }
            reply => panic!("{reply:?}"),
        }
        application.end();
    }
}

/// Its calls would come so late that others wait for its place.
#[test]
fn who_ends_waits_for_no_call_that_came_too_soon() {
    let process = Process::new("pace");
    let application = process.application(0);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| application.pause(Duration::from_secs(3600)));
        application.end();
        waits.join().unwrap();
    });
}

#[test]
fn what_panics_is_counted_no_more() {
    let count = AtomicU32::new(3);
    let outcome = std::panic::catch_unwind(|| {
        let one = Counted::one(&count);
        assert_eq!((one.before, count.load(Ordering::Relaxed)), (3, 4));
        panic!("in a call");
    });
    assert!(outcome.is_err());
    assert_eq!(count.load(Ordering::Relaxed), 3);
}

#[test]
fn a_request_that_was_answered_and_what_went_with_its_opening_is_forgotten() {
    let process = Process::new("forgotten");
    let [server, client] = [0, 1].map(|number| process.application(number));
    let nics = [&server, &client].map(|app| handle(app.answer(Request::Open, Vec::new())));
    let make = |app: &Arc<Session>, nic| {
        let ptag = handle(app.answer(Request::CreatePtag { nic }, Vec::new()));
        let settings = ViSettings { ptag, ..settings() };
        handle(app.answer(Request::CreateVi { nic, settings }, Vec::new()))
    };
    let vis = [make(&server, nics[0]), make(&client, nics[1])];
    let host = HostAddress(process.device.host);
    let address = |name: &[u8]| {
        NetAddress::from(&connect::NetAddress {
            host,
            discriminator: connect::Discriminator::new(name).unwrap(),
        })
    };
    let limit = Some(Duration::from_secs(20));
    let accepting = {
        let server = Arc::clone(&server);
        let local = address(b"here");
        let (nic, vi) = (nics[0], vis[0]);
        std::thread::spawn(move || {
            let request = Request::ConnectWait { nic, local, limit };
            let Ok(Reply::Request { conn, .. }) = server.answer(request, Vec::new()) else {
                panic!("no request came");
            };
            let accept = Request::ConnectAccept { conn, vi };
            server.answer(accept, Vec::new()).unwrap();
        })
    };
    let connect = Request::Connect {
        vi: vis[1],
        local: address(b"there"),
        remote: address(b"here"),
        limit,
    };
    loop {
        match client.answer(connect.clone(), Vec::new()) {
            Ok(_) => break,
            Err(ControlError::NoMatch) => std::thread::yield_now(),
            Err(error) => panic!("{error:?}"),
        }
    }
    accepting.join().unwrap();
    assert!(server.owned().conns.is_empty(), "it was answered");
    server
        .answer(Request::Close { nic: nics[0] }, Vec::new())
        .unwrap();
    assert!(server.owned().tags.is_empty(), "they went with the opening");
    server.end();
    client.end();
}

#[test]
fn calls_at_once_make_no_more_than_the_application_may_have() {
    const MOST: usize = 5;
    let process = Process::new("at-once");
    let quota = Quota {
        max_vi: MOST as u32,
        max_regions: MOST as u32,
        max_calls: 2,
        ..Quota::default()
    };
    for number in 0..20 {
        let application = process.application_with(number, quota);
        let nic = handle(application.answer(Request::Open, Vec::new()));
        let ptag = handle(application.answer(Request::CreatePtag { nic }, Vec::new()));
        let start = std::sync::Barrier::new(4);
        let make = || {
            start.wait();
            let (mut vis, mut regions) = (0, 0);
            for _ in 0..MOST {
                let settings = ViSettings { ptag, ..settings() };
                let vi = Request::CreateVi { nic, settings };
                vis += usize::from(application.answer(vi, Vec::new()).is_ok());
                let region = Request::Register {
                    nic,
                    address: 0x1000,
                    length_bytes: 64,
                    settings: MemSettings {
                        ptag,
                        ..MemSettings::default()
                    },
                    writable: true,
                    shared_at: Some(0),
                    is_bounce_buffer: false,
                };
                let made = application.answer(region, vec![filled_file(PAGE_BYTES)]);
                regions += usize::from(made.is_ok());
                let _refused = application.answer(Request::Open, Vec::new());
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
        assert_eq!((vis, regions), (MOST, MOST));
        assert_eq!(application.owned().nics.len(), 2);
        application.end();
    }
}

mod files;
