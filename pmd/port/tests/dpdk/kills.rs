//! Processes that are killed while they have a port: nothing of them remains, and the next one starts at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pmd_port::af_packet::{AfPacketConfig, AfPacketPort};
use pmd_port::af_xdp::{AfXdpConfig, AfXdpPort};

use super::victim_process::{Stage, VictimProcess, run_if_victim, shows_reception, try_send};
use super::*;

const KILLS: u32 = 100;

/// Returns the stage at which a process is killed: some are killed early.
fn stage(kill: u32) -> Stage {
    match kill % 10 {
        0 => Stage::Starting,
        1 | 2 => Stage::Opening,
        _ => Stage::Open,
    }
}

/// Opens an `af_packet` port on the interface that is connected to the killed processes' ports.
fn open_peer(namespace: &Namespace) -> AfPacketPort {
    let config = AfPacketConfig::new("right", RIGHT);
    namespace.run(|| AfPacketPort::open(config).unwrap_or_else(|error| panic!("{error}")))
}

/// Starts processes repeatedly, exchanges frames with them, and kills them.
struct KillTest<'a> {
    test: &'a str,
    device: &'a str,
    huge_pages: bool,
    /// The namespace of the device's interface; `None` if the device needs no interface.
    namespace: Option<&'a Namespace>,
    slowest: Duration,
}

impl KillTest<'_> {
    fn start(&self) -> VictimProcess {
        let start = || VictimProcess::start(self.test, self.device, self.huge_pages);
        match self.namespace {
            Some(namespace) => namespace.run(start),
            None => start(),
        }
    }

    /// Starts one process and kills it at a stage; `opened` is called once it has its port.
    fn kill_one(&mut self, stage: Stage, other: &mut dyn Port, opened: &dyn Fn()) {
        let start = Instant::now();
        let mut victim = self.start();
        victim.wait_for(stage);
        if stage == Stage::Open {
            opened();
            self.wait_for_frames(other);
            self.slowest = self.slowest.max(start.elapsed());
        }
        // The kill is at a random time, also in the middle of a burst.
        let killer = thread::spawn(move || drop(victim));
        let bytes = frame(LEFT, RIGHT, &[FCOE, 2], 512);
        while !killer.is_finished() {
            try_send(other, &bytes);
            receive_some(other);
        }
        killer.join().expect("killed");
        // Its last frames must not be mistaken for those of the next process.
        while !receive_some(other).is_empty() {}
    }

    /// Waits for frames in both directions.
    fn wait_for_frames(&self, other: &mut dyn Port) {
        let bytes = frame(LEFT, RIGHT, &[FCOE, 2], 512);
        let mut seen = 0;
        wait_for("frames both ways", || {
            other.upkeep();
            for _ in 0..100 {
                try_send(other, &bytes);
                let frames = receive_some(other);
                seen += frames.iter().filter(|bytes| shows_reception(bytes)).count();
            }
            (seen > 100).then_some(())
        });
    }

    fn print_result(&self) {
        eprintln!(
            "{}: {KILLS} kills, at most {:?} from a start to frames in both directions",
            self.device, self.slowest
        );
    }
}

#[test]
fn killed_process_leaves_nothing_on_af_packet() {
    run_if_victim();
    let wire = Wire::new(1500);
    let mut test = KillTest {
        test: "kills::killed_process_leaves_nothing_on_af_packet",
        device: "net_af_packet0,iface=left",
        huge_pages: false,
        namespace: Some(&wire.left),
        slowest: Duration::ZERO,
    };
    let mut other = open_peer(&wire.right);
    for kill in 0..KILLS {
        test.kill_one(stage(kill), &mut other, &|| ());
        let link = wire.left.ip("-details link show left");
        assert!(link.contains("promiscuity 0"), "kill {kill}: {link}");
    }
    test.print_result();
}

#[test]
fn killed_process_leaves_nothing_on_af_xdp() {
    run_if_victim();
    let wire = Wire::new(1500);
    let mut test = KillTest {
        test: "kills::killed_process_leaves_nothing_on_af_xdp",
        device: "net_af_xdp0,iface=left",
        huge_pages: false,
        namespace: Some(&wire.left),
        slowest: Duration::ZERO,
    };
    let mut other = open_peer(&wire.right);
    let has_program = || wire.left.ip("-details link show left").contains("xdp");
    for kill in 0..KILLS {
        let stage = stage(kill);
        test.kill_one(stage, &mut other, &|| assert!(has_program()));
        // Before the port takes the program over from the driver it has no owner; the next start takes it over.
        if stage == Stage::Open {
            wait_for("the program to be gone", || (!has_program()).then_some(()));
        }
    }
    test.print_result();
    // The interface is free for another port.
    let native = AfXdpConfig::new("left", LEFT);
    let port = wire.left.run(|| AfXdpPort::open(native));
    drop(port.unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn program_is_detached_with_the_last_port_of_its_interface() {
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
    // A child that another test starts has the descriptors, too, until it executes its program.
    wait_for("the program to be gone", || (!has_program()).then_some(()));
}

#[test]
fn killed_process_leaves_nothing_on_tap() {
    run_if_victim();
    let namespace = Namespace::new();
    namespace.ip("link add bridge type bridge forward_delay 0 mcast_snooping 0");
    namespace.ip("link add bport type veth peer name right");
    namespace.ip("link set bport master bridge");
    for interface in ["bridge", "bport", "right"] {
        namespace.ip(&format!("link set {interface} up"));
    }
    let mut test = KillTest {
        test: "kills::killed_process_leaves_nothing_on_tap",
        device: "net_tap0,iface=left",
        huge_pages: false,
        namespace: Some(&namespace),
        slowest: Duration::ZERO,
    };
    let mut other = open_peer(&namespace);
    for kill in 0..KILLS {
        test.kill_one(stage(kill), &mut other, &|| {
            namespace.ip("link set left master bridge");
        });
        wait_for("the interface to be gone", || {
            (!namespace.ip("link show").contains("left")).then_some(())
        });
    }
    test.print_result();
}

/// Huge pages that are added for a test.
struct HugePages {
    added: u64,
}

/// The number of huge pages of the system.
const NR_HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";
/// Number of huge pages for one process, of 2 MiB each.
const PAGES: u64 = 128;

impl HugePages {
    fn add() -> Self {
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

    /// Returns the number of huge pages in use.
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
        // Errors are ignored, since a panic may be in progress; the file shows what remains.
        let _ = fs::write(NR_HUGEPAGES, before.to_string());
    }
}

/// Lists all files below a directory; none if it does not exist.
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

/// Lists the files of huge pages on all mounts, and the runtime files of DPDK's processes.
fn files() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("procfs");
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mounts = fields.filter(|fields| fields.get(2) == Some(&"hugetlbfs"));
    let mounts = mounts.map(|fields| PathBuf::from(fields[1]));
    let runtime = [PathBuf::from("/var/run/dpdk")];
    let mut files: Vec<_> = mounts
        .chain(runtime)
        .flat_map(|directory| below(&directory))
        .collect();
    files.sort();
    files
}

#[test]
fn killed_process_leaves_no_huge_pages() {
    run_if_victim();
    let _pages = HugePages::add();
    let socket = format!("viaduct-huge-pages-{}", std::process::id());
    let device = |number: u32, role| format!("net_memif{number},role={role},id=0,socket={socket}");
    let mut test = KillTest {
        test: "kills::killed_process_leaves_no_huge_pages",
        device: &device(0, "client"),
        huge_pages: true,
        namespace: None,
        slowest: Duration::ZERO,
    };
    let mut other = open(config(&device(102, "server"), RIGHT));
    let (taken, before) = (HugePages::taken(), files());
    for kill in 0..KILLS {
        test.kill_one(stage(kill), &mut other, &|| {
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
    test.print_result();
}
