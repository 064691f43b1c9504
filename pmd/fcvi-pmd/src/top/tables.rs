//! The tables of `top` as lines, independent of a terminal.

use std::cmp::Reverse;

use crate::rates::Interval;
use crate::snapshot::Snapshot;
use crate::stat::{headline, or_dash, percent, poller_state};
use crate::table::{self, Column, numbers, scaled, words};

/// The sort key of applications, VIs and drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Highest rate of messages, descriptors or drops first.
    #[default]
    Rate,
    /// Highest byte rate or total first.
    Bytes,
    /// By process and index.
    Name,
}

impl Sort {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Rate => Self::Bytes,
            Self::Bytes => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Bytes => "bytes",
            Self::Name => "name",
        }
    }
}

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// The first line.
    Head,
    /// An empty line between two tables.
    Gap,
    /// The titles of the columns.
    Titles,
    /// A row of a table.
    Row,
}

/// A line of at most [`crate::stat::COLUMNS`] characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) kind: LineKind,
    pub(crate) text: String,
}

/// Formats the tables of the interval from `before` to `now`.
pub(crate) fn lines(before: &Snapshot, now: &Snapshot, sort: Sort) -> Vec<Line> {
    let interval = Interval::new(before, now);
    let mut lines = vec![Line {
        kind: LineKind::Head,
        text: headline(&now.process),
    }];
    table(&mut lines, &CORE, &cores(&interval, now));
    table(&mut lines, &NIC, &nics(&interval, now));
    table(
        &mut lines,
        &APPLICATION,
        &applications(&interval, now, sort),
    );
    table(&mut lines, &VI, &vis(&interval, now, sort));
    table(&mut lines, &DROP, &drops(&interval, sort));
    lines
}

fn table<const N: usize>(lines: &mut Vec<Line>, columns: &[Column; N], rows: &[[String; N]]) {
    if rows.is_empty() {
        return;
    }
    lines.push(Line {
        kind: LineKind::Gap,
        text: String::new(),
    });
    for (index, text) in table::lines(columns, rows).into_iter().enumerate() {
        let kind = if index == 0 {
            LineKind::Titles
        } else {
            LineKind::Row
        };
        lines.push(Line { kind, text });
    }
}

/// A sort key: the highest rate first, without fractions.
fn order(rate: f64) -> Reverse<u64> {
    Reverse(rate as u64)
}

const CORE: [Column; 4] = [
    numbers("CORE", 5),
    numbers("TURNS/s", 8),
    numbers("BUSY%", 6),
    words("STATE", 8),
];

fn cores(interval: &Interval<'_>, now: &Snapshot) -> Vec<[String; 4]> {
    let cores = now.cores.iter().map(|core| {
        let rates = interval.core(core);
        [
            core.core.to_string(),
            scaled(rates.polls),
            percent(rates.busy_ratio),
            poller_state(core.sleeping).to_owned(),
        ]
    });
    cores.collect()
}

const NIC: [Column; 10] = [
    words("NIC", 16),
    words("STATE", 8),
    words("N_PORT", 8),
    numbers("RX-FRM/s", 8),
    numbers("RX-B/s", 8),
    numbers("TX-FRM/s", 8),
    numbers("TX-B/s", 8),
    numbers("LOC-MSG/s", 9),
    numbers("LOC-B/s", 8),
    numbers("DROPS/s", 8),
];

fn nics(interval: &Interval<'_>, now: &Snapshot) -> Vec<[String; 10]> {
    let nics = now.nics.iter().map(|nic| {
        let rates = interval.nic(nic);
        [
            nic.name.clone(),
            nic.state.name().to_owned(),
            or_dash(nic.n_port_id.as_deref()),
            scaled(rates.rx_frames),
            scaled(rates.rx_bytes),
            scaled(rates.tx_frames),
            scaled(rates.tx_bytes),
            scaled(rates.local_messages),
            scaled(rates.local_bytes),
            scaled(rates.drops),
        ]
    });
    nics.collect()
}

const APPLICATION: [Column; 9] = [
    numbers("PID", 10),
    words("NIC", 12),
    words("APPLICATION", 16),
    words("USER", 10),
    numbers("POST/s", 8),
    numbers("DONE/s", 8),
    numbers("VIS", 6),
    numbers("MEMORY", 7),
    numbers("WAITING", 7),
];

fn applications(interval: &Interval<'_>, now: &Snapshot, sort: Sort) -> Vec<[String; 9]> {
    let mut all: Vec<_> = now
        .applications
        .iter()
        .map(|application| (application, interval.application(application)))
        .collect();
    all.sort_by_key(|(application, rates)| {
        let first = match sort {
            Sort::Rate => order(rates.posted),
            Sort::Bytes => Reverse(application.registered_bytes),
            Sort::Name => Reverse(0),
        };
        (first, application.pid, &application.nic)
    });
    let rows = all.iter().map(|(application, rates)| {
        [
            application.pid.to_string(),
            application.nic.clone(),
            application.command.clone(),
            application.user.clone(),
            scaled(rates.posted),
            scaled(rates.completed),
            application.vis.to_string(),
            table::short(application.registered_bytes),
            application.waiting.to_string(),
        ]
    });
    rows.collect()
}

const VI: [Column; 12] = [
    numbers("PID", 8),
    words("NIC", 8),
    numbers("VI", 4),
    words("STATE", 9),
    words("LV", 2),
    words("PEER", 16),
    numbers("SEND", 5),
    numbers("RECV", 5),
    numbers("TX-MSG/s", 8),
    numbers("TX-B/s", 7),
    numbers("RX-MSG/s", 8),
    numbers("RX-B/s", 7),
];

fn vis(interval: &Interval<'_>, now: &Snapshot, sort: Sort) -> Vec<[String; 12]> {
    let mut all: Vec<_> = now.vis.iter().map(|vi| (vi, interval.vi(vi))).collect();
    all.sort_by_key(|(vi, rates)| {
        let first = match sort {
            Sort::Rate => order(rates.messages_sent + rates.messages_received),
            Sort::Bytes => order(rates.bytes_sent + rates.bytes_received),
            Sort::Name => Reverse(0),
        };
        (first, vi.application, &vi.nic, vi.index)
    });
    let rows = all.iter().map(|(vi, rates)| {
        [
            vi.application.to_string(),
            vi.nic.clone(),
            vi.index.to_string(),
            vi.state.clone(),
            vi.reliability.clone(),
            or_dash(vi.peer.as_ref().map(|peer| peer.host.as_str())),
            vi.send_depth.to_string(),
            vi.recv_depth.to_string(),
            scaled(rates.messages_sent),
            scaled(rates.bytes_sent),
            scaled(rates.messages_received),
            scaled(rates.bytes_received),
        ]
    });
    rows.collect()
}

const DROP: [Column; 4] = [
    words("NIC", 16),
    words("DROP REASON", 48),
    numbers("DROPS/s", 8),
    numbers("TOTAL", 8),
];

fn drops(interval: &Interval<'_>, sort: Sort) -> Vec<[String; 4]> {
    let mut all = interval.drops();
    match sort {
        Sort::Rate => all.sort_by_key(|drop| order(drop.per_second)),
        Sort::Bytes => all.sort_by_key(|drop| Reverse(drop.total)),
        // The order of `Interval::drops`: by NIC and name.
        Sort::Name => {}
    }
    let rows = all.into_iter().map(|drop| {
        let (rate, total) = (scaled(drop.per_second), table::short(drop.total));
        [drop.nic, drop.reason, rate, total]
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample::snapshot;

    fn text(sort: Sort) -> String {
        let lines = lines(&snapshot(0), &snapshot(2), sort);
        lines.iter().map(|line| line.text.clone() + "\n").collect()
    }

    const EXPECTED: &str = "\
fcvi-pmd 0.1.0, pid 4711, up 1:02:05, /etc/viaduct/pmd.toml

CORE TURNS/s BUSY% STATE
   2    2.0M  75.0 polls
   3       5   0.0 sleeps

NIC   STATE   N_PORT   RX-FRM/s RX-B/s TX-FRM/s TX-B/s LOC-MSG/s LOC-B/s DROPS/s
rail0 up      00.01.02    10000  21.0M      500  64000         5   20480      42
node  probing -               0      0        0      0         0       0       0

PID NIC   APPLICATION    USER  POST/s DONE/s VIS MEMORY WAITING
100 rail0 EchoServer     alice    900    900   2   5.2M       1
200 node  solver \"a\\b\"?x bob        0      0   1      0       0

PID NIC   VI STATE     LV PEER             SEND RECV TX-MSG/s TX-B/s RX-MSG/s RX-B/s
100 rail0  0 Connected RD 192.0.2.12          3   64      450  28800      450   1.0M
100 rail0  1 Idle      RR -                   0    0        0      0        0      0
200 node  17 Connected UD 2001:db8:1111:2~    0    0        0      0        0      0

NIC   DROP REASON            DROPS/s TOTAL
rail0 port_drop_rx_ring_full      40    80
rail0 drop_bad_crc                 2     7
";

    #[test]
    fn lines_are_aligned_tables_of_rates() {
        assert_eq!(text(Sort::Rate), EXPECTED);
    }

    #[test]
    fn order_follows_the_sort_key() {
        let at = |text: &str, part: &str| text.find(part).unwrap();
        let by_name = text(Sort::Name);
        assert!(at(&by_name, "drop_bad_crc") < at(&by_name, "port_drop_rx_ring_full"));
        let (mut before, mut now) = (snapshot(0), snapshot(1));
        for (step, at) in [(0, &mut before), (1, &mut now)] {
            // Many small messages on one VI, few large ones on the other.
            (at.vis[1].messages_sent, at.vis[1].bytes_sent) = (1_000_000 * step, 8 * step);
        }
        let first = |sort| {
            let lines = lines(&before, &now, sort);
            let titles = lines
                .iter()
                .position(|line| line.text.contains("TX-MSG/s"))
                .unwrap();
            lines[titles + 1]
                .text
                .split_whitespace()
                .nth(2)
                .unwrap()
                .to_owned()
        };
        assert_eq!(first(Sort::Rate), "1");
        assert_eq!(first(Sort::Bytes), "0");
        assert_eq!(first(Sort::Name), "0");
        let mut sort = Sort::Rate;
        for name in ["rate", "bytes", "name", "rate"] {
            assert_eq!(sort.name(), name);
            sort = sort.next();
        }
    }

    #[test]
    fn lines_of_an_empty_process_are_the_first_line() {
        let empty = Snapshot::default();
        assert_eq!(lines(&empty, &empty, Sort::Rate).len(), 1);
    }
}
