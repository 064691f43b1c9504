//! Two processes connected by memif, of which one is killed.

use super::victim_process::{Stage, VictimProcess, run_if_victim, try_send};
use super::*;

const KILLS: u32 = 100;

/// Runs a port, with this number for its device, against successive processes, each of which is killed while frames
/// are exchanged.
fn survive_killed_peers(test: &str, number: u32, ours: &str, theirs: &str) {
    run_if_victim();
    let socket = format!("viaduct-{test}-{}", std::process::id());
    let device = |number: u32, role| format!("net_memif{number},role={role},id=0,socket={socket}");
    let mut port = open(config(&device(number, ours), RIGHT));
    let bytes = frame(LEFT, RIGHT, &[FCOE, 2], 512);
    for kill in 0..KILLS {
        let mut victim = VictimProcess::start(test, &device(0, theirs), false);
        victim.wait_for(Stage::Open);
        let mut seen = 0;
        wait_for("frames of the other process", || {
            port.upkeep();
            for _ in 0..1000 {
                try_send(&mut port, &bytes);
                seen += receive_some(&mut port).len();
            }
            (seen > 1000).then_some(())
        });
        // The kill is at a random time, also in the middle of a burst.
        let killer = thread::spawn(move || drop(victim));
        while !killer.is_finished() {
            try_send(&mut port, &bytes);
            receive_some(&mut port);
        }
        killer.join().expect("killed");
        wait_for("the link to go down", || {
            port.upkeep();
            try_send(&mut port, &bytes);
            receive_some(&mut port);
            (!port.link_up()).then_some(())
        });
        assert_eq!(counter(&port, "drop_rx_foreign_buffer"), 0, "kill {kill}");
    }
    // No buffers were lost with the killed processes.
    port.upkeep();
    let mut lent = Vec::new();
    while let Some(mbuf) = port.alloc(LEFT) {
        lent.push(mbuf);
    }
    assert_eq!(lent.len(), 512, "the maximum number of lent buffers");
    lent.into_iter().for_each(|mbuf| port.free(mbuf));
    assert_eq!(
        counter(&port, "bursts_given_up"),
        0,
        "memory was unmapped during a burst"
    );
    eprintln!("{KILLS} kills, {} restarts", counter(&port, "restarts"));
}

#[test]
fn server_survives_killed_clients() {
    survive_killed_peers(
        "memif::server_survives_killed_clients",
        100,
        "server",
        "client",
    );
}

#[test]
fn client_survives_killed_servers() {
    survive_killed_peers(
        "memif::client_survives_killed_servers",
        101,
        "client",
        "server",
    );
}

/// Opens a pair of ports in this process.
fn pair(name: &str, number: u32) -> (DpdkPort, DpdkPort) {
    let socket = format!("viaduct-{name}-{}", std::process::id());
    let end = |number: u32, role, mac| {
        let device = format!("net_memif{number},role={role},id=0,socket={socket}");
        open(config(&device, mac))
    };
    let server = end(number, "server", LEFT);
    wait_for_link(server, end(number + 1, "client", RIGHT))
}

/// Frames of all lengths, in reused slots and in a full ring.
#[test]
fn frames_of_all_lengths_arrive_intact() {
    const FRAMES: u16 = 10_000;
    let (mut server, mut client) = pair("lengths", 110);
    let longest = server.capabilities().max_frame_bytes;
    assert_eq!(longest, 2172);
    let lengths = [60, longest, 2049, 2048, 1000];
    for server_sends in [true, false] {
        let (from, to) = match server_sends {
            true => (&mut server, &mut client),
            false => (&mut client, &mut server),
        };
        let addresses = (to.capabilities().mac, from.capabilities().mac);
        let frame_of = |serial: u16| {
            let length = lengths[usize::from(serial) % lengths.len()];
            frame(addresses.0, addresses.1, &[FCOE, serial], length)
        };
        let (mut sent, mut received, mut refused) = (0, 0, 0);
        while received < FRAMES {
            // As many as fit into the ring.
            while sent < FRAMES
                && let Some(mut mbuf) = from.alloc(addresses.0)
            {
                let bytes = frame_of(sent);
                mbuf.buffer_mut()[..bytes.len()].copy_from_slice(&bytes);
                mbuf.set_len(bytes.len());
                let mut batch = MbufBatch::new();
                batch.push(mbuf).expect("an empty batch");
                if from.tx_burst(&mut batch) == 0 {
                    refused += 1;
                    batch.pop().into_iter().for_each(|mbuf| from.free(mbuf));
                    break;
                }
                sent += 1;
            }
            let mut batch = MbufBatch::new();
            to.rx_burst(&mut batch, 1 + usize::from(received % 3));
            while let Some(mbuf) = batch.pop() {
                assert!(mbuf.bytes() == frame_of(received), "frame {received}");
                to.free(mbuf);
                received += 1;
            }
        }
        assert!(refused > 0, "the ring was full");
    }
}
