//! A station that sends what no port should: frames that were seen on the network, changed or at the wrong time.
//!
//! It sends frames of the kinds that are named, in turn: so many of each at least, and more until its input ends. It tells how
//! many at its end, and how many of these went to all stations. The same seed and the same frames make the same choices.

#![forbid(unsafe_code)]

mod bytes;
mod fip;
mod frames;
mod seen;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use clap::Parser;
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::{BURST, MacBytes, MbufBatch, Port};

use crate::bytes::Rng;
use crate::seen::Seen;

/// What can go wrong, in words.
type Failure = Box<dyn std::error::Error>;

/// Who we are, if anybody should ask.
const OWN_MAC: MacBytes = [0x02, 0, 0, 0, 0x66, 0x66];
/// From one burst to the next, so that the flood lasts while others work.
const PAUSE: Duration = Duration::from_millis(5);
/// The bit of an address's first byte that says that it is not of one station.
const GROUP: u8 = 1;
/// A port without room is tried again this often.
const TRIES: u32 = 1000;

/// Makes a frame of a kind; `None` if nothing that it is made of was seen.
type Make = fn(&Seen, &mut Rng) -> Option<Vec<u8>>;

#[derive(Parser)]
struct Cli {
    /// The network interface.
    #[arg(long)]
    interface: String,
    /// A capture file of the network.
    #[arg(long)]
    seen: PathBuf,
    /// Seed of the random choices.
    #[arg(long)]
    seed: u64,
    /// Frames of each kind, at least.
    #[arg(long)]
    each: u64,
    /// The kinds.
    #[arg(required = true)]
    kinds: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vi-hostile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    let seen = Seen::read(&std::fs::read(&cli.seen)?)?;
    let mut rng = Rng::new(cli.seed);
    let kinds: Vec<(&str, Make)> = cli
        .kinds
        .iter()
        .map(|name| Ok((name.as_str(), kind(name)?)))
        .collect::<Result<_, Failure>>()?;
    let mut sender = Sender::open(&cli.interface)?;
    let input = until_input_ends();
    let mut to_all = vec![0; kinds.len()];
    let mut rounds = 0;
    while rounds < cli.each || input.try_recv() != Err(TryRecvError::Disconnected) {
        rounds += 1;
        for ((name, make), to_all) in kinds.iter().zip(&mut to_all) {
            let frame = make(&seen, &mut rng);
            let frame = frame.ok_or(format!("{name}: nothing to make it of was seen"))?;
            *to_all += u64::from(frame[0] & GROUP);
            sender.send(&frame)?;
        }
    }
    sender.flush()?;
    for ((name, _), to_all) in kinds.iter().zip(to_all) {
        println!("count {name} {rounds}");
        println!("count {name}_to_all {to_all}");
    }
    Ok(())
}

/// Its sender goes when the input ends.
fn until_input_ends() -> Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _sender = sender;
        // Whatever is said: the end is what counts.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    });
    receiver
}

fn kind(name: &str) -> Result<Make, Failure> {
    let known = frames::KINDS.iter().chain(fip::KINDS);
    let found = known.clone().find(|(known, _)| *known == name);
    let (_, make) = found.ok_or_else(|| {
        let names: Vec<&str> = known.map(|(name, _)| *name).collect();
        format!("no kind {name:?}: there are {}", names.join(", "))
    })?;
    Ok(*make)
}

/// Sends frames as they are.
struct Sender {
    port: AfPacketPort,
    batch: MbufBatch,
    waiting: usize,
}

impl Sender {
    fn open(interface: &str) -> Result<Self, Failure> {
        Ok(Self {
            port: AfPacketPort::open(AfPacketConfig::new(interface, OWN_MAC))?,
            batch: MbufBatch::new(),
            waiting: 0,
        })
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Failure> {
        let dst = *frame.first_chunk().ok_or("a frame without an address")?;
        let mut mbuf = self.port.alloc(dst).ok_or("no buffer")?;
        let room = mbuf.buffer_mut().get_mut(..frame.len());
        room.ok_or("a frame that is too long")?
            .copy_from_slice(frame);
        mbuf.set_len(frame.len());
        self.batch.push(mbuf).map_err(|_| "a full batch")?;
        self.waiting += 1;
        if self.waiting == BURST {
            self.flush()?;
            thread::park_timeout(PAUSE);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        for _ in 0..TRIES {
            self.waiting -= self.port.tx_burst(&mut self.batch);
            if self.waiting == 0 {
                return Ok(());
            }
            thread::park_timeout(PAUSE);
        }
        Err("the port takes nothing".into())
    }
}
