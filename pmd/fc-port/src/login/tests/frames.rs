//! The machine under test, and the frames of a simulated peer.

use fcvi_frame::els::{
    ACCEPT, Adisc, Class3Parameters, ElsCommand, Farp, FarpAction, FarpMatch, Login, LoginFeatures,
    Logo, LsRjt, PageFlags, ProcessLogin, READ_TIMEOUT_VALUES, RejectExplanation, RejectReason,
    Rrq, ServiceParameterPage,
};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl, RX_ID_UNASSIGNED};
use fcvi_frame::{MacAddress, profile};
pub(super) use protocol_testkit::time::{MS, S};
use vi_types::HostAddress;

use crate::Neighbour;
use crate::login::{Carrier, ElsOut, FipService, LoginConfig, LoginEvent, LoginMachine};
use crate::testkit::FC_VI;

/// The machine's N_Port_ID and the peer's.
pub(super) const OURS: NPortId = NPortId::from_bytes([0, 0, 1]);
pub(super) const THEIRS: NPortId = NPortId::from_bytes([0, 0, 2]);
/// The peer's Port_Name; the machine's is one less, or LARGER_NAME.
pub(super) const THEIR_NAME: u64 = 0x2000_0000_0000_0002;
pub(super) const LARGER_NAME: u64 = 0x2000_0000_0000_0100;
pub(super) const FLOGI: Carrier = Carrier::Fip(FipService::Flogi);
pub(super) const LOGO: Carrier = Carrier::Fip(FipService::Logo);

pub(super) fn host(last: u8) -> HostAddress {
    HostAddress::from_ipv4([10, 0, 0, last])
}

pub(super) fn enode(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}

/// Returns the neighbour with this number in its N_Port_ID, the low bits of its name, and its MAC address.
pub(super) fn neighbour(number: u8) -> Neighbour {
    Neighbour {
        id: NPortId::from_bytes([0, 0, number]),
        port_name: 0x2000_0000_0000_0000 + u64::from(number),
        node_name: 0x1000_0000_0000_0000 + u64::from(number),
        enode_mac: enode(number),
        max_fcoe_bytes: 2158,
        path_fcoe_bytes: None,
        supports_fc4: false,
    }
}

pub(super) fn login_of(name: u64) -> Login {
    Login {
        credit: 10,
        features: LoginFeatures::CONTINUOUS_OFFSET,
        receive_bytes: 2112,
        total_sequences: 255,
        relative_offset: 0x1F,
        e_d_tov: 2000,
        port_name: name,
        node_name: 0x1000_0000_0000_0002,
        class3: Class3Parameters {
            service: Class3Parameters::VALID,
            receive_bytes: 1024,
            concurrent_sequences: 255,
            open_sequences: 1,
        },
    }
}

/// The machine under test and the peer's next OX_ID.
pub(super) struct Setup {
    pub(super) machine: LoginMachine,
    pub(super) now_ns: u64,
    pub(super) ox_id: u16,
    /// Frames that the machine sent.
    pub(super) sent: Vec<ElsOut>,
    pub(super) events: Vec<LoginEvent>,
}

pub(super) fn config(larger: bool) -> LoginConfig {
    let name = if larger { LARGER_NAME } else { THEIR_NAME - 1 };
    LoginConfig::new(name, 0x1000_0000_0000_0001, FC_VI, Some(host(1)))
}

impl Setup {
    /// Returns a machine that has no neighbours.
    pub(super) fn empty(config: LoginConfig) -> Self {
        let mut machine = LoginMachine::new(config, 0x10_61);
        machine.set_id(0, Some(OURS));
        Self {
            machine,
            now_ns: 0,
            ox_id: 0x100,
            sent: Vec::new(),
            events: Vec::new(),
        }
    }

    pub(super) fn new(larger: bool) -> Self {
        let mut setup = Self::empty(config(larger));
        setup.machine.neighbour_found(0, &neighbour(2));
        setup
    }

    /// Returns a machine with a login that the peer's PLOGI made.
    pub(super) fn logged_in(larger: bool) -> Self {
        let mut setup = Self::new(larger);
        setup.plogi();
        setup.drain();
        setup.clear();
        setup
    }

    /// Takes the frames and events of the machine.
    pub(super) fn drain(&mut self) {
        while let Some(out) = self.machine.poll_outbound() {
            self.sent.push(out);
        }
        while let Some(event) = self.machine.poll_event() {
            self.events.push(event);
        }
        assert_eq!(self.machine.poll_outbound(), None);
    }

    pub(super) fn clear(&mut self) {
        self.sent.clear();
        self.events.clear();
    }

    /// Returns the state of the peer's port.
    pub(super) fn state(&self) -> Option<crate::login::PortState> {
        self.machine.ports().next().map(|port| port.state)
    }

    pub(super) fn count(&self, counter: crate::login::LoginCounter) -> u64 {
        self.machine.counters().get(counter)
    }

    /// Advances the time, timer by timer.
    pub(super) fn advance(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while let Some(at_ns) = self.machine.poll_timeout().filter(|at_ns| *at_ns <= end_ns) {
            assert!(at_ns >= self.now_ns, "a timer in the past");
            self.now_ns = at_ns;
            self.machine.handle_timeout(at_ns);
            assert!(self.machine.poll_timeout().is_none_or(|next| next > at_ns));
            self.drain();
        }
        self.now_ns = end_ns;
    }

    pub(super) fn header(&self, r_ctl: RCtl, f_ctl: FCtl, ox_id: u16) -> FcHeader {
        FcHeader {
            r_ctl,
            d_id: OURS,
            cs_ctl: 0,
            s_id: THEIRS,
            fc_type: FcType::Els,
            f_ctl,
            seq_id: 0,
            df_ctl: 0,
            seq_cnt: 0,
            ox_id,
            rx_id: RX_ID_UNASSIGNED,
            parameter: 0,
        }
    }

    /// Injects a frame of the peer with this header.
    pub(super) fn inject(&mut self, carrier: Carrier, fc: &FcHeader, payload: &[u8]) {
        let source = match carrier {
            Carrier::Fip(_) => enode(2),
            Carrier::Fcoe => MacAddress::vn2vn(fc.s_id),
        };
        self.machine
            .handle_els(self.now_ns, carrier, source, fc, payload);
    }

    /// Injects a request of the peer, in a new exchange.
    pub(super) fn request(&mut self, carrier: Carrier, payload: &[u8]) {
        self.ox_id += 1;
        let header = self.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, self.ox_id);
        self.inject(carrier, &header, payload);
    }

    /// Injects the peer's reply in an exchange of the machine.
    pub(super) fn reply(&mut self, carrier: Carrier, ox_id: u16, payload: &[u8]) {
        let header = self.header(RCtl::ElsReply, profile::F_CTL_FINAL_REPLY, ox_id);
        self.inject(carrier, &header, payload);
    }

    pub(super) fn flogi(&mut self) {
        self.request(FLOGI, &login(ElsCommand::Flogi, &login_of(THEIR_NAME)));
    }

    pub(super) fn plogi(&mut self) {
        self.request(
            Carrier::Fcoe,
            &login(ElsCommand::Plogi, &login_of(THEIR_NAME)),
        );
    }

    /// Injects a LOGO of the peer, which refuses the ADISC that verifies it.
    pub(super) fn log_out(&mut self) {
        self.request(LOGO, &logo(THEIRS, THEIR_NAME));
        self.drain();
        let refusal = reject(RejectReason::LogicalBusy, RejectExplanation::None);
        self.reply(Carrier::Fcoe, self.open_exchange(), &refusal);
    }

    /// Returns the OX_ID of the last request that the machine sent.
    pub(super) fn open_exchange(&self) -> u16 {
        let requests = self.sent.iter().rev();
        let mut requests = requests.filter(|out| out.fc.r_ctl == RCtl::ElsRequest);
        requests.next().map_or(0, |out| out.fc.ox_id)
    }

    /// Injects the peer's reply to the last request that the machine sent, with the same carrier.
    pub(super) fn answer(&mut self, payload: &[u8]) {
        let mut requests = self.sent.iter().rev();
        let request = requests.find(|out| out.fc.r_ctl == RCtl::ElsRequest);
        let carrier = request.map_or(Carrier::Fcoe, |out| out.carrier);
        self.reply(carrier, self.open_exchange(), payload);
    }

    /// Injects the peer's accept of the last request, with login parameters.
    pub(super) fn accept_login(&mut self, theirs: &Login) {
        self.answer(&login(ElsCommand::LsAcc, theirs));
    }

    /// Returns the names of the sent frames.
    pub(super) fn names(&self) -> Vec<String> {
        self.sent.iter().map(name).collect()
    }
}

pub(super) fn login(command: ElsCommand, login: &Login) -> [u8; 116] {
    let mut payload = [0; 116];
    login.emit(command, &mut payload);
    payload
}

pub(super) fn logo(id: NPortId, port_name: u64) -> [u8; 16] {
    let mut payload = [0; 16];
    Logo {
        n_port_id: id,
        port_name,
    }
    .emit(&mut payload);
    payload
}

pub(super) fn reject(reason: RejectReason, explanation: RejectExplanation) -> [u8; 8] {
    let mut payload = [0; 8];
    LsRjt {
        reason,
        explanation,
    }
    .emit(&mut payload);
    payload
}

pub(super) fn adisc(id: NPortId, port_name: u64) -> [u8; 28] {
    let mut payload = [0; 28];
    Adisc {
        hard_address: NPortId::default(),
        port_name,
        node_name: 0,
        n_port_id: id,
    }
    .emit_request(&mut payload);
    payload
}

/// Returns a PRLI or PRLO with a page for each TYPE, all with the image pair bit.
pub(super) fn process(command: ElsCommand, types: &[FcType]) -> Vec<u8> {
    let mut payload = [0; 116];
    let pages = types.iter().map(|fc_type| ServiceParameterPage {
        flags: PageFlags::IMAGE_PAIR,
        parameters: 0x22,
        ..ServiceParameterPage::new(*fc_type)
    });
    let bytes = ProcessLogin::emit(command, pages, &mut payload);
    payload[..bytes].to_vec()
}

pub(super) fn rrq(s_id: NPortId) -> [u8; 12] {
    let mut payload = [0; 12];
    Rrq {
        s_id,
        ox_id: 5,
        rx_id: 6,
    }
    .emit(&mut payload);
    payload
}

pub(super) const RTV: [u8; 4] = READ_TIMEOUT_VALUES;
pub(super) const ACC: [u8; 4] = ACCEPT;

/// Returns a FARP request of the peer for a host.
pub(super) fn farp_request(wanted: HostAddress) -> Farp {
    Farp {
        match_code: FarpMatch::HOST,
        action: FarpAction::REPLY,
        requester: THEIRS,
        requester_port_name: THEIR_NAME,
        requester_host: host(2),
        responder_host: wanted,
        ..Farp::default()
    }
}

pub(super) fn farp(command: ElsCommand, farp: &Farp) -> [u8; 76] {
    let mut payload = [0; 76];
    farp.emit(command, &mut payload);
    payload
}

/// Returns a short name for a frame of the machine.
pub(super) fn name(out: &ElsOut) -> String {
    let carrier = match out.carrier {
        Carrier::Fip(_) => "FIP ",
        Carrier::Fcoe => "",
    };
    let payload = out.payload();
    let name = match (out.fc.r_ctl, ElsCommand::parse(payload)) {
        (RCtl::BaAcc, _) => "BA_ACC".to_owned(),
        (RCtl::BaRjt, _) => "BA_RJT".to_owned(),
        (_, Ok(ElsCommand::Flogi)) => "FLOGI".to_owned(),
        (_, Ok(ElsCommand::Plogi)) => "PLOGI".to_owned(),
        (_, Ok(ElsCommand::Adisc)) => "ADISC".to_owned(),
        (_, Ok(ElsCommand::Logo)) => "LOGO".to_owned(),
        (_, Ok(ElsCommand::LsAcc)) => "LS_ACC".to_owned(),
        (_, Ok(ElsCommand::FarpRequest)) => "FARP-REQ".to_owned(),
        (_, Ok(ElsCommand::FarpReply)) => "FARP-REPLY".to_owned(),
        (_, Ok(ElsCommand::LsRjt)) => {
            let refusal = LsRjt::parse(payload).expect("a valid LS_RJT");
            format!("LS_RJT {refusal}")
        }
        other => panic!("the machine sends no {other:?}"),
    };
    format!("{carrier}{name}")
}
