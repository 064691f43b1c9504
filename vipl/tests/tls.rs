//! VI/TCP with TLS: everything goes as without it.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use common::tls::{Authority, FAR_YEAR, Files, counter, good, nic, vitcp_port};
use common::{End, WAIT, connect, open_as, pattern, persist, unique_discriminator};
use pmd::config::TlsConfig;
use vipl::{ErrorCode, Operation, RdmaAccess, ReliabilityLevel, ViBuilder};

const LEVELS: [ReliabilityLevel; 3] = [
    ReliabilityLevel::Unreliable,
    ReliabilityLevel::ReliableDelivery,
    ReliabilityLevel::ReliableReception,
];

/// Two connected VIs, the first of which asked.
fn ends(files: &Files, shape: impl Fn(ViBuilder) -> ViBuilder) -> (End, End) {
    let [near, far] = good(files, [1, 2]);
    let client = End::on(nic(files, 1, Some(&near)), &shape);
    let server = End::on(nic(files, 2, Some(&far)), &shape);
    connect(&client, &server);
    (client, server)
}

#[test]
fn messages_of_all_sizes_go_both_ways_at_every_level() {
    let sizes = [0, 1, 63, 4096, 16_384, 16_385, 50_000, 65_536];
    for level in LEVELS {
        let files = Files::new("levels");
        let (client, server) = ends(&files, |vi| vi.reliability(level));
        for (message, bytes) in sizes.into_iter().cycle().take(80).enumerate() {
            for (from, to) in [(&client, &server), (&server, &client)] {
                to.vi.post_recv(to.room(bytes.max(1))).unwrap();
                let sent = from.send(from.message(&pattern(message, bytes)));
                assert!(sent.status.is_ok(), "{level:?}: {:?}", sent.status);
                let arrived = to.recv().ok().unwrap();
                assert!(arrived.first_bytes() == pattern(message, bytes));
            }
        }
        client.vi.disconnect().unwrap();
        assert_eq!(server.errors.next_of(&server.vi), ErrorCode::ConnLost);
        assert_eq!(counter(&server.nic, "tls_cut"), 0, "an end in order");
        assert!(client.errors.none(), "{level:?}");
    }
}

#[test]
fn rdma_reaches_memory_as_without() {
    const BYTES: usize = 1 << 20;
    let files = Files::new("rdma");
    let shape = |vi: ViBuilder| {
        vi.rdma_write(true)
            .rdma_read(true)
            .max_transfer_bytes(BYTES as u64)
    };
    let (client, server) = ends(&files, shape);
    let access = RdmaAccess {
        write: true,
        read: true,
    };
    let memory = server.nic.create_rdma_region(BYTES, &server.ptag, access);
    let memory = memory.unwrap();
    for round in 0..3 {
        let bytes = pattern(round, BYTES);
        let mut write = client.message(&bytes);
        write.set_operation(Operation::RdmaWrite(memory.remote_buffer()));
        assert!(client.send(write).status.is_ok());
        let mut read = client.room(BYTES);
        read.set_operation(Operation::RdmaRead(memory.remote_buffer()));
        let read = client.send(read).ok().unwrap();
        assert!(read.first_bytes() == bytes, "{round}");
        let mut there = vec![0; BYTES];
        memory.read(0, &mut there);
        assert!(there == bytes, "{round}");
    }
    // A message of the greatest size, the other way.
    client.vi.post_recv(client.room(BYTES)).unwrap();
    assert!(
        server
            .send(server.message(&pattern(9, BYTES)))
            .status
            .is_ok()
    );
    assert!(client.recv().ok().unwrap().first_bytes() == pattern(9, BYTES));
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn many_small_messages_of_a_stream_arrive_in_order() {
    const MESSAGES: usize = 20_000;
    const WINDOW: usize = 256;
    let files = Files::new("stream");
    let (client, server) = ends(&files, |vi| vi);
    for _ in 0..2 * WINDOW {
        server.vi.post_recv(server.room(64)).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in 0..MESSAGES {
                let arrived = server.recv().ok().unwrap();
                assert!(
                    arrived.first_bytes() == pattern(message, message % 65),
                    "{message}"
                );
                server.vi.post_recv(arrived.descriptor).unwrap();
                // The sender is no further ahead than there are receives.
                if message % WINDOW == WINDOW - 1 {
                    assert!(server.send(server.message(b"go on")).status.is_ok());
                }
            }
        });
        for _ in 0..2 {
            client.vi.post_recv(client.room(8)).unwrap();
        }
        let mut posted = 0;
        for message in 0..MESSAGES {
            let bytes = pattern(message, message % 65);
            client.vi.post_send(client.message(&bytes)).unwrap();
            posted += 1;
            if message % WINDOW == WINDOW - 1 {
                for _ in 0..core::mem::take(&mut posted) {
                    let sent = client.vi.send_wait(WAIT).unwrap().unwrap();
                    assert!(sent.status.is_ok(), "{:?}", sent.status);
                }
                let told = client.recv().ok().unwrap();
                client.vi.post_recv(told.descriptor).unwrap();
            }
        }
    });
    assert!(client.errors.none() && server.errors.none());
}

/// A host between two others, which takes nothing from the first of them while its gate is shut.
struct Relay {
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Relay {
    /// Takes connections at the address of host 3, for host 2.
    fn start(files: &Files) -> Self {
        let gate = Arc::new((Mutex::new(true), Condvar::new()));
        let listener = TcpListener::bind((files.host(3), vitcp_port())).unwrap();
        let (to, open) = (files.host(2), Arc::clone(&gate));
        thread::spawn(move || {
            for near in listener.incoming() {
                let far = TcpStream::connect((to, vitcp_port())).unwrap();
                let open = Arc::clone(&open);
                thread::spawn(move || Self::pass(near.unwrap(), far, &open));
            }
        });
        Self { gate }
    }

    /// Passes on what both ends say; either may go at any time.
    fn pass(mut near: TcpStream, mut far: TcpStream, (lock, changed): &(Mutex<bool>, Condvar)) {
        let (mut back, mut from) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut back);
            let _ = back.shutdown(Shutdown::Write);
        });
        let mut bytes = vec![0; 1 << 16];
        loop {
            let is_shut = |is_open: &mut bool| !*is_open;
            drop(changed.wait_while(lock.lock().unwrap(), is_shut).unwrap());
            match near.read(&mut bytes) {
                Ok(got) if got > 0 && far.write_all(&bytes[..got]).is_ok() => {}
                Ok(_) | Err(_) => break,
            }
        }
        let _ = far.shutdown(Shutdown::Write);
    }

    fn set_open(&self, is_open: bool) {
        *self.gate.0.lock().unwrap() = is_open;
        self.gate.1.notify_all();
    }

    /// A client and a server, connected through a relay.
    fn between(files: &Files, level: ReliabilityLevel) -> (End, Self, End) {
        let authority = Authority::new(files, "authority");
        let [near, far] = [("near", 1), ("far", 3)]
            .map(|(name, number)| authority.certify(files, name, files.host(number), FAR_YEAR));
        let relay = Self::start(files);
        let client = open_as(|config| {
            files.put(config, 1, Some(&near));
            config.max_in_flight = 256;
        });
        let client = End::on(client, |vi| vi.reliability(level));
        let server = End::on(nic(files, 2, Some(&far)), |vi| vi.reliability(level));
        let there = open_as(|config| files.put(config, 3, None));
        let discriminator = unique_discriminator();
        let address = server.nic.local_address(&discriminator).unwrap();
        let own = client.nic.local_address(b"client").unwrap();
        let there = there.local_address(&discriminator).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut request = server.nic.connect_wait(&address, WAIT).unwrap();
                request.accept(&server.vi).unwrap();
            });
            persist(|| client.vi.connect(&own, &there, WAIT)).unwrap();
        });
        (client, relay, server)
    }
}

/// Bytes of messages of which there are more than TCP takes while nobody reads.
fn large(message: usize) -> Vec<u8> {
    pattern(message, 60_000 + (message * 7919) % 5_000)
}

/// Posts such messages, and receives for them, until there is no room; how many.
fn fill(client: &End, server: &End) -> usize {
    const MOST: usize = 1000;
    const COUNTER: &str = "tx_no_room_in_tcp";
    let before = counter(&client.nic, COUNTER);
    let mut posted = 0;
    while counter(&client.nic, COUNTER) == before {
        assert!(posted < MOST, "TCP takes everything");
        server.vi.post_recv(server.room(65_000)).unwrap();
        client.vi.post_send(client.message(&large(posted))).unwrap();
        posted += 1;
    }
    posted
}

/// What is encrypted waits for room in TCP, also when nothing is posted behind it.
#[test]
fn what_waits_for_room_in_tcp_goes_when_there_is_some() {
    for level in LEVELS {
        let files = Files::new("room");
        let (client, relay, server) = Relay::between(&files, level);
        for _ in 0..10 {
            relay.set_open(false);
            let posted = fill(&client, &server);
            relay.set_open(true);
            for message in 0..posted {
                let arrived = server.recv().ok().unwrap();
                assert!(
                    arrived.first_bytes() == large(message),
                    "{level:?}: {message}"
                );
            }
            for _ in 0..posted {
                let sent = client.vi.send_wait(WAIT).unwrap().unwrap();
                assert!(sent.status.is_ok(), "{level:?}: {:?}", sent.status);
            }
        }
        assert!(client.errors.none() && server.errors.none(), "{level:?}");
    }
}

/// What is complete arrives, though its sender leaves while TCP has no room for it; or closes its NIC as well.
fn an_end_behind_what_was_sent(closes: bool) {
    let files = Files::new(if closes { "behind-close" } else { "behind" });
    let (client, relay, server) = Relay::between(&files, ReliabilityLevel::ReliableDelivery);
    relay.set_open(false);
    let mut posted = fill(&client, &server);
    // Of these nothing begins.
    for _ in 0..2 {
        server.vi.post_recv(server.room(65_000)).unwrap();
        client.vi.post_send(client.message(&large(posted))).unwrap();
        posted += 1;
    }
    let mut sent = 0;
    while let Ok(Some(done)) = client.vi.send_done() {
        assert!(done.status.is_ok());
        sent += 1;
    }
    assert!(0 < sent && sent < posted, "{sent} of {posted}");
    client.vi.disconnect().unwrap();
    thread::scope(|scope| {
        if closes {
            scope.spawn(|| drop(client));
        }
        relay.set_open(true);
        for message in 0..sent {
            let arrived = server.recv().ok().unwrap();
            assert!(arrived.first_bytes() == large(message), "{message}");
        }
        assert_eq!(server.errors.next_of(&server.vi), ErrorCode::ConnLost);
    });
}

#[test]
fn an_end_waits_behind_what_was_sent() {
    an_end_behind_what_was_sent(false);
}

/// The NIC closes right behind, while TLS has some of it, and TCP.
#[test]
fn a_nic_that_closes_waits_for_what_was_sent() {
    an_end_behind_what_was_sent(true);
}

#[test]
fn flow_control_holds_senders_back_as_without() {
    const AHEAD: usize = 300;
    let files = Files::new("credits");
    let [near, far] = good(&files, [1, 2]);
    let with = |number, tls: &TlsConfig| {
        open_as(|config| {
            files.put(config, number, Some(tls));
            config.flow_control = true;
        })
    };
    let client = End::on(with(1, &near), |vi| vi);
    let server = End::on(with(2, &far), |vi| vi);
    connect(&client, &server);
    for message in 0..AHEAD {
        client
            .vi
            .post_send(client.message(&pattern(message, 300)))
            .unwrap();
    }
    for message in 0..AHEAD {
        server.vi.post_recv(server.room(300)).unwrap();
        assert!(server.recv().ok().unwrap().first_bytes() == pattern(message, 300));
    }
    for _ in 0..AHEAD {
        assert!(client.vi.send_wait(WAIT).unwrap().unwrap().status.is_ok());
    }
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn peers_connect_and_both_ends_may_leave() {
    let files = Files::new("peers");
    let tls = good(&files, [1, 2]);
    let ends = [1, 2].map(|number| {
        End::on(nic(&files, number, Some(&tls[number as usize - 1])), |vi| {
            vi
        })
    });
    for leaver in [0, 1] {
        thread::scope(|scope| {
            let asked = [(0, 1), (1, 0)].map(|(own, other)| {
                let ends: &[End; 2] = &ends;
                scope.spawn(move || {
                    let local = ends[own].nic.local_address(b"peer").unwrap();
                    let remote = ends[other].nic.local_address(b"peer").unwrap();
                    ends[own].vi.connect_peer(&local, &remote, WAIT).unwrap();
                    ends[own].vi.connect_peer_wait().unwrap();
                })
            });
            for thread in asked {
                thread.join().unwrap();
            }
        });
        let [left, right] = &ends;
        right.vi.post_recv(right.room(4)).unwrap();
        assert!(left.send(left.message(b"ping")).status.is_ok());
        assert_eq!(right.recv().ok().unwrap().first_bytes(), b"ping");
        ends[leaver].vi.disconnect().unwrap();
        let other = &ends[1 - leaver];
        assert_eq!(other.errors.next_of(&other.vi), ErrorCode::ConnLost);
        other.vi.disconnect().unwrap();
    }
}
