//! Tests of calls to a datapath process that ends during a call.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use vi_core::descriptor::RawDescriptor;
use vi_core::handle::{HandleKind, RawHandle};
use vi_core::reap::Done;
use vi_core::sys;
use vi_types::{
    Discriminator, Limit, LimitOf, LimitReached, MemAttributes, NetAddress, PtagHandle, QueueKind,
    ViAttributes,
};

use super::vis::remove_local;
use super::*;
use crate::attach::message::Description;
use crate::attach::shared_queues::{RingSizes, SharedQueues};
use crate::config::{NicConfig, Quota};
use crate::lookup::Vi;
use crate::nic;
use crate::queue_calls::{self, WhenFull};
use vi_core::control_socket::{Listener, Socket};

mod fake_process;

/// The descriptor quota of the process.
const MAX_DESCRIPTORS: u32 = 3;
/// The handle of every region in the process.
const REGION: u32 = 0x0001_0001;

/// A fake datapath process, which ends at the first request for which `ends_at` returns true.
struct DyingProcess {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl DyingProcess {
    fn new(test: &str, ends_at: fn(&Request) -> bool) -> Self {
        let name = format!("viaduct-unit-{}-{test}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = Listener::bind(&socket).unwrap();
        let thread = std::thread::spawn(move || serve(&listener, ends_at));
        Self {
            socket,
            thread: Some(thread),
        }
    }

    fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for DyingProcess {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
        // In a directory of temporary files: an error does no harm.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn serve(listener: &Listener, ends_at: fn(&Request) -> bool) {
    let attach = listener.accept().unwrap();
    attach.receive::<Request>().unwrap().unwrap();
    let (_queues, memory) = SharedQueues::create(RingSizes::for_segments(252)).unwrap();
    let (_wakeup, waker) = sys::WakeupSet::new().unwrap().add_client().unwrap();
    let config = NicConfig::default();
    let quota = Quota {
        max_descriptors: MAX_DESCRIPTORS,
        // One call connection suffices.
        max_calls: 1,
        ..Quota::default()
    };
    let attached = Reply::Attached {
        key: [7; 16],
        nic: Box::new(Description::of(&config, &quota, 2096)),
    };
    let fds = [memory.as_raw_fd(), waker.as_raw_fd()];
    attach.send(&Reply::Rings, &fds).unwrap();
    assert!(matches!(next(&attach), Some(Request::RingsMapped)));
    attach.send(&attached, &[]).unwrap();
    let call = Arc::new(listener.accept().unwrap());
    call.receive::<Request>().unwrap().unwrap();
    call.take_descriptors();
    call.send(&Reply::Done, &[]).unwrap();
    while let Some(request) = next(&call) {
        if ends_at(&request) {
            // The descriptors are closed one after the other, as by the kernel when a process ends.
            drop(call);
            std::thread::yield_now();
            drop(attach);
            return;
        }
        let reply = match request {
            Request::CreateVi { .. } => Reply::Handle(RawHandle::pack(HandleKind::Vi, 0, 1, 0)),
            Request::QueryVi { .. } => Reply::Vi {
                state: ViState::Idle,
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

/// Opens a NIC of a dying process and creates a VI: both handles.
fn vi_of(process: &DyingProcess, name: &str) -> (u64, u64) {
    let (nic, _, vi) = vi_and_tag_of(process, name);
    (nic, vi)
}

fn vi_and_tag_of(process: &DyingProcess, name: &str) -> (u64, u64, u64) {
    let nic = nic::attach(process.socket(), name).unwrap();
    let ptag = nic::create_ptag(nic).unwrap();
    let settings = ViAttributes {
        ptag: Some(PtagHandle::from_raw(ptag)),
        reliability: 2,
        max_transfer_bytes: 4096,
        ..ViAttributes::default()
    };
    let vi = nic::create_vi(nic, &settings, 0, 0).unwrap();
    (nic, ptag, vi)
}

/// Registers memory that is not written by others, or that outlives the NIC handle.
fn register(nic: u64, address: u64, bytes: u64, settings: &MemAttributes) -> Outcome<u32> {
    // SAFETY: as above; no real process accesses it.
    unsafe { nic::register(nic, address, bytes, settings) }
}

/// Posts a registered descriptor, which is not accessed until it completes or the NIC handle is closed.
fn post(
    vi: u64,
    queue: QueueKind,
    (descriptor, region): (*mut RawDescriptor, u32),
    when_full: WhenFull,
) -> Outcome<()> {
    // SAFETY: as above.
    unsafe { queue_calls::post(vi, queue, descriptor, region, when_full, 0) }
}

const TAG_IN_USE: CallError = CallError::Resource(ResourceError::TagInUse);

#[test]
fn calls_that_free_resources_succeed_after_the_end_of_the_process() {
    let process = DyingProcess::new("ends", |r| matches!(r, Request::Disconnect { .. }));
    let (nic, vi) = vi_of(&process, "ENDS");
    assert_eq!(nic::disconnect(vi), Ok(()));
    assert_eq!(nic::query_vi(vi).map(|info| info.state), Ok(ViState::Idle));
    assert_eq!(nic::destroy_vi(vi), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

/// One thread has destroyed a VI in the process, and another thread creates the next one, at the same index, before the
/// first call returns.
#[test]
fn destroying_a_vi_leaves_a_new_one_with_the_same_index_alone() {
    let process = DyingProcess::new("place", |r| matches!(r, Request::Disconnect { .. }));
    let (nic, ptag, first) = vi_and_tag_of(&process, "PLACE");
    let vi = crate::lookup::vi_of(first).unwrap();
    vi.retire();
    let settings = ViAttributes {
        ptag: Some(PtagHandle::from_raw(ptag)),
        reliability: 2,
        max_transfer_bytes: 4096,
        ..ViAttributes::default()
    };
    let second = nic::create_vi(nic, &settings, 0, 0).unwrap();
    assert!(vi.is_live(second));
    remove_local(vi, first);
    assert_eq!(nic::disconnect(second), Ok(()));
    assert_eq!(nic::destroy_ptag(nic, ptag), Err(TAG_IN_USE));
    assert_eq!(nic::destroy_vi(second), Ok(()));
    assert_eq!(nic::destroy_ptag(nic, ptag), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

#[test]
fn tag_in_use_is_not_destroyed_after_the_end_of_the_process() {
    let process = DyingProcess::new("tag", |r| matches!(r, Request::DestroyPtag { .. }));
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
fn connect_request_after_the_end_of_the_process_is_not_reachable() {
    let process = DyingProcess::new("asks", |r| matches!(r, Request::Connect { .. }));
    let (nic, vi) = vi_of(&process, "ASKS");
    let host = HostAddress(*nic::info(nic).unwrap().host);
    let address = NetAddress {
        host,
        discriminator: Discriminator::new(b"there").unwrap(),
    };
    let connect = || nic::connect_request(vi, &address, &address, None);
    let state = || nic::query_vi(vi).map(|info| info.state);
    // The process ends at the first request, and has ended at the second one.
    for _ in 0..2 {
        assert_eq!(connect().err(), Some(CallError::NotReachable));
        assert_eq!(state(), Ok(ViState::Error));
        assert_eq!(connect().err(), Some(CallError::InvalidState));
        assert_eq!(nic::disconnect(vi), Ok(()));
        assert_eq!(state(), Ok(ViState::Idle));
    }
    assert_eq!(nic::destroy_vi(vi), Ok(()));
    assert_eq!(nic::close(nic), Ok(()));
}

#[test]
fn post_beyond_the_quota_with_refuse_fails_and_leaves_the_vi_idle() {
    let process = DyingProcess::new("allows", |r| matches!(r, Request::DestroyPtag { .. }));
    let (nic, ptag, vi) = vi_and_tag_of(&process, "ALLOWS");
    let mut memory: Box<[[RawDescriptor; 8]]> = vec![Default::default(); 64].into();
    let range = memory.as_mut_ptr();
    let settings = MemAttributes {
        ptag: Some(PtagHandle::from_raw(ptag)),
        ..MemAttributes::default()
    };
    let bytes = size_of_val(&*memory) as u64;
    let region = register(nic, range as u64, bytes, &settings).unwrap();
    let post = |queue, number: usize, when_full| {
        let descriptor = range.cast::<RawDescriptor>().wrapping_add(number);
        post(vi, queue, (descriptor, region), when_full)
    };
    let receive = |number| post(QueueKind::Receive, number, WhenFull::Break);
    for number in 0..MAX_DESCRIPTORS as usize {
        assert_eq!(receive(number), Ok(()));
    }
    for queue in [QueueKind::Receive, QueueKind::Send, QueueKind::Receive] {
        let limit = Limit::MaxDescriptors;
        let reached = LimitReached::all_in_use(limit, MAX_DESCRIPTORS, LimitOf::Program);
        assert_eq!(post(queue, 7, WhenFull::Refuse), Err(reached.into()));
    }
    let state = || nic::query_vi(vi).map(|info| info.state);
    assert_eq!(state(), Ok(ViState::Idle), "not in error");
    // The process ends; the descriptors are flushed, and can be posted again.
    assert_eq!(nic::destroy_ptag(nic, ptag), Err(TAG_IN_USE));
    for round in 0..2 {
        for number in 0..MAX_DESCRIPTORS as usize {
            let found = queue_calls::done(vi, QueueKind::Receive).unwrap();
            assert!(
                matches!(found, Done::Completed { .. }),
                "{round}: {found:?}"
            );
            assert_eq!(receive(number), Ok(()));
        }
    }
    assert_eq!(nic::close(nic), Ok(()));
}
