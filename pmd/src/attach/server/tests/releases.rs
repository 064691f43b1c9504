//! Tests of rejected connections that hold descriptors.

use super::*;

/// As on a kernel where a receiver cannot refuse descriptors. No peer lets a close end.
#[test]
fn rejected_connections_whose_close_blocks_are_few_and_end() {
    let server = server("releases");
    server.listener.take_descriptors();
    let path = socket_of(&server.process());
    // Every connection is rejected.
    server.process().max_pending_per_process = 0;
    let mut peers = Vec::new();
    for _ in 0..60 {
        let (lingering, peer) = lingering_connection();
        let socket = {
            // No connection is rejected before its descriptor is passed.
            let _held = server.process();
            let socket = Socket::connect(&path).unwrap();
            socket
                .send(&attach_request(), &[lingering.as_raw_fd()])
                .unwrap();
            socket
        };
        drop(lingering);
        let reply = socket.first_reply::<Reply>(Ok(()));
        assert!(matches!(reply, Ok(Some((Reply::Refused(_), _)))));
        peers.push(peer);
    }
    wait_until("connections are not closed", || {
        server.releases.connections() == 0
    });
    server.process().max_pending_per_process = 100;
    let (_life, _) = attach(&server);
    server.stop();
}
