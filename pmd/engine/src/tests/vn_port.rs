//! Discovery and login of two VN_Ports as one: what their owners are told, and can ask.

use fcvi_frame::connect::HostAddress;
use fcvi_frame::ethernet::MacAddress;

use crate::login::{LoginConfig, PortState};
use crate::vn_port::{VnPort, VnPortEvent};
use crate::vn2vn::{Vn2vnConfig, Vn2vnState};

const NODE: u64 = 0x1000_0000_0000_0000;
const SECOND_NS: u64 = 1_000_000_000;

/// A port, how it is known, and what its owner was told.
struct Station {
    port: VnPort,
    name: u64,
    events: Vec<VnPortEvent>,
}

/// Two ports on a link on which a frame takes no time.
struct Link {
    now_ns: u64,
    stations: [Station; 2],
}

impl Link {
    fn new() -> Self {
        let station = |number: u8| {
            let name = 0x2000_0000_0000_0000 | u64::from(number);
            let mac = MacAddress([2, 0, 0, 0, 0, number]);
            let host = HostAddress::from_ipv4([192, 0, 2, number]);
            let discovery = Vn2vnConfig::new(name, NODE | u64::from(number), mac);
            let login = LoginConfig::new(name, NODE | u64::from(number), host);
            Station {
                port: VnPort::new(discovery, login, u64::from(number)),
                name,
                events: Vec::new(),
            }
        };
        Self {
            now_ns: 0,
            stations: [station(1), station(2)],
        }
    }

    /// Has everybody say what there is to say, until nobody has anything.
    fn settle(&mut self) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for at in [0, 1] {
                let [first, second] = &mut self.stations;
                let (one, other) = if at == 0 {
                    (first, second)
                } else {
                    (second, first)
                };
                while let Some(event) = one.port.poll_event(self.now_ns) {
                    one.events.push(event);
                    is_quiet = false;
                }
                while let Some(frame) = one.port.poll_outbound() {
                    let mut room = [0; 2300];
                    let length = frame.emit(&mut room).unwrap();
                    other.port.handle_frame(self.now_ns, &room[..length]);
                    is_quiet = false;
                }
            }
        }
    }

    /// Has time pass, and those who are named live through it.
    fn run(&mut self, until_ns: u64, alive: &[usize]) {
        self.settle();
        loop {
            let times = alive
                .iter()
                .map(|at| self.stations[*at].port.poll_timeout());
            let Some(next_ns) = times.flatten().min().filter(|at| *at <= until_ns) else {
                break;
            };
            self.now_ns = self.now_ns.max(next_ns);
            for at in alive {
                self.stations[*at].port.handle_timeout(self.now_ns);
            }
            self.settle();
        }
        self.now_ns = until_ns;
    }

    fn up(&mut self) {
        for station in &mut self.stations {
            station.port.start(0);
        }
        self.run(3 * SECOND_NS, &[0, 1]);
    }
}

#[test]
fn two_ports_see_each_other_logged_in() {
    let mut link = Link::new();
    link.up();
    let names = link.stations.each_ref().map(|station| station.name);
    for (station, other) in link.stations.iter().zip([names[1], names[0]]) {
        assert_eq!(station.port.state(), Vn2vnState::Up);
        let views: Vec<_> = station.port.neighbours().collect();
        assert_eq!(views.len(), 1);
        assert_eq!(views[0].neighbour.port_name, other);
        let login = views[0].port.unwrap();
        assert_eq!(login.state, PortState::LoggedIn);
        assert!(login.host.is_some());
        let changes = station.events.iter();
        let changes = changes.filter(|event| **event == VnPortEvent::NeighboursChanged);
        assert_eq!(
            changes.count(),
            2,
            "found, then heard: {:?}",
            station.events
        );
    }
}

#[test]
fn a_neighbour_ages_from_what_was_heard_last_until_it_is_gone() {
    let mut link = Link::new();
    link.up();
    let heard = |link: &Link| {
        let views = link.stations[0].port.neighbours();
        views.map(|view| view.heard_ns).collect::<Vec<_>>()
    };
    let first = heard(&link);
    link.run(30 * SECOND_NS, &[0, 1]);
    let second = heard(&link);
    assert!(second[0] > first[0] && second[0] <= 30 * SECOND_NS);
    assert!(second[0] > 21 * SECOND_NS, "a beacon each 8 s: {second:?}");

    // The other one falls silent; nothing of it is heard any more.
    link.stations[0].events.clear();
    link.run(second[0] + 19 * SECOND_NS, &[0]);
    assert_eq!(heard(&link), second);
    assert!(
        !link.stations[0]
            .events
            .contains(&VnPortEvent::NeighboursChanged)
    );
    link.run(second[0] + 21 * SECOND_NS, &[0]);
    assert!(heard(&link).is_empty());
    let told = &link.stations[0].events;
    assert!(told.contains(&VnPortEvent::NeighboursChanged), "{told:?}");
}
