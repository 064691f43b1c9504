//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use vi_types::ReliabilityLevel;

use crate::connections::STEPS;
use crate::error::{Error, Result};
use crate::nic::{MemoryKind, NicOptions};
use crate::plan::{Benchmark, MAX_SIZE_BYTES, Op, Test};
use crate::port::cli::Role;

/// Measures latency, bandwidth and message rate of the stack, compared with the raw port or TCP connection below it.
///
/// By default client and server are two processes on this host, each pinned to its own core, on a private
/// shared-memory segment.
#[derive(Debug, Parser)]
#[command(name = "vibench", version, about)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure half of the round trip with one message in flight (default size: 8 bytes).
    Latency(Options),
    /// Measure bytes delivered per second, with large one-way messages (default size: 64 KiB).
    Bandwidth(Options),
    /// Measure messages delivered per second, with small one-way messages (default size: 64 bytes).
    Rate(Options),
    /// Measure connections set up and closed per second, and the growth of resident memory.
    Connect(ConnectOptions),
    /// Measure the raw port alone, one side per process: one-way frames or ping-pong.
    Port {
        /// The role of this side.
        #[command(subcommand)]
        role: Role,
    },
    /// Measure the round trip of a cache line between two cores.
    CoreLatency(CoreLatencyOptions),
    /// Run as the server process of a local run.
    #[command(hide = true)]
    Answer(ServerOptions),
}

fn level_parser() -> impl TypedValueParser<Value = ReliabilityLevel> {
    PossibleValuesParser::new(ReliabilityLevel::ALL.map(ReliabilityLevel::short_name))
        .try_map(|name| name.parse::<ReliabilityLevel>())
}

/// Options of a latency, bandwidth or rate test.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Operation that transfers a message.
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub op: Op,
    /// Reliability level: Unreliable Delivery, Reliable Delivery or Reliable Reception.
    #[arg(long, value_parser = level_parser(), default_value_t = ReliabilityLevel::ReliableDelivery)]
    pub level: ReliabilityLevel,
    /// Message sizes in bytes, separated by commas; suffixes K (1024) and M (1024 * 1024).
    #[arg(long, value_delimiter = ',', value_parser = parse_size, value_name = "BYTES")]
    pub size: Vec<u32>,
    /// Duration of the measurement of each size in seconds, all rounds together.
    #[arg(long, default_value = "3", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Duration of the warm-up before the measurement in seconds.
    #[arg(long, default_value = "0.2", value_parser = parse_seconds)]
    pub warmup: Duration,
    /// Number of round trips (latency) or messages (rate, bandwidth) per round, instead of a duration.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Number of rounds per measurement, alternating with rounds of the raw control.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Number of messages posted, and then reaped, together (rate and bandwidth).
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub batch: u32,
    /// Maximum number of messages in flight [default: four batches, at least 32; fewer if messages are large].
    #[arg(long)]
    pub window: Option<u32>,
    /// Number of additional connections without traffic.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_000), value_name = "N")]
    pub idle: u32,
    /// Number of connections that carry the batches in turn (rate and bandwidth of sends and writes).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub active: u32,
    /// Await messages by blocking calls instead of polling, and pause before each for this time (latency of sends).
    #[arg(long, value_name = "PAUSE_US", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub wait: Option<u32>,
    /// Write all bytes of a message before it is posted, and read all of them when it has arrived (sends and writes).
    #[arg(long)]
    pub touch: bool,
    /// Skip the raw control.
    #[arg(long)]
    pub no_control: bool,
    /// Run client and server in one process, on a NIC that copies messages between them without frames.
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    pub shortcut: bool,
    /// Options common to all runs.
    #[command(flatten)]
    pub common: CommonOptions,
}

/// Options of `core-latency`.
#[derive(Clone, Debug, Args)]
pub struct CoreLatencyOptions {
    /// The two cores.
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub cores: Cores,
    /// Duration of the measurement in seconds.
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    pub seconds: Duration,
}

/// Options of `connect`.
#[derive(Clone, Debug, Args)]
pub struct ConnectOptions {
    /// Number of connections, at least 10.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(i64::from(STEPS)..))]
    pub connections: u32,
    /// Percentage of connections set up peer to peer; the others are client/server.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100), value_name = "PERCENT")]
    pub peers: u32,
    /// Reliability levels of the connections, used in turn.
    #[arg(long, value_parser = level_parser(), value_delimiter = ',', default_value = "rd")]
    pub level: Vec<ReliabilityLevel>,
    /// Maximum growth of resident memory in KiB after the first tenth of the run; the run fails above it.
    #[arg(long, value_name = "KIB")]
    pub max_growth: Option<u64>,
    /// Options common to all runs.
    #[command(flatten)]
    pub common: CommonOptions,
}

/// Options common to all runs: NIC, cores, server location, result file.
#[derive(Clone, Debug, Args)]
pub struct CommonOptions {
    /// Configuration file (TOML) that contains the NIC [default: a private shared-memory segment].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the NIC in the configuration.
    #[arg(long, value_name = "NAME", default_value = "VINIC0")]
    pub device: String,
    /// File for the results as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Memory of the buffers.
    #[arg(long, value_enum, default_value_t)]
    pub memory: MemoryKind,
    /// Cores of client and server; with --listen or --connect the core of that side.
    #[arg(long, value_name = "A[,B]", value_parser = parse_core_choice)]
    pub cores: Option<CoreChoice>,
    /// Run as a server for clients on other hosts until interrupted; the client selects the benchmark.
    #[arg(long, conflicts_with_all = ["connect", "json"])]
    pub listen: bool,
    /// Connect to the server (--listen) on this host.
    #[arg(long, value_name = "HOST")]
    pub connect: Option<String>,
}

/// Options of the server process of a local run.
#[derive(Clone, Debug, Args)]
pub struct ServerOptions {
    /// Shared-memory segment of the run, without a configuration.
    #[arg(long)]
    pub segment: Option<String>,
    /// Configuration file that contains the NIC.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Name of the NIC in the configuration.
    #[arg(long)]
    pub device: String,
    /// Identifier of the run on this host.
    #[arg(long)]
    pub tag: String,
    /// Memory of the buffers.
    #[arg(long, value_enum, default_value_t)]
    pub memory: MemoryKind,
    /// Core to pin to.
    #[arg(long)]
    pub core: Option<usize>,
    /// The client polls on the same core.
    #[arg(long)]
    pub shares_core: bool,
}

/// Cores of client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Core of the client.
    pub client: usize,
    /// Core of the server.
    pub server: usize,
}

/// Cores of client and server, or of the side that runs on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChoice {
    /// Core of the local side.
    One(usize),
    /// Cores of both sides.
    Two(Cores),
}

impl CoreChoice {
    /// Returns the core of the client, if it runs on this host.
    #[must_use]
    pub fn client(self) -> usize {
        match self {
            Self::One(core) => core,
            Self::Two(cores) => cores.client,
        }
    }

    /// Returns the core of the server, if it runs on this host.
    #[must_use]
    pub fn server(self) -> usize {
        match self {
            Self::One(core) => core,
            Self::Two(cores) => cores.server,
        }
    }
}

impl CommonOptions {
    /// Returns the NIC options of a run; without a configuration, a private segment named after `tag`.
    pub(crate) fn nic_options(&self, tag: &str) -> NicOptions {
        NicOptions {
            config: self.config.clone(),
            device: self.device.clone(),
            segment: Some(format!("vibench-{tag}")),
            memory: self.memory,
        }
    }

    /// Returns the requested cores of a run whose client and server are both on this host.
    ///
    /// # Errors
    /// [`Error::Usage`] if only one core was given.
    pub fn both_cores(&self) -> Result<Option<Cores>> {
        match self.cores {
            None => Ok(None),
            Some(CoreChoice::Two(cores)) => Ok(Some(cores)),
            Some(CoreChoice::One(core)) => Err(Error::Usage(format!(
                "--cores {core}: client and server both run on this host: give two cores, A,B"
            ))),
        }
    }
}

impl Options {
    /// Returns the requested tests, in the order of the command line.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid combination of options.
    pub fn tests(&self, benchmark: Benchmark) -> Result<Vec<Test>> {
        if self.active > 1 && (benchmark == Benchmark::Latency || self.op == Op::Read) {
            return Err(Error::Usage(
                "--active: several connections need rate or bandwidth with --op send or write"
                    .into(),
            ));
        }
        let default_sizes: &[u32] = match benchmark {
            Benchmark::Latency => &[8],
            Benchmark::Bandwidth => &[65536],
            Benchmark::Rate => &[64],
        };
        let sizes = if self.size.is_empty() {
            default_sizes
        } else {
            &self.size
        };
        sizes
            .iter()
            .map(|&size| {
                let test = Test::new(
                    benchmark,
                    self.op,
                    self.level,
                    size,
                    self.batch,
                    self.window,
                )?;
                let test = self.wait.map_or(Ok(test), |pause| test.with_pause(pause))?;
                if self.touch {
                    test.with_touch()
                } else {
                    Ok(test)
                }
            })
            .collect()
    }

    /// Returns the duration of one round.
    pub fn round(&self) -> Duration {
        self.seconds / self.rounds
    }
}

fn parse_size(text: &str) -> core::result::Result<u32, String> {
    let (digits, unit_bytes) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['m', 'M']) {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    digits
        .parse::<u32>()
        .ok()
        .and_then(|number| number.checked_mul(unit_bytes))
        .filter(|&bytes| bytes <= MAX_SIZE_BYTES)
        .ok_or_else(|| format!("`{text}` is not a size up to 1024M"))
}

pub(crate) fn parse_seconds(text: &str) -> core::result::Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|seconds| (0.0..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a number of seconds from 0 to 86400"))
}

fn parse_cores(text: &str) -> core::result::Result<Cores, String> {
    let (client, server) = text
        .split_once(',')
        .ok_or_else(|| format!("`{text}` is not a pair of cores such as 0,1"))?;
    let core = |number: &str| {
        number
            .trim()
            .parse::<usize>()
            .map_err(|_| format!("`{number}` is not a core number"))
    };
    Ok(Cores {
        client: core(client)?,
        server: core(server)?,
    })
}

fn parse_core_choice(text: &str) -> core::result::Result<CoreChoice, String> {
    if text.contains(',') {
        return parse_cores(text).map(CoreChoice::Two);
    }
    let core = text.trim().parse();
    core.map(CoreChoice::One)
        .map_err(|_| format!("`{text}` is neither a core number nor a pair such as 0,1"))
}

impl ServerOptions {
    /// Returns the arguments that pass these options to a new process.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = vec!["answer".to_owned()];
        let mut add = |name: &str, value: String| {
            arguments.push(format!("--{name}"));
            arguments.push(value);
        };
        add("device", self.device.clone());
        add("tag", self.tag.clone());
        let memory = self.memory.to_possible_value();
        if let Some(memory) = memory {
            add("memory", memory.get_name().to_owned());
        }
        if let Some(segment) = &self.segment {
            add("segment", segment.clone());
        }
        if let Some(core) = self.core {
            add("core", core.to_string());
        }
        if self.shares_core {
            arguments.push("--shares-core".to_owned());
        }
        arguments
    }
}

/// Rejects conflicts between options that clap cannot detect.
///
/// # Errors
/// [`Error::Usage`].
pub fn check(common: &CommonOptions) -> Result<()> {
    if (common.listen || common.connect.is_some()) && common.config.is_none() {
        return Err(Error::Usage(
            "--listen and --connect need the configuration of a NIC: add --config FILE".into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> core::result::Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn options(line: &str) -> Options {
        match parse(line).unwrap().command {
            Command::Latency(options) | Command::Bandwidth(options) | Command::Rate(options) => {
                options
            }
            Command::Connect(_)
            | Command::CoreLatency(_)
            | Command::Port { .. }
            | Command::Answer(_) => {
                panic!("{line} is not a test")
            }
        }
    }

    #[test]
    fn clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_without_arguments_have_defaults() {
        let options = options("vibench latency");
        assert_eq!(
            (options.op, options.level),
            (Op::Send, ReliabilityLevel::ReliableDelivery)
        );
        assert_eq!(options.seconds, Duration::from_secs(3));
        assert_eq!(options.batch, 16);
        assert!(options.common.cores.is_none());
        assert_eq!(options.tests(Benchmark::Latency).unwrap()[0].size_bytes, 8);
        assert_eq!(options.tests(Benchmark::Rate).unwrap()[0].size_bytes, 64);
        assert_eq!(
            options.tests(Benchmark::Bandwidth).unwrap()[0].size_bytes,
            65536
        );
    }

    #[test]
    fn options_given_are_parsed() {
        let options = options(
            "vibench rate --op write --level ud --size 8,4k,1M --seconds 1.5 --warmup 0 \
             --batch 4 --window 128 --cores 0,1 --json out.json --rounds 3 --messages 10 \
             --config a.toml --device VINIC1 --no-control",
        );
        assert_eq!(
            (options.op, options.level),
            (Op::Write, ReliabilityLevel::UnreliableDelivery)
        );
        assert_eq!(options.size, [8, 4096, 1 << 20]);
        assert_eq!(options.round(), Duration::from_millis(500));
        assert_eq!(options.warmup, Duration::ZERO);
        let cores = CoreChoice::Two(Cores {
            client: 0,
            server: 1,
        });
        assert_eq!(options.common.cores, Some(cores));
        assert_eq!(options.messages, Some(10));
        assert!(options.no_control);
        let tests = options.tests(Benchmark::Rate).unwrap();
        assert_eq!(tests.len(), 3);
        assert!(tests.iter().all(|t| t.batch == 4 && t.window == 128));
    }

    #[test]
    fn active_connections_are_rejected_except_for_streams() {
        for (line, benchmark, is_refused) in [
            ("vibench rate --active 10", Benchmark::Rate, false),
            (
                "vibench bandwidth --op write --active 10",
                Benchmark::Bandwidth,
                false,
            ),
            ("vibench rate --op read --active 10", Benchmark::Rate, true),
            ("vibench latency --active 10", Benchmark::Latency, true),
            ("vibench latency --active 1", Benchmark::Latency, false),
        ] {
            let refused = options(line).tests(benchmark).is_err();
            assert_eq!(refused, is_refused, "{line}");
        }
    }

    #[test]
    fn operations_and_levels_are_parsed() {
        for (op, expected) in [("send", Op::Send), ("write", Op::Write), ("read", Op::Read)] {
            for (level, bits) in [("ud", 1), ("rd", 2), ("rr", 4)] {
                let options = options(&format!("vibench latency --op {op} --level {level}"));
                assert_eq!((options.op, options.level.bit()), (expected, bits));
                let tests = options.tests(Benchmark::Latency);
                assert_eq!(tests.is_ok(), op != "read" || level != "ud", "{op} {level}");
            }
        }
    }

    #[test]
    fn connect_options_are_parsed() {
        let parsed = |line: &str| match parse(line).unwrap().command {
            Command::Connect(options) => options,
            _ => panic!("{line} is not `connect`"),
        };
        let defaults = parsed("vibench connect");
        assert_eq!((defaults.connections, defaults.peers), (10_000, 10));
        assert_eq!(
            (defaults.level, defaults.max_growth),
            (vec![ReliabilityLevel::ReliableDelivery], None)
        );
        let all = parsed(
            "vibench connect --connections 20 --peers 0 --level ud,rr --max-growth 4 --connect x --config y",
        );
        assert_eq!((all.connections, all.peers), (20, 0));
        assert_eq!(
            (all.level, all.max_growth),
            (
                vec![
                    ReliabilityLevel::UnreliableDelivery,
                    ReliabilityLevel::ReliableReception
                ],
                Some(4)
            )
        );
        assert_eq!(all.common.connect.as_deref(), Some("x"));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for line in [
            "vibench",
            "vibench latency --size -1",
            "vibench latency --size 8x",
            "vibench latency --size 2048M",
            "vibench latency --seconds nan",
            "vibench latency --seconds -1",
            "vibench latency --cores one",
            "vibench latency --cores 0,x",
            "vibench rate --batch 0",
            "vibench rate --rounds 0",
            "vibench rate --level re",
            "vibench rate --op fetch",
            "vibench rate --messages 0",
            "vibench rate --listen --connect there",
            "vibench connect --connections 9",
            "vibench connect --peers 101",
            "vibench connect --level re",
            "vibench connect --max-growth -1",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn two_hosts_without_configuration_are_rejected() {
        assert!(check(&options("vibench rate --listen").common).is_err());
        assert!(check(&options("vibench rate --connect there").common).is_err());
        assert!(check(&options("vibench rate --connect there --config x").common).is_ok());
        assert!(check(&options("vibench rate").common).is_ok());
    }

    #[test]
    fn server_options_round_trip_through_arguments() {
        let sent = ServerOptions {
            memory: MemoryKind::Shared,
            segment: Some("vibench-7".into()),
            config: None,
            device: "VINIC0".into(),
            tag: "7".into(),
            core: Some(1),
            shares_core: true,
        };
        let mut line = vec!["vibench".to_owned()];
        line.extend(sent.to_arguments());
        let Command::Answer(parsed) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not parsed as the server process");
        };
        assert_eq!(parsed.segment, sent.segment);
        assert_eq!(parsed.tag, sent.tag);
        assert_eq!(parsed.memory, sent.memory);
        assert_eq!(parsed.core, sent.core);
        assert_eq!(parsed.device, sent.device);
    }
}
