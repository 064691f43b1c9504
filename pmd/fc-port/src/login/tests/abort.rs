//! ABTS: exchanges that a peer aborts.

use fcvi_frame::MacAddress;
use fcvi_frame::bls::{BaAcc, BaRjt};
use fcvi_frame::fc::{FCtl, FcHeader, FcType, RCtl};

use super::frames::{MS, S, Setup, THEIR_NAME, THEIRS, config, login_of, neighbour};
use crate::login::{LoginConfig, LoginCounter, PortState};

const FROM_RESPONDER: FCtl = FCtl::END_SEQUENCE.union(FCtl::EXCHANGE_RESPONDER);

fn abts(setup: &Setup, f_ctl: FCtl, ox_id: u16) -> FcHeader {
    FcHeader {
        fc_type: FcType::Bls,
        rx_id: 0x1234,
        seq_id: 9,
        seq_cnt: 7,
        parameter: 0,
        ..setup.header(RCtl::Abts, f_ctl, ox_id)
    }
}

fn inject(setup: &mut Setup, fc: &FcHeader, payload: &[u8]) {
    let source = MacAddress::vn2vn(THEIRS);
    setup.machine.handle_bls(setup.now_ns, source, fc, payload);
}

/// The abort is rejected and has no other effect.
#[test]
fn abort_of_another_exchange_is_rejected() {
    for (f_ctl, context) in [(FCtl::END_SEQUENCE, 0x98_0000), (FROM_RESPONDER, 0x18_0000)] {
        let mut setup = Setup::logged_in(true);
        let header = abts(&setup, f_ctl, 0x77);
        inject(&mut setup, &header, &[]);
        setup.drain();
        assert_eq!(setup.events, []);
        let [out] = setup.sent[..] else {
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
        assert_eq!(setup.count(LoginCounter::Aborts), 0);
    }
}

#[test]
fn aborted_request_is_repeated_by_the_timer() {
    let mut setup = Setup::new(true);
    setup.machine.neighbour_ready(0, &neighbour(2));
    setup.drain();
    let ox_id = setup.open_exchange();
    let header = abts(&setup, FROM_RESPONDER, ox_id);
    inject(&mut setup, &header, &[]);
    setup.drain();
    assert_eq!(setup.names(), ["FIP FLOGI", "BA_ACC"]);
    let accept = BaAcc {
        last_seq_id: None,
        ox_id,
        rx_id: 0x1234,
        low_seq_cnt: 0,
        high_seq_cnt: 0xFFFF,
    };
    assert_eq!(BaAcc::parse(setup.sent[1].payload()), Ok(accept));
    assert_eq!(setup.machine.context.exchanges.open_count(), 0);
    // The exchange has ended: its reply is late.
    setup.accept_login(&login_of(THEIR_NAME));
    assert_eq!(setup.state(), Some(PortState::FlogiSent));
    assert_eq!(setup.count(LoginCounter::DropLateReply), 1);
    setup.advance(2 * S + 300 * MS);
    assert_eq!(setup.names(), ["FIP FLOGI", "BA_ACC", "FIP FLOGI"]);
}

#[test]
fn abort_of_an_unused_exchange_is_rejected() {
    let mut setup = Setup::logged_in(true);
    let header = abts(
        &setup,
        FROM_RESPONDER,
        setup.machine.context.config.first_ox_id,
    );
    inject(&mut setup, &header, &[]);
    setup.drain();
    let reject = BaRjt {
        reason: BaRjt::LOGICAL_ERROR,
        explanation: BaRjt::INVALID_EXCHANGE,
    };
    assert_eq!(BaRjt::parse(setup.sent[0].payload()), Ok(reject));
    assert_eq!(setup.events, []);
}

#[test]
fn responses_to_aborts_are_bounded() {
    let mut setup = Setup::empty(LoginConfig {
        max_answers: 4,
        ..config(true)
    });
    setup.machine.neighbour_found(0, &neighbour(2));
    for ox_id in 0..5 {
        let header = abts(&setup, FCtl::END_SEQUENCE, ox_id);
        inject(&mut setup, &header, &[]);
    }
    assert_eq!(setup.count(LoginCounter::DropNoRoom), 3);
    setup.drain();
    assert_eq!(setup.names(), ["BA_RJT", "BA_RJT"]);
}

#[test]
fn other_basic_link_services_are_counted() {
    let mut setup = Setup::logged_in(true);
    for r_ctl in [RCtl::BaAcc, RCtl::BaRjt] {
        let header = FcHeader {
            r_ctl,
            ..abts(&setup, FROM_RESPONDER, 0x77)
        };
        inject(&mut setup, &header, &[0; 12]);
    }
    assert_eq!(setup.count(LoginCounter::DropStrayReply), 2);
    let header = abts(&setup, FCtl::END_SEQUENCE, 0x77);
    inject(&mut setup, &header, &[0; 4]);
    let els = FcHeader {
        fc_type: FcType::Els,
        ..header
    };
    inject(&mut setup, &els, &[]);
    assert_eq!(setup.count(LoginCounter::DropBadHeader), 2);
    setup.drain();
    assert_eq!((setup.sent.len(), setup.events.len()), (0, 0));
}

#[test]
fn abort_from_an_unknown_port_is_answered_with_a_logo() {
    let mut setup = Setup::empty(config(true));
    let header = abts(&setup, FCtl::END_SEQUENCE, 0x77);
    inject(&mut setup, &header, &[]);
    setup.drain();
    assert_eq!(setup.names(), ["LOGO"]);
}
