//! Completion queues that change their size while they are used, and a load of everything at once.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{End, PATIENCE, WAIT, connect, open_as};
use vipl::{Completed, CompletionQueue, CqEntry, Timeout, Vi, ViHandle, VipError, provider as vip};

/// Numbers without a pattern; the same ones for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn sizes_are_checked_and_what_is_in_the_queue_stays() {
    let nic = open_as(|config| {
        config.max_cq_entries = 100;
        config.max_descriptors_per_queue = 8;
    });
    let cq = nic.create_cq(1).unwrap();
    assert_eq!(cq.resize(0), Err(VipError::InvalidParameter));
    assert_eq!(cq.resize(101), Err(VipError::ErrorResource));
    assert_eq!(cq.resize(u64::MAX), Err(VipError::ErrorResource));
    assert_eq!(cq.resize(100), Ok(()));
    let end = End::on(nic.clone(), |vi| vi.recv_cq(&cq));
    for _ in 0..8 {
        end.vi.post_recv(end.room(8)).unwrap();
    }
    // Smaller than what it holds, before and after the completions.
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
        "gone"
    );
}

/// Clients, and servers whose receive queues report to one completion queue.
struct Crowd {
    cq: CompletionQueue,
    clients: Vec<End>,
    servers: Vec<End>,
}

fn crowd(count: usize) -> Crowd {
    let nic = open_as(|config| config.max_descriptors_per_queue = 16);
    let cq = nic.create_cq(1).unwrap();
    let ends = |on: bool| -> Vec<End> {
        (0..count)
            .map(|_| End::on(nic.clone(), |vi| if on { vi.recv_cq(&cq) } else { vi }))
            .collect()
    };
    let (clients, servers) = (ends(false), ends(true));
    for (client, server) in clients.iter().zip(&servers) {
        connect(client, server);
    }
    Crowd {
        cq,
        clients,
        servers,
    }
}

#[test]
fn entries_keep_their_order_while_the_queue_changes_its_size() {
    const MESSAGES: usize = 2000;
    let crowd = crowd(3);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(0x5EED);
            while !stop.load(Ordering::Relaxed) {
                crowd.cq.resize(1 + dice.below(200)).unwrap();
                thread::yield_now();
            }
        });
        let mut dice = Dice(0xD1CE);
        let mut sent = 0;
        while sent < MESSAGES {
            // A few at a time, on VIs in an order without a pattern.
            let order: Vec<usize> = (0..1 + dice.below(8))
                .map(|_| dice.below(3) as usize)
                .collect();
            for &vi in &order {
                crowd.servers[vi]
                    .vi
                    .post_recv(crowd.servers[vi].empty(0))
                    .unwrap();
            }
            for &vi in &order {
                crowd.clients[vi]
                    .send(crowd.clients[vi].empty(0))
                    .ok()
                    .unwrap();
            }
            for &vi in &order {
                let entry = crowd.cq.wait(WAIT).unwrap();
                assert_eq!(entry.vi, crowd.servers[vi].vi.handle(), "after {sent}");
                crowd.servers[vi]
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
    assert_eq!(crowd.cq.done(), Err(VipError::NotDone));
}

#[test]
fn no_entry_is_lost_or_doubled_however_it_is_collected() {
    const MESSAGES: u64 = 3000;
    let crowd = crowd(4);
    let by_handle: HashMap<ViHandle, &End> = crowd
        .servers
        .iter()
        .map(|end| (end.vi.handle(), end))
        .collect();
    let collected = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    // Each entry stands for one descriptor that is there to be taken, and it is posted again.
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
    for end in &crowd.servers {
        for _ in 0..12 {
            end.vi.post_recv(end.room(8)).unwrap();
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(0xABCD);
            while !stop.load(Ordering::Relaxed) {
                crowd.cq.resize(1 + dice.below(300)).unwrap();
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match crowd.cq.done() {
                    Ok(entry) => collect(entry),
                    Err(error) => assert_eq!(error, VipError::NotDone),
                }
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                match crowd.cq.wait(Timeout::After(Duration::from_millis(5))) {
                    Ok(entry) => collect(entry),
                    Err(error) => assert_eq!(error, VipError::Timeout),
                }
            }
        });
        let (queue, stop, collect) = (&crowd.cq, &stop, &collect);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let sender: Sender<CqEntry> = sender.clone();
                let tell = move |entry| {
                    // Not heard any more at the end.
                    let _ = sender.send(entry);
                };
                queue.notify(tell).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(entry) = notified.recv_timeout(Duration::from_millis(1)) {
                        collect(entry);
                        break;
                    }
                }
            }
        });
        let mut dice = Dice(0x1234);
        let deadline = Instant::now() + PATIENCE;
        for sent in 0..MESSAGES {
            // No more under way than one VI has descriptors.
            while sent >= collected.load(Ordering::Acquire) + 12 {
                assert!(Instant::now() < deadline, "{sent} are sent");
                thread::yield_now();
            }
            let client = &crowd.clients[dice.below(4) as usize];
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
    assert_eq!(crowd.cq.done(), Err(VipError::NotDone), "none twice");
    for end in &crowd.servers {
        assert_eq!(end.vi.recv_done().unwrap_err(), VipError::NotDone);
        assert!(end.errors.none());
    }
}

/// What a server has been told: each number once and in order.
#[derive(Default)]
struct Ledger {
    next: Mutex<u64>,
}

/// Takes messages by notify handlers until the connection ends.
fn listen(vi: Arc<Vi>, ledger: Arc<Ledger>) {
    let again = Arc::clone(&vi);
    let handler = move |found: Option<Completed>| match found {
        Some(found) if found.status.is_ok() => {
            let number = u64::from_le_bytes(found.first_bytes().try_into().unwrap());
            // Before it is counted: what is counted may be sent again. Fails where the NIC was closed.
            let _ = vi.post_recv(found.descriptor);
            let mut next = ledger.next.lock().unwrap();
            assert_eq!(number, *next);
            *next += 1;
            drop(next);
            listen(vi, ledger);
        }
        found => {
            assert!(found.is_none_or(|found| found.status.is_flushed()));
        }
    };
    // The NIC may be closed by now.
    if let Err(error) = again.recv_notify(handler) {
        assert_eq!(error, VipError::InvalidParameter);
    }
}

/// One client and one server that connect, exchange messages and end, again and again, each time in another way.
fn one_pair(seed: u64, rounds: usize, cq: &CompletionQueue) {
    let mut dice = Dice(seed);
    for round in 0..rounds {
        let nic = || open_as(|config| config.max_descriptors_per_queue = 16);
        let client = End::with(|vi| vi);
        let server = End::on(nic(), |vi| vi.send_cq(cq));
        connect(&client, &server);
        for _ in 0..8 {
            server.vi.post_recv(server.room(8)).unwrap();
        }
        let End {
            vi,
            nic,
            ptag,
            errors,
        } = server;
        let vi = Arc::new(vi);
        let ledger = Arc::new(Ledger::default());
        listen(Arc::clone(&vi), Arc::clone(&ledger));
        let messages = dice.below(40);
        let deadline = Instant::now() + PATIENCE;
        for number in 0..messages {
            while number >= *ledger.next.lock().unwrap() + 8 {
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
        let told = |count: u64| {
            while *ledger.next.lock().unwrap() < count {
                assert!(Instant::now() < deadline, "seed {seed:#x}, round {round}");
                thread::yield_now();
            }
        };
        match dice.below(4) {
            // Everything arrives, and the client ends it.
            0 => {
                told(messages);
                client.vi.disconnect().unwrap();
            }
            // The server ends it, under the messages.
            1 => vi.disconnect().unwrap(),
            // The opening goes, with the VI and its handlers.
            2 => {
                vip::close_nic(nic.handle()).unwrap();
                assert!(Arc::strong_count(&ledger) <= 1, "no handler is left");
            }
            // The client vanishes; the handlers own the VI until it is flushed.
            _ => drop(client),
        }
        let (rest, owners) = (Arc::downgrade(&vi), Arc::downgrade(&ledger));
        drop((vi, nic, ptag, errors, ledger));
        while owners.strong_count() > 0 {
            assert!(
                Instant::now() < deadline,
                "seed {seed:#x}, round {round}: a handler is left"
            );
            // A handler may have posted again after the connection had ended.
            if let Some(vi) = rest.upgrade() {
                // Fails where the NIC was closed.
                let _ = vi.disconnect();
            }
            thread::yield_now();
        }
    }
}

#[test]
fn many_pairs_live_and_end_under_handlers_while_their_completion_queue_changes() {
    const PAIRS: u64 = 6;
    const ROUNDS: usize = 25;
    let nic = open_as(|config| config.max_descriptors_per_queue = 16);
    let cq = nic.create_cq(1).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut dice = Dice(0xFEED);
            while !stop.load(Ordering::Relaxed) {
                cq.resize(1 + dice.below(500)).unwrap();
                thread::yield_now();
            }
        });
        let cq = &cq;
        let pairs: Vec<_> = (1..=PAIRS)
            .map(|pair| {
                scope.spawn(move || one_pair(pair.wrapping_mul(0x9E37_79B9_7F4A_7C15), ROUNDS, cq))
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
