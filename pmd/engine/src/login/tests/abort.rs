//! Exchanges that others abort.

use fcvi_frame::MacAddress;
use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, RCtl};

use super::frames::{MS, S, Stage, THEIR_NAME, THEIRS, config, login_of, neighbour};
use crate::login::{LoginConfig, LoginCounter, PortState};

const FROM_RESPONDER: FCtl = FCtl::END_SEQUENCE.union(FCtl::EXCHANGE_RESPONDER);

fn abts(stage: &Stage, f_ctl: FCtl, ox_id: u16) -> FcHeader {
    FcHeader {
        fc_type: FcType::Bls,
        rx_id: 0x1234,
        seq_id: 9,
        seq_cnt: 7,
        parameter: 0,
        ..stage.header(RCtl::Abts, f_ctl, ox_id)
    }
}

fn inject(stage: &mut Stage, fc: &FcHeader, payload: &[u8]) {
    let source = MacAddress::vn2vn(THEIRS);
    stage.machine.handle_bls(stage.now_ns, source, fc, payload);
}

/// Nothing is undone for it, and nothing else is said.
#[test]
fn an_abort_of_any_other_exchange_is_refused() {
    for (f_ctl, context) in [(FCtl::END_SEQUENCE, 0x98_0000), (FROM_RESPONDER, 0x18_0000)] {
        let mut stage = Stage::logged_in(true);
        let header = abts(&stage, f_ctl, 0x77);
        inject(&mut stage, &header, &[]);
        stage.drain();
        assert_eq!(stage.events, []);
        let [out] = stage.sent[..] else {
            panic!("one frame");
        };
        assert_eq!((out.fc.r_ctl, out.fc.fc_type), (RCtl::BaRjt, FcType::Bls));
        assert_eq!((out.fc.s_id, out.fc.d_id), (header.d_id, header.s_id));
        assert_eq!(
            (out.fc.ox_id, out.fc.rx_id, out.fc.seq_id),
            (0x77, 0x1234, 9)
        );
        assert_eq!(out.fc.f_ctl, FCtl(context));
        let reject = BaRjt {
            reason: BaRjt::UNABLE_TO_PERFORM,
            explanation: BaRjt::NO_EXPLANATION,
        };
        assert_eq!(BaRjt::parse(out.payload()), Ok(reject));
        assert_eq!(stage.count(LoginCounter::Aborts), 0);
    }
}

#[test]
fn an_abort_of_our_request_makes_the_timer_ask_again() {
    let mut stage = Stage::new(true);
    stage.machine.neighbour_heard(0, &neighbour(2));
    stage.drain();
    let ox_id = stage.open_exchange();
    let header = abts(&stage, FROM_RESPONDER, ox_id);
    inject(&mut stage, &header, &[]);
    stage.drain();
    assert_eq!(stage.names(), ["FIP FLOGI", "BA_ACC"]);
    let accept = BaAcc {
        last_seq_id: None,
        ox_id,
        rx_id: 0x1234,
        low_seq_cnt: 0,
        high_seq_cnt: 0xFFFF,
    };
    assert_eq!(BaAcc::parse(stage.sent[1].payload()), Ok(accept));
    assert_eq!(stage.machine.exchanges.open_count(), 0);
    // It is over: what comes of it now is late.
    stage.accept_login(&login_of(THEIR_NAME));
    assert_eq!(stage.state(), Some(PortState::FlogiSent));
    assert_eq!(stage.count(LoginCounter::DropLateReply), 1);
    stage.advance(2 * S + 300 * MS);
    assert_eq!(stage.names(), ["FIP FLOGI", "BA_ACC", "FIP FLOGI"]);
}

#[test]
fn an_abort_of_nothing_is_refused() {
    let mut stage = Stage::logged_in(true);
    let header = abts(&stage, FROM_RESPONDER, stage.machine.config.first_ox_id);
    inject(&mut stage, &header, &[]);
    stage.drain();
    let reject = BaRjt {
        reason: BaRjt::LOGICAL_ERROR,
        explanation: BaRjt::INVALID_EXCHANGE,
    };
    assert_eq!(BaRjt::parse(stage.sent[0].payload()), Ok(reject));
    assert_eq!(stage.events, []);
}

#[test]
fn answers_to_aborts_are_bounded() {
    let mut stage = Stage::empty(LoginConfig {
        max_answers: 2,
        ..config(true)
    });
    stage.machine.neighbour_found(0, &neighbour(2));
    for ox_id in 0..5 {
        let header = abts(&stage, FCtl::END_SEQUENCE, ox_id);
        inject(&mut stage, &header, &[]);
    }
    assert_eq!(stage.count(LoginCounter::DropNoRoom), 3);
    stage.drain();
    assert_eq!(stage.names(), ["BA_RJT", "BA_RJT"]);
}

#[test]
fn other_basic_link_services_are_counted() {
    let mut stage = Stage::logged_in(true);
    for r_ctl in [RCtl::BaAcc, RCtl::BaRjt] {
        let header = FcHeader {
            r_ctl,
            ..abts(&stage, FROM_RESPONDER, 0x77)
        };
        inject(&mut stage, &header, &[0; 12]);
    }
    assert_eq!(stage.count(LoginCounter::DropStrayReply), 2);
    let header = abts(&stage, FCtl::END_SEQUENCE, 0x77);
    inject(&mut stage, &header, &[0; 4]);
    let els = FcHeader {
        fc_type: FcType::Els,
        ..header
    };
    inject(&mut stage, &els, &[]);
    assert_eq!(stage.count(LoginCounter::DropBadHeader), 2);
    stage.drain();
    assert_eq!((stage.sent.len(), stage.events.len()), (0, 0));
}

#[test]
fn an_abort_of_a_stranger_is_answered_with_a_logo() {
    let mut stage = Stage::empty(config(true));
    let header = abts(&stage, FCtl::END_SEQUENCE, 0x77);
    inject(&mut stage, &header, &[]);
    stage.drain();
    assert_eq!(stage.names(), ["LOGO"]);
}
