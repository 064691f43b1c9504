//! A recorded login between two Linux 6.1 kernels, one of which is replaced by the machine: its frames are those of
//! the kernel.

use fcvi_frame::els::{ElsCommand, ProcessLogin, ResponseCode};
use fcvi_frame::fc::{FCtl, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::{MacAddress, profile};
use protocol_testkit::hex;

use super::frames::{FLOGI, S, enode, host};
use crate::Neighbour;
use crate::login::{Carrier, ElsOut, LoginConfig, LoginEvent, LoginMachine, PortLogin, PortState};
use crate::testkit::FC_VI;

const ONE: NPortId = NPortId::from_bytes([0, 0, 1]);
const TWO: NPortId = NPortId::from_bytes([0, 0, 2]);

macro_rules! recorded {
    ($name:literal) => {
        hex::parse(include_str!(concat!(
            "../../../../../fcvi-frame/testdata/",
            $name,
            ".hex"
        )))
    };
}

/// Returns a recorded frame with another OX_ID, sealed again.
fn in_exchange(ox_id: u16, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[44..46].copy_from_slice(&ox_id.to_be_bytes());
    let frame_bytes = bytes.len();
    seal(&mut bytes, frame_bytes, Eof::T).expect("a legal length");
    bytes
}

/// Returns the payload of FLOGI or its accept as the kernels send them in FIP.
fn flogi(command: ElsCommand, number: u8) -> [u8; 116] {
    let mut bytes = [0; 116];
    bytes[..12].copy_from_slice(&[command.raw(), 0, 0, 0, 0x20, 0x20, 0, 10, 0x80, 0, 8, 0x40]);
    bytes[20..28].copy_from_slice(&[0x20, 0, 0x52, 0x54, 0, 0, 0, number]);
    bytes[28..36].copy_from_slice(&[0x10, 0, 0x52, 0x54, 0, 0, 0, number]);
    bytes[68] = 0x88;
    bytes
}

fn kernel(number: u8) -> Neighbour {
    Neighbour {
        id: NPortId::from_bytes([0, 0, number]),
        port_name: 0x2000_5254_0000_0000 + u64::from(number),
        node_name: 0x1000_5254_0000_0000 + u64::from(number),
        enode_mac: enode(number),
        max_fcoe_bytes: 2158,
        path_fcoe_bytes: None,
        supports_fc4: false,
    }
}

/// The machine, with the names and addresses of the kernel that it replaces.
struct Replaced {
    machine: LoginMachine,
    other: u8,
    /// OX_ID of the last frame that it sent.
    last_ox_id: u16,
}

impl Replaced {
    fn new(number: u8) -> Self {
        let me = kernel(number);
        let other = 3 - number;
        let mut config = LoginConfig::new(me.port_name, me.node_name, FC_VI, Some(host(number)));
        config.r_a_tov_ns = 4 * S;
        let mut machine = LoginMachine::new(config, 7);
        machine.set_id(0, Some(me.id));
        machine.neighbour_found(0, &kernel(other));
        Self {
            machine,
            other,
            last_ox_id: 0,
        }
    }

    /// Injects the other kernel's FLOGI, or its accept of the machine's.
    fn flogi(&mut self, command: ElsCommand) {
        let (me, other) = (kernel(3 - self.other).id, kernel(self.other).id);
        let reply = command == ElsCommand::LsAcc;
        let bytes = recorded!("linux_plogi");
        let recorded = FrameView::parse(&bytes).expect("a frame").fc;
        let header = fcvi_frame::fc::FcHeader {
            r_ctl: if reply {
                RCtl::ElsReply
            } else {
                RCtl::ElsRequest
            },
            f_ctl: FCtl(if reply { 0x99_0000 } else { 0x29_0000 }),
            ox_id: self.last_ox_id,
            s_id: other,
            d_id: me,
            ..recorded
        };
        let payload = flogi(command, self.other);
        self.machine
            .handle_els(0, FLOGI, enode(self.other), &header, &payload);
    }

    /// Injects a recorded FCoE frame of the other kernel.
    fn inject(&mut self, bytes: &[u8]) {
        let view = FrameView::parse(bytes).expect("a frame");
        let source = view.ethernet.src;
        self.machine
            .handle_els(0, Carrier::Fcoe, source, &view.fc, view.data_field());
    }

    fn next_frame(&mut self) -> ElsOut {
        let sent = self.machine.poll_outbound().expect("a frame");
        self.last_ox_id = sent.fc.ox_id;
        sent
    }

    /// Asserts that the next frame equals the recorded one, except for the OX_ID of a request and the initiative bit of
    /// a reply, which has no meaning there.
    fn assert_next_frame(&mut self, bytes: &[u8]) -> ElsOut {
        let view = FrameView::parse(bytes).expect("a frame");
        let sent = self.next_frame();
        assert_eq!(sent.carrier, Carrier::Fcoe);
        assert_eq!(sent.destination, view.ethernet.dst);
        let mut recorded = view.fc;
        if recorded.r_ctl == RCtl::ElsReply {
            recorded.f_ctl.0 &= !FCtl::SEQUENCE_INITIATIVE.0;
            assert_eq!(recorded.f_ctl, profile::F_CTL_FINAL_REPLY);
        } else {
            recorded.ox_id = sent.fc.ox_id;
        }
        assert_eq!(sent.fc, recorded);
        assert_eq!(sent.payload(), view.data_field());
        sent
    }
}

fn logged_in(with: u8) -> LoginEvent {
    let kernel = kernel(with);
    LoginEvent::LoggedIn(PortLogin {
        id: kernel.id,
        port_name: kernel.port_name,
        node_name: kernel.node_name,
        data_field_bytes: 2112,
        sequential: true,
        continuous_offset: true,
    })
}

/// The recorded order: 1 sends FLOGI, 2 accepts and sends PLOGI, 1 accepts.
#[test]
fn machine_with_the_larger_name_sends_the_frames_of_the_kernel() {
    let mut two = Replaced::new(2);
    two.flogi(ElsCommand::Flogi);
    let accept = two.next_frame();
    assert_eq!((accept.carrier, accept.destination), (FLOGI, enode(1)));
    assert_eq!(accept.payload(), flogi(ElsCommand::LsAcc, 2));
    let plogi = two.assert_next_frame(&recorded!("linux_plogi"));
    two.inject(&in_exchange(plogi.fc.ox_id, &recorded!("linux_plogi_acc")));
    assert_eq!(two.machine.poll_event(), Some(logged_in(1)));
    // PRLI for FCP: the kernel gets no image pair, and keeps the port.
    two.inject(&recorded!("linux_prli"));
    let accept = two.next_frame();
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, accept.payload()).expect("an accept");
    let page = accept.pages().next().expect("a page");
    assert_eq!(
        (page.fc_type, page.response),
        (FcType::Fcp, ResponseCode::Executed)
    );
    assert_eq!((page.flags.0, page.parameters), (0, 0));
    two.inject(&recorded!("linux_rtv"));
    let accept = two.next_frame();
    let bytes = recorded!("linux_rtv_acc");
    let recorded = FrameView::parse(&bytes).expect("a frame");
    assert_eq!(accept.payload(), recorded.data_field());
    assert_eq!(two.machine.poll_outbound(), None);
}

#[test]
fn machine_with_the_smaller_name_sends_the_frames_of_the_kernel() {
    let mut one = Replaced::new(1);
    one.machine.neighbour_ready(0, &kernel(2));
    let sent = one.next_frame();
    assert_eq!((sent.carrier, sent.destination), (FLOGI, enode(2)));
    assert_eq!((sent.fc.s_id, sent.fc.d_id), (ONE, TWO));
    assert_eq!(sent.payload(), flogi(ElsCommand::Flogi, 1));
    assert_eq!(sent.fc.f_ctl, FCtl(0x29_0000));
    one.flogi(ElsCommand::LsAcc);
    let state = one.machine.ports().next().map(|port| port.state);
    assert_eq!(state, Some(PortState::PlogiWait));
    one.inject(&recorded!("linux_plogi"));
    one.assert_next_frame(&recorded!("linux_plogi_acc"));
    assert_eq!(one.machine.poll_event(), Some(logged_in(2)));
    one.inject(&recorded!("linux_adisc"));
    one.assert_next_frame(&recorded!("linux_adisc_acc"));
    assert_eq!(one.machine.poll_outbound(), None);
    let vn_port = MacAddress::vn2vn(TWO);
    assert_eq!(vn_port, MacAddress([0x0E, 0xFD, 0, 0, 0, 2]));
}
