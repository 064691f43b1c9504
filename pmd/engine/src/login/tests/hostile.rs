//! Frames that are not what they say: counted, and without effect on the login.

use fcvi_frame::els::{ElsCommand, RejectExplanation, RejectReason};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    FLOGI, LOGO, OURS, RTV, Stage, THEIR_NAME, THEIRS, config, enode, login, login_of, logo,
    neighbour, reject,
};
use crate::login::{Carrier, LoginCounter, PortState};
use crate::testkit::rng::Rng;

/// A LOGO that would work, with its header changed.
fn lie(change: impl Fn(&mut FcHeader)) -> Stage {
    let mut stage = Stage::logged_in(true);
    let mut header = stage.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
    change(&mut header);
    let source = MacAddress::vn2vn(header.s_id);
    let payload = logo(THEIRS, THEIR_NAME);
    stage
        .machine
        .handle_els(0, Carrier::Fcoe, source, &header, &payload);
    stage
}

fn dropped_as(stage: &mut Stage, counter: LoginCounter) {
    stage.drain();
    assert_eq!(stage.count(counter), 1, "{counter:?}");
    assert_eq!((stage.names(), stage.events.len()), (Vec::new(), 0));
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
}

#[test]
fn the_unchanged_frame_works() {
    assert_eq!(lie(|_| {}).state(), Some(PortState::LoggedOut));
}

#[test]
fn a_header_that_no_link_service_has_is_dropped() {
    let changes: [fn(&mut FcHeader); 6] = [
        |h| h.fc_type = FcType::Vi,
        |h| h.df_ctl = 1,
        |h| h.f_ctl = FCtl::FIRST_SEQUENCE,
        |h| h.f_ctl = profile::F_CTL_FINAL_REPLY,
        |h| h.r_ctl = RCtl::ElsReply,
        |h| h.r_ctl = RCtl::UnsolicitedControl,
    ];
    for change in changes {
        dropped_as(&mut lie(change), LoginCounter::DropBadHeader);
    }
    let mut stage = Stage::logged_in(true);
    stage.ask(Carrier::Fcoe, &[5, 0, 0]);
    dropped_as(&mut stage, LoginCounter::DropBadHeader);
    let mut stage = Stage::logged_in(true);
    stage.ask(Carrier::Fcoe, &[ElsCommand::LsAcc.raw(), 0, 0, 0]);
    dropped_as(&mut stage, LoginCounter::DropBadHeader);
}

#[test]
fn a_frame_for_others_is_dropped() {
    for d_id in [[0, 0, 3], [0xFF; 3]] {
        let mut stage = lie(|h| h.d_id = NPortId::from_bytes(d_id));
        dropped_as(&mut stage, LoginCounter::DropNotOurs);
    }
}

#[test]
fn a_frame_from_us_or_from_nobody_is_dropped() {
    for s_id in [OURS, NPortId::default(), NPortId::BROADCAST] {
        let mut stage = lie(|h| h.s_id = s_id);
        dropped_as(&mut stage, LoginCounter::DropBadSource);
    }
}

#[test]
fn the_ethernet_source_must_be_the_senders() {
    let payload = logo(THEIRS, THEIR_NAME);
    let cases = [
        (Carrier::Fcoe, enode(2)),
        (Carrier::Fcoe, MacAddress([0x0E, 0xFC, 0, 0, 0, 2])),
        (LOGO, enode(3)),
        (LOGO, MacAddress::vn2vn(THEIRS)),
    ];
    for (carrier, source) in cases {
        let mut stage = Stage::logged_in(true);
        let header = stage.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
        stage
            .machine
            .handle_els(0, carrier, source, &header, &payload);
        dropped_as(&mut stage, LoginCounter::DropWrongMac);
    }
}

/// A stranger's address is not known; but that of a group is nobody's.
#[test]
fn a_group_is_not_answered() {
    let mut stage = Stage::empty(config(true));
    let header = stage.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
    let payload = login(ElsCommand::Flogi, &login_of(THEIR_NAME));
    for source in [MacAddress::ALL_VN2VN, MacAddress::BROADCAST] {
        stage
            .machine
            .handle_els(0, FLOGI, source, &header, &payload);
    }
    stage.drain();
    assert_eq!(stage.count(LoginCounter::DropBadSource), 2);
    assert_eq!(stage.sent.len(), 0);
}

#[test]
fn fip_and_fcoe_carry_what_belongs_to_them() {
    let flogi = login(ElsCommand::Flogi, &login_of(THEIR_NAME));
    let cases: [(Carrier, &[u8]); 5] = [
        (Carrier::Fcoe, &flogi),
        (LOGO, &flogi),
        (FLOGI, &logo(THEIRS, THEIR_NAME)),
        (FLOGI, &login(ElsCommand::Plogi, &login_of(THEIR_NAME))),
        (LOGO, &RTV),
    ];
    for (carrier, payload) in cases {
        let mut stage = Stage::logged_in(true);
        stage.ask(carrier, payload);
        dropped_as(&mut stage, LoginCounter::DropWrongCarrier);
    }
}

#[test]
fn a_reply_comes_in_what_its_request_went_in() {
    let accept = login(ElsCommand::LsAcc, &login_of(THEIR_NAME));
    // FLOGI, then PLOGI, then LOGO.
    let mut stage = Stage::new(true);
    stage.machine.neighbour_heard(0, &neighbour(2));
    let mut wrong = 0;
    for (state, right) in [
        (PortState::FlogiSent, FLOGI),
        (PortState::PlogiSent, Carrier::Fcoe),
        (PortState::LogoSent, LOGO),
    ] {
        if state == PortState::LogoSent {
            stage.machine.close(0);
        }
        stage.drain();
        let ox_id = stage.open_exchange();
        for other in [FLOGI, LOGO, Carrier::Fcoe] {
            if other != right {
                stage.reply(other, ox_id, &accept);
                wrong += 1;
                assert_eq!(stage.state(), Some(state), "{other:?}");
            }
        }
        assert_eq!(stage.count(LoginCounter::DropWrongCarrier), wrong);
        stage.reply(right, ox_id, &accept);
        assert_ne!(stage.state(), Some(state));
    }
    // The question whether a port is logged in.
    let mut stage = Stage::logged_in(true);
    stage.flogi();
    stage.drain();
    let refusal = reject(RejectReason::LogicalBusy, RejectExplanation::None);
    for other in [FLOGI, LOGO] {
        stage.reply(other, stage.open_exchange(), &refusal);
        assert_eq!(stage.state(), Some(PortState::LoggedIn));
    }
    assert_eq!(stage.count(LoginCounter::DropWrongCarrier), 2);
}

/// Every frame is answered, or counted, and no table grows.
#[test]
fn a_flood_of_nonsense_changes_nothing_that_lasts() {
    let seed = 0xF100D;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut stage = Stage::logged_in(true);
    let room = stage.machine.answers.capacity();
    let commands = [
        1, 2, 3, 4, 5, 0x0E, 0x12, 0x20, 0x21, 0x52, 0x54, 0x55, 0x77,
    ];
    let lengths = [0, 3, 4, 8, 12, 16, 20, 28, 76, 84, 116, 120];
    for _ in 0..200_000 {
        stage.now_ns += rng.below(1_000_000);
        let length = lengths[rng.below(12) as usize];
        let mut payload = rng.bytes(length);
        if let Some(first) = payload.first_mut() {
            *first = commands[rng.below(13) as usize];
        }
        let mut header = stage.header(
            [RCtl::ElsRequest, RCtl::ElsReply][rng.below(2) as usize],
            [profile::F_CTL_REQUEST, profile::F_CTL_FINAL_REPLY][rng.below(2) as usize],
            rng.next() as u16,
        );
        header.s_id = NPortId::from_bytes([0, 0, rng.below(5) as u8]);
        let (carrier, source) = match rng.below(3) {
            0 => (FLOGI, enode(2)),
            1 => (LOGO, enode(2)),
            _ => (Carrier::Fcoe, MacAddress::vn2vn(header.s_id)),
        };
        let total = |s: &Stage| s.machine.counters().iter().map(|(_, n)| n).sum::<u64>();
        let before = total(&stage);
        stage
            .machine
            .handle_els(stage.now_ns, carrier, source, &header, &payload);
        stage.drain();
        assert!(total(&stage) > before, "{header} {payload:?}");
        assert!(stage.sent.len() <= 1 && stage.machine.exchanges.open_count() == 0);
        stage.clear();
    }
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
    assert_eq!(stage.machine.ports().count(), 1);
    assert_eq!(stage.count(LoginCounter::Logouts), 0);
    assert_eq!(stage.machine.answers.capacity(), room);
}
