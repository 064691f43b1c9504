//! Frames that another station forges in the name of the peer. It knows names and addresses, which are sent to all, but
//! not the frames between the machine and the peer: no OX_ID of theirs.

use fcvi_frame::els::{ElsCommand, Login, RejectExplanation, RejectReason};
use fcvi_frame::fc::{FCtl, FcType, RCtl};
use fcvi_frame::{MacAddress, profile};
use protocol_testkit::rng::Rng;

use super::frames::{
    FLOGI, LOGO, MS, S, Setup, THEIR_NAME, THEIRS, adisc, enode, login, login_of, logo, neighbour,
    reject,
};
use super::late::adisc_accept;
use crate::login::{Carrier, LoginCounter, LoginEvent, PortState};

fn refusal() -> [u8; 8] {
    reject(RejectReason::LogicalBusy, RejectExplanation::None)
}

/// A PLOGI with other parameters than those of the login.
fn smaller_plogi() -> [u8; 116] {
    let theirs = Login {
        receive_bytes: 512,
        ..login_of(THEIR_NAME)
    };
    login(ElsCommand::Plogi, &theirs)
}

/// Requests that end a login if they are believed.
fn requests() -> [(Carrier, Vec<u8>); 4] {
    [
        (LOGO, logo(THEIRS, THEIR_NAME).to_vec()),
        (Carrier::Fcoe, logo(THEIRS, THEIR_NAME).to_vec()),
        (
            FLOGI,
            login(ElsCommand::Flogi, &login_of(THEIR_NAME)).to_vec(),
        ),
        (Carrier::Fcoe, smaller_plogi().to_vec()),
    ]
}

/// Answers each ADISC as the peer does that is logged in. Returns the number of ADISCs.
fn confirm(setup: &mut Setup) -> usize {
    setup.drain();
    let is_adisc = |name: &&String| *name == "ADISC";
    let adiscs = setup.names().iter().filter(is_adisc).count();
    let accept = adisc_accept(THEIRS, THEIR_NAME);
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &accept);
    setup.drain();
    adiscs
}

#[test]
fn forged_requests_of_a_logged_in_port_do_not_end_its_login() {
    for (carrier, request) in requests() {
        let mut setup = Setup::logged_in(true);
        setup.now_ns = 100 * S;
        setup.request(carrier, &request);
        assert_eq!(confirm(&mut setup), 1, "{request:?}");
        assert_eq!(
            (setup.state(), setup.events.len()),
            (Some(PortState::LoggedIn), 0)
        );
        assert_eq!(setup.names(), ["ADISC"], "not answered");
        assert_eq!(setup.count(LoginCounter::Repeated), 1);
    }
}

/// One exchange, so that the new login is delayed by a round trip only.
#[test]
fn port_that_restarted_is_logged_in_again_after_one_adisc() {
    for (carrier, request) in requests() {
        let mut setup = Setup::logged_in(true);
        setup.now_ns = 100 * S;
        setup.request(carrier, &request);
        setup.drain();
        let login = setup.machine.login(THEIRS).copied();
        setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
        assert_ne!(setup.machine.login(THEIRS).copied(), login);
        setup.drain();
        let accepts = setup
            .names()
            .into_iter()
            .filter(|name| name.contains("LS_ACC"));
        assert_eq!(accepts.count(), 1);
        assert!(matches!(setup.events[0], LoginEvent::LoggedOut { .. }));
    }
}

#[test]
fn port_that_is_gone_is_logged_out_after_four_adiscs() {
    let mut setup = Setup::logged_in(true);
    setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
    setup.drain();
    setup.advance(2_300 * MS);
    assert_eq!(
        setup.names(),
        ["ADISC", "ADISC", "ADISC", "ADISC", "FIP LS_ACC"]
    );
    assert_eq!(setup.state(), Some(PortState::LoggedOut));
}

/// A flood starts one verification a second, and each request is verified all the same.
#[test]
fn verifications_are_limited_and_delayed_but_not_dropped() {
    let mut setup = Setup::logged_in(true);
    let mut adiscs = 0;
    for _ in 0..10_000 {
        setup.advance(MS);
        setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
        adiscs += confirm(&mut setup);
        setup.clear();
    }
    assert_eq!(adiscs, 10);
    assert_eq!(setup.count(LoginCounter::Logouts), 0);
    assert_eq!(setup.count(LoginCounter::NoExchange), 0);
    // The peer restarts: the next verification finds it.
    setup.flogi();
    let next_ns = setup.machine.poll_timeout().expect("a verification");
    assert!(next_ns <= setup.now_ns + S);
    setup.advance(next_ns - setup.now_ns);
    for _ in 0..4 {
        assert_eq!(setup.state(), Some(PortState::LoggedIn));
        setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
        setup.drain();
    }
    assert_eq!(
        setup.names(),
        ["ADISC", "ADISC", "ADISC", "ADISC", "FIP LS_ACC", "PLOGI"]
    );
}

/// Replies with tried OX_IDs: the login stays although one of them hits, as the peer accepts the next ADISC.
#[test]
fn refusals_with_tried_ox_ids_do_not_end_a_login() {
    let seed = 0x6E55;
    println!("seed {seed:#x}");
    let mut rng = Rng::new(seed);
    let mut setup = Setup::logged_in(true);
    let mut hits = 0;
    for _ in 0..2_000 {
        setup.advance(2 * S);
        setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
        setup.drain();
        for _ in 0..20 {
            let before = setup.open_exchange();
            let ox_id = 0xF800 + rng.below(2047) as u16;
            setup.reply(Carrier::Fcoe, ox_id, &refusal());
            setup.drain();
            hits += u32::from(setup.open_exchange() != before);
        }
        confirm(&mut setup);
        setup.clear();
        assert_eq!(setup.state(), Some(PortState::LoggedIn));
    }
    println!("{hits} OX_IDs hit");
    assert!(hits > 0);
    assert_eq!(setup.count(LoginCounter::Logouts), 0);
}

/// Requests with wrong names or identifiers, and aborts, are answered to the peer, and end nothing.
#[test]
fn forged_requests_with_wrong_contents_do_not_end_a_login() {
    let mut setup = Setup::logged_in(true);
    setup.request(Carrier::Fcoe, &adisc(THEIRS, 7));
    setup.request(Carrier::Fcoe, &adisc(super::frames::OURS, THEIR_NAME));
    setup.request(LOGO, &logo(THEIRS, 7));
    setup.request(FLOGI, &login(ElsCommand::Flogi, &login_of(7)));
    setup.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &login_of(7)));
    let responder = FCtl::END_SEQUENCE.union(FCtl::EXCHANGE_RESPONDER);
    for ox_id in 0xF800..0xFFFF {
        let mut header = setup.header(RCtl::Abts, responder, ox_id);
        header.fc_type = FcType::Bls;
        let source = MacAddress::vn2vn(THEIRS);
        setup.machine.handle_bls(0, source, &header, &[]);
        setup.drain();
    }
    let is_answer = |name: &String| name.contains("LS_RJT") || name == "BA_RJT";
    assert!(setup.names().iter().all(is_answer));
    assert_eq!(
        (setup.state(), setup.events.len()),
        (Some(PortState::LoggedIn), 0)
    );
}

#[test]
fn forged_logo_during_a_login_does_not_delay_it() {
    for larger in [true, false] {
        let mut setup = Setup::new(larger);
        setup.machine.neighbour_ready(0, &neighbour(2));
        setup.drain();
        setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
        setup.accept_login(&login_of(THEIR_NAME));
        setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
        setup.drain();
        if larger {
            setup.accept_login(&login_of(THEIR_NAME));
        } else {
            setup.plogi();
        }
        assert_eq!(setup.state(), Some(PortState::LoggedIn));
    }
}

/// A forged refusal that hits the OX_ID arrives before the peer's accept.
#[test]
fn forged_refusal_does_not_end_the_exchange_of_a_login() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    for state in [PortState::FlogiSent, PortState::PlogiSent] {
        setup.drain();
        assert_eq!(setup.state(), Some(state));
        setup.answer(&refusal());
        setup.accept_login(&login_of(THEIR_NAME));
    }
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
    assert_eq!(setup.count(LoginCounter::Rejected), 2);
}

/// Replies to the ADISC from other addresses, or in other frames, are dropped and counted.
#[test]
fn refusal_from_another_address_is_dropped() {
    let mut setup = Setup::logged_in(true);
    setup.machine.neighbour_found(0, &neighbour(3));
    setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
    setup.drain();
    let mut header = setup.header(
        RCtl::ElsReply,
        profile::F_CTL_FINAL_REPLY,
        setup.open_exchange(),
    );
    setup
        .machine
        .handle_els(0, Carrier::Fcoe, enode(2), &header, &refusal());
    header.s_id = neighbour(3).id;
    let source = MacAddress::vn2vn(header.s_id);
    setup
        .machine
        .handle_els(0, Carrier::Fcoe, source, &header, &refusal());
    assert_eq!(setup.count(LoginCounter::DropWrongMac), 1);
    assert_eq!(setup.count(LoginCounter::DropLateReply), 1);
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
}

/// An ADISC to the address of the login, as it is when discovery found another port with its name.
#[test]
fn doubt_of_discovery_ends_only_a_login_that_is_not_confirmed() {
    let mut setup = Setup::logged_in(true);
    setup.machine.neighbour_doubted(0, THEIR_NAME);
    assert_eq!(confirm(&mut setup), 1);
    assert_eq!(setup.sent[0].destination, MacAddress::vn2vn(THEIRS));
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
    setup.now_ns = 100 * S;
    setup.machine.neighbour_doubted(setup.now_ns, THEIR_NAME);
    setup.drain();
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
    setup.drain();
    let reason = crate::login::LogoutReason::NotConfirmed;
    let (port_name, id) = (THEIR_NAME, THEIRS);
    assert_eq!(
        setup.events,
        [LoginEvent::LoggedOut {
            port_name,
            id,
            reason
        }]
    );
    // It is logged in with again unless discovery removes it.
    setup.clear();
    setup.advance(S + S / 8);
    assert_eq!(setup.names(), ["FIP FLOGI"]);
}
