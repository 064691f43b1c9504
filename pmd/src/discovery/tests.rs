//! A VN_Port on an in-memory network, with a port whose send ring is small.

use std::sync::{Arc, Mutex};

use fc_port::login::{LoginConfig, PortState};
use fc_port::vn2vn::Vn2vnConfig;
use fcvi_frame::fip::{FipView, LinkServiceKind};
use pmd_port::loopback::{LoopbackConfig, LoopbackPort};
use pmd_port::{Capabilities, Mbuf, MbufBatch, Port, PortEvent, PortStats, WakeSource};
use vi_core::events::EventQueue;
use vi_core::memory::table::{RegionLimits, RegionTable};

use vi_types::HostAddress;

use super::*;

const MS: u64 = 1_000_000;
/// More than one burst.
const PEERS: usize = 40;

/// Sent frames, and those to receive; `is_stuck` makes the port accept none.
#[derive(Default)]
struct Sent {
    frames: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
    is_stuck: bool,
}

/// Port with few buffers that accepts frames only in every other call.
struct Narrow {
    inner: LoopbackPort,
    allocated: usize,
    sent: Arc<Mutex<Sent>>,
    accepts: bool,
}

const BUFFERS: usize = 8;

impl Port for Narrow {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn alloc(&mut self, dst: [u8; 6]) -> Option<Mbuf> {
        let mbuf = (self.allocated < BUFFERS).then(|| self.inner.alloc(dst))??;
        self.allocated += 1;
        Some(mbuf)
    }

    fn tx_burst(&mut self, batch: &mut MbufBatch) -> usize {
        let sent = Arc::clone(&self.sent);
        let mut sent = sent.lock().expect("no panic");
        self.accepts = !self.accepts && !sent.is_stuck;
        let mut taken = 0;
        while self.accepts
            && let Some(mbuf) = batch.pop()
        {
            sent.frames.push(mbuf.bytes().to_vec());
            self.free(mbuf);
            taken += 1;
        }
        taken
    }

    fn rx_burst(&mut self, batch: &mut MbufBatch, max: usize) -> usize {
        let sent = Arc::clone(&self.sent);
        let mut sent = sent.lock().expect("no panic");
        let mut received = 0;
        while received < max
            && let Some(bytes) = sent.answers.first()
            && let Some(dst) = bytes.first_chunk()
            && let Some(mut mbuf) = self.alloc(*dst)
        {
            mbuf.buffer_mut()[..bytes.len()].copy_from_slice(bytes);
            mbuf.set_len(bytes.len());
            assert!(batch.push(mbuf).is_ok());
            sent.answers.remove(0);
            received += 1;
        }
        received
    }

    fn free(&mut self, mbuf: Mbuf) {
        self.allocated -= 1;
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
        allocated: 0,
        sent: Arc::clone(&sent),
        accepts: false,
    };
    let limits = RegionLimits {
        regions: 1,
        bytes: 1 << 20,
        region_bytes: 1 << 20,
        lock: crate::config::NicConfig::default().lock_memory,
    };
    let regions = Box::leak(Box::new(RegionTable::new(limits)));
    let events = Box::leak(Box::new(EventQueue::new(16)));
    (Datapath::new(Box::new(port), regions, events, 1), sent)
}

fn vn_port(number: usize) -> VnPort {
    let port_name = 0x2000_0000_0000_0000 | (number as u64 + 1);
    let enode_mac = MacAddress([2, 0, 0, 0, 0, number as u8 + 1]);
    let discovery = Vn2vnConfig::new(port_name, port_name, FC_VI, enode_mac);
    let host = HostAddress::from_ipv4([10, 0, 0, number as u8 + 1]);
    let login = LoginConfig::new(port_name, port_name, FC_VI, Some(host));
    VnPort::new(discovery, login, number as u64)
}

/// Exchanges frames between ports until the first one is logged in with all others; returns the time.
fn log_in_all(ports: &mut [VnPort]) -> u64 {
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
        assert!(now_ns < 10_000 * MS, "discovery does not complete");
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

/// Returns the interfaces to which a LOGO was sent.
fn logged_out(sent: &Sent) -> Vec<MacAddress> {
    let mut interfaces: Vec<_> = sent
        .frames
        .iter()
        .filter_map(|bytes| {
            let view = FipView::parse(bytes).ok()?;
            let service = view.link_service().ok()?;
            (service.kind == LinkServiceKind::Logo).then_some(view.ethernet.dst)
        })
        .collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    interfaces
}

#[test]
fn all_logged_in_ports_are_notified_when_the_nic_is_taken_down() {
    let mut ports: Vec<_> = (0..=PEERS).map(vn_port).collect();
    let mut now_ns = log_in_all(&mut ports);
    let mut discovery = Discovery::new(ports.swap_remove(0));
    let (mut path, sent) = narrow();
    let start_ns = now_ns;
    discovery.log_out_all(&mut path, || {
        now_ns += MS / 10;
        now_ns
    });
    let sent = sent.lock().expect("no panic");
    assert_eq!(logged_out(&sent).len(), PEERS);
    // None of them answers.
    assert!(now_ns >= start_ns + LOGOUT_TIMEOUT_NS);
    assert!(now_ns < start_ns + LOGOUT_TIMEOUT_NS + MS);
    assert!(path.batch.is_empty());
}

/// Passes sent frames to the ports they are for, and receives their answers.
fn answer(now_ns: u64, ports: &mut [VnPort], sent: &Mutex<Sent>) {
    let mut sent = sent.lock().expect("no panic");
    let frames = std::mem::take(&mut sent.frames);
    for (at, port) in ports.iter_mut().enumerate() {
        // The first port is that of the NIC.
        let enode_mac = MacAddress([2, 0, 0, 0, 0, at as u8 + 2]);
        for bytes in &frames {
            let is_for = |mac: MacAddress| bytes.starts_with(&mac.0);
            let is_known = |id: NPortId| is_for(MacAddress::vn2vn(id));
            if is_for(enode_mac) || port.id().is_some_and(is_known) {
                port.handle_frame(now_ns, bytes);
            }
        }
        while port.poll_event(now_ns).is_some() {}
        while let Some(frame) = port.poll_outbound() {
            let mut bytes = vec![0; 2200];
            let length = frame.emit(&mut bytes).expect("room");
            bytes.truncate(length);
            sent.answers.push(bytes);
        }
    }
}

/// The other ports verify a logout: the NIC answers them, and is closed when all have accepted it.
#[test]
fn logouts_are_confirmed_before_the_nic_is_taken_down() {
    let mut ports: Vec<_> = (0..5).map(vn_port).collect();
    let mut now_ns = log_in_all(&mut ports);
    let mut discovery = Discovery::new(ports.remove(0));
    let (mut path, sent) = narrow();
    let start_ns = now_ns;
    discovery.log_out_all(&mut path, || {
        now_ns += MS / 10;
        answer(now_ns, &mut ports, &sent);
        now_ns
    });
    assert!(discovery.port.is_closed());
    assert!(
        now_ns < start_ns + 10 * MS,
        "{} us",
        (now_ns - start_ns) / 1000
    );
}

#[test]
fn log_out_all_times_out_if_the_port_accepts_no_frames() {
    let mut ports: Vec<_> = (0..3).map(vn_port).collect();
    let mut now_ns = log_in_all(&mut ports);
    let mut discovery = Discovery::new(ports.swap_remove(0));
    let (mut path, sent) = narrow();
    sent.lock().expect("no panic").is_stuck = true;
    let start_ns = now_ns;
    discovery.log_out_all(&mut path, || {
        now_ns += MS;
        now_ns
    });
    assert!(now_ns >= start_ns + LOGOUT_TIMEOUT_NS);
    assert!(now_ns < start_ns + LOGOUT_TIMEOUT_NS + 10 * MS);
    assert!(logged_out(&sent.lock().expect("no panic")).is_empty());
}

/// Frames that do not fit are kept, and sent in a later poll.
#[test]
fn frames_that_do_not_fit_are_sent_later() {
    let mut ports: Vec<_> = (0..=PEERS).map(vn_port).collect();
    let now_ns = log_in_all(&mut ports);
    let mut discovery = Discovery::new(ports.swap_remove(0));
    let (mut path, sent) = narrow();
    discovery.port.close(now_ns);
    for _ in 0..100 {
        discovery.send(&mut path);
    }
    assert!(!discovery.is_due(now_ns));
    assert_eq!(logged_out(&sent.lock().expect("no panic")).len(), PEERS);
}
