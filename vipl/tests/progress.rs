//! Progress of a NIC: polling by the program's calls, by the NIC's poll thread, and by a pinned thread; waits sleep.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, connect, is_child, open, open_as, pair, pair_on,
    retry_no_match, unique_discriminator,
};
use pmd::config::{NicConfig, Progress};
use vipl::{
    ErrorCode, Nic, Operation, RdmaAccess, Result, Timeout, ViState, VipError, provider as vip,
};

/// Opens a NIC that a pinned thread of this process polls continuously.
fn open_pinned() -> Nic {
    open_as(|config| config.progress = Progress::Pinned)
}

/// Processor time of this process.
fn processor_time() -> Duration {
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

/// Spins for this time, without calls of the library.
fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Makes each wait call with a timeout of `pause`; returns the processor time.
fn wait_until_timeout(nic: &Nic, pause: Duration) -> Duration {
    let cq = nic.create_cq(1).unwrap();
    let end = Endpoint::on(nic.clone(), |vi| vi);
    let peer = Endpoint::on(nic.clone(), |vi| vi);
    connect(&end, &peer);
    end.vi.post_recv(end.descriptor(8)).unwrap();
    let address = nic.local_address(&unique_discriminator()).unwrap();
    let limit = Timeout::After(pause);
    let waits: [&dyn Fn() -> Result<()>; 3] = [
        &|| end.vi.recv_wait(limit).map(drop),
        &|| cq.wait(limit).map(drop),
        &|| nic.connect_wait(&address, limit).map(drop),
    ];
    let before = processor_time();
    for wait in waits {
        let begun = Instant::now();
        assert_eq!(wait(), Err(VipError::Timeout));
        let waited = begun.elapsed();
        assert!(waited >= pause, "returned early: {waited:?}");
        assert!(waited < pause + TIMEOUT / 2, "returned late: {waited:?}");
    }
    processor_time() - before
}

#[test]
fn waits_sleep() {
    // A separate process: processor time is counted per process.
    if !is_child() {
        SecondProcess::start("waits_sleep").join();
        return;
    }
    let pause = Duration::from_millis(500);
    let used = wait_until_timeout(&open(), pause);
    assert!(
        used < pause * 3 / 5,
        "{used:?} of processor time in three times {pause:?}"
    );
}

#[test]
fn idle_nic_sleeps() {
    if !is_child() {
        SecondProcess::start("idle_nic_sleeps").join();
        return;
    }
    let (client, server) = pair();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    client.send(client.message(b"busy")).ok().unwrap();
    let before = processor_time();
    let pause = Duration::from_millis(500);
    thread::sleep(pause);
    let used = processor_time() - before;
    assert!(used < pause / 5, "{used:?} of processor time in {pause:?}");
}

#[test]
fn infinite_wait_returns_on_completion() {
    let (client, server) = pair_on(open(), open_as(|config| config.spin_us = 0));
    for message in 0..50_u64 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| server.vi.recv_wait(Timeout::Infinite).unwrap());
            if message % 2 == 0 {
                // Long enough for the wait to sleep; in the other rounds the message may arrive before.
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

/// Sends numbered messages to a server that alternates between calls and pauses.
fn send_to_intermittent_server(client: &Endpoint, server: &Endpoint, messages: u64) {
    const CREDITS: u64 = 16;
    for _ in 0..CREDITS {
        server.vi.post_recv(server.descriptor(8)).unwrap();
    }
    let received = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut spare = vec![client.descriptor(8), client.descriptor(8)];
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
        let deadline = Instant::now() + TIMEOUT;
        let mut next = 0;
        while next < messages {
            // From no pause to several times `takeover_us`, in a pseudo-random order.
            compute(Duration::from_micros(next * 2_654_435_761 % 400));
            for _ in 0..next % 7 {
                match server.vi.recv_done() {
                    Ok(arrived) => {
                        let arrived = arrived.unwrap().ok().unwrap();
                        assert_eq!(
                            arrived.first_bytes(),
                            next.to_le_bytes(),
                            "no message lost or duplicated"
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
        "no further message"
    );
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn poller_handover_loses_and_duplicates_no_message() {
    let quick = |config: &mut NicConfig| {
        config.takeover_us = 50;
        config.spin_us = 20;
    };
    let (client, server) = pair_on(open(), open_as(quick));
    send_to_intermittent_server(&client, &server, 3000);
}

#[test]
fn send_without_further_calls_is_transmitted() {
    // The poll thread of its NIC sleeps on the port when it posts.
    let quick = |config: &mut NicConfig| {
        config.takeover_us = 10;
        config.spin_us = 0;
    };
    let (client, server) = pair_on(open_as(quick), open());
    for message in 0..200_u64 {
        server.vi.post_recv(server.descriptor(8)).unwrap();
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
fn send_is_transmitted_while_another_thread_sleeps() {
    // No takeover for ten seconds: an unattended doorbell fails the test.
    let slow = |config: &mut NicConfig| {
        config.takeover_us = 10_000_000;
        config.spin_us = 5;
    };
    let (client, server) = pair_on(open_as(slow), open());
    client.vi.post_recv(client.descriptor(8)).unwrap();
    let begun = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| client.recv().ok().unwrap());
        for message in 0..2000_u64 {
            server.vi.post_recv(server.descriptor(8)).unwrap();
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
    assert!(took < TIMEOUT / 3, "a send waited for a takeover: {took:?}");
}

#[test]
fn sends_above_the_port_capacity_are_transmitted_during_a_wait() {
    // The best of three: a thread may be descheduled.
    let took = (0..3).map(|_| time_of_four_rings()).min();
    assert!(
        took.unwrap() < Duration::from_secs(2),
        "waited for housekeeping instead of ring space: {took:?}"
    );
}

/// Time to send four times the capacity of a ring to a slow peer; ring space is freed without a wake-up.
fn time_of_four_rings() -> Duration {
    const MESSAGES: usize = 32;
    const BYTES: usize = 64 * 1024;
    let (client, server) = pair_on(open(), open_as(|config| config.takeover_us = 1003));
    for _ in 0..MESSAGES {
        server.vi.post_recv(server.descriptor(BYTES)).unwrap();
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
fn pinned_nic_serves_polling_waiting_and_inactive_programs() {
    let (client, server) = pair_on(open_pinned(), open());
    send_to_intermittent_server(&client, &server, 300);
    let (client, server) = (
        Endpoint::on(open(), |vi| vi),
        Endpoint::on(open_pinned(), |vi| vi.rdma_write(true)),
    );
    connect(&client, &server);
    send_to_intermittent_server(&client, &server, 300);
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
    let deadline = Instant::now() + TIMEOUT;
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
    let used = wait_until_timeout(&nic, pause);
    // One thread polls continuously; all others sleep.
    let passed = begun.elapsed();
    assert!(
        used < passed + passed / 5,
        "{used:?} of processor time in {passed:?}"
    );
}

#[test]
fn unavailable_core_is_refused() {
    let config = common::config(|config| {
        config.progress = Progress::Pinned;
        config.core = Some(100_000);
    });
    assert_eq!(
        Nic::open_with(&config).unwrap_err(),
        VipError::ErrorResource
    );
    let message = vip::last_error().unwrap();
    assert!(
        message.contains("core") && message.contains("100000"),
        "{message}"
    );
    // The failed open leaves nothing behind: the same NIC opens on an available core.
    drop(open_pinned());
}

#[test]
fn killed_peer_is_detected_while_a_pinned_nic_is_busy() {
    const NAME: &[u8] = b"progress-killed";
    if is_child() {
        let victim = Endpoint::new();
        let own = victim.nic.local_address(b"victim").unwrap();
        let address = victim.nic.local_address(NAME).unwrap();
        retry_no_match(|| victim.vi.connect(&own, &address, WAIT)).unwrap();
        loop {
            thread::park();
        }
    }
    let (client, server) = pair_on(open_pinned(), open_pinned());
    let survivor = Endpoint::on(open_pinned(), |vi| vi);
    let address = survivor.nic.local_address(NAME).unwrap();
    let mut victim = SecondProcess::start("killed_peer_is_detected_while_a_pinned_nic_is_busy");
    survivor
        .nic
        .connect_wait(&address, WAIT)
        .unwrap()
        .accept(&survivor.vi)
        .unwrap();
    victim.kill();
    let deadline = Instant::now() + TIMEOUT;
    let mut send = client.message(b"traffic!");
    let mut receive = server.descriptor(8);
    while survivor.vi.state().unwrap() != ViState::Error {
        assert!(Instant::now() < deadline, "the killed peer is not detected");
        server.vi.post_recv(receive).unwrap();
        send = client.send(send).ok().unwrap().descriptor;
        receive = server.recv().ok().unwrap().descriptor;
    }
    assert_eq!(survivor.errors.next_of(&survivor.vi), ErrorCode::ConnLost);
}

/// Closes a NIC while threads are in each kind of wait call.
fn close_under_waiting_threads(nic: Nic) {
    let cq = nic.create_cq(1).unwrap();
    let (waiting, peer) = (Endpoint::on(nic.clone(), |vi| vi), Endpoint::new());
    connect(&waiting, &peer);
    waiting.vi.post_recv(waiting.descriptor(8)).unwrap();
    let client = Endpoint::on(nic.clone(), |vi| vi);
    let listener = Endpoint::on(open_as(|config| config.takeover_us = 1004), |vi| vi);
    let unused = nic.local_address(&unique_discriminator()).unwrap();
    let remote = listener.nic.local_address(&unique_discriminator()).unwrap();
    thread::scope(|scope| {
        let request = scope.spawn(|| listener.nic.connect_wait(&remote, WAIT).unwrap());
        let waits: [Box<dyn FnOnce() -> Result<()> + Send>; 4] = [
            Box::new(|| waiting.vi.recv_wait(Timeout::Infinite).map(drop)),
            Box::new(|| cq.wait(Timeout::Infinite).map(drop)),
            Box::new(|| nic.connect_wait(&unused, Timeout::Infinite).map(drop)),
            Box::new(|| {
                let own = client.nic.local_address(b"client").unwrap();
                retry_no_match(|| client.vi.connect(&own, &remote, Timeout::Infinite)).map(drop)
            }),
        ];
        let threads = waits.map(|wait| scope.spawn(wait));
        // The request has arrived, so its thread waits for the response; the others sleep soon.
        let pending = request.join().unwrap();
        thread::sleep(Duration::from_millis(20));
        vip::close_nic(nic.handle()).unwrap();
        for (number, thread) in threads.into_iter().enumerate() {
            assert_eq!(
                thread.join().unwrap(),
                Err(VipError::InvalidParameter),
                "wait {number}"
            );
        }
        drop(pending);
    });
}

#[test]
fn closing_a_nic_ends_the_waits_on_it() {
    close_under_waiting_threads(open_as(|config| config.takeover_us = 1005));
    close_under_waiting_threads(open_pinned());
}

#[test]
fn closing_one_nic_handle_ends_only_its_waits() {
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
    server.vi.post_recv(server.descriptor(8)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.vi.recv_wait(Timeout::Infinite).unwrap().unwrap());
        thread::sleep(Duration::from_millis(5));
        server.vi.disconnect().unwrap();
        assert!(waiting.join().unwrap().status.is_flushed());
    });
}
