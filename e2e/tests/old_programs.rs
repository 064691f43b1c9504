//! A C89 program in the style of the year 2000, as several processes on two hosts.

use e2e::installation::Installation;
use e2e::nics::{End, NicText};
use e2e::process::{Running, TIMEOUT};
use e2e::scratch::Scratch;
use e2e::wire::Wire;

/// The host of each process of the mesh.
const ENDS: [End; 4] = [End::Left, End::Left, End::Right, End::Right];

/// Each process connects a VI to each other process on both hosts.
#[test]
fn full_mesh_of_processes_on_two_hosts_completes() {
    let wire = Wire::new(1500);
    let installation = Installation::new();
    let program = installation.old_program("mesh", &["mesh.c", "common.c"]);
    let scratch = Scratch::new("mesh");
    let left = NicText::af_packet(End::Left).write(&scratch, "left.toml");
    let right = NicText::af_packet(End::Right).write(&scratch, "right.toml");
    let mut running: Vec<Running> = ENDS
        .iter()
        .enumerate()
        .map(|(rank, end)| {
            let (namespace, config) = match end {
                End::Left => (&wire.left, &left),
                End::Right => (&wire.right, &right),
            };
            let mut command = namespace.program(&program);
            command
                .arg(rank.to_string())
                .arg(end.host())
                .args(ENDS.map(End::host))
                .env("VIADUCT_CONFIG", config);
            Running::start(&format!("rank {rank}"), &mut command)
        })
        .collect();
    for (rank, one) in running.iter_mut().enumerate() {
        let line = format!("rank {rank}: 50 messages with each of 3 peers");
        one.wait_for(&line, TIMEOUT);
    }
    // Only now, since a process that ends earlier would break the connections of the others.
    for one in running {
        one.succeed(TIMEOUT);
    }
}
