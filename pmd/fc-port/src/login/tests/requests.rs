//! Requests of ports with and without a login, and their replies.

use fcvi_frame::els::{
    Adisc, ElsCommand, Logo, LsRjt, PageFlags, ProcessLogin, RejectExplanation, RejectReason,
    ResponseCode, RtvAccept,
};
use fcvi_frame::fc::{FcType, NPortId, RCtl};
use fcvi_frame::{MacAddress, profile};

use super::frames::{
    ACC, FLOGI, LARGER_NAME, LOGO, OURS, RTV, S, Setup, THEIR_NAME, THEIRS, adisc, config, enode,
    login, login_of, logo, neighbour, process, rrq,
};
use crate::login::{Carrier, LoginConfig, LoginCounter, PortState};
use crate::testkit::FCP_INITIATOR;

/// Returns the only reply to this request of a logged-in port.
fn reply_to(payload: &[u8]) -> Vec<u8> {
    let mut setup = Setup::logged_in(true);
    setup.request(Carrier::Fcoe, payload);
    setup.drain();
    assert_eq!((setup.sent.len(), setup.events.len()), (1, 0));
    let out = setup.sent[0];
    assert_eq!(out.destination, MacAddress::vn2vn(THEIRS));
    assert_eq!(out.fc.ox_id, setup.ox_id);
    assert_eq!(setup.count(LoginCounter::Answers), 2);
    out.payload().to_vec()
}

fn refusal(payload: &[u8]) -> (RejectReason, RejectExplanation) {
    let LsRjt {
        reason,
        explanation,
    } = LsRjt::parse(&reply_to(payload)).expect("a refusal");
    (reason, explanation)
}

#[test]
fn adisc_is_answered_with_our_names() {
    let accept = reply_to(&adisc(THEIRS, THEIR_NAME));
    let expected = Adisc {
        hard_address: NPortId::default(),
        port_name: LARGER_NAME,
        node_name: 0x1000_0000_0000_0001,
        n_port_id: OURS,
    };
    assert_eq!(Adisc::parse_accept(&accept), Ok(expected));
    let wrong = RejectReason::LogicalError;
    assert_eq!(
        refusal(&adisc(OURS, THEIR_NAME)),
        (wrong, RejectExplanation::InvalidNPortId)
    );
    assert_eq!(
        refusal(&adisc(THEIRS, 7)),
        (wrong, RejectExplanation::InvalidPortName)
    );
}

#[test]
fn rtv_is_answered_with_our_timers() {
    let expected = RtvAccept {
        r_a_tov_ms: 10_000,
        e_d_tov: 2000,
        qualifier: 0,
    };
    assert_eq!(RtvAccept::parse(&reply_to(&RTV)), Ok(expected));
}

#[test]
fn rrq_is_accepted_for_an_exchange_between_us() {
    assert_eq!(reply_to(&rrq(THEIRS)), ACC);
    assert_eq!(reply_to(&rrq(OURS)), ACC);
    let other = NPortId::from_bytes([0, 0, 3]);
    let expected = (RejectReason::LogicalError, RejectExplanation::InvalidSId);
    assert_eq!(refusal(&rrq(other)), expected);
}

#[test]
fn logo_with_another_sender_is_refused() {
    let wrong = RejectReason::LogicalError;
    assert_eq!(
        refusal(&logo(OURS, THEIR_NAME)),
        (wrong, RejectExplanation::InvalidNPortId)
    );
    assert_eq!(
        refusal(&logo(THEIRS, 7)),
        (wrong, RejectExplanation::InvalidPortName)
    );
}

#[test]
fn every_page_of_a_prli_gets_its_response() {
    let types = [
        FcType::Vi,
        FcType::Fcp,
        FcType::Bls,
        FcType::Nvme,
        FcType::Unknown(0x77),
    ];
    let accept = reply_to(&process(ElsCommand::Prli, &types));
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, &accept).expect("an accept");
    let pages: Vec<_> = accept
        .pages()
        .map(|page| (page.fc_type, page.flags, page.response, page.parameters))
        .collect();
    let (none, executed) = (PageFlags(0), ResponseCode::Executed);
    let expected = [
        (FcType::Vi, PageFlags::IMAGE_PAIR, executed, 0),
        // No image pair: the machine is no target. libfc keeps such a port.
        (FcType::Fcp, none, executed, 0),
        (FcType::Bls, none, executed, 0),
        (FcType::Nvme, none, ResponseCode::NotPossible, 0),
        (FcType::Unknown(0x77), none, ResponseCode::NotPossible, 0),
    ];
    assert_eq!(pages, expected);
}

#[test]
fn prli_of_the_configured_protocol_gets_its_service_parameters() {
    let mut setup = Setup::empty(LoginConfig {
        fc4: FCP_INITIATOR,
        ..config(true)
    });
    setup.machine.neighbour_found(0, &neighbour(2));
    setup.plogi();
    setup.drain();
    setup.clear();
    let types = [FcType::Fcp, FcType::Vi];
    setup.request(Carrier::Fcoe, &process(ElsCommand::Prli, &types));
    setup.drain();
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, setup.sent[0].payload());
    let pages: Vec<_> = accept
        .expect("an accept")
        .pages()
        .map(|page| (page.fc_type, page.flags, page.response, page.parameters))
        .collect();
    let (none, pair) = (PageFlags(0), PageFlags::IMAGE_PAIR);
    let expected = [
        (FcType::Fcp, pair, ResponseCode::Executed, 0x22),
        (FcType::Vi, none, ResponseCode::NotPossible, 0),
    ];
    assert_eq!(pages, expected);
}

#[test]
fn a_prli_without_image_pair_of_an_unknown_type_is_invalid() {
    let mut request = process(ElsCommand::Prli, &[FcType::Nvme]);
    request[6] = 0;
    let accept = reply_to(&request);
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, &accept).expect("an accept");
    let responses: Vec<_> = accept.pages().map(|page| page.response).collect();
    assert_eq!(responses, [ResponseCode::InvalidParameters]);
}

#[test]
fn prlo_is_always_executed() {
    let accept = reply_to(&process(ElsCommand::Prlo, &[FcType::Vi, FcType::Nvme]));
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, &accept).expect("an accept");
    for page in accept.pages() {
        assert_eq!(
            (page.response, page.flags),
            (ResponseCode::Executed, PageFlags(0))
        );
    }
    assert_eq!(accept.pages().count(), 2);
}

#[test]
fn unsupported_requests_are_refused() {
    let not_supported = (RejectReason::NotSupported, RejectExplanation::NotSupported);
    for command in (0..=u8::MAX).map(ElsCommand::from_raw) {
        if matches!(command, ElsCommand::Unknown(_)) {
            assert_eq!(refusal(&[command.raw(), 0, 0, 0]), not_supported);
        }
    }
}

#[test]
fn request_with_a_wrong_length_is_refused() {
    let malformed = (
        RejectReason::ProtocolError,
        RejectExplanation::InvalidLength,
    );
    let requests: [&[u8]; 6] = [
        &adisc(THEIRS, THEIR_NAME),
        &rrq(THEIRS),
        &RTV,
        &process(ElsCommand::Prli, &[FcType::Vi]),
        &[ElsCommand::Plogi.raw(); 116],
        &[ElsCommand::Logo.raw(); 16],
    ];
    for request in requests {
        let mut longer = request.to_vec();
        longer.extend_from_slice(&[0; 4]);
        assert_eq!(refusal(&longer), malformed, "{request:?}");
        if request.len() > 4 {
            assert_eq!(refusal(&request[..request.len() - 4]), malformed);
        }
    }
}

#[test]
fn port_without_a_login_gets_one_logo_per_second() {
    let mut setup = Setup::new(true);
    for _ in 0..100 {
        setup.request(Carrier::Fcoe, &RTV);
        setup.machine.refuse_unlogged(setup.now_ns, THEIRS);
    }
    setup.drain();
    let [out] = setup.sent[..] else {
        panic!("one frame, not {:?}", setup.names());
    };
    assert_eq!((out.carrier, out.destination), (LOGO, enode(2)));
    let logo = Logo::parse(out.payload()).expect("a LOGO");
    assert_eq!((logo.n_port_id, logo.port_name), (OURS, LARGER_NAME));
    assert_eq!(setup.count(LoginCounter::DropNotLoggedIn), 200);
    assert_eq!(setup.count(LoginCounter::DropLimit), 199);
    assert_eq!(setup.count(LoginCounter::LogosToStrangers), 1);
    // No exchange waits for its reply.
    setup.reply(LOGO, out.fc.ox_id, &ACC);
    assert_eq!(setup.count(LoginCounter::DropLateReply), 1);
    setup.now_ns = S;
    setup.machine.refuse_unlogged(S, THEIRS);
    setup.drain();
    assert_eq!(setup.names(), ["FIP LOGO"; 2]);
}

#[test]
fn unknown_ports_share_a_limit() {
    let mut setup = Setup::empty(config(true));
    for last in 2..=u8::MAX {
        setup
            .machine
            .refuse_unlogged(0, NPortId::from_bytes([0, 0, last]));
    }
    setup.drain();
    assert_eq!(setup.names(), ["LOGO"; 16]);
    for (number, out) in (2..).zip(&setup.sent) {
        let id = NPortId::from_bytes([0, 0, number]);
        assert_eq!(
            (out.carrier, out.destination),
            (Carrier::Fcoe, MacAddress::vn2vn(id))
        );
    }
    setup.clear();
    setup.now_ns = S;
    setup.flogi();
    setup.plogi();
    setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
    setup.request(Carrier::Fcoe, &[0x13, 0, 0, 0]);
    setup.drain();
    let not_neighbour = "LS_RJT FIP error (not a neighbour)".to_owned();
    let expected = [
        format!("FIP {not_neighbour}"),
        not_neighbour,
        "FIP LS_ACC".to_owned(),
        "LS_RJT not supported (not supported)".to_owned(),
    ];
    assert_eq!(setup.names(), expected);
    assert_eq!(setup.count(LoginCounter::RefusedStranger), 2);
}

#[test]
fn queued_replies_are_bounded() {
    let mut setup = Setup::empty(LoginConfig {
        max_answers: 6,
        ..config(true)
    });
    setup.machine.neighbour_found(0, &neighbour(2));
    setup.plogi();
    for _ in 0..10 {
        setup.request(Carrier::Fcoe, &RTV);
    }
    assert_eq!(setup.count(LoginCounter::DropNoRoom), 8);
    setup.drain();
    assert_eq!(setup.sent.len(), 3);
    // A request without room for its reply has no effect, such as this LOGO.
    for _ in 0..3 {
        setup.request(Carrier::Fcoe, &RTV);
    }
    setup.clear();
    setup.request(LOGO, &logo(THEIRS, THEIR_NAME));
    setup.drain();
    assert_eq!(setup.names(), ["LS_ACC"; 3]);
    assert_eq!(setup.state(), Some(PortState::LoggedIn));
}

/// Requests in the name of one port, or of all that are not logged in, use half of the queue of answers.
#[test]
fn flood_in_the_name_of_others_leaves_room_for_answers_to_a_logged_in_port() {
    let mut setup = Setup::logged_in(true);
    let half = usize::from(config(true).max_answers) / 2;
    for low in 3..=u8::MAX {
        setup.machine.neighbour_found(0, &neighbour(low));
    }
    let flogi = login(ElsCommand::Flogi, &login_of(THEIR_NAME));
    for low in 3..=u8::MAX {
        let mut header = setup.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
        header.s_id = NPortId::from_bytes([0, 0, low]);
        setup
            .machine
            .handle_els(0, FLOGI, enode(low), &header, &flogi);
    }
    assert_eq!(setup.machine.responder.answers.len(), half);
    for _ in 0..100 {
        setup.request(Carrier::Fcoe, &adisc(THEIRS, THEIR_NAME));
    }
    assert_eq!(setup.machine.responder.answers.len(), 2 * half);
    assert!(setup.count(LoginCounter::DropNoRoom) > 200);
    setup.drain();
    let accepts = setup.names().into_iter().filter(|name| name == "LS_ACC");
    assert_eq!(accepts.count(), half);
}

/// A port that verifies its login by ADISC learns in that exchange that it has none.
#[test]
fn adisc_of_a_port_without_a_login_is_refused_in_its_exchange() {
    let refusal = "LS_RJT unable to perform (login required)";
    let mut setup = Setup::new(true);
    setup.request(Carrier::Fcoe, &adisc(THEIRS, THEIR_NAME));
    setup.drain();
    assert_eq!(setup.names(), [refusal, "FIP LOGO"]);
    assert_eq!(setup.sent[0].fc.ox_id, setup.ox_id);
    let mut setup = Setup::empty(config(true));
    setup.request(Carrier::Fcoe, &adisc(THEIRS, THEIR_NAME));
    setup.drain();
    assert_eq!(setup.names(), [refusal, "LOGO"]);
    assert_eq!(setup.count(LoginCounter::RefusedNotLoggedIn), 1);
}
