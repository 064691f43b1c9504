//! Challenge-response: hosts that share a key prove it before a request is reported to a consumer, and
//! before a VI is connected (docs/spec/vitcp.md, "Keyed challenge-response").
//!
//! ```text
//!   initiator                                responder
//!    |------- Connect Request ----------------->|  no secret
//!    |<------ Connect Reject: challenge --------|
//!    |------- Connect Request: nonce, proof --->|  verified before a listener is looked up
//!    |<------ Connect Accept: proof ------------|
//! ```

use vitcp_lite::keyed::{Acceptance, Challenge, ChallengeResponse, Proof, ProofKind, Statement};
use vitcp_lite::machine::responder::ResponderEvent;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{
    CeHeader, Flags, IsCode, RemoteError, Security, SegmentHeader, SegmentType, ViErrorType,
};

use super::connection::{Connection, Exchange, Stage};
use super::counters::Counter;
use super::keys::{Key, Keys, random_nonce};
use vitcp_lite::source::host_of;

/// Result of checking the proof of a Connect Request.
#[expect(
    clippy::large_enum_variant,
    reason = "it is destructured at once, and occurs once per connection"
)]
pub(super) enum RequestCheck {
    /// It may be matched; with the Security Information of its consumer.
    Accept(Security),
    /// Its sender must prove that it has the key.
    Challenge,
    /// It is refused; the counter of the reason.
    Refuse(Counter),
}

/// Why a response to a request of ours is refused: its counter, and a text for the log.
pub(super) type Refusal = (Counter, &'static str);

impl Connection {
    /// Checks the proof of a received Connect Request, if this NIC has keys.
    pub(super) fn check_request(
        &mut self,
        keys: Option<&Keys>,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> RequestCheck {
        let Some(keys) = keys else {
            return RequestCheck::Accept(ce.security);
        };
        let Some(key) = keys.of(host_of(self.remote)) else {
            return RequestCheck::Refuse(Counter::DropNoKey);
        };
        let Some(exchange) = self.exchange.as_deref() else {
            return RequestCheck::Challenge;
        };
        let response = ChallengeResponse::parse(&ce.security);
        let response = response.filter(|_| header.message == exchange.next);
        let proven = response.filter(|response| {
            let exchange = Exchange {
                nonce: Some(response.nonce),
                ..*exchange
            };
            let signed = (ProofKind::Request, header.message, ce, &response.security);
            self.is_proven(key, &exchange, signed, &response.proof)
        });
        let Some(response) = proven else {
            return RequestCheck::Refuse(Counter::DropWrongProof);
        };
        if let Some(exchange) = &mut self.exchange {
            exchange.nonce = Some(response.nonce);
        }
        RequestCheck::Accept(response.security)
    }

    /// Adds a challenge to the pending control segments; `number` becomes its message number.
    pub(super) fn put_challenge(&mut self, header: &SegmentHeader, ce: &CeHeader, number: u32) {
        self.advance(ResponderEvent::ProofRequired);
        let challenge = random_nonce();
        self.exchange = Some(Box::new(Exchange {
            challenge,
            nonce: None,
            next: header.message.wrapping_add(1),
        }));
        self.transfer.tx.number = number;
        // No attributes of a VI yet: those of the request are repeated.
        let reply = CeHeader {
            calling: ce.called,
            called: ce.calling,
            read_window: 0,
            security: Challenge { challenge }.emit(),
            ..*ce
        };
        let mut extension = [0; CE_HEADER_BYTES + MAX_SECURITY_BYTES];
        let extension_bytes = reply.emit(&mut extension).unwrap_or_default();
        let kind = SegmentType::ConnectReject;
        let segment_bytes = (SEGMENT_HEADER_BYTES + extension_bytes) as u16;
        let mut reject = SegmentHeader::new(kind, segment_bytes);
        reject.flags = Flags::END_OF_MESSAGE;
        reject.message = number;
        reject.ack = header.message;
        reject.remote_error = refusal(IsCode::Challenge);
        let tx = &mut self.transfer.tx;
        tx.put_control(&reject);
        tx.control.extend(extension.iter().take(extension_bytes));
    }

    /// Checks whether a received request can be accepted here. A keyed request cannot without keys: its sender requires
    /// a proof.
    pub(super) fn can_prove(&self, keys: Option<&Keys>) -> bool {
        keys.is_some() || self.exchange.is_none()
    }

    /// Adds the proof to the Security Information of `ce`, if this NIC has keys. Before a challenge it is left
    /// empty.
    pub(super) fn prove(
        &self,
        keys: Option<&Keys>,
        kind: ProofKind,
        message: u32,
        ce: &mut CeHeader,
    ) {
        if let Some(keys) = keys {
            let security = core::mem::take(&mut ce.security);
            let proven = self.proven(keys, (kind, message, &*ce, &security));
            ce.security = proven.unwrap_or_default();
        }
    }

    /// Takes a received challenge.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn take_challenge(
        &mut self,
        keys: Option<&Keys>,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> Result<(), Refusal> {
        match Challenge::parse(&ce.security) {
            _ if keys.is_none() => Err((
                Counter::KeyWanted,
                "the peer requires a key: set key_file of this NIC to a file with a key for it",
            )),
            _ if self.exchange.is_some() => {
                Err((Counter::DropUnproven, "the peer sent a second challenge"))
            }
            None => Err((
                Counter::DropUnproven,
                "the peer sent a challenge of an unsupported format",
            )),
            Some(Challenge { challenge }) => {
                self.exchange = Some(Box::new(Exchange {
                    challenge,
                    nonce: Some(random_nonce()),
                    next: header.message.wrapping_add(1),
                }));
                Ok(())
            }
        }
    }

    /// Verifies the proof of a received Connect Accept, if this NIC has keys. Returns the Security Information for the
    /// consumer.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn proven_acceptance(
        &self,
        keys: Option<&Keys>,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> Result<Security, Refusal> {
        let Some(keys) = keys else {
            return Ok(ce.security);
        };
        let refused = |why| (Counter::DropUnproven, why);
        let exchange = self.exchange.as_deref();
        let exchange = exchange.ok_or(refused(
            "the peer accepted without a challenge: it has no key_file",
        ))?;
        let key = keys.of(host_of(self.remote));
        let key = key.ok_or(refused("key_file of this NIC has no key for it"))?;
        let acceptance = Acceptance::parse(&ce.security);
        let acceptance = acceptance.ok_or(refused("the peer accepted without a proof"))?;
        let signed = (ProofKind::Accept, header.message, ce, &acceptance.security);
        let is_next = header.message == exchange.next;
        match is_next && self.is_proven(key, exchange, signed, &acceptance.proof) {
            true => Ok(acceptance.security),
            false => Err(refused(
                "invalid proof: check that both hosts have the same key for each other in key_file",
            )),
        }
    }

    /// Builds the statement of a proof; `None` before the initiator's nonce is known.
    fn statement<'a>(
        &self,
        exchange: &Exchange,
        (kind, message, ce, security): Signed<'a>,
    ) -> Option<Statement<'a>> {
        let (local, remote) = (host_of(self.local), host_of(self.remote));
        let (initiator, responder) = match self.stage {
            Stage::Requesting(_) => (local, remote),
            _ => (remote, local),
        };
        Some(Statement {
            kind,
            initiator,
            responder,
            challenge: exchange.challenge,
            nonce: exchange.nonce?,
            message,
            ce,
            security,
        })
    }

    fn proven(&self, keys: &Keys, signed: Signed<'_>) -> Option<Security> {
        let (kind, _, _, security) = signed;
        let exchange = self.exchange.as_deref()?;
        let key = keys.of(host_of(self.remote))?;
        let proof = key.prove(&self.statement(exchange, signed)?);
        let (nonce, security) = (exchange.nonce?, *security);
        match kind {
            ProofKind::Request => ChallengeResponse {
                nonce,
                proof,
                security,
            }
            .emit(),
            ProofKind::Accept => Acceptance { proof, security }.emit(),
        }
    }

    fn is_proven(&self, key: &Key, exchange: &Exchange, signed: Signed<'_>, proof: &Proof) -> bool {
        self.statement(exchange, signed)
            .is_some_and(|statement| key.is_proven(&statement, proof))
    }
}

/// What a proof signs: segment kind, message number, CE header, Security Information of the consumer.
type Signed<'a> = (ProofKind, u32, &'a CeHeader, &'a Security);

/// Returns the Remote Error Code of a Connect Reject.
pub(super) fn refusal(is_code: IsCode) -> RemoteError {
    RemoteError {
        vi_error: ViErrorType::None,
        is_code,
    }
}
