//! Offsets of all fields, and statements that differ in every authenticated field.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use proptest::collection::vec as any_vec;
use proptest::prelude::*;

use super::*;
use crate::{Attributes, Discriminator};

#[test]
fn challenge_is_33_bytes_of_format_1() {
    let challenge = Challenge {
        challenge: core::array::from_fn(|at| at as u8),
    };
    let security = challenge.emit();
    assert_eq!(security.as_bytes()[0], 1);
    assert_eq!(security.as_bytes()[1..], challenge.challenge);
    assert_eq!(Challenge::parse(&security), Some(challenge));
    for bytes in (0..=256).filter(|bytes| *bytes != 33) {
        let other = Security::new(&vec![1; bytes]).unwrap();
        assert_eq!(Challenge::parse(&other), None, "{bytes}");
    }
}

#[test]
fn response_and_acceptance_match_the_tables() {
    let security = Security::new(b"own").unwrap();
    let response = ChallengeResponse {
        nonce: [2; 32],
        proof: [3; 32],
        security,
    };
    let emitted = response.emit().unwrap();
    assert_eq!(
        emitted.as_bytes(),
        [&[1][..], &[2; 32], &[3; 32], b"own"].concat()
    );
    assert_eq!(ChallengeResponse::parse(&emitted), Some(response));
    let acceptance = Acceptance {
        proof: [4; 32],
        security,
    };
    let emitted = acceptance.emit().unwrap();
    assert_eq!(emitted.as_bytes(), [&[1][..], &[4; 32], b"own"].concat());
    assert_eq!(Acceptance::parse(&emitted), Some(acceptance));
}

#[test]
fn consumer_security_is_limited_to_191_bytes() {
    for (bytes, fits) in [(0, true), (191, true), (192, false), (256, false)] {
        let security = Security::new(&[7; 256][..bytes]).unwrap();
        let (nonce, proof) = ([1; 32], [1; 32]);
        let response = ChallengeResponse {
            nonce,
            proof,
            security,
        };
        assert_eq!(response.emit().is_some(), fits);
        assert_eq!(Acceptance { proof, security }.emit().is_some(), fits);
    }
    // The field has space for more in an acceptance, but the limit is the same.
    let long = Security::new(&[1; 33 + 192]).unwrap();
    assert_eq!(Acceptance::parse(&long), None);
}

/// Generates bytes of any length, often of a length at a field boundary.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let edges = |bytes| any_vec(1..2u8, bytes);
    prop_oneof![
        any_vec(0..3u8, 0..=256),
        edges(32..=34),
        edges(64..=66),
        edges(223..=225),
    ]
}

proptest! {
    #![proptest_config(crate::seeded::config())]

    /// Parsed bytes encode to the same bytes; all others are refused.
    #[test]
    fn parse_of_any_bytes_round_trips_or_fails(bytes in any_bytes()) {
        let security = Security::new(&bytes).unwrap();
        let is_keyed = bytes.first() == Some(&1);
        let challenge = Challenge::parse(&security);
        prop_assert_eq!(challenge.is_some(), is_keyed && bytes.len() == 33);
        prop_assert!(challenge.is_none_or(|read| read.emit() == security));
        let response = ChallengeResponse::parse(&security);
        prop_assert_eq!(response.is_some(), is_keyed && bytes.len() >= 65);
        prop_assert!(response.is_none_or(|read| read.emit() == Some(security)));
        let acceptance = Acceptance::parse(&security);
        prop_assert_eq!(acceptance.is_some(), is_keyed && (33..=224).contains(&bytes.len()));
        prop_assert!(acceptance.is_none_or(|read| read.emit() == Some(security)));
    }
}

fn ce() -> CeHeader {
    CeHeader {
        attributes: Attributes {
            reliable: true,
            ..Attributes::default()
        },
        mtu_bytes: 0x0102_0304,
        calling: Discriminator::new(b"calling").unwrap(),
        called: Discriminator::new(b"called").unwrap(),
        read_window: 16,
        // Not part of a statement.
        security: Security::new(b"on the wire").unwrap(),
    }
}

fn emitted(statement: &Statement<'_>) -> Vec<u8> {
    statement.emit(&mut [0xEE; MAX_STATEMENT_BYTES]).to_vec()
}

#[test]
fn statement_matches_the_table() {
    let (ce, security) = (ce(), Security::new(b"consumer").unwrap());
    let statement = Statement {
        kind: ProofKind::Request,
        initiator: [1; 16],
        responder: [2; 16],
        challenge: [3; 32],
        nonce: [4; 32],
        message: 0x0506_0708,
        ce: &ce,
        security: &security,
    };
    let mut header = [0; 44];
    ce.emit_fixed(&mut header);
    let expected = [
        &b"VI/TCP request 1"[..],
        &[1; 16],
        &[2; 16],
        &[3; 32],
        &[4; 32],
        &[5, 6, 7, 8],
        &header,
        &[0, 8],
        b"consumer",
    ];
    assert_eq!(emitted(&statement), expected.concat());
    let longest = Security::new(&[9; 256]).unwrap();
    let longest = Statement {
        security: &longest,
        ..statement
    };
    assert_eq!(emitted(&longest).len(), 162 + 256);
}

#[test]
fn statements_differ_in_every_field() {
    let (ce, security) = (ce(), Security::new(b"consumer").unwrap());
    let first = Statement {
        kind: ProofKind::Request,
        initiator: [1; 16],
        responder: [2; 16],
        challenge: [3; 32],
        nonce: [4; 32],
        message: 5,
        ce: &ce,
        security: &security,
    };
    let changed: Vec<CeHeader> = [
        |ce: &mut CeHeader| ce.attributes.rdma_write = true,
        |ce: &mut CeHeader| ce.attributes.peer_to_peer = true,
        |ce: &mut CeHeader| ce.mtu_bytes += 1,
        |ce: &mut CeHeader| ce.calling = Discriminator::new(b"calling\0").unwrap(),
        |ce: &mut CeHeader| ce.called = Discriminator::new(b"calle").unwrap(),
        |ce: &mut CeHeader| ce.read_window += 1,
    ]
    .iter()
    .map(|change| {
        let mut other = ce;
        change(&mut other);
        other
    })
    .collect();
    let longer = Security::new(b"consumer\0").unwrap();
    let swapped = Statement {
        initiator: first.responder,
        responder: first.initiator,
        ..first
    };
    let mut all = vec![
        first,
        swapped,
        Statement {
            kind: ProofKind::Accept,
            ..first
        },
        Statement {
            challenge: [5; 32],
            ..first
        },
        Statement {
            nonce: [5; 32],
            ..first
        },
        Statement {
            message: 6,
            ..first
        },
        Statement {
            security: &longer,
            ..first
        },
    ];
    for ce in &changed {
        all.push(Statement { ce, ..first });
    }
    let different: BTreeSet<_> = all.iter().map(emitted).collect();
    assert_eq!(different.len(), all.len());
}
