//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::connections::STEPS;
use crate::error::{Error, Result};
use crate::nic::MemoryKind;
use crate::plan::{Benchmark, Level, MAX_SIZE_BYTES, Op, Test};
use crate::port::cli::Role;

/// Latency, bandwidth and message rate of the stack, beside the raw port or TCP
/// connection that carries it.
///
/// With no further option both ends are two processes of this host, each on a
/// core of its own, on a shared-memory segment that nobody else uses.
#[derive(Debug, Parser)]
#[command(name = "vibench", version, about)]
pub struct Cli {
    /// What to measure.
    #[command(subcommand)]
    pub command: Command,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Half of the round trip with one message in flight (default: 8 bytes).
    Latency(Options),
    /// Bytes delivered in a second, large messages one way (default: 64 KiB).
    Bandwidth(Options),
    /// Messages delivered in a second, small messages one way (default: 64 bytes).
    Rate(Options),
    /// Connections made and ended in a second, and whether memory stays as it is.
    Connect(ConnectOptions),
    /// The raw port alone, one end at a time: frames one way, or there and back.
    Port {
        /// What this end does.
        #[command(subcommand)]
        role: Role,
    },
    /// How far two cores are from each other.
    Distance(DistanceOptions),
    /// The second process of a run: answers the one that started it.
    #[command(hide = true)]
    Answer(AnswerOptions),
}

/// Options of a measurement.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// How a message travels.
    #[arg(long, value_enum, default_value_t = Op::Send)]
    pub op: Op,
    /// Unreliable Delivery, Reliable Delivery or Reliable Reception.
    #[arg(long, value_enum, default_value_t = Level::Rd)]
    pub level: Level,
    /// Bytes of one message; several with commas; K and M stand for 1024 and 1024 times that.
    #[arg(long, value_delimiter = ',', value_parser = parse_size, value_name = "BYTES")]
    pub size: Vec<u32>,
    /// Seconds that each size is measured, in all rounds together.
    #[arg(long, default_value = "3", value_parser = parse_seconds)]
    pub seconds: Duration,
    /// Seconds of the same traffic before the measurement.
    #[arg(long, default_value = "0.2", value_parser = parse_seconds)]
    pub warmup: Duration,
    /// Stop each round of a latency test after so many round trips, of others after so many messages.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub messages: Option<u64>,
    /// Rounds of each measurement; the raw control has as many, in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Messages that are posted, and then reaped, in one go (rate and bandwidth).
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub batch: u32,
    /// Messages in flight, at most [default: four batches, 32 or more].
    #[arg(long)]
    pub window: Option<u32>,
    /// Connections beside the measured one that carry nothing.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_000), value_name = "N")]
    pub idle: u32,
    /// Connections that carry a batch each in turn (rate and bandwidth of sends and writes).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    pub active: u32,
    /// Do not measure the raw control.
    #[arg(long)]
    pub no_control: bool,
    /// Both ends in one process, on a NIC that moves messages between them without frames.
    #[arg(long, conflicts_with_all = ["listen", "connect"])]
    pub shortcut: bool,
    /// Where the two ends are.
    #[command(flatten)]
    pub ends: Ends,
}

/// Options of a look at two cores.
#[derive(Clone, Debug, Args)]
pub struct DistanceOptions {
    /// The two cores.
    #[arg(long, value_name = "NEAR,FAR", value_parser = parse_cores)]
    pub cores: Cores,
    /// How long to look.
    #[arg(long, default_value = "0.1", value_parser = parse_seconds)]
    pub seconds: Duration,
}

/// Options of a run of connections.
#[derive(Clone, Debug, Args)]
pub struct ConnectOptions {
    /// How many connections, ten at least.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(i64::from(STEPS)..))]
    pub connections: u32,
    /// Of a hundred connections, how many are between two peers; the others are a client's.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=100), value_name = "PERCENT")]
    pub peers: u32,
    /// Reliability levels of the connections, in turn.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rd")]
    pub level: Vec<Level>,
    /// Fail if the resident memory of an end grows by more than this after the first tenth.
    #[arg(long, value_name = "KIB")]
    pub max_growth: Option<u64>,
    /// Where the two ends are.
    #[command(flatten)]
    pub ends: Ends,
}

/// Where the two ends of a run are, and where its results go.
#[derive(Clone, Debug, Args)]
pub struct Ends {
    /// Configuration of the NIC (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The NIC of the configuration to open.
    #[arg(long, value_name = "NAME", default_value = "VINIC0")]
    pub device: String,
    /// Write every result to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where buffers are.
    #[arg(long, value_enum, default_value_t)]
    pub memory: MemoryKind,
    /// The cores of the measuring and the answering end; one of them if only that end is here.
    #[arg(long, value_name = "A[,B]", value_parser = parse_core_choice)]
    pub cores: Option<CoreChoice>,
    /// Answer another host until interrupted; what is measured is its choice.
    #[arg(long, conflicts_with_all = ["connect", "json"])]
    pub listen: bool,
    /// Measure against the program that listens on this host.
    #[arg(long, value_name = "HOST")]
    pub connect: Option<String>,
}

/// Options of the process that answers.
#[derive(Clone, Debug, Args)]
pub struct AnswerOptions {
    /// The segment of the run when there is no configuration.
    #[arg(long)]
    pub segment: Option<String>,
    /// Configuration of the NIC.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// The NIC of the configuration to open.
    #[arg(long)]
    pub device: String,
    /// Tells apart the runs on one host.
    #[arg(long)]
    pub tag: String,
    /// Where buffers are.
    #[arg(long, value_enum, default_value_t)]
    pub memory: MemoryKind,
    /// The core to stay on.
    #[arg(long)]
    pub core: Option<usize>,
    /// The other end polls on it, too.
    #[arg(long)]
    pub shares_core: bool,
}

/// Two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The core of the measuring end.
    pub near: usize,
    /// The core of the answering end.
    pub far: usize,
}

/// The cores of both ends, or of the one that is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreChoice {
    /// That of the end that is here.
    One(usize),
    /// Those of both.
    Two(Cores),
}

impl CoreChoice {
    /// The core of the measuring end, if that is here.
    #[must_use]
    pub fn near(self) -> usize {
        match self {
            Self::One(core) => core,
            Self::Two(cores) => cores.near,
        }
    }

    /// The core of the answering end, if that is here.
    #[must_use]
    pub fn far(self) -> usize {
        match self {
            Self::One(core) => core,
            Self::Two(cores) => cores.far,
        }
    }
}

impl Ends {
    /// The cores that were asked for where both ends are here.
    ///
    /// # Errors
    /// [`Error::Usage`] for one core alone.
    pub fn both_cores(&self) -> Result<Option<Cores>> {
        match self.cores {
            None => Ok(None),
            Some(CoreChoice::Two(cores)) => Ok(Some(cores)),
            Some(CoreChoice::One(core)) => Err(Error::Usage(format!(
                "--cores {core}: both ends are here: name two cores, A,B"
            ))),
        }
    }
}

impl Options {
    /// The tests that the command line asks for, in its order.
    ///
    /// # Errors
    /// [`Error::Usage`] for a test that cannot be.
    pub fn tests(&self, benchmark: Benchmark) -> Result<Vec<Test>> {
        if self.active > 1 && (benchmark == Benchmark::Latency || self.op == Op::Read) {
            return Err(Error::Usage(
                "--active: only rate and bandwidth of sends and writes have several connections"
                    .into(),
            ));
        }
        let usual: &[u32] = match benchmark {
            Benchmark::Latency => &[8],
            Benchmark::Bandwidth => &[65536],
            Benchmark::Rate => &[64],
        };
        let sizes = if self.size.is_empty() {
            usual
        } else {
            &self.size
        };
        sizes
            .iter()
            .map(|&size| {
                Test::new(
                    benchmark,
                    self.op,
                    self.level,
                    size,
                    self.batch,
                    self.window,
                )
            })
            .collect()
    }

    /// How long one round lasts.
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
    let (near, far) = text
        .split_once(',')
        .ok_or_else(|| format!("`{text}` is not two cores with a comma"))?;
    let core = |number: &str| {
        number
            .trim()
            .parse::<usize>()
            .map_err(|_| format!("`{number}` is not a core"))
    };
    Ok(Cores {
        near: core(near)?,
        far: core(far)?,
    })
}

fn parse_core_choice(text: &str) -> core::result::Result<CoreChoice, String> {
    if text.contains(',') {
        return parse_cores(text).map(CoreChoice::Two);
    }
    let core = text.trim().parse();
    core.map(CoreChoice::One)
        .map_err(|_| format!("`{text}` is neither a core nor two with a comma"))
}

impl AnswerOptions {
    /// The arguments that say the same to a new process.
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

/// Refuses options that contradict each other and clap cannot see.
///
/// # Errors
/// [`Error::Usage`].
pub fn check(ends: &Ends) -> Result<()> {
    if (ends.listen || ends.connect.is_some()) && ends.config.is_none() {
        return Err(Error::Usage(
            "two hosts need a configuration with the port between them: add --config FILE".into(),
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
            | Command::Distance(_)
            | Command::Port { .. }
            | Command::Answer(_) => {
                panic!("{line} is no measurement")
            }
        }
    }

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usual_values() {
        let options = options("vibench latency");
        assert_eq!((options.op, options.level), (Op::Send, Level::Rd));
        assert_eq!(options.seconds, Duration::from_secs(3));
        assert_eq!(options.batch, 16);
        assert!(options.ends.cores.is_none());
        assert_eq!(options.tests(Benchmark::Latency).unwrap()[0].size_bytes, 8);
        assert_eq!(options.tests(Benchmark::Rate).unwrap()[0].size_bytes, 64);
        assert_eq!(
            options.tests(Benchmark::Bandwidth).unwrap()[0].size_bytes,
            65536
        );
    }

    #[test]
    fn every_option() {
        let options = options(
            "vibench rate --op write --level ud --size 8,4k,1M --seconds 1.5 --warmup 0 \
             --batch 4 --window 128 --cores 0,1 --json out.json --rounds 3 --messages 10 \
             --config a.toml --device VINIC1 --no-control",
        );
        assert_eq!((options.op, options.level), (Op::Write, Level::Ud));
        assert_eq!(options.size, [8, 4096, 1 << 20]);
        assert_eq!(options.round(), Duration::from_millis(500));
        assert_eq!(options.warmup, Duration::ZERO);
        let cores = CoreChoice::Two(Cores { near: 0, far: 1 });
        assert_eq!(options.ends.cores, Some(cores));
        assert_eq!(options.messages, Some(10));
        assert!(options.no_control);
        let tests = options.tests(Benchmark::Rate).unwrap();
        assert_eq!(tests.len(), 3);
        assert!(tests.iter().all(|t| t.batch == 4 && t.window == 128));
    }

    #[test]
    fn only_streams_have_several_connections() {
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
    fn every_operation_and_level() {
        for (op, expected) in [("send", Op::Send), ("write", Op::Write), ("read", Op::Read)] {
            for (level, bits) in [("ud", 1), ("rd", 2), ("rr", 4)] {
                let options = options(&format!("vibench latency --op {op} --level {level}"));
                assert_eq!((options.op, options.level.bits()), (expected, bits));
                let tests = options.tests(Benchmark::Latency);
                assert_eq!(tests.is_ok(), op != "read" || level != "ud", "{op} {level}");
            }
        }
    }

    #[test]
    fn connections() {
        let parsed = |line: &str| match parse(line).unwrap().command {
            Command::Connect(options) => options,
            _ => panic!("{line} is no run of connections"),
        };
        let usual = parsed("vibench connect");
        assert_eq!((usual.connections, usual.peers), (10_000, 10));
        assert_eq!((usual.level, usual.max_growth), (vec![Level::Rd], None));
        let all = parsed(
            "vibench connect --connections 20 --peers 0 --level ud,rr --max-growth 4 --connect x --config y",
        );
        assert_eq!((all.connections, all.peers), (20, 0));
        assert_eq!(
            (all.level, all.max_growth),
            (vec![Level::Ud, Level::Rr], Some(4))
        );
        assert_eq!(all.ends.connect.as_deref(), Some("x"));
    }

    #[test]
    fn nonsense_is_refused() {
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
    fn two_hosts_need_a_configuration() {
        assert!(check(&options("vibench rate --listen").ends).is_err());
        assert!(check(&options("vibench rate --connect there").ends).is_err());
        assert!(check(&options("vibench rate --connect there --config x").ends).is_ok());
        assert!(check(&options("vibench rate").ends).is_ok());
    }

    #[test]
    fn the_second_process_understands_the_first() {
        let told = AnswerOptions {
            memory: MemoryKind::Shared,
            segment: Some("vibench-7".into()),
            config: None,
            device: "VINIC0".into(),
            tag: "7".into(),
            core: Some(1),
            shares_core: true,
        };
        let mut line = vec!["vibench".to_owned()];
        line.extend(told.to_arguments());
        let Command::Answer(heard) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not understood as the second process");
        };
        assert_eq!(heard.segment, told.segment);
        assert_eq!(heard.tag, told.tag);
        assert_eq!(heard.memory, told.memory);
        assert_eq!(heard.core, told.core);
        assert_eq!(heard.device, told.device);
    }
}
