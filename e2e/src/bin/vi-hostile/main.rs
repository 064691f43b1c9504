//! A station that sends hostile frames: captured frames of the network, changed or replayed.
//!
//! It sends frames of the given kinds in turn, at least `--each` of each kind, and more until its input ends. At the
//! end it prints how many it sent, and how many of these were multicast. Frames are determined by seed and capture.

#![forbid(unsafe_code)]

mod bytes;
mod captured;
mod fip;
mod frames;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use clap::Parser;
use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::{BURST, MacBytes, MbufBatch, Port};

use e2e::failure::Failure;

use crate::bytes::Rng;
use crate::captured::CapturedFrames;

/// The MAC address of this station.
const OWN_MAC: MacBytes = [0x02, 0, 0, 0, 0x66, 0x66];
/// Pause after each burst.
const PAUSE: Duration = Duration::from_millis(5);
/// The multicast bit of the first byte of a MAC address.
const GROUP: u8 = 1;
/// Number of attempts to send on a full port.
const TRIES: u32 = 1000;

/// Makes a frame of one kind; `None` if the capture lacks a frame to derive it from.
type MakeFrame = fn(&CapturedFrames, &mut Rng) -> Option<Vec<u8>>;

#[derive(Parser)]
struct Cli {
    /// The network interface.
    #[arg(long)]
    interface: String,
    /// A pcap file with frames of the network.
    #[arg(long)]
    capture: PathBuf,
    /// An N_Port_ID in use that the capture does not show; can be repeated.
    #[arg(long = "used-id")]
    used_ids: Vec<u32>,
    /// Seed of the random number generator.
    #[arg(long)]
    seed: u64,
    /// Minimum number of frames of each kind.
    #[arg(long)]
    each: u64,
    /// Kinds of frames.
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
    let mut captured = CapturedFrames::read(&std::fs::read(&cli.capture)?)?;
    captured.used_ids.extend(&cli.used_ids);
    let mut rng = Rng::new(cli.seed);
    let kinds: Vec<(&str, MakeFrame)> = cli
        .kinds
        .iter()
        .map(|name| Ok((name.as_str(), kind(name)?)))
        .collect::<Result<_, Failure>>()?;
    let mut sender = Sender::open(&cli.interface)?;
    let input = until_input_ends();
    let mut multicasts = vec![0; kinds.len()];
    let mut rounds = 0;
    while rounds < cli.each || input.try_recv() != Err(TryRecvError::Disconnected) {
        rounds += 1;
        for ((name, make), multicasts) in kinds.iter().zip(&mut multicasts) {
            let frame = make(&captured, &mut rng);
            let frame = frame.ok_or(format!("{name}: no suitable frame in the capture"))?;
            *multicasts += u64::from(frame[0] & GROUP);
            sender.send(&frame)?;
        }
    }
    sender.flush()?;
    for ((name, _), multicasts) in kinds.iter().zip(multicasts) {
        println!("count {name} {rounds}");
        println!("count {name}_multicast {multicasts}");
    }
    Ok(())
}

/// Returns a channel that is disconnected when the input ends.
fn until_input_ends() -> Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let _sender = sender;
        // The content is ignored.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    });
    receiver
}

fn kind(name: &str) -> Result<MakeFrame, Failure> {
    let known = frames::KINDS.iter().chain(fip::KINDS);
    let found = known.clone().find(|(known, _)| *known == name);
    let (_, make) = found.ok_or_else(|| {
        let names: Vec<&str> = known.map(|(name, _)| *name).collect();
        format!("unknown kind {name:?}; known kinds: {}", names.join(", "))
    })?;
    Ok(*make)
}

/// Sends raw frames.
struct Sender {
    port: AfPacketPort,
    batch: MbufBatch,
    pending: usize,
}

impl Sender {
    fn open(interface: &str) -> Result<Self, Failure> {
        Ok(Self {
            port: AfPacketPort::open(AfPacketConfig::new(interface, OWN_MAC))?,
            batch: MbufBatch::new(),
            pending: 0,
        })
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Failure> {
        let dst = *frame
            .first_chunk()
            .ok_or("a frame has no destination address")?;
        let mut mbuf = self.port.alloc(dst).ok_or("no free buffer")?;
        let buffer = mbuf.buffer_mut().get_mut(..frame.len());
        buffer.ok_or("a frame is too long")?.copy_from_slice(frame);
        mbuf.set_len(frame.len());
        self.batch.push(mbuf).map_err(|_| "the batch is full")?;
        self.pending += 1;
        if self.pending == BURST {
            self.flush()?;
            thread::park_timeout(PAUSE);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        for _ in 0..TRIES {
            self.pending -= self.port.tx_burst(&mut self.batch);
            if self.pending == 0 {
                return Ok(());
            }
            thread::park_timeout(PAUSE);
        }
        Err("the port accepts no frames".into())
    }
}
