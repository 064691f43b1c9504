//! The end that measures and reports.

use std::io::IsTerminal;
use std::time::Duration;

use pmd::config::NicConfig;

use crate::channel::{Channel, Message, RawRound, out_of_place};
use crate::cli::{self, Options};
use crate::control::RawEnd;
use crate::error::{Error, Result};
use crate::latency::Limit;
use crate::nic::{self, Nic, Selection};
use crate::open::{Near, Open};
use crate::plan::{Benchmark, Frames, Level, Op, Test};
use crate::process::{Partner, Stop};
use crate::reach::Reach;
use crate::report::{self, ControlResult, TestResult};
use crate::server;
use crate::tally::{PING_PONG, Tally, new_histogram};

/// Runs a command of the user.
pub(crate) fn run(benchmark: Benchmark, options: &Options) -> Result<()> {
    cli::check(&options.ends)?;
    let stop = Stop::on_signals()?;
    if options.ends.listen {
        return server::listen(&options.ends, &stop);
    }
    let tests = options.tests(benchmark)?;
    let tag = std::process::id().to_string();
    let selection = Selection::of_run(&options.ends, &tag);
    let config = selection.load()?;
    let partner = Partner::of_run(&options.ends, &selection, &tag)?;
    let nic = Nic::open(&config)?;
    let mut session = Session::connect(&nic, &config, options, &tag, stop)?;
    let (results, outcome) = session.measure_all(&tests);
    if let Some(path) = &options.ends.json {
        report::write_json(path, &results)?;
    }
    if outcome.is_ok() {
        session.channel.quit()?;
        drop(session);
        if let Some(partner) = partner {
            partner.finish();
        }
    }
    outcome
}

struct Session<'a> {
    nic: &'a Nic,
    config: &'a NicConfig,
    options: &'a Options,
    stop: Stop,
    reach: Reach<'a>,
    channel: Channel,
    raw: Option<RawEnd>,
    raw_peer: Option<(pmd_port::MacBytes, usize)>,
    opened: u32,
}

impl<'a> Session<'a> {
    fn connect(
        nic: &'a Nic,
        config: &'a NicConfig,
        options: &'a Options,
        tag: &'a str,
        stop: Stop,
    ) -> Result<Self> {
        let reach = Reach::new(nic, &options.ends, tag, stop.clone())?;
        let channel = reach.channel()?;
        Ok(Self {
            nic,
            config,
            options,
            stop,
            reach,
            channel,
            raw: None,
            raw_peer: None,
            opened: 0,
        })
    }

    /// Measures one test after the other and prints each; what was measured
    /// before an error is given back with it.
    fn measure_all(&mut self, tests: &[Test]) -> (Vec<TestResult>, Result<()>) {
        println!("{}", report::table_head());
        let mut results = Vec::new();
        for test in tests {
            let mut result = TestResult::new(test, nic::port_name(self.config).to_owned());
            let outcome = self.measure(test, &mut result);
            if outcome.is_ok() || result.rounds > 0 {
                println!("{}", report::table_row(&result));
                results.push(result);
            }
            if let Err(error) = outcome {
                return (results, Err(error));
            }
            if self.stop.is_asked() {
                break;
            }
        }
        (results, Ok(()))
    }

    fn measure(&mut self, test: &Test, result: &mut TestResult) -> Result<()> {
        let mut open = self.open(test)?;
        let mut ours = Tally::new()?;
        let mut control = Tally::new()?;
        let mut control_name = None;
        let warmup = self.limit(self.options.warmup);
        let mut outcome = Ok(());
        if !self.options.warmup.is_zero() {
            let mut unused = Tally::new()?;
            let mut warm = TestResult::new(test, String::new());
            outcome = self.round(test, &mut open, &warmup, &mut unused, &mut warm);
            result.ended_early = warm.ended_early;
        }
        let limit = self.limit(self.options.round());
        for round in 0..self.options.rounds {
            if outcome.is_err() || result.ended_early.is_some() {
                break;
            }
            if self.stop.is_asked() {
                result.ended_early = Some("interrupted".into());
                break;
            }
            self.show_progress(test, round);
            outcome = self.round(test, &mut open, &limit, &mut ours, result);
            if outcome.is_ok() && !self.options.no_control && !self.stop.is_asked() {
                let frames = self.open_raw(test)?;
                control_name = Some(self.control_name(&frames));
                outcome = self.control_round(test, frames, &limit, &mut control);
            }
        }
        self.clear_progress();
        result.figures = ours.figures(test.size_bytes);
        result.ratio = ours
            .typical_round()
            .zip(control.typical_round())
            .map(|(ours, control)| ours / control);
        result.control = control_name.map(|name| ControlResult {
            name,
            figures: control.figures(test.size_bytes),
        });
        outcome?;
        self.channel.tell(&Message::Close)
    }

    fn limit(&self, duration: Duration) -> Limit {
        Limit {
            duration,
            messages: self.options.messages,
            stop: self.stop.clone(),
        }
    }

    fn open(&mut self, test: &Test) -> Result<Open<Near>> {
        let mut open = Open::<Near>::new(self.nic, test)?;
        self.opened += 1;
        let number = self.opened;
        let answer = self.channel.ask(&Message::Open {
            test: *test,
            number,
            memory: open.endpoint().remote_memory(),
        })?;
        let Message::Opened { memory } = answer else {
            return Err(out_of_place(&answer));
        };
        open.set_peer(memory);
        self.reach
            .connect(open.endpoint(), &format!("data {number}"))?;
        Ok(open)
    }

    fn round(
        &mut self,
        test: &Test,
        open: &mut Open<Near>,
        limit: &Limit,
        tally: &mut Tally,
        result: &mut TestResult,
    ) -> Result<()> {
        self.channel.tell(&Message::Round)?;
        let (sent, broken) = match open {
            Open::PingPong(end) => {
                let mut histogram = new_histogram()?;
                let pinged = end.ping(limit, &mut histogram)?;
                tally.add_pings(&histogram, pinged.elapsed, PING_PONG);
                result.delivered += PING_PONG * pinged.round_trips;
                result.lost += pinged.lost;
                (0, pinged.broken)
            }
            Open::Read(end) if test.benchmark == Benchmark::Latency => {
                let mut histogram = new_histogram()?;
                let pinged = end.ping(limit, &mut histogram)?;
                tally.add_pings(&histogram, pinged.elapsed, 1);
                result.delivered += pinged.round_trips;
                (0, pinged.broken)
            }
            Open::Read(end) => {
                let seen = end.run(limit)?;
                tally.add_stream(&seen);
                result.delivered += seen.delivered;
                (0, seen.broken)
            }
            Open::Stream(end) => {
                let before = end.sent();
                let sent = end.run(limit)?;
                debug_assert_eq!(end.sent() - before, sent.messages);
                (sent.messages, sent.broken)
            }
        };
        let total = match open {
            Open::PingPong(_) | Open::Read(_) => 0,
            Open::Stream(end) => end.sent(),
        };
        let seen = self.channel.ask_seen(&Message::Stop { sent: total })?;
        if let Open::Stream(_) = open {
            tally.add_stream(&seen);
            result.delivered += seen.delivered;
            if test.level == Level::Ud {
                result.lost += sent.saturating_sub(seen.delivered);
            }
        }
        result.rounds += 1;
        result.ended_early = match (broken, seen.broken) {
            (Some(near), _) => Some(near),
            (None, Some(far)) => Some(format!("the other end: {far}")),
            (None, None) => None,
        };
        Ok(())
    }

    /// Opens the raw port at both ends, once, and gives the frames of a message on it.
    fn open_raw(&mut self, test: &Test) -> Result<Frames> {
        if self.raw.is_none() {
            self.raw = Some(RawEnd::new(nic::open_raw_port(self.config, true)?));
        }
        if self.raw_peer.is_none() {
            self.raw_peer = match self.channel.ask(&Message::RawOpen)? {
                Message::RawOpened {
                    mac,
                    max_frame_bytes,
                } => Some((mac, max_frame_bytes)),
                message => return Err(out_of_place(&message)),
            };
        }
        let near = self.raw.as_ref().map_or(0, RawEnd::max_frame_bytes);
        let far = self.raw_peer.map_or(0, |(_, bytes)| bytes);
        Frames::for_port(test.op, test.size_bytes, near.min(far))
    }

    fn control_name(&self, frames: &Frames) -> String {
        let driver = self.raw.as_ref().map_or("raw", RawEnd::driver);
        match frames.count {
            1 => format!("raw {driver}, a frame of {} bytes", frames.last_bytes),
            count => format!(
                "raw {driver}, {count} frames of {} bytes",
                frames.full_bytes
            ),
        }
    }

    fn control_round(
        &mut self,
        test: &Test,
        frames: Frames,
        limit: &Limit,
        tally: &mut Tally,
    ) -> Result<()> {
        let (Some(raw), Some((peer, _))) = (&mut self.raw, self.raw_peer) else {
            return Err(Error::Port("is not open".into()));
        };
        let mut round = RawRound {
            benchmark: test.benchmark,
            frames,
            mac: raw.mac(),
        };
        self.channel.tell(&Message::RawRound(round))?;
        round.mac = peer;
        let (ours, messages_each) = match (test.op, test.benchmark) {
            (Op::Read, Benchmark::Latency) => (Frames::of_read_request(), 1),
            _ => (frames, PING_PONG),
        };
        raw.begin(&round, ours)?;
        let mut histogram = new_histogram()?;
        let pinged = match test.benchmark {
            Benchmark::Latency => Some(raw.ping(limit, &mut histogram)?),
            Benchmark::Bandwidth | Benchmark::Rate => {
                raw.send(limit, test.batch)?;
                None
            }
        };
        let seen = self.channel.ask_seen(&Message::RawStop)?;
        match pinged {
            Some(pinged) => tally.add_pings(&histogram, pinged.elapsed, messages_each),
            None => tally.add_stream(&seen),
        }
        Ok(())
    }

    /// Whether the run is long enough, and somebody is there, to be told of it.
    fn is_watched(&self) -> bool {
        self.options.seconds >= Duration::from_secs(2) && std::io::stderr().is_terminal()
    }

    fn show_progress(&self, test: &Test, round: u32) {
        if self.is_watched() {
            eprint!(
                "\r{} {} {} {} bytes: round {} of {} ",
                test.benchmark,
                test.op,
                test.level,
                test.size_bytes,
                round + 1,
                self.options.rounds
            );
        }
    }

    fn clear_progress(&self) {
        if self.is_watched() {
            eprint!("\r\x1b[K");
        }
    }
}
