//! A datapath process that runs as a dedicated user, like the shipped systemd unit, and C programs of two other users
//! with buffers on the heap.

use e2e::datapath::DatapathProcess;
use e2e::echo::echo;
use e2e::installation::Installation;
use e2e::nics::NicText;
use e2e::process::{as_user, has_user};
use e2e::scratch::Scratch;
use serde_json::Value;

/// User IDs that no package uses.
const PROCESS_USER: u32 = 64001;
const SERVER: u32 = 64002;
const CLIENT: u32 = 64003;

#[test]
fn c_programs_of_two_users_echo_through_a_process_of_a_third() {
    if [PROCESS_USER, SERVER, CLIENT]
        .iter()
        .any(|user| !has_user(*user))
    {
        println!("\nnote: skipped: the user namespace has no other users");
        return;
    }
    const CLIENTS: usize = 2;
    let installation = Installation::new();
    let (files, segment) = (Scratch::new("unit"), Scratch::in_memory("unit"));
    let keys = format!("idle = \"hybrid\"\nusers = [{SERVER}, {CLIENT}]");
    let nics = NicText::shm(segment.path());
    let process = DatapathProcess::start_as(PROCESS_USER, (&files, &segment), &keys, &nics);
    let program = |user, name| {
        let mut command = as_user(user, installation.program(name));
        command.env("VIADUCT_CONFIG", process.config());
        command
    };
    let clients = || program(CLIENT, "EchoClient");
    let mut server = program(SERVER, "EchoServer");
    echo(&mut server, clients, CLIENTS, "localhost", || {
        // A client registers its buffers before it requests a connection.
        let copies = |one: &Value| {
            let (copied, counted) = (
                &one["bounce_buffer_regions"],
                &one["quotas"]["max_regions"]["in_use"],
            );
            one["uid"] == CLIENT && copied.as_u64() > Some(0) && copied == counted
        };
        process.await_stat("buffers", |stat| {
            let applications = stat["applications"].as_array().expect("a list");
            applications.iter().filter(|one| copies(one)).count() == CLIENTS
        });
    });
    process.stop_and_check();
}
