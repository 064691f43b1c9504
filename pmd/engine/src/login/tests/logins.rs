//! Logins, step by step: who asks, what is agreed, what happens when nobody answers.

use fcvi_frame::els::{
    Class3Parameters, ElsCommand, Login, LsRjt, RejectExplanation, RejectReason,
};
use fcvi_frame::fc::{NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    ACC, FLOGI, LARGER_NAME, LOGO, MS, OURS, S, Stage, THEIR_NAME, THEIRS, config, enode, login,
    login_of, logo, neighbour, reject,
};
use crate::login::{
    Carrier, LoginConfig, LoginCounter, LoginEvent, LoginFailure, LogoutReason, Neighbour,
    PortLogin, PortState,
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
    let mut stage = Stage::new(true);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    let [flogi] = stage.sent[..] else {
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

    stage.accept_login(&login_of(THEIR_NAME));
    stage.drain();
    let plogi = stage.sent[1];
    let vn_port = MacAddress::vn2vn(THEIRS);
    assert_eq!((plogi.carrier, plogi.destination), (Carrier::Fcoe, vn_port));
    assert_ne!(plogi.fc.ox_id, flogi.fc.ox_id);
    let payload = Login::parse(ElsCommand::Plogi, plogi.payload()).unwrap();
    assert_eq!((payload.e_d_tov, payload.relative_offset), (2000, 0x1F));
    assert!(payload.class3.is_valid() && payload.class3.is_sequential());
    assert_eq!(stage.machine.login(THEIRS), None);

    stage.accept_login(&login_of(THEIR_NAME));
    stage.drain();
    assert_eq!(stage.events, [LoginEvent::LoggedIn(theirs())]);
    assert_eq!(stage.machine.login(THEIRS), Some(&theirs()));
    assert_eq!(stage.machine.poll_timeout(), None);
    assert_eq!(stage.sent.len(), 2);
}

#[test]
fn the_smaller_name_waits_for_plogi_and_accepts_it() {
    let mut stage = Stage::new(false);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    stage.accept_login(&login_of(THEIR_NAME));
    assert_eq!(stage.state(), Some(PortState::PlogiWait));
    stage.clear();
    stage.plogi();
    stage.drain();
    let [accept] = stage.sent[..] else {
        panic!("one frame");
    };
    assert_eq!(accept.carrier, Carrier::Fcoe);
    assert_eq!(accept.destination, MacAddress::vn2vn(THEIRS));
    assert_eq!(accept.fc.r_ctl, RCtl::ElsReply);
    assert_eq!(accept.fc.f_ctl, profile::F_CTL_FINAL_REPLY);
    assert_eq!((accept.fc.ox_id, accept.fc.rx_id), (stage.ox_id, 0xFFFF));
    let payload = Login::parse(ElsCommand::LsAcc, accept.payload()).unwrap();
    assert_eq!(payload.port_name, THEIR_NAME - 1);
    assert_eq!(stage.events, [LoginEvent::LoggedIn(theirs())]);
}

/// (ours, their common size, their class 3 size, the way's FCoE bytes): the agreed size.
#[test]
fn the_frame_size_is_what_all_allow() {
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
        // Ours is corrected to what FC allows.
        ((100, 2112, 2112, 2158), Some(256)),
        ((u16::MAX, 4095, 4095, u16::MAX), Some(2112)),
    ];
    for ((ours, common, class3, max_fcoe_bytes), agreed) in cases {
        let mut stage = Stage::empty(LoginConfig {
            data_field_bytes: ours,
            ..config(false)
        });
        let peer = Neighbour {
            max_fcoe_bytes,
            ..neighbour(2)
        };
        stage.machine.neighbour_found(0, &peer);
        let mut theirs = login_of(THEIR_NAME);
        theirs.receive_bytes = common;
        theirs.class3.receive_bytes = class3;
        stage.ask(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
        stage.drain();
        let found = stage.machine.login(THEIRS).map(|l| l.data_field_bytes);
        assert_eq!(found, agreed, "{ours} {common} {class3} {max_fcoe_bytes}");
        let refused = stage.count(LoginCounter::RefusedParameters);
        assert_eq!(refused, u64::from(agreed.is_none()));
    }
}

#[test]
fn a_login_without_class_3_is_refused() {
    let mut stage = Stage::new(false);
    let theirs = Login {
        class3: Class3Parameters {
            service: Class3Parameters::SEQUENTIAL,
            ..login_of(THEIR_NAME).class3
        },
        ..login_of(THEIR_NAME)
    };
    stage.ask(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
    stage.drain();
    assert_eq!(stage.names(), ["LS_RJT logical error (service options)"]);
}

#[test]
fn an_unanswered_request_is_sent_four_times_and_then_the_login_fails() {
    let mut stage = Stage::new(true);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    stage.advance(9 * S);
    assert_eq!(stage.names(), ["FIP FLOGI"; 4]);
    let mut ox_ids: Vec<_> = stage.sent.iter().map(|out| out.fc.ox_id).collect();
    ox_ids.dedup();
    assert_eq!(ox_ids.len(), 4);
    let failed = LoginEvent::LoginFailed {
        port_name: THEIR_NAME,
        id: THEIRS,
        reason: LoginFailure::Timeout,
    };
    assert_eq!(stage.events, [failed]);
    assert_eq!(stage.count(LoginCounter::Retries), 3);
    // The next login begins when give_up_ns is over, and fails as well.
    stage.advance(21 * S);
    assert_eq!(stage.events, [failed; 2]);
    assert_eq!(stage.sent.len(), 8);
    assert_eq!(stage.machine.exchanges.open_count(), 0);
}

#[test]
fn a_refused_request_is_sent_again_and_the_last_refusal_is_told() {
    let mut stage = Stage::new(true);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    for refusals in 1..=4 {
        assert_eq!(stage.sent.len(), refusals);
        let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
        let ox_id = stage.open_exchange();
        stage.reply(FLOGI, ox_id, &busy);
        assert_eq!(stage.machine.exchanges.open_count(), 0);
        stage.advance(2300 * MS);
    }
    let refusal = LsRjt {
        reason: RejectReason::LogicalBusy,
        explanation: RejectExplanation::None,
    };
    let failed = LoginEvent::LoginFailed {
        port_name: THEIR_NAME,
        id: THEIRS,
        reason: LoginFailure::Rejected(refusal),
    };
    assert_eq!(stage.events, [failed]);
    assert_eq!(stage.count(LoginCounter::Rejected), 4);
}

#[test]
fn who_waits_for_plogi_in_vain_begins_again_and_gives_up() {
    let mut stage = Stage::new(false);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    for _ in 0..4 {
        assert_eq!(stage.sent.len(), 1);
        stage.accept_login(&login_of(THEIR_NAME));
        stage.clear();
        assert_eq!(stage.state(), Some(PortState::PlogiWait));
        stage.advance(4 * S + 600 * MS);
    }
    let reason = LoginFailure::Timeout;
    let (port_name, id) = (THEIR_NAME, THEIRS);
    let failed = LoginEvent::LoginFailed {
        port_name,
        id,
        reason,
    };
    assert_eq!(stage.events, [failed]);
    assert_eq!(stage.state(), Some(PortState::LoggedOut));
}

#[test]
fn after_a_logo_another_login_is_tried() {
    let mut stage = Stage::logged_in(true);
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    stage.drain();
    assert_eq!(stage.names(), ["FIP LS_ACC"]);
    assert_eq!(stage.sent[0].payload(), ACC);
    assert_eq!(stage.sent[0].carrier, LOGO);
    assert_eq!(stage.events, [logged_out(LogoutReason::Logo)]);
    stage.clear();
    stage.advance(S - 1);
    assert_eq!(stage.names(), [""; 0]);
    stage.advance(S / 8 + 1);
    assert_eq!(stage.names(), ["FIP FLOGI"]);
}

#[test]
fn news_that_were_not_asked_for_are_told_as_their_outcome() {
    let mut stage = Stage::logged_in(true);
    for _ in 0..100 {
        stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
        stage.plogi();
        while stage.machine.poll_outbound().is_some() {}
    }
    stage.drain();
    let expected = [
        logged_out(LogoutReason::Logo),
        LoginEvent::LoggedIn(theirs()),
    ];
    assert_eq!(stage.events, expected);
    // A login that came and went is no news.
    let mut stage = Stage::new(true);
    stage.plogi();
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    stage.drain();
    assert_eq!(stage.events, []);
}

#[test]
fn a_failure_that_was_repaired_is_no_news() {
    let mut stage = Stage::new(true);
    stage.machine.neighbour_heard(0, &neighbour(2));
    while stage.state() != Some(PortState::LoggedOut) {
        stage.now_ns = stage.machine.poll_timeout().expect("a timer");
        stage.machine.handle_timeout(stage.now_ns);
    }
    assert_eq!(stage.count(LoginCounter::LoginFailures), 1);
    stage.plogi();
    stage.drain();
    assert_eq!(stage.events, [LoginEvent::LoggedIn(theirs())]);
}

#[test]
fn a_retried_plogi_is_answered_and_breaks_nothing_until_r_a_tov() {
    let mut stage = Stage::logged_in(false);
    stage.now_ns = 10 * S - 1;
    stage.plogi();
    stage.drain();
    assert_eq!(
        (stage.names(), stage.events.len()),
        (vec!["LS_ACC".to_owned()], 0)
    );
    assert_eq!(stage.count(LoginCounter::Repeated), 1);
    stage.now_ns = 10 * S;
    stage.plogi();
    stage.drain();
    let again = [
        logged_out(LogoutReason::LoggedInAgain),
        LoginEvent::LoggedIn(theirs()),
    ];
    assert_eq!(stage.events, again);
}

#[test]
fn a_neighbour_with_another_id_is_another_login() {
    let mut stage = Stage::logged_in(true);
    let moved = Neighbour {
        id: NPortId::from_bytes([0, 0, 9]),
        ..neighbour(2)
    };
    stage.machine.neighbour_heard(0, &moved);
    stage.drain();
    assert_eq!(stage.events, [logged_out(LogoutReason::Gone)]);
    assert_eq!(stage.names(), ["FIP FLOGI"]);
    assert_eq!(stage.sent[0].fc.d_id, moved.id);
    assert_eq!(stage.machine.ports().count(), 1);
    // Another port with the ID of one that we know: the older one is gone.
    let other = Neighbour {
        port_name: 77,
        ..moved
    };
    stage.machine.neighbour_found(0, &other);
    let names: Vec<_> = stage
        .machine
        .ports()
        .map(|p| p.neighbour.port_name)
        .collect();
    assert_eq!(names, [77]);
}

#[test]
fn a_way_that_gets_narrower_is_another_login() {
    let mut stage = Stage::logged_in(false);
    let way = |max_fcoe_bytes| Neighbour {
        max_fcoe_bytes,
        ..neighbour(2)
    };
    // The peer takes 1024 bytes, of frames with 46 more.
    stage.machine.neighbour_found(0, &way(1070));
    stage.drain();
    assert_eq!(stage.events, []);
    stage.machine.neighbour_found(0, &way(1069));
    stage.drain();
    assert_eq!(stage.events, [logged_out(LogoutReason::Narrower)]);
    assert_eq!(stage.names(), ["FIP FLOGI"]);
    stage.plogi();
    let agreed = stage
        .machine
        .login(THEIRS)
        .map(|login| login.data_field_bytes);
    assert_eq!(agreed, Some(1020));
}

#[test]
fn the_end_of_a_login_is_told_before_the_next_one() {
    let mut stage = Stage::empty(config(false));
    stage.machine.neighbour_found(0, &neighbour(3));
    stage.machine.neighbour_found(0, &neighbour(2));
    stage.plogi();
    stage.drain();
    stage.clear();
    // The first place gets free, and the peer comes back to it.
    stage.machine.neighbour_gone(0, neighbour(3).port_name);
    stage.machine.neighbour_gone(0, THEIR_NAME);
    stage.machine.neighbour_found(0, &neighbour(2));
    stage.plogi();
    stage.drain();
    let expected = [
        logged_out(LogoutReason::Gone),
        LoginEvent::LoggedIn(theirs()),
    ];
    assert_eq!(stage.events, expected);
}

#[test]
fn nobody_is_a_neighbour_of_itself_or_beyond_the_table() {
    let mut stage = Stage::empty(LoginConfig {
        max_neighbours: 1,
        ..config(true)
    });
    let own_name = Neighbour {
        port_name: LARGER_NAME,
        ..neighbour(9)
    };
    stage.machine.neighbour_heard(0, &own_name);
    stage.machine.neighbour_heard(0, &neighbour(1));
    stage.machine.neighbour_heard(0, &neighbour(0));
    let everybody = Neighbour {
        id: NPortId::BROADCAST,
        ..neighbour(9)
    };
    stage.machine.neighbour_heard(0, &everybody);
    assert_eq!(stage.count(LoginCounter::DropBadSource), 4);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.machine.neighbour_heard(0, &neighbour(3));
    assert_eq!(stage.count(LoginCounter::DropTableFull), 1);
    assert_eq!(stage.machine.ports().count(), 1);
    // One that goes makes room, at the latest when its end was told.
    stage.plogi();
    stage.drain();
    stage.machine.neighbour_gone(0, THEIR_NAME);
    stage.machine.neighbour_heard(0, &neighbour(3));
    assert_eq!(stage.count(LoginCounter::DropTableFull), 2);
    stage.drain();
    stage.machine.neighbour_heard(0, &neighbour(3));
    assert_eq!(stage.machine.ports().count(), 1);
}

#[test]
fn without_an_id_there_are_no_neighbours_and_no_frames() {
    let mut stage = Stage::logged_in(true);
    stage.plogi();
    stage.machine.set_id(0, None);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.plogi();
    stage.drain();
    assert_eq!(stage.events, [logged_out(LogoutReason::IdLost)]);
    assert_eq!(stage.sent.len(), 0);
    assert_eq!(stage.count(LoginCounter::DropNoId), 2);
    stage.machine.set_id(0, Some(OURS));
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    assert_eq!(stage.names(), ["FIP FLOGI"]);
}

#[test]
fn closing_logs_out_of_everybody_and_lets_nobody_in() {
    let mut stage = Stage::logged_in(true);
    stage.machine.neighbour_heard(0, &neighbour(3));
    stage.machine.neighbour_found(0, &neighbour(4));
    stage.drain();
    stage.clear();
    assert!(!stage.machine.is_closed());
    stage.machine.close(0);
    stage.drain();
    assert_eq!(stage.names(), ["FIP LOGO"]);
    assert_eq!(stage.events, [logged_out(LogoutReason::Closed)]);
    assert!(!stage.machine.is_closed());
    let ox_id = stage.open_exchange();
    stage.reply(LOGO, ox_id, &ACC);
    assert!(stage.machine.is_closed());
    stage.clear();
    stage.flogi();
    stage.plogi();
    stage.machine.neighbour_heard(0, &neighbour(4));
    stage.drain();
    let busy = "LS_RJT busy (no explanation)";
    assert_eq!(stage.names(), [format!("FIP {busy}"), busy.to_owned()]);
    assert_eq!(stage.machine.poll_timeout(), None);

    // Who does not answer is given up.
    let mut stage = Stage::logged_in(true);
    stage.machine.close(0);
    stage.drain();
    stage.advance(9 * S);
    assert_eq!(stage.names(), ["FIP LOGO"; 4]);
    assert!(stage.machine.is_closed());
    assert_eq!(stage.machine.poll_timeout(), None);
}

#[test]
fn a_reply_counts_only_from_the_right_port_in_the_right_exchange() {
    let mut stage = Stage::new(true);
    stage.machine.neighbour_found(0, &neighbour(3));
    stage.machine.neighbour_heard(0, &neighbour(2));
    let accept = login(ElsCommand::LsAcc, &login_of(THEIR_NAME));
    // Before the request was handed out nobody can answer it.
    let guess = stage.machine.ports[0].and_then(|port| port.ox_id);
    let guess = guess.expect("a request");
    stage.reply(FLOGI, guess, &accept);
    assert_eq!(stage.count(LoginCounter::DropStrayReply), 1);
    stage.drain();
    assert_eq!(stage.open_exchange(), guess);
    // Another exchange of ours, one of the VI engine's, another port.
    stage.reply(FLOGI, guess + 1, &accept);
    assert_eq!(stage.count(LoginCounter::DropLateReply), 1);
    stage.reply(FLOGI, 5, &accept);
    assert!(stage.machine.owns_ox_id(guess) && !stage.machine.owns_ox_id(5));
    assert_eq!(stage.count(LoginCounter::DropStrayReply), 2);
    let mut other = stage.header(RCtl::ElsReply, profile::F_CTL_FINAL_REPLY, guess);
    other.s_id = NPortId::from_bytes([0, 0, 3]);
    let now_ns = stage.now_ns;
    stage
        .machine
        .handle_els(now_ns, FLOGI, enode(3), &other, &accept);
    assert_eq!(stage.count(LoginCounter::DropLateReply), 2);
    stage.reply(FLOGI, guess, &accept[..112]);
    assert_eq!(stage.count(LoginCounter::DropMalformedReply), 1);
    assert_eq!(stage.state(), Some(PortState::FlogiSent));
    stage.reply(FLOGI, guess, &accept);
    assert_eq!(stage.state(), Some(PortState::PlogiSent));
    stage.reply(FLOGI, guess, &accept);
    assert_eq!(stage.count(LoginCounter::DropLateReply), 3);
}

#[test]
fn when_all_ox_ids_are_in_use_a_timer_asks_again() {
    // One for each neighbour.
    let mut stage = Stage::empty(LoginConfig {
        max_neighbours: 2,
        ox_ids: 3,
        ..config(true)
    });
    for number in [2, 3] {
        stage.machine.neighbour_heard(0, &neighbour(number));
    }
    stage.drain();
    assert_eq!(stage.names(), ["FIP FLOGI"; 2]);
    stage.clear();
    // Dead for twice R_A_TOV, and then the first attempt is over.
    stage.advance(9 * S);
    assert_eq!(stage.names(), [""; 0]);
    assert_eq!(stage.count(LoginCounter::NoExchange), 6);
    assert_eq!(stage.events.len(), 2);
    stage.advance(13 * S);
    assert_eq!(stage.names(), [""; 0]);
    stage.advance(3 * S);
    assert_eq!(stage.names(), ["FIP FLOGI"; 2]);
}

#[test]
fn a_neighbour_that_comes_and_goes_takes_nothing_from_the_others() {
    let mut stage = Stage::new(true);
    for _ in 0..10_000 {
        stage.flogi();
        stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
        stage.ask(Carrier::Fcoe, &super::frames::RTV);
        stage.drain();
    }
    // Requests that were not handed out in time leave no trace.
    assert_eq!(stage.count(LoginCounter::NoExchange), 0);
    // 3 OX_IDs of its own, and 960 that are nobody's.
    for _ in 0..1000 {
        stage.flogi();
        stage.drain();
        stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    }
    assert_eq!(stage.count(LoginCounter::NoExchange), 1000 - 963);
    stage.clear();
    stage.machine.neighbour_heard(0, &neighbour(3));
    stage
        .machine
        .resolve(0, super::frames::host(9))
        .expect("room");
    stage.drain();
    assert_eq!(stage.names(), ["FIP LS_ACC", "FIP FLOGI", "FARP-REQ"]);
    assert_eq!(stage.sent[1].destination, enode(3));
}
