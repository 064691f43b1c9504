use super::*;
use crate::loopback::{LoopbackConfig, LoopbackPort};
use crate::mbuf::BURST;
use crate::rng::MILLION_PPM;

type Faulty = FaultInjector<LoopbackPort>;

const FRAMES: u32 = 20_000;

fn pair(config: FaultConfig) -> (Faulty, LoopbackPort) {
    let (a, b) = LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair");
    let a = FaultInjector::new(a, config).expect("a good configuration");
    eprintln!("{a:?}");
    (a, b)
}

fn counter(port: &dyn Port, name: &str) -> u64 {
    let counters = port.stats().counters;
    let found = counters.iter().find(|counter| counter.name == name);
    found.expect("a counter of this name").value
}

fn send(port: &mut dyn Port, dst: MacBytes, serial: u32) -> bool {
    let Some(mut mbuf) = port.alloc(dst) else {
        return false;
    };
    mbuf.buffer_mut()[..60].fill(0);
    mbuf.buffer_mut()[56..60].copy_from_slice(&serial.to_be_bytes());
    mbuf.set_len(60);
    let mut batch = MbufBatch::new();
    batch.push(mbuf).expect("an empty batch");
    assert_eq!(port.tx_burst(&mut batch), 1);
    true
}

fn receive(port: &mut dyn Port, frames: &mut Vec<Vec<u8>>) {
    let mut batch = MbufBatch::new();
    while port.rx_burst(&mut batch, BURST) > 0 {
        while let Some(mbuf) = batch.pop() {
            frames.push(mbuf.bytes().to_vec());
            port.free(mbuf);
        }
    }
}

fn serials(frames: &[Vec<u8>]) -> Vec<u32> {
    let last = |frame: &Vec<u8>| u32::from_be_bytes(frame[56..60].try_into().expect("4 bytes"));
    frames.iter().map(last).collect()
}

/// Sends numbered frames from one port to the other, then runs idle calls until no frame is held.
fn run(from: &mut dyn Port, to: &mut dyn Port, idle_calls: u32) -> Vec<Vec<u8>> {
    let dst = to.capabilities().mac;
    let mut frames = Vec::new();
    for serial in 0..FRAMES {
        assert!(send(from, dst, serial), "room for frame {serial}");
        receive(to, &mut frames);
    }
    let mut batch = MbufBatch::new();
    for _ in 0..idle_calls {
        assert_eq!(from.rx_burst(&mut batch, BURST), 0);
        receive(to, &mut frames);
    }
    frames
}

fn rates(change: impl Fn(&mut FaultRates)) -> FaultRates {
    let mut rates = FaultRates::default();
    change(&mut rates);
    rates
}

/// Injects one fault in each direction; returns the received frames and the fault's counter.
fn both_directions(
    change: fn(&mut FaultRates),
    tx_name: &str,
    rx_name: &str,
) -> [(Vec<Vec<u8>>, u64); 2] {
    let tx = FaultConfig {
        tx: rates(change),
        ..FaultConfig::default()
    };
    let (mut a, mut b) = pair(tx);
    let sent = run(&mut a, &mut b, 64);
    let sent_count = counter(&a, tx_name);
    let rx = FaultConfig {
        rx: rates(change),
        ..FaultConfig::default()
    };
    let (mut a, mut b) = pair(rx);
    let received = run(&mut b, &mut a, 64);
    assert!(!a.capabilities().lossless);
    [(sent, sent_count), (received, counter(&a, rx_name))]
}

#[test]
fn lost_frames_are_counted_and_others_arrive_in_order() {
    let runs = both_directions(
        |rates| rates.loss_ppm = 100_000,
        "drop_fault_tx_loss",
        "drop_fault_rx_loss",
    );
    for (frames, lost) in runs {
        assert!((1_700..2_300).contains(&lost), "{lost} of 2000");
        assert_eq!(frames.len() as u64 + lost, u64::from(FRAMES));
        assert!(serials(&frames).is_sorted());
    }
}

#[test]
fn duplicated_frames_arrive_twice() {
    let runs = both_directions(
        |rates| rates.duplicate_ppm = 100_000,
        "fault_tx_duplicated",
        "fault_rx_duplicated",
    );
    for (frames, doubled) in runs {
        assert!((1_700..2_300).contains(&doubled), "{doubled} of 2000");
        assert_eq!(frames.len() as u64, u64::from(FRAMES) + doubled);
        let mut serials = serials(&frames);
        serials.dedup();
        assert_eq!(serials, (0..FRAMES).collect::<Vec<_>>());
    }
}

#[test]
fn corrupted_frames_differ_by_one_bit() {
    let runs = both_directions(
        |rates| rates.corrupt_ppm = MILLION_PPM,
        "fault_tx_corrupted",
        "fault_rx_corrupted",
    );
    for (frames, corrupted) in runs {
        assert_eq!(corrupted, u64::from(FRAMES));
        let mut bits_seen = [0u32; 60];
        for (serial, frame) in (0..FRAMES).zip(&frames) {
            let mut clean = [0u8; 60];
            clean[56..].copy_from_slice(&serial.to_be_bytes());
            let differences = clean.iter().zip(frame).map(|(a, b)| (a ^ b).count_ones());
            assert_eq!(differences.clone().sum::<u32>(), 1);
            for (seen, bits) in bits_seen.iter_mut().zip(differences) {
                *seen += bits;
            }
        }
        assert!(bits_seen.iter().all(|&seen| seen > 200), "{bits_seen:?}");
    }
}

#[test]
fn delayed_and_reordered_frames_all_arrive_late() {
    let delayed = both_directions(
        |rates| rates.delay_ppm = 100_000,
        "fault_tx_delayed",
        "fault_rx_delayed",
    );
    let reordered = both_directions(
        |rates| rates.reorder_ppm = 100_000,
        "fault_tx_reordered",
        "fault_rx_reordered",
    );
    for (frames, late) in delayed.into_iter().chain(reordered) {
        assert!((1_700..2_300).contains(&late), "{late} of 2000");
        let mut serials = serials(&frames);
        assert!(!serials.is_sorted());
        // No frame is displaced by more than its hold time in calls or frames.
        for (at, &serial) in (0..).zip(&serials) {
            assert!(u32::abs_diff(serial, at) <= 40, "{serial} at {at}");
        }
        serials.sort_unstable();
        assert_eq!(serials, (0..FRAMES).collect::<Vec<_>>());
    }
}

#[test]
fn same_seed_makes_the_same_faults() {
    let all = rates(|rates| {
        *rates = FaultRates {
            loss_ppm: 50_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 50_000,
            corrupt_ppm: 50_000,
            delay_ppm: 50_000,
        }
    });
    let frames_of = |seed| {
        let (mut a, mut b) = pair(FaultConfig {
            seed,
            tx: all,
            rx: all,
            ..FaultConfig::default()
        });
        run(&mut a, &mut b, 64)
    };
    let first = frames_of(7);
    assert_eq!(first, frames_of(7));
    assert_ne!(first, frames_of(8));
}

#[test]
fn empty_pool_drops_and_counts() {
    let slow = rates(|rates| rates.delay_ppm = MILLION_PPM);
    let (mut a, mut b) = pair(FaultConfig {
        rx: slow,
        delay_calls_max: 100_000,
        pool_frames: 8,
        ..FaultConfig::default()
    });
    let mut frames = Vec::new();
    for serial in 0..100 {
        assert!(send(&mut b, a.capabilities().mac, serial));
    }
    receive(&mut a, &mut frames);
    let mut batch = MbufBatch::new();
    for _ in 0..10 {
        a.rx_burst(&mut batch, BURST);
    }
    let dropped = counter(&a, "drop_fault_rx_pool_dry");
    assert!(
        (92 - frames.len() as u64..=92).contains(&dropped),
        "{dropped}"
    );
    assert!(matches!(a.arm(), WakeSource::Poll));
}

#[test]
fn partition_drops_all_frames_until_cleared() {
    let (mut a, mut b) = pair(FaultConfig::default());
    let (a_mac, b_mac) = (a.capabilities().mac, b.capabilities().mac);
    assert!(a.capabilities().lossless);
    let mut frames = Vec::new();
    a.set_partitioned(true);
    for serial in 0..1_000 {
        assert!(send(&mut a, b_mac, serial));
        assert!(send(&mut b, a_mac, serial));
        receive(&mut a, &mut frames);
        receive(&mut b, &mut frames);
    }
    assert!(a.is_partitioned() && frames.is_empty());
    assert_eq!(counter(&a, "drop_fault_tx_partition"), 1_000);
    assert_eq!(counter(&a, "drop_fault_rx_partition"), 1_000);
    a.set_partitioned(false);
    assert!(send(&mut a, b_mac, 5));
    assert!(send(&mut b, a_mac, 6));
    receive(&mut b, &mut frames);
    receive(&mut a, &mut frames);
    assert_eq!(serials(&frames), [5, 6]);
}

#[test]
fn invalid_configurations_are_rejected() {
    let good = FaultConfig::default();
    let bad = [
        FaultConfig {
            tx: rates(|rates| rates.loss_ppm = MILLION_PPM + 1),
            ..good
        },
        FaultConfig {
            pool_frames: 0,
            ..good
        },
        FaultConfig {
            delay_calls_max: 0,
            ..good
        },
    ];
    for config in bad {
        let (a, _b) = LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair");
        let error = FaultInjector::new(a, config).expect_err("a bad configuration");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
