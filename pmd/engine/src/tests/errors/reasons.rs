//! The reason that the other end is told: one code for each fault [P-8].

use fcvi_frame::frame::FrameView;
use fcvi_frame::iu::Opcode::{self, DisconnectRequest, ReadResponse, SendResponse, WriteResponse};
use fcvi_frame::reason::MessageReason;

use super::rdma::{read_not_allowed_by_vi, write_not_allowed_by_vi};
use super::{Case, RD, RR, bad_receive, faulty_receive, no_descriptor, too_short};
use crate::testkit::net::SERVER;
use crate::{Level, Status};

/// The reasons of the server's responses and of its disconnect.
fn told(mut case: Case, response: Opcode) -> Vec<MessageReason> {
    case.net.settle();
    let reason = |frame: &Vec<u8>| {
        let frame = FrameView::parse(frame).expect("a frame");
        MessageReason::from_parameter(frame.iu().expect("an IU").header.parameter)
    };
    let responses = case.net.frames(SERVER, response);
    let disconnects = case.net.frames(SERVER, DisconnectRequest);
    responses.iter().chain(&disconnects).map(reason).collect()
}

/// At Reliable Delivery the disconnect tells it, at Reliable Reception the response does.
fn assert_told(case: impl Fn(Level) -> Case, response: Opcode, reason: MessageReason) {
    for level in [RD, RR] {
        let told = told(case(level), response);
        assert_eq!(told.first(), Some(&reason), "{level:?}: {told:?}");
    }
}

#[test]
fn each_fault_of_a_receive_descriptor_has_its_reason() {
    let faults = [
        (Status::FORMAT, MessageReason::DescriptorFormat),
        (Status::PROTECTION, MessageReason::DescriptorProtection),
        (Status::LENGTH, MessageReason::DescriptorTooShort),
    ];
    for (fault, reason) in faults {
        for (remote, response) in [(false, SendResponse), (true, WriteResponse)] {
            let case = |level| bad_receive(level, faulty_receive(fault), remote);
            assert_told(case, response, reason);
        }
    }
    let short = |level| too_short(level, 63, 64);
    assert_told(short, SendResponse, MessageReason::DescriptorTooShort);
    let none = |level| no_descriptor(level, false, 8);
    assert_told(none, SendResponse, MessageReason::NoDescriptor);
}

#[test]
fn rdma_that_the_vi_does_not_allow_has_another_reason_than_memory_that_may_not_be_used() {
    let write = |allowed| move |level| write_not_allowed_by_vi(level, allowed, 49);
    assert_told(write(false), WriteResponse, MessageReason::WriteNotEnabled);
    assert_told(write(true), WriteResponse, MessageReason::WriteProtection);
    let read = |allowed| move |level| read_not_allowed_by_vi(level, allowed, 49);
    assert_told(read(false), ReadResponse, MessageReason::ReadNotEnabled);
    assert_told(read(true), ReadResponse, MessageReason::ReadProtection);
}
