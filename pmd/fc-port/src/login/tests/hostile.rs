//! Invalid and forged frames: counted, and without effect on the login.

use fcvi_frame::els::{ElsCommand, RejectExplanation, RejectReason};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    FLOGI, LOGO, OURS, RTV, Setup, THEIR_NAME, THEIRS, config, enode, login, login_of, logo,
    neighbour, reject,
};
use super::late::adisc_accept;
use crate::login::{Carrier, ElsOut, LoginCounter, PortState};
use protocol_testkit::rng::Rng;

/// Injects a valid LOGO with a changed header.
fn inject_logo(change: impl Fn(&mut FcHeader)) -> Setup {
    let mut setup = Setup::logged_in(true);
    let mut header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
    change(&mut header);
    let source = MacAddress::vn2vn(header.s_id);
    let payload = logo(THEIRS, THEIR_NAME);
    setup
        .machine
        .handle_els(0, Carrier::Fcoe, source, &header, &payload);
    setup
}

fn assert_dropped(setup: &mut Setup, counter: LoginCounter) {
    setup.drain();
    assert_eq!(setup.count(counter), 1, "{counter:?}");
    assert_eq!((setup.names(), setup.events.len()), (Vec::new(), 0));
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
}

#[test]
fn logo_with_an_unchanged_header_is_verified() {
    let mut setup = inject_logo(|_| {});
    setup.drain();
    assert_eq!(setup.names(), ["ADISC"]);
}

#[test]
fn invalid_link_service_header_is_dropped() {
    let changes: [fn(&mut FcHeader); 6] = [
        |h| h.fc_type = FcType::Vi,
        |h| h.df_ctl = 1,
        |h| h.f_ctl = FCtl::FIRST_SEQUENCE,
        |h| h.f_ctl = profile::F_CTL_FINAL_REPLY,
        |h| h.r_ctl = RCtl::ElsReply,
        |h| h.r_ctl = RCtl::UnsolicitedControl,
    ];
    for change in changes {
        assert_dropped(&mut inject_logo(change), LoginCounter::DropBadHeader);
    }
    let mut setup = Setup::logged_in(true);
    setup.request(Carrier::Fcoe, &[5, 0, 0]);
    assert_dropped(&mut setup, LoginCounter::DropBadHeader);
    let mut setup = Setup::logged_in(true);
    setup.request(Carrier::Fcoe, &[ElsCommand::LsAcc.raw(), 0, 0, 0]);
    assert_dropped(&mut setup, LoginCounter::DropBadHeader);
}

#[test]
fn frame_for_another_port_is_dropped() {
    for d_id in [[0, 0, 3], [0xFF; 3]] {
        let mut setup = inject_logo(|h| h.d_id = NPortId::from_bytes(d_id));
        assert_dropped(&mut setup, LoginCounter::DropNotOurs);
    }
}

#[test]
fn frame_with_an_invalid_source_id_is_dropped() {
    for s_id in [OURS, NPortId::default(), NPortId::BROADCAST] {
        let mut setup = inject_logo(|h| h.s_id = s_id);
        assert_dropped(&mut setup, LoginCounter::DropBadSource);
    }
}

#[test]
fn frame_with_another_ethernet_source_is_dropped() {
    let payload = logo(THEIRS, THEIR_NAME);
    let cases = [
        (Carrier::Fcoe, enode(2)),
        (Carrier::Fcoe, MacAddress([0x0E, 0xFC, 0, 0, 0, 2])),
        (LOGO, enode(3)),
        (LOGO, MacAddress::vn2vn(THEIRS)),
    ];
    for (carrier, source) in cases {
        let mut setup = Setup::logged_in(true);
        let header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
        setup
            .machine
            .handle_els(0, carrier, source, &header, &payload);
        assert_dropped(&mut setup, LoginCounter::DropWrongMac);
    }
}

/// The address of an unknown port cannot be compared, but a group address is never valid.
#[test]
fn frame_from_a_group_address_is_dropped() {
    let mut setup = Setup::empty(config(true));
    let header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
    let payload = login(ElsCommand::Flogi, &login_of(THEIR_NAME));
    for source in [MacAddress::ALL_VN2VN, MacAddress::BROADCAST] {
        setup
            .machine
            .handle_els(0, FLOGI, source, &header, &payload);
    }
    setup.drain();
    assert_eq!(setup.count(LoginCounter::DropBadSource), 2);
    assert_eq!(setup.sent.len(), 0);
}

#[test]
fn link_service_with_the_wrong_carrier_is_dropped() {
    let flogi = login(ElsCommand::Flogi, &login_of(THEIR_NAME));
    let cases: [(Carrier, &[u8]); 5] = [
        (Carrier::Fcoe, &flogi),
        (LOGO, &flogi),
        (FLOGI, &logo(THEIRS, THEIR_NAME)),
        (FLOGI, &login(ElsCommand::Plogi, &login_of(THEIR_NAME))),
        (LOGO, &RTV),
    ];
    for (carrier, payload) in cases {
        let mut setup = Setup::logged_in(true);
        setup.request(carrier, payload);
        assert_dropped(&mut setup, LoginCounter::DropWrongCarrier);
    }
}

#[test]
fn reply_with_another_carrier_than_its_request_is_dropped() {
    let accept = login(ElsCommand::LsAcc, &login_of(THEIR_NAME));
    // FLOGI, then PLOGI, then LOGO.
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    let mut wrong = 0;
    for (state, right) in [
        (PortState::FlogiSent, FLOGI),
        (PortState::PlogiSent, Carrier::Fcoe),
        (PortState::LogoSent, LOGO),
    ] {
        if state == PortState::LogoSent {
            setup.machine.close(0);
        }
        setup.drain();
        let ox_id = setup.open_exchange();
        for other in [FLOGI, LOGO, Carrier::Fcoe] {
            if other != right {
                setup.reply(other, ox_id, &accept);
                wrong += 1;
                assert_eq!(setup.state(), Some(state), "{other:?}");
            }
        }
        assert_eq!(setup.count(LoginCounter::DropWrongCarrier), wrong);
        setup.reply(right, ox_id, &accept);
        assert_ne!(setup.state(), Some(state));
    }
    // The ADISC that verifies a login.
    let mut setup = Setup::logged_in(true);
    setup.flogi();
    setup.drain();
    let refusal = reject(RejectReason::LogicalBusy, RejectExplanation::None);
    for other in [FLOGI, LOGO] {
        setup.reply(other, setup.open_exchange(), &refusal);
        assert_eq!(setup.state(), Some(PortState::LoggedIn));
    }
    assert_eq!(setup.count(LoginCounter::DropWrongCarrier), 2);
}

fn is_adisc(out: &ElsOut) -> bool {
    ElsCommand::parse(out.payload()) == Ok(ElsCommand::Adisc)
}

/// Every frame is answered or counted, and no table grows.
#[test]
fn random_frames_leave_login_and_tables_unchanged() {
    let seed = 0xF100D;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut setup = Setup::logged_in(true);
    let capacity = setup.machine.responder.answers.capacity();
    let commands = [
        1, 2, 3, 4, 5, 0x0E, 0x12, 0x20, 0x21, 0x52, 0x54, 0x55, 0x77,
    ];
    let lengths = [0, 3, 4, 8, 12, 16, 20, 28, 76, 84, 116, 120];
    for _ in 0..200_000 {
        setup.now_ns += rng.below(1_000_000);
        let length = lengths[rng.below(12) as usize];
        let mut payload = rng.bytes(length);
        if let Some(first) = payload.first_mut() {
            *first = commands[rng.below(13) as usize];
        }
        let mut header = setup.header(
            [RCtl::ElsRequest, RCtl::ElsReply][rng.below(2) as usize],
            [profile::F_CTL_REQUEST, profile::F_CTL_FINAL_REPLY][rng.below(2) as usize],
            rng.next_u64() as u16,
        );
        header.s_id = NPortId::from_bytes([0, 0, rng.below(5) as u8]);
        let (carrier, source) = match rng.below(3) {
            0 => (FLOGI, enode(2)),
            1 => (LOGO, enode(2)),
            _ => (Carrier::Fcoe, MacAddress::vn2vn(header.s_id)),
        };
        let total = |s: &Setup| s.machine.counters().iter().map(|(_, n)| n).sum::<u64>();
        let before = total(&setup);
        setup
            .machine
            .handle_els(setup.now_ns, carrier, source, &header, &payload);
        setup.drain();
        assert!(total(&setup) > before, "{header} {payload:?}");
        // Answers, or an ADISC that the peer accepts. A refusal is sent with a LOGO.
        let adiscs: Vec<_> = setup
            .sent
            .iter()
            .filter(|out| is_adisc(out))
            .map(|out| out.fc.ox_id)
            .collect();
        assert!(
            setup.sent.len() <= 2 && setup.machine.context.exchanges.open_count() == adiscs.len()
        );
        for ox_id in adiscs {
            setup.reply(Carrier::Fcoe, ox_id, &adisc_accept(THEIRS, THEIR_NAME));
        }
        setup.clear();
    }
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
    assert_eq!(setup.machine.ports().count(), 1);
    assert_eq!(setup.count(LoginCounter::Logouts), 0);
    assert_eq!(setup.machine.responder.answers.capacity(), capacity);
}
