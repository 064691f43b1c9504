//! Every event in every state of a remote port; writes docs/spec/login-states.md.

use std::fmt::Write;

use fcvi_frame::els::{ElsCommand, Login, RejectExplanation, RejectReason};
use fcvi_frame::fc::{FCtl, FcType, RCtl};
use fcvi_frame::{MacAddress, profile};
use protocol_testkit::document::compare;

use super::frames::{
    ACC, FLOGI, LOGO, OURS, RTV, Setup, THEIR_NAME, THEIRS, adisc, farp, farp_request, host, login,
    login_of, logo, neighbour, process, reject, rrq,
};
use crate::login::{Carrier, LoginEvent, PortState};

/// A state, and whether the machine is closing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Known,
    FlogiSent,
    PlogiWait,
    PlogiSent,
    LoggedIn,
    /// After an unusable accept.
    LogoSent,
    LoggedOut,
    /// LogoSent because of `close`.
    Closing,
}

const LARGER: [At; 7] = [
    At::Known,
    At::FlogiSent,
    At::PlogiSent,
    At::LoggedIn,
    At::LogoSent,
    At::LoggedOut,
    At::Closing,
];
const SMALLER: [At; 6] = [
    At::Known,
    At::FlogiSent,
    At::PlogiWait,
    At::LoggedIn,
    At::LoggedOut,
    At::Closing,
];

fn too_small() -> Login {
    Login {
        receive_bytes: 255,
        ..login_of(THEIR_NAME)
    }
}

/// Brings the peer's port into a state, only by frames and calls.
fn setup(larger: bool, at: At) -> Setup {
    let mut setup = Setup::new(larger);
    match at {
        At::Known => {}
        At::FlogiSent => setup.machine.neighbour_ready(0, &neighbour(2)),
        At::PlogiWait | At::PlogiSent | At::LogoSent => {
            setup.machine.neighbour_ready(0, &neighbour(2));
            setup.drain();
            setup.accept_login(&login_of(THEIR_NAME));
            setup.drain();
            if at == At::LogoSent {
                setup.accept_login(&too_small());
            }
        }
        At::LoggedIn => setup.plogi(),
        At::LoggedOut => {
            setup.plogi();
            setup.log_out();
        }
        At::Closing => {
            setup.plogi();
            setup.drain();
            setup.machine.close(0);
        }
    }
    setup.drain();
    let state = match at {
        At::Known => PortState::Known,
        At::FlogiSent => PortState::FlogiSent,
        At::PlogiWait => PortState::PlogiWait,
        At::PlogiSent => PortState::PlogiSent,
        At::LoggedIn => PortState::LoggedIn,
        At::LogoSent | At::Closing => PortState::LogoSent,
        At::LoggedOut => PortState::LoggedOut,
    };
    assert_eq!(setup.state(), Some(state));
    setup
}

type Verb = (&'static str, fn(&mut Setup));

fn logins() -> Vec<Verb> {
    vec![
        ("neighbour ready", |s| {
            s.machine.neighbour_ready(s.now_ns, &neighbour(2));
        }),
        ("FLOGI", Setup::flogi),
        ("FLOGI, and then an LS_RJT", |s| {
            s.flogi();
            s.drain();
            let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
            s.answer(&busy);
        }),
        ("FLOGI twice in one exchange", |s| {
            s.flogi();
            s.ox_id -= 1;
            s.flogi();
        }),
        ("FLOGI of another name", |s| {
            s.request(FLOGI, &login(ElsCommand::Flogi, &login_of(7)));
        }),
        ("PLOGI", Setup::plogi),
        ("PLOGI that was accepted before", |s| {
            let header = s.header(RCtl::ElsRequest, profile::F_CTL_REQUEST, 0x99);
            let accepted = &mut s.machine.context.accepted;
            accepted.record(s.now_ns, THEIRS, 0x99);
            let theirs = login(ElsCommand::Plogi, &login_of(THEIR_NAME));
            s.inject(Carrier::Fcoe, &header, &theirs);
        }),
        ("PLOGI, other parameters", |s| {
            let theirs = Login {
                receive_bytes: 512,
                ..login_of(THEIR_NAME)
            };
            s.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
        }),
        ("PLOGI, other parameters, and then an LS_RJT", |s| {
            let theirs = Login {
                receive_bytes: 512,
                ..login_of(THEIR_NAME)
            };
            s.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &theirs));
            s.drain();
            let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
            s.answer(&busy);
        }),
        ("PLOGI of another name", |s| {
            s.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &login_of(7)));
        }),
        ("PLOGI with frames of 255 bytes", |s| {
            s.request(Carrier::Fcoe, &login(ElsCommand::Plogi, &too_small()));
        }),
        ("LOGO", |s| s.request(LOGO, &logo(THEIRS, THEIR_NAME))),
        ("LOGO, and then an LS_RJT", |s| {
            s.request(LOGO, &logo(THEIRS, THEIR_NAME));
            s.drain();
            let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
            s.answer(&busy);
        }),
        ("LOGO in FCoE", |s| {
            s.request(Carrier::Fcoe, &logo(THEIRS, THEIR_NAME));
        }),
        ("LOGO of another name", |s| {
            s.request(LOGO, &logo(THEIRS, 7))
        }),
        ("LS_ACC", |s| s.accept_login(&login_of(THEIR_NAME))),
        ("LS_ACC of another name", |s| s.accept_login(&login_of(7))),
        ("LS_ACC with frames of 255 bytes", |s| {
            s.accept_login(&too_small());
        }),
        ("LS_ACC of 4 bytes", |s| {
            s.answer(&ACC);
        }),
        ("LS_RJT", |s| {
            let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
            s.answer(&busy);
        }),
        ("LS_ACC in another exchange", |s| {
            let ox_id = s.open_exchange() ^ 1;
            let theirs = login(ElsCommand::LsAcc, &login_of(THEIR_NAME));
            s.reply(Carrier::Fcoe, ox_id, &theirs);
        }),
    ]
}

fn others() -> Vec<Verb> {
    vec![
        ("ADISC", |s| {
            s.request(Carrier::Fcoe, &adisc(THEIRS, THEIR_NAME));
        }),
        ("PRLI, TYPE 0x58", |s| {
            s.request(Carrier::Fcoe, &process(ElsCommand::Prli, &[FcType::Vi]));
        }),
        ("PRLO, TYPE 0x58", |s| {
            s.request(Carrier::Fcoe, &process(ElsCommand::Prlo, &[FcType::Vi]));
        }),
        ("RTV", |s| s.request(Carrier::Fcoe, &RTV)),
        ("RRQ", |s| s.request(Carrier::Fcoe, &rrq(THEIRS))),
        ("an unsupported ELS", |s| {
            s.request(Carrier::Fcoe, &[0x13, 0, 0, 0]);
        }),
        ("FARP-REQ for our host", |s| {
            let request = farp(ElsCommand::FarpRequest, &farp_request(host(1)));
            s.request(Carrier::Fcoe, &request);
        }),
        ("ABTS of an exchange of the peer", |s| {
            let mut header = s.header(RCtl::Abts, FCtl::END_SEQUENCE, 0x77);
            header.fc_type = FcType::Bls;
            s.machine
                .handle_bls(s.now_ns, MacAddress::vn2vn(THEIRS), &header, &[]);
        }),
        ("ABTS of our request", |s| {
            let responder = FCtl::END_SEQUENCE.union(FCtl::EXCHANGE_RESPONDER);
            let mut header = s.header(RCtl::Abts, responder, s.open_exchange());
            // If no request was sent: an exchange of the machine that is not open.
            header.ox_id = header.ox_id.max(0xF800);
            header.fc_type = FcType::Bls;
            s.machine
                .handle_bls(s.now_ns, MacAddress::vn2vn(THEIRS), &header, &[]);
        }),
        ("a frame of the FC-4 protocol", |s| {
            s.machine.refuse_unlogged(s.now_ns, THEIRS);
        }),
        ("timeout", |s| {
            if let Some(at_ns) = s.machine.poll_timeout() {
                s.machine.handle_timeout(at_ns);
            }
        }),
        ("last timeout", |s| {
            for _ in 0..4 {
                s.clear();
                if let Some(at_ns) = s.machine.poll_timeout() {
                    s.machine.handle_timeout(at_ns);
                }
                s.drain();
            }
        }),
        ("close", |s| s.machine.close(s.now_ns)),
        ("neighbour gone", |s| {
            s.machine.neighbour_gone(s.now_ns, THEIR_NAME);
        }),
        ("neighbour doubted", |s| {
            s.machine.neighbour_doubted(s.now_ns, THEIR_NAME);
        }),
        ("neighbour doubted, and then an LS_RJT", |s| {
            s.machine.neighbour_doubted(s.now_ns, THEIR_NAME);
            s.drain();
            let busy = reject(RejectReason::LogicalBusy, RejectExplanation::None);
            s.answer(&busy);
        }),
        ("our N_Port_ID lost", |s| s.machine.set_id(s.now_ns, None)),
    ]
}

/// Returns the state after an event, the sent frames, and the events.
fn after(mut setup: Setup) -> String {
    setup.drain();
    let mut cell = match setup.state() {
        Some(state) => format!("{state:?}"),
        None => "-".to_owned(),
    };
    for out in &setup.sent {
        assert_eq!((out.fc.s_id, out.fc.d_id), (OURS, THEIRS));
        let answer = matches!(out.fc.r_ctl, RCtl::ElsReply | RCtl::BaAcc | RCtl::BaRjt);
        let context = out.fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER);
        assert!(context == answer || out.fc.r_ctl == RCtl::BaAcc || out.fc.r_ctl == RCtl::BaRjt);
        assert!(answer || out.fc.f_ctl == profile::F_CTL_REQUEST);
        write!(cell, " > {}", super::frames::name(out)).expect("a string");
    }
    for event in &setup.events {
        match event {
            LoginEvent::LoggedIn(login) => write!(cell, " !LoggedIn {}", login.data_field_bytes),
            LoginEvent::LoggedOut { reason, .. } => write!(cell, " !LoggedOut {reason:?}"),
            LoginEvent::LoginFailed { reason, .. } => write!(cell, " !LoginFailed {reason:?}"),
            LoginEvent::Host { .. } => write!(cell, " !Host"),
            LoginEvent::Resolved { .. } => write!(cell, " !Resolved"),
        }
        .expect("a string");
    }
    cell
}

fn table(larger: bool, states: &[At]) -> String {
    let mut table = String::new();
    for (name, verb) in logins().into_iter().chain(others()) {
        writeln!(table, "{name}").expect("a string");
        for at in states {
            let mut setup = setup(larger, *at);
            // The open exchange is that of the last request.
            let open = setup.sent.last().copied();
            setup.clear();
            setup.sent.extend(open);
            verb(&mut setup);
            let already = usize::from(open.is_some() && setup.sent.first() == open.as_ref());
            setup.sent.drain(..already);
            let cell = after(setup);
            writeln!(table, "    {:<10} {cell}", format!("{at:?}")).expect("a string");
        }
    }
    table
}

const DOCUMENT: &str = "login-states.md";
const HEAD: &str = "# Login: every state, every event

Made by `pmd/fc-port/src/login/tests/states.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p fc-port login::tests::states`.

`>` is a sent frame, `!` an event for the caller, `-` no neighbour any more. Closing is LogoSent after `close`; the peer
accepts frames of 1024 bytes. Of two ports the one with the larger Port_Name sends PLOGI, so there are two tables.
";

#[test]
fn every_event_in_every_state_of_a_remote_port() {
    let found = format!(
        "{HEAD}\n## The local name is the larger one\n\n```text\n{}```\n\n## The local name is the smaller one\n\n```text\n{}```\n",
        table(true, &LARGER),
        table(false, &SMALLER)
    );
    compare(DOCUMENT, "fc-port login::tests::states", &found);
}
