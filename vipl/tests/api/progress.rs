//! Progress of a NIC: polling by the program's calls, by the NIC's poll thread, and by a pinned thread; waits sleep.

use crate::common;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    Endpoint, SecondProcess, TIMEOUT, WAIT, WRITABLE, connect, deliver, is_child, open, open_as,
    pair, pair_on, processor_time, retry_no_match, unique_discriminator, wait_until,
};
use pmd::config::{NicConfig, Progress};
use vipl::{Completed, ErrorCode, Nic, Result, Timeout, ViState, VipError, provider as vip};

/// Opens a NIC that a pinned thread of this process polls continuously.
fn open_pinned() -> Nic {
    open_as(|config| config.progress = Progress::pinned(None))
}

/// Spins for this time, without calls of the library.
fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Makes each wait call with a timeout of `pause`.
fn wait_until_timeout(end: &Endpoint, pause: Duration) {
    let cq = end.nic.create_cq(1).unwrap();
    let address = end.address(&unique_discriminator());
    let limit = Timeout::After(pause);
    let waits: [&dyn Fn() -> Result<()>; 3] = [
        &|| end.vi.recv_wait(limit).map(drop),
        &|| cq.wait(limit).map(drop),
        &|| end.nic.connect_wait(&address, limit).map(drop),
    ];
    for wait in waits {
        let begun = Instant::now();
        assert_eq!(wait(), Err(VipError::Timeout));
        let waited = begun.elapsed();
        assert!(waited >= pause, "returned early: {waited:?}");
        assert!(waited < pause + TIMEOUT / 2, "returned late: {waited:?}");
    }
}

/// An idle NIC, its notify threads, and threads in wait calls use no processor time; only the thread of a pinned NIC
/// polls.
#[test]
fn idle_nic_notify_threads_and_waits_sleep() {
    // A separate process: processor time is counted per process.
    if !is_child() {
        SecondProcess::start("idle_nic_notify_threads_and_waits_sleep").join();
        return;
    }
    let pause = Duration::from_millis(500);
    for progress in [Progress::default(), Progress::pinned(None)] {
        let nic = || open_as(|config| config.progress = progress.clone());
        let (client, server) = pair_on(nic(), nic());
        deliver(&client, &server, b"busy");
        let cq = server.nic.create_cq(1).unwrap();
        for end in [&client, &server] {
            end.post_receives(1, 8);
            end.vi.recv_notify(|_| ()).unwrap();
        }
        cq.notify(|_| ()).unwrap();
        // What the threads did before is not measured.
        thread::sleep(Duration::from_millis(20));
        let cases: [(&str, &dyn Fn()); 2] = [
            ("idle", &|| thread::sleep(pause)),
            ("waiting", &|| wait_until_timeout(&client, pause)),
        ];
        for (what, act) in cases {
            let (before, begun) = (processor_time(), Instant::now());
            act();
            // The pause may be longer if this thread is descheduled.
            let (used, passed) = (processor_time() - before, begun.elapsed());
            let allowed = match &progress {
                Progress::Inline(_) => passed / 5,
                Progress::Pinned(_) => passed * 6 / 5,
            };
            assert!(
                used < allowed,
                "{what}: {used:?} of processor time in {passed:?}"
            );
        }
    }
}

#[test]
fn infinite_wait_returns_on_completion() {
    let (client, server) = pair_on(open(), open_as(|config| config.spin_us = Some(0)));
    for message in 0..50_u64 {
        server.post_receives(1, 8);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| server.vi.recv_wait(Timeout::Infinite).unwrap());
            if message % 2 == 0 {
                // Long enough for the wait to sleep; in the other rounds the message may arrive before.
                thread::sleep(Duration::from_millis(2));
            }
            client.send_bytes(&message.to_le_bytes());
            let arrived = waiting.join().unwrap().unwrap().ok().unwrap();
            assert_eq!(arrived.first_bytes(), message.to_le_bytes());
        });
    }
}

/// Sends numbered messages to a server that alternates between calls and pauses.
fn send_to_intermittent_server(client: &Endpoint, server: &Endpoint, messages: u64) {
    const CREDITS: u64 = 16;
    server.post_receives(CREDITS as usize, 8);
    let received = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in 0..messages {
                while message >= received.load(Ordering::Acquire) + CREDITS {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::yield_now();
                }
                client.send_bytes(&message.to_le_bytes());
            }
        });
        let deadline = Instant::now() + TIMEOUT;
        let take = |next: &mut u64, arrived: Completed| {
            let arrived = arrived.ok().unwrap();
            assert_eq!(
                arrived.first_bytes(),
                next.to_le_bytes(),
                "lost or repeated"
            );
            server.vi.post_recv(arrived.descriptor).unwrap();
            *next += 1;
            received.store(*next, Ordering::Release);
        };
        let mut next = 0;
        while next < messages {
            // From no pause to several times `takeover_us`, in a pseudo-random order.
            compute(Duration::from_micros(next * 2_654_435_761 % 400));
            for _ in 0..next % 7 {
                match server.vi.recv_done() {
                    Ok(arrived) => take(&mut next, arrived.unwrap()),
                    Err(error) => assert_eq!(error, VipError::NotDone),
                }
            }
            if Instant::now() > deadline {
                failed.store(true, Ordering::Relaxed);
                panic!("{next} of {messages} messages arrived");
            }
            if next % 7 == 0 && next < messages {
                take(&mut next, server.recv());
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
        config.progress = Progress::inline(50);
        config.spin_us = Some(20);
    };
    let (client, server) = pair_on(open(), open_as(quick));
    send_to_intermittent_server(&client, &server, 3000);
}

#[test]
fn send_without_further_calls_is_transmitted() {
    // The poll thread of its NIC sleeps on the port when it posts.
    let quick = |config: &mut NicConfig| {
        config.progress = Progress::inline(10);
        config.spin_us = Some(0);
    };
    let (client, server) = pair_on(open_as(quick), open());
    for message in 0..200_u64 {
        server.post_receives(1, 8);
        compute(Duration::from_micros(message * 7 % 150));
        client.post_message(&message.to_le_bytes());
        server.expect_message(&message.to_le_bytes());
        client.expect_sent(1);
    }
}

#[test]
fn send_is_transmitted_while_another_thread_sleeps() {
    // No takeover for ten seconds: an unattended doorbell fails the test.
    let slow = |config: &mut NicConfig| {
        config.progress = Progress::inline(10_000_000);
        config.spin_us = Some(5);
    };
    let (client, server) = pair_on(open_as(slow), open());
    client.post_receives(1, 8);
    let begun = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| client.recv().ok().unwrap());
        for message in 0..2000_u64 {
            server.post_receives(1, 8);
            compute(Duration::from_nanos(message * 7919 % 20_000));
            client.post_message(&message.to_le_bytes());
            // No other call on the sender's NIC until it has arrived.
            server.expect_message(&message.to_le_bytes());
            client.expect_sent(1);
        }
        server.send_bytes(b"the end!");
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
    let (client, server) = pair_on(
        open(),
        open_as(|config| config.progress = Progress::inline(1006)),
    );
    server.post_receives(MESSAGES, BYTES);
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in 0..MESSAGES {
                client.post_message(&[message as u8; BYTES]);
            }
            client.expect_sent(MESSAGES);
        });
        for message in 0..MESSAGES {
            server.expect_message(&[message as u8; BYTES]);
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
        Endpoint::on(open_as(common::use_frames), |vi| vi),
        Endpoint::on(open_pinned(), |vi| vi.rdma_write(true)),
    );
    connect(&client, &server);
    send_to_intermittent_server(&client, &server, 300);
    let memory = server.region(64, WRITABLE);
    let write = client.write_of(&7_u64.to_ne_bytes(), memory.remote_buffer());
    client.vi.post_send(write).unwrap();
    wait_until("the word is written", || memory.load_u64(0) == 7);
}

#[test]
fn unavailable_core_is_refused() {
    let config = common::config(|config| {
        config.progress = Progress::pinned(Some(100_000));
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
        victim.connect_to(NAME);
        loop {
            thread::park();
        }
    }
    let (client, server) = pair_on(open_pinned(), open_pinned());
    let survivor = Endpoint::on(open_pinned(), |vi| vi);
    let mut victim = SecondProcess::start("killed_peer_is_detected_while_a_pinned_nic_is_busy");
    survivor.accept(&survivor.address(NAME));
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
    survivor.expect_errors(&[ErrorCode::ConnLost]);
}

/// Closes a NIC while threads are in each kind of wait call.
fn close_under_waiting_threads(nic: Nic) {
    let cq = nic.create_cq(1).unwrap();
    let (waiting, peer) = (Endpoint::on(nic.clone(), |vi| vi), Endpoint::new());
    connect(&waiting, &peer);
    waiting.post_receives(1, 8);
    let client = Endpoint::on(nic.clone(), |vi| vi);
    let listener = Endpoint::on(
        open_as(|config| config.progress = Progress::inline(1004)),
        |vi| vi,
    );
    let unused = client.address(&unique_discriminator());
    let remote = listener.address(&unique_discriminator());
    thread::scope(|scope| {
        let request = scope.spawn(|| listener.nic.connect_wait(&remote, WAIT).unwrap());
        let waits: [Box<dyn FnOnce() -> Result<()> + Send>; 4] = [
            Box::new(|| waiting.vi.recv_wait(Timeout::Infinite).map(drop)),
            Box::new(|| cq.wait(Timeout::Infinite).map(drop)),
            Box::new(|| nic.connect_wait(&unused, Timeout::Infinite).map(drop)),
            Box::new(|| {
                let own = client.address(b"client");
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
    close_under_waiting_threads(open_as(|config| config.progress = Progress::inline(1005)));
    close_under_waiting_threads(open_pinned());
    // Another handle keeps the NIC open.
    let _other = open();
    close_under_waiting_threads(open());
}

#[test]
fn destroying_a_completion_queue_or_disconnecting_ends_a_wait() {
    let (_client, server) = pair();
    let cq = vip::create_cq(server.nic.handle(), 1).unwrap();
    server.post_receives(1, 8);
    thread::scope(|scope| {
        let entry = scope.spawn(|| vip::cq_wait(cq, Timeout::Infinite));
        let receive = scope.spawn(|| server.vi.recv_wait(Timeout::Infinite).unwrap().unwrap());
        // Lets both sleep; the checks also hold if they do not yet.
        thread::sleep(Duration::from_millis(5));
        vip::destroy_cq(cq).unwrap();
        assert_eq!(entry.join().unwrap(), Err(VipError::InvalidParameter));
        server.vi.disconnect().unwrap();
        assert!(receive.join().unwrap().status.is_flushed());
    });
}
