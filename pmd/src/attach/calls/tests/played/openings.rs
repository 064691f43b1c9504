//! Openings, and what is had by them: conversations, names, memory, places of VIs.

use super::*;
use crate::config::Protection;
use crate::device::device_of;
use crate::events::AsyncEvent;

/// A thread that waits for a connection, with the conversation that it waits in.
fn waits(process: &Played, nic: u64) -> mpsc::Receiver<Option<ControlError>> {
    let (tell, told) = mpsc::channel();
    let address = address_on(nic);
    std::thread::spawn(move || tell.send(nic::connect_wait(nic, &address, None).err()));
    while !process
        .stage
        .was_asked(|request| matches!(request, Request::ConnectWait { .. }))
    {
        std::thread::yield_now();
    }
    told
}

fn waits_for_ever(_: &Stage, request: &Request) -> Option<Reply> {
    match request {
        Request::ConnectWait { .. } => None,
        request => usual(request),
    }
}

#[test]
fn the_last_close_ends_what_others_wait_for_although_it_cannot_be_told() {
    let alone = |_: &mut NicConfig, quota: &mut Quota| quota.max_calls = 1;
    let process = Played::new("CLOSES", alone, waits_for_ever);
    let nic = process.nic();
    let waiting = waits(&process, nic);
    process.stage.refuses.store(true, Ordering::SeqCst);
    assert_eq!(result_of(move || nic::close(nic)), Ok(()));
    let ended = waiting.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Ok(Some(ControlError::InvalidParameter)));
}

#[test]
fn calls_that_wait_leave_a_conversation_to_those_that_do_not() {
    let process = Played::new("LEAVES", no_change, waits_for_ever);
    let [nic, other] = [process.nic(), process.nic()];
    let waiting = waits(&process, nic);
    process.stage.refuses.store(true, Ordering::SeqCst);
    let address = address_on(nic);
    let refused = nic::connect_wait(nic, &address, None).err();
    assert_eq!(refused, Some(ResourceError::ProcessRefused.into()));
    for _ in 0..3 {
        nic::create_ptag(nic).unwrap();
    }
    // The first of two openings.
    nic::close(nic).unwrap();
    assert!(
        process
            .stage
            .was_asked(|request| matches!(request, Request::Close { .. }))
    );
    nic::close(other).unwrap();
    let ended = waiting.recv_timeout(Duration::from_secs(20));
    assert_eq!(ended, Ok(Some(ControlError::InvalidParameter)));
}

/// As long as it takes for an answer that does not come.
const SHORT: Duration = Duration::from_millis(20);

#[test]
fn close_nic_without_an_acknowledgement_does_not_succeed() {
    let process = Played::new("STOPPED", no_change, as_usual);
    let nic = process.nic();
    let ptag = nic::create_ptag(nic).unwrap();
    let settings = MemSettings {
        ptag,
        ..MemSettings::default()
    };
    let mut memory = vec![0u8; 0x2000];
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    let region = register(nic, address, 0x2000, &settings).unwrap();
    let device = device_of(RawHandle::unpack(nic).device).unwrap();
    let remote = device.instances.remote(nic).unwrap();
    {
        let _stopped = process.stage.stopped.lock().unwrap();
        let closed = close(device, remote, true, SHORT);
        assert_eq!(closed, Err(ResourceError::ProcessGone.into()));
        assert!(nic::query_region(nic, address, region).is_ok());
    }
    nic::close(nic).unwrap();
    assert!(nic::query_region(nic, address, region).is_err());
}

#[test]
fn nic_that_is_being_closed_reports_no_lost_process() {
    let process = Played::new("CLOSES", no_change, as_usual);
    let nic = process.nic();
    let (sender, told) = mpsc::channel();
    let handler = move |event: &AsyncEvent| sender.send(event.code).unwrap();
    nic::set_error_handler(nic, Some(Box::new(handler))).unwrap();
    let device = device_of(RawHandle::unpack(nic).device).unwrap();
    let remote = device.instances.remote(nic).unwrap();
    close(device, remote, true, Duration::from_secs(20)).unwrap();
    // The periodic check runs before the NIC is down.
    device.hold().as_mut().unwrap().upkeep();
    assert_eq!(device.events.waiting(), []);
    nic::close(nic).unwrap();
    assert!(told.try_recv().is_err());
}

#[test]
fn close_of_one_opening_without_an_answer_does_not_succeed() {
    static ANSWERS: AtomicBool = AtomicBool::new(false);
    let process = Played::new("MUTE", no_change, |_, request| match request {
        Request::Close { .. } if !ANSWERS.load(Ordering::SeqCst) => None,
        request => usual(request),
    });
    let [nic, other] = [process.nic(), process.nic()];
    let device = device_of(RawHandle::unpack(nic).device).unwrap();
    let remote = device.instances.remote(nic).unwrap();
    let closed = close(device, remote, false, SHORT);
    assert_eq!(closed, Err(ResourceError::ProcessGone.into()));
    ANSWERS.store(true, Ordering::SeqCst);
    for nic in [nic, other] {
        nic::close(nic).unwrap();
    }
}

#[test]
fn a_vi_that_could_not_be_ended_is_there_still() {
    let process = Played::new("STAYS", no_change, |_, request| match request {
        Request::DestroyVi { .. } => Some(Reply::Failed(ControlError::InvalidState)),
        request => usual(request),
    });
    let end = End::new(process.nic());
    assert_eq!(nic::destroy_vi(end.handle), Err(ControlError::InvalidState));
    assert!(nic::query_vi(end.handle).is_ok());
    nic::close(end.nic).unwrap();
}

#[test]
fn a_nic_is_one_device_by_whatever_name() {
    let process = Played::new("CANONICAL", no_change, as_usual);
    let names = ["ALIAS", "CANONICAL", "OTHER", "OTHER"];
    let nics = names.map(|name| nic::attach(&process.socket, name).unwrap());
    let devices = nics.map(|nic| RawHandle::unpack(nic).device);
    assert_eq!(devices, [devices[0]; 4]);
    // Only a name that is not known has to be asked for.
    assert_eq!(process.stage.attached.load(Ordering::SeqCst), 2);
    process.stage.await_lives(1);
    for nic in nics {
        nic::close(nic).unwrap();
    }
}

#[test]
fn a_program_may_be_stricter_than_the_process_and_not_more_lenient() {
    let strict = Played::new("STRICT", no_change, as_usual);
    let refused = nic::attach_as(&strict.socket, "STRICT", Protection::Lenient);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("VIPL_PROTECTION=lenient"), "{why}");

    let lenient = |config: &mut NicConfig, _: &mut Quota| config.protection = Protection::Lenient;
    let process = Played::new("LENIENT", lenient, as_usual);
    let attach_as = |protection| nic::attach_as(&process.socket, "LENIENT", protection).unwrap();
    let without_tag = |nic| {
        let settings = ViSettings {
            reliability: 2,
            max_transfer_bytes: 4096,
            ..ViSettings::default()
        };
        nic::create_vi(nic, &settings, 0, 0).map(drop)
    };
    let [wished, asked] = [Protection::Lenient, Protection::Strict].map(attach_as);
    assert_eq!(without_tag(wished), Ok(()));
    assert_eq!(without_tag(asked), Err(ControlError::Ptag));
    for nic in [wished, asked] {
        nic::close(nic).unwrap();
    }
}

#[test]
fn the_process_learns_whether_pages_may_be_written_and_of_no_page_that_is_not_there() {
    static READ_ONLY: [u8; 0x3000] = [1; 0x3000];
    let process = Played::new("WRITES", no_change, as_usual);
    let nic = process.nic();
    let settings = MemSettings {
        ptag: nic::create_ptag(nic).unwrap(),
        ..MemSettings::default()
    };
    let asked = || {
        process
            .stage
            .was_asked(|r| matches!(r, Request::Register { .. }))
    };
    let nowhere = register(nic, 0x1000, 64, &settings);
    assert_eq!(nowhere, Err(ControlError::InvalidParameter));
    assert_eq!(
        register(nic, 0x1000, 0, &settings),
        Err(ControlError::InvalidParameter)
    );
    assert!(!asked());
    let at = READ_ONLY.as_ptr() as u64 + 0x1000;
    let region = register(nic, at, 64, &settings).unwrap();
    nic::deregister(nic, at, region).unwrap();
    let written = [1u8; 64];
    let at = written.as_ptr() as u64;
    register(nic, at, 64, &settings).unwrap();
    let said: Vec<_> = process
        .stage
        .asked
        .lock()
        .unwrap()
        .iter()
        .filter_map(|r| match r {
            Request::Register { writable, .. } => Some(*writable),
            _ => None,
        })
        .collect();
    assert_eq!(said, [false, true]);
    nic::close(nic).unwrap();
}

#[test]
fn a_process_that_does_not_answer_is_waited_for_no_longer_than_is_said() {
    let is_stuck = Arc::new(AtomicBool::new(false));
    let process = {
        let is_stuck = Arc::clone(&is_stuck);
        Played::new("SILENT", no_change, move |_, request| {
            let answers = !is_stuck.load(Ordering::SeqCst);
            usual(request).filter(|_| answers)
        })
    };
    let end = End::new(process.nic());
    let link = end.vi.device.link().unwrap();
    is_stuck.store(true, Ordering::SeqCst);
    let open = move || {
        link.ask_within(&Request::Open, Duration::from_millis(20))
            .err()
    };
    assert_eq!(result_of(open), Some(ResourceError::ProcessGone.into()));
    // Others are waited for as ever.
    is_stuck.store(false, Ordering::SeqCst);
    assert!(nic::query_vi(end.handle).is_ok());
    nic::close(end.nic).unwrap();
}

#[test]
fn a_call_on_a_vi_that_ended_does_nothing_to_the_one_in_its_place() {
    let process = Played::new("PLACE", no_change, as_usual);
    let first = End::new(process.nic());
    nic::destroy_vi(first.handle).unwrap();
    let second = End::new(first.nic);
    assert!(core::ptr::eq(first.vi, second.vi));
    second.connect().unwrap();
    let late = disconnect(first.vi, first.handle);
    assert_eq!(late, Err(ControlError::InvalidParameter));
    assert!(
        !process
            .stage
            .was_asked(|r| matches!(r, Request::Disconnect { .. }))
    );
    assert_eq!(second.vi.state(), EndpointState::Connected);
    nic::close(second.nic).unwrap();
}
