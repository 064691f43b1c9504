//! The subcommand `explore`: autodiscovery and connection requests, controlled by lines of the input.
//!
//! | input | action | output |
//! | --- | --- | --- |
//! | `discover HOST...` | waits until autodiscovery lists exactly these hosts | `discovered HOST...` |
//! | `connect HOST NAME [CLIENT]` | requests a connection until a program listens; disconnects | `result HOST connected`, or the error |
//! | `request HOST NAME [CLIENT]` | requests a connection once; disconnects | the same |
//! | `hold NAME` | waits for a connection request and leaves it pending | `held CLIENT user ID`, or the error |
//! | `release` | rejects the pending requests | |
//! | `vis COUNT` | creates VIs up to this number, and keeps them until the end | `created NUMBER` |
//!
//! Hosts are addresses in ascending order.

use std::io::{self, BufRead};
use std::time::{Duration, Instant};

use vipl::{ConnectionRequest, ReliabilityLevel, Timeout, VipError};

use crate::nic_context::{NicContext, TIMEOUT};
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Poll interval of autodiscovery, which does not notify of changes.
const DISCOVERY_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum distance of discovered hosts.
const HOPS: u64 = 1;
/// Default discriminator of the client.
const CLIENT_NAME: &str = "explorer";

/// Level of the VIs.
const LEVEL: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

/// Runs the commands of the input.
pub(crate) fn explore(nic: &str) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    println!("ready");
    let (mut pending, mut vis) = (Vec::new(), Vec::new());
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["discover", hosts @ ..] => discover(&context, hosts)?,
            ["connect", host, name] => connect(&context, host, name, CLIENT_NAME)?,
            ["connect", host, name, client] => connect(&context, host, name, client)?,
            ["request", host, name] => request(&context, host, name, CLIENT_NAME)?,
            ["request", host, name, client] => request(&context, host, name, client)?,
            ["hold", name] => pending.extend(hold(&context, name)?),
            ["release"] => pending.clear(),
            ["vis", count] => {
                let new = (0..count.parse()?).map_while(|_| context.vi(LEVEL, CLIENT_NAME).ok());
                let new: Vec<_> = new.collect();
                println!("created {}", new.len());
                vis.extend(new);
            }
            _ => return Err(format!("unknown command: {line:?}").into()),
        }
    }
    drop((pending, vis));
    context.finish()
}

fn discover(context: &NicContext, expected: &[&str]) -> Result<(), Failure> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut found = context.nic().autodiscovery(HOPS)?;
        found.sort_unstable();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        if found == expected {
            println!("discovered {}", found.join(" "));
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!("discovered {found:?}, not {expected:?}").into());
        }
        context.watch(DISCOVERY_INTERVAL);
    }
}

fn connect(context: &NicContext, host: &str, name: &str, client: &str) -> Result<(), Failure> {
    let vi = context.vi(LEVEL, host)?;
    let server = ServerAddress {
        host: host.to_owned(),
        name: name.to_owned(),
    };
    report(host, context.request(&vi, &server, client));
    vi.disconnect()?;
    Ok(())
}

fn request(context: &NicContext, host: &str, name: &str, client: &str) -> Result<(), Failure> {
    let vi = context.vi(LEVEL, host)?;
    let local = context.nic().local_address(client.as_bytes())?;
    let remote = context.nic().remote_address(host, name.as_bytes())?;
    report(host, vi.connect(&local, &remote, Timeout::After(TIMEOUT)));
    vi.disconnect()?;
    Ok(())
}

fn report<T>(host: &str, outcome: Result<T, VipError>) {
    match outcome {
        Ok(_) => println!("result {host} connected"),
        Err(error) => println!("result {host} {error:?}"),
    }
}

fn hold(context: &NicContext, name: &str) -> Result<Option<ConnectionRequest>, Failure> {
    let local = context.nic().local_address(name.as_bytes())?;
    let request = match context.nic().connect_wait(&local, Timeout::After(TIMEOUT)) {
        Ok(request) => request,
        Err(error) => {
            println!("hold failed: {error:?}");
            return Ok(None);
        }
    };
    let client = request.remote().discriminator.as_bytes();
    let client = String::from_utf8_lossy(client);
    match request.user()? {
        Some(user) => println!("held {client} user {user}"),
        None => println!("held {client} user unknown"),
    }
    Ok(Some(request))
}
