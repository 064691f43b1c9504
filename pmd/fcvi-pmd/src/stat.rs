//! A snapshot as tables of at most [`COLUMNS`] columns, or as JSON.

use crate::snapshot::{ApplicationInfo, CoreInfo, NicInfo, ProcessInfo, Snapshot, ViInfo};
use crate::table::{self, Column, numbers, short, words};

/// The maximum length of a line, in characters.
pub const COLUMNS: usize = 100;

/// Formats the snapshot as one line of JSON.
///
/// # Errors
/// A ratio is not a number.
pub fn json(snapshot: &Snapshot) -> serde_json::Result<String> {
    serde_json::to_string(snapshot)
}

/// Formats the snapshot as tables, with totals since the start of the process.
#[must_use]
pub fn text(snapshot: &Snapshot) -> String {
    let mut lines = vec![headline(&snapshot.process)];
    let lost = snapshot.process.log_lines_lost;
    if lost > 0 {
        lines.push(format!("{lost} log lines lost: standard error is not read"));
    }
    lines.extend(section("cores", &CORE, &snapshot.cores, core));
    lines.extend(section("NICs", &NIC, &snapshot.nics, nic));
    lines.extend(section("traffic", &TRAFFIC, &snapshot.nics, traffic));
    let drops: Vec<_> = snapshot
        .nics
        .iter()
        .flat_map(|nic| {
            nic.drops()
                .map(|(reason, count)| (nic.name.as_str(), reason, count))
        })
        .collect();
    lines.extend(section("drops", &DROP, &drops, |(nic, reason, count)| {
        [(*nic).to_owned(), (*reason).to_owned(), count.to_string()]
    }));
    lines.extend(section(
        "applications",
        &APPLICATION,
        &snapshot.applications,
        application,
    ));
    lines.extend(section("VIs", &VI, &snapshot.vis, vi));
    lines.join("\n") + "\n"
}

/// The first line: version, process ID, uptime and configuration.
pub(crate) fn headline(process: &ProcessInfo) -> String {
    let uptime_s = process.uptime_s as u64;
    let (hours, minutes, seconds) = (uptime_s / 3600, uptime_s / 60 % 60, uptime_s % 60);
    let line = format!(
        "fcvi-pmd {}, pid {}, up {hours}:{minutes:02}:{seconds:02}, {}",
        process.version, process.pid, process.config
    );
    line.chars()
        .filter(|c| !c.is_control())
        .take(COLUMNS)
        .collect()
}

/// A table with a title; a line that says so if it has no rows.
fn section<const N: usize, T>(
    title: &str,
    columns: &[Column; N],
    all: &[T],
    row: impl Fn(&T) -> [String; N],
) -> Vec<String> {
    if all.is_empty() {
        return vec![String::new(), format!("no {title}")];
    }
    let rows: Vec<_> = all.iter().map(row).collect();
    let mut lines = vec![String::new(), title.to_owned()];
    lines.extend(table::lines(columns, &rows));
    lines
}

const CORE: [Column; 5] = [
    numbers("CORE", 5),
    numbers("TURNS", 8),
    numbers("BUSY", 8),
    numbers("BUSY%", 6),
    words("STATE", 8),
];

fn core(core: &CoreInfo) -> [String; 5] {
    [
        core.core.to_string(),
        short(core.turns),
        short(core.busy_turns),
        percent(core.busy_ratio),
        poller_state(core.sleeping).to_owned(),
    ]
}

/// A ratio as a percentage.
pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.1}", ratio * 100.0)
}

/// The state of a poller.
pub(crate) fn poller_state(sleeping: bool) -> &'static str {
    if sleeping { "sleeps" } else { "polls" }
}

const NIC: [Column; 6] = [
    words("NIC", 12),
    words("DRIVER", 9),
    words("DEVICE", 16),
    words("N_PORT", 8),
    words("HOST", 39),
    words("STATE", 7),
];

fn nic(nic: &NicInfo) -> [String; 6] {
    [
        nic.name.clone(),
        nic.driver.clone(),
        nic.device.clone(),
        or_dash(nic.n_port_id.as_deref()),
        nic.host.clone(),
        nic.state.name().to_owned(),
    ]
}

/// The text, or a dash for `None`.
pub(crate) fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

const TRAFFIC: [Column; 8] = [
    words("NIC", 12),
    numbers("RX FRAMES", 10),
    numbers("RX BYTES", 10),
    numbers("TX FRAMES", 10),
    numbers("TX BYTES", 10),
    numbers("LOCAL MSG", 10),
    numbers("LOCAL BYTES", 11),
    numbers("DROPS", 10),
];

fn traffic(nic: &NicInfo) -> [String; 8] {
    [
        nic.name.clone(),
        short(nic.rx_frames),
        short(nic.rx_bytes),
        short(nic.tx_frames),
        short(nic.tx_bytes),
        short(nic.local_messages),
        short(nic.local_bytes),
        short(nic.drops().map(|(_, count)| count).sum()),
    ]
}

const DROP: [Column; 3] = [words("NIC", 12), words("REASON", 48), numbers("COUNT", 20)];

const APPLICATION: [Column; 10] = [
    numbers("PID", 10),
    words("NIC", 12),
    words("COMMAND", 16),
    words("USER", 10),
    numbers("VIS", 6),
    numbers("REGIONS", 7),
    numbers("MEMORY", 7),
    numbers("POSTED", 7),
    numbers("DONE", 7),
    numbers("WAITING", 7),
];

fn application(application: &ApplicationInfo) -> [String; 10] {
    [
        application.pid.to_string(),
        application.nic.clone(),
        application.command.clone(),
        application.user.clone(),
        application.vis.to_string(),
        application.regions.to_string(),
        short(application.registered_bytes),
        short(application.posted),
        short(application.completed),
        application.waiting.to_string(),
    ]
}

const VI: [Column; 13] = [
    numbers("PID", 7),
    words("NIC", 8),
    numbers("VI", 4),
    words("STATE", 9),
    words("LV", 2),
    words("PEER", 16),
    words("N_PORT", 8),
    numbers("SEND", 5),
    numbers("RECV", 5),
    numbers("TX-MSG", 6),
    numbers("TX-B", 6),
    numbers("RX-MSG", 6),
    numbers("RX-B", 6),
];

fn vi(vi: &ViInfo) -> [String; 13] {
    let peer = vi.peer.as_ref();
    [
        vi.application.to_string(),
        vi.nic.clone(),
        vi.index.to_string(),
        vi.state.clone(),
        vi.reliability.clone(),
        or_dash(peer.map(|peer| peer.host.as_str())),
        or_dash(peer.map(|peer| peer.n_port_id.as_str())),
        vi.send_depth.to_string(),
        vi.recv_depth.to_string(),
        short(vi.messages_sent),
        short(vi.bytes_sent),
        short(vi.messages_received),
        short(vi.bytes_received),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample::snapshot;

    const EXPECTED: &str = "\
fcvi-pmd 0.1.0, pid 4711, up 1:02:03, /etc/viaduct/pmd.toml
5 log lines lost: standard error is not read

cores
CORE TURNS   BUSY BUSY% STATE
   2  1.0M 250.0k  25.0 polls
   3    10      0   0.0 sleeps

NICs
NIC   DRIVER    DEVICE N_PORT   HOST       STATE
rail0 af_packet ens1f0 00.01.02 192.0.2.11 up
node  shm       node   -        ::1        probing

traffic
NIC   RX FRAMES RX BYTES TX FRAMES TX BYTES LOCAL MSG LOCAL BYTES DROPS
rail0    123.5k   263.0M         7     1000        20       81920     3
node          0        0         0        0         0           0     0

drops
NIC   REASON       COUNT
rail0 drop_bad_crc     3

applications
PID NIC   COMMAND        USER  VIS REGIONS MEMORY POSTED DONE WAITING
100 rail0 EchoServer     alice   2       3   5.2M   1000  990       1
200 node  solver \"a\\b\"?x bob     1       0      0      0    0       0

VIs
PID NIC   VI STATE     LV PEER             N_PORT   SEND RECV TX-MSG  TX-B RX-MSG RX-B
100 rail0  0 Connected RD 192.0.2.12       00.02.01    3   64    500 32000    500 1.1G
100 rail0  1 Idle      RR -                -           0    0      0     0      0    0
200 node  17 Connected UD 2001:db8:1111:2~ 00.00.01    0    0      0     0      0    0
";

    #[test]
    fn text_is_aligned_tables() {
        assert_eq!(text(&snapshot(0)), EXPECTED);
    }

    #[test]
    fn text_of_an_empty_process_names_the_empty_sections() {
        let text = text(&Snapshot::default());
        for words in [
            "no cores",
            "no NICs",
            "no drops",
            "no applications",
            "no VIs",
        ] {
            assert!(text.lines().any(|line| line == words), "{text}");
        }
    }

    #[test]
    fn longest_values_fit_into_the_columns() {
        let mut snapshot = snapshot(0);
        let long = "x".repeat(200);
        snapshot.process.config.clone_from(&long);
        for core in &mut snapshot.cores {
            (core.core, core.turns, core.busy_turns) = (99_999, u64::MAX, u64::MAX);
        }
        for nic in &mut snapshot.nics {
            for text in [
                &mut nic.name,
                &mut nic.driver,
                &mut nic.device,
                &mut nic.host,
            ] {
                text.clone_from(&long);
            }
            nic.rx_frames = u64::MAX;
            nic.counters = [(format!("drop_{long}"), u64::MAX)].into();
        }
        for application in &mut snapshot.applications {
            application.command.clone_from(&long);
            application.nic.clone_from(&long);
            application.user.clone_from(&long);
            (application.pid, application.vis) = (u32::MAX, 4096);
            (application.posted, application.regions) = (u64::MAX, 65535);
            application.waiting = 4096;
        }
        for vi in &mut snapshot.vis {
            vi.nic.clone_from(&long);
            vi.state = "ConnectPending".into();
            (vi.application, vi.index) = (4_194_304, 4095);
            (vi.send_depth, vi.recv_depth) = (65_536, 65_536);
            (vi.bytes_sent, vi.messages_received) = (u64::MAX, u64::MAX);
        }
        for line in text(&snapshot).lines() {
            assert!(line.chars().count() <= COLUMNS, "{}: {line}", line.len());
        }
    }

    #[test]
    fn json_is_one_line() {
        let line = json(&snapshot(0)).unwrap();
        assert!(
            line.starts_with("{\"process\":{\"pid\":4711,") && !line.contains('\n'),
            "{line}"
        );
    }
}
