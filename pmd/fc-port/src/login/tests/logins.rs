//! Logins step by step: order of requests, negotiated sizes, retries and failures.

use fcvi_frame::els::{
    Class3Parameters, ElsCommand, Login, LsRjt, RejectExplanation, RejectReason,
};
use fcvi_frame::fc::{NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    ACC, FLOGI, LARGER_NAME, LOGO, MS, OURS, S, Setup, THEIR_NAME, THEIRS, config, enode, login,
    login_of, logo, neighbour, reject,
};
use crate::Neighbour;
use crate::login::own_request::OwnRequest;
use crate::login::{
    Carrier, LoginConfig, LoginCounter, LoginEvent, LoginFailure, LogoutReason, PortLogin,
    PortState,
};

fn theirs() -> PortLogin {
    PortLogin {
        id: THEIRS,
        port_name: THEIR_NAME,
        node_name: 0x1000_0000_0000_0002,
        data_field_bytes: 1024,
        sequential: false,
        continuous_offset: true,
    }
}

fn logged_out(reason: LogoutReason) -> LoginEvent {
    LoginEvent::LoggedOut {
        port_name: THEIR_NAME,
        id: THEIRS,
        reason,
    }
}

#[test]
fn a_beacon_starts_a_login_and_the_larger_name_sends_plogi() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    let [flogi] = setup.sent[..] else {
        panic!("one frame");
    };
    assert_eq!((flogi.carrier, flogi.destination), (FLOGI, enode(2)));
    assert_eq!((flogi.fc.s_id, flogi.fc.d_id), (OURS, THEIRS));
    assert_eq!(flogi.fc.r_ctl, RCtl::ElsRequest);
    assert_eq!(flogi.fc.f_ctl, profile::F_CTL_REQUEST);
    let payload = Login::parse(ElsCommand::Flogi, flogi.payload()).unwrap();
    assert_eq!(payload.port_name, LARGER_NAME);
    assert_eq!(
        (payload.receive_bytes, payload.class3.receive_bytes),
        (2112, 0)
    );

    setup.accept_login(&login_of(THEIR_NAME));
    setup.drain();
    let plogi = setup.sent[1];
    let vn_port = MacAddress::vn2vn(THEIRS);
    assert_eq!((plogi.carrier, plogi.destination), (Carrier::Fcoe, vn_port));
    assert_ne!(plogi.fc.ox_id, flogi.fc.ox_id);
    let payload = Login::parse(ElsCommand::Plogi, plogi.payload()).unwrap();
    assert_eq!((payload.e_d_tov, payload.relative_offset), (2000, 0x1F));
    assert!(payload.class3.is_valid() && payload.class3.is_sequential());
    assert_eq!(setup.machine.login(THEIRS), None);

    setup.accept_login(&login_of(THEIR_NAME));
    setup.drain();
    assert_eq!(setup.events, [LoginEvent::LoggedIn(theirs())]);
    assert_eq!(setup.machine.login(THEIRS), Some(&theirs()));
    assert_eq!(setup.machine.poll_timeout(), None);
    assert_eq!(setup.sent.len(), 2);
}

#[test]
fn the_smaller_name_waits_for_plogi_and_accepts_it() {
    let mut setup = Setup::new(false);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    setup.accept_login(&login_of(THEIR_NAME));
    assert_eq!(setup.state(), Some(PortState::PlogiWait));
    setup.clear();
    setup.plogi();
    setup.drain();
    let [accept] = setup.sent[..] else {
        panic!("one frame");
    };
    assert_eq!(accept.carrier, Carrier::Fcoe);
    assert_eq!(accept.destination, MacAddress::vn2vn(THEIRS));
    assert_eq!(accept.fc.r_ctl, RCtl::ElsReply);
    assert_eq!(accept.fc.f_ctl, profile::F_CTL_FINAL_REPLY);
    assert_eq!((accept.fc.ox_id, accept.fc.rx_id), (setup.ox_id, 0xFFFF));
    let payload = Login::parse(ElsCommand::LsAcc, accept.payload()).unwrap();
    assert_eq!(payload.port_name, THEIR_NAME - 1);
    assert_eq!(setup.events, [LoginEvent::LoggedIn(theirs())]);
}

/// (local size, common and class 3 sizes of the peer, FCoE bytes of the path): the negotiated size.
#[test]
fn frame_size_is_the_smallest_limit() {
    let cases = [
        ((2112, 2112, 2112, 2158), Some(2112)),
        ((1452, 2112, 2112, 2158), Some(1452)),
        ((2112, 1030, 2112, 2158), Some(1028)),
        ((2112, 2112, 1031, 2158), Some(1028)),
        ((2112, 2112, 2112, 1500), Some(1452)),
        ((2112, 256, 4095, 2158), Some(256)),
        ((2112, 255, 2112, 2158), None),
        ((2112, 2112, 0, 2158), None),
        ((2112, 2112, 2112, 301), None),
        ((2112, 2112, 2112, 302), Some(256)),
        // The local size is limited to the range of FC.
        ((100, 2112, 2112, 2158), Some(256)),
        ((u16::MAX, 4095, 4095, u16::MAX), Some(2112)),
    ];
    for ((local, common, class3, path), negotiated) in cases {
        let mut setup = Setup::empty(LoginConfig {
            data_field_bytes: local,
            ..config(false)
        });
        let peer = Neighbour {
            path_fcoe_bytes: Some(path),
            ..neighbour(2)
        };
        setup.machine.neighbour_found(0, &peer);
        let mut theirs = login_of(THEIR_NAME);
        theirs.receive_bytes = common;
        theirs.class3.receive_bytes = class3;
        setup.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
        setup.drain();
        let found = setup.machine.login(THEIRS).map(|l| l.data_field_bytes);
        assert_eq!(found, negotiated, "{local} {common} {class3} {path}");
        let refused = setup.count(LoginCounter::RefusedParameters);
        assert_eq!(refused, u64::from(negotiated.is_none()));
    }
}

#[test]
fn a_login_without_class_3_is_refused() {
    let mut setup = Setup::new(false);
    let theirs = Login {
        class3: Class3Parameters {
            service: Class3Parameters::SEQUENTIAL,
            ..login_of(THEIR_NAME).class3
        },
        ..login_of(THEIR_NAME)
    };
    setup.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
    setup.drain();
    assert_eq!(setup.names(), ["LS_RJT logical error (service options)"]);
}

#[test]
fn an_unanswered_request_is_sent_four_times_and_then_the_login_fails() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    setup.advance(9 * S);
    assert_eq!(setup.names(), ["FIP FLOGI"; 4]);
    let mut ox_ids: Vec<_> = setup.sent.iter().map(|out| out.fc.ox_id).collect();
    ox_ids.dedup();
    assert_eq!(ox_ids.len(), 4);
    let failed = LoginEvent::LoginFailed {
        port_name: THEIR_NAME,
        id: THEIRS,
        reason: LoginFailure::Timeout,
    };
    assert_eq!(setup.events, [failed]);
    assert_eq!(setup.count(LoginCounter::Retries), 3);
    // The next login begins when give_up_ns is over, and fails as well.
    setup.advance(21 * S);
    assert_eq!(setup.events, [failed; 2]);
    assert_eq!(setup.sent.len(), 8);
    assert_eq!(setup.machine.context.exchanges.open_count(), 0);
}

#[test]
fn refused_request_is_sent_again_and_the_last_refusal_is_reported() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    for refusals in 1..=4 {
        assert_eq!(setup.sent.len(), refusals);
        let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
        let ox_id = setup.open_exchange();
        setup.reply(FLOGI, ox_id, &busy);
        setup.advance(2300 * MS);
    }
    assert_eq!(setup.machine.context.exchanges.open_count(), 0);
    let refusal = LsRjt {
        reason: RejectReason::LogicalBusy,
        explanation: RejectExplanation::None,
    };
    let failed = LoginEvent::LoginFailed {
        port_name: THEIR_NAME,
        id: THEIRS,
        reason: LoginFailure::Rejected(refusal),
    };
    assert_eq!(setup.events, [failed]);
    assert_eq!(setup.count(LoginCounter::Rejected), 4);
}

#[test]
fn missing_plogi_restarts_the_login_until_it_fails() {
    let mut setup = Setup::new(false);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    for _ in 0..4 {
        assert_eq!(setup.sent.len(), 1);
        setup.accept_login(&login_of(THEIR_NAME));
        setup.clear();
        assert_eq!(setup.state(), Some(PortState::PlogiWait));
        setup.advance(4 * S + 600 * MS);
    }
    let reason = LoginFailure::Timeout;
    let (port_name, id) = (THEIR_NAME, THEIRS);
    let failed = LoginEvent::LoginFailed {
        port_name,
        id,
        reason,
    };
    assert_eq!(setup.events, [failed]);
    assert_eq!(setup.state(), Some(PortState::LoggedOut));
}

#[test]
fn login_is_retried_after_a_logo() {
    let mut setup = Setup::logged_in(true);
    setup.log_out();
    setup.drain();
    assert_eq!(setup.names(), ["ADISC", "FIP LS_ACC"]);
    assert_eq!(setup.sent[1].payload(), ACC);
    assert_eq!(setup.sent[1].carrier, LOGO);
    assert_eq!(setup.events, [logged_out(LogoutReason::Logo)]);
    setup.clear();
    setup.advance(S - 1);
    assert_eq!(setup.names(), [""; 0]);
    setup.advance(S / 8 + 1);
    assert_eq!(setup.names(), ["FIP FLOGI"]);
}

#[test]
fn events_that_were_not_taken_are_merged() {
    let mut setup = Setup::logged_in(true);
    for _ in 0..100 {
        setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
        let mut adisc = 0;
        while let Some(out) = setup.machine.poll_outbound() {
            adisc = out.fc.ox_id;
        }
        let refusal = reject(RejectReason::LogicalBusy, RejectExplanation::None);
        setup.reply(Carrier::Fcoe, adisc, &refusal);
        setup.plogi();
    }
    setup.drain();
    let expected = [
        logged_out(LogoutReason::Logo),
        LoginEvent::LoggedIn(theirs()),
    ];
    assert_eq!(setup.events, expected);
    // A login that started and ended is not reported.
    let mut setup = Setup::new(true);
    setup.plogi();
    setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
    while let Some(out) = setup.machine.poll_outbound() {
        setup.sent.push(out);
    }
    setup.answer(&reject(RejectReason::LogicalBusy, RejectExplanation::None));
    assert_eq!(setup.state(), Some(PortState::LoggedOut));
    setup.drain();
    assert_eq!(setup.events, []);
}

#[test]
fn failure_followed_by_a_login_is_not_reported() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    while setup.state() != Some(PortState::LoggedOut) {
        setup.now_ns = setup.machine.poll_timeout().expect("a timer");
        setup.machine.handle_timeout(setup.now_ns);
    }
    assert_eq!(setup.count(LoginCounter::LoginFailures), 1);
    setup.plogi();
    setup.drain();
    assert_eq!(setup.events, [LoginEvent::LoggedIn(theirs())]);
}

#[test]
fn repeated_plogi_within_r_a_tov_keeps_the_login() {
    let mut setup = Setup::logged_in(false);
    setup.now_ns = 10 * S - 1;
    setup.plogi();
    setup.drain();
    assert_eq!(
        (setup.names(), setup.events.len()),
        (vec!["LS_ACC".to_owned()], 0)
    );
    assert_eq!(setup.count(LoginCounter::Repeated), 1);
    setup.now_ns = 10 * S;
    setup.plogi();
    setup.drain();
    assert_eq!(
        (setup.names(), setup.events.len()),
        (vec!["LS_ACC".to_owned(), "ADISC".to_owned()], 0)
    );
    setup.answer(&reject(RejectReason::LogicalBusy, RejectExplanation::None));
    setup.drain();
    let again = [
        logged_out(LogoutReason::LoggedInAgain),
        LoginEvent::LoggedIn(theirs()),
    ];
    assert_eq!(setup.events, again);
}

#[test]
fn neighbour_with_another_id_logs_in_again() {
    let mut setup = Setup::logged_in(true);
    let moved = Neighbour {
        id: NPortId::from_bytes([0, 0, 9]),
        ..neighbour(2)
    };
    setup.machine.neighbour_ready(0, &moved);
    setup.drain();
    assert_eq!(setup.events, [logged_out(LogoutReason::Gone)]);
    assert_eq!(setup.names(), ["FIP FLOGI"]);
    assert_eq!(setup.sent[0].fc.d_id, moved.id);
    assert_eq!(setup.machine.ports().count(), 1);
    // Another port with the N_Port_ID of a known one replaces it.
    let other = Neighbour {
        port_name: 77,
        ..moved
    };
    setup.machine.neighbour_found(0, &other);
    let names: Vec<_> = setup
        .machine
        .ports()
        .map(|p| p.neighbour.port_name)
        .collect();
    assert_eq!(names, [77]);
}

#[test]
fn path_with_a_reduced_size_ends_the_login() {
    let mut setup = Setup::logged_in(false);
    let path = |bytes| Neighbour {
        path_fcoe_bytes: Some(bytes),
        ..neighbour(2)
    };
    // The peer accepts 1024 bytes, in frames with 46 more.
    setup.machine.neighbour_found(0, &path(1070));
    setup.drain();
    assert_eq!(setup.events, []);
    setup.machine.neighbour_found(0, &path(1069));
    setup.drain();
    assert_eq!(setup.events, [logged_out(LogoutReason::SizeReduced)]);
    assert_eq!(setup.names(), ["FIP FLOGI"]);
    setup.plogi();
    let negotiated = setup
        .machine
        .login(THEIRS)
        .map(|login| login.data_field_bytes);
    assert_eq!(negotiated, Some(1020));
}

#[test]
fn end_of_a_login_is_reported_before_the_next_one() {
    let mut setup = Setup::empty(config(false));
    setup.machine.neighbour_found(0, &neighbour(3));
    setup.machine.neighbour_found(0, &neighbour(2));
    setup.plogi();
    setup.drain();
    setup.clear();
    // The first slot becomes free, and the peer returns in it.
    setup.machine.neighbour_gone(0, neighbour(3).port_name);
    setup.machine.neighbour_gone(0, THEIR_NAME);
    setup.machine.neighbour_found(0, &neighbour(2));
    setup.plogi();
    setup.drain();
    let expected = [
        logged_out(LogoutReason::Gone),
        LoginEvent::LoggedIn(theirs()),
    ];
    assert_eq!(setup.events, expected);
}

#[test]
fn invalid_and_excess_neighbours_are_dropped() {
    let mut setup = Setup::empty(LoginConfig {
        max_neighbours: 1,
        ..config(true)
    });
    let own_name = Neighbour {
        port_name: LARGER_NAME,
        ..neighbour(9)
    };
    setup.machine.neighbour_ready(0, &own_name);
    setup.machine.neighbour_ready(0, &neighbour(1));
    setup.machine.neighbour_ready(0, &neighbour(0));
    let broadcast = Neighbour {
        id: NPortId::BROADCAST,
        ..neighbour(9)
    };
    setup.machine.neighbour_ready(0, &broadcast);
    assert_eq!(setup.count(LoginCounter::DropBadSource), 4);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.machine.neighbour_ready(0, &neighbour(3));
    assert_eq!(setup.count(LoginCounter::DropTableFull), 1);
    assert_eq!(setup.machine.ports().count(), 1);
    // A lost neighbour frees its slot once the end of its login was reported.
    setup.plogi();
    setup.drain();
    setup.machine.neighbour_gone(0, THEIR_NAME);
    setup.machine.neighbour_ready(0, &neighbour(3));
    assert_eq!(setup.count(LoginCounter::DropTableFull), 2);
    setup.drain();
    setup.machine.neighbour_ready(0, &neighbour(3));
    assert_eq!(setup.machine.ports().count(), 1);
}

#[test]
fn without_a_local_id_neighbours_and_frames_are_dropped() {
    let mut setup = Setup::logged_in(true);
    setup.plogi();
    setup.machine.set_id(0, None);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.plogi();
    setup.drain();
    assert_eq!(setup.events, [logged_out(LogoutReason::IdLost)]);
    assert_eq!(setup.sent.len(), 0);
    assert_eq!(setup.count(LoginCounter::DropNoId), 2);
    setup.machine.set_id(0, Some(OURS));
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    assert_eq!(setup.names(), ["FIP FLOGI"]);
}

#[test]
fn close_logs_out_of_all_ports_and_refuses_logins() {
    let mut setup = Setup::logged_in(true);
    setup.machine.neighbour_ready(0, &neighbour(3));
    setup.machine.neighbour_found(0, &neighbour(4));
    setup.drain();
    setup.clear();
    assert!(!setup.machine.is_closed());
    setup.machine.close(0);
    setup.drain();
    assert_eq!(setup.names(), ["FIP LOGO"]);
    assert_eq!(setup.events, [logged_out(LogoutReason::Closed)]);
    assert!(!setup.machine.is_closed());
    let ox_id = setup.open_exchange();
    setup.reply(LOGO, ox_id, &ACC);
    assert!(setup.machine.is_closed());
    setup.clear();
    setup.flogi();
    setup.plogi();
    setup.machine.neighbour_ready(0, &neighbour(4));
    setup.drain();
    let busy = "LS_RJT busy (no explanation)";
    assert_eq!(setup.names(), [format!("FIP {busy}"), busy.to_owned()]);
    assert_eq!(setup.machine.poll_timeout(), None);

    // A port that does not reply times out.
    let mut setup = Setup::logged_in(true);
    setup.machine.close(0);
    setup.drain();
    setup.advance(9 * S);
    assert_eq!(setup.names(), ["FIP LOGO"; 4]);
    assert!(setup.machine.is_closed());
    assert_eq!(setup.machine.poll_timeout(), None);
}

#[test]
fn reply_from_another_port_or_exchange_is_dropped() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_found(0, &neighbour(3));
    setup.machine.neighbour_ready(0, &neighbour(2));
    let accept = login(ElsCommand::LsAcc, &login_of(THEIR_NAME));
    // A reply before the request was sent is dropped.
    let port = setup.machine.ports.by_id(THEIRS).expect("a port");
    let OwnRequest::Unsent(guess) = port.request else {
        panic!("no request");
    };
    setup.reply(FLOGI, guess, &accept);
    assert_eq!(setup.count(LoginCounter::DropStrayReply), 1);
    setup.drain();
    assert_eq!(setup.open_exchange(), guess);
    // Another exchange of the machine, one of the FC-4 protocol, another port.
    setup.reply(FLOGI, guess + 1, &accept);
    assert_eq!(setup.count(LoginCounter::DropLateReply), 1);
    setup.reply(FLOGI, 5, &accept);
    assert!(setup.machine.owns_ox_id(guess) && !setup.machine.owns_ox_id(5));
    assert_eq!(setup.count(LoginCounter::DropStrayReply), 2);
    let mut other = setup.header(RCtl::ElsReply, profile::F_CTL_FINAL_REPLY, guess);
    other.s_id = NPortId::from_bytes([0, 0, 3]);
    let now_ns = setup.now_ns;
    setup
        .machine
        .handle_els(now_ns, FLOGI, enode(3), &other, &accept);
    assert_eq!(setup.count(LoginCounter::DropLateReply), 2);
    setup.reply(FLOGI, guess, &accept[..112]);
    assert_eq!(setup.count(LoginCounter::DropMalformedReply), 1);
    assert_eq!(setup.state(), Some(PortState::FlogiSent));
    setup.reply(FLOGI, guess, &accept);
    assert_eq!(setup.state(), Some(PortState::PlogiSent));
    setup.reply(FLOGI, guess, &accept);
    assert_eq!(setup.count(LoginCounter::DropLateReply), 3);
}

#[test]
fn request_without_a_free_ox_id_is_retried_by_a_timer() {
    // One OX_ID for each neighbour.
    let mut setup = Setup::empty(LoginConfig {
        max_neighbours: 2,
        ox_ids: 3,
        ..config(true)
    });
    for number in [2, 3] {
        setup.machine.neighbour_ready(0, &neighbour(number));
    }
    setup.drain();
    assert_eq!(setup.names(), ["FIP FLOGI"; 2]);
    setup.clear();
    // The OX_IDs are quarantined for twice R_A_TOV, longer than the first attempt.
    setup.advance(9 * S);
    assert_eq!(setup.names(), [""; 0]);
    assert_eq!(setup.count(LoginCounter::NoExchange), 6);
    assert_eq!(setup.events.len(), 2);
    setup.advance(13 * S);
    assert_eq!(setup.names(), [""; 0]);
    setup.advance(3 * S);
    assert_eq!(setup.names(), ["FIP FLOGI"; 2]);
}

#[test]
fn flapping_neighbour_leaves_ox_ids_for_the_others() {
    let mut setup = Setup::new(true);
    for _ in 0..10_000 {
        setup.flogi();
        setup.machine.neighbour_gone(0, THEIR_NAME);
        setup.machine.neighbour_found(0, &neighbour(2));
        setup.drain();
    }
    // Requests that were not sent leave no state.
    assert_eq!(setup.count(LoginCounter::NoExchange), 0);
    // 3 OX_IDs of its own share, and 960 shared ones.
    for _ in 0..1000 {
        setup.flogi();
        setup.drain();
        setup.machine.neighbour_gone(0, THEIR_NAME);
        setup.machine.neighbour_found(0, &neighbour(2));
    }
    assert_eq!(setup.count(LoginCounter::NoExchange), 1000 - 963);
    setup.flogi();
    setup.clear();
    setup.machine.neighbour_ready(0, &neighbour(3));
    setup
        .machine
        .resolve(0, super::frames::host(9))
        .expect("room");
    setup.drain();
    assert_eq!(setup.names(), ["FIP LS_ACC", "FIP FLOGI", "FARP-REQ"]);
    assert_eq!(setup.sent[1].destination, enode(3));
}
