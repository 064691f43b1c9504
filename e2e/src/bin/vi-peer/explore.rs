//! A program that looks for other hosts, and asks them for connections, as its input says.
//!
//! | line | what is done | what is told |
//! | --- | --- | --- |
//! | `see HOST...` | waits until autodiscovery lists these hosts and no other | `sees HOST...` |
//! | `connect HOST NAME [OWN]` | connects as soon as a program waits there, and disconnects | `asked HOST connected`, or what the call returned |
//! | `ask HOST NAME [OWN]` | the same with one request | the same |
//! | `hold NAME` | waits for a connection request, which stays without an answer | `holds CLIENT of user ID`, or what the call returned |
//! | `release` | rejects the requests that it holds | |
//!
//! Hosts are told by their addresses, the smallest first.

use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use vipl::{ConnectionRequest, ReliabilityLevel, Timeout, VipError};

use crate::station::{Station, TIMEOUT};
use crate::{Failure, Server};

/// Nothing tells of a change of what is discovered: it is asked for this often.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Hosts that are no further away than any that there is.
const HOPS: u64 = 1;
/// What the program calls itself.
const OWN: &str = "explorer";

/// Obeys until the input ends.
pub(crate) fn explore(nic: &str) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    println!("ready");
    let mut held = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["see", hosts @ ..] => see(&station, hosts)?,
            ["connect", host, name] => connect(&station, host, name, OWN)?,
            ["connect", host, name, own] => connect(&station, host, name, own)?,
            ["ask", host, name] => ask(&station, host, name, OWN)?,
            ["ask", host, name, own] => ask(&station, host, name, own)?,
            ["hold", name] => held.extend(hold(&station, name)?),
            ["release"] => held.clear(),
            _ => return Err(format!("no such command: {line:?}").into()),
        }
    }
    drop(held);
    station.finish()
}

fn see(station: &Station, wanted: &[&str]) -> Result<(), Failure> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut found = station.nic().autodiscovery(HOPS)?;
        found.sort_unstable();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        if found == wanted {
            println!("sees {}", found.join(" "));
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("sees {found:?}, not {wanted:?}").into());
        }
        station.watch(LOOK_AGAIN);
    }
}

fn connect(station: &Station, host: &str, name: &str, own: &str) -> Result<(), Failure> {
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, host)?;
    let server = Server {
        host: host.to_owned(),
        name: name.to_owned(),
    };
    report(host, station.request(&vi, &server, own));
    vi.disconnect()?;
    Ok(())
}

fn ask(station: &Station, host: &str, name: &str, own: &str) -> Result<(), Failure> {
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, host)?;
    let local = station.nic().local_address(own.as_bytes())?;
    let remote = station.nic().remote_address(host, name.as_bytes())?;
    report(host, vi.connect(&local, &remote, Timeout::After(TIMEOUT)));
    vi.disconnect()?;
    Ok(())
}

fn report<T>(host: &str, outcome: Result<T, VipError>) {
    match outcome {
        Ok(_) => println!("asked {host} connected"),
        Err(error) => println!("asked {host} {error:?}"),
    }
}

fn hold(station: &Station, name: &str) -> Result<Option<ConnectionRequest>, Failure> {
    let local = station.nic().local_address(name.as_bytes())?;
    let request = match station.nic().connect_wait(&local, Timeout::After(TIMEOUT)) {
        Ok(request) => request,
        Err(error) => {
            println!("holds nothing: {error:?}");
            return Ok(None);
        }
    };
    let client = request.remote().discriminator.as_bytes();
    let client = String::from_utf8_lossy(client);
    match request.user()? {
        Some(user) => println!("holds {client} of user {user}"),
        None => println!("holds {client} of a user that is not known"),
    }
    Ok(Some(request))
}
