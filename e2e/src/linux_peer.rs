//! A Linux kernel as a VN_Port: Debian's stock kernel in a machine of its own, on a tap of a [`Segment`].
//!
//! `ci/linux-peer` provides kernel and initramfs; `ci/linux-peer.d/init` is the program inside, and tells the lines that are
//! waited for here. The machine is emulated, so it needs no right but to open its tap.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::installation::built;
use crate::process::{Line, Running, TIMEOUT};
use crate::segment::Segment;

/// Megabytes of the machine.
const MEMORY_MB: &str = "192";

/// What fcoe makes of a MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The WWPN: name format 2, then the MAC.
    pub fn port_name(self) -> u64 {
        self.name(0x2000)
    }

    /// The WWNN: name format 1, then the MAC.
    pub fn node_name(self) -> u64 {
        self.name(0x1000)
    }

    /// The N_Port_ID that is tried first: the low 16 bits of the port name.
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
    /// A remote port's roles, in the kernel's words; empty for an own one.
    pub roles: String,
    /// The kernel's uptime when its init saw it.
    pub uptime: Duration,
    /// When that was read here.
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

/// What stands behind a key, up to the next one or the end.
fn value<'a>(line: &'a Line, key: &str) -> &'a str {
    let (_, rest) = line
        .text
        .split_once(key)
        .unwrap_or_else(|| panic!("no {key} in {line:?}"));
    match rest.split_once('=') {
        None => rest,
        Some((words, _)) => words.rsplit_once(' ').expect("a key in front of =").0,
    }
}

fn uptime(line: &Line) -> Duration {
    Duration::from_secs_f64(value(line, " uptime=").parse().expect("seconds"))
}

/// A machine that runs; killed when it is dropped.
pub struct LinuxPeer {
    running: Running,
    mac: Mac,
}

impl LinuxPeer {
    /// Starts a machine on a tap of this name, which it makes and joins; returns at once.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn boot(segment: &Segment, tap: &str, mac: Mac) -> Self {
        segment.tap(tap);
        segment.join(tap);
        let mut command = segment.namespace().program("qemu-system-x86_64");
        // No device but what is named; a kernel that fails ends the machine.
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
            .arg(part("vmlinux"))
            .arg("-initrd")
            .arg(part("initramfs"))
            .arg("-append")
            .arg(format!(
                "console=ttyS0 quiet oops=panic panic=-1 ipv6.disable=1 mtu={}",
                segment.mtu_bytes()
            ))
            // The console is for whoever reads the failure of a test, the second port for the test.
            .args(["-serial", "file:/dev/stderr", "-serial", "stdio"])
            .args([
                "-netdev",
                &format!("tap,id=link,ifname={tap},script=no,downscript=no"),
            ])
            // Not e1000: qemu's is deaf for a second whenever its filter of addresses changes.
            .args([
                "-device",
                &format!("virtio-net-pci,netdev=link,mac={mac},romfile="),
            ]);
        Self {
            running: Running::start(&format!("Linux at {tap}"), &mut command),
            mac,
        }
    }

    /// Waits until the kernel has booted and its interface carries frames; gives its uptime.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_until_ready(&mut self) -> Duration {
        uptime(&self.running.wait_for("ready ", TIMEOUT))
    }

    /// The interface's MAC, which all names come from.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// Makes the VN2VN instance; what was seen before will not be found any more.
    pub fn start(&mut self) {
        self.running.skip();
        self.running.tell("start");
    }

    /// Destroys the VN2VN instance; returns when the kernel has no port any more.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn stop(&mut self) -> Instant {
        self.running.tell("stop");
        let gone = format!("host {:#018x} gone ", self.mac.port_name());
        self.running.wait_for(&gone, TIMEOUT).at
    }

    /// Waits until the kernel's own port is in a state, with whatever N_Port_ID.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_own(&mut self, state: &str, limit: Duration) -> PortView {
        let start = format!("host {:#018x} {state} ", self.mac.port_name());
        PortView::read(&self.running.wait_for(&start, limit))
    }

    /// Waits until the kernel sees a remote port in a state.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_remote(&mut self, port_name: u64, state: &str, limit: Duration) -> PortView {
        let start = format!("remote {port_name:#018x} {state} ");
        PortView::read(&self.running.wait_for(&start, limit))
    }

    /// Has the init say what the kernel sees now; what was seen before will not be found any more.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn look_again(&mut self) {
        self.running.skip();
        self.running.tell("status");
        self.running.wait_for("view ", TIMEOUT);
    }

    /// Waits for as long, in which the kernel's view of the network must stay as it is.
    ///
    /// # Panics
    /// If it changes.
    pub fn stay_silent(&mut self, time: Duration) {
        self.running.stay_silent(time);
    }

    /// Ends the machine in the middle of whatever it does, so that the network hears nothing of it any more.
    pub fn kill(self) -> Instant {
        self.running.kill()
    }

    /// Powers the machine off; gives all that it has said.
    ///
    /// # Panics
    /// If it fails, or has refused a command.
    pub fn power_off(mut self) -> String {
        self.running.tell("poweroff");
        let said = self.running.succeed(TIMEOUT);
        assert!(!said.contains("refused "), "{said}");
        said
    }
}

/// A file that ci/linux-peer has made.
fn part(name: &str) -> PathBuf {
    let target = built()
        .parent()
        .expect("a profile lies in a target")
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
    fn names_come_from_the_mac() {
        let mac = Mac([0x52, 0x54, 0, 1, 0xab, 0xcd]);
        assert_eq!(mac.port_name(), 0x2000_5254_0001_abcd);
        assert_eq!(mac.node_name(), 0x1000_5254_0001_abcd);
        assert_eq!(mac.first_port_id(), 0x00_abcd);
        assert_eq!(mac.to_string(), "52:54:00:01:ab:cd");
    }

    #[test]
    fn a_line_of_the_init_is_read() {
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
