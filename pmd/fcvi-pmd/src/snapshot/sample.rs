//! A sample snapshot, for tests.

use super::*;

/// Seconds after the first snapshot; all totals grow with them.
#[derive(Clone, Copy)]
struct Step(u64);

impl Step {
    fn total(self, start: u64, per_second: u64) -> u64 {
        start + per_second * self.0
    }
}

/// A snapshot of a process with two NICs, two applications and three VIs, `step` seconds after the first snapshot.
pub(crate) fn snapshot(step: u64) -> Snapshot {
    let step = Step(step);
    Snapshot {
        process: ProcessInfo {
            pid: 4711,
            version: "0.1.0".into(),
            uptime_s: step.total(3723, 1) as f64,
            config: "/etc/viaduct/pmd.toml".into(),
            log_lines_lost: step.total(5, 1),
        },
        cores: vec![
            CoreInfo::new(
                2,
                step.total(1_000_000, 2_000_000),
                step.total(250_000, 1_500_000),
                false,
            ),
            CoreInfo::new(3, step.total(10, 5), 0, true),
        ],
        nics: vec![
            rail(step),
            NicInfo {
                name: "node".into(),
                driver: "shm".into(),
                device: "node".into(),
                host: "::1".into(),
                ..NicInfo::default()
            },
        ],
        applications: applications(step),
        vis: vis(step),
    }
}

fn rail(step: Step) -> NicInfo {
    let counters = [
        ("drop_bad_crc", step.total(3, 2)),
        ("port_drop_rx_ring_full", step.total(0, 40)),
        ("drop_duplicate", 0),
        ("connects", step.total(12, 1)),
        ("regions", 4),
    ];
    NicInfo {
        name: "rail0".into(),
        driver: "af_packet".into(),
        device: "ens1f0".into(),
        n_port_id: Some("00.01.02".into()),
        host: "192.0.2.11".into(),
        state: NicState::Up,
        rx_frames: step.total(123_456, 10_000),
        rx_bytes: step.total(263_000_000, 21_000_000),
        tx_frames: step.total(7, 500),
        tx_bytes: step.total(1000, 64_000),
        local_messages: step.total(20, 5),
        local_bytes: step.total(81_920, 20_480),
        counters: counters
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
    }
}

fn applications(step: Step) -> Vec<ApplicationInfo> {
    vec![
        ApplicationInfo {
            pid: 100,
            command: "EchoServer".into(),
            uid: 1000,
            user: "alice".into(),
            nic: "rail0".into(),
            vis: 2,
            regions: 3,
            bounce_buffer_regions: 1,
            registered_bytes: 5 << 20,
            posted: step.total(1000, 900),
            completed: step.total(990, 900),
            inline_messages: step.total(500, 400),
            waiting: 1,
            refused_calls: step.total(2, 1),
            quotas: [(
                "max_vi".to_owned(),
                QuotaInfo {
                    limit: 4,
                    in_use: 2,
                },
            )]
            .into(),
        },
        ApplicationInfo {
            pid: 200,
            command: "solver \"a\\b\"\nx".into(),
            uid: 1001,
            user: "bob".into(),
            nic: "node".into(),
            vis: 1,
            ..ApplicationInfo::default()
        },
    ]
}

fn vis(step: Step) -> Vec<ViInfo> {
    let peer = |host: &str, id: &str| {
        Some(PeerInfo {
            host: host.into(),
            n_port_id: id.into(),
        })
    };
    vec![
        ViInfo {
            application: 100,
            nic: "rail0".into(),
            index: 0,
            state: "Connected".into(),
            reliability: "RD".into(),
            peer: peer("192.0.2.12", "00.02.01"),
            send_depth: 3,
            recv_depth: 64,
            messages_sent: step.total(500, 450),
            bytes_sent: step.total(32_000, 28_800),
            messages_received: step.total(500, 450),
            bytes_received: step.total(1 << 30, 1 << 20),
            rdma_refused: 2,
        },
        ViInfo {
            application: 100,
            nic: "rail0".into(),
            index: 1,
            state: "Idle".into(),
            reliability: "RR".into(),
            ..ViInfo::default()
        },
        ViInfo {
            application: 200,
            nic: "node".into(),
            index: 17,
            state: "Connected".into(),
            reliability: "UD".into(),
            peer: peer("2001:db8:1111:2222:3333:4444:5555:6666", "00.00.01"),
            ..ViInfo::default()
        },
    ]
}
