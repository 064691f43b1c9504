//! Link services that the network repeats or holds: a login that holds is not ended by one, and
//! a port that starts anew is logged in again all the same.

use fcvi_frame::els::{Adisc, ElsCommand, Login, RejectExplanation, RejectReason};
use fcvi_frame::fc::{NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    ACC, FLOGI, LARGER_NAME, LOGO, OURS, S, Stage, THEIR_NAME, THEIRS, config, login, login_of,
    logo, neighbour, reject,
};
use crate::login::{Carrier, LoginConfig, LoginCounter, LoginEvent, LogoutReason, PortState};

/// The peer's frame again, in its exchange.
fn again(stage: &mut Stage, carrier: Carrier, ox_id: u16, payload: &[u8]) {
    let header = stage.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, ox_id);
    stage.inject(carrier, &header, payload);
    stage.drain();
}

fn adisc_accept(id: NPortId, port_name: u64) -> [u8; 28] {
    let mut payload = [0; 28];
    Adisc {
        n_port_id: id,
        port_name,
        ..Adisc::default()
    }
    .emit_accept(&mut payload);
    payload
}

fn refusal() -> [u8; 8] {
    reject(RejectReason::LogicalBusy, RejectExplanation::None)
}

fn reasons(stage: &Stage) -> Vec<LogoutReason> {
    let reason = |event: &LoginEvent| match event {
        LoginEvent::LoggedOut { reason, .. } => Some(*reason),
        _ => None,
    };
    stage.events.iter().filter_map(reason).collect()
}

/// Logged in, and then an FLOGI came.
fn doubted(larger: bool) -> Stage {
    let mut stage = Stage::logged_in(larger);
    stage.now_ns = 5 * S;
    stage.flogi();
    stage.drain();
    assert_eq!(stage.names(), ["ADISC"]);
    let asked = stage.sent[0];
    assert_eq!(asked.carrier, Carrier::Fcoe);
    assert_eq!(asked.destination, MacAddress::vn2vn(THEIRS));
    let adisc = Adisc::parse_request(asked.payload()).expect("a question");
    assert_eq!(
        (adisc.n_port_id, adisc.port_name),
        (OURS, stage.machine.config.port_name)
    );
    stage
}

#[test]
fn an_flogi_of_a_port_that_confirms_its_login_changes_nothing() {
    let mut stage = doubted(true);
    let accept = adisc_accept(THEIRS, THEIR_NAME);
    stage.reply(Carrier::Fcoe, stage.open_exchange(), &accept);
    stage.drain();
    assert_eq!(
        (stage.names(), stage.events.len()),
        (vec!["ADISC".to_owned()], 0)
    );
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
    assert_eq!(stage.count(LoginCounter::Doubts), 1);
    assert_eq!(stage.count(LoginCounter::Repeated), 1);
    assert_eq!(stage.machine.poll_timeout(), None);
    assert_eq!(stage.machine.exchanges.open_count(), 0);
}

#[test]
fn an_flogi_of_a_port_that_started_anew_is_answered_when_it_denies_its_login() {
    for (larger, expected) in [
        (true, vec!["ADISC", "FIP LS_ACC", "PLOGI"]),
        (false, vec!["ADISC", "FIP LS_ACC"]),
    ] {
        let mut stage = doubted(larger);
        stage.reply(Carrier::Fcoe, stage.open_exchange(), &refusal());
        stage.drain();
        assert_eq!(stage.names(), expected);
        let accept = stage.sent[1];
        assert_eq!((accept.fc.ox_id, accept.fc.d_id), (stage.ox_id, THEIRS));
        assert_eq!(accept.carrier, FLOGI);
        let theirs = Login::parse(ElsCommand::LsAcc, accept.payload()).expect("an accept");
        assert_eq!(theirs.port_name, stage.machine.config.port_name);
        assert_eq!(reasons(&stage), [LogoutReason::LoggedInAgain]);
    }
}

/// An answer of another port's names is none of that login.
#[test]
fn who_confirms_another_login_denies_this_one() {
    for accept in [adisc_accept(OURS, THEIR_NAME), adisc_accept(THEIRS, 7)] {
        let mut stage = doubted(true);
        stage.reply(Carrier::Fcoe, stage.open_exchange(), &accept);
        assert_eq!(stage.state(), Some(PortState::PlogiSent));
    }
    let mut stage = doubted(true);
    stage.reply(Carrier::Fcoe, stage.open_exchange(), &ACC);
    assert_eq!(stage.count(LoginCounter::DropMalformedReply), 1);
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
}

#[test]
fn a_port_that_does_not_answer_is_asked_four_times_and_then_its_flogi_is_believed() {
    let mut stage = doubted(true);
    stage.advance(10 * S);
    assert_eq!(
        stage.names()[..6],
        ["ADISC", "ADISC", "ADISC", "ADISC", "FIP LS_ACC", "PLOGI"]
    );
    let mut ox_ids: Vec<_> = stage.sent[..4].iter().map(|out| out.fc.ox_id).collect();
    ox_ids.dedup();
    assert_eq!(ox_ids.len(), 4);
    assert_eq!(reasons(&stage), [LogoutReason::LoggedInAgain]);
}

#[test]
fn the_newest_flogi_is_answered_and_one_question_is_enough() {
    let mut stage = doubted(false);
    for _ in 0..100 {
        stage.flogi();
    }
    stage.drain();
    stage.reply(Carrier::Fcoe, stage.open_exchange(), &refusal());
    stage.drain();
    assert_eq!(stage.names(), ["ADISC", "FIP LS_ACC"]);
    assert_eq!(stage.sent[1].fc.ox_id, stage.ox_id);
}

#[test]
fn a_login_that_ends_otherwise_takes_the_question_with_it() {
    let mut stage = doubted(true);
    let asked = stage.open_exchange();
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    stage.drain();
    assert_eq!(reasons(&stage), [LogoutReason::Logo]);
    stage.reply(Carrier::Fcoe, asked, &refusal());
    assert_eq!(stage.count(LoginCounter::DropLateReply), 1);
    let mut stage = doubted(true);
    stage.machine.neighbour_gone(stage.now_ns, THEIR_NAME);
    assert_eq!(stage.machine.exchanges.open_count(), 0);
}

#[test]
fn a_logo_that_comes_again_ends_no_later_login() {
    let mut stage = Stage::logged_in(true);
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    let ox_id = stage.ox_id;
    stage.plogi();
    stage.drain();
    assert_eq!(reasons(&stage), [LogoutReason::Logo]);
    stage.clear();
    stage.now_ns = 10 * S - 1;
    again(&mut stage, LOGO, ox_id, &logo(THEIRS, THEIR_NAME));
    assert_eq!(stage.names(), ["FIP LS_ACC", "ADISC"]);
    let accept = adisc_accept(THEIRS, THEIR_NAME);
    stage.reply(Carrier::Fcoe, stage.open_exchange(), &accept);
    stage.drain();
    assert_eq!(
        (stage.state(), stage.events.len()),
        (Some(PortState::LoggedIn), 0)
    );
    // A port that says the same after it started anew is not logged in.
    again(&mut stage, LOGO, ox_id, &logo(THEIRS, THEIR_NAME));
    stage.reply(Carrier::Fcoe, stage.open_exchange(), &refusal());
    stage.drain();
    assert_eq!(reasons(&stage), [LogoutReason::Logo]);
}

#[test]
fn a_logo_in_the_same_exchange_after_r_a_tov_is_another_one() {
    let mut stage = Stage::logged_in(true);
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    let ox_id = stage.ox_id;
    stage.plogi();
    stage.now_ns = 10 * S;
    again(&mut stage, LOGO, ox_id, &logo(THEIRS, THEIR_NAME));
    assert_eq!(stage.state(), Some(PortState::LoggedOut));
    assert_eq!(stage.count(LoginCounter::Doubts), 0);
}

#[test]
fn a_plogi_that_comes_again_begins_no_login_and_changes_none() {
    let mut stage = Stage::logged_in(false);
    let (ox_id, first) = (stage.ox_id, login(ElsCommand::Plogi, &login_of(THEIR_NAME)));
    let theirs = Login {
        receive_bytes: 512,
        ..login_of(THEIR_NAME)
    };
    stage.ask(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
    stage.drain();
    stage.clear();
    stage.now_ns = S;
    again(&mut stage, Carrier::Fcoe, ox_id, &first);
    assert_eq!(
        (stage.names(), stage.events.len()),
        (vec!["LS_ACC".to_owned()], 0)
    );
    let bytes = stage
        .machine
        .login(THEIRS)
        .map(|login| login.data_field_bytes);
    assert_eq!(bytes, Some(512));

    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    stage.clear();
    again(&mut stage, Carrier::Fcoe, ox_id, &first);
    assert_eq!(stage.state(), Some(PortState::LoggedOut));
    assert_eq!(
        stage.names().last().map(String::as_str),
        Some("LS_RJT busy (no explanation)")
    );
    // Who means it asks in another exchange.
    again(&mut stage, Carrier::Fcoe, 0x7777, &first);
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
}

/// A kernel that was loaded again begins with the OX_IDs that it began with before.
#[test]
fn a_peer_that_starts_anew_with_the_same_ox_ids_is_logged_in_within_its_retry() {
    let mut stage = Stage::new(false);
    stage.flogi();
    stage.plogi();
    stage.drain();
    stage.clear();
    stage.now_ns = 3 * S;
    stage.ox_id -= 2;
    stage.flogi();
    stage.drain();
    stage.reply(Carrier::Fcoe, stage.open_exchange(), &refusal());
    stage.plogi();
    stage.drain();
    let busy = "LS_RJT busy (no explanation)";
    assert_eq!(stage.names(), ["ADISC", "FIP LS_ACC", busy]);
    stage.plogi();
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
}

#[test]
fn a_flood_of_late_requests_takes_nothing_from_others_and_does_not_grow() {
    let mut stage = Stage::logged_in(true);
    assert_eq!(stage.machine.config.port_name, LARGER_NAME);
    for _ in 0..1000 {
        stage.flogi();
        stage.drain();
        let accept = adisc_accept(THEIRS, THEIR_NAME);
        stage.reply(Carrier::Fcoe, stage.open_exchange(), &accept);
    }
    let limit = LoginConfig::new(1, 1, super::frames::host(1)).ox_ids;
    assert!(stage.sent.len() < usize::from(limit));
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
    stage.clear();
    stage.machine.neighbour_heard(stage.now_ns, &neighbour(3));
    stage.drain();
    assert_eq!(stage.names(), ["FIP FLOGI"]);
}

#[test]
fn nothing_is_believed_of_a_port_that_could_not_be_asked() {
    // For each of two neighbours there is one OX_ID.
    let mut stage = Stage::empty(LoginConfig {
        max_neighbours: 2,
        ox_ids: 3,
        ..config(true)
    });
    stage.machine.neighbour_found(0, &neighbour(2));
    stage.plogi();
    stage.drain();
    stage.clear();
    stage.flogi();
    stage.advance(19 * S);
    assert_eq!(stage.names(), ["ADISC"]);
    assert_eq!(stage.state(), Some(PortState::LoggedIn));
    assert!(stage.count(LoginCounter::NoExchange) >= 7);
    stage.advance(100 * S);
    assert_eq!(stage.names()[..4], ["ADISC"; 4]);
    assert_eq!(reasons(&stage), [LogoutReason::LoggedInAgain]);
}
