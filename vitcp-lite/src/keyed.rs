//! Keyed Security Information: the challenge and the proofs of hosts that share a key (docs/spec/vitcp.md, "Keyed
//! challenge-response"). All of it is ours.
//!
//! In a Connect Reject that is a challenge:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Format, 1 |
//! | 1 | 32 | Challenge: random, chosen by the responder for this connection |
//!
//! In the Connect Request that responds to it:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Format, 1 |
//! | 1 | 32 | Nonce: random, chosen by the initiator for this connection |
//! | 33 | 32 | Proof |
//! | 65 | 0 to 191 | Security Information of the consumer |
//!
//! In the Connect Accept:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Format, 1 |
//! | 1 | 32 | Proof |
//! | 33 | 0 to 191 | Security Information of the consumer |
//!
//! A proof is HMAC-SHA256, with the shared key, over a [`Statement`]:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 16 | Label: `VI/TCP request 1` or `VI/TCP accept  1` |
//! | 16 | 16 | IP address of the initiator, in IPv6 form |
//! | 32 | 16 | IP address of the responder |
//! | 48 | 32 | Challenge |
//! | 80 | 32 | Nonce |
//! | 112 | 4 | Message Number of the segment |
//! | 116 | 44 | its CE header, ignored bits 0 |
//! | 160 | 2 | length of the consumer's Security Information in bytes |
//! | 162 | 0 to 191 | Security Information of the consumer |

use crate::ce::CeHeader;
use crate::profile::{
    CE_HEADER_BYTES, KEYED_FORMAT, LABEL_ACCEPT, LABEL_REQUEST, MAX_KEYED_SECURITY_BYTES,
    MAX_SECURITY_BYTES, NONCE_BYTES, PROOF_BYTES,
};
use crate::security::Security;
use vi_types::fields::{Writer, tiles};

const LABEL: usize = 0;
const INITIATOR: usize = 16;
const RESPONDER: usize = 32;
const CHALLENGE: usize = 48;
const NONCE: usize = 80;
const MESSAGE: usize = 112;
const CE: usize = 116;
const LENGTH: usize = 160;
/// Bytes before the consumer's Security Information.
const FIXED_BYTES: usize = 162;
/// Bytes of a statement, at most.
pub const MAX_STATEMENT_BYTES: usize = FIXED_BYTES + MAX_SECURITY_BYTES;

const _: () = assert!(tiles(
    &[
        (LABEL, 16),
        (INITIATOR, 16),
        (RESPONDER, 16),
        (CHALLENGE, NONCE_BYTES),
        (NONCE, NONCE_BYTES),
        (MESSAGE, 4),
        (CE, CE_HEADER_BYTES),
        (LENGTH, 2),
    ],
    FIXED_BYTES
));

/// A random value for one connection.
pub type Nonce = [u8; NONCE_BYTES];
/// An HMAC-SHA256 tag, which proves that its sender has the key.
pub type Proof = [u8; PROOF_BYTES];

/// Returns the bytes after the format number; `None` for another format.
fn strip_format(security: &Security) -> Option<&[u8]> {
    match security.as_bytes().split_first() {
        Some((&KEYED_FORMAT, rest)) => Some(rest),
        Some(_) | None => None,
    }
}

/// Reads the consumer's Security Information; `None` if it is too long.
fn consumer_security(bytes: &[u8]) -> Option<Security> {
    match bytes.len() <= MAX_KEYED_SECURITY_BYTES {
        true => Security::new(bytes),
        false => None,
    }
}

/// The challenge of a Connect Reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Chosen by the responder.
    pub challenge: Nonce,
}

impl Challenge {
    /// Parses it; `None` if malformed.
    #[must_use]
    pub fn parse(security: &Security) -> Option<Self> {
        let challenge = strip_format(security)?.try_into().ok()?;
        Some(Self { challenge })
    }

    /// Encodes it.
    #[must_use]
    pub fn emit(&self) -> Security {
        Security::of_parts(&[&[KEYED_FORMAT], &self.challenge]).unwrap_or_default()
    }
}

/// The response to a challenge, in the next Connect Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeResponse {
    /// Chosen by the initiator.
    pub nonce: Nonce,
    /// Proves that the initiator has the key.
    pub proof: Proof,
    /// Security Information of the consumer.
    pub security: Security,
}

impl ChallengeResponse {
    /// Parses it; `None` if malformed.
    #[must_use]
    pub fn parse(security: &Security) -> Option<Self> {
        let (nonce, rest) = strip_format(security)?.split_first_chunk()?;
        let (proof, rest) = rest.split_first_chunk()?;
        Some(Self {
            nonce: *nonce,
            proof: *proof,
            security: consumer_security(rest)?,
        })
    }

    /// Encodes it; `None` if the consumer's Security Information is too long.
    #[must_use]
    pub fn emit(&self) -> Option<Security> {
        let security = self.security.as_bytes();
        Security::of_parts(&[&[KEYED_FORMAT], &self.nonce, &self.proof, security])
    }
}

/// The proof of a Connect Accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// Proves that the responder has the key.
    pub proof: Proof,
    /// Security Information of the consumer.
    pub security: Security,
}

impl Acceptance {
    /// Parses it; `None` if malformed.
    #[must_use]
    pub fn parse(security: &Security) -> Option<Self> {
        let (proof, rest) = strip_format(security)?.split_first_chunk()?;
        Some(Self {
            proof: *proof,
            security: consumer_security(rest)?,
        })
    }

    /// Encodes it; `None` if the consumer's Security Information is too long.
    #[must_use]
    pub fn emit(&self) -> Option<Security> {
        let security = consumer_security(self.security.as_bytes())?;
        Security::of_parts(&[&[KEYED_FORMAT], &self.proof, security.as_bytes()])
    }
}

/// The segment that carries a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofKind {
    /// The initiator's Connect Request.
    Request,
    /// The responder's Connect Accept.
    Accept,
}

/// The statement that a proof authenticates.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'a> {
    /// The segment that carries the proof.
    pub kind: ProofKind,
    /// IP address of the initiator, in IPv6 form.
    pub initiator: [u8; 16],
    /// IP address of the responder.
    pub responder: [u8; 16],
    /// Chosen by the responder.
    pub challenge: Nonce,
    /// Chosen by the initiator.
    pub nonce: Nonce,
    /// Message Number of the segment.
    pub message: u32,
    /// CE header of the segment; its Security Information is not part of the statement.
    pub ce: &'a CeHeader,
    /// Security Information of the consumer.
    pub security: &'a Security,
}

impl Statement<'_> {
    /// Writes the bytes that the proof is computed over to the front of `out`, and returns them.
    #[must_use]
    pub fn emit<'b>(&self, out: &'b mut [u8; MAX_STATEMENT_BYTES]) -> &'b [u8] {
        let security = self.security.as_bytes();
        let mut ce = [0; CE_HEADER_BYTES];
        self.ce.emit_fixed(&mut ce);
        if let Some((fixed, rest)) = out.split_first_chunk_mut::<FIXED_BYTES>() {
            let mut fixed = Writer(fixed);
            fixed.array::<LABEL, 16>(match self.kind {
                ProofKind::Request => *LABEL_REQUEST,
                ProofKind::Accept => *LABEL_ACCEPT,
            });
            fixed.array::<INITIATOR, 16>(self.initiator);
            fixed.array::<RESPONDER, 16>(self.responder);
            fixed.array::<CHALLENGE, NONCE_BYTES>(self.challenge);
            fixed.array::<NONCE, NONCE_BYTES>(self.nonce);
            fixed.u32::<MESSAGE>(self.message);
            fixed.array::<CE, CE_HEADER_BYTES>(ce);
            fixed.u16::<LENGTH>(security.len() as u16);
            if let Some(to) = rest.get_mut(..security.len()) {
                to.copy_from_slice(security);
            }
        }
        let (written, _) = out
            .split_at_checked(FIXED_BYTES.saturating_add(security.len()))
            .unwrap_or((out, &[]));
        written
    }
}

#[cfg(test)]
mod tests;
