//! The options of one end.

use core::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use pmd_port::MacBytes;

use crate::cli::parse_seconds;
use crate::control::HEADER_BYTES;
use crate::latency::Limit;
use crate::process::Stop;

/// The shortest frame of an Ethernet, without FCS.
const SHORTEST_BYTES: u16 = 60;

/// What is less says how long a frame is.
const LEAST_ETHERTYPE: u16 = 0x0600;

/// What one end does.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Send frames to a station as fast as it takes them.
    Send(StreamOptions),
    /// Count the frames that come.
    Receive(ReceiveOptions),
    /// Send one frame after the other and measure how long each takes to come back.
    Ping(BeginOptions),
    /// Send every frame back to where it came from.
    Echo(PortOptions),
}

impl Role {
    /// What all roles have.
    pub(crate) fn options(&self) -> &PortOptions {
        match self {
            Self::Send(options) => &options.begin.end,
            Self::Ping(options) => &options.end,
            Self::Receive(options) => &options.end,
            Self::Echo(options) => options,
        }
    }
}

/// Options of an end that begins.
#[derive(Clone, Debug, Args)]
pub struct BeginOptions {
    /// The other station [default: the only one that the port sees, if it sees stations].
    #[arg(long, value_name = "MAC")]
    pub to: Option<MacText>,
    /// Bytes of a frame from destination address to the last byte before the FCS.
    #[arg(long, default_value_t = SHORTEST_BYTES, value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(HEADER_BYTES as i64..))]
    pub size: u16,
    /// What every end has.
    #[command(flatten)]
    pub end: PortOptions,
}

impl BeginOptions {
    /// Bytes of a frame.
    pub(crate) fn size_bytes(&self) -> usize {
        usize::from(self.size)
    }
}

/// Options of an end that sends as fast as it can.
#[derive(Clone, Debug, Args)]
pub struct StreamOptions {
    /// Copy what is in each frame from memory and seal it with a CRC, as every end of FC-VI has to.
    #[arg(long)]
    pub filled: bool,
    /// What every end has that begins.
    #[command(flatten)]
    pub begin: BeginOptions,
}

/// Options of an end that counts.
#[derive(Clone, Debug, Args)]
pub struct ReceiveOptions {
    /// Check the CRC of each frame that was sent with this option, and copy what is in it to memory.
    #[arg(long)]
    pub filled: bool,
    /// What every end has.
    #[command(flatten)]
    pub end: PortOptions,
}

/// Options of every end.
#[derive(Clone, Debug, Args)]
pub struct PortOptions {
    /// Configuration of the NIC whose port is measured (TOML) [default: a segment in shared memory].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The NIC of the configuration.
    #[arg(long, value_name = "NAME", default_value = "VINIC0")]
    pub device: String,
    /// The segment without a configuration.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "vibench-port",
        conflicts_with = "config"
    )]
    pub segment: String,
    /// Our station address, where the driver lets it be chosen [default: one made of the process's number].
    #[arg(long, value_name = "MAC")]
    pub mac: Option<MacText>,
    /// EtherType of the frames, in hexadecimal.
    #[arg(long, value_name = "HEX", default_value = "88b5", value_parser = parse_ethertype)]
    pub ethertype: u16,
    /// The core to stay on.
    #[arg(long)]
    pub core: Option<usize>,
    /// Seconds; of `receive` and `echo` since the first frame [default: 3; theirs until interrupted].
    #[arg(long, value_parser = parse_seconds)]
    pub seconds: Option<Duration>,
    /// Frames, in place of seconds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub frames: Option<u64>,
    /// Write the result to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// How long an end that begins goes on, unless told.
const USUAL: Duration = Duration::from_secs(3);

impl Role {
    /// When the run ends.
    pub(crate) fn limit(&self, stop: Stop) -> Limit {
        let usual = match self {
            Self::Send(_) | Self::Ping(_) => USUAL,
            Self::Receive(_) | Self::Echo(_) => Duration::MAX,
        };
        let options = self.options();
        Limit {
            duration: options.seconds.unwrap_or(usual),
            messages: options.frames,
            stop,
        }
    }
}

/// A MAC address as text: six bytes in hexadecimal, with colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacText(pub MacBytes);

impl fmt::Display for MacText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at > 0 { ":" } else { "" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for MacText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a MAC address such as 02:00:00:00:00:01");
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2);
            *byte = part
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or_else(wrong)?;
        }
        match parts.next() {
            None => Ok(Self(mac)),
            Some(_) => Err(wrong()),
        }
    }
}

fn parse_ethertype(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16)
        .ok()
        .filter(|&ethertype| ethertype >= LEAST_ETHERTYPE)
        .ok_or_else(|| format!("`{text}` is not an EtherType from 0600 to ffff"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::control::ETHERTYPE;

    fn parse(line: &str) -> Result<Role, clap::Error> {
        let words = ["vibench", "port"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words)?.command {
            Command::Port { role } => Ok(role),
            _ => panic!("{line} is not of a port"),
        }
    }

    #[test]
    fn usual_values() {
        let Role::Send(send) = parse("send").unwrap() else {
            panic!("another role");
        };
        let begin = &send.begin;
        assert_eq!((begin.size_bytes(), begin.to), (60, None));
        assert_eq!(begin.end.ethertype, ETHERTYPE);
        assert_eq!(begin.end.segment, "vibench-port");
        assert!(!send.filled);
    }

    #[test]
    fn only_an_end_that_begins_ends_by_itself() {
        for (line, usual) in [
            ("send", USUAL),
            ("ping", USUAL),
            ("receive", Duration::MAX),
            ("echo", Duration::MAX),
        ] {
            let limit = |line: &str| parse(line).unwrap().limit(Stop::never());
            assert_eq!(limit(line).duration, usual, "{line}");
            assert_eq!(limit(&format!("{line} --frames 7")).messages, Some(7));
            let two = Duration::from_secs(2);
            assert_eq!(limit(&format!("{line} --seconds 2")).duration, two);
        }
    }

    #[test]
    fn addresses() {
        let text = "02:00:0a:ff:10:01";
        let mac: MacText = text.parse().unwrap();
        assert_eq!(mac.0, [2, 0, 0x0a, 0xff, 0x10, 1]);
        assert_eq!(mac.to_string(), text);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "throw",
            "send --to 02:00:00:00:00",
            "send --to 02:00:00:00:00:01:02",
            "send --to 2:0:0:0:0:1",
            "send --to 02:00:00:00:00:0g",
            "send --size 22",
            "send --size 65536",
            "send --frames 0",
            "send --frames 1 --seconds 1",
            "send --ethertype 05ff",
            "send --ethertype 10000",
            "receive --to 02:00:00:00:00:01",
            "echo --filled",
            "ping --filled",
            "receive --segment a --config b",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
