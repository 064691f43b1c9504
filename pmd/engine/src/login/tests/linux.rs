//! A conversation of two Linux 6.1 kernels, with one of them replaced by the machine: what it
//! says is what the kernel said.

use fcvi_frame::els::{ElsCommand, ProcessLogin, ResponseCode};
use fcvi_frame::fc::{FCtl, FcType, NPortId, RCtl};
use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::{MacAddress, profile};

use super::frames::{FLOGI, S, enode, host};
use crate::login::{
    Carrier, ElsOut, LoginConfig, LoginEvent, LoginMachine, Neighbour, PortLogin, PortState,
};

const ONE: NPortId = NPortId::from_bytes([0, 0, 1]);
const TWO: NPortId = NPortId::from_bytes([0, 0, 2]);

macro_rules! recorded {
    ($name:literal) => {
        from_hex(include_str!(concat!(
            "../../../../../fcvi-frame/testdata/",
            $name,
            ".hex"
        )))
    };
}

/// Pairs of digits; `#` begins a comment.
fn from_hex(text: &str) -> Vec<u8> {
    let lines = text.lines().flat_map(|line| line.split('#').take(1));
    let pairs = lines.flat_map(str::split_ascii_whitespace);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("a byte"))
        .collect()
}

/// The frame as the kernel would have sent it in the exchange with this OX_ID.
fn in_exchange(ox_id: u16, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[44..46].copy_from_slice(&ox_id.to_be_bytes());
    let frame_bytes = bytes.len();
    seal(&mut bytes, frame_bytes, Eof::T).expect("a legal length");
    bytes
}

/// FLOGI and its accept as the kernels send them in FIP.
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
        speaks_fc_vi: false,
    }
}

/// The machine in the place of a kernel.
struct Replaced {
    machine: LoginMachine,
    other: u8,
    /// Of the last request that it sent.
    said_ox_id: u16,
}

impl Replaced {
    fn new(number: u8) -> Self {
        let me = kernel(number);
        let other = 3 - number;
        let mut config = LoginConfig::new(me.port_name, me.node_name, host(number));
        config.r_a_tov_ns = 4 * S;
        let mut machine = LoginMachine::new(config, 7);
        machine.set_id(0, Some(me.id));
        machine.neighbour_found(0, &kernel(other));
        Self {
            machine,
            other,
            said_ox_id: 0,
        }
    }

    /// The other kernel's FLOGI, or its accept of ours.
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
            ox_id: self.said_ox_id,
            s_id: other,
            d_id: me,
            ..recorded
        };
        let payload = flogi(command, self.other);
        self.machine
            .handle_els(0, FLOGI, enode(self.other), &header, &payload);
    }

    /// A recorded FCoE frame of the other kernel.
    fn hear(&mut self, bytes: &[u8]) {
        let view = FrameView::parse(bytes).expect("a frame");
        let source = view.ethernet.src;
        self.machine
            .handle_els(0, Carrier::Fcoe, source, &view.fc, view.data_field());
    }

    fn says(&mut self) -> ElsOut {
        let said = self.machine.poll_outbound().expect("a frame");
        self.said_ox_id = said.fc.ox_id;
        said
    }

    /// The next frame is, but for the OX_ID of a request and the initiative bit of a reply, which
    /// means nothing there, what the kernel sent.
    fn says_as_recorded(&mut self, bytes: &[u8]) -> ElsOut {
        let view = FrameView::parse(bytes).expect("a frame");
        let said = self.says();
        assert_eq!(said.carrier, Carrier::Fcoe);
        assert_eq!(said.destination, view.ethernet.dst);
        let mut recorded = view.fc;
        if recorded.r_ctl == RCtl::ElsReply {
            recorded.f_ctl.0 &= !FCtl::SEQUENCE_INITIATIVE.0;
            assert_eq!(recorded.f_ctl, profile::F_CTL_FINAL_REPLY);
        } else {
            recorded.ox_id = said.fc.ox_id;
        }
        assert_eq!(said.fc, recorded);
        assert_eq!(said.payload(), view.data_field());
        said
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

/// The recorded order: 1 says FLOGI, 2 accepts and says PLOGI, 1 accepts.
#[test]
fn in_the_place_of_the_larger_name() {
    let mut two = Replaced::new(2);
    two.flogi(ElsCommand::Flogi);
    let accept = two.says();
    assert_eq!((accept.carrier, accept.destination), (FLOGI, enode(1)));
    assert_eq!(accept.payload(), flogi(ElsCommand::LsAcc, 2));
    let plogi = two.says_as_recorded(&recorded!("linux_plogi"));
    two.hear(&in_exchange(plogi.fc.ox_id, &recorded!("linux_plogi_acc")));
    assert_eq!(two.machine.poll_event(), Some(logged_in(1)));
    // PRLI for FCP: the kernel is given no image pair, and keeps the port.
    two.hear(&recorded!("linux_prli"));
    let accept = two.says();
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, accept.payload()).expect("an accept");
    let page = accept.pages().next().expect("a page");
    assert_eq!(
        (page.fc_type, page.response),
        (FcType::Fcp, ResponseCode::Executed)
    );
    assert_eq!((page.flags.0, page.parameters), (0, 0));
    two.hear(&recorded!("linux_rtv"));
    let accept = two.says();
    let bytes = recorded!("linux_rtv_acc");
    let recorded = FrameView::parse(&bytes).expect("a frame");
    assert_eq!(accept.payload(), recorded.data_field());
    assert_eq!(two.machine.poll_outbound(), None);
}

#[test]
fn in_the_place_of_the_smaller_name() {
    let mut one = Replaced::new(1);
    one.machine.neighbour_heard(0, &kernel(2));
    let said = one.says();
    assert_eq!((said.carrier, said.destination), (FLOGI, enode(2)));
    assert_eq!((said.fc.s_id, said.fc.d_id), (ONE, TWO));
    assert_eq!(said.payload(), flogi(ElsCommand::Flogi, 1));
    assert_eq!(said.fc.f_ctl, FCtl(0x29_0000));
    one.flogi(ElsCommand::LsAcc);
    let waiting = one.machine.ports().next().map(|port| port.state);
    assert_eq!(waiting, Some(PortState::PlogiWait));
    one.hear(&recorded!("linux_plogi"));
    one.says_as_recorded(&recorded!("linux_plogi_acc"));
    assert_eq!(one.machine.poll_event(), Some(logged_in(2)));
    one.hear(&recorded!("linux_adisc"));
    one.says_as_recorded(&recorded!("linux_adisc_acc"));
    assert_eq!(one.machine.poll_outbound(), None);
    let vn_port = MacAddress::vn2vn(TWO);
    assert_eq!(vn_port, MacAddress([0x0E, 0xFD, 0, 0, 0, 2]));
}
