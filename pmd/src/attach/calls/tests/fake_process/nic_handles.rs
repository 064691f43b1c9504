//! Tests of NIC handles: call connections, device names, memory and VIs of a handle.

use vi_core::events::AsyncEvent;
use vi_types::{PtagHandle, ViAttributes};

use super::*;
use crate::config::Protection;
use crate::control_calls::ConnectionCalls;
use crate::device::device_of;

/// Starts a thread that waits for a connection, and returns a receiver of its result once the process has the request.
fn start_connect_wait(process: &FakeProcess, nic: u64) -> mpsc::Receiver<Option<CallError>> {
    let (sender, result) = mpsc::channel();
    let address = address_on(nic);
    std::thread::spawn(move || sender.send(nic::connect_wait(nic, &address, None).err()));
    while !process
        .state
        .received(|request| matches!(request, Request::ConnectWait { .. }))
    {
        std::thread::yield_now();
    }
    result
}

fn no_reply_to_connect_wait(_: &ProcessState, request: &Request) -> Option<Reply> {
    match request {
        Request::ConnectWait { .. } => None,
        request => default_reply(request),
    }
}

#[test]
fn last_close_ends_a_pending_call_although_call_connections_are_refused() {
    let one_call = |_: &mut NicConfig, quota: &mut Quota| quota.max_calls = 1;
    let process = FakeProcess::new("CLOSES", one_call, no_reply_to_connect_wait);
    let nic = process.nic();
    let waiting = start_connect_wait(&process, nic);
    process.state.refuses_calls.store(true, Ordering::SeqCst);
    assert_eq!(result_of(move || nic::close(nic)), Ok(()));
    let ended = waiting.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Ok(Some(CallError::InvalidParameter)));
}

#[test]
fn calls_that_may_block_leave_a_call_connection_to_other_calls() {
    let process = FakeProcess::new("LEAVES", no_change, no_reply_to_connect_wait);
    let [nic, other] = [process.nic(), process.nic()];
    let waiting = start_connect_wait(&process, nic);
    process.state.refuses_calls.store(true, Ordering::SeqCst);
    let address = address_on(nic);
    let refused = nic::connect_wait(nic, &address, None).err();
    assert_eq!(refused, Some(ResourceError::ProcessRefused.into()));
    for _ in 0..3 {
        nic::create_ptag(nic).unwrap();
    }
    // The first of two NIC handles.
    nic::close(nic).unwrap();
    assert!(
        process
            .state
            .received(|request| matches!(request, Request::Close { .. }))
    );
    nic::close(other).unwrap();
    let ended = waiting.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Ok(Some(CallError::InvalidParameter)));
}

/// A timeout for a reply that does not arrive.
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn close_nic_without_an_acknowledgement_does_not_succeed() {
    let process = FakeProcess::new("STOPPED", no_change, default_replies);
    let nic = process.nic();
    let ptag = nic::create_ptag(nic).unwrap();
    let settings = MemAttributes {
        ptag: Some(PtagHandle::from_raw(ptag)),
        ..MemAttributes::default()
    };
    let mut memory = vec![0u8; 0x2000];
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    let region = register(nic, address, 0x2000, &settings).unwrap();
    let device = device_of(RawHandle::unpack(nic).device).unwrap();
    let remote = device.nic_handles.remote(nic).unwrap();
    {
        let _stopped = process.state.stopped.lock().unwrap();
        let closed = close(device, remote, true, SHORT);
        assert_eq!(closed, Err(ResourceError::ProcessGone.into()));
        assert!(nic::query_region(nic, address, region).is_ok());
    }
    nic::close(nic).unwrap();
    assert!(nic::query_region(nic, address, region).is_err());
}

#[test]
fn nic_that_is_being_closed_reports_no_lost_process() {
    let process = FakeProcess::new("CLOSES", no_change, default_replies);
    let nic = process.nic();
    let (sender, reported) = mpsc::channel();
    let handler = move |event: &AsyncEvent| sender.send(event.code).unwrap();
    nic::set_error_handler(nic, Some(Box::new(handler))).unwrap();
    let device = device_of(RawHandle::unpack(nic).device).unwrap();
    let remote = device.nic_handles.remote(nic).unwrap();
    close(device, remote, true, Duration::from_secs(20)).unwrap();
    // The periodic check runs before the NIC is down.
    drop(device.lock().as_mut().unwrap().upkeep());
    assert_eq!(device.shared.events.take_pending(), []);
    nic::close(nic).unwrap();
    assert!(reported.try_recv().is_err());
}

#[test]
fn close_of_one_nic_handle_without_a_reply_does_not_succeed() {
    static REPLIES: AtomicBool = AtomicBool::new(false);
    let process = FakeProcess::new("MUTE", no_change, |_, request| match request {
        Request::Close { .. } if !REPLIES.load(Ordering::SeqCst) => None,
        request => default_reply(request),
    });
    let [nic, other] = [process.nic(), process.nic()];
    let device = device_of(RawHandle::unpack(nic).device).unwrap();
    let remote = device.nic_handles.remote(nic).unwrap();
    let closed = close(device, remote, false, SHORT);
    assert_eq!(closed, Err(ResourceError::ProcessGone.into()));
    REPLIES.store(true, Ordering::SeqCst);
    for nic in [nic, other] {
        nic::close(nic).unwrap();
    }
}

#[test]
fn vi_that_could_not_be_destroyed_still_exists() {
    let process = FakeProcess::new("STAYS", no_change, |_, request| match request {
        Request::DestroyVi { .. } => Some(Reply::Failed(CallError::InvalidState)),
        request => default_reply(request),
    });
    let test_vi = TestVi::new(process.nic());
    assert_eq!(
        nic::destroy_vi(test_vi.handle),
        Err(CallError::InvalidState)
    );
    assert!(nic::query_vi(test_vi.handle).is_ok());
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn nic_is_one_device_under_all_its_names() {
    let process = FakeProcess::new("CANONICAL", no_change, default_replies);
    let names = ["ALIAS", "CANONICAL", "OTHER", "OTHER"];
    let nics = names.map(|name| nic::attach(&process.socket, name).unwrap());
    let devices = nics.map(|nic| RawHandle::unpack(nic).device);
    assert_eq!(devices, [devices[0]; 4]);
    // Only an unknown name needs an attach request.
    assert_eq!(process.state.attach_count.load(Ordering::SeqCst), 2);
    process.state.wait_for_attachments(1);
    for nic in nics {
        nic::close(nic).unwrap();
    }
}

#[test]
fn program_may_require_stricter_protection_than_the_process_but_not_weaker() {
    let strict = FakeProcess::new("STRICT", no_change, default_replies);
    let refused = nic::attach_as(&strict.socket, "STRICT", Protection::Lenient);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("VIPL_PROTECTION=lenient"), "{why}");

    let lenient = |config: &mut NicConfig, _: &mut Quota| config.protection = Protection::Lenient;
    let process = FakeProcess::new("LENIENT", lenient, default_replies);
    let attach_as = |protection| nic::attach_as(&process.socket, "LENIENT", protection).unwrap();
    let without_tag = |nic| {
        let settings = ViAttributes {
            reliability: 2,
            max_transfer_bytes: 4096,
            ..ViAttributes::default()
        };
        nic::create_vi(nic, &settings, 0, 0).map(drop)
    };
    let [lenient, strict] = [Protection::Lenient, Protection::Strict].map(attach_as);
    assert_eq!(without_tag(lenient), Ok(()));
    assert_eq!(without_tag(strict), Err(CallError::Ptag));
    for nic in [lenient, strict] {
        nic::close(nic).unwrap();
    }
}

#[test]
fn register_reports_whether_pages_are_writable_and_fails_for_unmapped_pages() {
    static READ_ONLY: [u8; 0x3000] = [1; 0x3000];
    let process = FakeProcess::new("WRITES", no_change, default_replies);
    let nic = process.nic();
    let settings = MemAttributes {
        ptag: Some(PtagHandle::from_raw(nic::create_ptag(nic).unwrap())),
        ..MemAttributes::default()
    };
    let was_requested = || {
        process
            .state
            .received(|r| matches!(r, Request::Register { .. }))
    };
    let unmapped = register(nic, 0x1000, 64, &settings);
    assert_eq!(unmapped, Err(CallError::InvalidParameter));
    assert_eq!(
        register(nic, 0x1000, 0, &settings),
        Err(CallError::InvalidParameter)
    );
    assert!(!was_requested());
    let at = READ_ONLY.as_ptr() as u64 + 0x1000;
    let region = register(nic, at, 64, &settings).unwrap();
    nic::deregister(nic, at, region).unwrap();
    let written = [1u8; 64];
    let at = written.as_ptr() as u64;
    register(nic, at, 64, &settings).unwrap();
    let writable: Vec<_> = process
        .state
        .requests
        .lock()
        .unwrap()
        .iter()
        .filter_map(|r| match r {
            Request::Register { writable, .. } => Some(*writable),
            _ => None,
        })
        .collect();
    assert_eq!(writable, [false, true]);
    nic::close(nic).unwrap();
}

#[test]
fn request_to_an_unresponsive_process_fails_after_the_timeout() {
    let is_stuck = Arc::new(AtomicBool::new(false));
    let process = {
        let is_stuck = Arc::clone(&is_stuck);
        FakeProcess::new("SILENT", no_change, move |_, request| {
            let replies = !is_stuck.load(Ordering::SeqCst);
            default_reply(request).filter(|_| replies)
        })
    };
    let test_vi = TestVi::new(process.nic());
    let control = test_vi.vi.device.control().unwrap();
    is_stuck.store(true, Ordering::SeqCst);
    let open = move || {
        control
            .request_within(&Request::Open, Duration::from_millis(20))
            .err()
    };
    assert_eq!(result_of(open), Some(ResourceError::ProcessGone.into()));
    // Later calls have no timeout.
    is_stuck.store(false, Ordering::SeqCst);
    assert!(nic::query_vi(test_vi.handle).is_ok());
    nic::close(test_vi.nic).unwrap();
}

#[test]
fn call_on_a_destroyed_vi_does_not_affect_a_new_one_with_the_same_index() {
    let process = FakeProcess::new("PLACE", no_change, default_replies);
    let first = TestVi::new(process.nic());
    nic::destroy_vi(first.handle).unwrap();
    let second = TestVi::new(first.nic);
    assert!(core::ptr::eq(first.vi.shared, second.vi.shared));
    second.connect().unwrap();
    let late = AttachedCalls.disconnect(first.vi, first.handle);
    assert_eq!(late, Err(CallError::InvalidParameter));
    assert!(
        !process
            .state
            .received(|r| matches!(r, Request::Disconnect { .. }))
    );
    assert_eq!(second.vi.state(), ViState::Connected);
    nic::close(second.nic).unwrap();
}
