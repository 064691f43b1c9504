//! What a port that is logged in may ask, and who may ask what.

use fcvi_frame::MacAddress;
use fcvi_frame::els::{
    Adisc, ElsCommand, Logo, LsRjt, PageFlags, ProcessLogin, RejectExplanation, RejectReason,
    ResponseCode, RtvAccept,
};
use fcvi_frame::fc::{FcType, NPortId};

use super::frames::{
    ACC, LARGER_NAME, LOGO, OURS, RTV, S, Stage, THEIR_NAME, THEIRS, adisc, config, enode, logo,
    process, rrq,
};
use crate::login::{Carrier, LoginConfig, LoginCounter};

/// The only answer to this request of a port that is logged in.
fn answer(payload: &[u8]) -> Vec<u8> {
    let mut stage = Stage::logged_in(true);
    stage.ask(Carrier::Fcoe, payload);
    stage.drain();
    assert_eq!((stage.sent.len(), stage.events.len()), (1, 0));
    let out = stage.sent[0];
    assert_eq!(out.destination, MacAddress::vn2vn(THEIRS));
    assert_eq!(out.fc.ox_id, stage.ox_id);
    assert_eq!(stage.count(LoginCounter::Answers), 2);
    out.payload().to_vec()
}

fn refusal(payload: &[u8]) -> (RejectReason, RejectExplanation) {
    let LsRjt {
        reason,
        explanation,
    } = LsRjt::parse(&answer(payload)).expect("a refusal");
    (reason, explanation)
}

#[test]
fn adisc_is_answered_with_our_names() {
    let accept = answer(&adisc(THEIRS, THEIR_NAME));
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
    assert_eq!(RtvAccept::parse(&answer(&RTV)), Ok(expected));
}

#[test]
fn rrq_is_accepted_for_an_exchange_between_us() {
    assert_eq!(answer(&rrq(THEIRS)), ACC);
    assert_eq!(answer(&rrq(OURS)), ACC);
    let stranger = NPortId::from_bytes([0, 0, 3]);
    let expected = (RejectReason::LogicalError, RejectExplanation::InvalidSId);
    assert_eq!(refusal(&rrq(stranger)), expected);
}

#[test]
fn a_logo_names_its_sender() {
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
    let accept = answer(&process(ElsCommand::Prli, &types));
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, &accept).expect("an accept");
    let pages: Vec<_> = accept
        .pages()
        .map(|page| (page.fc_type, page.flags, page.response, page.parameters))
        .collect();
    let (none, executed) = (PageFlags(0), ResponseCode::Executed);
    let expected = [
        (FcType::Vi, PageFlags::IMAGE_PAIR, executed, 0),
        // No image pair: we are no target. libfc keeps such a port.
        (FcType::Fcp, none, executed, 0),
        (FcType::Bls, none, executed, 0),
        (FcType::Nvme, none, ResponseCode::NotPossible, 0),
        (FcType::Unknown(0x77), none, ResponseCode::NotPossible, 0),
    ];
    assert_eq!(pages, expected);
}

#[test]
fn a_prli_without_image_pair_of_an_unknown_type_is_invalid() {
    let mut ask = process(ElsCommand::Prli, &[FcType::Nvme]);
    ask[6] = 0;
    let accept = answer(&ask);
    let accept = ProcessLogin::parse(ElsCommand::LsAcc, &accept).expect("an accept");
    let responses: Vec<_> = accept.pages().map(|page| page.response).collect();
    assert_eq!(responses, [ResponseCode::InvalidParameters]);
}

#[test]
fn a_prlo_is_always_carried_out() {
    let accept = answer(&process(ElsCommand::Prlo, &[FcType::Vi, FcType::Nvme]));
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
fn what_is_not_served_is_refused() {
    let not_served = (RejectReason::NotSupported, RejectExplanation::NotSupported);
    for command in (0..=u8::MAX).map(ElsCommand::from_raw) {
        if matches!(command, ElsCommand::Unknown(_)) {
            assert_eq!(refusal(&[command.raw(), 0, 0, 0]), not_served);
        }
    }
}

#[test]
fn a_request_of_another_length_is_refused() {
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
fn a_port_that_is_not_logged_in_is_told_once_a_second() {
    let mut stage = Stage::new(true);
    for _ in 0..100 {
        stage.ask(Carrier::Fcoe, &adisc(THEIRS, THEIR_NAME));
        stage.machine.refuse_unlogged(stage.now_ns, THEIRS);
    }
    stage.drain();
    let [out] = stage.sent[..] else {
        panic!("one frame, not {:?}", stage.names());
    };
    assert_eq!((out.carrier, out.destination), (LOGO, enode(2)));
    let logo = Logo::parse(out.payload()).expect("a LOGO");
    assert_eq!((logo.n_port_id, logo.port_name), (OURS, LARGER_NAME));
    assert_eq!(stage.count(LoginCounter::DropNotLoggedIn), 200);
    assert_eq!(stage.count(LoginCounter::DropLimit), 199);
    assert_eq!(stage.count(LoginCounter::LogosToStrangers), 1);
    // Its answer is nothing that anybody waits for.
    stage.reply(LOGO, out.fc.ox_id, &ACC);
    assert_eq!(stage.count(LoginCounter::DropLateReply), 1);
    stage.now_ns = S;
    stage.machine.refuse_unlogged(S, THEIRS);
    stage.drain();
    assert_eq!(stage.names(), ["FIP LOGO"; 2]);
}

#[test]
fn strangers_share_a_limit() {
    let mut stage = Stage::empty(config(true));
    for last in 2..=u8::MAX {
        stage
            .machine
            .refuse_unlogged(0, NPortId::from_bytes([0, 0, last]));
    }
    stage.drain();
    assert_eq!(stage.names(), ["LOGO"; 16]);
    for (number, out) in (2..).zip(&stage.sent) {
        let id = NPortId::from_bytes([0, 0, number]);
        assert_eq!(
            (out.carrier, out.destination),
            (Carrier::Fcoe, MacAddress::vn2vn(id))
        );
    }
    stage.clear();
    stage.now_ns = S;
    stage.flogi();
    stage.plogi();
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    stage.ask(Carrier::Fcoe, &[0x13, 0, 0, 0]);
    stage.drain();
    let not_neighbour = "LS_RJT FIP error (not a neighbour)".to_owned();
    let expected = [
        format!("FIP {not_neighbour}"),
        not_neighbour,
        "FIP LS_ACC".to_owned(),
        "LS_RJT not supported (not supported)".to_owned(),
    ];
    assert_eq!(stage.names(), expected);
    assert_eq!(stage.count(LoginCounter::RefusedStranger), 2);
}

#[test]
fn answers_that_nobody_fetches_are_bounded() {
    let mut stage = Stage::empty(LoginConfig {
        max_answers: 3,
        ..config(true)
    });
    stage
        .machine
        .neighbour_found(0, &super::frames::neighbour(2));
    stage.plogi();
    for _ in 0..10 {
        stage.ask(Carrier::Fcoe, &RTV);
    }
    assert_eq!(stage.count(LoginCounter::DropNoRoom), 8);
    stage.drain();
    assert_eq!(stage.sent.len(), 3);
    // Dropped means not done: this LOGO would have no answer.
    for _ in 0..3 {
        stage.ask(Carrier::Fcoe, &RTV);
    }
    stage.ask(LOGO, &logo(THEIRS, THEIR_NAME));
    assert!(stage.machine.login(THEIRS).is_some());
}
