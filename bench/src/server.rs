//! The end that answers.

use std::time::Duration;

use pmd::config::NicConfig;
use vipl::{ConnectIndication, Timeout, VipError, provider};

use crate::channel::{self, Channel, Message, RawRound, Seen, VERSION};
use crate::cli::{AnswerOptions, Options};
use crate::control::RawEnd;
use crate::endpoint::{Endpoint, RemoteMemory};
use crate::error::{Error, Result};
use crate::latency::PingPong;
use crate::nic::{self, Nic, Selection};
use crate::plan::{Benchmark, Test};
use crate::process::{self, Stop};
use crate::stream::Receiver;

/// The tag of a program that listens for other hosts.
pub(crate) const PUBLIC_TAG: &str = "public";

/// How often a listener that waits looks whether it is to stop.
const LISTEN_TURN: Duration = Duration::from_millis(200);

/// Answers the process that started this one, until it says that the run is over.
pub(crate) fn answer_parent(options: &AnswerOptions) -> Result<()> {
    let stop = Stop::left_to_parent()?;
    if let Some(core) = options.core {
        process::pin(core)?;
    }
    let config = Selection {
        config: options.config.clone(),
        device: options.device.clone(),
        segment: options.segment.clone(),
    }
    .load()?;
    let nic = Nic::open(&config)?;
    process::report_ready();
    Answerer::new(&nic, &config, &options.tag, &stop).serve_one()
}

/// Answers other hosts, one after the other, until interrupted.
pub(crate) fn listen(options: &Options, stop: &Stop) -> Result<()> {
    if let Some(cores) = options.cores {
        process::pin(cores.far)?;
    }
    let config = Selection {
        config: options.config.clone(),
        device: options.device.clone(),
        segment: None,
    }
    .load()?;
    let nic = Nic::open(&config)?;
    println!("vibench: listening; end with Ctrl-C");
    while !stop.is_asked() {
        match Answerer::new(&nic, &config, PUBLIC_TAG, stop).serve_one() {
            Ok(()) => {}
            Err(_) if stop.is_asked() => {}
            Err(error) => eprintln!("vibench: {error}"),
        }
    }
    Ok(())
}

/// A test that is connected.
enum Open {
    PingPong(Box<PingPong>),
    Stream(Box<Receiver>),
}

impl Open {
    fn new(nic: &Nic, test: &Test) -> Result<Self> {
        Ok(match test.benchmark {
            Benchmark::Latency => Self::PingPong(Box::new(PingPong::new(nic, test)?)),
            Benchmark::Bandwidth | Benchmark::Rate => {
                Self::Stream(Box::new(Receiver::new(nic, test)?))
            }
        })
    }

    fn endpoint(&self) -> &Endpoint {
        match self {
            Self::PingPong(end) => end.endpoint(),
            Self::Stream(end) => end.endpoint(),
        }
    }

    fn set_peer(&mut self, memory: RemoteMemory) {
        match self {
            Self::PingPong(end) => end.set_peer(memory),
            Self::Stream(end) => end.set_peer(memory),
        }
    }
}

struct Answerer<'a> {
    nic: &'a Nic,
    config: &'a NicConfig,
    tag: &'a str,
    stop: &'a Stop,
    open: Option<Open>,
    raw: Option<RawEnd>,
}

impl<'a> Answerer<'a> {
    fn new(nic: &'a Nic, config: &'a NicConfig, tag: &'a str, stop: &'a Stop) -> Self {
        Self {
            nic,
            config,
            tag,
            stop,
            open: None,
            raw: None,
        }
    }

    /// Waits for a measuring end and answers it until it quits.
    fn serve_one(mut self) -> Result<()> {
        let mut channel = Channel::new(self.nic)?;
        let indication = self.wait_for_request("control", None)?;
        channel.endpoint().accept(indication.conn)?;
        loop {
            let message = channel.receive(None, || self.go_on())?;
            if message == Message::Quit {
                return channel.send(&Message::Ready);
            }
            match self.answer(message, &mut channel) {
                Ok(()) => {}
                Err(error @ Error::Broken(_)) => return Err(error),
                Err(error) => channel.send(&Message::Refused(shorten(&error.to_string())))?,
            }
        }
    }

    fn go_on(&self) -> Result<()> {
        if self.stop.is_asked() {
            return Err(Error::Broken("interrupted".into()));
        }
        Ok(())
    }

    fn answer(&mut self, message: Message, channel: &mut Channel) -> Result<()> {
        match message {
            Message::Hello { version: VERSION } => channel.send(&Message::Ready),
            Message::Hello { version } => Err(Error::Peer(format!(
                "speaks version {VERSION}, not {version}"
            ))),
            Message::Open {
                test,
                number,
                memory,
            } => self.open(&test, number, memory, channel),
            Message::Round => self.round(channel),
            Message::Close => {
                self.open = None;
                channel.send(&Message::Ready)
            }
            Message::RawOpen => {
                let raw = match self.raw.take() {
                    Some(raw) => raw,
                    None => RawEnd::new(nic::open_raw_port(self.config, false)?),
                };
                let answer = Message::RawOpened {
                    mac: raw.mac(),
                    max_frame_bytes: raw.max_frame_bytes(),
                };
                self.raw = Some(raw);
                channel.send(&answer)
            }
            Message::RawRound(round) => self.raw_round(&round, channel),
            message => Err(channel::out_of_place(&message)),
        }
    }

    fn open(
        &mut self,
        test: &Test,
        number: u32,
        memory: RemoteMemory,
        channel: &mut Channel,
    ) -> Result<()> {
        test.check()?;
        self.open = None;
        let mut open = Open::new(self.nic, test)?;
        open.set_peer(memory);
        channel.send(&Message::Opened {
            memory: open.endpoint().remote_memory(),
        })?;
        let purpose = format!("data {number}");
        let indication = self.wait_for_request(&purpose, Some(channel::ANSWER_TIMEOUT))?;
        open.endpoint().accept(indication.conn)?;
        self.open = Some(open);
        Ok(())
    }

    fn wait_for_request(
        &self,
        purpose: &str,
        timeout: Option<Duration>,
    ) -> Result<ConnectIndication> {
        let local = self.nic.local(channel::discriminator(self.tag, purpose)?);
        loop {
            let turn = Timeout::After(timeout.unwrap_or(LISTEN_TURN));
            match provider::connect_wait(self.nic.handle(), &local, turn) {
                Ok(indication) => return Ok(indication),
                Err(VipError::Timeout) if timeout.is_none() => self.go_on()?,
                Err(error) => return Err(Error::call("VipConnectWait", error)),
            }
        }
    }

    fn round(&mut self, channel: &mut Channel) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(Error::Peer("has no open test".into()));
        };
        channel.send(&Message::Ready)?;
        let seen = match open {
            Open::PingPong(end) => Seen {
                broken: end.echo(channel)?,
                ..Seen::default()
            },
            Open::Stream(end) => end.run(channel)?,
        };
        channel.send(&Message::Finished(seen))
    }

    fn raw_round(&mut self, round: &RawRound, channel: &mut Channel) -> Result<()> {
        let Some(raw) = &mut self.raw else {
            return Err(Error::Port("is not open".into()));
        };
        raw.begin(round)?;
        channel.send(&Message::Ready)?;
        let seen = match round.benchmark {
            Benchmark::Latency => {
                raw.echo()?;
                Seen::default()
            }
            Benchmark::Bandwidth | Benchmark::Rate => raw.receive()?,
        };
        channel.send(&Message::Finished(seen))
    }
}

/// The part of a reason that fits a message.
fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}
