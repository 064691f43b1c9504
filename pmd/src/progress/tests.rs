use pmd_port::port::{AsFutexWord, FutexWord};
use pmd_port::wake::monotonic_ns;
use vi_core::sync::{AtomicBool, AtomicU32, AtomicU64};
use vi_types::{PtagHandle, QueueIo, ViAttributes, ViIndex, Waiter};

use super::*;
use crate::poll_thread::PollThread;

/// Opens a NIC on a segment of its own, without threads: the test acts in their place.
fn device(test: &str) -> (&'static Device, u64) {
    let config = crate::config::NicConfig {
        network: crate::config::Network::segment(format!("unit-{}-{test}", std::process::id())),
        ..crate::config::NicConfig::default()
    };
    let (device, nic_handle) = crate::open::open_without_threads(&config).unwrap();
    stop_draining(device);
    (device, nic_handle)
}

/// Does what the poll thread does up to its sleep on the port.
fn arm_for_sleep(device: &'static Device, before_sleep: impl FnOnce()) -> WakeSource {
    let mut held = device.lock();
    let backend = held.as_mut().unwrap();
    let source = backend.arm();
    device.poll_thread.mark_doorbells_unattended();
    assert!(
        !backend.poll_thoroughly(&device.shared.doorbells),
        "there is no work"
    );
    before_sleep();
    *backend.armed() = Some(source.clone());
    source
}

/// Sleeps as the poll thread does; checks that it is woken soon.
fn sleep_until_woken(device: &Device, source: &WakeSource) {
    let begun = Instant::now();
    device.poll_thread.sleep_on(source, Duration::from_secs(20));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "it was not woken"
    );
    assert!(device.lock().as_mut().unwrap().armed().is_none());
}

#[test]
fn doorbell_rung_while_poll_thread_falls_asleep_is_served() {
    let (device, nic_handle) = device("asleep");
    std::thread::scope(|scope| {
        // The doorbell is rung after the last check, and the ringing thread cannot take the backend lock.
        let source = arm_for_sleep(device, || {
            scope.spawn(|| device.ring(ViIndex(3)));
        });
        sleep_until_woken(device, &source);
    });
    assert!(
        !device.shared.doorbells.any(),
        "drained by the ringing thread"
    );
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn doorbell_is_drained_by_poll_thread_or_by_ringing_thread() {
    let (device, nic_handle) = device("bell");
    // The state of a poll thread that polls.
    device
        .poll_thread
        .doorbells_unattended
        .store(false, Ordering::Relaxed);
    device.ring(ViIndex(3));
    assert!(device.shared.doorbells.any(), "left to the poll thread");
    stop_draining(device);
    assert!(!device.shared.doorbells.any(), "which drains all");
    device.ring(ViIndex(3));
    assert!(
        !device.shared.doorbells.any(),
        "it only watches: drained at once"
    );
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn doorbell_rung_while_poll_thread_holds_backend_lock_is_left_to_it() {
    let (device, nic_handle) = device("holds-lock");
    let (rang, returned) = std::sync::mpsc::channel();
    let ringer = device.poll_thread.while_polling(|| {
        // As if preempted here, with the backend lock taken.
        let _held = device.backend.lock_unbiased();
        let ringer = std::thread::spawn(move || {
            device.ring(ViIndex(3));
            rang.send(()).unwrap();
        });
        let returned = returned.recv_timeout(Duration::from_secs(10));
        assert_eq!(returned, Ok(()), "the ringing thread does not wait");
        ringer
    });
    ringer.join().unwrap();
    assert!(device.shared.doorbells.any(), "left to the poll thread");
    stop_draining(device);
    assert!(!device.shared.doorbells.any(), "which drains it afterwards");
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn polling_thread_wakes_sleeping_poll_thread() {
    let (device, nic_handle) = device("wakes-thread");
    let source = arm_for_sleep(device, || ());
    device.poll();
    sleep_until_woken(device, &source);
    crate::open::close(device, nic_handle).unwrap();
}

/// The word of a port that wakes its sleeper at once, at a time that another process has written.
struct WokenAt(AtomicU32, fn() -> u64);

impl AsFutexWord for WokenAt {
    fn futex_word(&self) -> &AtomicU32 {
        &self.0
    }

    fn woken_at_ns(&self) -> Option<u64> {
        Some((self.1)())
    }
}

#[test]
fn wake_up_by_a_port_is_measured_unless_its_time_is_implausible() {
    let thread = PollThread::default();
    let measured = |woken_at_ns| {
        let word = FutexWord::new(Arc::new(WokenAt(AtomicU32::new(1), woken_at_ns)));
        thread.sleep_on(&WakeSource::Futex { word, expected: 0 }, UPKEEP)
    };
    assert!(measured(monotonic_ns).is_some_and(|wake_up| wake_up < Duration::from_secs(10)));
    assert_eq!(measured(|| 0), None, "an earlier wake-up");
    assert_eq!(measured(|| u64::MAX), None, "not yet");
}

/// A poll that finds the port armed makes a system call, which a polling program must not pay for.
#[test]
fn poll_thread_does_not_fall_asleep_while_the_program_polls() {
    let (device, nic_handle) = device("polled");
    let seen = Activity::of(device);
    device.poll();
    let epoch = device.epoch();
    assert!(prepare_sleep(device, epoch, seen, Duration::ZERO).is_none());
    assert!(device.lock().as_mut().unwrap().armed().is_none());
    let seen = Activity::of(device);
    assert!(prepare_sleep(device, epoch, seen, Duration::ZERO).is_some());
    finish_sleep(device, epoch);
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn sleep_is_shorter_while_frames_wait_for_room() {
    let (device, nic_handle) = device("room");
    {
        let mut held = device.lock();
        let backend = held.as_mut().unwrap();
        assert_eq!(longest_sleep(backend, Duration::from_millis(4)), UPKEEP);
        let poller = backend.state_mut().unwrap();
        let mbuf = poller.path.port.alloc([0xFF; 6]).unwrap();
        assert!(poller.path.batch.push(mbuf).is_ok());
        for (idle_us, sleep_us) in [(0, 20), (60, 20), (4000, 1000), (1_000_000, 50_000)] {
            let sleep = longest_sleep(backend, Duration::from_micros(idle_us));
            assert_eq!(
                sleep,
                Duration::from_micros(sleep_us),
                "idle for {idle_us} us"
            );
        }
        let poller = backend.state_mut().unwrap();
        let mbuf = poller.path.batch.pop().unwrap();
        poller.path.port.free(mbuf);
    }
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn wait_finds_event_signalled_before_it_sleeps() {
    let (device, nic_handle) = device("wait");
    for round in 0..200 {
        let found = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round * 50 {
                    core::hint::spin_loop();
                }
                let mut held = device.lock();
                found.store(true, Ordering::Relaxed);
                let backend = held.as_mut().unwrap();
                backend.state_mut().unwrap().path.pending_events = Event::CONTROL;
                device.wake_waiters(backend);
            });
            let check = || found.load(Ordering::Relaxed).then_some(());
            let limit = Some(Duration::from_secs(20));
            assert_eq!(
                wait(device, Event::CONTROL, limit, check),
                Ok(()),
                "round {round}"
            );
        });
    }
    assert!(!device.shared.waiters.any());
    crate::open::close(device, nic_handle).unwrap();
}

/// Opens a NIC of a datapath process; the test acts in place of its core.
fn served(test: &str) -> (&'static Device, u64) {
    let (device, nic_handle) = device(test);
    device.served.store(true, Ordering::Relaxed);
    (device, nic_handle)
}

#[test]
fn wait_on_served_nic_checks_once_and_does_not_poll() {
    let (device, nic_handle) = served("beside");
    let polls = || {
        device
            .lock()
            .as_ref()
            .and_then(Backend::state)
            .unwrap()
            .polls
    };
    let before = polls();
    for limit_ms in [0, 1] {
        let mut checks = 0;
        let check = || {
            checks += 1;
            None::<()>
        };
        let limit = Some(Duration::from_millis(limit_ms));
        assert_eq!(wait(device, Event::CONTROL, limit, check), Err(TimedOut));
        // It checks again after the timeout, and it may be woken early.
        assert!(checks == 1 || limit_ms > 0, "{checks} checks");
    }
    assert_eq!(polls(), before);
    assert!(!device.shared.waiters.any());
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn wait_on_served_nic_finds_event() {
    let (device, nic_handle) = served("announced");
    for round in 0..50 {
        let found = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round * 200 {
                    core::hint::spin_loop();
                }
                let mut held = device.lock();
                found.store(true, Ordering::Relaxed);
                let backend = held.as_mut().unwrap();
                backend.state_mut().unwrap().path.pending_events = Event::on_listener(7);
                device.wake_waiters(backend);
            });
            let check = || found.load(Ordering::Relaxed).then_some(());
            let event = Event::CONTROL.or(Event::on_listener(7));
            assert_eq!(wait(device, event, None, check), Ok(()), "round {round}");
        });
    }
    assert!(!device.shared.waiters.any());
    crate::open::close(device, nic_handle).unwrap();
}

/// Calls that check for nothing hold the backend lock in turn, and keep the poll thread from it.
#[test]
fn waiting_calls_check_only_after_events_of_their_objects() {
    const CALLS: u64 = 64;
    let (device, nic_handle) = served("own-events");
    let ptag = crate::nic::create_ptag(nic_handle).unwrap();
    let settings = ViAttributes {
        reliability: 2,
        max_transfer_bytes: 4096,
        ptag: Some(PtagHandle::from_raw(ptag)),
        ..ViAttributes::default()
    };
    let (checks, found) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut are_in_common, mut is_due_for_own) = (true, false);
    let (mut due_for_others, mut checks_for_others) = (0, 0);
    // Reports events; returns whether a call is to be woken for them.
    let report = |waiters: &[Waiter]| {
        let mut held = device.lock();
        let path = &mut held.as_mut().and_then(Backend::state_mut).unwrap().path;
        for waiter in waiters {
            path.control_event(*waiter);
        }
        let has_due = path.calls.has_due();
        while path.deliver_completions() {}
        has_due
    };
    std::thread::scope(|scope| {
        for number in 0..CALLS {
            let (checks, found) = (&checks, &found);
            scope.spawn(move || {
                let objects = [Object::Listener(number), Object::NicHandle(nic_handle)];
                let check = |_: &mut BiasedGuard<'_, Option<Backend>>| {
                    checks.fetch_add(1, Ordering::Relaxed);
                    found.load(Ordering::Relaxed).then_some(())
                };
                assert_eq!(wait_for(device, &objects, None, check), Ok(()));
            });
        }
        while checks.load(Ordering::Relaxed) < CALLS {
            std::thread::yield_now();
        }
        // Under the backend lock with which the last one checked, it became a waiting call.
        report(&[]);
        are_in_common = device.shared.waiters.any();
        for number in CALLS..2 * CALLS {
            let vi = crate::nic::create_vi(nic_handle, &settings, 0, 0).unwrap();
            crate::nic::destroy_vi(vi).unwrap();
            let of_others = [
                Waiter::Request(number),
                Waiter::Outcome(ViIndex(number as u32)),
            ];
            due_for_others += u64::from(report(&of_others));
        }
        checks_for_others = checks.load(Ordering::Relaxed) - CALLS;
        found.store(true, Ordering::Relaxed);
        is_due_for_own = report(&[Waiter::Request(0)]);
        report(&[Waiter::All]);
        device.shared.wake_all_waiters();
    });
    assert!(!are_in_common, "they sleep where all events wake threads");
    assert_eq!((due_for_others, checks_for_others), (0, 0));
    assert!(is_due_for_own);
    assert_eq!(checks.load(Ordering::Relaxed), 2 * CALLS);
    crate::open::close(device, nic_handle).unwrap();
}

/// Calls of the last application of a NIC may still wait when it is removed from the poller.
#[test]
fn polls_wake_waiting_calls_although_no_application_is_left() {
    const CALLS: u64 = 40;
    let (device, nic_handle) = served("no-application");
    let mut held = device.lock();
    let backend = held.as_mut().unwrap();
    let calls = &mut backend.state_mut().unwrap().path.calls;
    let waiting: Vec<_> = (0..CALLS)
        .map(|number| calls.add(&[Object::Listener(number)]))
        .collect();
    calls.notify_all();
    for _ in 0..CALLS {
        backend.poll(&device.shared.doorbells);
    }
    assert!(!backend.state().unwrap().path.calls.has_due());
    // They are woken, so this returns at once.
    waiting.iter().for_each(|call| call.sleep(None));
    drop(held);
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn wait_on_served_nic_wakes_sleeping_core() {
    let (device, nic_handle) = served("wakes-core");
    let event = sys::EventFd::new().unwrap();
    device
        .poll_thread
        .core
        .set_waker(event.try_clone().unwrap());
    let check = || {
        // Its connection call set a timer that the core does not know of.
        let begun = Instant::now();
        event.sleep(None, Duration::from_secs(20));
        (begun.elapsed() < Duration::from_secs(10)).then_some(())
    };
    let prepare_sleep = |until_ns| {
        let _backend_lock = device.lock();
        device.poll_thread.core.prepare_sleep(until_ns);
    };
    prepare_sleep(50_000_000);
    let limit = Some(Duration::from_millis(1));
    assert_eq!(wait(device, Event::CONTROL, limit, check), Ok(()));
    crate::open::close(device, nic_handle).unwrap();
}

#[test]
fn core_needs_wake_for_earlier_timer_or_unsent_frame() {
    use vi_types::{Discriminator, HostAddress, NetAddress};
    let (device, nic_handle) = served("needs-wake");
    let core = &device.poll_thread.core;
    let needs_wake = || core.needs_wake(device.lock().as_ref().unwrap());
    let sleep_for = |limit_ns| {
        let mut held = device.lock();
        let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
        core.prepare_sleep(poller.clock.now_ns() + limit_ns);
    };
    assert!(!needs_wake(), "it is awake");
    sleep_for(1_000_000_000_000);
    assert!(!needs_wake(), "there is no work");
    let settings = ViAttributes {
        reliability: 2,
        max_transfer_bytes: 4096,
        ptag: Some(PtagHandle::from_raw(
            crate::nic::create_ptag(nic_handle).unwrap(),
        )),
        ..ViAttributes::default()
    };
    let vi = crate::nic::create_vi(nic_handle, &settings, 0, 0).unwrap();
    let address = |name: &[u8]| NetAddress {
        host: HostAddress(device.host),
        discriminator: Discriminator::new(name).unwrap(),
    };
    let limit = Some(Duration::from_secs(10));
    let (local, remote) = (address(b"local"), address(b"remote"));
    crate::nic::connect_peer_request(vi, &local, &remote, limit).unwrap();
    assert!(needs_wake(), "its timeout is earlier");
    sleep_for(1);
    assert!(!needs_wake(), "the sleep ends earlier");
    {
        let mut held = device.lock();
        let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
        let mbuf = poller.path.port.alloc([0xFF; 6]).unwrap();
        assert!(poller.path.batch.push(mbuf).is_ok());
    }
    assert!(needs_wake(), "a frame waits for room");
    core.finish_sleep();
    assert!(!needs_wake());
    {
        let mut held = device.lock();
        let poller = held.as_mut().and_then(Backend::state_mut).unwrap();
        let mbuf = poller.path.batch.pop().unwrap();
        poller.path.port.free(mbuf);
    }
    crate::open::close(device, nic_handle).unwrap();
}
