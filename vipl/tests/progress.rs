//! Who polls when: the program, the NIC's thread in its place, a pinned thread; and that waiting is sleeping.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    End, PATIENCE, SecondProcess, WAIT, connect, is_child, open, open_as, pair, pair_on, persist,
    unique_discriminator,
};
use pmd::config::{NicConfig, Progress};
use vipl::{
    ErrorCode, Nic, Operation, RdmaAccess, Result, Timeout, ViState, VipError, provider as vip,
};

/// A NIC that another thread of this process polls without pause.
fn open_pinned() -> Nic {
    open_as(|config| config.progress = Progress::Pinned)
}

/// Processor time of this process so far.
fn busy() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage(2) writes one rusage.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(failed, 0);
    // SAFETY: written just now, and any bytes are a valid rusage.
    let usage = unsafe { usage.assume_init() };
    let duration = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    duration(usage.ru_utime) + duration(usage.ru_stime)
}

/// Makes no call of the library, and does not sleep either.
fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Waits with all that can be waited for, each for `pause`; gives the processor time that took.
fn wait_for_nothing(nic: &Nic, pause: Duration) -> Duration {
    let cq = nic.create_cq(1).unwrap();
    let end = End::on(nic.clone(), |vi| vi);
    let peer = End::on(nic.clone(), |vi| vi);
    connect(&end, &peer);
    end.vi.post_recv(end.room(8)).unwrap();
    let nobody = nic.local_address(&unique_discriminator()).unwrap();
    let limit = Timeout::After(pause);
    let waits: [&dyn Fn() -> Result<()>; 3] = [
        &|| end.vi.recv_wait(limit).map(drop),
        &|| cq.wait(limit).map(drop),
        &|| nic.connect_wait(&nobody, limit).map(drop),
    ];
    let before = busy();
    for wait in waits {
        let begun = Instant::now();
        assert_eq!(wait(), Err(VipError::Timeout));
        let waited = begun.elapsed();
        assert!(waited >= pause, "ended early: {waited:?}");
        assert!(waited < pause + PATIENCE / 2, "ended late: {waited:?}");
    }
    busy() - before
}

#[test]
fn waits_sleep() {
    // A process of its own: processor time is counted by process.
    if !is_child() {
        SecondProcess::start("waits_sleep").join();
        return;
    }
    let pause = Duration::from_millis(500);
    let used = wait_for_nothing(&open(), pause);
    assert!(
        used < pause * 3 / 5,
        "{used:?} of processor time in three times {pause:?}"
    );
}

#[test]
fn an_open_nic_that_nobody_uses_sleeps() {
    if !is_child() {
        SecondProcess::start("an_open_nic_that_nobody_uses_sleeps").join();
        return;
    }
    let (client, server) = pair();
    server.vi.post_recv(server.room(8)).unwrap();
    client.send(client.message(b"busy")).ok().unwrap();
    let before = busy();
    let pause = Duration::from_millis(500);
    thread::sleep(pause);
    let used = busy() - before;
    assert!(used < pause / 5, "{used:?} of processor time in {pause:?}");
}

#[test]
fn a_wait_without_end_ends_with_what_it_waits_for() {
    let (client, server) = pair_on(open(), open_as(|config| config.spin_us = 0));
    for message in 0..50_u64 {
        server.vi.post_recv(server.room(8)).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| server.vi.recv_wait(Timeout::Infinite).unwrap());
            if message % 2 == 0 {
                // Time enough to fall asleep; the other rounds come while it does.
                thread::sleep(Duration::from_millis(2));
            }
            client
                .send(client.message(&message.to_le_bytes()))
                .ok()
                .unwrap();
            let arrived = waiting.join().unwrap().unwrap().ok().unwrap();
            assert_eq!(arrived.first_bytes(), message.to_le_bytes());
        });
    }
}

/// Sends numbered messages from one end while the other alternates between calls and silence.
fn alternate(client: &End, server: &End, messages: u64) {
    const CREDITS: u64 = 16;
    for _ in 0..CREDITS {
        server.vi.post_recv(server.room(8)).unwrap();
    }
    let received = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut spare = vec![client.room(8), client.room(8)];
            for message in 0..messages {
                while message >= received.load(Ordering::Acquire) + CREDITS {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::yield_now();
                }
                let mut descriptor = spare.pop().unwrap();
                descriptor
                    .buffer_mut(0)
                    .copy_from_slice(&message.to_le_bytes());
                client.vi.post_send(descriptor).unwrap();
                let sent = client.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
                spare.push(sent.descriptor);
            }
        });
        let deadline = Instant::now() + PATIENCE;
        let mut next = 0;
        while next < messages {
            // From no silence to some times the take-over time, in an order without a pattern.
            compute(Duration::from_micros(next * 2_654_435_761 % 400));
            for _ in 0..next % 7 {
                match server.vi.recv_done() {
                    Ok(arrived) => {
                        let arrived = arrived.unwrap().ok().unwrap();
                        assert_eq!(
                            arrived.first_bytes(),
                            next.to_le_bytes(),
                            "none lost, none twice"
                        );
                        server.vi.post_recv(arrived.descriptor).unwrap();
                        next += 1;
                        received.store(next, Ordering::Release);
                    }
                    Err(error) => assert_eq!(error, VipError::NotDone),
                }
            }
            if Instant::now() > deadline {
                failed.store(true, Ordering::Relaxed);
                panic!("{next} of {messages} messages arrived");
            }
            if next % 7 == 0 && next < messages {
                let arrived = server.recv().ok().unwrap();
                assert_eq!(arrived.first_bytes(), next.to_le_bytes());
                server.vi.post_recv(arrived.descriptor).unwrap();
                next += 1;
                received.store(next, Ordering::Release);
            }
        }
    });
    assert_eq!(
        server.vi.recv_done().unwrap_err(),
        VipError::NotDone,
        "nothing more"
    );
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn polling_changes_hands_without_a_lost_or_doubled_message() {
    let quick = |config: &mut NicConfig| {
        config.takeover_us = 50;
        config.spin_us = 20;
    };
    let (client, server) = pair_on(open(), open_as(quick));
    alternate(&client, &server, 3000);
}

#[test]
fn a_send_of_a_program_that_falls_silent_goes_out() {
    // Its NIC's thread sleeps on the port when it posts.
    let quick = |config: &mut NicConfig| {
        config.takeover_us = 10;
        config.spin_us = 0;
    };
    let (client, server) = pair_on(open_as(quick), open());
    for message in 0..200_u64 {
        server.vi.post_recv(server.room(8)).unwrap();
        compute(Duration::from_micros(message * 7 % 150));
        client
            .vi
            .post_send(client.message(&message.to_le_bytes()))
            .unwrap();
        assert_eq!(
            server.recv().ok().unwrap().first_bytes(),
            message.to_le_bytes()
        );
        client.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
    }
}

#[test]
fn a_send_goes_out_while_another_thread_sleeps() {
    // Nobody comes to help for ten seconds: a doorbell that is heard by nobody fails the test.
    let slow = |config: &mut NicConfig| {
        config.takeover_us = 10_000_000;
        config.spin_us = 5;
    };
    let (client, server) = pair_on(open_as(slow), open());
    client.vi.post_recv(client.room(8)).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| client.recv().ok().unwrap());
        for message in 0..2000_u64 {
            server.vi.post_recv(server.room(8)).unwrap();
            compute(Duration::from_nanos(message * 7919 % 20_000));
            client
                .vi
                .post_send(client.message(&message.to_le_bytes()))
                .unwrap();
            // No other call on the sender's NIC until it has arrived.
            assert_eq!(
                server.recv().ok().unwrap().first_bytes(),
                message.to_le_bytes()
            );
            client.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
        }
        server.send(server.message(b"the end!")).ok().unwrap();
        assert_eq!(sleeper.join().unwrap().first_bytes(), b"the end!");
    });
    let took = begun.elapsed();
    assert!(
        took < PATIENCE / 3,
        "a send waited for a take-over: {took:?}"
    );
}

#[test]
fn more_than_the_port_has_room_for_is_sent_while_the_program_waits() {
    // The best of three: a machine may take a core away meanwhile.
    let took = (0..3).map(|_| time_of_four_rings_full()).min();
    assert!(
        took.unwrap() < Duration::from_secs(2),
        "waited for upkeep instead of room: {took:?}"
    );
}

/// Four rings full, to a peer that takes them up slowly: room comes without a wake-up.
fn time_of_four_rings_full() -> Duration {
    const MESSAGES: usize = 32;
    const BYTES: usize = 64 * 1024;
    let (client, server) = pair_on(open(), open_as(|config| config.takeover_us = 1003));
    for _ in 0..MESSAGES {
        server.vi.post_recv(server.room(BYTES)).unwrap();
    }
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in 0..MESSAGES {
                client
                    .vi
                    .post_send(client.message(&[message as u8; BYTES]))
                    .unwrap();
            }
            for _ in 0..MESSAGES {
                client.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
            }
        });
        for message in 0..MESSAGES {
            let arrived = server.recv().ok().unwrap();
            assert_eq!(arrived.first_bytes(), [message as u8; BYTES]);
            compute(Duration::from_micros(200));
        }
    });
    begun.elapsed()
}

#[test]
fn a_pinned_nic_serves_a_program_that_polls_one_that_waits_and_one_that_does_neither() {
    let (client, server) = pair_on(open_pinned(), open());
    alternate(&client, &server, 300);
    let (client, server) = (
        End::on(open(), |vi| vi),
        End::on(open_pinned(), |vi| vi.rdma_write(true)),
    );
    connect(&client, &server);
    alternate(&client, &server, 300);
    let access = RdmaAccess {
        write: true,
        read: false,
    };
    let memory = server
        .nic
        .create_rdma_region(64, &server.ptag, access)
        .unwrap();
    let mut write = client.message(&7_u64.to_ne_bytes());
    write.set_operation(Operation::RdmaWrite(memory.remote_buffer()));
    client.vi.post_send(write).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while memory.load_u64(0) != 7 {
        assert!(Instant::now() < deadline, "the word is not written");
        std::hint::spin_loop();
    }
}

#[test]
fn threads_that_wait_on_a_pinned_nic_sleep() {
    if !is_child() {
        SecondProcess::start("threads_that_wait_on_a_pinned_nic_sleep").join();
        return;
    }
    let pause = Duration::from_millis(300);
    let nic = open_pinned();
    let begun = Instant::now();
    let used = wait_for_nothing(&nic, pause);
    // One thread polls without pause; nobody else does anything.
    let passed = begun.elapsed();
    assert!(
        used < passed + passed / 5,
        "{used:?} of processor time in {passed:?}"
    );
}

#[test]
fn a_core_that_is_not_ours_is_refused() {
    let config = common::config(|config| {
        config.progress = Progress::Pinned;
        config.core = Some(100_000);
    });
    assert_eq!(
        Nic::open_with(&config).unwrap_err(),
        VipError::ErrorResource
    );
    let words = vip::last_error().unwrap();
    assert!(
        words.contains("core") && words.contains("100000"),
        "{words}"
    );
    // What was begun was undone: the same NIC opens on a core of ours.
    drop(open_pinned());
}

#[test]
fn a_killed_peer_is_noticed_while_a_pinned_nic_is_busy() {
    const NAME: &[u8] = b"progress-killed";
    if is_child() {
        let victim = End::new();
        let own = victim.nic.local_address(b"victim").unwrap();
        let address = victim.nic.local_address(NAME).unwrap();
        persist(|| victim.vi.connect(&own, &address, WAIT)).unwrap();
        loop {
            thread::park();
        }
    }
    let (client, server) = pair_on(open_pinned(), open_pinned());
    let survivor = End::on(open_pinned(), |vi| vi);
    let address = survivor.nic.local_address(NAME).unwrap();
    let mut victim = SecondProcess::start("a_killed_peer_is_noticed_while_a_pinned_nic_is_busy");
    survivor
        .nic
        .connect_wait(&address, WAIT)
        .unwrap()
        .accept(&survivor.vi)
        .unwrap();
    victim.kill();
    let deadline = Instant::now() + PATIENCE;
    let mut send = client.message(b"traffic!");
    let mut receive = server.room(8);
    while survivor.vi.state().unwrap() != ViState::Error {
        assert!(Instant::now() < deadline, "the peer is dead");
        server.vi.post_recv(receive).unwrap();
        send = client.send(send).ok().unwrap().descriptor;
        receive = server.recv().ok().unwrap().descriptor;
    }
    assert_eq!(survivor.errors.next_of(&survivor.vi), ErrorCode::ConnLost);
}

/// Closes the NIC under threads that wait, each for something that never comes.
fn close_under_waiting_threads(nic: Nic) {
    let cq = nic.create_cq(1).unwrap();
    let (waiting, peer) = (End::on(nic.clone(), |vi| vi), End::new());
    connect(&waiting, &peer);
    waiting.vi.post_recv(waiting.room(8)).unwrap();
    let client = End::on(nic.clone(), |vi| vi);
    let listener = End::on(open_as(|config| config.takeover_us = 1004), |vi| vi);
    let nobody = nic.local_address(&unique_discriminator()).unwrap();
    let slow = listener.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        let request = scope.spawn(|| listener.nic.connect_wait(&slow, WAIT).unwrap());
        let waits: [Box<dyn FnOnce() -> Result<()> + Send>; 4] = [
            Box::new(|| waiting.vi.recv_wait(Timeout::Infinite).map(drop)),
            Box::new(|| cq.wait(Timeout::Infinite).map(drop)),
            Box::new(|| nic.connect_wait(&nobody, Timeout::Infinite).map(drop)),
            Box::new(|| {
                let own = client.nic.local_address(b"client").unwrap();
                persist(|| client.vi.connect(&own, &slow, Timeout::Infinite)).map(drop)
            }),
        ];
        let threads = waits.map(|wait| scope.spawn(wait));
        // The request is there, so that thread waits for its answer; the others sleep soon.
        let unanswered = request.join().unwrap();
        thread::sleep(Duration::from_millis(20));
        vip::close_nic(nic.handle()).unwrap();
        for (number, thread) in threads.into_iter().enumerate() {
            assert_eq!(
                thread.join().unwrap(),
                Err(VipError::InvalidParameter),
                "wait {number}"
            );
        }
        drop(unanswered);
    });
}

#[test]
fn closing_a_nic_ends_the_waits_on_it() {
    close_under_waiting_threads(open_as(|config| config.takeover_us = 1005));
    close_under_waiting_threads(open_pinned());
}

#[test]
fn closing_one_opening_ends_its_waits_while_another_stays() {
    let _other = open();
    close_under_waiting_threads(open());
}

#[test]
fn destroying_a_completion_queue_ends_the_wait_on_it() {
    let nic = open();
    let cq = vip::create_cq(nic.handle(), 1).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| vip::cq_wait(cq, Timeout::Infinite));
        thread::sleep(Duration::from_millis(5));
        vip::destroy_cq(cq).unwrap();
        assert_eq!(waiting.join().unwrap(), Err(VipError::InvalidParameter));
    });
}

#[test]
fn disconnecting_ends_a_wait_with_a_flushed_descriptor() {
    let (_client, server) = pair();
    server.vi.post_recv(server.room(8)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.vi.recv_wait(Timeout::Infinite).unwrap().unwrap());
        thread::sleep(Duration::from_millis(5));
        server.vi.disconnect().unwrap();
        assert!(waiting.join().unwrap().status.is_flushed());
    });
}
