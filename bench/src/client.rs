//! The client: runs tests against the server, measures the controls, and reports.

use std::io::IsTerminal;
use std::time::Duration;

use pmd::config::NicConfig;
use vi_types::ReliabilityLevel;

use crate::baseline::Baseline;
use crate::channel::{Channel, Message, Purpose, unexpected_message};
use crate::cli::{self, CommonOptions, Cores, Options};
use crate::error::{Error, Result};
use crate::latency::RoundLimit;
use crate::nic::{self, Nic, NicSettings};
use crate::output;
use crate::plan::{Benchmark, Op, Test};
use crate::process::{self, ServerProcess, StopFlag};
use crate::raw_control::client::{self as raw_client, RawClient};
use crate::rendezvous::Rendezvous;
use crate::report::{self, ControlResult, JsonFile, TestResult};
use crate::server;
use crate::totals::{PING_PONG, Totals, new_histogram};
use crate::workload::{Client, Workload};

/// Runs `vibench latency`, `bandwidth` or `rate`.
pub(crate) fn run(benchmark: Benchmark, options: &Options) -> Result<()> {
    cli::check(&options.common)?;
    let stop = StopFlag::on_signals()?;
    if options.common.listen {
        return server::listen(&options.common, &stop);
    }
    let tests = options.tests(benchmark)?;
    let tag = std::process::id().to_string();
    let nic_options = options.common.nic_options(&tag);
    let mut settings = nic_options.load()?;
    if options.shortcut && nic::is_vi_tcp(&settings.config) {
        return Err(Error::Usage(
            "--shortcut is not supported with [nic.vi_tcp]".into(),
        ));
    }
    settings.config.fc_vi.shortcut |= options.shortcut;
    let json = JsonFile::open(options.common.json.as_deref())?;
    // Before this thread is pinned, which limits the cores that it may use.
    let cores = process::choose_run_cores(&options.common, &settings)?;
    if cores.is_some_and(|cores| cores.client == cores.server) && !settings.is_attached() {
        process::share_core();
    }
    let (server_process, thread) = if options.shortcut {
        let thread = server::serve_in_thread(cores, &settings, &tag, &stop)?;
        (None, Some(thread))
    } else {
        (
            ServerProcess::for_run(&options.common, &nic_options, cores, &tag)?,
            None,
        )
    };
    let nic = Nic::open(&settings)?;
    let baseline = Baseline::for_run(&options.common, &settings, cores);
    let mut session = ClientSession::connect(&nic, &settings, baseline, options, &tag, stop)?;
    let (results, outcome) = session.measure_all(&tests);
    let outcome = outcome.and_then(|()| print_notes(&options.common, cores, &results));
    if let Some(json) = json {
        json.write(&results)?;
    }
    if outcome.is_ok() {
        session.channel.quit()?;
        drop(session);
        if let Some(server_process) = server_process {
            server_process.finish();
        }
        if let Some(thread) = thread {
            let joined = thread.join();
            joined.map_err(|_| Error::Peer("server thread panicked".into()))??;
        }
    }
    outcome
}

/// Prints the lines below the table: the cores, and an explanation of `control` and `ratio`.
fn print_notes(common: &CommonOptions, cores: Option<Cores>, results: &[TestResult]) -> Result<()> {
    output::line(format_args!(
        "  cores: {}",
        process::describe_cores(common, cores)
    ))?;
    let controls = results.iter().filter_map(|result| result.control.as_ref());
    let mut names: Vec<&str> = controls.map(|control| control.name.as_str()).collect();
    names.dedup();
    for name in &names {
        output::line(format_args!(
            "  control: {name}, without the stack, in alternating rounds"
        ))?;
    }
    if names.is_empty() {
        return Ok(());
    }
    output::line(format_args!(
        "  ratio: stack / control; below 1 is better for latency, above 1 for rate and bandwidth"
    ))
}

/// The client's side of one run.
struct ClientSession<'a> {
    nic: &'a Nic,
    config: &'a NicConfig,
    options: &'a Options,
    stop: StopFlag,
    rendezvous: Rendezvous<'a>,
    channel: Channel,
    /// A datapath process owns the NIC.
    is_attached: bool,
    /// The control of a datapath process.
    baseline: Option<Baseline>,
    /// Connections without traffic.
    idle: Vec<Workload<Client>>,
    /// The NIC supports a raw control: a second port, or a raw TCP connection.
    has_raw_control: bool,
    raw_control: Option<RawClient>,
    opened: u32,
}

impl<'a> ClientSession<'a> {
    fn connect(
        nic: &'a Nic,
        settings: &'a NicSettings,
        baseline: Option<Baseline>,
        options: &'a Options,
        tag: &'a str,
        stop: StopFlag,
    ) -> Result<Self> {
        let rendezvous = Rendezvous::new(nic, &options.common, tag, stop.clone())?;
        let channel = rendezvous.channel()?;
        let has_raw_control = raw_client::is_available(&settings.config);
        if !has_raw_control && !settings.is_attached() && !options.no_control {
            output::note(format_args!(
                "no control: DPDK device {:?} has a single port, used by the NIC; `vibench port` measures it alone",
                settings.config.network.wire().unwrap_or_default()
            ));
        }
        Ok(Self {
            nic,
            config: &settings.config,
            is_attached: settings.is_attached(),
            baseline,
            options,
            stop,
            rendezvous,
            channel,
            idle: Vec::new(),
            has_raw_control,
            raw_control: None,
            opened: 0,
        })
    }

    /// Runs the tests in order and prints each result. After an error the results measured before are returned too.
    fn measure_all(&mut self, tests: &[Test]) -> (Vec<TestResult>, Result<()>) {
        let mut results = Vec::new();
        if let Err(error) = self.open_idle() {
            return (results, Err(error));
        }
        if let Err(error) = output::line(format_args!("{}", report::table_header())) {
            return (results, Err(error));
        }
        for test in tests {
            let mut result = TestResult::new(test, self.carrier().to_owned());
            let mut outcome = self.measure(test, &mut result);
            if outcome.is_ok() || result.rounds > 0 {
                let printed = output::line(format_args!("{}", report::table_row(&result)));
                outcome = outcome.and(printed);
                results.push(result);
            }
            if let Err(error) = outcome {
                return (results, Err(error));
            }
            if self.stop.is_set() {
                break;
            }
        }
        (results, Ok(()))
    }

    fn measure(&mut self, test: &Test, result: &mut TestResult) -> Result<()> {
        let mut workload = self.open(test, result)?;
        let mut stack = Totals::new()?;
        let mut control = Totals::new()?;
        let mut control_name = None;
        let mut poll_ns = Vec::new();
        let warmup = self.limit(self.options.warmup);
        let mut outcome = Ok(());
        if !self.options.warmup.is_zero() {
            let mut warmup_totals = Totals::new()?;
            let mut warmup_result = TestResult::new(test, String::new());
            outcome = self.round(
                test,
                &mut workload,
                &warmup,
                &mut warmup_totals,
                &mut warmup_result,
            );
            result.ended_early = warmup_result.ended_early;
        }
        let limit = self.limit(self.options.round());
        for round in 0..self.options.rounds {
            if outcome.is_err() || result.ended_early.is_some() {
                break;
            }
            if self.stop.is_set() {
                result.ended_early = Some("interrupted".into());
                break;
            }
            self.show_progress(test, round);
            let (counters, delivered) = (self.nic.poll_counters()?, result.delivered);
            outcome = self.round(test, &mut workload, &limit, &mut stack, result);
            let messages = result.delivered - delivered;
            poll_ns.extend(
                self.nic
                    .poll_counters()?
                    .ns_per_message(&counters, messages),
            );
            let measures_control =
                outcome.is_ok() && !self.options.no_control && !self.stop.is_set();
            if measures_control && self.is_attached {
                control_name = self.baseline_name(test);
                outcome = self.baseline_round(test, &limit, &mut control);
            } else if measures_control && self.has_raw_control && test.pause_us.is_none() {
                // A raw control polls.
                let raw_control = match &mut self.raw_control {
                    Some(raw_control) => raw_control,
                    none => none.insert(RawClient::open(
                        self.config,
                        &self.rendezvous,
                        &mut self.channel,
                    )?),
                };
                control_name = Some(raw_control.name(test)?);
                outcome = raw_control.round(test, &limit, &mut self.channel, &mut control);
            }
        }
        self.clear_progress();
        result.figures = stack.figures(test.size_bytes);
        result.round_spread = stack.spread();
        result.turn_ns_per_message = report::median(&mut poll_ns);
        result.ratio = stack
            .median_round()
            .zip(control.median_round())
            .map(|(stack, control)| stack / control);
        result.control = control_name.map(|name| ControlResult {
            name,
            round_spread: control.spread(),
            figures: control.figures(test.size_bytes),
        });
        outcome?;
        self.channel.command(&Message::Close)
    }

    /// Returns what carries the messages, for the key `port` of the result.
    fn carrier(&self) -> &'static str {
        if self.options.shortcut {
            "shortcut"
        } else if self.is_attached && !nic::is_vi_tcp(self.config) {
            "process"
        } else {
            nic::port_name(self.config)
        }
    }

    fn limit(&self, duration: Duration) -> RoundLimit {
        RoundLimit {
            duration,
            messages: self.options.messages,
            stop: self.stop.clone(),
        }
    }

    fn open_idle(&mut self) -> Result<()> {
        let test = Test::new(
            Benchmark::Latency,
            Op::Send,
            ReliabilityLevel::ReliableDelivery,
            8,
            1,
            None,
        )?;
        while self.idle.len() < self.options.idle as usize && !self.stop.is_set() {
            let workload = self.connected(&test, false)?;
            self.channel.command(&Message::Keep)?;
            self.idle.push(workload);
        }
        Ok(())
    }

    /// Creates and connects the client's end of a test, with all its connections unless it is interrupted.
    fn open(&mut self, test: &Test, result: &mut TestResult) -> Result<Workload<Client>> {
        let mut workload = self.connected(test, false)?;
        for _ in 1..self.options.active {
            if self.stop.is_set() {
                break;
            }
            let another = self.connected(test, true)?;
            workload.merge(another)?;
            result.connections += 1;
        }
        Ok(workload)
    }

    /// Creates one connection of a test: the first one, or with `joins` an additional one.
    fn connected(&mut self, test: &Test, joins: bool) -> Result<Workload<Client>> {
        let mut workload = Workload::<Client>::new(self.nic, test)?;
        self.opened += 1;
        let number = self.opened;
        let response = self.channel.request(&Message::Open {
            test: *test,
            number,
            memory: workload.endpoint().remote_memory(),
            joins,
        })?;
        let Message::Opened { memory } = response else {
            return Err(unexpected_message(&response));
        };
        workload.set_remote_memory(memory);
        self.rendezvous
            .connect(workload.endpoint(), Purpose::Data(number))?;
        Ok(workload)
    }

    fn round(
        &mut self,
        test: &Test,
        workload: &mut Workload<Client>,
        limit: &RoundLimit,
        totals: &mut Totals,
        result: &mut TestResult,
    ) -> Result<()> {
        self.channel.command(&Message::Round)?;
        let (sent, broken) = match workload {
            Workload::PingPong(end) => {
                let mut histogram = new_histogram()?;
                let pinged = end.ping(limit, &mut histogram)?;
                totals.add_pings(&histogram, pinged.elapsed, PING_PONG);
                result.delivered += PING_PONG * pinged.round_trips;
                result.lost += pinged.lost;
                (0, pinged.broken)
            }
            Workload::Read(end) if test.benchmark == Benchmark::Latency => {
                let mut histogram = new_histogram()?;
                let pinged = end.ping(limit, &mut histogram)?;
                totals.add_pings(&histogram, pinged.elapsed, 1);
                result.delivered += pinged.round_trips;
                (0, pinged.broken)
            }
            Workload::Read(end) => {
                let round_result = end.run(limit)?;
                totals.add_stream(&round_result);
                result.delivered += round_result.delivered;
                (0, round_result.broken)
            }
            Workload::Stream(end) => {
                let before = end.sent();
                let sent = end.run(limit)?;
                debug_assert_eq!(end.sent() - before, sent.messages);
                (sent.messages, sent.broken)
            }
        };
        let total = match workload {
            Workload::PingPong(_) | Workload::Read(_) => 0,
            Workload::Stream(end) => end.sent(),
        };
        let round_result = self
            .channel
            .request_result(&Message::Stop { sent: total })?;
        if let Workload::Stream(_) = workload {
            totals.add_stream(&round_result);
            result.delivered += round_result.delivered;
            if !test.level.is_reliable() {
                result.lost += sent.saturating_sub(round_result.delivered);
            }
        }
        result.rounds += 1;
        result.ended_early = match (broken, round_result.broken) {
            (Some(client), _) => Some(client),
            (None, Some(server)) => Some(format!("peer: {server}")),
            (None, None) => None,
        };
        Ok(())
    }

    /// Returns the name of the control of a datapath process. It is not the raw port, which messages within the process
    /// do not use.
    fn baseline_name(&self, test: &Test) -> Option<String> {
        let baseline = self.baseline?;
        let Cores { client, server } = baseline.cores;
        match test.benchmark {
            Benchmark::Latency => Some(format!(
                "a cache line from core {client} via core {} to core {server}",
                baseline.relay
            )),
            Benchmark::Bandwidth => Some(format!("one copy on core {}", baseline.relay)),
            Benchmark::Rate => None,
        }
    }

    fn baseline_round(&self, test: &Test, limit: &RoundLimit, totals: &mut Totals) -> Result<()> {
        let Some(baseline) = self.baseline else {
            return Ok(());
        };
        match test.benchmark {
            Benchmark::Latency => {
                let mut histogram = new_histogram()?;
                let pinged = baseline.ping(limit, &mut histogram)?;
                let messages_each = if test.op == Op::Read { 1 } else { PING_PONG };
                totals.add_pings(&histogram, pinged.elapsed, messages_each);
            }
            Benchmark::Bandwidth => totals.add_stream(&baseline.copy(test, limit)?),
            Benchmark::Rate => {}
        }
        Ok(())
    }

    /// Returns whether progress is printed: standard error is a terminal and the run is long enough.
    fn shows_progress(&self) -> bool {
        self.options.seconds >= Duration::from_secs(2) && std::io::stderr().is_terminal()
    }

    fn show_progress(&self, test: &Test, round: u32) {
        if self.shows_progress() {
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
        if self.shows_progress() {
            output::progress(format_args!("\r\x1b[K"));
        }
    }
}
