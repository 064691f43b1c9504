//! Every attribute of a NIC: where it is configured, that it is reported so, and what the call answers that goes beyond it.
//!
//! docs/spec/nic-limits.md is written from the table here.

mod common;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::mpsc::channel;

use common::raw::{PAGE_BYTES, Pages, attributes};
use common::{PATIENCE, segment};
use pmd::config::{Config, NicConfig};
use pmd::descriptor::{ControlSegment, DataSegment, RawDescriptor, status};
use vipl::{
    Done, ErrorCode, MemoryHandle, NicAttributes, NicHandle, PtagHandle, Timeout, ViAttributes,
    ViHandle, VipError, provider as vip,
};

/// A number of `VIP_NIC_ATTRIBUTES` that a key sets.
struct Limit {
    attribute: &'static str,
    key: &'static str,
    /// What the key may be.
    range: (u64, u64),
    default: fn(&NicConfig) -> u64,
    /// What this test sets it to.
    value: u64,
    reported: fn(&NicAttributes) -> u64,
    /// Goes to the limit, which is granted, and beyond it; gives the answer.
    exceed: fn(&Small, u64) -> Answer,
    call: &'static str,
    answer: Answer,
}

/// What tells the caller that a limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The call itself.
    Call(VipError),
    /// The status of the descriptor.
    Status(u32),
    /// The error callback.
    Callback(ErrorCode),
}

impl Answer {
    fn words(self) -> String {
        match self {
            Self::Call(VipError::ErrorResource) => "`VIP_ERROR_RESOURCE`".into(),
            Self::Call(VipError::InvalidMtu) => "`VIP_INVALID_MTU`".into(),
            Self::Call(other) => format!("{other:?}"),
            Self::Status(status::LENGTH_ERROR) => "status `VIP_STATUS_LENGTH_ERROR`".into(),
            Self::Status(other) => format!("status {other:#x}"),
            Self::Callback(ErrorCode::ViOverrun) => {
                "callback `VIP_ERROR_VI_OVERRUN`, the VI is in Error".into()
            }
            Self::Callback(other) => format!("callback {other:?}"),
        }
    }
}

const RESOURCE: Answer = Answer::Call(VipError::ErrorResource);

#[rustfmt::skip]
const LIMITS: &[Limit] = &[
    Limit {
        attribute: "MaxRegisterBytes", key: "max_registered_bytes", range: (4096, 1 << 47),
        default: |c| c.max_registered_bytes, value: 3 * PAGE_BYTES as u64, reported: |a| a.max_register_bytes,
        exceed: registered_bytes, call: "VipRegisterMem", answer: RESOURCE,
    },
    Limit {
        attribute: "MaxRegisterRegions", key: "max_regions", range: (1, 65535),
        default: |c| c.max_regions.into(), value: 3, reported: |a| a.max_register_regions,
        exceed: regions, call: "VipRegisterMem", answer: RESOURCE,
    },
    Limit {
        attribute: "MaxRegisterBlockBytes", key: "max_region_bytes", range: (1, 1 << 47),
        default: |c| c.max_region_bytes, value: 5000, reported: |a| a.max_register_block_bytes,
        exceed: block_bytes, call: "VipRegisterMem", answer: RESOURCE,
    },
    Limit {
        attribute: "MaxVI", key: "max_vi", range: (1, 4096),
        default: |c| c.max_vi.into(), value: 3, reported: |a| a.max_vi,
        exceed: vis, call: "VipCreateVi", answer: RESOURCE,
    },
    Limit {
        attribute: "MaxDescriptorsPerQueue", key: "max_descriptors_per_queue", range: (2, 65536),
        default: |c| c.max_descriptors_per_queue.into(), value: 3, reported: |a| a.max_descriptors_per_queue,
        exceed: descriptors, call: "VipPostSend, VipPostRecv", answer: Answer::Callback(ErrorCode::ViOverrun),
    },
    Limit {
        attribute: "MaxSegmentsPerDesc", key: "max_segments_per_descriptor", range: (253, 65535),
        default: |c| c.max_segments_per_descriptor.into(), value: 300, reported: |a| a.max_segments_per_desc,
        exceed: segments, call: "VipPostSend, VipPostRecv", answer: Answer::Status(status::LENGTH_ERROR),
    },
    Limit {
        attribute: "MaxCQ", key: "max_cq", range: (1, 65536),
        default: |c| c.max_cq.into(), value: 3, reported: |a| a.max_cq,
        exceed: queues, call: "VipCreateCQ", answer: RESOURCE,
    },
    Limit {
        attribute: "MaxCQEntries", key: "max_cq_entries", range: (1, 1 << 24),
        default: |c| c.max_cq_entries.into(), value: 5, reported: |a| a.max_cq_entries,
        exceed: entries, call: "VipCreateCQ", answer: RESOURCE,
    },
    Limit {
        attribute: "MaxTransferSize", key: "max_transfer_bytes", range: (65536, 0x7FFF_FFFF),
        default: |c| c.max_transfer_bytes.into(), value: 70_000, reported: |a| a.max_transfer_size,
        exceed: transfer, call: "VipCreateVi, VipSetViAttributes", answer: Answer::Call(VipError::InvalidMtu),
    },
    Limit {
        attribute: "MaxPtags", key: "max_ptags", range: (1, 1 << 24),
        default: |c| c.max_ptags.into(), value: 4, reported: |a| a.max_ptags,
        exceed: ptags, call: "VipCreatePtag", answer: RESOURCE,
    },
];

/// A limit that `VIP_NIC_ATTRIBUTES` has no place for.
struct Unreported {
    what: &'static str,
    key: &'static str,
    range: (u64, u64),
    default: fn(&NicConfig) -> u64,
    value: u64,
    exceed: fn(&Small, u64) -> Answer,
    call: &'static str,
    answer: Answer,
}

const NOTIFY: &str = "VipSendNotify, VipRecvNotify, VipCQNotify";

#[rustfmt::skip]
const UNREPORTED: &[Unreported] = &[
    Unreported {
        what: "handlers that wait to be called, on each queue", key: "max_notifies_per_queue", range: (1, 1 << 20),
        default: |c| c.max_notifies_per_queue.into(), value: 3, exceed: handlers, call: NOTIFY, answer: RESOURCE,
    },
    Unreported {
        what: "threads that call handlers, in one process", key: "max_notify_threads", range: (1, 2 * 4096 + 65536),
        default: |c| c.max_notify_threads.into(), value: 3, exceed: notify_threads, call: NOTIFY, answer: RESOURCE,
    },
];

/// Attributes that nobody configures: what they are, and what a call beyond them answers.
const FIXED: &[(&str, &str, &str)] = &[
    (
        "NicAddressLen",
        "16: the host address of every NIC",
        "`VIP_INVALID_PARAMETER`",
    ),
    (
        "MaxDiscriminatorLen",
        "16; `max_discriminator_bytes` raises it to up to 44, what the connection frames have room for, except with \
         `transport = \"vi-tcp\"`. Connection requests with longer ones are refused",
        "`VIP_INVALID_PARAMETER`",
    ),
    (
        "NativeMTU",
        "what one frame of the port carries, or with `transport = \"vi-tcp\"` one segment, 65511; longer messages take several",
        "no limit",
    ),
    (
        "ReliabilityLevelSupport",
        "the levels that work",
        "`VIP_INVALID_RELIABILITY_LEVEL`",
    ),
    (
        "RDMAReadSupport",
        "the levels on which RDMA read works",
        "`VIP_INVALID_RDMAREAD`",
    ),
];

/// A NIC with one limit of its own.
struct Small {
    nic: NicHandle,
    ptag: PtagHandle,
}

impl Small {
    fn vi(&self) -> vipl::Result<ViHandle> {
        vip::create_vi(self.nic, &attributes(Some(self.ptag)), None, None)
    }
}

/// The NIC that this text describes.
fn parse(keys: &str) -> Result<NicConfig, String> {
    let text = format!("[[nic]]\nsegment = \"{}\"\n{keys}", segment());
    let config = Config::parse(&text).map_err(|error| error.to_string())?;
    Ok(config.nics[0].clone())
}

/// Does `again` until it is refused; how often it was granted, and the refusal.
fn until_refused<T>(mut again: impl FnMut() -> vipl::Result<T>) -> (u64, VipError) {
    let mut granted = 0;
    loop {
        match again() {
            Ok(_) => granted += 1,
            Err(error) => return (granted, error),
        }
    }
}

fn counted<T>(limit: u64, again: impl FnMut() -> vipl::Result<T>) -> Answer {
    let (granted, error) = until_refused(again);
    assert_eq!(granted, limit);
    Answer::Call(error)
}

fn registered_bytes(small: &Small, limit: u64) -> Answer {
    let page = Pages::new(1);
    let answer = counted(limit / PAGE_BYTES as u64, || {
        page.register(small.nic, Some(small.ptag), false)
    });
    vip::close_nic(small.nic).unwrap();
    answer
}

fn regions(small: &Small, limit: u64) -> Answer {
    let page = Pages::new(1);
    let answer = counted(limit, || page.register(small.nic, Some(small.ptag), false));
    vip::close_nic(small.nic).unwrap();
    answer
}

fn block_bytes(small: &Small, limit: u64) -> Answer {
    let pages = Pages::new(2);
    let attributes = vipl::MemAttributes {
        ptag: Some(small.ptag),
        rdma_write: false,
        rdma_read: false,
    };
    // SAFETY: the pages are mapped until the NIC is closed.
    let register = |bytes| unsafe { vip::register_mem(small.nic, pages.at(1), bytes, &attributes) };
    register(limit).unwrap();
    let answer = Answer::Call(register(limit + 1).unwrap_err());
    vip::close_nic(small.nic).unwrap();
    answer
}

fn vis(small: &Small, limit: u64) -> Answer {
    counted(limit, || small.vi())
}

/// Registered pages for descriptors, and one that is posted.
struct Posted {
    pages: Pages,
    handle: MemoryHandle,
}

impl Posted {
    fn new(small: &Small) -> Self {
        let pages = Pages::new(4);
        let handle = pages.register(small.nic, Some(small.ptag), false).unwrap();
        Self { pages, handle }
    }

    /// Posts a receive at the begin of a line, with so many segments of no bytes.
    fn post(&self, vi: ViHandle, line: usize, segments: u16) {
        let at = self.pages.at(line * 64);
        let head = ControlSegment {
            segment_count: segments,
            ..ControlSegment::default()
        };
        // SAFETY: inside the pages, which are ours.
        unsafe { (at as *mut ControlSegment).write(head) };
        for number in 0..usize::from(segments) {
            let segment = (at as usize + 32 + 16 * number) as *mut DataSegment;
            // SAFETY: as above: four pages hold a thousand segments.
            unsafe { segment.write(DataSegment::default()) };
        }
        // SAFETY: the pages stay mapped and are left alone until the NIC is closed.
        unsafe { vip::post_recv(vi, at as *mut RawDescriptor, self.handle) }.unwrap();
    }
}

fn descriptors(small: &Small, limit: u64) -> Answer {
    let (sender, errors) = channel();
    let report = move |error: &vipl::ErrorDescriptor| {
        // Only the first one counts.
        let _ = sender.send(error.code);
    };
    vip::error_callback(small.nic, Some(Box::new(report))).unwrap();
    let (memory, vi) = (Posted::new(small), small.vi().unwrap());
    for line in 0..limit as usize {
        memory.post(vi, line, 0);
    }
    assert_eq!(vip::query_vi(vi).unwrap().state, vipl::ViState::Idle);
    assert!(errors.try_recv().is_err(), "{limit} descriptors fit");
    memory.post(vi, limit as usize, 0);
    let answer = Answer::Callback(errors.recv_timeout(PATIENCE).unwrap());
    assert_eq!(vip::query_vi(vi).unwrap().state, vipl::ViState::Error);
    vip::close_nic(small.nic).unwrap();
    answer
}

fn segments(small: &Small, limit: u64) -> Answer {
    // Two VIs of the same NIC, connected, so that receives are used.
    let (memory, sender) = (Posted::new(small), Posted::new(small));
    let mut answers = Vec::new();
    for count in [limit as u16, limit as u16 + 1] {
        let (client, server) = (small.vi().unwrap(), small.vi().unwrap());
        connect(small, client, server);
        memory.post(server, 0, count);
        let at = sender.pages.at(0);
        // SAFETY: the first line of the pages, which are ours.
        unsafe { (at as *mut ControlSegment).write(ControlSegment::default()) };
        // SAFETY: the pages stay mapped until the NIC is closed.
        unsafe { vip::post_send(client, at as *mut RawDescriptor, sender.handle) }.unwrap();
        match vip::recv_wait(server, Timeout::After(PATIENCE)).unwrap() {
            Done::Completed { status, .. } => answers.push(status & status::ERROR_MASK),
            other => panic!("a receive was posted: {other:?}"),
        }
    }
    assert_eq!(answers[0], 0, "{limit} segments are received into");
    vip::close_nic(small.nic).unwrap();
    Answer::Status(answers[1])
}

fn connect(small: &Small, client: ViHandle, server: ViHandle) {
    let host = vipl::HostAddress(*vip::query_nic(small.nic).unwrap().local_nic_address);
    let address = |name: &[u8]| vipl::NetAddress {
        host,
        discriminator: vipl::Discriminator::new(name).unwrap(),
    };
    let (own, remote) = (address(b"client"), address(&common::unique_discriminator()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = vip::connect_wait(small.nic, &remote, common::WAIT).unwrap();
            vip::connect_accept(request.conn, server).unwrap();
        });
        common::persist(|| vip::connect_request(client, &own, &remote, common::WAIT)).unwrap();
    });
}

fn queues(small: &Small, limit: u64) -> Answer {
    counted(limit, || vip::create_cq(small.nic, 1))
}

fn entries(small: &Small, limit: u64) -> Answer {
    vip::create_cq(small.nic, limit).unwrap();
    Answer::Call(vip::create_cq(small.nic, limit + 1).unwrap_err())
}

fn transfer(small: &Small, limit: u64) -> Answer {
    let size = |max_transfer_bytes| ViAttributes {
        max_transfer_bytes,
        ..attributes(Some(small.ptag))
    };
    let vi = vip::create_vi(small.nic, &size(limit), None, None).unwrap();
    let answer = vip::create_vi(small.nic, &size(limit + 1), None, None).unwrap_err();
    assert_eq!(
        vip::set_vi_attributes(vi, &size(limit + 1)),
        Err(answer),
        "the same later"
    );
    Answer::Call(answer)
}

fn ptags(small: &Small, limit: u64) -> Answer {
    // One is there already.
    counted(limit - 1, || vip::create_ptag(small.nic))
}

fn handlers(small: &Small, limit: u64) -> Answer {
    let cq = vip::create_cq(small.nic, 1).unwrap();
    counted(limit, || vip::cq_notify(cq, |_, _| ()))
}

fn notify_threads(small: &Small, limit: u64) -> Answer {
    let (sender, told) = channel();
    let (vi, memory) = (small.vi().unwrap(), Posted::new(small));
    memory.post(vi, 0, 0);
    vip::recv_notify(vi, move |_, _| sender.send(()).unwrap()).unwrap();
    let answer = counted(limit - 1, || {
        let cq = vip::create_cq(small.nic, 1).unwrap();
        vip::cq_notify(cq, |_, _| ())
    });
    // A thread ends with its queue, and another queue may have one.
    let cq = vip::create_cq(small.nic, 1).unwrap();
    vip::disconnect(vi).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    vip::destroy_vi(vi).unwrap();
    vip::cq_notify(cq, |_, _| ()).unwrap();
    vip::close_nic(small.nic).unwrap();
    answer
}

/// The keys that a limit needs beside its own: there are tags for all VIs.
fn keys(limit: &Limit, value: u64) -> String {
    let vis = if limit.key == "max_ptags" {
        "max_vi = 1\n"
    } else {
        ""
    };
    let tags = if limit.key == "max_vi" {
        "max_ptags = 16777216\n"
    } else {
        ""
    };
    format!("{vis}{tags}{} = {value}\n", limit.key)
}

#[test]
fn every_limit_is_configured_reported_and_enforced() {
    for limit in LIMITS {
        let config = parse(&keys(limit, limit.value)).unwrap();
        let nic = vip::open_nic_with(&config).unwrap();
        let reported = (limit.reported)(&vip::query_nic(nic).unwrap());
        assert_eq!(reported, limit.value, "{}", limit.attribute);
        let small = Small {
            nic,
            ptag: vip::create_ptag(nic).unwrap(),
        };
        let answer = (limit.exceed)(&small, limit.value);
        assert_eq!(answer, limit.answer, "{}", limit.attribute);
        // Some close it themselves, before their memory goes.
        let _ = vip::close_nic(nic);
    }
}

#[test]
fn every_limit_that_is_not_reported_is_enforced() {
    for limit in UNREPORTED {
        let config = |value| parse(&format!("{} = {value}\n", limit.key));
        let nic = vip::open_nic_with(&config(limit.value).unwrap()).unwrap();
        let small = Small {
            nic,
            ptag: vip::create_ptag(nic).unwrap(),
        };
        assert_eq!((limit.exceed)(&small, limit.value), limit.answer);
        // Some close it themselves, before their memory goes.
        let _ = vip::close_nic(nic);
        let (low, high) = limit.range;
        for wrong in [low - 1, high + 1] {
            assert!(config(wrong).unwrap_err().contains(limit.key));
        }
        assert_eq!(
            [low, high].map(|value| (limit.default)(&config(value).unwrap())),
            [low, high]
        );
    }
}

#[test]
fn what_may_be_configured_fits_an_int_and_nothing_else_may() {
    for limit in LIMITS {
        let (low, high) = limit.range;
        for wrong in [low.wrapping_sub(1), high + 1] {
            // The number below 0 does not even parse.
            let refused = parse(&keys(limit, wrong)).unwrap_err();
            assert!(refused.contains(limit.key) || low == 0, "{refused}");
        }
        for value in [low, high] {
            let config = parse(&keys(limit, value)).unwrap();
            let nic = vip::open_nic_with(&config).unwrap();
            let reported = (limit.reported)(&vip::query_nic(nic).unwrap());
            vip::close_nic(nic).unwrap();
            // A message has no more frames than this, which is a test of its own.
            let most = if limit.key == "max_transfer_bytes" {
                65_536 * (2112 - 32)
            } else {
                i32::MAX as u64
            };
            assert_eq!(reported, value.min(most), "{}", limit.attribute);
        }
    }
}

#[test]
fn what_nobody_configures_is_kept_too() {
    let nic = vipl::Nic::open_with(&parse("").unwrap()).unwrap();
    let ptag = nic.create_ptag().unwrap();
    let found = nic.attributes();
    assert_eq!(
        (found.nic_address_len, found.max_discriminator_len),
        (16, 16)
    );
    assert!(nic.local_address(&[1; 16]).is_ok());
    assert_eq!(nic.local_address(&[1; 17]), Err(VipError::InvalidParameter));
    assert!(found.native_mtu > 0 && found.native_mtu <= i32::MAX as u64);
    assert!(found.rdma_read_support & !found.reliability_level_support == 0);
    for bit in 0..16 {
        let level = 1 << bit;
        let wanted = |rdma_read| ViAttributes {
            reliability: level,
            rdma_read,
            ..attributes(Some(ptag.handle()))
        };
        let made = |rdma_read| vip::create_vi(nic.handle(), &wanted(rdma_read), None, None);
        if found.reliability_level_support & level == 0 {
            assert_eq!(made(false), Err(VipError::InvalidReliabilityLevel));
            continue;
        }
        vip::destroy_vi(made(false).unwrap()).unwrap();
        if found.rdma_read_support & level == 0 {
            assert_eq!(made(true), Err(VipError::InvalidRdmaRead));
        } else {
            vip::destroy_vi(made(true).unwrap()).unwrap();
        }
    }
}

fn document() -> String {
    let defaults = NicConfig::default();
    let mut text = String::from(
        "# Limits of a NIC\n\n\
         Every number of `VIP_NIC_ATTRIBUTES`: the configuration key that sets it, what it may be, and what the call answers\n\
         that goes beyond it. `VipQueryNic` reports the configured value; of bytes to be registered no more than 2147483647,\n\
         which is what old programs' `int` holds, though more may be allowed.\n\n\
         This file is written from the table in `vipl/tests/limits.rs`, which also goes to each limit and beyond it:\n\
         `VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl --test limits`.\n\n\
         | attribute | key | default | smallest | largest | call | beyond it |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for limit in LIMITS {
        let (low, high) = limit.range;
        let low = if limit.key == "max_ptags" {
            "`max_vi`".to_owned()
        } else {
            low.to_string()
        };
        writeln!(
            text,
            "| {} | `{}` | {} | {low} | {high} | {} | {} |",
            limit.attribute,
            limit.key,
            (limit.default)(&defaults),
            limit.call,
            limit.answer.words()
        )
        .unwrap();
    }
    text += "\nThese are configured, and `VIP_NIC_ATTRIBUTES` has no place for them. A queue has a thread of its own from the first\n\
        of its notify calls until it ends; so there are at most two for each VI and one for each completion queue, and no more\n\
        than `max_notify_threads` in a process, however often it has the NIC open.\n\n\
        | what | key | default | smallest | largest | call | beyond it |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n";
    for limit in UNREPORTED {
        let (low, high) = limit.range;
        writeln!(
            text,
            "| {} | `{}` | {} | {low} | {high} | {} | {} |",
            limit.what,
            limit.key,
            (limit.default)(&defaults),
            limit.call,
            limit.answer.words()
        )
        .unwrap();
    }
    text +=
        "\nThese are not configured.\n\n| attribute | value | beyond it |\n| --- | --- | --- |\n";
    for (attribute, value, answer) in FIXED {
        writeln!(text, "| {attribute} | {value} | {answer} |").unwrap();
    }
    text
}

#[test]
fn the_document_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/spec/nic-limits.md");
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, document()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        written,
        document(),
        "write it again: VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl --test limits"
    );
}

/// SEQ_CNT has 16 bits; frames in a segment have 2112 bytes of data, 32 of them headers of an RDMA write.
#[test]
fn longest_message_is_one_of_65536_frames() {
    const CONFIGURED: u32 = 0x7FFF_FFFF;
    let nic = common::open_as(|config| config.max_transfer_bytes = CONFIGURED);
    let most = if common::is_over_tcp() {
        u64::from(CONFIGURED)
    } else {
        65_536 * (2112 - 32)
    };
    assert_eq!(nic.attributes().max_transfer_size, most);
    let ptag = nic.create_ptag().unwrap();
    let make = |bytes| nic.vi(&ptag).max_transfer_bytes(bytes).build().map(drop);
    assert_eq!(make(most), Ok(()));
    assert_eq!(make(most + 1), Err(VipError::InvalidMtu));
}
