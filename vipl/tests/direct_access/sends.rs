//! Long sends that the receiver copies from the memory of the sender: same effects and errors as in frames.

use vi_core::descriptor::DataSegment;
use vi_types::status;
use vipl::{MemoryHandle, ReliabilityLevel, ViAttributes, ViState, provider as vip};

use super::{FILES, RELIABLE_DELIVERY, SERVICE, config_of, stations};
use crate::common::raw::{PAGE_BYTES, Pages, RawEndpoint, address, attributes, connect, segment};
use crate::common::{
    RELIABLE, SecondProcess, WAIT, counter, is_child, pattern, retry_accept, retry_no_match,
    wait_until,
};

const MAX_BYTES: usize = 1 << 20;
/// Pages of an endpoint's memory: descriptors, and the longest message.
const PAGES: usize = 2 + MAX_BYTES / PAGE_BYTES;
/// Length of the messages to another process.
const LONG_BYTES: usize = 300_000;

fn end(level: ReliabilityLevel, files: u32, memory: Pages) -> RawEndpoint {
    let nic = vip::open_nic_with(&config_of(files)).unwrap();
    let ptag = Some(vip::create_ptag(nic).unwrap());
    let attributes = ViAttributes {
        reliability: level as u16,
        max_transfer_bytes: MAX_BYTES as u64,
        ..attributes(ptag)
    };
    RawEndpoint::with_memory(nic, ptag, memory, &attributes)
}

/// Sends the bytes at this offset of the client's memory into these segments of the server.
fn send(
    client: &RawEndpoint,
    server: &RawEndpoint,
    (offset, len): (usize, usize),
    to: &[DataSegment],
) {
    server.post_recv(0, to);
    client.post_send(0, &[client.segment(offset, len as u32)]);
    assert_eq!(server.received() & status::ERROR_MASK, 0);
    assert_eq!(client.sent() & status::ERROR_MASK, 0);
}

fn read(end: &RawEndpoint, offset: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| end.memory.read(PAGE_BYTES + offset + at))
        .collect()
}

fn of(end: &RawEndpoint, name: &str) -> u64 {
    counter(end.nic, name)
}

#[test]
fn long_sends_are_copied_by_the_receiver() {
    for level in RELIABLE {
        for memory in [Pages::shared, Pages::new] {
            let client = end(level, FILES[0], Pages::shared(PAGES));
            let server = end(level, FILES[1], memory(PAGES));
            connect(&client, &server);
            let lengths = [4096, 4097, 40_000, 65_536, 65_537, MAX_BYTES];
            for (number, len) in lengths.into_iter().enumerate() {
                let (offset, bytes) = (number, pattern(number, len));
                client.memory.write(PAGE_BYTES + offset, &bytes);
                let frames = of(&client, "tx_frames");
                let (first, second) = (len as u32 / 3, len as u32 - len as u32 / 3);
                let to = [
                    server.segment(7, first),
                    server.segment(7 + first as usize, second),
                ];
                send(&client, &server, (offset, len), &to);
                assert!(read(&server, 7, len) == bytes, "{level:?}: {len} bytes");
                assert_eq!(of(&client, "tx_frames"), frames + 1);
                let copied = of(&client, "rendezvous_messages");
                assert_eq!(copied, number as u64 + 1, "{level:?}: {len} bytes");
            }
        }
    }
}

#[test]
fn short_sends_private_memory_and_the_key_of_either_side_mean_frames() {
    let cases = [
        (4095, Pages::shared(PAGES), FILES),
        (4096, Pages::new(PAGES), FILES),
        (4096, Pages::shared(PAGES), [0, FILES[1]]),
        (4096, Pages::shared(PAGES), [FILES[0], 0]),
    ];
    for (len, memory, files) in cases {
        let client = end(RELIABLE_DELIVERY, files[0], memory);
        let server = end(RELIABLE_DELIVERY, files[1], Pages::shared(PAGES));
        connect(&client, &server);
        let bytes = pattern(1, len);
        client.memory.write(PAGE_BYTES, &bytes);
        let to = server.segment(0, len as u32);
        send(&client, &server, (0, len), &[to]);
        assert!(read(&server, 0, len) == bytes);
        assert_eq!(of(&client, "rendezvous_messages"), 0, "{len} {files:?}");
        assert_eq!(of(&client, "rendezvous_declined"), 0, "{len} {files:?}");
    }
}

#[test]
fn send_whose_memory_the_receiver_cannot_map_is_in_frames() {
    for level in RELIABLE {
        let client = end(level, FILES[0], Pages::shared(PAGES));
        // Maps the file of the first message only.
        let server = end(level, 1, Pages::shared(PAGES));
        connect(&client, &server);
        send(&client, &server, (0, 4096), &[server.segment(0, 4096)]);
        let (other, bytes) = (Pages::shared(PAGES), pattern(3, MAX_BYTES));
        other.write(0, &bytes);
        let handle = other.register(client.nic, client.ptag).unwrap();
        server.post_recv(0, &[server.segment(0, MAX_BYTES as u32)]);
        client.post_send(0, &[segment(other.at(0), handle, MAX_BYTES as u32)]);
        assert_eq!(server.received() & status::ERROR_MASK, 0);
        assert_eq!(client.sent() & status::ERROR_MASK, 0);
        assert!(read(&server, 0, MAX_BYTES) == bytes);
        assert_eq!(of(&client, "rendezvous_messages"), 1);
        assert_eq!(of(&client, "rendezvous_declined"), 1);
        vip::deregister_mem(client.nic, other.at(0), handle).unwrap();
    }
}

#[test]
fn regions_of_the_library_are_memory_that_the_receiver_can_map() {
    let (client, server) = stations(RELIABLE_DELIVERY, FILES);
    // Buffers of a region each, of 64 KiB and one byte less.
    for (len, copied) in [(65_535, 0), (65_536, 1)] {
        server.post_receives(1, len);
        let bytes = pattern(1, len);
        client.send_bytes(&bytes);
        server.expect_message(&bytes);
        let messages = counter(client.nic.handle(), "rendezvous_messages");
        assert_eq!(messages, copied, "{len} bytes");
    }
}

#[test]
fn both_sides_send_at_the_same_time() {
    for level in RELIABLE {
        let ends = FILES.map(|files| end(level, files, Pages::shared(PAGES)));
        let [client, server] = &ends;
        connect(client, server);
        let half = MAX_BYTES / 2;
        for round in 0..50 {
            for (number, end) in ends.iter().enumerate() {
                let bytes = pattern(2 * round + number, half);
                end.memory.write(PAGE_BYTES, &bytes);
                end.post_recv(0, &[end.segment(half, half as u32)]);
            }
            for end in &ends {
                end.post_send(1, &[end.segment(0, half as u32)]);
            }
            for (number, end) in ends.iter().enumerate() {
                assert_eq!(end.received() & status::ERROR_MASK, 0);
                assert_eq!(end.sent() & status::ERROR_MASK, 0);
                let expected = pattern(2 * round + 1 - number, half);
                assert!(read(end, half, half) == expected, "round {round}");
            }
        }
        for end in &ends {
            assert_eq!(of(end, "rendezvous_messages"), 50);
        }
    }
}

/// The second process of the next tests: receives messages until the connection ends. Each must have the bytes that were
/// in the sender's memory when it was posted.
#[test]
fn receiver_in_another_process() {
    if !is_child() {
        return;
    }
    let client = end(RELIABLE_DELIVERY, FILES[0], Pages::shared(PAGES));
    let remote = address(client.nic, SERVICE);
    for slot in 0..3 {
        client.post_recv(
            slot,
            &[client.segment(slot * LONG_BYTES, LONG_BYTES as u32)],
        );
    }
    let own = address(client.nic, b"client");
    retry_no_match(|| vip::connect_request(client.vi, &own, &remote, WAIT)).unwrap();
    for number in 0..3 {
        if client.received() & status::ERROR_MASK != 0 {
            break;
        }
        let bytes = read(&client, number * LONG_BYTES, LONG_BYTES);
        assert!(bytes == pattern(number, LONG_BYTES), "message {number}");
    }
}

/// A sender to another process, whose data is in a region of its own.
struct Sender {
    end: RawEndpoint,
    data: Pages,
    handle: MemoryHandle,
    sent: usize,
}

impl Sender {
    /// Connects to a new process, and sends it the first message.
    fn connected() -> (Self, SecondProcess) {
        let end = end(RELIABLE_DELIVERY, FILES[0], Pages::new(1));
        let data = Pages::shared(PAGES);
        let handle = data.register(end.nic, end.ptag).unwrap();
        let mut sender = Self {
            end,
            data,
            handle,
            sent: 0,
        };
        let process = SecondProcess::start("receiver_in_another_process");
        let own = address(sender.end.nic, SERVICE);
        retry_accept(|| {
            let request = vip::connect_wait(sender.end.nic, &own, WAIT)?;
            vip::connect_accept(request.conn, sender.end.vi)
        });
        sender.post();
        assert_eq!(sender.end.sent() & status::ERROR_MASK, 0);
        assert_eq!(of(&sender.end, "rendezvous_messages"), 1);
        (sender, process)
    }

    /// Posts the next message, and waits until its request is sent.
    fn post(&mut self) {
        self.data.write(0, &pattern(self.sent, LONG_BYTES));
        let frames = of(&self.end, "tx_frames");
        let from = segment(self.data.at(0), self.handle, LONG_BYTES as u32);
        self.end.post_send(self.sent, &[from]);
        self.sent += 1;
        wait_until("the request is sent", || {
            of(&self.end, "tx_frames") > frames
        });
    }

    /// Writes other bytes where the messages were.
    fn overwrite(&self) {
        self.data.write(0, &[0xEE; LONG_BYTES]);
    }
}

#[test]
fn receiver_that_was_stopped_takes_nothing_after_a_disconnect() {
    let (mut sender, process) = Sender::connected();
    process.stop();
    sender.post();
    vip::disconnect(sender.end.vi).unwrap();
    assert_eq!(
        sender.end.sent() & status::ERROR_MASK,
        status::DESC_FLUSHED_ERROR
    );
    sender.overwrite();
    process.resume();
    process.join();
}

#[test]
fn deregistered_memory_is_not_copied() {
    let (mut sender, process) = Sender::connected();
    process.stop();
    sender.post();
    vip::deregister_mem(sender.end.nic, sender.data.at(0), sender.handle).unwrap();
    sender.overwrite();
    process.resume();
    assert_eq!(
        sender.end.sent() & status::ERROR_MASK,
        status::PROTECTION_ERROR
    );
    process.join();
}

#[test]
fn send_to_a_killed_receiver_is_flushed() {
    let (mut sender, mut process) = Sender::connected();
    process.stop();
    sender.post();
    process.kill();
    assert_eq!(
        sender.end.sent() & status::ERROR_MASK,
        status::DESC_FLUSHED_ERROR
    );
    wait_until("the connection is lost", || {
        vip::query_vi(sender.end.vi).unwrap().state == ViState::Error
    });
    vip::deregister_mem(sender.end.nic, sender.data.at(0), sender.handle).unwrap();
}
