//! The end that measures and reports.

use std::io::IsTerminal;
use std::time::Duration;

use pmd::config::NicConfig;

use crate::channel::{Channel, Message, Purpose, out_of_place};
use crate::cli::{self, Cores, Ends, Options};
use crate::control::near::{self, Near as Control};
use crate::error::{Error, Result};
use crate::floor::Floor;
use crate::latency::Limit;
use crate::nic::{self, Choice, Nic, Selection};
use crate::open::{Near, Open};
use crate::output;
use crate::plan::{Benchmark, Level, Op, Test};
use crate::process::{self, Partner, Stop};
use crate::reach::Reach;
use crate::report::{self, ControlResult, JsonFile, TestResult};
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
    let mut choice = selection.load()?;
    if options.shortcut && nic::is_vi_tcp(&choice.config) {
        return Err(Error::Usage(
            "--shortcut: VI/TCP has none, its messages go over TCP within a program, too".into(),
        ));
    }
    choice.config.shortcut |= options.shortcut;
    let json = JsonFile::open(options.ends.json.as_deref())?;
    // Before this thread stays on one of them.
    let cores = process::cores_of_run(&options.ends, &choice)?;
    if cores.is_some_and(|cores| cores.near == cores.far) && !choice.is_attached() {
        process::share_core();
    }
    let (partner, thread) = if options.shortcut {
        let thread = server::answer_here(cores, &choice, &tag, &stop)?;
        (None, Some(thread))
    } else {
        (
            Partner::of_run(&options.ends, &selection, cores, &tag)?,
            None,
        )
    };
    let nic = Nic::open(&choice)?;
    let floor = Floor::of_run(&options.ends, &choice, cores);
    let mut session = Session::connect(&nic, &choice, floor, options, &tag, stop)?;
    let (results, outcome) = session.measure_all(&tests);
    let outcome = outcome.and_then(|()| explain(&options.ends, cores, &results));
    if let Some(json) = json {
        json.write(&results)?;
    }
    if outcome.is_ok() {
        session.channel.quit()?;
        drop(session);
        if let Some(partner) = partner {
            partner.finish();
        }
        if let Some(thread) = thread {
            let answered = thread.join();
            answered.map_err(|_| Error::Peer("ended before the run was over".into()))??;
        }
    }
    outcome
}

/// What stands below the table: the cores, and what was measured beside the messages.
fn explain(ends: &Ends, cores: Option<Cores>, results: &[TestResult]) -> Result<()> {
    output::line(format_args!("  cores: {}", process::describe(ends, cores)))?;
    let controls = results.iter().filter_map(|result| result.control.as_ref());
    let mut names: Vec<&str> = controls.map(|control| control.name.as_str()).collect();
    names.dedup();
    for name in &names {
        output::line(format_args!(
            "  control: {name}, without the stack, in rounds between ours"
        ))?;
    }
    if names.is_empty() {
        return Ok(());
    }
    output::line(format_args!(
        "  ratio: ours divided by the control's; below 1 is better for latency, above 1 for rate and bandwidth"
    ))
}

struct Session<'a> {
    nic: &'a Nic,
    config: &'a NicConfig,
    options: &'a Options,
    stop: Stop,
    reach: Reach<'a>,
    channel: Channel,
    /// The NIC is a datapath process's.
    is_attached: bool,
    /// What is measured beside it.
    floor: Option<Floor>,
    /// Connections that carry nothing.
    idle: Vec<Open<Near>>,
    /// There can be a raw port beside the NIC's own, or a raw TCP connection.
    has_raw: bool,
    raw: Option<Control>,
    opened: u32,
}

impl<'a> Session<'a> {
    fn connect(
        nic: &'a Nic,
        choice: &'a Choice,
        floor: Option<Floor>,
        options: &'a Options,
        tag: &'a str,
        stop: Stop,
    ) -> Result<Self> {
        let reach = Reach::new(nic, &options.ends, tag, stop.clone())?;
        let channel = reach.channel()?;
        let has_raw = near::exists_beside(&choice.config);
        if !has_raw && !choice.is_attached() && !options.no_control {
            output::note(format_args!(
                "no control: DPDK's device {:?} has one port, which is the NIC's; `vibench port` measures it alone",
                choice.config.device
            ));
        }
        Ok(Self {
            nic,
            config: &choice.config,
            is_attached: choice.is_attached(),
            floor,
            options,
            stop,
            reach,
            channel,
            idle: Vec::new(),
            has_raw,
            raw: None,
            opened: 0,
        })
    }

    /// Measures one test after the other and prints each; what was measured
    /// before an error is given back with it.
    fn measure_all(&mut self, tests: &[Test]) -> (Vec<TestResult>, Result<()>) {
        let mut results = Vec::new();
        if let Err(error) = self.open_idle() {
            return (results, Err(error));
        }
        if let Err(error) = output::line(format_args!("{}", report::table_head())) {
            return (results, Err(error));
        }
        for test in tests {
            let mut result = TestResult::new(test, self.way().to_owned());
            result.connections = self.options.active;
            let mut outcome = self.measure(test, &mut result);
            if outcome.is_ok() || result.rounds > 0 {
                let printed = output::line(format_args!("{}", report::table_row(&result)));
                outcome = outcome.and(printed);
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
        let mut turn_ns = Vec::new();
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
            let (turns, delivered) = (self.nic.turns()?, result.delivered);
            outcome = self.round(test, &mut open, &limit, &mut ours, result);
            let messages = result.delivered - delivered;
            turn_ns.extend(self.nic.turns()?.ns_per_message(&turns, messages));
            let wanted = outcome.is_ok() && !self.options.no_control && !self.stop.is_asked();
            if wanted && self.is_attached {
                control_name = self.floor_name(test);
                outcome = self.floor_round(test, &limit, &mut control);
            } else if wanted && self.has_raw {
                let raw = match &mut self.raw {
                    Some(raw) => raw,
                    none => {
                        none.insert(Control::open(self.config, &self.reach, &mut self.channel)?)
                    }
                };
                control_name = Some(raw.name(test)?);
                outcome = raw.round(test, &limit, &mut self.channel, &mut control);
            }
        }
        self.clear_progress();
        result.figures = ours.figures(test.size_bytes);
        result.round_spread = ours.spread();
        result.turn_ns_per_message = report::median(&mut turn_ns);
        result.ratio = ours
            .typical_round()
            .zip(control.typical_round())
            .map(|(ours, control)| ours / control);
        result.control = control_name.map(|name| ControlResult {
            name,
            round_spread: control.spread(),
            figures: control.figures(test.size_bytes),
        });
        outcome?;
        self.channel.tell(&Message::Close)
    }

    /// What carries the messages.
    fn way(&self) -> &'static str {
        if self.options.shortcut {
            "shortcut"
        } else if self.is_attached && !nic::is_vi_tcp(self.config) {
            "process"
        } else {
            nic::port_name(self.config)
        }
    }

    fn limit(&self, duration: Duration) -> Limit {
        Limit {
            duration,
            messages: self.options.messages,
            stop: self.stop.clone(),
        }
    }

    fn open_idle(&mut self) -> Result<()> {
        let test = Test::new(Benchmark::Latency, Op::Send, Level::Rd, 8, 1, None)?;
        while self.idle.len() < self.options.idle as usize && !self.stop.is_asked() {
            let open = self.connected(&test, false)?;
            self.channel.tell(&Message::Keep)?;
            self.idle.push(open);
        }
        Ok(())
    }

    /// A test with all its connections.
    fn open(&mut self, test: &Test) -> Result<Open<Near>> {
        let mut open = self.connected(test, false)?;
        for _ in 1..self.options.active {
            let another = self.connected(test, true)?;
            open.join(another)?;
        }
        Ok(open)
    }

    /// One connection of a test: its first one, or one that joins those that it has.
    fn connected(&mut self, test: &Test, joins: bool) -> Result<Open<Near>> {
        let mut open = Open::<Near>::new(self.nic, test)?;
        self.opened += 1;
        let number = self.opened;
        let answer = self.channel.ask(&Message::Open {
            test: *test,
            number,
            memory: open.endpoint().remote_memory(),
            joins,
        })?;
        let Message::Opened { memory } = answer else {
            return Err(out_of_place(&answer));
        };
        open.set_peer(memory);
        self.reach.connect(open.endpoint(), Purpose::Data(number))?;
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

    /// What is measured beside a datapath process: its raw port is not on the way of messages
    /// that it moves itself.
    fn floor_name(&self, test: &Test) -> Option<String> {
        let floor = self.floor?;
        let Cores { near, far } = floor.ends;
        match test.benchmark {
            Benchmark::Latency => Some(format!(
                "a word from core {near} by core {} to core {far}",
                floor.relay
            )),
            Benchmark::Bandwidth => Some(format!("one copy on core {}", floor.relay)),
            Benchmark::Rate => None,
        }
    }

    fn floor_round(&self, test: &Test, limit: &Limit, tally: &mut Tally) -> Result<()> {
        let Some(floor) = self.floor else {
            return Ok(());
        };
        match test.benchmark {
            Benchmark::Latency => {
                let mut histogram = new_histogram()?;
                let pinged = floor.ping(limit, &mut histogram)?;
                let messages_each = if test.op == Op::Read { 1 } else { PING_PONG };
                tally.add_pings(&histogram, pinged.elapsed, messages_each);
            }
            Benchmark::Bandwidth => tally.add_stream(&floor.copy(test, limit)?),
            Benchmark::Rate => {}
        }
        Ok(())
    }

    /// Whether the run is long enough, and somebody is there, to be told of it.
    fn is_watched(&self) -> bool {
        self.options.seconds >= Duration::from_secs(2) && std::io::stderr().is_terminal()
    }

    fn show_progress(&self, test: &Test, round: u32) {
        if self.is_watched() {
            let Test {
                benchmark,
                op,
                level,
                size_bytes,
                ..
            } = test;
            let (round, rounds) = (round + 1, self.options.rounds);
            output::progress(format_args!(
                "\r{benchmark} {op} {level} {size_bytes} bytes: round {round} of {rounds} "
            ));
        }
    }

    fn clear_progress(&self) {
        if self.is_watched() {
            output::progress(format_args!("\r\x1b[K"));
        }
    }
}
