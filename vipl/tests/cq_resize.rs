//! Completion queues that are resized during use, and a stress test with connections and handlers.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{Endpoint, TIMEOUT, WAIT, connect, open_as};
use vipl::{Completed, CompletionQueue, CqEntry, Timeout, Vi, ViHandle, VipError, provider as vip};

/// Xorshift pseudo-random numbers.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn resize_checks_the_size_and_keeps_all_entries() {
    let nic = open_as(|config| {
        config.max_cq_entries = 100;
        config.max_descriptors_per_queue = 8;
    });
    let cq = nic.create_cq(1).unwrap();
    assert_eq!(cq.resize(0), Err(VipError::InvalidParameter));
    assert_eq!(cq.resize(101), Err(VipError::ErrorResource));
    assert_eq!(cq.resize(u64::MAX), Err(VipError::ErrorResource));
    assert_eq!(cq.resize(100), Ok(()));
    let end = Endpoint::on(nic.clone(), |vi| vi.recv_cq(&cq));
    for _ in 0..8 {
        end.vi.post_recv(end.descriptor(8)).unwrap();
    }
    // Smaller than the number of entries, before and after the completions.
    assert_eq!(cq.resize(1), Ok(()));
    end.vi.disconnect().unwrap();
    for entries in [1, 100, 1, 7] {
        assert_eq!(cq.resize(entries), Ok(()));
    }
    for _ in 0..8 {
        let entry = cq.done().unwrap();
        assert_eq!((entry.vi, entry.recv_queue), (end.vi.handle(), true));
        assert!(end.vi.recv_done().unwrap().unwrap().status.is_flushed());
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
    let handle = cq.handle();
    drop((end, cq));
    assert_eq!(
        vip::resize_cq(handle, 4),
        Err(VipError::InvalidParameter),
        "destroyed"
    );
}

/// Clients, and servers whose receive queues use one completion queue.
struct Connections {
    cq: CompletionQueue,
    clients: Vec<Endpoint>,
    servers: Vec<Endpoint>,
}

fn connections(count: usize) -> Connections {
    let nic = open_as(|config| config.max_descriptors_per_queue = 16);
    let cq = nic.create_cq(1).unwrap();
    let ends = |with_cq: bool| -> Vec<Endpoint> {
        (0..count)
            .map(|_| Endpoint::on(nic.clone(), |vi| if with_cq { vi.recv_cq(&cq) } else { vi }))
            .collect()
    };
    let (clients, servers) = (ends(false), ends(true));
    for (client, server) in clients.iter().zip(&servers) {
        connect(client, server);
    }
    Connections {
        cq,
        clients,
        servers,
    }
}

#[test]
fn entries_keep_their_order_during_resizes() {
    const MESSAGES: usize = 2000;
    let pairs = connections(3);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(0x5EED);
            while !stop.load(Ordering::Relaxed) {
                pairs.cq.resize(1 + rng.below(200)).unwrap();
                thread::yield_now();
            }
        });
        let mut rng = Rng(0xD1CE);
        let mut sent = 0;
        while sent < MESSAGES {
            // A few at a time, on VIs in a random order.
            let order: Vec<usize> = (0..1 + rng.below(8))
                .map(|_| rng.below(3) as usize)
                .collect();
            for &vi in &order {
                pairs.servers[vi]
                    .vi
                    .post_recv(pairs.servers[vi].empty(0))
                    .unwrap();
            }
            for &vi in &order {
                pairs.clients[vi]
                    .send(pairs.clients[vi].empty(0))
                    .ok()
                    .unwrap();
            }
            for &vi in &order {
                let entry = pairs.cq.wait(WAIT).unwrap();
                assert_eq!(entry.vi, pairs.servers[vi].vi.handle(), "after {sent}");
                pairs.servers[vi]
                    .vi
                    .recv_done()
                    .unwrap()
                    .unwrap()
                    .ok()
                    .unwrap();
                sent += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(pairs.cq.done(), Err(VipError::NotDone));
}

#[test]
fn no_entry_is_lost_or_duplicated_by_any_way_of_collection() {
    const MESSAGES: u64 = 3000;
    let pairs = connections(4);
    let by_handle: HashMap<ViHandle, &Endpoint> = pairs
        .servers
        .iter()
        .map(|end| (end.vi.handle(), end))
        .collect();
    let collected = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    // Collects the descriptor of an entry and posts it again.
    let collect = |entry: CqEntry| {
        assert!(entry.recv_queue);
        let end = by_handle[&entry.vi];
        let arrived = end
            .vi
            .recv_done()
            .unwrap()
            .expect("its descriptor")
            .ok()
            .unwrap();
        end.vi.post_recv(arrived.descriptor).unwrap();
        collected.fetch_add(1, Ordering::Release);
    };
    let (sender, notified) = channel();
    for end in &pairs.servers {
        for _ in 0..12 {
            end.vi.post_recv(end.descriptor(8)).unwrap();
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(0xABCD);
            while !stop.load(Ordering::Relaxed) {
                pairs.cq.resize(1 + rng.below(300)).unwrap();
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match pairs.cq.done() {
                    Ok(entry) => collect(entry),
                    Err(error) => assert_eq!(error, VipError::NotDone),
                }
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match pairs.cq.wait(Timeout::After(Duration::from_millis(5))) {
                    Ok(entry) => collect(entry),
                    Err(error) => assert_eq!(error, VipError::Timeout),
                }
            }
        });
        let (queue, stop, collect) = (&pairs.cq, &stop, &collect);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let sender: Sender<CqEntry> = sender.clone();
                let report = move |entry| {
                    // Fails at the end of the test.
                    let _ = sender.send(entry);
                };
                queue.notify(report).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(entry) = notified.recv_timeout(Duration::from_millis(1)) {
                        collect(entry);
                        break;
                    }
                }
            }
        });
        let mut rng = Rng(0x1234);
        let deadline = Instant::now() + TIMEOUT;
        for sent in 0..MESSAGES {
            // At most as many messages in flight as one VI has descriptors.
            while sent >= collected.load(Ordering::Acquire) + 12 {
                assert!(Instant::now() < deadline, "{sent} messages are sent");
                thread::yield_now();
            }
            let client = &pairs.clients[rng.below(4) as usize];
            client.send(client.empty(0)).ok().unwrap();
        }
        while collected.load(Ordering::Acquire) < MESSAGES {
            assert!(
                Instant::now() < deadline,
                "{} of {MESSAGES} entries",
                collected.load(Ordering::Relaxed)
            );
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(pairs.cq.done(), Err(VipError::NotDone), "duplicate");
    for end in &pairs.servers {
        assert_eq!(end.vi.recv_done().unwrap_err(), VipError::NotDone);
        assert!(end.errors.none());
    }
}

/// The next expected message number of a server.
#[derive(Default)]
struct Received {
    next: Mutex<u64>,
}

/// Receives messages in notify handlers until the connection ends.
fn receive_in_handlers(vi: Arc<Vi>, received: Arc<Received>) {
    let again = Arc::clone(&vi);
    let handler = move |found: Option<Completed>| match found {
        Some(found) if found.status.is_ok() => {
            let number = u64::from_le_bytes(found.first_bytes().try_into().unwrap());
            // Before the count, which allows the next send. Fails if the NIC was closed.
            let _ = vi.post_recv(found.descriptor);
            let mut next = received.next.lock().unwrap();
            assert_eq!(number, *next);
            *next += 1;
            drop(next);
            receive_in_handlers(vi, received);
        }
        found => {
            assert!(found.is_none_or(|found| found.status.is_flushed()));
        }
    };
    // The NIC may already be closed.
    if let Err(error) = again.recv_notify(handler) {
        assert_eq!(error, VipError::InvalidParameter);
    }
}

/// Repeatedly connects a client and a server, sends messages, and ends the connection in a random way.
fn run_pair(seed: u64, rounds: usize, cq: &CompletionQueue) {
    let mut rng = Rng(seed);
    for round in 0..rounds {
        let nic = || open_as(|config| config.max_descriptors_per_queue = 16);
        let client = Endpoint::with(|vi| vi);
        let server = Endpoint::on(nic(), |vi| vi.send_cq(cq));
        connect(&client, &server);
        for _ in 0..8 {
            server.vi.post_recv(server.descriptor(8)).unwrap();
        }
        let Endpoint {
            vi,
            nic,
            ptag,
            errors,
        } = server;
        let vi = Arc::new(vi);
        let received = Arc::new(Received::default());
        receive_in_handlers(Arc::clone(&vi), Arc::clone(&received));
        let messages = rng.below(40);
        let deadline = Instant::now() + TIMEOUT;
        for number in 0..messages {
            while number >= *received.next.lock().unwrap() + 8 {
                assert!(
                    Instant::now() < deadline,
                    "seed {seed:#x}, round {round}: {number} sent"
                );
                thread::yield_now();
            }
            let sent = client.send(client.message(&number.to_le_bytes()));
            sent.ok()
                .unwrap_or_else(|sent| panic!("seed {seed:#x}: {}", sent.status));
        }
        let wait_for = |count: u64| {
            while *received.next.lock().unwrap() < count {
                assert!(Instant::now() < deadline, "seed {seed:#x}, round {round}");
                thread::yield_now();
            }
        };
        match rng.below(4) {
            // All messages arrive, and the client disconnects.
            0 => {
                wait_for(messages);
                client.vi.disconnect().unwrap();
            }
            // The server disconnects, with messages in flight.
            1 => vi.disconnect().unwrap(),
            // The NIC handle is closed, with the VI and its handlers.
            2 => {
                vip::close_nic(nic.handle()).unwrap();
                assert!(Arc::strong_count(&received) <= 1, "no handler is left");
            }
            // The client is dropped; the handlers own the VI until it is flushed.
            _ => drop(client),
        }
        let (rest, owners) = (Arc::downgrade(&vi), Arc::downgrade(&received));
        drop((vi, nic, ptag, errors, received));
        while owners.strong_count() > 0 {
            assert!(
                Instant::now() < deadline,
                "seed {seed:#x}, round {round}: a handler is left"
            );
            // A handler may have posted again after the connection had ended.
            if let Some(vi) = rest.upgrade() {
                // Fails if the NIC was closed.
                let _ = vi.disconnect();
            }
            thread::yield_now();
        }
    }
}

#[test]
fn connections_with_handlers_survive_concurrent_resizes() {
    const PAIRS: u64 = 6;
    const ROUNDS: usize = 25;
    let nic = open_as(|config| config.max_descriptors_per_queue = 16);
    let cq = nic.create_cq(1).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(0xFEED);
            while !stop.load(Ordering::Relaxed) {
                cq.resize(1 + rng.below(500)).unwrap();
                thread::yield_now();
            }
        });
        let cq = &cq;
        let pairs: Vec<_> = (1..=PAIRS)
            .map(|pair| {
                scope.spawn(move || run_pair(pair.wrapping_mul(0x9E37_79B9_7F4A_7C15), ROUNDS, cq))
            })
            .collect();
        let outcomes: Vec<_> = pairs.into_iter().map(|pair| pair.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(
            outcomes.iter().all(|outcome| outcome.is_ok()),
            "a pair failed"
        );
    });
}
