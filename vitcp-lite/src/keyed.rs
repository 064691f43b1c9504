//! Security Information of ends that share a key (docs/spec/vitcp.md, "Keyed challenge-response"). All of it is ours.
//!
//! In a Connect Reject that is a challenge:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Form, 1 |
//! | 1 | 32 | Challenge: made up by the asked end, for this connection alone |
//!
//! In the Connect Request behind it:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Form, 1 |
//! | 1 | 32 | Nonce: made up by the asking end, for this connection alone |
//! | 33 | 32 | Proof |
//! | 65 | 0 to 191 | the consumer's own |
//!
//! In the Connect Accept:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | Form, 1 |
//! | 1 | 32 | Proof |
//! | 33 | 0 to 191 | the consumer's own |
//!
//! A proof is HMAC-SHA256, by the shared key, over a [`Statement`]:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 16 | Label: `VI/TCP request 1` or `VI/TCP accept  1` |
//! | 16 | 16 | IP address of the asking end, in IPv6 form |
//! | 32 | 16 | IP address of the asked end |
//! | 48 | 32 | Challenge |
//! | 80 | 32 | Nonce |
//! | 112 | 4 | Message Number of the segment |
//! | 116 | 44 | its CE header, with 0 where that is ignored |
//! | 160 | 2 | bytes of the consumer's own |
//! | 162 | 0 to 191 | the consumer's own |

use crate::ce::CeHeader;
use crate::profile::{
    CE_HEADER_BYTES, KEYED_FORM, LABEL_ACCEPT, LABEL_REQUEST, MAX_KEYED_SECURITY_BYTES,
    MAX_SECURITY_BYTES, NONCE_BYTES, PROOF_BYTES,
};
use crate::security::Security;
use crate::wire::{Writer, tiles};

const LABEL: usize = 0;
const ASKING: usize = 16;
const ASKED: usize = 32;
const CHALLENGE: usize = 48;
const NONCE: usize = 80;
const MESSAGE: usize = 112;
const CE: usize = 116;
const LENGTH: usize = 160;
/// Bytes before the consumer's own.
const FIXED_BYTES: usize = 162;
/// Bytes of a statement, at most.
pub const MAX_STATEMENT_BYTES: usize = FIXED_BYTES + MAX_SECURITY_BYTES;

const _: () = assert!(tiles(
    &[
        (LABEL, 16),
        (ASKING, 16),
        (ASKED, 16),
        (CHALLENGE, NONCE_BYTES),
        (NONCE, NONCE_BYTES),
        (MESSAGE, 4),
        (CE, CE_HEADER_BYTES),
        (LENGTH, 2),
    ],
    FIXED_BYTES
));

/// What an end makes up for one connection.
pub type Nonce = [u8; NONCE_BYTES];
/// What proves that its sender has the key.
pub type Proof = [u8; PROOF_BYTES];

/// What stands behind the form; `None` if that is another one.
fn behind_form(security: &Security) -> Option<&[u8]> {
    match security.as_bytes().split_first() {
        Some((&KEYED_FORM, rest)) => Some(rest),
        Some(_) | None => None,
    }
}

/// The consumer's own; `None` if it is too long.
fn own(bytes: &[u8]) -> Option<Security> {
    match bytes.len() <= MAX_KEYED_SECURITY_BYTES {
        true => Security::new(bytes),
        false => None,
    }
}

/// What the asked end says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Made up by the asked end.
    pub challenge: Nonce,
}

impl Challenge {
    /// Reads it; `None` if it is none.
    #[must_use]
    pub fn parse(security: &Security) -> Option<Self> {
        let challenge = behind_form(security)?.try_into().ok()?;
        Some(Self { challenge })
    }

    /// As it goes over the wire.
    #[must_use]
    pub fn emit(&self) -> Security {
        Security::of_parts(&[&[KEYED_FORM], &self.challenge]).unwrap_or_default()
    }
}

/// What the asking end says then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Made up by the asking end.
    pub nonce: Nonce,
    /// That it has the key.
    pub proof: Proof,
    /// The consumer's own.
    pub own: Security,
}

impl Answer {
    /// Reads it; `None` if it is none.
    #[must_use]
    pub fn parse(security: &Security) -> Option<Self> {
        let (nonce, rest) = behind_form(security)?.split_first_chunk()?;
        let (proof, rest) = rest.split_first_chunk()?;
        Some(Self {
            nonce: *nonce,
            proof: *proof,
            own: own(rest)?,
        })
    }

    /// As it goes over the wire; `None` if the consumer's own is too long.
    #[must_use]
    pub fn emit(&self) -> Option<Security> {
        let own = self.own.as_bytes();
        Security::of_parts(&[&[KEYED_FORM], &self.nonce, &self.proof, own])
    }
}

/// What the asked end accepts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// That it has the key.
    pub proof: Proof,
    /// The consumer's own.
    pub own: Security,
}

impl Acceptance {
    /// Reads it; `None` if it is none.
    #[must_use]
    pub fn parse(security: &Security) -> Option<Self> {
        let (proof, rest) = behind_form(security)?.split_first_chunk()?;
        Some(Self {
            proof: *proof,
            own: own(rest)?,
        })
    }

    /// As it goes over the wire; `None` if the consumer's own is too long.
    #[must_use]
    pub fn emit(&self) -> Option<Security> {
        let own = own(self.own.as_bytes())?;
        Security::of_parts(&[&[KEYED_FORM], &self.proof, own.as_bytes()])
    }
}

/// Which end says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// The asking one, in its Connect Request.
    Request,
    /// The asked one, in its Connect Accept.
    Accept,
}

/// What is proven.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'a> {
    /// By which end.
    pub says: Says,
    /// The address of the asking end, in IPv6 form.
    pub asking: [u8; 16],
    /// The address of the asked end.
    pub asked: [u8; 16],
    /// Of the asked end.
    pub challenge: Nonce,
    /// Of the asking end.
    pub nonce: Nonce,
    /// Message Number of the segment in which it is said.
    pub message: u32,
    /// The CE header of that segment; its Security Information takes no part.
    pub ce: &'a CeHeader,
    /// What the consumer says with it.
    pub own: &'a Security,
}

impl Statement<'_> {
    /// Writes what the proof is computed over to the front of `out`, and gives it.
    #[must_use]
    pub fn emit<'b>(&self, out: &'b mut [u8; MAX_STATEMENT_BYTES]) -> &'b [u8] {
        let own = self.own.as_bytes();
        let mut ce = [0; CE_HEADER_BYTES];
        self.ce.emit_fixed(&mut ce);
        if let Some((fixed, rest)) = out.split_first_chunk_mut::<FIXED_BYTES>() {
            let mut fixed = Writer(fixed);
            fixed.array::<LABEL, 16>(match self.says {
                Says::Request => *LABEL_REQUEST,
                Says::Accept => *LABEL_ACCEPT,
            });
            fixed.array::<ASKING, 16>(self.asking);
            fixed.array::<ASKED, 16>(self.asked);
            fixed.array::<CHALLENGE, NONCE_BYTES>(self.challenge);
            fixed.array::<NONCE, NONCE_BYTES>(self.nonce);
            fixed.u32::<MESSAGE>(self.message);
            fixed.array::<CE, CE_HEADER_BYTES>(ce);
            fixed.u16::<LENGTH>(own.len() as u16);
            if let Some(place) = rest.get_mut(..own.len()) {
                place.copy_from_slice(own);
            }
        }
        let (said, _) = out
            .split_at_checked(FIXED_BYTES.saturating_add(own.len()))
            .unwrap_or((out, &[]));
        said
    }
}

#[cfg(test)]
mod tests;
