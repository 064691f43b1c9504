//! Completion queues that are resized during use, and a stress test with connections and handlers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Endpoint, TIMEOUT, WAIT, connect, open_as, wait_until};
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

/// Resizes a completion queue to up to `limit` entries, again and again.
fn resize_until(stop: &AtomicBool, cq: &CompletionQueue, limit: u64) {
    let mut rng = Rng(0x5EED);
    while !stop.load(Ordering::Relaxed) {
        cq.resize(1 + rng.below(limit)).unwrap();
        thread::yield_now();
    }
}

/// Clients, and servers whose receive queues use one completion queue.
struct Connections {
    cq: CompletionQueue,
    clients: Vec<Endpoint>,
    servers: Vec<Endpoint>,
}

fn connections(count: usize) -> Connections {
    let nic = open_as(|config| config.limits.max_descriptors_per_queue = 16);
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
        scope.spawn(|| resize_until(&stop, &pairs.cq, 200));
        let mut rng = Rng(0xD1CE);
        let mut sent = 0;
        while sent < MESSAGES {
            // A few at a time, on VIs in a random order.
            let order: Vec<usize> = (0..1 + rng.below(8))
                .map(|_| rng.below(3) as usize)
                .collect();
            for &vi in &order {
                pairs.servers[vi].post_receives(1, 8);
            }
            for &vi in &order {
                pairs.clients[vi].send_bytes(&[]);
            }
            for &vi in &order {
                let (entry, server) = (pairs.cq.wait(WAIT).unwrap(), &pairs.servers[vi].vi);
                assert_eq!(entry.vi, server.handle(), "after {sent}");
                server.recv_done().unwrap().unwrap().ok().unwrap();
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
        let arrived = end.vi.recv_done().unwrap().expect("its descriptor");
        let arrived = arrived.ok().unwrap();
        end.vi.post_recv(arrived.descriptor).unwrap();
        collected.fetch_add(1, Ordering::Release);
    };
    let (sender, notified) = channel();
    for end in &pairs.servers {
        end.post_receives(12, 8);
    }
    thread::scope(|scope| {
        scope.spawn(|| resize_until(&stop, &pairs.cq, 300));
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
            pairs.clients[rng.below(4) as usize].send_bytes(&[]);
        }
        wait_until("all entries", || {
            collected.load(Ordering::Acquire) >= MESSAGES
        });
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
        let nic = || open_as(|config| config.limits.max_descriptors_per_queue = 16);
        let client = Endpoint::with(|vi| vi);
        let server = Endpoint::on(nic(), |vi| vi.send_cq(cq));
        connect(&client, &server);
        server.post_receives(8, 8);
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
    let nic = open_as(|config| config.limits.max_descriptors_per_queue = 16);
    let cq = nic.create_cq(1).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| resize_until(&stop, &cq, 500));
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
