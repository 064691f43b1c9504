//! Options of one side of `vibench port`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use fcvi_frame::MacAddress;

use crate::cli::parse_seconds;
use crate::latency::RoundLimit;
use crate::process::StopFlag;
use crate::raw_control::HEADER_BYTES;

/// Minimum Ethernet frame without FCS, in bytes.
const MIN_FRAME_BYTES: u16 = 60;

/// Minimum EtherType; smaller values are frame lengths.
const MIN_ETHERTYPE: u16 = 0x0600;

/// Role of one side.
#[derive(Clone, Debug, Subcommand)]
pub enum Role {
    /// Send frames to a station as fast as possible.
    Send(SendOptions),
    /// Receive and count frames.
    Receive(ReceiveOptions),
    /// Send one frame at a time and measure its round trip.
    Ping(TransmitOptions),
    /// Send every received frame back to its sender.
    Echo(PortOptions),
}

impl Role {
    /// Returns the options common to all roles.
    pub(crate) fn options(&self) -> &PortOptions {
        match self {
            Self::Send(options) => &options.transmit.port,
            Self::Ping(options) => &options.port,
            Self::Receive(options) => &options.port,
            Self::Echo(options) => options,
        }
    }
}

/// Options of `ping`, and of `send`.
#[derive(Clone, Debug, Args)]
pub struct TransmitOptions {
    /// MAC address of the other station [default: the first one discovered, if the driver supports discovery].
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    pub to: Option<MacAddress>,
    /// Frame size in bytes, from the destination address to the last byte before the FCS.
    #[arg(long, default_value_t = MIN_FRAME_BYTES, value_name = "BYTES",
        value_parser = clap::value_parser!(u16).range(HEADER_BYTES as i64..))]
    pub size: u16,
    /// Options common to all roles.
    #[command(flatten)]
    pub port: PortOptions,
}

impl TransmitOptions {
    /// Returns the frame size in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        usize::from(self.size)
    }
}

/// Options of `send`.
#[derive(Clone, Debug, Args)]
pub struct SendOptions {
    /// Copy the payload of each frame from memory and append a CRC, as FC-VI requires of every sender.
    #[arg(long)]
    pub filled: bool,
    /// Options common to `send` and `ping`.
    #[command(flatten)]
    pub transmit: TransmitOptions,
}

/// Options of `receive`.
#[derive(Clone, Debug, Args)]
pub struct ReceiveOptions {
    /// Check the CRC of each frame sent with --filled, and copy its payload to memory.
    #[arg(long)]
    pub filled: bool,
    /// Options common to all roles.
    #[command(flatten)]
    pub port: PortOptions,
}

/// Options common to all roles.
#[derive(Clone, Debug, Args)]
pub struct PortOptions {
    /// Configuration file (TOML) that contains the NIC whose port is measured [default: a shared-memory segment].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of the NIC in the configuration.
    #[arg(long, value_name = "NAME", default_value = "VINIC0")]
    pub device: String,
    /// Name of the shared-memory segment, without a configuration.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "vibench-port",
        conflicts_with = "config"
    )]
    pub segment: String,
    /// MAC address of this station, if the driver supports a choice [default: derived from the process ID].
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    pub mac: Option<MacAddress>,
    /// EtherType of the frames in hexadecimal.
    #[arg(long, value_name = "HEX", default_value = "88b5", value_parser = parse_ethertype)]
    pub ethertype: u16,
    /// Core to pin to.
    #[arg(long)]
    pub core: Option<usize>,
    /// Duration in seconds, for receive and echo from the first frame on [default: 3; receive, echo: unlimited].
    #[arg(long, value_parser = parse_seconds)]
    pub seconds: Option<Duration>,
    /// Number of frames, instead of a duration.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "seconds")]
    pub frames: Option<u64>,
    /// File for the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Default duration of `send` and `ping`.
const DEFAULT_DURATION: Duration = Duration::from_secs(3);

impl Role {
    /// Returns the end of the run.
    pub(crate) fn limit(&self, stop: StopFlag) -> RoundLimit {
        let default_duration = match self {
            Self::Send(_) | Self::Ping(_) => DEFAULT_DURATION,
            Self::Receive(_) | Self::Echo(_) => Duration::MAX,
        };
        let options = self.options();
        RoundLimit {
            duration: options.seconds.unwrap_or(default_duration),
            messages: options.frames,
            stop,
        }
    }
}

fn parse_mac(text: &str) -> Result<MacAddress, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a MAC address such as 02:00:00:00:00:01"))
}

fn parse_ethertype(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16)
        .ok()
        .filter(|&ethertype| ethertype >= MIN_ETHERTYPE)
        .ok_or_else(|| format!("`{text}` is not an EtherType from 0600 to ffff"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::nic::ETHERTYPE;

    fn parse(line: &str) -> Result<Role, clap::Error> {
        let words = ["vibench", "port"]
            .into_iter()
            .chain(line.split_whitespace());
        match Cli::try_parse_from(words)?.command {
            Command::Port { role } => Ok(role),
            _ => panic!("{line} is not `port`"),
        }
    }

    #[test]
    fn options_without_arguments_have_defaults() {
        let Role::Send(send) = parse("send").unwrap() else {
            panic!("unexpected role");
        };
        let transmit = &send.transmit;
        assert_eq!((transmit.size_bytes(), transmit.to), (60, None));
        assert_eq!(transmit.port.ethertype, ETHERTYPE);
        assert_eq!(transmit.port.segment, "vibench-port");
        assert!(!send.filled);
    }

    #[test]
    fn default_duration_is_limited_for_send_and_ping_only() {
        for (line, default_duration) in [
            ("send", DEFAULT_DURATION),
            ("ping", DEFAULT_DURATION),
            ("receive", Duration::MAX),
            ("echo", Duration::MAX),
        ] {
            let limit = |line: &str| parse(line).unwrap().limit(StopFlag::never());
            assert_eq!(limit(line).duration, default_duration, "{line}");
            assert_eq!(limit(&format!("{line} --frames 7")).messages, Some(7));
            let two = Duration::from_secs(2);
            assert_eq!(limit(&format!("{line} --seconds 2")).duration, two);
        }
    }

    #[test]
    fn mac_addresses_are_parsed() {
        let mac = Some(MacAddress([2, 0, 0x0a, 0xff, 0x10, 1]));
        let Role::Ping(ping) =
            parse("ping --to 02:00:0a:ff:10:01 --mac 02:00:0a:ff:10:01").unwrap()
        else {
            panic!("unexpected role");
        };
        assert_eq!((ping.to, ping.port.mac), (mac, mac));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
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
