//! The end that answers.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pmd::config::NicConfig;
use vipl::{Timeout, VipError, provider};

use crate::channel::{self, Channel, Message, Party, Purpose, Seen, VERSION};
use crate::cli::{AnswerOptions, Cores, Ends};
use crate::connections::{Round, far};
use crate::control;
use crate::endpoint::{Endpoint, RemoteMemory};
use crate::error::{Error, Result};
use crate::nic::{Choice, Nic, Selection};
use crate::open::{Far, Open};
use crate::output;
use crate::plan::Test;
use crate::process::{self, Stop};

/// The tag of a program that listens for other hosts.
pub(crate) const PUBLIC_TAG: &str = "public";

/// How often a listener that waits looks whether it is to stop.
const LISTEN_TURN: Duration = Duration::from_millis(200);

/// How often an end that waits for the connection of a test looks whether its last
/// answer was lost.
const CONNECT_TURN: Duration = Duration::from_millis(20);

/// Answers the process that started this one, until it says that the run is over.
pub(crate) fn answer_parent(options: &AnswerOptions) -> Result<()> {
    let stop = Stop::left_to_parent()?;
    if let Some(core) = options.core {
        process::pin(core)?;
    }
    if options.shares_core {
        process::share_core();
    }
    let config = Selection {
        config: options.config.clone(),
        device: options.device.clone(),
        segment: options.segment.clone(),
        memory: options.memory,
    }
    .load()?;
    let nic = Nic::open(&config)?;
    let config = config.config;
    process::report_ready()?;
    Answerer::new(&nic, &config, &options.tag, &stop).serve_one()
}

/// Answers this process, with a thread that ends with the run, or with the process.
pub(crate) fn answer_here(
    cores: Option<Cores>,
    choice: &Choice,
    tag: &str,
    stop: &Stop,
) -> Result<JoinHandle<Result<()>>> {
    // First: a thread of the NIC may want a core that this one leaves.
    let nic = Nic::open(choice)?;
    if let Some(cores) = cores {
        process::pin(cores.near)?;
    }
    let (config, tag, stop) = (choice.config.clone(), tag.to_owned(), stop.clone());
    Ok(std::thread::spawn(move || {
        if let Some(cores) = cores {
            process::pin(cores.far)?;
        }
        Answerer::new(&nic, &config, &tag, &stop).serve_one()
    }))
}

/// Answers other hosts, one after the other, until interrupted.
pub(crate) fn listen(ends: &Ends, stop: &Stop) -> Result<()> {
    if let Some(cores) = ends.cores {
        process::pin(cores.far())?;
    }
    let config = Selection {
        config: ends.config.clone(),
        device: ends.device.clone(),
        segment: None,
        memory: ends.memory,
    }
    .load()?;
    let nic = Nic::open(&config)?;
    let config = config.config;
    output::line(format_args!("vibench: listening; end with Ctrl-C"))?;
    while !stop.is_asked() {
        match Answerer::new(&nic, &config, PUBLIC_TAG, stop).serve_one() {
            Ok(()) => {}
            Err(_) if stop.is_asked() => {}
            Err(error) => output::note(format_args!("{error}")),
        }
    }
    Ok(())
}

struct Answerer<'a> {
    nic: &'a Nic,
    config: &'a NicConfig,
    tag: &'a str,
    stop: &'a Stop,
    open: Option<Open<Far>>,
    kept: Vec<Open<Far>>,
    raw: Option<control::far::Far>,
}

impl<'a> Answerer<'a> {
    fn new(nic: &'a Nic, config: &'a NicConfig, tag: &'a str, stop: &'a Stop) -> Self {
        Self {
            nic,
            config,
            tag,
            stop,
            open: None,
            kept: Vec::new(),
            raw: None,
        }
    }

    /// Waits for a measuring end and answers it until it quits.
    fn serve_one(mut self) -> Result<()> {
        let mut channel = Channel::answering(self.nic)?;
        while !self.admit(Purpose::Control, LISTEN_TURN, channel.endpoint())? {
            self.go_on()?;
        }
        loop {
            let message = channel.receive(None, || self.go_on())?;
            if message == Message::Quit {
                return channel.answer(&Message::Ready);
            }
            match self.answer(message, &mut channel) {
                Ok(()) => {}
                Err(error @ Error::Broken(_)) => return Err(error),
                Err(error) if channel.owes_answer() => {
                    channel.answer(&Message::Refused(shorten(&error.to_string())))?;
                }
                Err(error) => return Err(error),
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
            Message::Hello { version: VERSION } => channel.answer(&Message::Ready),
            Message::Hello { version } => Err(Error::Peer(format!(
                "speaks version {VERSION}, not {version}"
            ))),
            Message::Open {
                test,
                number,
                memory,
                joins,
            } => {
                if !joins {
                    self.open = None;
                }
                let opened = self.connected(&test, number, memory, channel)?;
                match &mut self.open {
                    Some(open) => open.join(opened),
                    none => {
                        *none = Some(opened);
                        Ok(())
                    }
                }
            }
            Message::Round => self.round(channel),
            Message::Close => {
                self.open = None;
                channel.answer(&Message::Ready)
            }
            Message::Keep => {
                self.kept.extend(self.open.take());
                channel.answer(&Message::Ready)
            }
            Message::RawOpen => {
                let raw = match &mut self.raw {
                    Some(raw) => raw,
                    none => none.insert(control::far::Far::open(self.nic, self.config)?),
                };
                channel.answer(&Message::RawOpened(raw.place()?))
            }
            Message::RawRound(round) => self.raw()?.frames(&round, channel),
            Message::RawStop => {
                let seen = self.raw()?.take_seen()?;
                channel.answer(&Message::Finished(seen))
            }
            Message::StreamRound(round) => self.raw()?.stream(&round, channel),
            Message::Admit(round) => self.admit_round(&round, channel),
            message => Err(channel::out_of_place(&message)),
        }
    }

    fn raw(&mut self) -> Result<&mut control::far::Far> {
        let raw = self.raw.as_mut();
        raw.ok_or_else(|| Error::Port("is not open".into()))
    }

    /// Makes an end of a test and waits for its connection.
    fn connected(
        &self,
        test: &Test,
        number: u32,
        memory: RemoteMemory,
        channel: &mut Channel,
    ) -> Result<Open<Far>> {
        test.check()?;
        let mut open = Open::<Far>::new(self.nic, test)?;
        open.set_peer(memory);
        channel.answer(&Message::Opened {
            memory: open.endpoint().remote_memory(),
        })?;
        let purpose = Purpose::Data(number);
        let start = Instant::now();
        while !self.admit(purpose, CONNECT_TURN, open.endpoint())? {
            // The answer that the other end connects by is repeated if it is asked for again.
            if channel.has_message()? || start.elapsed() > channel::ANSWER_TIMEOUT {
                return Err(Error::Peer("does not connect".into()));
            }
        }
        Ok(open)
    }

    /// Waits for a connection for one turn. False if none came about: nobody asked, or gave up
    /// before it was answered and will ask again.
    fn admit(&self, purpose: Purpose, turn: Duration, endpoint: &Endpoint) -> Result<bool> {
        let local = self
            .nic
            .local(channel::discriminator(self.tag, purpose, Party::Waiting)?);
        let found = provider::connect_wait(self.nic.handle(), &local, Timeout::After(turn));
        let accepted = match found {
            Ok(indication) => endpoint.accept(indication.conn),
            Err(error) => Err(Error::call("VipConnectWait", error)),
        };
        match accepted {
            Ok(()) => Ok(true),
            Err(Error::Call {
                error: VipError::Timeout,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn round(&mut self, channel: &mut Channel) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(Error::Peer("has no open test".into()));
        };
        channel.answer(&Message::Ready)?;
        let outcome = match open {
            Open::PingPong(end) => end.echo(channel).map(|broken| Seen {
                broken,
                ..Seen::default()
            }),
            Open::Stream(end) => end.run(channel),
            Open::Read(end) => end.run(channel),
        };
        if outcome.is_err() && !channel.owes_answer() {
            // The reason is told when it is asked for.
            channel.wait_for_stop()?;
        }
        channel.answer(&Message::Finished(outcome?))
    }

    /// A round of connections; what came of it is told when it is asked for.
    fn admit_round(&mut self, round: &Round, channel: &mut Channel) -> Result<()> {
        let mut admission = far::Admission::new(self.nic, self.tag, round)?;
        channel.answer(&Message::Ready)?;
        let outcome = admission.run(channel);
        while !channel.owes_answer() {
            match channel.receive(None, || self.go_on())? {
                Message::Admissions => {}
                message => return Err(channel::out_of_place(&message)),
            }
        }
        channel.answer(&Message::Admitted(admission.close(outcome)?))
    }
}

/// The part of a reason that fits a message.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(200).collect()
}
