//! Link services that the network repeats or delays: they do not end a valid login, and a port that restarts is
//! logged in again all the same.

use fcvi_frame::els::{Adisc, ElsCommand, Login, RejectExplanation, RejectReason};
use fcvi_frame::fc::{NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    ACC, FLOGI, LARGER_NAME, LOGO, OURS, S, Setup, THEIR_NAME, THEIRS, config, login, login_of,
    logo, neighbour, reject,
};
use crate::login::{Carrier, LoginConfig, LoginCounter, LoginEvent, LogoutReason, PortState};

/// Injects a frame of the peer again, in its exchange.
fn repeat(setup: &mut Setup, carrier: Carrier, ox_id: u16, payload: &[u8]) {
    let header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, ox_id);
    setup.inject(carrier, &header, payload);
    setup.drain();
}

pub(super) fn adisc_accept(id: NPortId, port_name: u64) -> [u8; 28] {
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

fn reasons(setup: &Setup) -> Vec<LogoutReason> {
    let reason = |event: &LoginEvent| match event {
        LoginEvent::LoggedOut { reason, .. } => Some(*reason),
        _ => None,
    };
    setup.events.iter().filter_map(reason).collect()
}

/// Returns a machine that verifies a login after an FLOGI.
fn verifying(larger: bool) -> Setup {
    let mut setup = Setup::logged_in(larger);
    setup.now_ns = 5 * S;
    setup.flogi();
    setup.drain();
    assert_eq!(setup.names(), ["ADISC"]);
    let probe = setup.sent[0];
    assert_eq!(probe.carrier, Carrier::Fcoe);
    assert_eq!(probe.destination, MacAddress::vn2vn(THEIRS));
    let adisc = Adisc::parse_request(probe.payload()).expect("an ADISC");
    assert_eq!(
        (adisc.n_port_id, adisc.port_name),
        (OURS, setup.machine.context.config.port_name)
    );
    setup
}

#[test]
fn flogi_of_a_port_that_confirms_its_login_has_no_effect() {
    let mut setup = verifying(true);
    let accept = adisc_accept(THEIRS, THEIR_NAME);
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &accept);
    setup.drain();
    assert_eq!(
        (setup.names(), setup.events.len()),
        (vec!["ADISC".to_owned()], 0)
    );
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
    assert_eq!(setup.count(LoginCounter::Doubts), 1);
    assert_eq!(setup.count(LoginCounter::Repeated), 1);
    assert_eq!(setup.machine.poll_timeout(), None);
    assert_eq!(setup.machine.context.exchanges.open_count(), 0);
}

#[test]
fn flogi_of_a_restarted_port_is_answered_after_it_denies_its_login() {
    for (larger, expected) in [
        (true, vec!["ADISC", "FIP LS_ACC", "PLOGI"]),
        (false, vec!["ADISC", "FIP LS_ACC"]),
    ] {
        let mut setup = verifying(larger);
        setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
        setup.drain();
        assert_eq!(setup.names(), expected);
        let accept = setup.sent[1];
        assert_eq!((accept.fc.ox_id, accept.fc.d_id), (setup.ox_id, THEIRS));
        assert_eq!(accept.carrier, FLOGI);
        let theirs = Login::parse(ElsCommand::LsAcc, accept.payload()).expect("an accept");
        assert_eq!(theirs.port_name, setup.machine.context.config.port_name);
        assert_eq!(reasons(&setup), [LogoutReason::LoggedInAgain]);
    }
}

/// A reply with other names does not confirm the login.
#[test]
fn reply_with_other_names_denies_the_login() {
    for accept in [adisc_accept(OURS, THEIR_NAME), adisc_accept(THEIRS, 7)] {
        let mut setup = verifying(true);
        setup.reply(Carrier::Fcoe, setup.open_exchange(), &accept);
        assert_eq!(setup.state(), Some(PortState::PlogiSent));
    }
    let mut setup = verifying(true);
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &ACC);
    assert_eq!(setup.count(LoginCounter::DropMalformedReply), 1);
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
}

#[test]
fn flogi_is_accepted_after_four_unanswered_probes() {
    let mut setup = verifying(true);
    setup.advance(10 * S);
    assert_eq!(
        setup.names()[..6],
        ["ADISC", "ADISC", "ADISC", "ADISC", "FIP LS_ACC", "PLOGI"]
    );
    let mut ox_ids: Vec<_> = setup.sent[..4].iter().map(|out| out.fc.ox_id).collect();
    ox_ids.dedup();
    assert_eq!(ox_ids.len(), 4);
    assert_eq!(reasons(&setup), [LogoutReason::LoggedInAgain]);
}

#[test]
fn newest_flogi_is_answered_after_a_single_probe() {
    let mut setup = verifying(false);
    for _ in 0..100 {
        setup.flogi();
    }
    setup.drain();
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
    setup.drain();
    assert_eq!(setup.names(), ["ADISC", "FIP LS_ACC"]);
    assert_eq!(setup.sent[1].fc.ox_id, setup.ox_id);
}

#[test]
fn end_of_the_login_cancels_the_verification() {
    let mut setup = verifying(true);
    setup.machine.neighbour_gone(setup.now_ns, THEIR_NAME);
    assert_eq!(setup.machine.context.exchanges.open_count(), 0);
}

/// A LOGO ends a login only if the port refuses the ADISC, and is answered then.
#[test]
fn logo_ends_the_login_of_a_port_that_denies_it() {
    let mut setup = Setup::logged_in(true);
    for _ in 0..3 {
        setup.now_ns += 100 * S;
        setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
        setup.drain();
        assert_eq!(
            (setup.names(), setup.events.len()),
            (vec!["ADISC".to_owned()], 0)
        );
        let accept = adisc_accept(THEIRS, THEIR_NAME);
        setup.reply(Carrier::Fcoe, setup.open_exchange(), &accept);
        setup.drain();
        assert_eq!(
            (setup.state(), setup.sent.len()),
            (Some(PortState::LoggedIn), 1)
        );
        setup.clear();
    }
    setup.now_ns += 100 * S;
    setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
    setup.drain();
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
    setup.drain();
    assert_eq!(setup.names(), ["ADISC", "FIP LS_ACC"]);
    assert_eq!(setup.sent[1].fc.ox_id, setup.ox_id);
    assert_eq!(reasons(&setup), [LogoutReason::Logo]);
}

#[test]
fn repeated_plogi_starts_and_changes_no_login() {
    let mut setup = Setup::logged_in(false);
    let (ox_id, first) = (setup.ox_id, login(ElsCommand::Plogi, &login_of(THEIR_NAME)));
    let theirs = Login {
        receive_bytes: 512,
        ..login_of(THEIR_NAME)
    };
    setup.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
    setup.drain();
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
    setup.drain();
    setup.clear();
    setup.now_ns = S;
    repeat(&mut setup, Carrier::Fcoe, ox_id, &first);
    assert_eq!(
        (setup.names(), setup.events.len()),
        (vec!["LS_ACC".to_owned()], 0)
    );
    let bytes = setup
        .machine
        .login(THEIRS)
        .map(|login| login.data_field_bytes);
    assert_eq!(bytes, Some(512));

    setup.log_out();
    setup.clear();
    repeat(&mut setup, Carrier::Fcoe, ox_id, &first);
    assert_eq!(setup.state(), Some(PortState::LoggedOut));
    assert_eq!(
        setup.names().last().map(String::as_str),
        Some("LS_RJT busy (no explanation)")
    );
    // A new request uses another exchange.
    repeat(&mut setup, Carrier::Fcoe, 0x7777, &first);
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
}

/// A kernel module that is loaded again uses the same OX_IDs as before.
#[test]
fn restarted_peer_with_the_same_ox_ids_logs_in_at_its_retry() {
    let mut setup = Setup::new(false);
    setup.flogi();
    setup.plogi();
    setup.drain();
    setup.clear();
    setup.now_ns = 3 * S;
    setup.ox_id -= 2;
    setup.flogi();
    setup.drain();
    setup.reply(Carrier::Fcoe, setup.open_exchange(), &refusal());
    setup.plogi();
    setup.drain();
    let busy = "LS_RJT busy (no explanation)";
    assert_eq!(setup.names(), ["ADISC", "FIP LS_ACC", busy]);
    setup.plogi();
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
}

#[test]
fn flood_of_late_requests_leaves_ox_ids_for_others() {
    let mut setup = Setup::logged_in(true);
    assert_eq!(setup.machine.context.config.port_name, LARGER_NAME);
    for _ in 0..1000 {
        setup.flogi();
        setup.drain();
        let accept = adisc_accept(THEIRS, THEIR_NAME);
        setup.reply(Carrier::Fcoe, setup.open_exchange(), &accept);
    }
    let limit = config(true).ox_ids;
    assert!(setup.sent.len() < usize::from(limit));
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
    setup.clear();
    setup.machine.neighbour_ready(setup.now_ns, &neighbour(3));
    setup.drain();
    assert_eq!(setup.names(), ["FIP FLOGI"]);
}

#[test]
fn login_is_kept_while_no_probe_can_be_sent() {
    // One OX_ID for each of two neighbours.
    let mut setup = Setup::empty(LoginConfig {
        max_neighbours: 2,
        ox_ids: 3,
        ..config(true)
    });
    setup.machine.neighbour_found(0, &neighbour(2));
    setup.plogi();
    setup.drain();
    setup.clear();
    setup.flogi();
    setup.advance(19 * S);
    assert_eq!(setup.names(), ["ADISC"]);
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
    assert!(setup.count(LoginCounter::NoExchange) >= 7);
    setup.advance(100 * S);
    assert_eq!(setup.names()[..4], ["ADISC"; 4]);
    assert_eq!(reasons(&setup), [LogoutReason::LoggedInAgain]);
}
