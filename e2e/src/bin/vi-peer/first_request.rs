//! The first connection request after a NIC was opened, at a server that has waited since before.

use std::sync::Barrier;
use std::thread;

use vipl::{ReliabilityLevel, Timeout, VipError};

use crate::station::{Station, TIMEOUT};
use crate::{Failure, Server};

/// Calls that wait for a request: while one answers, the others wait.
const LISTENERS: usize = 16;

/// Rejects requests until it is killed.
pub(crate) fn reject_all(nic: &str, name: &str) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let own = station.vi(ReliabilityLevel::ReliableDelivery, "own")?;
    let local = station.nic().local_address(name.as_bytes())?;
    let client = station.nic().local_address(b"own")?;
    let all_started = Barrier::new(LISTENERS + 1);
    let listen = || -> Result<(), VipError> {
        all_started.wait();
        loop {
            let request = station.nic().connect_wait(&local, Timeout::Infinite)?;
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
        // A rejected request proves that listeners wait.
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

/// Ends the program while listeners still wait.
fn exit(why: &str) -> ! {
    eprintln!("vi-peer: {why}");
    std::process::exit(1)
}

/// Opens the NIC `openings` times and requests one connection each time.
pub(crate) fn request_once_each(nic: &str, server: &Server, openings: u32) -> Result<(), Failure> {
    let mut others = Vec::new();
    for opening in 0..openings {
        let station = Station::open(nic)?;
        let vi = station.vi(ReliabilityLevel::ReliableDelivery, "server")?;
        let local = station.nic().local_address(b"client")?;
        let remote = (station.nic()).remote_address(&server.host, server.name.as_bytes())?;
        match vi.connect(&local, &remote, Timeout::After(TIMEOUT)) {
            Err(VipError::Reject) => {}
            Err(error) => others.push(format!("{opening}: {error}")),
            Ok(_) => return Err("the server does not reject".into()),
        }
    }
    match others.as_slice() {
        [] => {
            println!("rejected {openings}");
            Ok(())
        }
        some => Err(some.join(", ").into()),
    }
}
