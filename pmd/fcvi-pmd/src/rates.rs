//! Rates between two snapshots, per second.

use crate::snapshot::{ApplicationInfo, CoreInfo, NicInfo, Snapshot, ViInfo, ratio};

/// Two snapshots of one process, the older one first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval<'a> {
    before: &'a Snapshot,
    now: &'a Snapshot,
}

/// Rates of a NIC, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NicRates {
    pub(crate) rx_frames: f64,
    pub(crate) rx_bytes: f64,
    pub(crate) tx_frames: f64,
    pub(crate) tx_bytes: f64,
    pub(crate) local_messages: f64,
    pub(crate) local_bytes: f64,
    pub(crate) drops: f64,
}

/// Rates of a VI, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ViRates {
    pub(crate) messages_sent: f64,
    pub(crate) bytes_sent: f64,
    pub(crate) messages_received: f64,
    pub(crate) bytes_received: f64,
}

/// Poll iterations of a poller per second, and the fraction of them that found work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CoreRates {
    pub(crate) polls: f64,
    pub(crate) busy_ratio: f64,
}

/// Descriptors of an application, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ApplicationRates {
    pub(crate) posted: f64,
    pub(crate) completed: f64,
}

/// The drops of a NIC for one reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DropRate {
    pub(crate) nic: String,
    pub(crate) reason: String,
    pub(crate) total: u64,
    pub(crate) per_second: f64,
}

impl<'a> Interval<'a> {
    /// The interval from `before` to `now`; an empty one if the process was restarted between them.
    pub(crate) fn new(before: &'a Snapshot, now: &'a Snapshot) -> Self {
        let is_same = before.process.pid == now.process.pid
            && before.process.uptime_s <= now.process.uptime_s;
        let before = if is_same { before } else { now };
        Self { before, now }
    }

    fn seconds(&self) -> f64 {
        self.now.process.uptime_s - self.before.process.uptime_s
    }

    /// The rate of a total; 0 if it decreased, since it then belongs to a new object with an old name.
    fn per_second(&self, before: Option<u64>, now: u64) -> f64 {
        let seconds = self.seconds();
        let Some(count) = before.and_then(|before| now.checked_sub(before)) else {
            return 0.0;
        };
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    }

    pub(crate) fn core(&self, now: &CoreInfo) -> CoreRates {
        let before = self.before.cores.iter().find(|core| core.core == now.core);
        let polls = before.map_or(0, |before| now.turns.saturating_sub(before.turns));
        let busy = before.map_or(0, |before| now.busy_turns.saturating_sub(before.busy_turns));
        CoreRates {
            polls: self.per_second(before.map(|before| before.turns), now.turns),
            busy_ratio: ratio(busy, polls),
        }
    }

    pub(crate) fn nic(&self, now: &NicInfo) -> NicRates {
        let before = self.before.nics.iter().find(|nic| nic.name == now.name);
        let rate = |of: fn(&NicInfo) -> u64| self.per_second(before.map(of), of(now));
        NicRates {
            rx_frames: rate(|nic| nic.rx_frames),
            rx_bytes: rate(|nic| nic.rx_bytes),
            tx_frames: rate(|nic| nic.tx_frames),
            tx_bytes: rate(|nic| nic.tx_bytes),
            local_messages: rate(|nic| nic.local_messages),
            local_bytes: rate(|nic| nic.local_bytes),
            drops: rate(|nic| nic.drops().map(|(_, count)| count).sum()),
        }
    }

    pub(crate) fn application(&self, now: &ApplicationInfo) -> ApplicationRates {
        let mut all = self.before.applications.iter();
        let before = all.find(|other| other.pid == now.pid && other.nic == now.nic);
        let rate = |of: fn(&ApplicationInfo) -> u64| self.per_second(before.map(of), of(now));
        ApplicationRates {
            posted: rate(|application| application.posted),
            completed: rate(|application| application.completed),
        }
    }

    pub(crate) fn vi(&self, now: &ViInfo) -> ViRates {
        let key = |vi: &ViInfo| (vi.application, vi.index);
        let mut all = self.before.vis.iter();
        let before = all.find(|other| key(other) == key(now) && other.nic == now.nic);
        let rate = |of: fn(&ViInfo) -> u64| self.per_second(before.map(of), of(now));
        ViRates {
            messages_sent: rate(|vi| vi.messages_sent),
            bytes_sent: rate(|vi| vi.bytes_sent),
            messages_received: rate(|vi| vi.messages_received),
            bytes_received: rate(|vi| vi.bytes_received),
        }
    }

    /// Returns the drops for every reason that ever occurred.
    pub(crate) fn drops(&self) -> Vec<DropRate> {
        let nics = self.now.nics.iter();
        nics.flat_map(|nic| {
            let before = self.before.nics.iter().find(|other| other.name == nic.name);
            nic.drops().map(move |(reason, total)| {
                // A counter that was not listed was 0.
                let before = before.map(|nic| nic.counters.get(reason).copied().unwrap_or(0));
                DropRate {
                    nic: nic.name.clone(),
                    reason: reason.to_owned(),
                    total,
                    per_second: self.per_second(before, total),
                }
            })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample::snapshot;

    #[test]
    fn rates_are_differences_per_second() {
        let (before, now) = (snapshot(0), snapshot(2));
        let interval = Interval::new(&before, &now);
        let nic = interval.nic(&now.nics[0]);
        let expected = NicRates {
            rx_frames: 10_000.0,
            rx_bytes: 21_000_000.0,
            tx_frames: 500.0,
            tx_bytes: 64_000.0,
            local_messages: 5.0,
            local_bytes: 20_480.0,
            drops: 42.0,
        };
        assert_eq!(nic, expected);
        assert_eq!(interval.vi(&now.vis[0]).messages_sent, 450.0);
        assert_eq!(interval.vi(&now.vis[0]).bytes_received, 1_048_576.0);
        assert_eq!(interval.application(&now.applications[0]).posted, 900.0);
        let core = interval.core(&now.cores[0]);
        assert_eq!(
            core,
            CoreRates {
                polls: 2_000_000.0,
                busy_ratio: 0.75
            }
        );
        let drops = interval.drops();
        let of = |reason: &str| drops.iter().find(|drop| drop.reason == reason).unwrap();
        assert_eq!(of("drop_bad_crc").per_second, 2.0);
        assert_eq!(of("port_drop_rx_ring_full").per_second, 40.0);
        assert_eq!(drops.len(), 2);
    }

    #[test]
    fn program_on_two_nics_has_a_rate_for_each() {
        let [before, now] = [(0, 5000), (1, 5700)].map(|(step, posted)| {
            let mut snapshot = snapshot(step);
            let on_node = ApplicationInfo {
                nic: "node".into(),
                posted,
                ..snapshot.applications[0].clone()
            };
            snapshot.applications.push(on_node);
            snapshot
        });
        let interval = Interval::new(&before, &now);
        let rates = [0, 2].map(|at| interval.application(&now.applications[at]).posted);
        assert_eq!(rates, [900.0, 700.0]);
    }

    #[test]
    fn new_or_restarted_objects_have_no_rate() {
        let mut before = snapshot(1);
        let now = snapshot(2);
        before.applications[0].posted = u64::MAX;
        before.vis.clear();
        before.cores.clear();
        let interval = Interval::new(&before, &now);
        assert_eq!(interval.application(&now.applications[0]).posted, 0.0);
        assert_eq!(interval.vi(&now.vis[0]), ViRates::default());
        assert_eq!(interval.core(&now.cores[0]), CoreRates::default());
        // The same snapshot twice, and a restarted process.
        let same = Interval::new(&now, &now);
        assert_eq!(same.nic(&now.nics[0]), NicRates::default());
        let younger = snapshot(1);
        let restarted = Interval::new(&now, &younger);
        assert_eq!(restarted.nic(&younger.nics[0]), NicRates::default());
    }
}
