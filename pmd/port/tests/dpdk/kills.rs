//! Processes that are killed while they have a port: nothing of them stays, and the next one starts at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::af_xdp::{AfXdpConfig, AfXdpPort};

use super::victim::{Stage, Victim, is_of_hearing, live_if_told, try_send};
use super::*;

const KILLS: u32 = 100;

/// How far a process comes before it is killed: some are killed early.
fn stage(kill: u32) -> Stage {
    match kill % 10 {
        0 => Stage::Starting,
        1 | 2 => Stage::Opening,
        _ => Stage::Open,
    }
}

/// A port of the kernel's at the other end of what the killed ones open.
fn other_end(namespace: &Namespace) -> AfPacketPort {
    let config = AfPacketConfig::new("right", RIGHT);
    namespace.run(|| AfPacketPort::open(config).unwrap_or_else(|error| panic!("{error}")))
}

/// Starts a process again and again, with frames both ways, and kills it.
struct Killing<'a> {
    test: &'a str,
    device: &'a str,
    huge_pages: bool,
    /// Where the device's interface is; without one the device wants none.
    namespace: Option<&'a Namespace>,
    slowest: Duration,
}

impl Killing<'_> {
    fn start(&self) -> Victim {
        let start = || Victim::start(self.test, self.device, self.huge_pages);
        match self.namespace {
            Some(namespace) => namespace.run(start),
            None => start(),
        }
    }

    /// One of them from its start to its end; `opened` is called once it has its port.
    fn kill_one(&mut self, stage: Stage, other: &mut dyn Port, opened: &dyn Fn()) {
        let start = Instant::now();
        let mut victim = self.start();
        victim.wait_for(stage);
        if stage == Stage::Open {
            opened();
            self.wait_for_frames(other);
            self.slowest = self.slowest.max(start.elapsed());
        }
        // The end comes in the middle of a burst as often as anywhere else.
        let killer = std::thread::spawn(move || drop(victim));
        let bytes = frame(LEFT, RIGHT, &[FCOE, 2], 512);
        while !killer.is_finished() {
            try_send(other, &bytes);
            receive_some(other);
        }
        killer.join().expect("killed");
        // What it sent last is not taken for the next one's.
        while !receive_some(other).is_empty() {}
    }

    /// Both ways, since a process that was started.
    fn wait_for_frames(&self, other: &mut dyn Port) {
        let bytes = frame(LEFT, RIGHT, &[FCOE, 2], 512);
        let mut seen = 0;
        wait_for("frames both ways", || {
            other.upkeep();
            for _ in 0..100 {
                try_send(other, &bytes);
                let frames = receive_some(other);
                seen += frames.iter().filter(|bytes| is_of_hearing(bytes)).count();
            }
            (seen > 100).then_some(())
        });
    }

    fn tell(&self) {
        eprintln!(
            "{}: {KILLS} kills, at most {:?} from a start to frames both ways",
            self.device, self.slowest
        );
    }
}

#[test]
fn nothing_stays_of_a_process_on_af_packet() {
    live_if_told();
    let wire = Wire::new(1500);
    let mut killing = Killing {
        test: "kills::nothing_stays_of_a_process_on_af_packet",
        device: "net_af_packet0,iface=left",
        huge_pages: false,
        namespace: Some(&wire.left),
        slowest: Duration::ZERO,
    };
    let mut other = other_end(&wire.right);
    for kill in 0..KILLS {
        killing.kill_one(stage(kill), &mut other, &|| ());
        let link = wire.left.ip("-details link show left");
        assert!(link.contains("promiscuity 0"), "kill {kill}: {link}");
    }
    killing.tell();
}

#[test]
fn nothing_stays_of_a_process_on_af_xdp() {
    live_if_told();
    let wire = Wire::new(1500);
    let mut killing = Killing {
        test: "kills::nothing_stays_of_a_process_on_af_xdp",
        device: "net_af_xdp0,iface=left",
        huge_pages: false,
        namespace: Some(&wire.left),
        slowest: Duration::ZERO,
    };
    let mut other = other_end(&wire.right);
    let has_program = || wire.left.ip("-details link show left").contains("xdp");
    for kill in 0..KILLS {
        let stage = stage(kill);
        killing.kill_one(stage, &mut other, &|| assert!(has_program()));
        // Between the driver and us the program is nobody's; the next start takes it over.
        if stage == Stage::Open {
            wait_for("the program to be gone", || (!has_program()).then_some(()));
        }
    }
    killing.tell();
    // The interface is anybody's.
    let native = AfXdpConfig::new("left", LEFT);
    let port = wire.left.run(|| AfXdpPort::open(native));
    drop(port.unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn the_program_ends_with_the_last_port_of_its_interface() {
    let wire = Wire::with_queues(1500, 2);
    let has_program = || wire.left.ip("-details link show left").contains("xdp");
    let open_at = |queue: u32, mac| {
        let number = 60 + queue;
        let device = format!("net_af_xdp{number},iface=left,start_queue={queue},queue_count=1");
        wire.left.run(|| open(config(&device, mac)))
    };
    let first = open_at(0, LEFT);
    let second = open_at(1, THIRD);
    assert!(has_program());
    drop(first);
    assert!(has_program(), "the second one needs it");
    drop(second);
    // A child that another test starts has its descriptors, too, until it executes its program.
    wait_for("the program to be gone", || (!has_program()).then_some(()));
}

#[test]
fn nothing_stays_of_a_process_on_tap() {
    live_if_told();
    let namespace = Namespace::new();
    namespace.ip("link add bridge type bridge forward_delay 0 mcast_snooping 0");
    namespace.ip("link add near type veth peer name right");
    namespace.ip("link set near master bridge");
    for interface in ["bridge", "near", "right"] {
        namespace.ip(&format!("link set {interface} up"));
    }
    let mut killing = Killing {
        test: "kills::nothing_stays_of_a_process_on_tap",
        device: "net_tap0,iface=left",
        huge_pages: false,
        namespace: Some(&namespace),
        slowest: Duration::ZERO,
    };
    let mut other = other_end(&namespace);
    for kill in 0..KILLS {
        killing.kill_one(stage(kill), &mut other, &|| {
            namespace.ip("link set left master bridge");
        });
        wait_for("the interface to be gone", || {
            (!namespace.ip("link show").contains("left")).then_some(())
        });
    }
    killing.tell();
}

/// Huge pages that are there for a test, beside those that were there before.
struct HugePages {
    added: u64,
}

/// How many there are.
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
/// Enough for one process, of 2 MiB each.
const PAGES: u64 = 128;

impl HugePages {
    fn more() -> Self {
        let before = Self::count();
        fs::write(NR_HUGEPAGES, (before + PAGES).to_string()).expect("root may do that");
        let added = Self::count().saturating_sub(before);
        let pages = Self { added };
        assert_eq!(added, PAGES, "no memory in one piece for more huge pages");
        pages
    }

    fn count() -> u64 {
        let text = fs::read_to_string(NR_HUGEPAGES).expect("procfs");
        text.trim().parse().expect("a number")
    }

    /// How many somebody has.
    fn taken() -> u64 {
        let text = fs::read_to_string("/proc/meminfo").expect("procfs");
        let number = |name: &str| -> u64 {
            let words = text.lines().find_map(|line| line.strip_prefix(name));
            let words = words.expect("a kernel with huge pages");
            words.trim().parse().expect("a number")
        };
        number("HugePages_Total:") - number("HugePages_Free:")
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let before = Self::count().saturating_sub(self.added);
        // A panic may be under way: what is left then is seen in the file.
        let _ = fs::write(NR_HUGEPAGES, before.to_string());
    }
}

/// Everything below a directory; nothing if there is none.
fn below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => below(&path),
            false => vec![path],
        })
        .collect()
}

/// The files of huge pages, wherever they are mounted, and those by which DPDK's processes know each other.
fn files() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let places = fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs"));
    let places = places.map(|fields| PathBuf::from(fields[1]));
    let runtime = [PathBuf::from("/var/run/dpdk")];
    let mut files: Vec<_> = places
        .chain(runtime)
        .flat_map(|place| below(&place))
        .collect();
    files.sort();
    files
}

#[test]
fn nothing_stays_of_a_process_with_huge_pages() {
    live_if_told();
    let _pages = HugePages::more();
    let socket = format!("viaduct-huge-pages-{}", std::process::id());
    let device = |number: u32, role| format!("net_memif{number},role={role},id=0,socket={socket}");
    let mut killing = Killing {
        test: "kills::nothing_stays_of_a_process_with_huge_pages",
        device: &device(0, "client"),
        huge_pages: true,
        namespace: None,
        slowest: Duration::ZERO,
    };
    let mut other = open(config(&device(102, "server"), RIGHT));
    let (taken, before) = (HugePages::taken(), files());
    for kill in 0..KILLS {
        killing.kill_one(stage(kill), &mut other, &|| {
            assert!(HugePages::taken() > taken, "it has huge pages");
        });
        assert_eq!(HugePages::taken(), taken, "kill {kill}");
        assert_eq!(files(), before, "kill {kill}");
        wait_for("the link to go down", || {
            other.upkeep();
            receive_some(&mut other);
            (!other.link_up()).then_some(())
        });
    }
    killing.tell();
}
