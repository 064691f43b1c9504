//! Failure of the port (VIPL 6.3.1, 7.5): each NIC handle gets a catastrophic error, the teardown succeeds in order,
//! and the NIC can be opened again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use crate::common::raw::Pages;
use crate::common::{Endpoint, TIMEOUT, WRITABLE, connect, counter, deliver, wait_until};
use pmd::config::{Network, NicConfig, Progress, Shm};
use vipl::{
    ErrorCode, Nic, ReliabilityLevel, ResourceCode, Timeout, Vi, ViHandle, ViState, VipError,
    provider as vip,
};

/// A segment in its own directory, and NICs on it.
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
    fn config(&self, number: u64, progress: &Progress) -> NicConfig {
        NicConfig {
            name: format!("station-{number}"),
            progress: progress.clone(),
            network: Network::Shm(Shm {
                segment: self.name.clone(),
                directory: Some(self.parent.clone()),
                ..Shm::default()
            }),
            ..NicConfig::default()
        }
    }

    fn directory(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(&self.parent).unwrap();
        entries.next().expect("the segment").unwrap().path()
    }

    /// Runs a program that damages the files of the segment.
    fn damage(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(self.directory())
            .status()
            .unwrap();
        assert!(status.success(), "{program}: {status}");
    }

    fn truncate(&self) {
        self.damage("truncate", &["--size", "0", "segment"]);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A failed test keeps the files for inspection.
        if !thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.parent);
        }
    }
}

/// The asynchronous errors of a NIC handle.
type Reports = Receiver<(ResourceCode, ErrorCode, Option<ViHandle>)>;

fn reports_of(nic: &Nic) -> Reports {
    let (sender, reports) = channel();
    nic.set_error_handler(move |error| {
        assert!(error.cq.is_none() && error.descriptor.is_null());
        // Fails after the end of the test.
        let _ = sender.send((error.resource, error.code, error.vi));
    })
    .unwrap();
    reports
}

fn next(reports: &Reports) -> (ResourceCode, ErrorCode, Option<ViHandle>) {
    reports.recv_timeout(TIMEOUT).expect("an error is reported")
}

const CATASTROPHE: (ResourceCode, ErrorCode, Option<ViHandle>) =
    (ResourceCode::Nic, ErrorCode::Catastrophic, None);

/// Fails a NIC that has VIs in each state while threads wait on it.
fn check_failure(segment: &Segment, progress: &Progress, fail: fn(&Segment)) {
    let nics = [1, 2].map(|number| Nic::open_with(&segment.config(number, progress)).unwrap());
    let [client_nic, server_nic] = nics;
    // A second handle of the client's NIC, without objects.
    let second_handle = Nic::open_with(&segment.config(1, progress)).unwrap();
    let second_reports = reports_of(&second_handle);
    let (client, server) = (
        Endpoint::on(client_nic, |vi| vi),
        Endpoint::on(server_nic, |vi| vi),
    );
    connect(&client, &server);
    let reports = [reports_of(&client.nic), reports_of(&server.nic)];
    let cq = client.nic.create_cq(4).unwrap();
    let ud = client.nic.vi(&client.ptag).recv_cq(&cq);
    let ud = ud
        .reliability(ReliabilityLevel::UnreliableDelivery)
        .build()
        .unwrap();
    ud.post_recv(client.descriptor(8)).unwrap();
    client.post_receives(2, 8);
    server.post_receives(2, 8);
    let address = client.address(b"no request");
    let requesting = client.nic.vi(&client.ptag).build().unwrap();
    let requested = requesting.connect_peer(&address, &address, Timeout::Infinite);
    requested.unwrap();
    thread::scope(|scope| {
        let peer = scope.spawn(|| requesting.connect_peer_wait().map(drop));
        let waiting = scope.spawn(|| (client.nic).connect_wait(&address, Timeout::Infinite).err());
        let entry = scope.spawn(|| cq.wait(Timeout::Infinite).unwrap());
        let receive = scope.spawn(|| client.vi.recv_wait(Timeout::Infinite).unwrap().unwrap());
        fail(segment);
        assert_eq!(waiting.join().unwrap(), Some(VipError::ErrorResource));
        assert_eq!(peer.join().unwrap(), Err(VipError::NotReachable));
        assert_eq!(entry.join().unwrap().vi, ud.handle());
        assert!(receive.join().unwrap().status.is_flushed());
    });
    assert_eq!(next(&second_reports), CATASTROPHE);
    for (reports, end) in reports.iter().zip([&client, &server]) {
        // In either order.
        let mut both = [next(reports), next(reports)];
        both.sort_by_key(|(_, code, _)| *code as u32);
        let lost = (ResourceCode::Vi, ErrorCode::ConnLost, Some(end.vi.handle()));
        assert_eq!(both, [lost, CATASTROPHE]);
        assert_eq!(end.vi.state(), Ok(ViState::Error));
    }
    assert_eq!(requesting.state(), Ok(ViState::Error));
    check_calls_after_failure(&client, segment, progress);
    check_requests_after_failure(&client, &ud);
    // The teardown of the guide: disconnect, collect the descriptors, destroy the VI, destroy the CQ.
    assert!(ud.recv_done().unwrap().unwrap().status.is_flushed());
    drop((ud, cq, requesting));
    assert!(second_reports.try_recv().is_err(), "reported once");
    drop((client, server, second_handle));
    check_reopen(segment, progress);
}

/// Checks what of a failed NIC can still be used, beyond the return codes that the conformance suite checks.
fn check_calls_after_failure(client: &Endpoint, segment: &Segment, progress: &Progress) {
    let nic = client.nic.handle();
    let refused = Nic::open_with(&segment.config(1, progress)).map(drop);
    assert_eq!(refused, Err(VipError::ErrorResource));
    let message = vip::last_error().unwrap();
    assert!(message.contains("when all its handles"), "{message}");
    let memory = Pages::new(1);
    let handle = memory.register(nic, Some(client.ptag.handle())).unwrap();
    vip::deregister_mem(nic, memory.at(0), handle).unwrap();
    assert_eq!(counter(nic, "port_failed"), 1);
    // Descriptors posted after the failure are flushed at once.
    client.post_receives(1, 8);
    for _ in 0..2 {
        assert!(client.recv().status.is_flushed());
    }
    assert!(client.send(client.message(b"flushed")).status.is_flushed());
}

/// Checks connection requests on a failed NIC: a reliable VI moves to Error.
fn check_requests_after_failure(client: &Endpoint, ud: &Vi) {
    let own = client.address(b"client");
    for (vi, state) in [(&client.vi, ViState::Error), (ud, ViState::Idle)] {
        vi.disconnect().unwrap();
        vi.post_recv(client.descriptor(8)).unwrap();
        let begun = Instant::now();
        let refused = vi.connect(&own, &own, Timeout::Infinite).map(drop);
        assert_eq!(refused, Err(VipError::NotReachable));
        assert!(begun.elapsed() < TIMEOUT, "without delay");
        assert_eq!(vi.state(), Ok(state));
    }
    assert!(client.recv().status.is_flushed());
}

/// Opens the NICs again and sends a message.
fn check_reopen(segment: &Segment, progress: &Progress) {
    let [a, b] = [1, 2].map(|number| {
        let nic = Nic::open_with(&segment.config(number, progress));
        Endpoint::on(
            nic.unwrap_or_else(|_| panic!("{:?}", vip::last_error())),
            |vi| vi,
        )
    });
    connect(&a, &b);
    deliver(&a, &b, b"again");
}

#[test]
fn truncated_segment_fails_a_pinned_nic() {
    let segment = Segment::new("cut-pinned");
    check_failure(&segment, &Progress::pinned(None), Segment::truncate);
}

#[test]
fn removed_segment_fails_the_nic() {
    let segment = Segment::new("removed");
    check_failure(&segment, &Progress::default(), |segment| {
        let directory = segment.directory();
        segment.damage("rm", &["-r", directory.to_str().unwrap()]);
    });
}

#[test]
fn overwritten_segment_fails_the_nic() {
    let segment = Segment::new("overwritten");
    check_failure(&segment, &Progress::default(), |segment| {
        let bytes = ["if=/dev/zero", "of=segment", "bs=1024", "count=1"];
        segment.damage(
            "dd",
            &[&bytes[..], &["conv=notrunc", "status=none"]].concat(),
        );
    });
}

/// The rings of one station are truncated during traffic: that station fails, and its peer only loses the connection.
#[test]
fn station_with_truncated_rings_fails_alone() {
    let segment = Segment::new("rings");
    let open = |number| {
        let config = segment.config(number, &Progress::default());
        Endpoint::on(Nic::open_with(&config).unwrap(), |vi| vi.rdma_write(true))
    };
    let (victim, other, third) = (open(1), open(2), open(3));
    connect(&victim, &other);
    let (victim_reports, other_reports) = (reports_of(&victim.nic), reports_of(&other.nic));
    let memory = victim.region(3000, WRITABLE);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut serial = 0_u64;
            // Ends when the connection breaks.
            loop {
                serial += 1;
                let bytes = serial.to_ne_bytes().repeat(375);
                let write = other.write_of(&bytes, memory.remote_buffer());
                if !other.send(write).status.is_ok() {
                    break;
                }
            }
        });
        wait_until("writes arrive", || {
            victim.vi.state().unwrap();
            memory.load_u64(2992) >= 100
        });
        let files = std::fs::read_dir(segment.directory()).unwrap();
        let name = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .find(|name| name.starts_with("station-0."))
            .unwrap();
        segment.damage("truncate", &["--size", "0", &name]);
    });
    let mut both = [next(&victim_reports), next(&victim_reports)];
    both.sort_by_key(|(_, code, _)| *code as u32);
    let lost = |end: &Endpoint| (ResourceCode::Vi, ErrorCode::ConnLost, Some(end.vi.handle()));
    assert_eq!(both[1], CATASTROPHE);
    assert_eq!(next(&other_reports), lost(&other));
    assert_eq!(other.vi.state(), Ok(ViState::Error));
    other.vi.disconnect().unwrap();
    connect(&other, &third);
    deliver(&other, &third, b"intact");
    // The memory keeps its NIC open, too.
    drop((memory, victim));
    let again = open(1);
    let fresh = open(4);
    connect(&again, &fresh);
}
