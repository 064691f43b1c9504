//! A VN_Port between a network in memory and a port that has little room.

use std::sync::{Arc, Mutex};

use fcvi_frame::fip::{FipView, LinkServiceKind};
use pmd_port::loopback::{LoopbackConfig, LoopbackPort};
use pmd_port::{Capabilities, Mbuf, MbufBatch, Port, PortEvent, PortStats, WakeSource};
use vi_engine::login::{LoginConfig, PortState};
use vi_engine::vn2vn::Vn2vnConfig;

use super::*;
use crate::events::EventQueue;
use crate::memory::table::{RegionLimits, RegionTable};

const MS: u64 = 1_000_000;
/// More than one burst.
const PEERS: usize = 40;

/// What was sent, and how often nothing was taken.
#[derive(Default)]
struct Sent {
    frames: Vec<Vec<u8>>,
    is_stuck: bool,
}

/// Lends few buffers, and takes frames only every other time.
struct Narrow {
    inner: LoopbackPort,
    lent: usize,
    sent: Arc<Mutex<Sent>>,
    takes: bool,
}

const BUFFERS: usize = 8;

impl Port for Narrow {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn alloc(&mut self, dst: [u8; 6]) -> Option<Mbuf> {
        let mbuf = (self.lent < BUFFERS).then(|| self.inner.alloc(dst))??;
        self.lent += 1;
        Some(mbuf)
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let sent = Arc::clone(&self.sent);
        let mut sent = sent.lock().expect("no panic");
        self.takes = !self.takes && !sent.is_stuck;
        let mut taken = 0;
        while self.takes
            && let Some(mbuf) = batch.pop()
        {
            sent.frames.push(mbuf.bytes().to_vec());
            self.free(mbuf);
            taken += 1;
        }
        taken
    }

    fn rx_burst(&mut self, _: &mut MbufBatch, _: usize) -> usize {
        0
    }

    fn free(&mut self, mbuf: Mbuf) {
        self.lent -= 1;
        self.inner.free(mbuf);
    }

    fn events(&mut self, _: &mut Vec<PortEvent>) -> bool {
        false
    }

    fn arm(&mut self) -> WakeSource {
        WakeSource::Poll
    }

    fn disarm(&mut self) {}

    fn stats(&self) -> PortStats {
        PortStats::default()
    }
}

fn narrow() -> (Datapath, Arc<Mutex<Sent>>) {
    let (inner, _) = LoopbackPort::pair(&LoopbackConfig::default()).expect("a pair");
    let sent = Arc::new(Mutex::new(Sent::default()));
    let port = Narrow {
        inner,
        lent: 0,
        sent: Arc::clone(&sent),
        takes: false,
    };
    let limits = RegionLimits {
        regions: 1,
        bytes: 1 << 20,
        region_bytes: 1 << 20,
        lock: crate::config::NicConfig::default().lock_memory,
    };
    let regions = Box::leak(Box::new(RegionTable::new(limits)));
    let events = Box::leak(Box::new(EventQueue::new()));
    (Datapath::new(Box::new(port), regions, events, 1), sent)
}

fn vn_port(number: usize) -> VnPort {
    let port_name = 0x2000_0000_0000_0000 | (number as u64 + 1);
    let enode_mac = MacAddress([2, 0, 0, 0, 0, number as u8 + 1]);
    let discovery = Vn2vnConfig::new(port_name, port_name, enode_mac);
    let host = HostAddress::from_ipv4([10, 0, 0, number as u8 + 1]);
    let login = LoginConfig::new(port_name, port_name, host);
    VnPort::new(discovery, login, number as u64)
}

/// Lets ports hear each other until the first one is logged in with all others; when that is.
fn introduce(ports: &mut [VnPort]) -> u64 {
    let mut now_ns = MS;
    for port in ports.iter_mut() {
        port.start(now_ns);
    }
    let logged_in = |port: &VnPort| {
        let views = port.neighbours().filter_map(|view| view.port);
        views
            .filter(|view| view.state == PortState::LoggedIn)
            .count()
    };
    while logged_in(&ports[0]) + 1 < ports.len() {
        now_ns += MS;
        assert!(now_ns < 10_000 * MS, "they do not find each other");
        for from in 0..ports.len() {
            ports[from].handle_timeout(now_ns);
            while ports[from].poll_event(now_ns).is_some() {}
            while let Some(frame) = ports[from].poll_outbound() {
                let mut bytes = vec![0; 2200];
                let length = frame.emit(&mut bytes).expect("room");
                for (to, port) in ports.iter_mut().enumerate() {
                    let enode_mac = MacAddress([2, 0, 0, 0, 0, to as u8 + 1]);
                    let own = [Some(MacAddress::ALL_VN2VN), Some(enode_mac)];
                    let vn_port = port.id().map(MacAddress::vn2vn);
                    if to != from
                        && (own.contains(&Some(frame.dst())) || vn_port == Some(frame.dst()))
                    {
                        port.handle_frame(now_ns, &bytes[..length]);
                    }
                }
            }
        }
    }
    now_ns
}

/// The interfaces that a LOGO went to.
fn told(sent: &Sent) -> Vec<MacAddress> {
    let mut told: Vec<_> = sent
        .frames
        .iter()
        .filter_map(|bytes| {
            let view = FipView::parse(bytes).ok()?;
            let service = view.link_service().ok()?;
            (service.kind == LinkServiceKind::Logo).then_some(view.ethernet.dst)
        })
        .collect();
    told.sort_unstable();
    told.dedup();
    told
}

#[test]
fn whoever_is_logged_in_is_told_when_the_nic_goes_down() {
    let mut ports: Vec<_> = (0..=PEERS).map(vn_port).collect();
    let mut now_ns = introduce(&mut ports);
    let mut discovery = Discovery::new(ports.swap_remove(0));
    let (mut path, sent) = narrow();
    let begun_ns = now_ns;
    discovery.leave(&mut path, || {
        now_ns += MS / 10;
        now_ns
    });
    let sent = sent.lock().expect("no panic");
    assert_eq!(told(&sent).len(), PEERS);
    assert!(now_ns < begun_ns + FAREWELL_NS);
    assert!(path.batch.is_empty());
}

#[test]
fn a_port_that_takes_nothing_keeps_no_nic_up() {
    let mut ports: Vec<_> = (0..3).map(vn_port).collect();
    let mut now_ns = introduce(&mut ports);
    let mut discovery = Discovery::new(ports.swap_remove(0));
    let (mut path, sent) = narrow();
    sent.lock().expect("no panic").is_stuck = true;
    let begun_ns = now_ns;
    discovery.leave(&mut path, || {
        now_ns += MS;
        now_ns
    });
    assert!(now_ns >= begun_ns + FAREWELL_NS);
    assert!(now_ns < begun_ns + FAREWELL_NS + 10 * MS);
    assert!(told(&sent.lock().expect("no panic")).is_empty());
}

/// What the port has no room for is kept, and sent in a later turn.
#[test]
fn nothing_is_lost_for_want_of_room() {
    let mut ports: Vec<_> = (0..=PEERS).map(vn_port).collect();
    let now_ns = introduce(&mut ports);
    let mut discovery = Discovery::new(ports.swap_remove(0));
    let (mut path, sent) = narrow();
    discovery.port.close(now_ns);
    for _ in 0..100 {
        discovery.send(&mut path);
    }
    assert!(!discovery.is_due(now_ns));
    assert_eq!(told(&sent.lock().expect("no panic")).len(), PEERS);
}
