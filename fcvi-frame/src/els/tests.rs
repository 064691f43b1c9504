//! Payloads round-trip, and no other payload is accepted.

use std::vec::Vec;

use super::{
    Adisc, Class3Parameters, ElsCommand, Farp, FarpAction, FarpMatch, Login, LoginFeatures, Logo,
    LsRjt, MAX_PAYLOAD_BYTES, PageFlags, ProcessLogin, RejectExplanation, RejectReason,
    ResponseCode, Rrq, RtvAccept, ServiceParameterPage,
};
use crate::error::{Field, ParseError, Reason};
use crate::fc::{FcType, NPortId};
use proptest::prelude::*;
use vi_types::HostAddress;

const LOGINS: [ElsCommand; 3] = [ElsCommand::Plogi, ElsCommand::Flogi, ElsCommand::LsAcc];
const PROCESS_LOGINS: [ElsCommand; 3] = [ElsCommand::Prli, ElsCommand::Prlo, ElsCommand::LsAcc];
const FARPS: [ElsCommand; 2] = [ElsCommand::FarpRequest, ElsCommand::FarpReply];

proptest! {
    #![proptest_config(crate::test_seed::config())]

    #[test]
    fn small_payloads_round_trip(
        ids: [[u8; 3]; 2],
        names: [u64; 2],
        (reason, explanation) in any::<(u8, u8)>(),
        (ox_id, rx_id) in any::<(u16, u16)>(),
        times: [u32; 3],
    ) {
        let [hard_address, n_port_id] = ids.map(NPortId::from_bytes);
        let [port_name, node_name] = names;
        let adisc = Adisc { hard_address, port_name, node_name, n_port_id };
        let mut bytes = [0xEE; 28];
        adisc.emit_request(&mut bytes);
        prop_assert_eq!(Adisc::parse_request(&bytes), Ok(adisc));
        prop_assert!(Adisc::parse_accept(&bytes).is_err());
        adisc.emit_accept(&mut bytes);
        prop_assert_eq!(Adisc::parse_accept(&bytes), Ok(adisc));
        prop_assert!(Adisc::parse_request(&bytes).is_err());

        let logo = Logo { n_port_id, port_name };
        let mut bytes = [0xEE; 16];
        logo.emit(&mut bytes);
        prop_assert_eq!(Logo::parse(&bytes), Ok(logo));

        let reject = LsRjt {
            reason: RejectReason::from_raw(reason),
            explanation: RejectExplanation::from_raw(explanation),
        };
        let mut bytes = [0xEE; 8];
        reject.emit(&mut bytes);
        prop_assert_eq!(LsRjt::parse(&bytes), Ok(reject));

        let rrq = Rrq { s_id: n_port_id, ox_id, rx_id };
        let mut bytes = [0xEE; 12];
        rrq.emit(&mut bytes);
        prop_assert_eq!(Rrq::parse(&bytes), Ok(rrq));

        let [r_a_tov_ms, e_d_tov, qualifier] = times;
        let accept = RtvAccept { r_a_tov_ms, e_d_tov, qualifier };
        let mut bytes = [0xEE; 16];
        accept.emit(&mut bytes);
        prop_assert_eq!(RtvAccept::parse(&bytes), Ok(accept));
    }

    #[test]
    fn logins_round_trip(
        halves: [u16; 9],
        e_d_tov: u32,
        (port_name, node_name) in any::<(u64, u64)>(),
    ) {
        let [credit, features, receive, total, offset, service, class_receive, concurrent, open] =
            halves;
        let login = Login {
            credit,
            features: LoginFeatures(features),
            receive_bytes: receive & 0x0FFF,
            total_sequences: total,
            relative_offset: offset,
            e_d_tov,
            port_name,
            node_name,
            class3: Class3Parameters {
                service,
                receive_bytes: class_receive & 0x0FFF,
                concurrent_sequences: concurrent,
                open_sequences: open,
            },
        };
        for command in LOGINS {
            let mut bytes = [0xEE; 116];
            login.emit(command, &mut bytes);
            for other in LOGINS {
                let read = Login::parse(other, &bytes);
                prop_assert_eq!(read.is_ok(), other == command);
                prop_assert!(read.is_err() || read == Ok(login));
            }
        }
    }

    #[test]
    fn process_logins_round_trip(
        pages in prop::collection::vec(any::<([u8; 4], [u32; 3])>(), 0..10),
    ) {
        let pages: Vec<_> = pages.into_iter().map(|([fc_type, extension, flags, code], words)| {
            let [originator, responder, parameters] = words;
            ServiceParameterPage {
                fc_type: FcType::from_raw(fc_type),
                type_extension: extension,
                flags: PageFlags(flags & 0xF0),
                response: ResponseCode::from_raw(code),
                originator,
                responder,
                parameters,
            }
        }).collect();
        let written = pages.len().min(ProcessLogin::MAX_PAGES);
        for command in PROCESS_LOGINS {
            let mut out = [0xEE; MAX_PAYLOAD_BYTES];
            let bytes = ProcessLogin::emit(command, pages.iter().copied(), &mut out);
            prop_assert_eq!(bytes, 4 + 16 * written);
            match ProcessLogin::parse(command, &out[..bytes]) {
                Ok(read) => {
                    let read: Vec<_> = read.pages().collect();
                    prop_assert_eq!(&read, &pages[..written]);
                }
                Err(error) => {
                    prop_assert_eq!(written, 0);
                    prop_assert_eq!(error, ParseError::new(Field::Payload, Reason::TooShort));
                }
            }
        }
    }

    #[test]
    fn farps_round_trip(
        (match_code, action) in any::<(u8, u8)>(),
        ids: [[u8; 3]; 2],
        names: [u64; 4],
        v6: [u8; 16],
        v4: [u8; 4],
    ) {
        let [requester, responder] = ids.map(NPortId::from_bytes);
        let [a, b, c, d] = names;
        let farp = Farp {
            match_code: FarpMatch(match_code),
            action: FarpAction(action),
            requester,
            responder,
            requester_port_name: a,
            requester_node_name: b,
            responder_port_name: c,
            responder_node_name: d,
            requester_host: HostAddress(v6),
            responder_host: HostAddress::from_ipv4(v4),
        };
        for command in FARPS {
            let mut bytes = [0xEE; 76];
            farp.emit(command, &mut bytes);
            for other in FARPS {
                let read = Farp::parse(other, &bytes);
                prop_assert_eq!(read.is_ok(), other == command);
                prop_assert!(read.is_err() || read == Ok(farp));
            }
        }
    }

    #[test]
    fn parse_panics_on_no_bytes(bytes in prop::collection::vec(any::<u8>(), 0..160), command: u8) {
        let mut bytes = bytes;
        for command in [command, 0x02, 0x03, 0x20, 0x54] {
            if let Some(first) = bytes.first_mut() {
                *first = command;
            }
            let command = ElsCommand::from_raw(command);
            let read = [
                Login::parse(command, &bytes).is_ok(),
                Farp::parse(command, &bytes).is_ok(),
                ProcessLogin::parse(command, &bytes).is_ok_and(|p| p.pages().count() > 0),
            ];
            prop_assert!(read.iter().filter(|ok| **ok).count() <= 1 || bytes.len() == 116);
        }
    }
}

#[test]
fn every_code_round_trips() {
    for raw in 0..=u8::MAX {
        assert_eq!(ElsCommand::from_raw(raw).raw(), raw);
        assert_eq!(RejectReason::from_raw(raw).raw(), raw);
        assert_eq!(RejectExplanation::from_raw(raw).raw(), raw);
        assert_eq!(ResponseCode::from_raw(raw).raw(), raw & 0x0F);
    }
}

/// Returns the expected error of a parser of `wanted` with `exact` bytes, for a payload of `found` with `length` bytes.
fn expected(
    wanted: ElsCommand,
    exact: usize,
    found: ElsCommand,
    length: usize,
) -> Option<ParseError> {
    let (field, reason) = if length < 4 {
        (Field::Payload, Reason::TooShort)
    } else if found != wanted {
        (Field::ElsCommand, Reason::Mismatch)
    } else if length < exact {
        (Field::Payload, Reason::TooShort)
    } else if length > exact {
        (Field::Payload, Reason::TooLong)
    } else {
        return None;
    };
    Some(ParseError::new(field, reason))
}

#[test]
fn parse_rejects_other_lengths_and_commands() {
    use ElsCommand::{
        Adisc as ADISC, FarpReply, Flogi, Logo as LOGO, LsAcc, LsRjt as LS_RJT, Rrq as RRQ,
    };
    for length in 0..130 {
        for command in [ADISC, FarpReply, Flogi, LOGO, LsAcc, LS_RJT, RRQ] {
            let mut bytes = [0; 130];
            bytes[0] = command.raw();
            let payload = &bytes[..length];
            let results = [
                (ADISC, 28, Adisc::parse_request(payload).err()),
                (LsAcc, 28, Adisc::parse_accept(payload).err()),
                (LOGO, 16, Logo::parse(payload).err()),
                (LS_RJT, 8, LsRjt::parse(payload).err()),
                (RRQ, 12, Rrq::parse(payload).err()),
                (LsAcc, 16, RtvAccept::parse(payload).err()),
                (Flogi, 116, Login::parse(Flogi, payload).err()),
                (LsAcc, 116, Login::parse(LsAcc, payload).err()),
                (FarpReply, 76, Farp::parse(FarpReply, payload).err()),
            ];
            for (wanted, exact, error) in results {
                assert_eq!(
                    error,
                    expected(wanted, exact, command, length),
                    "{wanted:?} {length}"
                );
            }
        }
    }
}

#[test]
fn parsers_of_several_commands_reject_others() {
    let mismatch = ParseError::new(Field::ElsCommand, Reason::Mismatch);
    let mut bytes = [0; 116];
    bytes[0] = ElsCommand::Logo.raw();
    assert_eq!(Login::parse(ElsCommand::Logo, &bytes), Err(mismatch));
    assert_eq!(Farp::parse(ElsCommand::Logo, &bytes[..76]), Err(mismatch));
}

/// Every value of the two length fields of a PRLI, at every payload length.
#[test]
fn process_login_with_wrong_length_fields_is_rejected() {
    for length in 4..=MAX_PAYLOAD_BYTES + 16 {
        for page_length in 0..=u8::MAX {
            for stated in 0..=160_u16 {
                let mut bytes = [0; MAX_PAYLOAD_BYTES + 16];
                let [high, low] = stated.to_be_bytes();
                bytes[..4].copy_from_slice(&[0x20, page_length, high, low]);
                let read = ProcessLogin::parse(ElsCommand::Prli, &bytes[..length]);
                let legal = page_length == 16
                    && usize::from(stated) == length
                    && length > 4
                    && (length - 4).is_multiple_of(16)
                    && length <= MAX_PAYLOAD_BYTES;
                assert_eq!(read.is_ok(), legal, "{length} {page_length} {stated}");
            }
        }
    }
}

#[test]
fn farp_ipv4_address_is_preceded_by_zeros() {
    let farp = |host| Farp {
        responder_host: host,
        ..Farp::default()
    };
    let cases = [
        (HostAddress::from_ipv4([10, 0, 0, 2]), [0, 0, 10, 0, 0, 2]),
        (
            HostAddress::from_ipv4([0, 0, 0, 2]),
            [0xFF, 0xFF, 0, 0, 0, 2],
        ),
        (HostAddress([0; 16]), [0; 6]),
        (HostAddress(1_u128.to_be_bytes()), [0, 0, 0, 0, 0, 1]),
    ];
    for (host, end) in cases {
        let mut bytes = [0; 76];
        farp(host).emit(ElsCommand::FarpRequest, &mut bytes);
        assert_eq!(bytes[60..70], [0; 10]);
        assert_eq!(bytes[70..], end);
        let read = Farp::parse(ElsCommand::FarpRequest, &bytes).unwrap();
        assert_eq!(read.responder_host, host);
    }
}

/// The payload of the FLOGI that a Linux 6.1 kernel sends to a neighbour, in FIP.
#[test]
fn linux_flogi_is_parsed_and_emitted() {
    let mut bytes = [0; 116];
    bytes[..12].copy_from_slice(&[0x04, 0, 0, 0, 0x20, 0x20, 0, 0x0A, 0x80, 0, 0x08, 0x40]);
    bytes[20..36].copy_from_slice(&[
        0x20, 0, 0x52, 0x54, 0, 0, 0, 1, 0x10, 0, 0x52, 0x54, 0, 0, 0, 1,
    ]);
    bytes[68] = 0x88;
    let login = Login::parse(ElsCommand::Flogi, &bytes).unwrap();
    let expected = Login {
        credit: 10,
        features: LoginFeatures::CONTINUOUS_OFFSET,
        receive_bytes: 2112,
        port_name: 0x2000_5254_0000_0001,
        node_name: 0x1000_5254_0000_0001,
        class3: Class3Parameters {
            service: Class3Parameters::VALID | Class3Parameters::SEQUENTIAL,
            ..Class3Parameters::default()
        },
        ..Login::default()
    };
    assert_eq!(login, expected);
    assert!(login.class3.is_valid() && login.class3.is_sequential());
    let mut out = [0xEE; 116];
    login.emit(ElsCommand::Flogi, &mut out);
    assert_eq!(out, bytes);
}
