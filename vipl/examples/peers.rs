//! The parts of a parallel program, each connected to each other one. There is no server: each part requests a
//! connection to every other part and polls its requests until they match. The parts may be started in any order; some
//! may be those of the C example `Peers`.
//!
//! ```text
//! cargo run --release -p vipl --example peers -- 0 2 &
//! cargo run --release -p vipl --example peers -- 1 2
//! ```

#[path = "common/arguments.rs"]
mod arguments;
mod common;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use arguments::arguments;
use common::{exit_code, print, print_error};
use vipl::{Completed, Descriptor, Nic, Ptag, Timeout, Vi, VipError};

const GROUP: &str = "peers";
const TIMEOUT: Timeout = Timeout::After(Duration::from_secs(10));
/// A message is the rank of its sender.
const MESSAGE_BYTES: usize = 4;
/// Both VIs of a connection must have the same value; the C example has it, too.
const MAX_TRANSFER_BYTES: u64 = 4096;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The rank of this part and the number of parts.
#[derive(Clone, Copy)]
struct Part {
    rank: u32,
    parts: u32,
}

impl Part {
    fn from_arguments() -> Option<Self> {
        let mut arguments = arguments().ok()?;
        let mut number = || arguments.next()?.parse().ok();
        let (rank, parts) = (number()?, number()?);
        let is_last = arguments.next().is_none();
        (is_last && rank < parts).then_some(Self { rank, parts })
    }

    /// Returns the discriminator of the connection to another part, which is the same for both.
    fn discriminator(self, other: u32) -> String {
        let (low, high) = (self.rank.min(other), self.rank.max(other));
        format!("{GROUP} {low}-{high}")
    }

    fn others(self) -> impl Iterator<Item = u32> {
        (0..self.parts).filter(move |other| *other != self.rank)
    }
}

/// Creates a descriptor with the buffer of a message.
fn descriptor(nic: &Nic, ptag: &Ptag) -> Outcome<Descriptor> {
    let mut descriptors = nic.create_descriptors(1, 1, ptag)?;
    let mut descriptor = descriptors.pop().ok_or("no descriptor")?;
    descriptor
        .push(nic.create_region(MESSAGE_BYTES, ptag)?.into_buffer())
        .map_err(|_| "a descriptor without a segment")?;
    Ok(descriptor)
}

/// Returns the completed descriptor of a queue; fails if there is none or its status is an error.
fn check_completed(head: Option<Completed>) -> Outcome<Completed> {
    head.ok_or("the queue is empty")?
        .ok()
        .map_err(|failed| failed.status.to_string().into())
}

/// Requests a connection to part `other`; the request is matched in the background.
fn request_connection(nic: &Nic, ptag: &Ptag, part: Part, other: u32) -> Outcome<Vi> {
    let vi = nic
        .vi(ptag)
        .max_transfer_bytes(MAX_TRANSFER_BYTES)
        .build()?;
    vi.post_recv(descriptor(nic, ptag)?)?;
    let own = nic.local_address(format!("{GROUP} {}", part.rank).as_bytes())?;
    let peer = nic.local_address(part.discriminator(other).as_bytes())?;
    vi.connect_peer(&own, &peer, TIMEOUT)?;
    Ok(vi)
}

/// Polls all requests until each is connected.
fn connect_all(peers: &[(u32, Vi)]) -> Outcome<()> {
    let mut pending: Vec<&(u32, Vi)> = peers.iter().collect();
    while !pending.is_empty() {
        let mut still_pending = Vec::new();
        for peer in pending {
            match peer.1.connect_peer_done() {
                Ok(_) => {}
                Err(VipError::NotDone) => still_pending.push(peer),
                Err(error) => {
                    return Err(format!("no connection with part {}: {error}", peer.0).into());
                }
            }
        }
        pending = still_pending;
        // An application would compute here.
        std::thread::yield_now();
    }
    Ok(())
}

fn run(part: Part) -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let peers: Vec<(u32, Vi)> = part
        .others()
        .map(|other| Ok((other, request_connection(&nic, &ptag, part, other)?)))
        .collect::<Outcome<_>>()?;
    connect_all(&peers)?;
    for (_, vi) in &peers {
        let mut message = descriptor(&nic, &ptag)?;
        message
            .buffer_mut(0)
            .copy_from_slice(&part.rank.to_ne_bytes());
        vi.post_send(message)?;
    }
    let mut sum = part.rank;
    for (other, vi) in &peers {
        let message = check_completed(vi.recv_wait(TIMEOUT)?)?;
        let rank = u32::from_ne_bytes(message.first_bytes().try_into()?);
        if rank != *other {
            return Err(format!("part {other}: received rank {rank}").into());
        }
        sum += rank;
        check_completed(vi.send_wait(TIMEOUT)?)?;
    }
    print(format_args!(
        "peers: part {} of {}: the sum is {sum}",
        part.rank, part.parts
    ))?;
    Ok(())
}

fn main() -> ExitCode {
    let Some(part) = Part::from_arguments() else {
        print_error(format_args!("usage: peers RANK PARTS"));
        return ExitCode::from(2);
    };
    exit_code("peers", run(part))
}
