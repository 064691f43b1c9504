//! A snapshot in the Prometheus text exposition format, version 0.0.4.
//!
//! VIs are created and destroyed too often for a series each: they are counted by NIC and state.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use crate::snapshot::{CounterKind, NicInfo, NicState, QuotaInfo, Snapshot, counter_kind};

/// The HTTP content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The whole snapshot as text.
#[must_use]
pub fn text(snapshot: &Snapshot) -> String {
    let mut out = Exposition::default();
    process(&mut out, snapshot);
    cores(&mut out, snapshot);
    nics(&mut out, snapshot);
    applications(&mut out, snapshot);
    vis(&mut out, snapshot);
    out.text
}

/// The type of a metric family.
#[derive(Clone, Copy)]
enum Kind {
    /// A total; its name ends in `_total`.
    Counter,
    /// A present value.
    Gauge,
}

/// The text under construction.
#[derive(Default)]
struct Exposition {
    text: String,
}

impl Exposition {
    /// Appends a family: its name without `viaduct_`, and labels and value of each series.
    fn family<'a, L: AsRef<[(&'a str, String)]>, V: Display>(
        &mut self,
        kind: Kind,
        (name, help): (&str, &str),
        series: impl IntoIterator<Item = (L, V)>,
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        self.line(format_args!("# HELP viaduct_{name} {help}"));
        self.line(format_args!("# TYPE viaduct_{name} {kind}"));
        for (labels, value) in series {
            let pairs = labels.as_ref().iter();
            let pairs: Vec<_> = pairs
                .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
                .collect();
            match pairs.is_empty() {
                true => self.line(format_args!("viaduct_{name} {value}")),
                false => self.line(format_args!(
                    "viaduct_{name}{{{}}} {value}",
                    pairs.join(",")
                )),
            }
        }
    }

    fn line(&mut self, line: core::fmt::Arguments<'_>) {
        // Writing into a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Escapes backslash, quote and newline in a label value.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn label(key: &str, value: impl ToString) -> (&str, String) {
    (key, value.to_string())
}

fn process(out: &mut Exposition, snapshot: &Snapshot) {
    let process = &snapshot.process;
    let info = [
        label("version", &process.version),
        label("config", &process.config),
    ];
    out.family(
        Kind::Gauge,
        ("process_info", "The process, always 1."),
        [(info, 1)],
    );
    let none: [(&str, String); 0] = [];
    let uptime = (
        "process_uptime_seconds",
        "How long the process has been running.",
    );
    out.family(Kind::Gauge, uptime, [(none.clone(), process.uptime_s)]);
    let lost = (
        "process_log_lines_lost_total",
        "Log lines that were lost because standard error was not read.",
    );
    out.family(Kind::Counter, lost, [(none, process.log_lines_lost)]);
}

fn cores(out: &mut Exposition, snapshot: &Snapshot) {
    let each = |of: fn(&crate::snapshot::CoreInfo) -> u64| {
        let cores = snapshot.cores.iter();
        cores.map(move |core| ([label("core", core.core)], of(core)))
    };
    let polls = ("core_turns_total", "Poll iterations of the poller.");
    out.family(Kind::Counter, polls, each(|core| core.turns));
    let busy = (
        "core_busy_turns_total",
        "Poll iterations of the poller that found work.",
    );
    out.family(Kind::Counter, busy, each(|core| core.busy_turns));
    let sleeping = ("core_sleeping", "1 while the poller sleeps.");
    out.family(Kind::Gauge, sleeping, each(|core| core.sleeping.into()));
}

fn nics(out: &mut Exposition, snapshot: &Snapshot) {
    let up = snapshot.nics.iter().map(|nic| {
        let labels = [
            label("nic", &nic.name),
            label("driver", &nic.driver),
            label("device", &nic.device),
            label("n_port_id", nic.n_port_id.as_deref().unwrap_or_default()),
            label("host", &nic.host),
        ];
        (labels, u8::from(nic.state == NicState::Up))
    });
    out.family(
        Kind::Gauge,
        ("nic_up", "1 if the port of the NIC is up."),
        up,
    );
    type Total = (&'static str, &'static str, fn(&NicInfo) -> u64);
    let totals: [Total; 6] = [
        ("nic_received_frames_total", "Frames received.", |nic| {
            nic.rx_frames
        }),
        (
            "nic_received_bytes_total",
            "Bytes of frames received.",
            |nic| nic.rx_bytes,
        ),
        ("nic_sent_frames_total", "Frames sent.", |nic| nic.tx_frames),
        ("nic_sent_bytes_total", "Bytes of frames sent.", |nic| {
            nic.tx_bytes
        }),
        (
            "nic_local_messages_total",
            "Messages that were copied from memory to memory, without frames.",
            |nic| nic.local_messages,
        ),
        (
            "nic_local_bytes_total",
            "Bytes of messages that were copied from memory to memory.",
            |nic| nic.local_bytes,
        ),
    ];
    for (name, help, of) in totals {
        let series = snapshot
            .nics
            .iter()
            .map(|nic| ([label("nic", &nic.name)], of(nic)));
        out.family(Kind::Counter, (name, help), series);
    }
    let counters = |wanted: CounterKind, key: &'static str| {
        snapshot.nics.iter().flat_map(move |nic| {
            let counters = nic.counters.iter();
            let counters = counters.filter(move |(name, _)| counter_kind(name) == wanted);
            counters.map(move |(name, value)| ([label("nic", &nic.name), label(key, name)], *value))
        })
    };
    let drops = ("nic_drops_total", "Drops, by reason.");
    out.family(Kind::Counter, drops, counters(CounterKind::Drop, "reason"));
    let events = ("nic_events_total", "Events, by counter name.");
    out.family(Kind::Counter, events, counters(CounterKind::Event, "event"));
    let levels = ("nic_level", "Present values, by counter name.");
    out.family(Kind::Gauge, levels, counters(CounterKind::Level, "of"));
}

/// A metric of an application: kind, name, help, and its value.
type ApplicationMetric = (
    Kind,
    &'static str,
    &'static str,
    fn(&crate::snapshot::ApplicationInfo) -> u64,
);

const APPLICATION_METRICS: [ApplicationMetric; 9] = [
    (
        Kind::Gauge,
        "application_vis",
        "VIs of the application.",
        |a| a.vis.into(),
    ),
    (
        Kind::Gauge,
        "application_regions",
        "Registered regions of the application.",
        |a| a.regions.into(),
    ),
    (
        Kind::Gauge,
        "application_bounce_buffer_regions",
        "Regions with a bounce buffer, since the process cannot access their memory.",
        |a| a.bounce_buffer_regions.into(),
    ),
    (
        Kind::Gauge,
        "application_registered_bytes",
        "Bytes of the registered regions, in whole pages.",
        |a| a.registered_bytes,
    ),
    (
        Kind::Gauge,
        "application_waiting_calls",
        "Calls of the application in progress.",
        |a| a.waiting.into(),
    ),
    (
        Kind::Counter,
        "application_posted_total",
        "Descriptors submitted by the application.",
        |a| a.posted,
    ),
    (
        Kind::Counter,
        "application_completed_total",
        "Descriptors completed for the application.",
        |a| a.completed,
    ),
    (
        Kind::Counter,
        "application_inline_messages_total",
        "Short messages of private memory that were passed without system calls, sent and received.",
        |a| a.inline_messages,
    ),
    (
        Kind::Counter,
        "application_refused_calls_total",
        "Calls of the application that failed because of a limit, and posts without memory in the process.",
        |a| a.refused_calls,
    ),
];

fn applications(out: &mut Exposition, snapshot: &Snapshot) {
    let none: [(&str, String); 0] = [];
    let count = ("applications", "Attached applications, once for each NIC.");
    out.family(Kind::Gauge, count, [(none, snapshot.applications.len())]);
    for (kind, name, help, of) in APPLICATION_METRICS {
        let series = snapshot.applications.iter().map(|application| {
            let labels = [
                label("pid", application.pid),
                label("nic", &application.nic),
                label("command", &application.command),
                label("uid", application.uid),
                label("user", &application.user),
            ];
            (labels, of(application))
        });
        out.family(kind, (name, help), series);
    }
    let quotas = |of: fn(&QuotaInfo) -> u64| {
        snapshot.applications.iter().flat_map(move |application| {
            application.quotas.iter().map(move |(key, quota)| {
                let labels = [
                    label("pid", application.pid),
                    label("nic", &application.nic),
                    label("quota", key),
                ];
                (labels, of(quota))
            })
        })
    };
    let limit = (
        "application_quota",
        "Limit of a quota of the application, by its key.",
    );
    out.family(Kind::Gauge, limit, quotas(|quota| quota.limit));
    let in_use = (
        "application_quota_in_use",
        "Use of a quota of the application, by its key.",
    );
    out.family(Kind::Gauge, in_use, quotas(|quota| quota.in_use));
}

fn vis(out: &mut Exposition, snapshot: &Snapshot) {
    let mut states: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for vi in &snapshot.vis {
        *states.entry((&vi.nic, &vi.state)).or_default() += 1;
    }
    let vis = states
        .into_iter()
        .map(|((nic, state), count)| ([label("nic", nic), label("state", state)], count));
    out.family(Kind::Gauge, ("vis", "VIs by NIC and state."), vis);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::ApplicationInfo;
    use crate::snapshot::sample::snapshot;

    #[test]
    fn every_series_belongs_to_its_family_and_totals_are_counters() {
        let text = text(&snapshot(1));
        let mut family = String::new();
        let mut seen = Vec::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').unwrap();
                assert!(
                    name.starts_with("viaduct_") && help.ends_with('.'),
                    "{line}"
                );
                assert!(!seen.contains(&name.to_owned()), "{name} twice");
                seen.push(name.to_owned());
                family = name.to_owned();
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let kind = if family.ends_with("_total") {
                    "counter"
                } else {
                    "gauge"
                };
                assert_eq!(rest, format!("{family} {kind}"));
                continue;
            }
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, family, "{line}");
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(seen.len() > 15, "{seen:?}");
    }

    #[test]
    fn series_have_labels_and_values() {
        let text = text(&snapshot(1));
        for line in [
            "viaduct_process_info{version=\"0.1.0\",config=\"/etc/viaduct/pmd.toml\"} 1",
            "viaduct_process_uptime_seconds 3724",
            "viaduct_process_log_lines_lost_total 6",
            "viaduct_core_turns_total{core=\"2\"} 3000000",
            "viaduct_core_sleeping{core=\"3\"} 1",
            "viaduct_nic_up{nic=\"rail0\",driver=\"af_packet\",device=\"ens1f0\",n_port_id=\"00.01.02\",host=\"192.0.2.11\"} 1",
            "viaduct_nic_up{nic=\"node\",driver=\"shm\",device=\"node\",n_port_id=\"\",host=\"::1\"} 0",
            "viaduct_nic_received_bytes_total{nic=\"rail0\"} 284000000",
            "viaduct_nic_drops_total{nic=\"rail0\",reason=\"port_drop_rx_ring_full\"} 40",
            "viaduct_nic_drops_total{nic=\"rail0\",reason=\"drop_duplicate\"} 0",
            "viaduct_nic_events_total{nic=\"rail0\",event=\"connects\"} 13",
            "viaduct_nic_level{nic=\"rail0\",of=\"regions\"} 4",
            "viaduct_applications 2",
            "viaduct_application_waiting_calls{pid=\"100\",nic=\"rail0\",command=\"EchoServer\",uid=\"1000\",user=\"alice\"} 1",
            "viaduct_application_vis{pid=\"200\",nic=\"node\",command=\"solver \\\"a\\\\b\\\"\\nx\",uid=\"1001\",user=\"bob\"} 1",
            "viaduct_application_refused_calls_total{pid=\"100\",nic=\"rail0\",command=\"EchoServer\",uid=\"1000\",user=\"alice\"} 3",
            "viaduct_application_quota{pid=\"100\",nic=\"rail0\",quota=\"max_vi\"} 4",
            "viaduct_application_quota_in_use{pid=\"100\",nic=\"rail0\",quota=\"max_vi\"} 2",
            "viaduct_vis{nic=\"rail0\",state=\"Idle\"} 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn series_are_unique() {
        let mut snapshot = snapshot(0);
        // A program on both NICs.
        let on_node = ApplicationInfo {
            nic: "node".into(),
            posted: 7,
            ..snapshot.applications[0].clone()
        };
        snapshot.applications.push(on_node);
        let text = text(&snapshot);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let mut names: Vec<_> = lines.map(|line| line.rsplit_once(' ').unwrap().0).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "{text}");
        for (nic, posted) in [("rail0", 1000), ("node", 7)] {
            let series = format!(
                "viaduct_application_posted_total{{pid=\"100\",nic=\"{nic}\",command=\"EchoServer\",uid=\"1000\",user=\"alice\"}} {posted}"
            );
            assert!(text.lines().any(|line| line == series), "{series}\n{text}");
        }
    }

    #[test]
    fn totals_of_64_bits_are_exact() {
        let mut snapshot = snapshot(0);
        snapshot.nics[0].rx_bytes = u64::MAX - 1;
        let text = text(&snapshot);
        let line = "viaduct_nic_received_bytes_total{nic=\"rail0\"} 18446744073709551614\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn empty_process_is_exposed() {
        let text = text(&Snapshot::default());
        assert!(text.contains("viaduct_applications 0\n"), "{text}");
        assert!(!text.contains("{nic="), "{text}");
    }
}
