//! The first connection request after opening a NIC, to a server that was already listening.

use std::sync::Barrier;
use std::thread;

use vipl::{ReliabilityLevel, Timeout, VipError};

use crate::nic_context::{NicContext, TIMEOUT};
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Concurrent calls of VipConnectWait: while one rejects a request, others wait.
const LISTENERS: usize = 16;

/// Rejects all requests until the process is killed.
pub(crate) fn reject_all(nic: &str, name: &str) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let own = context.vi(ReliabilityLevel::ReliableDelivery, "own")?;
    let local = context.nic().local_address(name.as_bytes())?;
    let client = context.nic().local_address(b"own")?;
    let all_started = Barrier::new(LISTENERS + 1);
    let listen = || -> Result<(), VipError> {
        all_started.wait();
        loop {
            let request = context.nic().connect_wait(&local, Timeout::Infinite)?;
            request.reject()?;
        }
    };
    thread::scope(|scope| {
        for _ in 0..LISTENERS {
            scope.spawn(|| {
                if let Err(error) = listen() {
                    exit(&format!("a listener ends: {error}"));
                }
            });
        }
        all_started.wait();
        // A rejected request proves that the listeners are waiting.
        loop {
            match own.connect(&client, &local, Timeout::After(TIMEOUT)) {
                Err(VipError::NoMatch) => {}
                Err(VipError::Reject) => break,
                Err(error) => exit(&format!("the first request fails: {error}")),
                Ok(_) => exit("its own listeners do not reject"),
            }
        }
        println!("listening");
    });
    Ok(())
}

/// Exits while listeners are still waiting.
fn exit(why: &str) -> ! {
    eprintln!("vi-peer: {why}");
    std::process::exit(1)
}

/// Opens the NIC `opens` times and requests one connection each time.
pub(crate) fn request_once_each(
    nic: &str,
    server: &ServerAddress,
    opens: u32,
) -> Result<(), Failure> {
    let mut errors = Vec::new();
    for open in 0..opens {
        let context = NicContext::open(nic)?;
        let vi = context.vi(ReliabilityLevel::ReliableDelivery, "server")?;
        let local = context.nic().local_address(b"client")?;
        let remote = (context.nic()).remote_address(&server.host, server.name.as_bytes())?;
        match vi.connect(&local, &remote, Timeout::After(TIMEOUT)) {
            Err(VipError::Reject) => {}
            Err(error) => errors.push(format!("{open}: {error}")),
            Ok(_) => return Err("the server does not reject".into()),
        }
    }
    match errors.as_slice() {
        [] => {
            println!("rejected {opens}");
            Ok(())
        }
        some => Err(some.join(", ").into()),
    }
}
