//! A datapath process that dies in the middle of a call.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use fcvi_frame::connect;

use super::*;
use crate::attach::arena::{Arena, RingSizes};
use crate::attach::message::Description;
use crate::attach::socket::{Listener, Socket};
use crate::config::{NicConfig, Quota};
use crate::descriptor::RawDescriptor;
use crate::nic::{self, MemSettings};
use crate::resource_error::{Limit, LimitOf, LimitReached};
use crate::sys;
use crate::vi::Kind;
use crate::work::{self, Done, Queue, WhenFull};

mod played;

/// Descriptors that the process allows.
const ALLOWED: u32 = 3;
/// A region, as the process calls it.
const REGION: u32 = 0x0001_0001;

/// What stands in for a datapath process: it dies when it is asked what `dies_of` says.
struct Mortal {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Mortal {
    fn new(test: &str, dies_of: fn(&Request) -> bool) -> Self {
        let name = format!("viaduct-unit-{}-{test}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = Listener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || live(&listener, dies_of));
        Self {
            socket,
            thread: Some(thread),
        }
    }

    fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
        // It is in a directory for temporary files.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn live(listener: &Listener, dies_of: fn(&Request) -> bool) {
    let life = listener.accept().unwrap();
    life.receive::<Request>().unwrap().unwrap();
    let (_arena, memory) = Arena::create(RingSizes::for_segments(252)).unwrap();
    let (_wakeup, theirs) = sys::WakeupSet::new().unwrap().add_client().unwrap();
    let config = NicConfig::default();
    let quota = Quota {
        max_descriptors: ALLOWED,
        // One conversation does for all.
        max_calls: 1,
        ..Quota::default()
    };
    let attached = Reply::Attached {
        key: [7; 16],
        nic: Box::new(Description::of(&config, &quota, 2096)),
    };
    let fds = [memory.as_raw_fd(), theirs.as_raw_fd()];
    life.send(&Reply::Rings, &fds).unwrap();
    assert!(matches!(next(&life), Some(Request::RingsMapped)));
    life.send(&attached, &[]).unwrap();
    let call = Arc::new(listener.accept().unwrap());
    call.receive::<Request>().unwrap().unwrap();
    call.take_descriptors();
    call.send(&Reply::Done, &[]).unwrap();
    while let Some(request) = next(&call) {
        if dies_of(&request) {
            // As the kernel does when a process dies: one descriptor after the other.
            drop(call);
            std::thread::yield_now();
            drop(life);
            return;
        }
        let reply = match request {
            Request::CreateVi { .. } => Reply::Handle(RawHandle::pack(Kind::Vi, 0, 1, 0)),
            Request::QueryVi { .. } => Reply::Vi {
                state: EndpointState::Idle as u8,
            },
            Request::Register { .. } => Reply::Region(REGION),
            Request::Open | Request::CreatePtag { .. } => Reply::Handle(1),
            _ => Reply::Done,
        };
        call.send(&reply, &[]).unwrap();
    }
}

fn next(call: &Socket) -> Option<Request> {
    call.receive().unwrap().map(|(request, _)| request)
}

/// A NIC of a mortal process, a VI, and its opening.
fn vi_of(process: &Mortal, name: &str) -> (u64, u64) {
    let (nic, _, vi) = vi_and_tag_of(process, name);
    (nic, vi)
}

fn vi_and_tag_of(process: &Mortal, name: &str) -> (u64, u64, u64) {
    let nic = nic::attach(process.socket(), name).unwrap();
    let ptag = nic::create_ptag(nic).unwrap();
    let settings = ViSettings {
        ptag,
        reliability: 2,
        max_transfer_bytes: 4096,
        ..ViSettings::default()
    };
    let vi = nic::create_vi(nic, &settings, 0, 0).unwrap();
    (nic, ptag, vi)
}

/// Registers memory that nobody writes, or that lives until everything is closed.
fn register(nic: u64, address: u64, bytes: u64, settings: &MemSettings) -> Outcome<u32> {
    // SAFETY: as above; no process is there that would read or write it.
    unsafe { nic::register(nic, address, bytes, settings) }
}

/// Posts a descriptor that is registered, and left alone until it comes back or everything is closed.
fn post(
    vi: u64,
    queue: Queue,
    (descriptor, region): (*mut RawDescriptor, u32),
    when_full: WhenFull,
) -> Outcome<()> {
    // SAFETY: as above.
    unsafe { work::post(vi, queue, descriptor, region, when_full, 0) }
}

const TAG_IN_USE: ControlError = ControlError::Resource(ResourceError::TagInUse);

#[test]
fn what_ends_with_the_process_ends_well() {
    let process = Mortal::new("ends", |r| matches!(r, Request::Disconnect { .. }));
    let (nic, vi) = vi_of(&process, "ENDS");
    assert_eq!(nic::disconnect(vi), Ok(()));
    assert_eq!(
        nic::query_vi(vi).map(|info| info.state),
        Ok(EndpointState::Idle)
    );
    assert_eq!(nic::destroy_vi(vi), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

/// One thread has had the process destroy a VI, and another one makes the next, which the process puts in the same
/// place, before the first one comes back.
#[test]
fn a_vi_in_the_place_of_another_is_not_ended_with_it() {
    let process = Mortal::new("place", |r| matches!(r, Request::Disconnect { .. }));
    let (nic, ptag, first) = vi_and_tag_of(&process, "PLACE");
    let place = crate::vi::vi_of(first).unwrap();
    place.retire();
    let settings = ViSettings {
        ptag,
        reliability: 2,
        max_transfer_bytes: 4096,
        ..ViSettings::default()
    };
    let second = nic::create_vi(nic, &settings, 0, 0).unwrap();
    assert!(place.is_live(second));
    take_down(place, first);
    assert_eq!(nic::disconnect(second), Ok(()));
    assert_eq!(nic::destroy_ptag(nic, ptag), Err(TAG_IN_USE));
    assert_eq!(nic::destroy_vi(second), Ok(()));
    assert_eq!(nic::destroy_ptag(nic, ptag), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

/// A tag that something has is not ended, whoever looks.
#[test]
fn a_tag_in_use_stays_when_the_process_is_gone() {
    let process = Mortal::new("tag", |r| matches!(r, Request::DestroyPtag { .. }));
    let (nic, ptag, vi) = vi_and_tag_of(&process, "TAG");
    for _ in 0..2 {
        assert_eq!(nic::destroy_ptag(nic, ptag), Err(TAG_IN_USE));
    }
    assert_eq!(nic::disconnect(vi), Ok(()));
    assert_eq!(nic::destroy_vi(vi), Ok(()));
    assert_eq!(nic::destroy_ptag(nic, ptag), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

#[test]
fn a_request_finds_nobody_when_the_process_is_gone() {
    let process = Mortal::new("asks", |r| matches!(r, Request::Connect { .. }));
    let (nic, vi) = vi_of(&process, "ASKS");
    let host = HostAddress(*nic::info(nic).unwrap().host);
    let address = connect::NetAddress {
        host,
        discriminator: connect::Discriminator::new(b"there").unwrap(),
    };
    let connect = || nic::connect_request(vi, &address, &address, None);
    let state = || nic::query_vi(vi).map(|info| info.state);
    // It dies of the first one, and is dead when the next one comes.
    for _ in 0..2 {
        assert_eq!(connect().err(), Some(ControlError::NotReachable));
        assert_eq!(state(), Ok(EndpointState::Error));
        assert_eq!(connect().err(), Some(ControlError::InvalidState));
        assert_eq!(nic::disconnect(vi), Ok(()));
        assert_eq!(state(), Ok(EndpointState::Idle));
    }
    assert_eq!(nic::destroy_vi(vi), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

#[test]
fn post_beyond_the_quota_is_refused_to_who_wants_that_and_harms_nothing() {
    let process = Mortal::new("allows", |r| matches!(r, Request::DestroyPtag { .. }));
    let (nic, ptag, vi) = vi_and_tag_of(&process, "ALLOWS");
    let mut memory: Box<[[RawDescriptor; 8]]> = vec![Default::default(); 64].into();
    let range = memory.as_mut_ptr();
    let settings = MemSettings {
        ptag,
        ..MemSettings::default()
    };
    let bytes = size_of_val(&*memory) as u64;
    let region = register(nic, range as u64, bytes, &settings).unwrap();
    let post = |queue, number: usize, when_full| {
        let descriptor = range.cast::<RawDescriptor>().wrapping_add(number);
        post(vi, queue, (descriptor, region), when_full)
    };
    let receive = |number| post(Queue::Receive, number, WhenFull::Break);
    for number in 0..ALLOWED as usize {
        assert_eq!(receive(number), Ok(()));
    }
    for queue in [Queue::Receive, Queue::Send, Queue::Receive] {
        let allowed = Limit::MaxDescriptors;
        let reached = LimitReached::all_in_use(allowed, ALLOWED, LimitOf::Program);
        assert_eq!(post(queue, 7, WhenFull::Refuse), Err(reached.into()));
    }
    let state = || nic::query_vi(vi).map(|info| info.state);
    assert_eq!(state(), Ok(EndpointState::Idle), "nothing broke");
    // The process dies; what was posted comes back, and is there to be posted again.
    assert_eq!(nic::destroy_ptag(nic, ptag), Err(TAG_IN_USE));
    for round in 0..2 {
        for number in 0..ALLOWED as usize {
            let found = work::done(vi, Queue::Receive).unwrap();
            assert!(
                matches!(found, Done::Completed { .. }),
                "{round}: {found:?}"
            );
            assert_eq!(receive(number), Ok(()));
        }
    }
    assert_eq!(nic::close(nic), Ok(()));
}
