//! Echoed messages: all sizes, segments and immediate data, work queues and completion queues, one process and two.

mod common;

use common::{
    Endpoint, MAX_TRANSFER_BYTES, SecondProcess, WAIT, connect, is_child, open, pair, pattern,
    retry_no_match,
};
use vipl::{CompletedOperation, ReliabilityLevel, Timeout, VipError};

const SIZES: [usize; 12] = [
    0,
    1,
    3,
    4,
    63,
    64,
    2047,
    2112,
    2113,
    4096,
    65_535,
    MAX_TRANSFER_BYTES,
];

/// Echoes `messages` messages, each from the memory that it arrived in.
fn serve(server: &Endpoint, messages: usize) {
    for _ in 0..messages {
        let arrived = server.recv().ok().unwrap();
        let length_bytes = arrived.length_bytes();
        let mut descriptor = arrived.descriptor;
        descriptor.set_used_bytes(0, length_bytes);
        let mut descriptor = server.send(descriptor).ok().unwrap().descriptor;
        descriptor.set_used_bytes(0, MAX_TRANSFER_BYTES);
        server.vi.post_recv(descriptor).unwrap();
    }
}

/// Sends a message of each size and checks its echo.
fn send_all_sizes(client: &Endpoint) {
    for (message, size) in SIZES.into_iter().enumerate() {
        client
            .vi
            .post_recv(client.descriptor(MAX_TRANSFER_BYTES))
            .unwrap();
        let bytes = pattern(message, size);
        let sent = client.send(client.message(&bytes)).ok().unwrap();
        assert_eq!(sent.length_bytes(), size);
        assert_eq!(sent.status.operation(), CompletedOperation::Send);
        let echo = client.recv().ok().unwrap();
        assert_eq!(echo.length_bytes(), size);
        assert_eq!(echo.status.operation(), CompletedOperation::Receive);
        assert_eq!(echo.immediate(), None);
        assert!(echo.first_bytes() == bytes, "echo of {size} bytes");
    }
}

/// Posts two receives of the maximum size.
fn post_receives(server: &Endpoint) {
    for _ in 0..2 {
        server
            .vi
            .post_recv(server.descriptor(MAX_TRANSFER_BYTES))
            .unwrap();
    }
}

#[test]
fn messages_of_every_size_are_echoed_unchanged() {
    for level in [
        ReliabilityLevel::ReliableDelivery,
        ReliabilityLevel::UnreliableDelivery,
    ] {
        let client = Endpoint::with(|vi| vi.reliability(level));
        let server = Endpoint::with(|vi| vi.reliability(level));
        connect(&client, &server);
        post_receives(&server);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&server, SIZES.len()));
            send_all_sizes(&client);
        });
        assert!(client.errors.none() && server.errors.none());
    }
}

#[test]
fn two_processes_echo_every_size() {
    if is_child() {
        let server = Endpoint::new();
        let address = server.nic.local_address(b"echo-two").unwrap();
        post_receives(&server);
        server
            .nic
            .connect_wait(&address, WAIT)
            .unwrap()
            .accept(&server.vi)
            .unwrap();
        serve(&server, SIZES.len());
        // The client disconnects after the last echo.
        assert!(server.recv().status.is_flushed());
        return;
    }
    let client = Endpoint::new();
    let second = SecondProcess::start("two_processes_echo_every_size");
    let own = client.nic.local_address(b"client").unwrap();
    let address = client.nic.local_address(b"echo-two").unwrap();
    retry_no_match(|| client.vi.connect(&own, &address, WAIT)).unwrap();
    send_all_sizes(&client);
    client.vi.disconnect().unwrap();
    second.join();
}

#[test]
fn segments_are_gathered_and_scattered_in_order() {
    let (client, server) = pair();
    let bytes = pattern(1, 10_000);
    let mut receive = server.empty(4);
    for size in [1, 0, 4999, 6000] {
        let mut buffer = server.buffer(size.max(1));
        buffer.truncate(size);
        receive.push(buffer).unwrap();
    }
    assert!(
        receive.push(server.buffer(1)).is_err(),
        "a fifth segment exceeds max_segments"
    );
    server.vi.post_recv(receive).unwrap();

    let mut send = client.empty(252);
    let mut rest = client.buffer(bytes.len());
    rest.copy_from_slice(&bytes);
    for _ in 0..251 {
        let tail = rest.split_off(37);
        send.push(rest).unwrap();
        rest = tail;
    }
    send.push(rest).unwrap();
    assert_eq!(send.used_bytes(), bytes.len());
    assert_eq!(client.send(send).ok().unwrap().length_bytes(), bytes.len());

    let arrived = server.recv().ok().unwrap();
    assert_eq!(arrived.length_bytes(), bytes.len());
    let received: Vec<u8> = (0..4)
        .flat_map(|index| arrived.descriptor.buffer(index))
        .copied()
        .take(bytes.len())
        .collect();
    assert!(received == bytes);
}

#[test]
fn immediate_data_is_delivered_in_full_without_payload() {
    let (client, server) = pair();
    for immediate in [0, 1, u32::MAX, 0x8000_0001] {
        let mut receive = server.empty(1);
        // Ignored on a receive.
        receive.set_immediate(Some(7));
        server.vi.post_recv(receive).unwrap();
        let mut send = client.empty(1);
        send.set_immediate(Some(immediate));
        assert!(client.send(send).status.is_ok());
        let arrived = server.recv().ok().unwrap();
        assert_eq!(
            (arrived.immediate(), arrived.length_bytes()),
            (Some(immediate), 0)
        );
    }
}

#[test]
fn many_messages_keep_their_order_on_both_queues() {
    let (client, server) = pair();
    let messages = client.nic.attributes().max_descriptors_per_queue.min(64) as usize;
    for message in 0..messages {
        server.vi.post_recv(server.descriptor(message + 1)).unwrap();
    }
    for message in 0..messages {
        client
            .vi
            .post_send(client.message(&pattern(message, message + 1)))
            .unwrap();
    }
    for message in 0..messages {
        let sent = client.vi.send_wait(WAIT).unwrap().unwrap().ok().unwrap();
        assert_eq!(sent.length_bytes(), message + 1);
        let arrived = server.recv().ok().unwrap();
        assert_eq!(arrived.first_bytes(), pattern(message, message + 1));
    }
    assert!(client.vi.send_done().unwrap().is_none() && server.vi.recv_done().unwrap().is_none());
}

#[test]
fn a_completion_queue_of_one_entry_serves_many_messages() {
    let nic = open();
    let cq = nic.create_cq(1).unwrap();
    let client = Endpoint::new();
    let server = Endpoint::with(|vi| vi.recv_cq(&cq));
    connect(&client, &server);
    for message in 0..8 {
        server.vi.post_recv(server.descriptor(message + 1)).unwrap();
    }
    assert_eq!(cq.done(), Err(VipError::NotDone));
    for message in 0..8 {
        client
            .vi
            .post_send(client.message(&pattern(message, message + 1)))
            .unwrap();
    }
    for message in 0..8 {
        let entry = cq.wait(WAIT).unwrap();
        assert_eq!((entry.vi, entry.recv_queue), (server.vi.handle(), true));
        let arrived = server.vi.recv_done().unwrap().unwrap().ok().unwrap();
        assert_eq!(arrived.first_bytes(), pattern(message, message + 1));
    }
    assert_eq!(
        cq.wait(Timeout::After(std::time::Duration::from_millis(20))),
        Err(VipError::Timeout)
    );
    assert_eq!(
        server.vi.recv_wait(Timeout::Immediate).unwrap_err(),
        VipError::ErrorResource
    );
}

#[test]
fn shared_completion_queue_identifies_vi_and_queue() {
    let nic = open();
    let cq = nic.create_cq(64).unwrap();
    let client = Endpoint::with(|vi| vi.send_cq(&cq).recv_cq(&cq));
    let server = Endpoint::with(|vi| vi.send_cq(&cq).recv_cq(&cq));
    connect(&client, &server);
    server.vi.post_recv(server.descriptor(8)).unwrap();
    client.vi.post_send(client.message(b"question")).unwrap();
    let mut seen =
        [cq.wait(WAIT).unwrap(), cq.wait(WAIT).unwrap()].map(|entry| (entry.vi, entry.recv_queue));
    seen.sort_by_key(|&(_, recv_queue)| recv_queue);
    assert_eq!(
        seen,
        [(client.vi.handle(), false), (server.vi.handle(), true)]
    );
    assert!(client.vi.send_done().unwrap().unwrap().status.is_ok());
    assert_eq!(
        server.vi.recv_done().unwrap().unwrap().first_bytes(),
        b"question"
    );
}

#[test]
fn recv_wait_returns_at_its_timeout() {
    let (client, server) = pair();
    server.vi.post_recv(server.descriptor(8)).unwrap();
    let begun = std::time::Instant::now();
    let pause = std::time::Duration::from_millis(30);
    assert_eq!(
        server.vi.recv_wait(Timeout::After(pause)).unwrap_err(),
        VipError::Timeout
    );
    assert!(begun.elapsed() >= pause);
    assert_eq!(server.vi.recv_done().unwrap_err(), VipError::NotDone);
    assert!(
        client.vi.recv_wait(WAIT).unwrap().is_none(),
        "an empty queue returns at once"
    );
    // The descriptor is still posted.
    client.send(client.message(b"late")).ok().unwrap();
    assert_eq!(server.recv().first_bytes(), b"late");
}

#[test]
fn message_without_a_receive_breaks_only_a_reliable_vi() {
    let (client, server) = pair();
    client.vi.post_send(client.message(b"unexpected")).unwrap();
    assert_eq!(
        server.errors.next_of(&server.vi),
        vipl::ErrorCode::RecvqEmpty
    );
    assert_eq!(server.errors.next_of(&server.vi), vipl::ErrorCode::ConnLost);
    assert_eq!(client.errors.next_of(&client.vi), vipl::ErrorCode::ConnLost);
    assert_eq!(client.vi.state().unwrap(), vipl::ViState::Error);

    let client = Endpoint::with(|vi| vi.reliability(ReliabilityLevel::UnreliableDelivery));
    let server = Endpoint::with(|vi| vi.reliability(ReliabilityLevel::UnreliableDelivery));
    connect(&client, &server);
    assert!(client.send(client.message(b"unexpected")).status.is_ok());
    assert_eq!(
        server.errors.next_of(&server.vi),
        vipl::ErrorCode::RecvqEmpty
    );
    assert_eq!(server.vi.state().unwrap(), vipl::ViState::Connected);
}

#[test]
fn a_receive_that_is_too_small_is_a_length_error() {
    let (client, server) = pair();
    server.vi.post_recv(server.descriptor(3)).unwrap();
    client.vi.post_send(client.message(b"four")).unwrap();
    let arrived = server.recv();
    assert!(arrived.status.is_length_error(), "{:?}", arrived.status);
    assert_eq!(arrived.length_bytes(), 0);
    assert_eq!(server.errors.next_of(&server.vi), vipl::ErrorCode::ConnLost);
}

#[test]
fn a_buffer_of_another_tag_is_a_protection_error() {
    let (client, _server) = pair();
    let other_tag = client.nic.create_ptag().unwrap();
    let mut send = client.empty(1);
    send.push(
        client
            .nic
            .create_region(8, &other_tag)
            .unwrap()
            .into_buffer(),
    )
    .unwrap();
    let sent = client.send(send);
    assert!(sent.status.is_protection_error(), "{:?}", sent.status);
    assert_eq!(client.errors.next_of(&client.vi), vipl::ErrorCode::ConnLost);
}

#[test]
fn a_message_above_the_transfer_size_is_a_length_error() {
    let (client, _server) = pair();
    let sent = client.send(client.message(&pattern(0, MAX_TRANSFER_BYTES + 1)));
    assert!(sent.status.is_length_error(), "{:?}", sent.status);
}
