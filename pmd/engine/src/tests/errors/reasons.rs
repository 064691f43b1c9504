//! The reason code sent to the peer, for each kind of fault [P-8].

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{self, DisconnectRequest, ReadResponse, SendResponse, WriteResponse};
use fcvi_frame::reason::MessageReason;
use vi_types::{ReliabilityLevel, Status};

use super::rdma::{read_not_allowed_by_vi, write_not_allowed_by_vi};
use super::{Case, RD, RR, bad_receive, faulty_receive, no_descriptor, too_short};

use crate::testkit::net::SERVER;

/// Returns the reasons of the server's responses and of its disconnect.
fn sent_reasons(mut case: Case, response: Opcode) -> Vec<MessageReason> {
    case.net.settle();
    let reason = |frame: &Vec<u8>| {
        let frame = FrameView::parse(frame).expect("a frame");
        MessageReason::from_parameter(frame.iu().expect("an IU").header.parameter)
    };
    let responses = case.net.frames(SERVER, response);
    let disconnects = case.net.frames(SERVER, DisconnectRequest);
    responses.iter().chain(&disconnects).map(reason).collect()
}

/// Asserts the reason that the server sends: at RD in the disconnect, at RR in the response.
fn assert_reason(case: impl Fn(ReliabilityLevel) -> Case, response: Opcode, reason: MessageReason) {
    for level in [RD, RR] {
        let sent = sent_reasons(case(level), response);
        assert_eq!(sent.first(), Some(&reason), "{level:?}: {sent:?}");
    }
}

#[test]
fn faulty_receive_descriptor_has_the_reason_of_its_fault() {
    let faults = [
        (Status::FORMAT, MessageReason::DescriptorFormat),
        (Status::PROTECTION, MessageReason::DescriptorProtection),
        (Status::LENGTH, MessageReason::DescriptorTooShort),
    ];
    for (fault, reason) in faults {
        for (remote, response) in [(false, SendResponse), (true, WriteResponse)] {
            let case = |level| bad_receive(level, faulty_receive(fault), remote);
            assert_reason(case, response, reason);
        }
    }
    let short = |level| too_short(level, 63, 64);
    assert_reason(short, SendResponse, MessageReason::DescriptorTooShort);
    let none = |level| no_descriptor(level, false, 8);
    assert_reason(none, SendResponse, MessageReason::NoDescriptor);
}

#[test]
fn rdma_access_not_enabled_on_the_vi_differs_from_memory_protection() {
    let write = |allowed| move |level| write_not_allowed_by_vi(level, allowed, 49);
    assert_reason(write(false), WriteResponse, MessageReason::WriteNotEnabled);
    assert_reason(write(true), WriteResponse, MessageReason::WriteProtection);
    let read = |allowed| move |level| read_not_allowed_by_vi(level, allowed, 49);
    assert_reason(read(false), ReadResponse, MessageReason::ReadNotEnabled);
    assert_reason(read(true), ReadResponse, MessageReason::ReadProtection);
}
