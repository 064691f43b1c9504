//! VN_Ports on one simulated link, with complete frames: discovery, login and host addresses.

mod forger;

use fcvi_frame::els::Adisc;
use fcvi_frame::fc::{FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::{Eof, Sof};
use fcvi_frame::fip::FipView;
use fcvi_frame::frame::{FrameHeader, seal};
use fcvi_frame::{MacAddress, profile};
use vi_types::HostAddress;

use crate::Fc4;
use crate::login::{LoginConfig, PortState};
use crate::testkit::{FC_VI, FCP_INITIATOR};
use crate::vn_port::{VnPort, VnPortEvent};
use crate::vn2vn::{Vn2vnConfig, Vn2vnState};
use protocol_testkit::rng::Rng;
use protocol_testkit::time::{MS, S};

const LATENCY_NS: u64 = 20_000;

/// A port, and the state that follows from its events.
struct Node {
    port: VnPort,
    enode_mac: MacAddress,
    id: Option<NPortId>,
    is_up: bool,
    logins: Vec<NPortId>,
    hosts: Vec<(NPortId, HostAddress)>,
    resolved: Vec<HostAddress>,
    /// Number of `NeighboursChanged` events.
    changes: usize,
}

struct Link {
    /// The protocol of ports that are started.
    fc4: Fc4,
    nodes: Vec<Option<Node>>,
    now_ns: u64,
    rng: Rng,
    /// Lost frames per million.
    loss_ppm: u32,
    /// The port of which only discovery frames arrive.
    mute: Option<usize>,
    /// Frames in flight: time of arrival, index of the destination, bytes.
    in_flight: Vec<(u64, usize, Vec<u8>)>,
}

/// Returns the host of a port: two ports of each host share an interface.
fn host_of(at: usize) -> HostAddress {
    HostAddress::from_ipv4([10, 0, 0, (at / 2) as u8 + 1])
}

impl Link {
    fn new(seed: u64) -> Self {
        Self {
            fc4: FC_VI,
            nodes: Vec::new(),
            now_ns: S,
            rng: Rng::new(seed),
            loss_ppm: 0,
            mute: None,
            in_flight: Vec::new(),
        }
    }

    /// Starts a port; `low` are the low 16 bits of its name.
    fn start(&mut self, at: usize, low: u16) {
        self.start_with(at, low, None);
    }

    /// Starts a port that tries this N_Port_ID first.
    fn start_with(&mut self, at: usize, low: u16, preferred: Option<NPortId>) {
        let port_name = 0x2000_0000_0000_0000 | (at as u64 + 1) << 16 | u64::from(low);
        let enode_mac = MacAddress([0x52, 0x54, 0, 0, 0, (at / 2) as u8 + 1]);
        let node_name = port_name | 1 << 60;
        let mut discovery = Vn2vnConfig::new(port_name, node_name, self.fc4, enode_mac);
        discovery.preferred = preferred;
        let login = LoginConfig::new(port_name, node_name, self.fc4, Some(host_of(at)));
        let mut port = VnPort::new(discovery, login, self.rng.next_u64());
        port.start(self.now_ns);
        while self.nodes.len() <= at {
            self.nodes.push(None);
        }
        self.nodes[at] = Some(Node {
            port,
            enode_mac,
            id: None,
            is_up: false,
            logins: Vec::new(),
            hosts: Vec::new(),
            resolved: Vec::new(),
            changes: 0,
        });
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("a port")
    }

    fn node_mut(&mut self, at: usize) -> &mut Node {
        self.nodes[at].as_mut().expect("a port")
    }

    fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        loop {
            self.pump();
            let timers = self.nodes.iter().flatten();
            let timers = timers.filter_map(|node| node.port.poll_timeout());
            let frames = self.in_flight.iter().map(|(at_ns, ..)| *at_ns);
            let next = timers.chain(frames).min();
            let Some(at_ns) = next.filter(|at_ns| *at_ns <= end_ns) else {
                break;
            };
            self.now_ns = at_ns.max(self.now_ns);
            self.deliver();
            let now_ns = self.now_ns;
            for node in self.nodes.iter_mut().flatten() {
                node.port.handle_timeout(now_ns);
            }
        }
        self.now_ns = end_ns;
    }

    fn pump(&mut self) {
        for from in 0..self.nodes.len() {
            let now_ns = self.now_ns;
            let Some(node) = self.nodes[from].as_mut() else {
                continue;
            };
            while let Some(event) = node.port.poll_event(now_ns) {
                node.record(event);
            }
            let mut sent = Vec::new();
            while let Some(frame) = node.port.poll_outbound() {
                let mut bytes = vec![0; 2180];
                let length = frame.emit(&mut bytes).expect("room");
                bytes.truncate(length);
                assert_eq!(bytes[..6], frame.dst().0);
                sent.push(bytes);
            }
            for bytes in sent {
                self.send(from, &bytes);
            }
        }
    }

    fn send(&mut self, from: usize, bytes: &[u8]) {
        let is_vn2vn = bytes[12..14] == [0x89, 0x14] && bytes[16..18] == [0, 5];
        if self.mute == Some(from) && !is_vn2vn {
            return;
        }
        for to in 0..self.nodes.len() {
            let lost = self.rng.below(1_000_000) < u64::from(self.loss_ppm);
            let accepts = |node: &Node| node.accepts(bytes);
            if to != from && !lost && self.nodes[to].as_ref().is_some_and(accepts) {
                let at_ns = self.now_ns + LATENCY_NS;
                self.in_flight.push((at_ns, to, bytes.to_vec()));
            }
        }
    }

    fn deliver(&mut self) {
        let now_ns = self.now_ns;
        let due = |(at_ns, ..): &(u64, usize, Vec<u8>)| *at_ns <= now_ns;
        while let Some(index) = self.in_flight.iter().position(due) {
            let (_, to, bytes) = self.in_flight.remove(index);
            if let Some(node) = self.nodes[to].as_mut() {
                assert!(node.port.handle_frame(now_ns, &bytes), "nothing else here");
            }
        }
    }

    /// Reports whether every port knows every other one and its host.
    fn is_complete(&self) -> bool {
        let present = || (0..self.nodes.len()).filter(|at| self.nodes[*at].is_some());
        present().all(|at| {
            let node = self.node(at);
            let mut hosts = node.hosts.clone();
            hosts.sort_unstable_by_key(|(id, _)| *id);
            let others = present().filter(|other| *other != at);
            let mut expected: Vec<_> = others
                .filter_map(|other| Some((self.node(other).id?, host_of(other))))
                .collect();
            expected.sort_unstable_by_key(|(id, _)| *id);
            node.is_up && hosts == expected && node.logins.len() == expected.len()
        })
    }
}

impl Node {
    fn record(&mut self, event: VnPortEvent) {
        match event {
            VnPortEvent::Claimed(id) => self.id = Some(id),
            VnPortEvent::Up(id) => {
                assert_eq!(self.id, Some(id));
                self.is_up = true;
            }
            VnPortEvent::Lost => (self.id, self.is_up) = (None, false),
            VnPortEvent::LoggedIn(login) => {
                assert!(!self.logins.contains(&login.id), "twice");
                self.logins.push(login.id);
            }
            VnPortEvent::LoggedOut(id) => {
                self.hosts.retain(|(known, _)| *known != id);
                let index = self.logins.iter().position(|known| *known == id);
                self.logins.remove(index.expect("it was logged in"));
            }
            VnPortEvent::Host { id, host } => {
                self.hosts.retain(|(known, _)| *known != id);
                self.hosts.push((id, host));
            }
            VnPortEvent::Resolved(host) => self.resolved.push(host),
            VnPortEvent::NeighboursChanged => self.changes += 1,
        }
    }

    fn accepts(&self, bytes: &[u8]) -> bool {
        let vn_port = self.id.map(MacAddress::vn2vn);
        let own = [Some(MacAddress::ALL_VN2VN), Some(self.enode_mac), vn_port];
        own.into_iter()
            .flatten()
            .any(|mac| bytes.starts_with(&mac.0))
    }
}

#[test]
fn ports_discover_each_other_and_their_hosts_within_two_seconds() {
    let mut link = Link::new(1);
    for at in 0..6 {
        link.start(at, 0x100 + at as u16);
        link.run(37 * MS);
    }
    link.run(2 * S);
    assert!(link.is_complete());
    assert!((0..6).all(|at| link.node(at).port.state() == Vn2vnState::Up));
    let port = &link.node(0).port;
    assert!(!port.is_discovering(link.now_ns));
    let mut views = port.neighbours().filter_map(|view| view.port);
    assert!(views.all(|view| view.state == PortState::LoggedIn));
    assert_eq!(port.neighbours().count(), 5);
}

#[test]
fn port_that_joins_later_is_known_when_it_is_up() {
    let mut link = Link::new(2);
    for at in 0..4 {
        link.start(at, at as u16);
    }
    link.run(60 * S);
    link.start(4, 4);
    let mut waited_ns = 0;
    while !link.is_complete() {
        link.run(10 * MS);
        waited_ns += 10 * MS;
        assert!(waited_ns < 3 * S);
    }
    println!("known to all after {} ms", waited_ns / MS);
}

#[test]
fn ports_discover_each_other_after_frame_loss() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut link = Link::new(seed);
        link.loss_ppm = 100_000;
        for at in 0..5 {
            // Three of them prefer the same N_Port_ID.
            link.start(at, if at < 3 { 7 } else { at as u16 });
        }
        link.run(40 * S);
        link.loss_ppm = 0;
        link.run(120 * S);
        assert!(link.is_complete());
    }
}

#[test]
fn port_that_disappears_expires_and_can_return() {
    let mut link = Link::new(5);
    for at in 0..4 {
        link.start(at, at as u16 + 1);
    }
    link.run(3 * S);
    link.nodes[3] = None;
    link.run(21 * S);
    assert!(link.is_complete());
    assert_eq!(link.node(0).logins.len(), 2);
    link.start(3, 4);
    link.run(3 * S);
    assert!(link.is_complete());
}

#[test]
fn closed_port_logs_out_of_all_and_stays_logged_out() {
    let mut link = Link::new(6);
    for at in 0..3 {
        link.start(at, at as u16 + 1);
    }
    link.run(3 * S);
    let now_ns = link.now_ns;
    link.node_mut(2).port.close(now_ns);
    link.run(S);
    for at in 0..2 {
        assert_eq!(link.node(at).logins.len(), 1, "node {at}");
    }
    link.run(5 * S);
    assert!(link.node(2).logins.is_empty());
}

#[test]
fn resolution_of_an_unknown_host_completes() {
    let mut link = Link::new(7);
    for at in 0..4 {
        link.start(at, at as u16 + 1);
    }
    link.run(3 * S);
    let now_ns = link.now_ns;
    let unknown = HostAddress::from_ipv4([10, 9, 9, 9]);
    let port = &mut link.node_mut(0).port;
    port.resolve(now_ns, host_of(2)).expect("room");
    port.resolve(now_ns, unknown).expect("room");
    assert!(port.is_resolving(host_of(2)) && port.is_resolving(unknown));
    link.run(10 * S);
    let node = link.node(0);
    assert!(!node.port.is_resolving(host_of(2)) && !node.port.is_resolving(unknown));
    assert_eq!(node.resolved, [host_of(2), unknown]);
}

/// Returns an ELS reply in FCoE from the second port to the first.
fn reply(link: &Link, ox_id: u16) -> Vec<u8> {
    answer(link, FcType::Els, RCtl::ElsReply, ox_id)
}

/// Returns a frame in FCoE from the second port, as the responder of an exchange, to the first.
fn answer(link: &Link, fc_type: FcType, r_ctl: RCtl, ox_id: u16) -> Vec<u8> {
    let (to, from) = (link.node(0).id.unwrap(), link.node(1).id.unwrap());
    let header = FrameHeader {
        dst: MacAddress::vn2vn(to),
        src: MacAddress::vn2vn(from),
        sof: Sof::I3,
        fc: FcHeader {
            r_ctl,
            d_id: to,
            cs_ctl: 0,
            s_id: from,
            fc_type,
            f_ctl: profile::F_CTL_FINAL_REPLY,
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id,
            rx_id: 0xFFFF,
            parameter: 0,
        },
        device: None,
    };
    let mut bytes = vec![0; 200];
    let header_bytes = header.emit(&mut bytes).unwrap();
    let mut payload = [0; Adisc::BYTES];
    Adisc::default().emit_accept(&mut payload);
    bytes[header_bytes..header_bytes + Adisc::BYTES].copy_from_slice(&payload);
    bytes.truncate(header_bytes + Adisc::BYTES + 8);
    let length = bytes.len();
    seal(&mut bytes, length, Eof::T).unwrap();
    bytes
}

#[test]
fn frames_of_the_fc4_protocol_are_not_handled() {
    let mut link = Link::new(8);
    link.start(0, 1);
    link.start(1, 2);
    link.run(3 * S);
    let protocols = reply(&link, 0x0123);
    let logins = reply(&link, 0xF801);
    let mut vi = protocols.clone();
    vi[36] = FcType::Vi.raw();
    let now_ns = link.now_ns;
    let port = &mut link.node_mut(0).port;
    assert!(!port.handle_frame(now_ns, &protocols));
    assert!(port.handle_frame(now_ns, &logins));
    assert!(!port.handle_frame(now_ns, &vi));
    assert!(!port.handle_frame(now_ns, &[]));
    assert!(!port.handle_frame(now_ns, &vi[..20]));
}

/// Answers to aborts of FC-VI are counted: it sends none.
#[test]
fn aborts_are_left_to_a_protocol_that_handles_them() {
    for (fc4, is_handled) in [(FC_VI, true), (FCP_INITIATOR, false)] {
        let mut link = Link::new(14);
        link.fc4 = fc4;
        link.start(0, 1);
        link.start(1, 2);
        link.run(3 * S);
        assert!(link.is_complete());
        let of_protocol = [RCtl::BaAcc, RCtl::BaRjt, RCtl::Abts]
            .map(|r_ctl| answer(&link, FcType::Bls, r_ctl, 0x0123));
        let of_login = answer(&link, FcType::Bls, RCtl::Abts, 0xF801);
        let now_ns = link.now_ns;
        let port = &mut link.node_mut(0).port;
        for bytes in of_protocol {
            assert_eq!(port.handle_frame(now_ns, &bytes), is_handled);
        }
        let strays = counter(port, "drop_stray_reply");
        assert_eq!(strays, if is_handled { 2 } else { 0 });
        assert!(port.handle_frame(now_ns, &of_login));
    }
}

fn counter(port: &VnPort, wanted: &str) -> u64 {
    let found = port.counters().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("no counter {wanted}")).1
}

#[test]
fn corrupted_frames_are_counted_and_have_no_effect() {
    let mut link = Link::new(9);
    link.start(0, 1);
    link.start(1, 2);
    link.run(3 * S);
    let mut bad_crc = reply(&link, 0xF801);
    bad_crc[60] ^= 1;
    let mut bad_sof = reply(&link, 0xF801);
    bad_sof[27] = 0;
    let mut rng = Rng::new(10);
    let now_ns = link.now_ns;
    let port = &mut link.node_mut(0).port;
    assert!(port.handle_frame(now_ns, &bad_crc));
    assert!(port.handle_frame(now_ns, &bad_sof));
    assert_eq!(counter(port, "drop_bad_crc"), 1);
    assert_eq!(counter(port, "drop_malformed"), 1);
    for _ in 0..20_000 {
        let mut bytes = vec![0u8; rng.below(200) as usize];
        bytes
            .iter_mut()
            .for_each(|byte| *byte = rng.next_u64() as u8);
        if bytes.len() >= 18 {
            bytes[12..14].copy_from_slice(&[0x89, 0x14]);
            bytes[14..18].copy_from_slice(&[0x10, 0, 0, rng.below(6) as u8]);
        }
        port.handle_frame(now_ns, &bytes);
    }
    assert!(counter(port, "drop_malformed_fip") > 10_000);
    link.run(10 * S);
    assert!(link.is_complete());
}

/// An FLOGI to the other port behind the same interface is not answered.
#[test]
fn login_for_another_port_of_the_interface_is_ignored() {
    let mut link = Link::new(11);
    link.start(0, 1);
    link.start(1, 2);
    link.start(2, 3);
    link.run(3 * S);
    for at in 0..2 {
        let other_fip = counter(&link.node(at).port, "drop_other_fip");
        println!("node {at}: {other_fip} logins for its sibling");
    }
    assert!(link.is_complete());
    let before = counter(&link.node(0).port, "drop_other_fip");
    let mut for_sibling = vec![0; 60];
    for_sibling[..6].copy_from_slice(&link.node(0).enode_mac.0);
    for_sibling[12..20].copy_from_slice(&[0x89, 0x14, 0x10, 0, 0, 1, 0, 1]);
    assert!(
        FipView::parse(&for_sibling).is_ok(),
        "an advertisement of a switch"
    );
    let now_ns = link.now_ns;
    let port = &mut link.node_mut(0).port;
    assert!(port.handle_frame(now_ns, &for_sibling));
    assert_eq!(counter(port, "drop_other_fip"), before + 1);
}

#[test]
fn counter_names_are_unique() {
    let mut link = Link::new(12);
    link.start(0, 1);
    let mut names: Vec<_> = link.node(0).port.counters().map(|(name, _)| name).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

/// A connect to a host with known ports must not wait for a neighbour that does not respond.
#[test]
fn unresponsive_neighbour_delays_discovery_for_a_limited_time() {
    let mut link = Link::new(13);
    for at in 0..3 {
        link.start(at, at as u16 + 1);
    }
    link.run(3 * S);
    // It is found, and its beacons arrive, but its link services are lost.
    link.start(3, 4);
    link.mute = Some(3);
    while link.node(3).port.state() != Vn2vnState::Up {
        link.run(10 * MS);
    }
    link.run(20 * MS);
    let known = |link: &Link| link.node(0).port.neighbours().count();
    assert_eq!(known(&link), 3);
    assert!(link.node(0).port.is_discovering(link.now_ns));
    link.run(2 * S);
    for _ in 0..200 {
        assert!(!link.node(0).port.is_discovering(link.now_ns));
        link.run(300 * MS);
    }
    assert_eq!(known(&link), 3);
    link.mute = None;
    link.run(20 * S);
    assert!(link.is_complete());
}

#[test]
fn neighbour_changes_and_receive_times_are_reported() {
    let mut link = Link::new(7);
    link.start(0, 1);
    link.start(2, 2);
    link.run(3 * S);
    assert!(link.is_complete());
    for at in [0, 2] {
        let node = link.node(at);
        assert_eq!(node.changes, 2, "found, then ready");
        let views: Vec<_> = node.port.neighbours().collect();
        assert_eq!(views.len(), 1);
        let login = views[0].port.expect("known to the logins");
        assert_eq!(login.state, PortState::LoggedIn);
    }

    let last_rx = |link: &Link| {
        let views = link.node(0).port.neighbours();
        views.map(|view| view.last_rx_ns).collect::<Vec<_>>()
    };
    let first = last_rx(&link)[0];
    link.run(30 * S);
    let second = last_rx(&link)[0];
    assert!(second > first && second <= link.now_ns);
    assert!(link.now_ns - second < 9 * S, "a beacon each 8 s");

    // It disappears: nothing is received from it, until it expires.
    link.nodes[2] = None;
    let lifetime_ns = 20 * S;
    link.run(second + lifetime_ns - S - link.now_ns);
    assert_eq!((last_rx(&link), link.node(0).changes), (vec![second], 2));
    link.run(2 * S);
    assert_eq!((last_rx(&link), link.node(0).changes), (vec![], 3));
}
