//! VI/TCP with TLS: messages, RDMA, flow control and close work as without TLS.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::common::tls::{Files, nic, valid, vitcp_port};
use crate::common::{
    Endpoint, LEVELS, READ_WRITE, WAIT, connect, counter, deliver, open_as, pattern,
    post_until_tcp_is_full, tcp_keys, unique_discriminator,
};
use pmd::config::TlsConfig;
use vipl::{ErrorCode, ReliabilityLevel, ViBuilder};

/// Connects two VIs, the first as client.
fn endpoints(files: &Files, configure: impl Fn(ViBuilder) -> ViBuilder) -> (Endpoint, Endpoint) {
    let [client_tls, server_tls] = valid(files, [1, 2]);
    let client = Endpoint::on(nic(files, 1, Some(&client_tls)), &configure);
    let server = Endpoint::on(nic(files, 2, Some(&server_tls)), &configure);
    connect(&client, &server);
    (client, server)
}

#[test]
fn messages_of_all_sizes_go_both_ways_at_every_level() {
    let sizes = [0, 1, 63, 4096, 16_384, 16_385, 50_000, 65_536];
    for level in LEVELS {
        let files = Files::new("levels");
        let (client, server) = endpoints(&files, |vi| vi.reliability(level));
        for (message, bytes) in sizes.into_iter().cycle().take(80).enumerate() {
            for (from, to) in [(&client, &server), (&server, &client)] {
                deliver(from, to, &pattern(message, bytes));
            }
        }
        client.vi.disconnect().unwrap();
        server.expect_errors(&[ErrorCode::ConnLost]);
        let cut = counter(server.nic.handle(), "tls_cut");
        assert_eq!(cut, 0, "an orderly close");
        assert!(client.errors.none(), "{level:?}");
    }
}

#[test]
fn rdma_works_over_tls() {
    const BYTES: usize = 1 << 20;
    let files = Files::new("rdma");
    let configure = |vi: ViBuilder| {
        vi.rdma_write(true)
            .rdma_read(true)
            .max_transfer_bytes(BYTES as u64)
    };
    let (client, server) = endpoints(&files, configure);
    let memory = server.region(BYTES, READ_WRITE);
    for round in 0..3 {
        let bytes = pattern(round, BYTES);
        let write = client.write_of(&bytes, memory.remote_buffer());
        assert!(client.send(write).status.is_ok());
        let read = client.send(client.read_of(memory.remote_buffer(), BYTES));
        let read = read.ok().unwrap();
        assert!(read.first_bytes() == bytes, "{round}");
        let mut target = vec![0; BYTES];
        memory.read(0, &mut target);
        assert!(target == bytes, "{round}");
    }
    // A message of the maximum size in the reverse direction.
    deliver(&server, &client, &pattern(9, BYTES));
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn many_small_messages_of_a_stream_arrive_in_order() {
    const MESSAGES: usize = 20_000;
    const WINDOW: usize = 256;
    let files = Files::new("stream");
    let (client, server) = endpoints(&files, |vi| vi);
    server.post_receives(2 * WINDOW, 64);
    thread::scope(|scope| {
        scope.spawn(|| {
            for message in 0..MESSAGES {
                let receive = server.expect_message(&pattern(message, message % 65));
                server.vi.post_recv(receive).unwrap();
                // The sender is at most as many messages ahead as receives are posted.
                if message % WINDOW == WINDOW - 1 {
                    server.send_bytes(b"go on");
                }
            }
        });
        client.post_receives(2, 8);
        for message in 0..MESSAGES {
            client.post_message(&pattern(message, message % 65));
            if message % WINDOW == WINDOW - 1 {
                client.expect_sent(WINDOW);
                let arrived = client.recv().ok().unwrap();
                client.vi.post_recv(arrived.descriptor).unwrap();
            }
        }
    });
    assert!(client.errors.none() && server.errors.none());
}

/// A TCP relay between client and server that stops reading from the client while it is paused.
struct Relay {
    /// Whether it reads from the client.
    is_reading: Arc<(Mutex<bool>, Condvar)>,
}

impl Relay {
    /// Accepts connections at the address of host 3 and forwards them to host 2.
    fn start(files: &Files) -> Self {
        let is_reading = Arc::new((Mutex::new(true), Condvar::new()));
        let listener = TcpListener::bind((files.host(3), vitcp_port())).unwrap();
        let (to, reading) = (files.host(2), Arc::clone(&is_reading));
        thread::spawn(move || {
            for client in listener.incoming() {
                let server = TcpStream::connect((to, vitcp_port())).unwrap();
                let reading = Arc::clone(&reading);
                thread::spawn(move || Self::forward(client.unwrap(), server, &reading));
            }
        });
        Self { is_reading }
    }

    /// Forwards in both directions until either side closes.
    fn forward(
        mut client: TcpStream,
        mut server: TcpStream,
        (lock, changed): &(Mutex<bool>, Condvar),
    ) {
        let (mut to, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let mut bytes = vec![0; 1 << 16];
        loop {
            let is_paused = |is_reading: &mut bool| !*is_reading;
            drop(changed.wait_while(lock.lock().unwrap(), is_paused).unwrap());
            match client.read(&mut bytes) {
                Ok(got) if got > 0 && server.write_all(&bytes[..got]).is_ok() => {}
                Ok(_) | Err(_) => break,
            }
        }
        let _ = server.shutdown(Shutdown::Write);
    }

    fn set_reading(&self, is_reading: bool) {
        *self.is_reading.0.lock().unwrap() = is_reading;
        self.is_reading.1.notify_all();
    }

    /// Connects a client and a server through a relay.
    fn connect(files: &Files, level: ReliabilityLevel) -> (Endpoint, Self, Endpoint) {
        let [client_tls, server_tls] = valid(files, [1, 3]);
        let relay = Self::start(files);
        let client = open_as(|config| {
            files.configure(config, 1, Some(&client_tls));
            config.limits.max_in_flight = 256;
        });
        let client = Endpoint::on(client, |vi| vi.reliability(level));
        let server = Endpoint::on(nic(files, 2, Some(&server_tls)), |vi| vi.reliability(level));
        let relayed = open_as(|config| files.configure(config, 3, None));
        let discriminator = unique_discriminator();
        let address = server.address(&discriminator);
        let relayed = relayed.local_address(&discriminator).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| server.accept(&address));
            client.request(&relayed).unwrap();
        });
        (client, relay, server)
    }
}

/// Bytes of a message; many of them exceed the TCP buffers while the relay is paused.
fn large(message: usize) -> Vec<u8> {
    pattern(message, 60_000 + (message * 7919) % 5_000)
}

/// Posts [`large`] messages, and receives for them, until the TCP send buffer is full; returns the number.
fn fill(client: &Endpoint, server: &Endpoint) -> usize {
    post_until_tcp_is_full(client.nic.handle(), |message| {
        server.post_receives(1, 65_000);
        client.post_message(&large(message));
    })
}

/// Encrypted data waits until the TCP send buffer has space, also if nothing is posted after it.
#[test]
fn encrypted_data_is_sent_when_tcp_has_buffer_space() {
    for level in LEVELS {
        let files = Files::new("buffer");
        let (client, relay, server) = Relay::connect(&files, level);
        for _ in 0..10 {
            relay.set_reading(false);
            let posted = fill(&client, &server);
            relay.set_reading(true);
            for message in 0..posted {
                server.expect_message(&large(message));
            }
            client.expect_sent(posted);
        }
        assert!(client.errors.none() && server.errors.none(), "{level:?}");
    }
}

/// Completed sends arrive, though the sender disconnects while the TCP send buffer is full, and with `closes` closes
/// its NIC as well.
fn disconnect_with_data_pending(closes: bool) {
    let files = Files::new(if closes { "close" } else { "disconnect" });
    let (client, relay, server) = Relay::connect(&files, ReliabilityLevel::ReliableDelivery);
    relay.set_reading(false);
    let mut posted = fill(&client, &server);
    // Nothing of these is sent.
    for _ in 0..2 {
        server.post_receives(1, 65_000);
        client.post_message(&large(posted));
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
        relay.set_reading(true);
        for message in 0..sent {
            server.expect_message(&large(message));
        }
        server.expect_errors(&[ErrorCode::ConnLost]);
    });
}

#[test]
fn disconnect_transmits_completed_sends_first() {
    disconnect_with_data_pending(false);
}

/// The NIC is closed immediately, while TLS and TCP have data pending.
#[test]
fn close_nic_transmits_completed_sends_first() {
    disconnect_with_data_pending(true);
}

#[test]
fn flow_control_works_over_tls() {
    const AHEAD: usize = 300;
    let files = Files::new("credits");
    let [client_tls, server_tls] = valid(&files, [1, 2]);
    let with = |number, tls: &TlsConfig| {
        open_as(|config| {
            files.configure(config, number, Some(tls));
            tcp_keys(config).flow_control = true;
        })
    };
    let client = Endpoint::on(with(1, &client_tls), |vi| vi);
    let server = Endpoint::on(with(2, &server_tls), |vi| vi);
    connect(&client, &server);
    for message in 0..AHEAD {
        client.post_message(&pattern(message, 300));
    }
    for message in 0..AHEAD {
        server.post_receives(1, 300);
        server.expect_message(&pattern(message, 300));
    }
    client.expect_sent(AHEAD);
    assert!(client.errors.none() && server.errors.none());
}

#[test]
fn peer_requests_work_over_tls_and_either_side_may_disconnect() {
    let files = Files::new("peers");
    let tls = valid(&files, [1, 2]);
    let end = |number: u32, tls| Endpoint::on(nic(&files, number, Some(tls)), |vi| vi);
    let ends = [end(1, &tls[0]), end(2, &tls[1])];
    for leaver in [0, 1] {
        thread::scope(|scope| {
            let requests = [(0, 1), (1, 0)].map(|(own, other)| {
                let ends: &[Endpoint; 2] = &ends;
                scope.spawn(move || {
                    let local = ends[own].address(b"peer");
                    let remote = ends[other].address(b"peer");
                    ends[own].vi.connect_peer(&local, &remote, WAIT).unwrap();
                    ends[own].vi.connect_peer_wait().unwrap();
                })
            });
            for thread in requests {
                thread.join().unwrap();
            }
        });
        deliver(&ends[0], &ends[1], b"ping");
        ends[leaver].vi.disconnect().unwrap();
        let other = &ends[1 - leaver];
        other.expect_errors(&[ErrorCode::ConnLost]);
        other.vi.disconnect().unwrap();
    }
}
