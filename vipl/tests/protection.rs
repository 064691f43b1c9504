//! Memory protection: tags, lenient protection, read-only pages, and locked memory.

mod common;

use std::sync::Barrier;
use std::thread;

use common::raw::{self, PAGE_BYTES, Pages, RawEndpoint, attributes, connect, errors_of};
use common::{SecondProcess, WRITABLE, config, counter, is_child, open_as, segment};
use pmd::config::{NicConfig, Progress, Protection};
use vi_core::descriptor::DataSegment;
use vi_types::{LockPolicy, status};
use vipl::{ErrorCode, Nic, RdmaAccess, VipError, provider as vip};

fn lenient() -> NicConfig {
    config(|config| config.protection = Protection::Lenient)
}

#[test]
fn a_lenient_vi_without_a_tag_uses_every_region_of_its_process() {
    let config = lenient();
    let nic = vip::open_nic_with(&config).unwrap();
    let tag = vip::create_ptag(nic).unwrap();
    let (client, server) = (RawEndpoint::of(nic, None), RawEndpoint::new(&config));
    connect(&client, &server);
    let tagged = Pages::new(1);
    let handle = tagged.register(nic, Some(tag)).unwrap();
    tagged.write(0, b"tagged");
    // Memory of another handle of the same NIC, with a tag of that handle.
    let of_server = server.segment(0, 6);
    let sources = [raw::segment(tagged.at(0), handle, 6), of_server];
    for (slot, source) in sources.into_iter().enumerate() {
        server.post_recv(slot, &[server.segment(64, 16)]);
        client.post_send(slot, &[source]);
        assert_eq!(client.sent() & status::ERROR_MASK, 0);
        assert_eq!(server.received() & status::ERROR_MASK, 0);
    }
    // A handle that names no region is refused all the same.
    let nowhere = DataSegment {
        handle: handle.0 ^ 0x0100_0000,
        ..of_server
    };
    client.post_send(2, &[nowhere]);
    assert_ne!(client.sent() & status::PROTECTION_ERROR, 0);
    vip::close_nic(nic).unwrap();
}

#[test]
fn a_vi_with_a_tag_does_not_use_memory_without_one() {
    let end = RawEndpoint::new(&lenient());
    let peer = RawEndpoint::new(&lenient());
    connect(&end, &peer);
    let untagged = Pages::new(1);
    let handle = untagged.register(end.nic, None).unwrap();
    end.post_send(0, &[raw::segment(untagged.at(0), handle, 1)]);
    assert_ne!(end.sent() & status::PROTECTION_ERROR, 0);
    vip::close_nic(end.nic).unwrap();
}

/// Programs of 1999 to 2004 post receives that are longer than their memory, and receive messages that fit.
#[test]
fn lenient_receive_is_checked_for_the_received_bytes_only() {
    for protection in [Protection::Strict, Protection::Lenient] {
        let config = config(|config| config.protection = protection);
        let (client, server) = (RawEndpoint::new(&config), RawEndpoint::new(&config));
        connect(&client, &server);
        let pages = Pages::new(2);
        let handle = pages.register(server.nic, server.ptag).unwrap();
        let last =
            |bytes: usize, length| raw::segment(pages.at(pages.bytes() - bytes), handle, length);
        // No data is placed beyond the first segment.
        server.post_recv(0, &[last(10, 4096), last(100, 50)]);
        client.post_send(0, &[client.segment(0, 10)]);
        let received = server.received();
        if protection == Protection::Strict {
            assert_ne!(received & status::PROTECTION_ERROR, 0);
        } else {
            assert_eq!(received & status::ERROR_MASK, 0, "{received:#x}");
            server.post_recv(0, &[last(10, 4096)]);
            client.post_send(0, &[client.segment(0, 11)]);
            assert_ne!(server.received() & status::LENGTH_ERROR, 0);
        }
        vip::close_nic(server.nic).unwrap();
    }
}

/// A concurrent registration and destruction of a tag never both succeed.
#[test]
fn a_region_never_has_a_tag_that_was_destroyed() {
    let nic = vip::open_nic_with(&config(|_| ())).unwrap();
    let memory = Pages::new(64);
    let start = Barrier::new(2);
    for round in 0..500 {
        let tag = vip::create_ptag(nic).unwrap();
        let (region, destroyed) = thread::scope(|scope| {
            let region = scope.spawn(|| {
                start.wait();
                memory.register(nic, Some(tag))
            });
            start.wait();
            let destroyed = vip::destroy_ptag(nic, tag);
            (region.join().unwrap(), destroyed)
        });
        match region {
            Ok(region) => {
                assert_eq!(destroyed, Err(VipError::ErrorResource), "round {round}");
                vip::deregister_mem(nic, memory.at(0), region).unwrap();
                vip::destroy_ptag(nic, tag).unwrap();
            }
            Err(error) => {
                assert_eq!(error, VipError::InvalidPtag, "round {round}");
                assert_eq!(destroyed, Ok(()), "round {round}");
            }
        }
    }
    vip::close_nic(nic).unwrap();
}

#[test]
fn the_environment_makes_protection_lenient() {
    const VARIABLE: &str = "VIPL_TEST_EXPECTED";
    if let Ok(expected) = std::env::var(VARIABLE) {
        let found = match vip::open_nic("VINIC0") {
            Ok(nic) => {
                let made = vip::create_vi(nic, &attributes(None), None, None);
                vip::close_nic(nic).unwrap();
                match made {
                    Ok(_) => "lenient",
                    Err(VipError::InvalidPtag) => "strict",
                    Err(other) => panic!("{other}"),
                }
            }
            Err(error) => {
                assert_eq!(error, VipError::ErrorResource);
                let message = vip::last_error().unwrap();
                assert!(message.contains("VIPL_PROTECTION"), "{message}");
                "refused"
            }
        };
        assert_eq!(found, expected);
        return;
    }
    let file = std::env::temp_dir().join(format!("viaduct-protection-{}.toml", std::process::id()));
    std::fs::write(&file, format!("[[nic]]\nshm.segment = \"{}\"\n", segment())).unwrap();
    for (value, expected) in [
        ("lenient", "lenient"),
        ("strict", "strict"),
        ("", "strict"),
        ("generous", "refused"),
    ] {
        SecondProcess::start_with("the_environment_makes_protection_lenient", |command| {
            command
                .env("VIADUCT_CONFIG", &file)
                .env("VIPL_PROTECTION", value)
                .env(VARIABLE, expected);
        })
        .join();
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_receive_into_read_only_pages_is_a_protection_error() {
    let [client, server] = [(); 2].map(|()| RawEndpoint::new(&config(|_| ())));
    connect(&client, &server);
    let constant = Pages::new(1);
    constant.write(0, b"constant");
    constant.make_read_only();
    let handle = constant.register_for(server.nic, server.ptag, WRITABLE);
    let target = raw::segment(constant.at(0), handle.unwrap(), 8);
    server.post_recv(0, &[target]);
    client.post_send(0, &[client.segment(0, 8)]);
    let received = server.received();
    assert_ne!(received & status::PROTECTION_ERROR, 0, "{received:#x}");
    assert_eq!(constant.read(0), b'c');
    // Sends from read-only pages are allowed.
    for end in [&client, &server] {
        vip::disconnect(end.vi).unwrap();
    }
    connect(&client, &server);
    client.post_recv(0, &[client.segment(0, 8)]);
    server.post_send(1, &[target]);
    assert_eq!(client.received() & status::ERROR_MASK, 0);
    assert_eq!(client.memory.read(PAGE_BYTES), b'c');
    vip::close_nic(server.nic).unwrap();
}

#[test]
fn an_rdma_write_into_read_only_pages_is_refused() {
    let [writer, target] = [(); 2].map(|()| RawEndpoint::new(&config(|_| ())));
    let errors = errors_of(target.nic);
    connect(&writer, &target);
    let constant = Pages::new(1);
    constant.make_read_only();
    let handle = constant.register_for(target.nic, target.ptag, WRITABLE);
    let remote = raw::segment(constant.at(0), handle.unwrap(), 0);
    writer.post_write(0, writer.segment(0, 8), remote);
    let next = || errors.recv_timeout(common::TIMEOUT).unwrap();
    assert_eq!(next(), ErrorCode::RdmawProt);
    assert_eq!(next(), ErrorCode::ConnLost);
    assert_eq!(constant.read(0), 0);
    vip::close_nic(target.nic).unwrap();
}

#[test]
fn a_descriptor_in_read_only_pages_cannot_be_posted() {
    let end = RawEndpoint::new(&config(|_| ()));
    let errors = errors_of(end.nic);
    let constant = Pages::new(1);
    constant.make_read_only();
    let handle = constant.register(end.nic, end.ptag).unwrap();
    let descriptor = constant.at(0) as *mut vipl::RawDescriptor;
    // SAFETY: mapped, registered memory; the library must not write it, which is tested.
    unsafe { vip::post_recv(end.vi, descriptor, handle) }.unwrap();
    let code = errors.recv_timeout(common::TIMEOUT).unwrap();
    assert_eq!(code, ErrorCode::PostDesc);
    assert_eq!(vip::query_vi(end.vi).unwrap().state, vipl::ViState::Error);
    vip::close_nic(end.nic).unwrap();
}

#[test]
fn registration_of_unmapped_memory_is_refused() {
    let nic = vip::open_nic_with(&lenient()).unwrap();
    let pages = Pages::new(2);
    // SAFETY: the second page of our own mapping.
    unsafe { libc::munmap(pages.at(PAGE_BYTES) as *mut _, PAGE_BYTES) };
    assert_eq!(pages.register(nic, None), Err(VipError::InvalidParameter));
    vip::close_nic(nic).unwrap();
}

/// Drops the capabilities of this thread, and sets RLIMIT_MEMLOCK of the process to 0.
fn forbid_locking() {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    /// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h: sets of 64 bits in two halves.
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let none = [[0u32; 3]; 2];
    // SAFETY: a local header of version 3 and its two sets.
    let failed = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    assert_eq!(failed, 0);
    let zero = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: reads a local limit.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &zero) }, 0);
}

#[test]
fn memory_that_cannot_be_locked_is_used_unlocked_or_refused_as_configured() {
    if !is_child() {
        SecondProcess::start(
            "memory_that_cannot_be_locked_is_used_unlocked_or_refused_as_configured",
        )
        .join();
        return;
    }
    let lock = |policy| open_as(|config| config.lock_memory = policy);
    let register = |nic: &Nic| {
        let ptag = nic.create_ptag().unwrap();
        nic.create_region(8192, &ptag).map(drop)
    };
    let (required, best_effort, never) = (
        lock(LockPolicy::Required),
        lock(LockPolicy::BestEffort),
        lock(LockPolicy::Never),
    );
    assert_eq!(register(&required), Ok(()), "locking is still allowed");
    forbid_locking();
    assert_eq!(register(&required), Err(VipError::ErrorResource));
    for _ in 0..3 {
        assert_eq!(register(&best_effort), Ok(()));
    }
    assert_eq!(register(&never), Ok(()));
    assert_eq!(counter(best_effort.handle(), "registrations_unlocked"), 3);
    assert_eq!(counter(never.handle(), "registrations_unlocked"), 0);
    assert_eq!(counter(required.handle(), "regions"), 0);
}

#[test]
fn pages_stay_locked_until_their_last_deregistration() {
    fn locked_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmLck:"));
        let words = line.unwrap().split_ascii_whitespace().nth(1);
        words.unwrap().parse().unwrap()
    }
    if !is_child() {
        SecondProcess::start("pages_stay_locked_until_their_last_deregistration").join();
        return;
    }
    // Two NICs: one must not unlock pages that the other has locked.
    let policy = |takeover_us| {
        config(|config| {
            config.lock_memory = LockPolicy::Required;
            config.protection = Protection::Lenient;
            config.progress = Progress::inline(takeover_us);
        })
    };
    let nics = [2000, 3000].map(|takeover_us| vip::open_nic_with(&policy(takeover_us)).unwrap());
    let pages = Pages::new(4);
    let before = locked_kib();
    let all = pages.register(nics[0], None).unwrap();
    assert_eq!(locked_kib() - before, 16);
    let none = RdmaAccess::default();
    let middle = raw::register(nics[1], None, pages.at(5000), 1, none).unwrap();
    vip::deregister_mem(nics[0], pages.at(0), all).unwrap();
    assert_eq!(locked_kib() - before, 4, "one page is registered still");
    vip::deregister_mem(nics[1], pages.at(5000), middle).unwrap();
    assert_eq!(locked_kib(), before);
}

/// A logger that records warnings.
struct Warnings;

static WARNINGS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            WARNINGS.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

#[test]
fn leniency_and_unlocked_memory_are_logged_once() {
    if !is_child() {
        SecondProcess::start("leniency_and_unlocked_memory_are_logged_once").join();
        return;
    }
    log::set_logger(&Warnings).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let warnings = |word: &str| {
        let all = WARNINGS.lock().unwrap();
        all.iter().filter(|text| text.contains(word)).count()
    };
    let nic = vip::open_nic_with(&lenient()).unwrap();
    assert_eq!(warnings("lenient"), 0, "not used yet");
    for _ in 0..3 {
        vip::create_vi(nic, &attributes(None), None, None).unwrap();
    }
    assert_eq!(warnings("lenient"), 1);
    forbid_locking();
    let pages = Pages::new(1);
    for _ in 0..3 {
        pages.register(nic, None).unwrap();
    }
    assert_eq!(warnings("RLIMIT_MEMLOCK"), 1);
    vip::close_nic(nic).unwrap();
}
