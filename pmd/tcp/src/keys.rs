//! Keys shared with other hosts, and proofs with them.

use core::fmt;
use std::collections::BTreeMap;

use ring::hmac;
use vi_core::sys::random_bytes;
use vi_types::HostAddress;
use vitcp_lite::Statement;
use vitcp_lite::keyed::{MAX_STATEMENT_BYTES, Nonce, Proof};

/// The keys of a NIC. It refuses connections with hosts without a key.
pub struct Keys {
    by_host: BTreeMap<HostAddress, Key>,
    default_key: Option<Key>,
}

/// A key shared with a host.
pub(super) struct Key(hmac::Key);

impl Keys {
    pub(super) fn new() -> Self {
        Self {
            by_host: BTreeMap::new(),
            default_key: None,
        }
    }

    /// Adds the key for a host, or the default key for all others. Returns false if there is one already.
    pub(super) fn add(&mut self, host: Option<HostAddress>, key: &[u8]) -> bool {
        let key = Key::new(key);
        match host {
            Some(host) => self.by_host.insert(host, key).is_none(),
            None => self.default_key.replace(key).is_none(),
        }
    }

    /// Checks whether there is no key.
    pub(super) fn is_empty(&self) -> bool {
        self.by_host.is_empty() && self.default_key.is_none()
    }

    /// Returns the key shared with a host.
    pub(super) fn of(&self, host: [u8; 16]) -> Option<&Key> {
        let key = self.by_host.get(&HostAddress(host));
        key.or(self.default_key.as_ref())
    }
}

/// Prints counts only, no key.
impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Keys")
            .field("hosts", &self.by_host.len())
            .field("others", &self.default_key.is_some())
            .finish()
    }
}

impl Key {
    fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Computes the proof of a statement.
    pub(super) fn prove(&self, statement: &Statement<'_>) -> Proof {
        let tag = hmac::sign(&self.0, statement.emit(&mut [0; MAX_STATEMENT_BYTES]));
        // An HMAC-SHA256 tag has the length of a proof.
        tag.as_ref().try_into().unwrap_or_default()
    }

    /// Verifies the proof of a statement, in constant time.
    pub(super) fn is_proven(&self, statement: &Statement<'_>, proof: &Proof) -> bool {
        let buffer = &mut [0; MAX_STATEMENT_BYTES];
        hmac::verify(&self.0, statement.emit(buffer), proof).is_ok()
    }
}

/// Returns an unpredictable nonce.
pub(super) fn random_nonce() -> Nonce {
    let mut nonce = Nonce::default();
    random_bytes(&mut nonce);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitcp_lite::{Attributes, CeHeader, Discriminator, ExactLevel, ProofKind, Security};

    /// Test vectors, computed in Python:
    ///
    /// ```text
    /// host = lambda n: bytes(10) + b"\xff\xff" + bytes([192, 0, 2, n])
    /// ce = struct.pack(">HHI16sHH16s", 0x43, 6, 65536, b"client", 16, 6, b"server")
    /// statement = (label + host(1) + host(2) + bytes(range(32)) + bytes(range(0x80, 0xA0))
    ///              + struct.pack(">I", 0x01020304) + ce
    ///              + struct.pack(">H", len(security)) + security)
    /// hmac.new(bytes(range(key_bytes)), statement, hashlib.sha256).hexdigest()
    /// ```
    ///
    /// with `label` either `b"VI/TCP request 1"` or `b"VI/TCP accept  1"`, and `security` that many bytes 0xA5.
    const VECTORS: [(usize, ProofKind, usize, &str); 8] = [
        (
            16,
            ProofKind::Request,
            0,
            "6e40bab0f5f4547e24039a460eb484c2335780d778a2092d7905eb2ee2049350",
        ),
        (
            16,
            ProofKind::Request,
            191,
            "e7747b45d7931c19feac628074330489fab3b5ebab8732e8d0d6a9dd07c91332",
        ),
        (
            16,
            ProofKind::Accept,
            0,
            "09a4e0b9a196c54c9d416e93904d8bcb1e05570851b36df27da6b8b76bcb4315",
        ),
        (
            16,
            ProofKind::Accept,
            191,
            "94b15a80d6cc9c5e5d4f08734b3214909f0137ef7218f3cac2d4f316706a5a96",
        ),
        (
            64,
            ProofKind::Request,
            0,
            "0f6fda4c381c852dfab0b85d42710aebd4605d149856bb65b0179997e087c61c",
        ),
        (
            64,
            ProofKind::Request,
            191,
            "2d9a1f574985bca8b7e8b006a27c6c6dca6d35fe852e95f1fb0762b3fa5663ea",
        ),
        (
            64,
            ProofKind::Accept,
            0,
            "6e2d3e51445140f887bb50fc7833bfe13a8d43cf36c8888fe814ccc952f00428",
        ),
        (
            64,
            ProofKind::Accept,
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

    fn statement<'a>(kind: ProofKind, ce: &'a CeHeader, security: &'a Security) -> Statement<'a> {
        Statement {
            kind,
            initiator: host(1),
            responder: host(2),
            challenge: core::array::from_fn(|at| at as u8),
            nonce: core::array::from_fn(|at| 0x80 + at as u8),
            message: 0x0102_0304,
            ce,
            security,
        }
    }

    #[test]
    fn proofs_match_vectors_of_another_implementation() {
        for (key_bytes, kind, security_bytes, expected) in VECTORS {
            let bytes: [u8; 64] = core::array::from_fn(|at| at as u8);
            let key = Key::new(&bytes[..key_bytes]);
            let (ce, security) = (ce(), Security::new(&[0xA5; 191][..security_bytes]).unwrap());
            let statement = statement(kind, &ce, &security);
            let proof = key.prove(&statement);
            let hex: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected);
            assert!(key.is_proven(&statement, &proof));
        }
    }

    #[test]
    fn proof_with_any_bit_changed_is_invalid() {
        let (ce, security) = (ce(), Security::EMPTY);
        let statement = statement(ProofKind::Request, &ce, &security);
        let key = Key::new(&[1; 32]);
        let proof = key.prove(&statement);
        for bit in 0..256 {
            let mut other = proof;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_proven(&statement, &other));
        }
        assert!(!Key::new(&[2; 32]).is_proven(&statement, &proof));
        let kind = ProofKind::Accept;
        assert!(!key.is_proven(&Statement { kind, ..statement }, &proof));
        assert_ne!(random_nonce(), random_nonce());
    }

    #[test]
    fn key_of_host_or_default_is_found_and_not_printed() {
        let mut keys = Keys::new();
        assert!(keys.is_empty() && keys.of(host(1)).is_none());
        assert!(keys.add(Some(HostAddress(host(1))), b"the key of host 1"));
        assert!(!keys.add(Some(HostAddress(host(1))), b"another key of it"));
        assert!(keys.of(host(2)).is_none());
        assert!(keys.add(None, b"the key of others"));
        assert!(!keys.add(None, b"another of others"));
        let (ce, security) = (ce(), Security::EMPTY);
        let statement = statement(ProofKind::Request, &ce, &security);
        let proofs = [1, 2, 3].map(|last| keys.of(host(last)).unwrap().prove(&statement));
        assert_ne!(proofs[0], proofs[1]);
        assert_eq!(proofs[1], proofs[2]);
        assert_eq!(format!("{keys:?}"), "Keys { hosts: 1, others: true }");
    }
}
