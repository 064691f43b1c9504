//! The table and the JSON file.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use serde::Serialize;
use vi_types::ReliabilityLevel;

use crate::error::{Error, Result};
use crate::plan::{Benchmark, Op, Test};

/// Round spread above which a warning is printed.
const MAX_SPREAD: f64 = 2.0;

/// Percentiles of times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
}

impl Percentiles {
    /// Returns the percentiles of a histogram of nanoseconds; `None` if it is empty.
    pub fn of(times_ns: &Histogram<u64>) -> Option<Self> {
        if times_ns.is_empty() {
            return None;
        }
        let time = |quantile: f64| times_ns.value_at_quantile(quantile) as f64;
        Some(Self {
            p50: time(0.5),
            p90: time(0.9),
            p99: time(0.99),
            p999: time(0.999),
            max: times_ns.max() as f64,
        })
    }

    /// Returns the percentiles of half of the round trips in a histogram of nanoseconds; `None` if it is empty.
    pub fn half_of(round_trips_ns: &Histogram<u64>) -> Option<Self> {
        let whole = Self::of(round_trips_ns)?;
        Some(Self {
            p50: whole.p50 / 2.0,
            p90: whole.p90 / 2.0,
            p99: whole.p99 / 2.0,
            p999: whole.p999 / 2.0,
            max: whole.max / 2.0,
        })
    }
}

/// Measured latency, rate and bandwidth.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Half of the round trip; only of a latency test.
    pub half_round_trip_ns: Option<Percentiles>,
    /// Messages delivered per second, in one direction.
    pub messages_per_s: f64,
    /// Bytes delivered per second, in one direction.
    pub bytes_per_s: f64,
}

/// Result of the raw control.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControlResult {
    /// Description: the port and its frames, or TCP and its messages.
    pub name: String,
    /// As [`TestResult::round_spread`].
    pub round_spread: Option<f64>,
    /// Measured values of the control.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Result of one test: a line of the table and an object of the JSON file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestResult {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Operation that transferred the messages.
    pub op: Op,
    /// Reliability level of the connection.
    pub level: ReliabilityLevel,
    /// Message size in bytes.
    pub size_bytes: u32,
    /// Messages posted, and then reaped, together.
    pub batch: u32,
    /// Maximum number of messages in flight.
    pub window: u32,
    /// Messages were awaited by blocking calls, and sent after a pause of this time; `None`: they were polled for.
    pub pause_us: Option<u32>,
    /// The sender wrote all bytes of each message, and the receiver read all of them.
    pub touches: bool,
    /// Connections that carried the messages in turn.
    pub connections: u32,
    /// What carried the messages: the driver of the port, `vi-tcp`, `shortcut` or `process`.
    pub port: String,
    /// Measured values.
    #[serde(flatten)]
    pub figures: Figures,
    /// Messages that arrived in the measured rounds.
    pub delivered: u64,
    /// Messages that were sent and did not arrive; only Unreliable Delivery continues after a loss.
    pub lost: u64,
    /// Number of measured rounds.
    pub rounds: u32,
    /// The largest p50 or rate of a round divided by the smallest.
    pub round_spread: Option<f64>,
    /// Reason for which the measurement ended early.
    pub ended_early: Option<String>,
    /// Time per message in poll iterations of the client's NIC, in ns; includes the server's work if a datapath
    /// process or one program owns both NICs. Excludes work outside of the poller, in the calls themselves.
    pub turn_ns_per_message: Option<f64>,
    /// The raw control, measured in alternating rounds.
    pub control: Option<ControlResult>,
    /// Stack divided by control: p50 of half of the round trip, or messages per second.
    pub ratio: Option<f64>,
}

impl TestResult {
    /// Creates a result without measured values.
    pub fn new(test: &Test, port: String) -> Self {
        Self {
            benchmark: test.benchmark,
            op: test.op,
            level: test.level,
            size_bytes: test.size_bytes,
            batch: test.batch,
            window: test.window,
            pause_us: test.pause_us,
            touches: test.touches,
            connections: 1,
            port,
            figures: Figures::default(),
            delivered: 0,
            lost: 0,
            rounds: 0,
            round_spread: None,
            ended_early: None,
            turn_ns_per_message: None,
            control: None,
            ratio: None,
        }
    }
}

/// Sorts the values and returns their median; `None` if there are none.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Returns the header of the table, two lines.
pub fn table_header() -> String {
    let header = format!(
        "{:<9} {:<5} {:<2} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>10} {:>6}",
        "benchmark",
        "op",
        "lv",
        "bytes",
        "batch",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "msgs/s",
        "bytes/s",
        "control",
        "ratio"
    );
    let rule = "-".repeat(header.len());
    format!("{header}\n{rule}")
}

/// Returns a line of the table, with losses, warnings and an early end on indented lines below it.
pub fn table_row(result: &TestResult) -> String {
    let percentile = |pick: fn(&Percentiles) -> f64| match &result.figures.half_round_trip_ns {
        Some(half) => nanoseconds(pick(half)),
        None => "-".into(),
    };
    let control = match (&result.control, result.benchmark) {
        (None, _) => "-".to_owned(),
        (Some(control), Benchmark::Latency) => control
            .figures
            .half_round_trip_ns
            .map_or_else(|| "-".into(), |half| nanoseconds(half.p50)),
        (Some(control), Benchmark::Bandwidth) => {
            format!("{}B/s", scaled(control.figures.bytes_per_s))
        }
        (Some(control), Benchmark::Rate) => {
            format!("{}/s", scaled(control.figures.messages_per_s))
        }
    };
    let ratio = result
        .ratio
        .map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    let mut row = format!(
        "{:<9} {:<5} {:<2} {:>8} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>10} {:>6}",
        result.benchmark,
        result.op,
        result.level,
        result.size_bytes,
        result.batch,
        percentile(|half| half.p50),
        percentile(|half| half.p90),
        percentile(|half| half.p99),
        percentile(|half| half.p999),
        percentile(|half| half.max),
        scaled(result.figures.messages_per_s),
        format!("{}B", scaled(result.figures.bytes_per_s)),
        control,
        ratio,
    );
    if result.lost > 0 {
        let _ = write!(
            row,
            "\n          lost {} of {} messages",
            result.lost,
            result.lost + result.delivered
        );
    }
    let control = result.control.as_ref();
    let control_spread = control.and_then(|control| control.round_spread);
    for (whose, spread) in [
        ("", result.round_spread),
        (" of the control", control_spread),
    ] {
        if let Some(spread) = spread.filter(|&spread| spread > MAX_SPREAD) {
            let _ = write!(
                row,
                "\n          warning: rounds{whose} differ {spread:.1}-fold: other programs used the cores, \
                 or their clock changed; repeat the measurement"
            );
        }
    }
    if let Some(reason) = &result.ended_early {
        let _ = write!(row, "\n          ended early: {reason}");
    }
    row
}

/// The file of the results, opened before the measurement; its content is replaced when the results are written.
#[derive(Debug)]
pub struct JsonFile {
    path: PathBuf,
    file: File,
}

impl JsonFile {
    /// Opens the file, if a path is given.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be opened for writing.
    pub fn open(path: Option<&Path>) -> Result<Option<Self>> {
        let Some(path) = path else {
            return Ok(None);
        };
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        Ok(Some(Self {
            file: file.map_err(|error| Error::io(path.display().to_string(), error))?,
            path: path.to_owned(),
        }))
    }

    /// Writes all results as one array of objects.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write<T: Serialize>(mut self, results: &[T]) -> Result<()> {
        let text = serde_json::to_string_pretty(results)
            .map_err(|error| Error::io("results as JSON", error.into()))?;
        self.replace(&text)
            .map_err(|error| Error::io(self.path.display().to_string(), error))
    }

    fn replace(&mut self, text: &str) -> io::Result<()> {
        // Pipes and devices cannot be truncated.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        writeln!(self.file, "{text}")
    }
}

pub(crate) fn nanoseconds(value: f64) -> String {
    match value {
        value if value < 10_000.0 => format!("{value:.0} ns"),
        value if value < 10_000_000.0 => format!("{:.1} us", value / 1e3),
        value => format!("{:.1} ms", value / 1e6),
    }
}

pub(crate) fn scaled(value: f64) -> String {
    match value {
        value if value < 1e3 => format!("{value:.0} "),
        value if value < 1e6 => format!("{:.1} k", value / 1e3),
        value if value < 1e9 => format!("{:.2} M", value / 1e6),
        value => format!("{:.2} G", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap();
        for value in values {
            histogram.record(value).unwrap();
        }
        histogram
    }

    fn sample() -> TestResult {
        let test = Test::new(
            Benchmark::Latency,
            Op::Send,
            ReliabilityLevel::ReliableDelivery,
            8,
            16,
            None,
        )
        .unwrap();
        let mut result = TestResult::new(&test, "shm".into());
        result.figures.half_round_trip_ns = Percentiles::half_of(&histogram([800, 900, 1000]));
        result.figures.messages_per_s = 2.2e6;
        result.figures.bytes_per_s = 17.6e6;
        result.control = Some(ControlResult {
            name: "shm, 84-byte frames".into(),
            round_spread: None,
            figures: Figures {
                half_round_trip_ns: Percentiles::half_of(&histogram([720])),
                messages_per_s: 2.7e6,
                bytes_per_s: 21.6e6,
            },
        });
        result.ratio = Some(1.25);
        result
    }

    #[test]
    fn half_of_divides_percentiles() {
        let half = Percentiles::half_of(&histogram(1..=1000)).unwrap();
        assert_eq!(half.p50, 250.0);
        assert_eq!(half.p90, 450.0);
        assert_eq!(half.p99, 495.0);
        assert_eq!(half.max, 500.0);
        assert!(Percentiles::half_of(&histogram([])).is_none());
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn json_has_documented_keys() {
        let value = serde_json::to_value(sample()).unwrap();
        for key in [
            "benchmark",
            "op",
            "level",
            "size_bytes",
            "batch",
            "port",
            "half_round_trip_ns",
            "messages_per_s",
            "bytes_per_s",
            "control",
            "ratio",
        ] {
            assert!(value.get(key).is_some(), "{key} is missing in {value}");
        }
        assert_eq!(value["benchmark"], "latency");
        assert_eq!(value["op"], "send");
        assert_eq!(value["level"], "rd");
        assert_eq!(value["half_round_trip_ns"]["p50"], 450.0);
        for key in ["p50", "p90", "p99", "p999"] {
            assert!(value["half_round_trip_ns"][key].is_f64(), "{key}");
            assert!(
                value["control"]["half_round_trip_ns"][key].is_f64(),
                "{key}"
            );
        }
        assert_eq!(value["control"]["name"], "shm, 84-byte frames");
        assert_eq!(value["ratio"], 1.25);
    }

    #[test]
    fn stream_result_has_null_round_trip() {
        let test = Test::new(
            Benchmark::Rate,
            Op::Send,
            ReliabilityLevel::UnreliableDelivery,
            64,
            16,
            None,
        )
        .unwrap();
        let value = serde_json::to_value(TestResult::new(&test, "shm".into())).unwrap();
        assert!(value["half_round_trip_ns"].is_null());
        assert!(value["control"].is_null());
        assert!(value["ratio"].is_null());
    }

    #[test]
    fn json_file_contains_array() {
        let path = std::env::temp_dir().join(format!("vibench-report-{}.json", std::process::id()));
        std::fs::write(&path, "x".repeat(100_000)).unwrap();
        let file = JsonFile::open(Some(&path)).unwrap().unwrap();
        file.write(&[sample(), sample()]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value.as_array().unwrap().len(), 2);
    }

    #[test]
    fn table_rows_align_with_header() {
        let header = table_header();
        let width = header.lines().next().unwrap().len();
        let row = table_row(&sample());
        assert_eq!(row.len(), width, "{header}\n{row}");
        assert!(row.contains("450 ns") && row.contains("360 ns") && row.ends_with("1.25"));
    }

    #[test]
    fn table_row_reports_losses_warnings_and_early_end() {
        let mut result = sample();
        result.lost = 3;
        result.delivered = 7;
        result.ended_early = Some("connection lost".into());
        result.round_spread = Some(2.0);
        assert!(!table_row(&result).contains("warning"));
        result.round_spread = Some(2.74);
        let row = table_row(&result);
        assert!(row.contains("lost 3 of 10 messages"), "{row}");
        assert!(row.contains("ended early: connection lost"), "{row}");
        assert!(row.contains("warning: rounds differ 2.7-fold"), "{row}");
    }

    #[test]
    fn numbers_are_scaled() {
        assert_eq!(nanoseconds(431.0), "431 ns");
        assert_eq!(nanoseconds(12_345.0), "12.3 us");
        assert_eq!(nanoseconds(25e6), "25.0 ms");
        assert_eq!(scaled(12.0), "12 ");
        assert_eq!(scaled(6_120_000.0), "6.12 M");
        assert_eq!(scaled(9.41e9), "9.41 G");
    }
}
