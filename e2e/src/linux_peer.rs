//! A Linux kernel as a VN_Port: Debian's stock kernel in a virtual machine, on a tap of a [`Segment`].
//!
//! `ci/linux-peer` provides kernel and initramfs. `ci/linux-peer.d/init` runs in the machine and prints the lines that
//! this module waits for. The machine is emulated, so it needs access to its tap only.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::installation::built;
use crate::process::{Line, Running, TIMEOUT};
use crate::segment::Segment;

/// Memory of the machine in megabytes.
const MEMORY_MB: &str = "192";

/// A MAC address, with the names and the N_Port_ID that fcoe derives from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns the WWPN: name format 2, then the MAC.
    pub fn port_name(self) -> u64 {
        self.name(0x2000)
    }

    /// Returns the WWNN: name format 1, then the MAC.
    pub fn node_name(self) -> u64 {
        self.name(0x1000)
    }

    /// Returns the N_Port_ID that is tried first: the low 16 bits of the port name.
    pub fn first_port_id(self) -> u32 {
        u32::from(u16::from_be_bytes([self.0[4], self.0[5]]))
    }

    fn name(self, format: u16) -> u64 {
        let address = self
            .0
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        u64::from(format) << 48 | address
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&digits.join(":"))
    }
}

/// A port as the kernel shows it under `/sys/class/fc_host` or `/sys/class/fc_remote_ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Its N_Port_ID.
    pub port_id: u32,
    /// Its node name.
    pub node_name: u64,
    /// The kernel's text for the roles of a remote port; empty for the local port.
    pub roles: String,
    /// The kernel's uptime when the init program read the state.
    pub uptime: Duration,
    /// When the line was read.
    pub at: Instant,
}

impl PortView {
    fn read(line: &Line) -> Self {
        let hex = |key| u64::from_str_radix(value(line, key).trim_start_matches("0x"), 16);
        Self {
            port_id: hex(" port_id=")
                .expect("24 bits")
                .try_into()
                .expect("24 bits"),
            node_name: hex(" node_name=").expect("64 bits"),
            roles: if line.text.starts_with("remote ") {
                value(line, " roles=").to_owned()
            } else {
                String::new()
            },
            uptime: uptime(line),
            at: line.at,
        }
    }
}

/// Returns the value after a key, up to the next key or the end of the line.
fn value<'a>(line: &'a Line, key: &str) -> &'a str {
    let (_, rest) = line
        .text
        .split_once(key)
        .unwrap_or_else(|| panic!("no {key} in {line:?}"));
    match rest.split_once('=') {
        None => rest,
        Some((words, _)) => words.rsplit_once(' ').expect("a key before =").0,
    }
}

fn uptime(line: &Line) -> Duration {
    Duration::from_secs_f64(value(line, " uptime=").parse().expect("seconds"))
}

/// A running machine; killed on drop.
pub struct LinuxPeer {
    running: Running,
    mac: Mac,
}

impl LinuxPeer {
    /// Creates a tap of this name on the segment and starts a machine on it; does not wait for the kernel.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn boot(segment: &Segment, tap: &str, mac: Mac) -> Self {
        segment.tap(tap);
        segment.attach(tap);
        let mut command = segment.namespace().program("qemu-system-x86_64");
        // Only the listed devices; a kernel panic ends the machine.
        command
            .args([
                "-accel",
                "tcg",
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
            ])
            .args(["-display", "none", "-m", MEMORY_MB])
            .arg("-kernel")
            .arg(artifact("vmlinux"))
            .arg("-initrd")
            .arg(artifact("initramfs"))
            .arg("-append")
            .arg(format!(
                "console=ttyS0 quiet oops=panic panic=-1 ipv6.disable=1 mtu={}",
                segment.mtu_bytes()
            ))
            // The console goes to standard error of the test, the second port carries commands and reports.
            .args(["-serial", "file:/dev/stderr", "-serial", "stdio"])
            .args([
                "-netdev",
                &format!("tap,id=link,ifname={tap},script=no,downscript=no"),
            ])
            // Not e1000: qemu's model drops frames for a second after each change of its address filter.
            .args([
                "-device",
                &format!("virtio-net-pci,netdev=link,mac={mac},romfile="),
            ]);
        Self {
            running: Running::start(&format!("Linux at {tap}"), &mut command),
            mac,
        }
    }

    /// Waits until the kernel has booted and its interface has carrier; returns its uptime.
    ///
    /// # Panics
    /// After the timeout.
    pub fn wait_until_ready(&mut self) -> Duration {
        uptime(&self.running.wait_for("ready ", TIMEOUT))
    }

    /// Returns the MAC of the interface, from which the port and node names are derived.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Creates the VN2VN instance and discards earlier output.
    pub fn start(&mut self) {
        self.running.discard_output();
        self.running.send_line("start");
    }

    /// Destroys the VN2VN instance; returns the time when the kernel had removed the port.
    ///
    /// # Panics
    /// After the timeout.
    pub fn stop(&mut self) -> Instant {
        self.running.send_line("stop");
        let gone = format!("host {:#018x} gone ", self.mac.port_name());
        self.running.wait_for(&gone, TIMEOUT).at
    }

    /// Waits until the kernel's local port is in a state, with any N_Port_ID.
    ///
    /// # Panics
    /// After the limit.
    pub fn wait_for_own(&mut self, state: &str, limit: Duration) -> PortView {
        let start = format!("host {:#018x} {state} ", self.mac.port_name());
        PortView::read(&self.running.wait_for(&start, limit))
    }

    /// Waits until a remote port is in a state, as seen by the kernel.
    ///
    /// # Panics
    /// After the limit.
    pub fn wait_for_remote(&mut self, port_name: u64, state: &str, limit: Duration) -> PortView {
        let start = format!("remote {port_name:#018x} {state} ");
        PortView::read(&self.running.wait_for(&start, limit))
    }

    /// Discards earlier output and has the init program print the current state.
    ///
    /// # Panics
    /// After the timeout.
    pub fn refresh(&mut self) {
        self.running.discard_output();
        self.running.send_line("status");
        self.running.wait_for("view ", TIMEOUT);
    }

    /// Waits for `time`, during which the kernel's view of the network must not change.
    ///
    /// # Panics
    /// If it changes.
    pub fn expect_silence(&mut self, time: Duration) {
        self.running.expect_silence(time);
    }

    /// Kills the machine, so that its port vanishes without logout; returns the time of the kill.
    pub fn kill(self) -> Instant {
        self.running.kill()
    }

    /// Powers the machine off; returns its output.
    ///
    /// # Panics
    /// If it fails, or refused a command.
    pub fn power_off(mut self) -> String {
        self.running.send_line("poweroff");
        let output = self.running.succeed(TIMEOUT);
        assert!(!output.contains("refused "), "{output}");
        output
    }
}

/// Returns the path of a file that ci/linux-peer has built.
fn artifact(name: &str) -> PathBuf {
    let target = built()
        .parent()
        .expect("a profile directory is in a target directory")
        .to_path_buf();
    let path = target.join("linux-peer").join(name);
    assert!(
        path.exists(),
        "{} is missing: run this as ci/linux-peer",
        path.display()
    );
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_derived_from_the_mac() {
        let mac = Mac([0x52, 0x54, 0, 1, 0xab, 0xcd]);
        assert_eq!(mac.port_name(), 0x2000_5254_0001_abcd);
        assert_eq!(mac.node_name(), 0x1000_5254_0001_abcd);
        assert_eq!(mac.first_port_id(), 0x00_abcd);
        assert_eq!(mac.to_string(), "52:54:00:01:ab:cd");
    }

    #[test]
    fn lines_of_the_init_program_are_parsed() {
        let at = Instant::now();
        let line = |text: &str| Line {
            at,
            text: text.to_owned(),
        };
        let host = "host 0x2000525400000001 Online port_id=0x000001 node_name=0x1000525400000001 uptime=12.34";
        let expected = PortView {
            port_id: 1,
            node_name: 0x1000_5254_0000_0001,
            roles: String::new(),
            uptime: Duration::from_millis(12_340),
            at,
        };
        assert_eq!(PortView::read(&line(host)), expected);
        let remote = "remote 0x2000525400000001 Not Present port_id=0x000001 node_name=0x1000525400000001 \
                      roles=FCP Target, FCP Initiator uptime=12.34";
        let roles = "FCP Target, FCP Initiator".to_owned();
        assert_eq!(
            PortView::read(&line(remote)),
            PortView { roles, ..expected }
        );
    }
}
