//! The parts of a parallel program, each connected with each other one. Nobody is the server: every part asks for all
//! the others at once and looks which of its requests have found their match. They may be started in any order; parts
//! of the C example `Peers` take part as well.
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
use common::{complain, end, print};
use vipl::{Completed, Descriptor, Nic, Ptag, Timeout, Vi, VipError};

const GROUP: &str = "peers";
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));
/// A message is the rank of its sender.
const MESSAGE_BYTES: usize = 4;
/// Both ends of a connection must agree in this, and so must the C example.
const MAX_TRANSFER_BYTES: u64 = 4096;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Which part of how many this is.
#[derive(Clone, Copy)]
struct Part {
    rank: u32,
    parts: u32,
}

impl Part {
    fn from_arguments() -> Option<Self> {
        let mut words = arguments().ok()?;
        let mut number = || words.next()?.parse().ok();
        let (rank, parts) = (number()?, number()?);
        let only = words.next().is_none();
        (only && rank < parts).then_some(Self { rank, parts })
    }

    /// Where this part and another one meet: both find the same name.
    fn meeting(self, other: u32) -> String {
        let (low, high) = (self.rank.min(other), self.rank.max(other));
        format!("{GROUP} {low}-{high}")
    }

    fn others(self) -> impl Iterator<Item = u32> {
        (0..self.parts).filter(move |other| *other != self.rank)
    }
}

fn descriptor(nic: &Nic, ptag: &Ptag) -> Outcome<Descriptor> {
    let mut made = nic.create_descriptors(1, 1, ptag)?;
    let mut descriptor = made.pop().ok_or("one descriptor was asked for")?;
    descriptor
        .push(nic.create_region(MESSAGE_BYTES, ptag)?.into_buffer())
        .map_err(|_| "a descriptor without a segment")?;
    Ok(descriptor)
}

fn collected(head: Option<Completed>) -> Outcome<Completed> {
    head.ok_or("the queue is empty")?
        .ok()
        .map_err(|failed| failed.status.to_string().into())
}

/// Asks for a connection with part `other`. The request lasts while this goes on with something else.
fn ask_for(nic: &Nic, ptag: &Ptag, part: Part, other: u32) -> Outcome<Vi> {
    let vi = nic
        .vi(ptag)
        .max_transfer_bytes(MAX_TRANSFER_BYTES)
        .build()?;
    vi.post_recv(descriptor(nic, ptag)?)?;
    let own = nic.local_address(format!("{GROUP} {}", part.rank).as_bytes())?;
    let meeting = nic.local_address(part.meeting(other).as_bytes())?;
    vi.connect_peer(&own, &meeting, PATIENCE)?;
    Ok(vi)
}

/// Looks after all requests until each has found its match.
fn connect_all(peers: &[(u32, Vi)]) -> Outcome<()> {
    let mut waiting: Vec<&(u32, Vi)> = peers.iter().collect();
    while !waiting.is_empty() {
        let mut still = Vec::new();
        for peer in waiting {
            match peer.1.connect_peer_done() {
                Ok(_) => {}
                Err(VipError::NotDone) => still.push(peer),
                Err(error) => {
                    return Err(format!("no connection with part {}: {error}", peer.0).into());
                }
            }
        }
        waiting = still;
        // A program would compute here.
        std::thread::yield_now();
    }
    Ok(())
}

fn run(part: Part) -> Outcome<()> {
    let nic = Nic::open("VINIC0")?;
    let ptag = nic.create_ptag()?;
    let peers: Vec<(u32, Vi)> = part
        .others()
        .map(|other| Ok((other, ask_for(&nic, &ptag, part, other)?)))
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
        let message = collected(vi.recv_wait(PATIENCE)?)?;
        let told = u32::from_ne_bytes(message.first_bytes().try_into()?);
        if told != *other {
            return Err(format!("part {other} says it is {told}").into());
        }
        sum += told;
        collected(vi.send_wait(PATIENCE)?)?;
    }
    print(format_args!(
        "peers: part {} of {}: the sum is {sum}",
        part.rank, part.parts
    ))?;
    Ok(())
}

fn main() -> ExitCode {
    let Some(part) = Part::from_arguments() else {
        complain(format_args!("usage: peers RANK PARTS"));
        return ExitCode::from(2);
    };
    end("peers", run(part))
}
