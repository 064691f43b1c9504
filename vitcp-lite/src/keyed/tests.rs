//! Every part in its place, and proofs over all that has a meaning.

use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

use proptest::collection::vec as any_vec;
use proptest::prelude::*;

use super::*;
use crate::{Attributes, Discriminator};

#[test]
fn a_challenge_is_33_bytes_of_form_1() {
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
fn each_part_stands_where_the_table_has_it() {
    let own = Security::new(b"own").unwrap();
    let answer = Answer {
        nonce: [2; 32],
        proof: [3; 32],
        own,
    };
    let said = answer.emit().unwrap();
    assert_eq!(
        said.as_bytes(),
        [&[1][..], &[2; 32], &[3; 32], b"own"].concat()
    );
    assert_eq!(Answer::parse(&said), Some(answer));
    let acceptance = Acceptance {
        proof: [4; 32],
        own,
    };
    let said = acceptance.emit().unwrap();
    assert_eq!(said.as_bytes(), [&[1][..], &[4; 32], b"own"].concat());
    assert_eq!(Acceptance::parse(&said), Some(acceptance));
}

#[test]
fn the_consumers_have_191_bytes_either_way() {
    for (bytes, fits) in [(0, true), (191, true), (192, false), (256, false)] {
        let own = Security::new(&[7; 256][..bytes]).unwrap();
        let (nonce, proof) = ([1; 32], [1; 32]);
        let answer = Answer { nonce, proof, own }.emit();
        assert_eq!(answer.is_some(), fits);
        assert_eq!(Acceptance { proof, own }.emit().is_some(), fits);
    }
    // An acceptance has room for more, but says no more.
    let long = Security::new(&[1; 33 + 192]).unwrap();
    assert_eq!(Acceptance::parse(&long), None);
}

/// Of any length, and often of one at which something begins or ends.
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

    /// Whatever comes: what is read is what would be written, and anything else is refused.
    #[test]
    fn what_is_read_is_what_is_written(bytes in any_bytes()) {
        let security = Security::new(&bytes).unwrap();
        let is_ours = bytes.first() == Some(&1);
        let challenge = Challenge::parse(&security);
        prop_assert_eq!(challenge.is_some(), is_ours && bytes.len() == 33);
        prop_assert!(challenge.is_none_or(|read| read.emit() == security));
        let answer = Answer::parse(&security);
        prop_assert_eq!(answer.is_some(), is_ours && bytes.len() >= 65);
        prop_assert!(answer.is_none_or(|read| read.emit() == Some(security)));
        let acceptance = Acceptance::parse(&security);
        prop_assert_eq!(acceptance.is_some(), is_ours && (33..=224).contains(&bytes.len()));
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
        // Takes no part.
        security: Security::new(b"on the wire").unwrap(),
    }
}

fn said(statement: &Statement<'_>) -> Vec<u8> {
    statement.emit(&mut [0xEE; MAX_STATEMENT_BYTES]).to_vec()
}

#[test]
fn a_statement_is_as_the_table_has_it() {
    let (ce, own) = (ce(), Security::new(b"consumer").unwrap());
    let statement = Statement {
        says: Says::Request,
        asking: [1; 16],
        asked: [2; 16],
        challenge: [3; 32],
        nonce: [4; 32],
        message: 0x0506_0708,
        ce: &ce,
        own: &own,
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
    assert_eq!(said(&statement), expected.concat());
    let longest = Security::new(&[9; 256]).unwrap();
    let own = &longest;
    assert_eq!(said(&Statement { own, ..statement }).len(), 162 + 256);
}

#[test]
fn statements_that_differ_in_anything_differ() {
    let (ce, own) = (ce(), Security::new(b"consumer").unwrap());
    let first = Statement {
        says: Says::Request,
        asking: [1; 16],
        asked: [2; 16],
        challenge: [3; 32],
        nonce: [4; 32],
        message: 5,
        ce: &ce,
        own: &own,
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
        asking: first.asked,
        asked: first.asking,
        ..first
    };
    let mut all = vec![
        first,
        swapped,
        Statement {
            says: Says::Accept,
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
            own: &longer,
            ..first
        },
    ];
    for ce in &changed {
        all.push(Statement { ce, ..first });
    }
    let different: BTreeSet<_> = all.iter().map(said).collect();
    assert_eq!(different.len(), all.len());
}
