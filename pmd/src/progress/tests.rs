use vi_engine::ViIndex;

use super::*;

/// A NIC on a segment of its own, and without threads: this test plays their part.
fn device(test: &str) -> (&'static Device, u64) {
    let config = crate::config::NicConfig {
        segment: format!("unit-{}-{test}", std::process::id()),
        ..crate::config::NicConfig::default()
    };
    let (device, instance) = crate::device::open_unattended(&config).unwrap();
    stop_draining(device);
    (device, instance)
}

/// Plays the NIC's thread up to the moment in which it falls asleep on the port.
fn go_to_rest(device: &'static Device, at_the_last_moment: impl FnOnce()) -> WakeSource {
    let mut held = device.hold();
    let driver = held.as_mut().unwrap();
    let source = driver.arm();
    device.rest.go_deaf();
    assert!(
        !driver.long_turn(&device.doorbells),
        "nothing is to be done"
    );
    at_the_last_moment();
    *driver.armed() = Some(source.clone());
    source
}

/// Sleeps as the NIC's thread does, and not for long.
fn sleep_shortly(device: &Device, source: &WakeSource) {
    let begun = Instant::now();
    device.rest.sleep_on(source, Duration::from_secs(20));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "nobody roused it"
    );
    assert!(device.hold().as_mut().unwrap().armed().is_none());
}

#[test]
fn a_doorbell_rung_while_the_thread_goes_to_rest_is_answered() {
    let (device, instance) = device("rest");
    std::thread::scope(|scope| {
        // The bell rings after the last look at it, and who rings cannot take the turn.
        let source = go_to_rest(device, || {
            scope.spawn(|| device.ring(ViIndex(3)));
        });
        sleep_shortly(device, &source);
    });
    assert!(!device.doorbells.any(), "drained by who rang it");
    crate::device::close(device, instance).unwrap();
}

#[test]
fn a_doorbell_is_drained_by_the_thread_that_polls_or_by_who_rings_it() {
    let (device, instance) = device("bell");
    // The NIC's thread polls, or so it says.
    device.rest.deaf.store(false, Ordering::Relaxed);
    device.ring(ViIndex(3));
    assert!(device.doorbells.any(), "left to that thread");
    stop_draining(device);
    assert!(!device.doorbells.any(), "which leaves none behind");
    device.ring(ViIndex(3));
    assert!(!device.doorbells.any(), "it only looks: drained at once");
    crate::device::close(device, instance).unwrap();
}

#[test]
fn a_doorbell_rung_while_the_nics_thread_is_at_the_turn_is_left_to_it() {
    let (device, instance) = device("attend");
    let (rang, heard) = std::sync::mpsc::channel();
    let ringer = device.rest.attend(|| {
        // Stopped here by the scheduler, say, with the turn taken.
        let _held = device.turn.hold_as_guest();
        let ringer = std::thread::spawn(move || {
            device.ring(ViIndex(3));
            rang.send(()).unwrap();
        });
        let returned = heard.recv_timeout(Duration::from_secs(10));
        assert_eq!(returned, Ok(()), "who rings waits for nothing");
        ringer
    });
    ringer.join().unwrap();
    assert!(device.doorbells.any(), "left to the thread");
    stop_draining(device);
    assert!(!device.doorbells.any(), "which answers it after its visit");
    crate::device::close(device, instance).unwrap();
}

#[test]
fn a_thread_that_polls_sends_the_resting_one_back() {
    let (device, instance) = device("leave");
    let source = go_to_rest(device, || ());
    device.poll();
    sleep_shortly(device, &source);
    crate::device::close(device, instance).unwrap();
}

#[test]
fn what_waits_for_room_is_tried_again_after_a_part_of_the_time_it_waited() {
    let (device, instance) = device("room");
    {
        let mut held = device.hold();
        let driver = held.as_mut().unwrap();
        assert_eq!(longest_rest(driver, Duration::from_millis(4)), UPKEEP);
        let poller = driver.engine_mut().unwrap();
        let mbuf = poller.path.port.alloc([0xFF; 6]).unwrap();
        assert!(poller.path.batch.push(mbuf).is_ok());
        for (idle_us, rest_us) in [(0, 20), (60, 20), (4000, 1000), (1_000_000, 50_000)] {
            let rest = longest_rest(driver, Duration::from_micros(idle_us));
            assert_eq!(
                rest,
                Duration::from_micros(rest_us),
                "idle for {idle_us} us"
            );
        }
        let poller = driver.engine_mut().unwrap();
        let mbuf = poller.path.batch.pop().unwrap();
        poller.path.port.free(mbuf);
    }
    crate::device::close(device, instance).unwrap();
}

#[test]
fn a_wait_finds_what_is_announced_while_it_lies_down() {
    let (device, instance) = device("wait");
    for round in 0..200 {
        let found = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round * 50 {
                    core::hint::spin_loop();
                }
                let mut held = device.hold();
                found.store(true, Ordering::Relaxed);
                let driver = held.as_mut().unwrap();
                driver.engine_mut().unwrap().path.happened = Event::CONTROL;
                device.announce(driver);
            });
            let look = || found.load(Ordering::Relaxed).then_some(());
            let limit = Some(Duration::from_secs(20));
            assert_eq!(
                wait(device, Event::CONTROL, limit, look),
                Ok(()),
                "round {round}"
            );
        });
    }
    assert!(!device.sleepers.any());
    crate::device::close(device, instance).unwrap();
}

/// A NIC of a datapath process; this test plays its core.
fn served(test: &str) -> (&'static Device, u64) {
    let (device, instance) = device(test);
    device.served.store(true, Ordering::Relaxed);
    (device, instance)
}

#[test]
fn who_waits_beside_a_core_looks_once_and_takes_no_turn_of_its_own() {
    let (device, instance) = served("beside");
    let turns = || {
        device
            .hold()
            .as_ref()
            .and_then(Driver::engine)
            .unwrap()
            .turns
    };
    let before = turns();
    for patience in [0, 1] {
        let mut looks = 0;
        let look = || {
            looks += 1;
            None::<()>
        };
        let limit = Some(Duration::from_millis(patience));
        assert_eq!(wait(device, Event::CONTROL, limit, look), Err(TimedOut));
        // Once more at the end of its time, and it may be woken early.
        assert!(looks == 1 || patience > 0, "{looks} looks");
    }
    assert_eq!(turns(), before);
    assert!(!device.sleepers.any());
    crate::device::close(device, instance).unwrap();
}

#[test]
fn who_waits_beside_a_core_finds_what_is_announced() {
    let (device, instance) = served("announced");
    for round in 0..50 {
        let found = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round * 200 {
                    core::hint::spin_loop();
                }
                let mut held = device.hold();
                found.store(true, Ordering::Relaxed);
                let driver = held.as_mut().unwrap();
                driver.engine_mut().unwrap().path.happened = Event::on_listener(7);
                device.announce(driver);
            });
            let look = || found.load(Ordering::Relaxed).then_some(());
            let event = Event::CONTROL.or(Event::on_listener(7));
            assert_eq!(wait(device, event, None, look), Ok(()), "round {round}");
        });
    }
    assert!(!device.sleepers.any());
    crate::device::close(device, instance).unwrap();
}

#[test]
fn who_waits_beside_a_core_that_sleeps_wakes_it() {
    let (device, instance) = served("rouses");
    let event = sys::Event::new().unwrap();
    device.rest.core.polled_by(event.try_clone().unwrap());
    let look = || {
        // Its connection call set a timer, of which the core knew nothing.
        let begun = Instant::now();
        event.sleep(None, Duration::from_secs(20));
        (begun.elapsed() < Duration::from_secs(10)).then_some(())
    };
    let lie_down = |until_ns| {
        let _turn = device.hold();
        device.rest.core.lie_down(until_ns);
    };
    lie_down(50_000_000);
    let limit = Some(Duration::from_millis(1));
    assert_eq!(wait(device, Event::CONTROL, limit, look), Ok(()));
    crate::device::close(device, instance).unwrap();
}

#[test]
fn a_core_oversleeps_an_earlier_timer_and_what_waits_for_room() {
    use fcvi_frame::connect::{Discriminator, HostAddress, NetAddress};
    let (device, instance) = served("oversleeps");
    let core = &device.rest.core;
    let oversleeps = || core.oversleeps(device.hold().as_ref().unwrap());
    let until = |limit_ns| {
        let mut held = device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        core.lie_down(poller.clock.now_ns() + limit_ns);
    };
    assert!(!oversleeps(), "it is awake");
    until(1_000_000_000_000);
    assert!(!oversleeps(), "nothing is to be done");
    let settings = crate::vi::ViSettings {
        reliability: 2,
        max_transfer_bytes: 4096,
        ptag: crate::nic::create_ptag(instance).unwrap(),
        ..crate::vi::ViSettings::default()
    };
    let vi = crate::nic::create_vi(instance, &settings, 0, 0).unwrap();
    let address = |name: &[u8]| NetAddress {
        host: HostAddress(device.host),
        discriminator: Discriminator::new(name).unwrap(),
    };
    let limit = Some(Duration::from_secs(10));
    let (local, remote) = (address(b"here"), address(b"there"));
    crate::nic::connect_peer_request(vi, &local, &remote, limit).unwrap();
    assert!(oversleeps(), "its time is over before");
    until(1);
    assert!(!oversleeps(), "it gets up before");
    {
        let mut held = device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        let mbuf = poller.path.port.alloc([0xFF; 6]).unwrap();
        assert!(poller.path.batch.push(mbuf).is_ok());
    }
    assert!(oversleeps(), "a frame waits for room");
    core.get_up();
    assert!(!oversleeps());
    {
        let mut held = device.hold();
        let poller = held.as_mut().and_then(Driver::engine_mut).unwrap();
        let mbuf = poller.path.batch.pop().unwrap();
        poller.path.port.free(mbuf);
    }
    crate::device::close(device, instance).unwrap();
}
