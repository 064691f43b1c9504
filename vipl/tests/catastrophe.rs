//! The port itself fails (VIPL 6.3.1, 7.5): every opening is told, everything ends in order, and the NIC can be opened again.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use common::raw::{Pages, attributes};
use common::{End, PATIENCE, WAIT, connect};
use pmd::config::{NicConfig, Progress};
use vipl::{
    ErrorCode, Nic, Operation, RdmaAccess, ReliabilityLevel, ResourceCode, Timeout, Vi, ViHandle,
    ViState, VipError, provider as vip,
};

/// A segment in a directory of its own, and NICs on it.
struct Segment {
    parent: PathBuf,
    name: String,
}

impl Segment {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let parent = Path::new("/dev/shm").join(format!("viaduct-test-{name}"));
        std::fs::create_dir(&parent).unwrap();
        Self { parent, name }
    }

    /// The configuration of station `number`.
    fn config(&self, number: u64, progress: Progress) -> NicConfig {
        NicConfig {
            name: format!("station-{number}"),
            segment: self.name.clone(),
            directory: Some(self.parent.clone()),
            progress,
            ..NicConfig::default()
        }
    }

    fn directory(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(&self.parent).unwrap();
        entries.next().expect("the segment").unwrap().path()
    }

    /// Another process does something to the segment's file.
    fn damage(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(self.directory())
            .status()
            .unwrap();
        assert!(status.success(), "{program}: {status}");
    }

    fn cut_short(&self) {
        self.damage("truncate", &["--size", "0", "segment"]);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // What a failed test leaves is worth looking at.
        if !thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.parent);
        }
    }
}

/// What the handler of an opening was told.
type Told = Receiver<(ResourceCode, ErrorCode, Option<ViHandle>)>;

fn listen(nic: &Nic) -> Told {
    let (sender, told) = channel();
    nic.set_error_handler(move |error| {
        assert!(error.cq.is_none() && error.descriptor.is_null());
        // The test may have ended.
        let _ = sender.send((error.resource, error.code, error.vi));
    })
    .unwrap();
    told
}

fn next(told: &Told) -> (ResourceCode, ErrorCode, Option<ViHandle>) {
    told.recv_timeout(PATIENCE).expect("an error is reported")
}

const CATASTROPHE: (ResourceCode, ErrorCode, Option<ViHandle>) =
    (ResourceCode::Nic, ErrorCode::Catastrophic, None);

/// One VI of each kind on a NIC that fails while threads wait on it.
fn a_failure_ends_everything_in_order(segment: &Segment, progress: Progress, fail: fn(&Segment)) {
    let nics = [1, 2].map(|number| Nic::open_with(&segment.config(number, progress)).unwrap());
    let [client_nic, server_nic] = nics;
    // A second opening of the client's NIC, which owns nothing.
    let bystander = Nic::open_with(&segment.config(1, progress)).unwrap();
    let bystander_told = listen(&bystander);
    let (client, server) = (End::on(client_nic, |vi| vi), End::on(server_nic, |vi| vi));
    connect(&client, &server);
    let told = [listen(&client.nic), listen(&server.nic)];
    let cq = client.nic.create_cq(4).unwrap();
    let ud = client
        .nic
        .vi(&client.ptag)
        .reliability(ReliabilityLevel::Unreliable)
        .recv_cq(&cq)
        .build()
        .unwrap();
    ud.post_recv(client.room(8)).unwrap();
    for _ in 0..2 {
        client.vi.post_recv(client.room(8)).unwrap();
        server.vi.post_recv(server.room(8)).unwrap();
    }
    let address = client.nic.local_address(b"nobody comes").unwrap();
    let pooled = client.nic.vi(&client.ptag).build().unwrap();
    pooled
        .connect_peer(&address, &address, Timeout::Infinite)
        .unwrap();
    thread::scope(|scope| {
        let peer = scope.spawn(|| pooled.connect_peer_wait().map(drop));
        let waiting = scope.spawn(|| {
            client
                .nic
                .connect_wait(&address, Timeout::Infinite)
                .map(drop)
        });
        let entry = scope.spawn(|| cq.wait(Timeout::Infinite).unwrap());
        let receive = scope.spawn(|| client.vi.recv_wait(Timeout::Infinite).unwrap().unwrap());
        fail(segment);
        assert_eq!(waiting.join().unwrap(), Err(VipError::ErrorResource));
        assert_eq!(peer.join().unwrap(), Err(VipError::NotReachable));
        assert_eq!(entry.join().unwrap().vi, ud.handle());
        assert!(receive.join().unwrap().status.is_flushed());
    });
    assert_eq!(next(&bystander_told), CATASTROPHE);
    for (told, end) in told.iter().zip([&client, &server]) {
        // Either may be known first.
        let mut both = [next(told), next(told)];
        both.sort_by_key(|(_, code, _)| *code as u32);
        let lost = (ResourceCode::Vi, ErrorCode::ConnLost, Some(end.vi.handle()));
        assert_eq!(both, [lost, CATASTROPHE]);
        assert_eq!(end.vi.state(), Ok(ViState::Error));
    }
    assert_eq!(pooled.state(), Ok(ViState::Error));
    calls_afterwards(&client, segment, progress);
    requests_afterwards(&client, &ud);
    // The guide's steps: disconnect, take the descriptors, destroy the VI, destroy the CQ.
    assert!(ud.recv_done().unwrap().unwrap().status.is_flushed());
    drop((ud, cq, pooled));
    assert!(bystander_told.try_recv().is_err(), "told once");
    drop((client, server, bystander));
    works(segment, progress);
}

/// What the guide lets each call answer on a NIC that failed.
fn calls_afterwards(client: &End, segment: &Segment, progress: Progress) {
    let nic = client.nic.handle();
    assert_eq!(
        vip::create_vi(nic, &attributes(Some(client.ptag.handle())), None, None),
        Err(VipError::ErrorResource)
    );
    let own = client.nic.local_address(b"client").unwrap();
    assert_eq!(
        client.nic.connect_wait(&own, WAIT).map(drop),
        Err(VipError::ErrorResource)
    );
    assert_eq!(
        client.vi.connect(&own, &own, WAIT).map(drop),
        Err(VipError::InvalidState)
    );
    let refused = Nic::open_with(&segment.config(1, progress)).map(drop);
    assert_eq!(refused, Err(VipError::ErrorResource));
    let words = vip::last_error().unwrap();
    assert!(words.contains("when all its openings"), "{words}");
    assert_eq!(vip::query_nic(nic).unwrap(), *client.nic.attributes());
    let memory = Pages::new(1);
    let handle = memory
        .register(nic, Some(client.ptag.handle()), false)
        .unwrap();
    vip::deregister_mem(nic, memory.at(0), handle).unwrap();
    let counters = vip::counters(nic).unwrap();
    assert!(
        counters.contains(&("port_failed".into(), 1)),
        "{counters:?}"
    );
    // What is posted now comes back at once.
    client.vi.post_recv(client.room(8)).unwrap();
    for _ in 0..2 {
        assert!(client.recv().status.is_flushed());
    }
    assert!(client.send(client.message(b"nobody")).status.is_flushed());
}

/// VIs that ask for a connection on a NIC that failed.
fn requests_afterwards(client: &End, ud: &Vi) {
    let own = client.nic.local_address(b"client").unwrap();
    // A reliable VI that asks for a connection learns that there is no network, and is in Error.
    client.vi.disconnect().unwrap();
    assert_eq!(client.vi.state(), Ok(ViState::Idle));
    client.vi.post_recv(client.room(8)).unwrap();
    let asked = Instant::now();
    assert_eq!(
        client.vi.connect(&own, &own, Timeout::Infinite).map(drop),
        Err(VipError::NotReachable)
    );
    assert!(asked.elapsed() < PATIENCE, "at once");
    assert_eq!(client.vi.state(), Ok(ViState::Error));
    assert!(client.recv().status.is_flushed());
    ud.disconnect().unwrap();
    assert_eq!(
        ud.connect(&own, &own, WAIT).map(drop),
        Err(VipError::NotReachable)
    );
    assert_eq!(ud.state(), Ok(ViState::Idle));
}

/// The segment can be joined, and messages go through it.
fn works(segment: &Segment, progress: Progress) {
    let [a, b] = [1, 2].map(|number| {
        let nic = Nic::open_with(&segment.config(number, progress));
        End::on(
            nic.unwrap_or_else(|_| panic!("{:?}", vip::last_error())),
            |vi| vi,
        )
    });
    connect(&a, &b);
    b.vi.post_recv(b.room(8)).unwrap();
    assert!(a.send(a.message(b"again")).status.is_ok());
    assert_eq!(b.recv().ok().unwrap().first_bytes(), b"again");
}

#[test]
fn a_segment_that_is_cut_short_fails_an_inline_nic() {
    let segment = Segment::new("cut-inline");
    a_failure_ends_everything_in_order(&segment, Progress::Inline, Segment::cut_short);
}

#[test]
fn a_segment_that_is_cut_short_fails_a_pinned_nic() {
    let segment = Segment::new("cut-pinned");
    a_failure_ends_everything_in_order(&segment, Progress::Pinned, Segment::cut_short);
}

#[test]
fn a_segment_that_is_removed_fails_the_nic() {
    let segment = Segment::new("removed");
    a_failure_ends_everything_in_order(&segment, Progress::Inline, |segment| {
        let directory = segment.directory();
        segment.damage("rm", &["-r", directory.to_str().unwrap()]);
    });
}

#[test]
fn a_segment_that_is_overwritten_fails_the_nic() {
    let segment = Segment::new("overwritten");
    a_failure_ends_everything_in_order(&segment, Progress::Inline, |segment| {
        let bytes = ["if=/dev/zero", "of=segment", "bs=1024", "count=1"];
        segment.damage(
            "dd",
            &[&bytes[..], &["conv=notrunc", "status=none"]].concat(),
        );
    });
}

/// One end's rings are cut short while messages go through them: that end fails, the other one loses its connection
/// and nothing else.
#[test]
fn a_station_whose_rings_are_cut_short_fails_alone() {
    let segment = Segment::new("rings");
    let open = |number| {
        let config = segment.config(number, Progress::Inline);
        End::on(Nic::open_with(&config).unwrap(), |vi| vi.rdma_write(true))
    };
    let (victim, other, third) = (open(1), open(2), open(3));
    connect(&victim, &other);
    let (told, spared) = (listen(&victim.nic), listen(&other.nic));
    let writable = RdmaAccess {
        write: true,
        read: false,
    };
    let memory = victim
        .nic
        .create_rdma_region(3000, &victim.ptag, writable)
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut serial = 0_u64;
            // Until the connection breaks.
            loop {
                serial += 1;
                let mut write = other.message(&serial.to_ne_bytes().repeat(375));
                write.set_operation(Operation::RdmaWrite(memory.remote_buffer()));
                if !other.send(write).status.is_ok() {
                    break;
                }
            }
        });
        let deadline = Instant::now() + PATIENCE;
        while memory.load_u64(2992) < 100 {
            assert!(Instant::now() < deadline, "writes arrive");
            victim.vi.state().unwrap();
        }
        let files = std::fs::read_dir(segment.directory()).unwrap();
        let name = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .find(|name| name.starts_with("station-0."))
            .unwrap();
        segment.damage("truncate", &["--size", "0", &name]);
    });
    let mut both = [next(&told), next(&told)];
    both.sort_by_key(|(_, code, _)| *code as u32);
    let lost = |end: &End| (ResourceCode::Vi, ErrorCode::ConnLost, Some(end.vi.handle()));
    assert_eq!(both[1], CATASTROPHE);
    assert_eq!(next(&spared), lost(&other));
    assert_eq!(other.vi.state(), Ok(ViState::Error));
    other.vi.disconnect().unwrap();
    connect(&other, &third);
    third.vi.post_recv(third.room(8)).unwrap();
    assert!(other.send(other.message(b"goes on")).status.is_ok());
    assert_eq!(third.recv().ok().unwrap().first_bytes(), b"goes on");
    // The memory keeps its NIC open too.
    drop((memory, victim));
    let again = open(1);
    let fresh = open(4);
    connect(&again, &fresh);
}
