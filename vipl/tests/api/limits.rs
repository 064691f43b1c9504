//! Limits of a NIC: for each attribute its configuration key, reported value, and the error of a call that exceeds it.
//!
//! docs/spec/nic-limits.md is generated from the tables of this file.

use crate::common;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::mpsc::channel;

use crate::common::raw::{self, PAGE_BYTES, Pages, attributes, connect_vis, errors_of};
use crate::common::{TIMEOUT, segment};
use pmd::config::{Config, NicConfig};
use vi_core::descriptor::{ControlSegment, DataSegment, RawDescriptor};
use vi_types::status;
use vipl::{
    Done, ErrorCode, MemoryHandle, NicAttributes, NicHandle, PtagHandle, RdmaAccess, Timeout,
    ViAttributes, ViHandle, VipError, provider as vip,
};

/// A limit with its configuration key.
struct Limit {
    /// Its name in `VIP_NIC_ATTRIBUTES`, or what is limited.
    name: &'static str,
    key: &'static str,
    /// Smallest and largest value of the key.
    range: (u64, u64),
    default: fn(&NicConfig) -> u64,
    /// Value in this test.
    value: u64,
    /// `None`: it is not in `VIP_NIC_ATTRIBUTES`.
    reported: Option<fn(&NicAttributes) -> u64>,
    /// Reaches the limit, which must succeed, and exceeds it; returns the error.
    exceed: fn(&LimitedNic, u64) -> LimitError,
    call: &'static str,
    error: LimitError,
}

/// How a call reports an exceeded limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LimitError {
    /// The call itself.
    Call(VipError),
    /// The status of the descriptor.
    Status(u32),
    /// The error callback.
    Callback(ErrorCode),
}

impl LimitError {
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

const RESOURCE: LimitError = LimitError::Call(VipError::ErrorResource);
const NOTIFY: &str = "VipSendNotify, VipRecvNotify, VipCQNotify";

#[rustfmt::skip]
const LIMITS: &[Limit] = &[
    Limit {
        name: "MaxRegisterBytes", key: "max_registered_bytes", range: (4096, 1 << 47),
        default: |c| c.limits.max_registered_bytes, value: 3 * PAGE_BYTES as u64, reported: Some(|a| a.max_register_bytes),
        exceed: registered_bytes, call: "VipRegisterMem", error: RESOURCE,
    },
    Limit {
        name: "MaxRegisterRegions", key: "max_regions", range: (1, 65535),
        default: |c| c.limits.max_regions.into(), value: 3, reported: Some(|a| a.max_register_regions),
        exceed: regions, call: "VipRegisterMem", error: RESOURCE,
    },
    Limit {
        name: "MaxRegisterBlockBytes", key: "max_region_bytes", range: (1, 1 << 47),
        default: |c| c.limits.max_region_bytes, value: 5000, reported: Some(|a| a.max_register_block_bytes),
        exceed: block_bytes, call: "VipRegisterMem", error: RESOURCE,
    },
    Limit {
        name: "MaxVI", key: "max_vi", range: (1, 4096),
        default: |c| c.limits.max_vi.into(), value: 3, reported: Some(|a| a.max_vi),
        exceed: vis, call: "VipCreateVi", error: RESOURCE,
    },
    Limit {
        name: "MaxDescriptorsPerQueue", key: "max_descriptors_per_queue", range: (2, 65536),
        default: |c| c.limits.max_descriptors_per_queue.into(), value: 3, reported: Some(|a| a.max_descriptors_per_queue),
        exceed: descriptors, call: "VipPostSend, VipPostRecv", error: LimitError::Callback(ErrorCode::ViOverrun),
    },
    Limit {
        name: "MaxSegmentsPerDesc", key: "max_segments_per_descriptor", range: (253, 65535),
        default: |c| c.limits.max_segments_per_descriptor.into(), value: 300, reported: Some(|a| a.max_segments_per_desc),
        exceed: segments, call: "VipPostSend, VipPostRecv", error: LimitError::Status(status::LENGTH_ERROR),
    },
    Limit {
        name: "MaxCQ", key: "max_cq", range: (1, 65536),
        default: |c| c.limits.max_cq.into(), value: 3, reported: Some(|a| a.max_cq),
        exceed: queues, call: "VipCreateCQ", error: RESOURCE,
    },
    Limit {
        name: "MaxCQEntries", key: "max_cq_entries", range: (1, 1 << 24),
        default: |c| c.limits.max_cq_entries.into(), value: 5, reported: Some(|a| a.max_cq_entries),
        exceed: entries, call: "VipCreateCQ", error: RESOURCE,
    },
    Limit {
        name: "MaxTransferSize", key: "max_transfer_bytes", range: (65536, 0x7FFF_FFFF),
        default: |c| c.limits.max_transfer_bytes.into(), value: 70_000, reported: Some(|a| a.max_transfer_size),
        exceed: transfer, call: "VipCreateVi, VipSetViAttributes", error: LimitError::Call(VipError::InvalidMtu),
    },
    Limit {
        name: "MaxPtags", key: "max_ptags", range: (1, 1 << 24),
        default: |c| c.limits.max_ptags.into(), value: 4, reported: Some(|a| a.max_ptags),
        exceed: ptags, call: "VipCreatePtag", error: RESOURCE,
    },
    Limit {
        name: "pending handlers of each queue", key: "max_notifies_per_queue", range: (1, 1 << 20),
        default: |c| c.limits.max_notifies_per_queue.into(), value: 3, reported: None,
        exceed: handlers, call: NOTIFY, error: RESOURCE,
    },
    Limit {
        name: "threads that call handlers, in one process", key: "max_notify_threads", range: (1, 2 * 4096 + 65536),
        default: |c| c.limits.max_notify_threads.into(), value: 3, reported: None,
        exceed: notify_threads, call: NOTIFY, error: RESOURCE,
    },
];

/// Attributes that are not configured: name, value, and the error of a call that exceeds it.
const FIXED: &[(&str, &str, &str)] = &[
    (
        "NicAddressLen",
        "16: the host address of every NIC",
        "`VIP_INVALID_PARAMETER`",
    ),
    (
        "MaxDiscriminatorLen",
        "16; `max_discriminator_bytes` raises it to up to 44, the size of the field in connection frames, except with \
         `[nic.vi_tcp]`. Connection requests with longer ones are refused",
        "`VIP_INVALID_PARAMETER`",
    ),
    (
        "NativeMTU",
        "the payload of one frame of the port, or with `[nic.vi_tcp]` of one segment, 65511; longer messages take several",
        "no limit",
    ),
    (
        "ReliabilityLevelSupport",
        "the supported levels",
        "`VIP_INVALID_RELIABILITY_LEVEL`",
    ),
    (
        "RDMAReadSupport",
        "the levels that support RDMA reads",
        "`VIP_INVALID_RDMAREAD`",
    ),
];

/// A NIC with one changed limit.
struct LimitedNic {
    nic: NicHandle,
    ptag: PtagHandle,
}

impl LimitedNic {
    fn vi(&self) -> vipl::Result<ViHandle> {
        vip::create_vi(self.nic, &attributes(Some(self.ptag)), None, None)
    }
}

/// Parses a configuration with these keys of `[nic.limits]`.
fn parse(keys: &str) -> Result<NicConfig, String> {
    let text = format!(
        "[[nic]]\nshm.segment = \"{}\"\n[nic.limits]\n{keys}",
        segment()
    );
    let config = Config::parse(&text).map_err(|error| error.to_string())?;
    Ok(config.nic[0].clone())
}

/// Repeats a call until it fails; returns the number of successful calls, and the error.
fn repeat_until_error<T>(mut call: impl FnMut() -> vipl::Result<T>) -> (u64, VipError) {
    let mut succeeded = 0;
    loop {
        match call() {
            Ok(_) => succeeded += 1,
            Err(error) => return (succeeded, error),
        }
    }
}

fn exceed_count<T>(limit: u64, call: impl FnMut() -> vipl::Result<T>) -> LimitError {
    let (succeeded, error) = repeat_until_error(call);
    assert_eq!(succeeded, limit);
    LimitError::Call(error)
}

fn registered_bytes(small: &LimitedNic, limit: u64) -> LimitError {
    let page = Pages::new(1);
    let error = exceed_count(limit / PAGE_BYTES as u64, || {
        page.register(small.nic, Some(small.ptag))
    });
    vip::close_nic(small.nic).unwrap();
    error
}

fn regions(small: &LimitedNic, limit: u64) -> LimitError {
    let page = Pages::new(1);
    let error = exceed_count(limit, || page.register(small.nic, Some(small.ptag)));
    vip::close_nic(small.nic).unwrap();
    error
}

fn block_bytes(small: &LimitedNic, limit: u64) -> LimitError {
    let pages = Pages::new(2);
    let register = |bytes| {
        let (ptag, access) = (Some(small.ptag), RdmaAccess::default());
        raw::register(small.nic, ptag, pages.at(1), bytes as usize, access)
    };
    register(limit).unwrap();
    let error = LimitError::Call(register(limit + 1).unwrap_err());
    vip::close_nic(small.nic).unwrap();
    error
}

fn vis(small: &LimitedNic, limit: u64) -> LimitError {
    exceed_count(limit, || small.vi())
}

/// Registered pages for descriptors.
struct DescriptorPages {
    pages: Pages,
    handle: MemoryHandle,
}

impl DescriptorPages {
    fn new(small: &LimitedNic) -> Self {
        let pages = Pages::new(4);
        let handle = pages.register(small.nic, Some(small.ptag)).unwrap();
        Self { pages, handle }
    }

    /// Posts a receive in a 64-byte slot, with this number of empty segments.
    fn post(&self, vi: ViHandle, slot: usize, segments: u16) {
        let at = self.pages.at(slot * 64);
        let head = ControlSegment {
            segment_count: segments,
            ..ControlSegment::default()
        };
        // SAFETY: inside our own pages.
        unsafe { (at as *mut ControlSegment).write(head) };
        for number in 0..usize::from(segments) {
            let segment = (at as usize + 32 + 16 * number) as *mut DataSegment;
            // SAFETY: as above: four pages hold a thousand segments.
            unsafe { segment.write(DataSegment::default()) };
        }
        // SAFETY: the pages stay mapped and are not accessed until the NIC is closed.
        unsafe { vip::post_recv(vi, at as *mut RawDescriptor, self.handle) }.unwrap();
    }
}

fn descriptors(small: &LimitedNic, limit: u64) -> LimitError {
    let errors = errors_of(small.nic);
    let (memory, vi) = (DescriptorPages::new(small), small.vi().unwrap());
    for slot in 0..limit as usize {
        memory.post(vi, slot, 0);
    }
    assert_eq!(vip::query_vi(vi).unwrap().state, vipl::ViState::Idle);
    assert!(errors.try_recv().is_err(), "{limit} descriptors fit");
    memory.post(vi, limit as usize, 0);
    let error = LimitError::Callback(errors.recv_timeout(TIMEOUT).unwrap());
    assert_eq!(vip::query_vi(vi).unwrap().state, vipl::ViState::Error);
    vip::close_nic(small.nic).unwrap();
    error
}

fn segments(small: &LimitedNic, limit: u64) -> LimitError {
    // Two connected VIs of the same NIC, so that receives complete.
    let (memory, sender) = (DescriptorPages::new(small), DescriptorPages::new(small));
    let mut errors = Vec::new();
    for count in [limit as u16, limit as u16 + 1] {
        let (client, server) = (small.vi().unwrap(), small.vi().unwrap());
        connect_vis((small.nic, client), (small.nic, server));
        memory.post(server, 0, count);
        let at = sender.pages.at(0);
        // SAFETY: the first slot of our own pages.
        unsafe { (at as *mut ControlSegment).write(ControlSegment::default()) };
        // SAFETY: the pages stay mapped until the NIC is closed.
        unsafe { vip::post_send(client, at as *mut RawDescriptor, sender.handle) }.unwrap();
        match vip::recv_wait(server, Timeout::After(TIMEOUT)).unwrap() {
            Done::Completed { status, .. } => errors.push(status & status::ERROR_MASK),
            other => panic!("a receive was posted: {other:?}"),
        }
    }
    assert_eq!(errors[0], 0, "{limit} segments are valid");
    vip::close_nic(small.nic).unwrap();
    LimitError::Status(errors[1])
}

fn queues(small: &LimitedNic, limit: u64) -> LimitError {
    exceed_count(limit, || vip::create_cq(small.nic, 1))
}

fn entries(small: &LimitedNic, limit: u64) -> LimitError {
    vip::create_cq(small.nic, limit).unwrap();
    LimitError::Call(vip::create_cq(small.nic, limit + 1).unwrap_err())
}

fn transfer(small: &LimitedNic, limit: u64) -> LimitError {
    let size = |max_transfer_bytes| ViAttributes {
        max_transfer_bytes,
        ..attributes(Some(small.ptag))
    };
    let vi = vip::create_vi(small.nic, &size(limit), None, None).unwrap();
    let error = vip::create_vi(small.nic, &size(limit + 1), None, None).unwrap_err();
    assert_eq!(
        vip::set_vi_attributes(vi, &size(limit + 1)),
        Err(error),
        "VipSetViAttributes"
    );
    LimitError::Call(error)
}

fn ptags(small: &LimitedNic, limit: u64) -> LimitError {
    // One tag exists already.
    exceed_count(limit - 1, || vip::create_ptag(small.nic))
}

fn handlers(small: &LimitedNic, limit: u64) -> LimitError {
    let cq = vip::create_cq(small.nic, 1).unwrap();
    exceed_count(limit, || vip::cq_notify(cq, |_, _| ()))
}

fn notify_threads(small: &LimitedNic, limit: u64) -> LimitError {
    let (sender, calls) = channel();
    let (vi, memory) = (small.vi().unwrap(), DescriptorPages::new(small));
    memory.post(vi, 0, 0);
    vip::recv_notify(vi, move |_, _| sender.send(()).unwrap()).unwrap();
    let error = exceed_count(limit - 1, || {
        let cq = vip::create_cq(small.nic, 1).unwrap();
        vip::cq_notify(cq, |_, _| ())
    });
    // A thread exits with its queue, so that another queue can have one.
    let cq = vip::create_cq(small.nic, 1).unwrap();
    vip::disconnect(vi).unwrap();
    calls.recv_timeout(TIMEOUT).unwrap();
    vip::destroy_vi(vi).unwrap();
    vip::cq_notify(cq, |_, _| ()).unwrap();
    vip::close_nic(small.nic).unwrap();
    error
}

/// The keys of a limit: its own, and those that keep `max_ptags` at least `max_vi`.
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

/// Checks that the error message of a call says what to do.
fn check_message(limit: &Limit) {
    let LimitError::Call(code) = limit.error else {
        return;
    };
    let (key, value) = (limit.key, limit.value);
    let message = vip::last_error().unwrap();
    let mut calls = limit.call.split(", ");
    let is_named = calls.any(|call| message.starts_with(&format!("{call}: ")));
    assert!(is_named, "{message}: {}", limit.call);
    let mut expected = vec![format!("raise {key} in [nic.limits]")];
    if code == VipError::ErrorResource {
        expected.push(format!(": {key} = {value}: "));
    }
    if ["max_cq", "max_ptags", "max_regions", "max_vi"].contains(&key) {
        expected.push(format!("{value} in use on this NIC, 1 requested"));
    }
    for part in expected {
        assert!(message.contains(&part), "{message}: {part}");
    }
}

#[test]
fn refusal_to_destroy_an_object_in_use_names_its_users() {
    let nic = vip::open_nic_with(&parse("").unwrap()).unwrap();
    let (ptag, cq) = (
        vip::create_ptag(nic).unwrap(),
        vip::create_cq(nic, 1).unwrap(),
    );
    vip::create_vi(nic, &attributes(Some(ptag)), Some(cq), None).unwrap();
    let expect = |refused, message: &str| {
        assert_eq!(refused, Err(VipError::ErrorResource));
        assert_eq!(vip::last_error().as_deref(), Some(message));
    };
    expect(
        vip::destroy_cq(cq),
        "VipDestroyCQ: a work queue reports to the completion queue",
    );
    expect(
        vip::destroy_ptag(nic, ptag),
        "VipDestroyPtag: a VI or a memory region uses the protection tag",
    );
    vip::close_nic(nic).unwrap();
}

#[test]
fn every_limit_is_configured_reported_and_enforced() {
    for limit in LIMITS {
        let config = parse(&keys(limit, limit.value)).unwrap();
        let nic = vip::open_nic_with(&config).unwrap();
        if let Some(reported) = limit.reported {
            let found = reported(&vip::query_nic(nic).unwrap());
            assert_eq!(found, limit.value, "{}", limit.name);
        }
        let small = LimitedNic {
            nic,
            ptag: vip::create_ptag(nic).unwrap(),
        };
        let error = (limit.exceed)(&small, limit.value);
        assert_eq!(error, limit.error, "{}", limit.name);
        check_message(limit);
        // Some functions close it themselves, before their memory is unmapped.
        let _ = vip::close_nic(nic);
    }
}

#[test]
fn configuration_ranges_are_enforced_and_fit_an_int() {
    for limit in LIMITS {
        let (low, high) = limit.range;
        for wrong in [low.wrapping_sub(1), high + 1] {
            // A negative number is a parse error.
            let refused = parse(&keys(limit, wrong)).unwrap_err();
            assert!(refused.contains(limit.key) || low == 0, "{refused}");
        }
        for value in [low, high] {
            let config = parse(&keys(limit, value)).unwrap();
            assert_eq!((limit.default)(&config), value, "{}", limit.name);
            let Some(reported) = limit.reported else {
                continue;
            };
            let nic = vip::open_nic_with(&config).unwrap();
            let found = reported(&vip::query_nic(nic).unwrap());
            vip::close_nic(nic).unwrap();
            // The number of frames in a message is limited, which a separate test checks.
            let highest = if limit.key == "max_transfer_bytes" {
                65_536 * (2112 - 32)
            } else {
                i32::MAX as u64
            };
            assert_eq!(found, value.min(highest), "{}", limit.name);
        }
    }
}

#[test]
fn fixed_attributes_are_enforced() {
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

/// Writes the rows of these limits.
fn write_rows(text: &mut String, is_wanted: fn(&Limit) -> bool) {
    let defaults = NicConfig::default();
    for limit in LIMITS.iter().filter(|limit| is_wanted(limit)) {
        let (low, high) = limit.range;
        let low = if limit.key == "max_ptags" {
            "`max_vi`".to_owned()
        } else {
            low.to_string()
        };
        writeln!(
            text,
            "| {} | `{}` | {} | {low} | {high} | {} | {} |",
            limit.name,
            limit.key,
            (limit.default)(&defaults),
            limit.call,
            limit.error.words()
        )
        .unwrap();
    }
}

fn document() -> String {
    let mut text = String::from(
        "# Limits of a NIC\n\n\
         Every number of `VIP_NIC_ATTRIBUTES`: its configuration key, the range of the key, and the error of a call that\n\
         exceeds it. `VipQueryNic` reports the configured value; numbers of registered bytes as at most 2147483647, which\n\
         an `int` of old programs can hold, though the limit may be higher.\n\n\
         This file is generated from the tables in `vipl/tests/api/limits.rs`, which also reaches and exceeds each limit:\n\
         `VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl --test api limits`.\n\n\
         | attribute | key | default | smallest | largest | call | error |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    write_rows(&mut text, |limit| limit.reported.is_some());
    text += "\nThese limits are configured, but are not in `VIP_NIC_ATTRIBUTES`. A queue has its own thread from its first notify\n\
        call until it is destroyed; so there are at most two threads for each VI and one for each completion queue, and at\n\
        most `max_notify_threads` in a process, for all its handles of the NIC.\n\n\
        | limit | key | default | smallest | largest | call | error |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n";
    write_rows(&mut text, |limit| limit.reported.is_none());
    text += "\nThese are not configured.\n\n| attribute | value | error |\n| --- | --- | --- |\n";
    for (attribute, value, error) in FIXED {
        writeln!(text, "| {attribute} | {value} | {error} |").unwrap();
    }
    text
}

#[test]
fn nic_limits_document_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/spec/nic-limits.md");
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, document()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        written,
        document(),
        "generate it again: VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl --test api limits"
    );
}

/// SEQ_CNT has 16 bits; frames in a segment have 2112 bytes of data, 32 of them headers of an RDMA write.
#[test]
fn longest_message_is_one_of_65536_frames() {
    const CONFIGURED: u32 = 0x7FFF_FFFF;
    let nic = common::open_as(|config| config.limits.max_transfer_bytes = CONFIGURED);
    let limit = if common::is_over_tcp() {
        u64::from(CONFIGURED)
    } else {
        65_536 * (2112 - 32)
    };
    assert_eq!(nic.attributes().max_transfer_size, limit);
    let ptag = nic.create_ptag().unwrap();
    let make = |bytes| nic.vi(&ptag).max_transfer_bytes(bytes).build().map(drop);
    assert_eq!(make(limit), Ok(()));
    assert_eq!(make(limit + 1), Err(VipError::InvalidMtu));
}
