//! Keys that are shared with other hosts, and what they prove.

use core::fmt;
use std::collections::BTreeMap;

use fcvi_frame::connect::HostAddress;
use ring::hmac;
use vitcp_lite::Statement;
use vitcp_lite::keyed::{MAX_STATEMENT_BYTES, Nonce, Proof};

use crate::sys::random_bytes;

/// The keys of a NIC: it speaks with nobody for whom it has none.
pub(crate) struct Keys {
    of: BTreeMap<HostAddress, Key>,
    others: Option<Key>,
}

/// A key that is shared with a host.
pub(super) struct Key(hmac::Key);

impl Keys {
    pub(crate) fn new() -> Self {
        Self {
            of: BTreeMap::new(),
            others: None,
        }
    }

    /// Adds the key for a host, or for all that have none of their own. False if there is one already.
    pub(crate) fn add(&mut self, host: Option<HostAddress>, key: &[u8]) -> bool {
        let key = Key::new(key);
        match host {
            Some(host) => self.of.insert(host, key).is_none(),
            None => self.others.replace(key).is_none(),
        }
    }

    /// Are there none?
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty() && self.others.is_none()
    }

    /// The key that is shared with a host.
    pub(super) fn of(&self, host: [u8; 16]) -> Option<&Key> {
        self.of.get(&HostAddress(host)).or(self.others.as_ref())
    }
}

/// Only for how many hosts there are keys.
impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Keys")
            .field("hosts", &self.of.len())
            .field("others", &self.others.is_some())
            .finish()
    }
}

impl Key {
    fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// What proves this.
    pub(super) fn prove(&self, statement: &Statement<'_>) -> Proof {
        let tag = hmac::sign(&self.0, statement.emit(&mut [0; MAX_STATEMENT_BYTES]));
        // A tag of SHA-256 is as long as a proof.
        tag.as_ref().try_into().unwrap_or_default()
    }

    /// Is it proven? That takes the same time, whatever is wrong.
    pub(super) fn is_proven(&self, statement: &Statement<'_>, proof: &Proof) -> bool {
        let said = &mut [0; MAX_STATEMENT_BYTES];
        hmac::verify(&self.0, statement.emit(said), proof).is_ok()
    }
}

/// What nobody can have foreseen.
pub(super) fn fresh() -> Nonce {
    let mut nonce = Nonce::default();
    random_bytes(&mut nonce);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitcp_lite::{Attributes, CeHeader, Discriminator, ExactLevel, Says, Security};

    /// Where each comes from, in Python:
    ///
    /// ```text
    /// host = lambda n: bytes(10) + b"\xff\xff" + bytes([192, 0, 2, n])
    /// ce = struct.pack(">HHI16sHH16s", 0x43, 6, 65536, b"client", 16, 6, b"server")
    /// said = (label + host(1) + host(2) + bytes(range(32)) + bytes(range(0x80, 0xA0))
    ///         + struct.pack(">I", 0x01020304) + ce + struct.pack(">H", len(own)) + own)
    /// hmac.new(bytes(range(key_bytes)), said, hashlib.sha256).hexdigest()
    /// ```
    ///
    /// with `label` either `b"VI/TCP request 1"` or `b"VI/TCP accept  1"`, and `own` so many bytes 0xA5.
    const VECTORS: [(usize, Says, usize, &str); 8] = [
        (
            16,
            Says::Request,
            0,
            "6e40bab0f5f4547e24039a460eb484c2335780d778a2092d7905eb2ee2049350",
        ),
        (
            16,
            Says::Request,
            191,
            "e7747b45d7931c19feac628074330489fab3b5ebab8732e8d0d6a9dd07c91332",
        ),
        (
            16,
            Says::Accept,
            0,
            "09a4e0b9a196c54c9d416e93904d8bcb1e05570851b36df27da6b8b76bcb4315",
        ),
        (
            16,
            Says::Accept,
            191,
            "94b15a80d6cc9c5e5d4f08734b3214909f0137ef7218f3cac2d4f316706a5a96",
        ),
        (
            64,
            Says::Request,
            0,
            "0f6fda4c381c852dfab0b85d42710aebd4605d149856bb65b0179997e087c61c",
        ),
        (
            64,
            Says::Request,
            191,
            "2d9a1f574985bca8b7e8b006a27c6c6dca6d35fe852e95f1fb0762b3fa5663ea",
        ),
        (
            64,
            Says::Accept,
            0,
            "6e2d3e51445140f887bb50fc7833bfe13a8d43cf36c8888fe814ccc952f00428",
        ),
        (
            64,
            Says::Accept,
            191,
            "7a0cbf59e387246eeb1cfd8cc8479754097ecea9accdd202c00a198784ba6d5b",
        ),
    ];

    fn host(last: u8) -> [u8; 16] {
        std::net::Ipv4Addr::new(192, 0, 2, last)
            .to_ipv6_mapped()
            .octets()
    }

    fn ce() -> CeHeader {
        CeHeader {
            attributes: Attributes {
                reliable: true,
                rdma_write: true,
                level: ExactLevel::Reception,
                ..Attributes::default()
            },
            mtu_bytes: 65536,
            calling: Discriminator::new(b"client").unwrap(),
            called: Discriminator::new(b"server").unwrap(),
            read_window: 16,
            security: Security::EMPTY,
        }
    }

    fn statement<'a>(says: Says, ce: &'a CeHeader, own: &'a Security) -> Statement<'a> {
        Statement {
            says,
            asking: host(1),
            asked: host(2),
            challenge: core::array::from_fn(|at| at as u8),
            nonce: core::array::from_fn(|at| 0x80 + at as u8),
            message: 0x0102_0304,
            ce,
            own,
        }
    }

    #[test]
    fn proofs_are_those_that_pythons_hmac_computes() {
        for (key_bytes, says, own_bytes, expected) in VECTORS {
            let bytes: [u8; 64] = core::array::from_fn(|at| at as u8);
            let key = Key::new(&bytes[..key_bytes]);
            let (ce, own) = (ce(), Security::new(&[0xA5; 191][..own_bytes]).unwrap());
            let statement = statement(says, &ce, &own);
            let proof = key.prove(&statement);
            let said: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(said, expected);
            assert!(key.is_proven(&statement, &proof));
        }
    }

    #[test]
    fn a_proof_with_one_bit_changed_proves_nothing() {
        let (ce, own) = (ce(), Security::EMPTY);
        let statement = statement(Says::Request, &ce, &own);
        let key = Key::new(&[1; 32]);
        let proof = key.prove(&statement);
        for bit in 0..256 {
            let mut other = proof;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_proven(&statement, &other));
        }
        assert!(!Key::new(&[2; 32]).is_proven(&statement, &proof));
        let says = Says::Accept;
        assert!(!key.is_proven(&Statement { says, ..statement }, &proof));
        assert_ne!(fresh(), fresh());
    }

    #[test]
    fn a_host_has_its_own_key_or_that_of_all_others_and_none_is_printed() {
        let mut keys = Keys::new();
        assert!(keys.is_empty() && keys.of(host(1)).is_none());
        assert!(keys.add(Some(HostAddress(host(1))), b"the key of host 1"));
        assert!(!keys.add(Some(HostAddress(host(1))), b"another key of it"));
        assert!(keys.of(host(2)).is_none());
        assert!(keys.add(None, b"the key of others"));
        assert!(!keys.add(None, b"another of others"));
        let (ce, own) = (ce(), Security::EMPTY);
        let statement = statement(Says::Request, &ce, &own);
        let proofs = [1, 2, 3].map(|last| keys.of(host(last)).unwrap().prove(&statement));
        assert_ne!(proofs[0], proofs[1]);
        assert_eq!(proofs[1], proofs[2]);
        assert_eq!(format!("{keys:?}"), "Keys { hosts: 1, others: true }");
    }
}
