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

use vi_types::{CallError, HostAddress};
use vitcp_lite::keyed::{Acceptance, Challenge, ChallengeResponse, Proof, ProofKind, Statement};
use vitcp_lite::machine::responder::ResponderEvent;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{
    CeHeader, Flags, IsCode, RemoteError, Security, SegmentHeader, SegmentType, ViErrorType,
};

use super::ViTcp;
use super::connection::{Connection, Exchange, Stage};
use super::counters::Counter;
use super::initiator::Event;
use super::keys::{Key, Keys, random_nonce};
use super::socket::host_of;
use super::timers::TimerKey;
use crate::config::ip_address;

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

impl ViTcp {
    /// Checks the proof of a Connect Request, if this NIC has keys.
    pub(super) fn check_request(
        &mut self,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> RequestCheck {
        let Some(connection) = self.connection(number) else {
            return RequestCheck::Refuse(Counter::DropWrongProof);
        };
        let Some(keys) = &self.keys else {
            return RequestCheck::Accept(ce.security);
        };
        let Some(key) = keys.of(host_of(connection.remote)) else {
            return RequestCheck::Refuse(Counter::DropNoKey);
        };
        let Some(exchange) = connection.exchange.as_deref() else {
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
            is_proven(key, connection, &exchange, signed, &response.proof)
        });
        let Some(response) = proven else {
            return RequestCheck::Refuse(Counter::DropWrongProof);
        };
        if let Some(connection) = self.connection_mut(number)
            && let Some(exchange) = &mut connection.exchange
        {
            exchange.nonce = Some(response.nonce);
        }
        RequestCheck::Accept(response.security)
    }

    /// Sends a challenge on the connection of a request, and starts the timeout for the response.
    pub(super) fn challenge(
        &mut self,
        now_ns: u64,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        random: u32,
    ) {
        let response_timeout_ns = self.settings.response_timeout_ns;
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if let Stage::Incoming(state) = &mut connection.stage {
            (*state, _) = state.on(ResponderEvent::ProofRequired);
        }
        let challenge = random_nonce();
        connection.exchange = Some(Box::new(Exchange {
            challenge,
            nonce: None,
            next: header.message.wrapping_add(1),
        }));
        connection.tx.number = random;
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
        reject.message = random;
        reject.ack = header.message;
        reject.remote_error = refusal(IsCode::Challenge);
        super::closing::put_control(connection, &reject);
        let control = &mut connection.tx.control;
        control.extend(extension.iter().take(extension_bytes));
        // A broken connection is reported by the next read.
        let _ignored = super::closing::write_control(connection);
        self.counters.count(Counter::Challenges);
        self.timers
            .set(now_ns + response_timeout_ns, TimerKey::Connection(number));
        // The response may be readable already, which epoll does not report again.
        self.queue(number);
    }

    /// Refuses a request without a valid proof.
    pub(super) fn refuse_unproven(
        &mut self,
        now_ns: u64,
        number: u32,
        header: &SegmentHeader,
        counter: Counter,
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if let Stage::Incoming(state) = &mut connection.stage {
            (*state, _) = state.on(ResponderEvent::ProofFailed);
        }
        let remote = connection.remote.ip();
        log::debug!(
            "vi-tcp listener: connection request refused: host={remote} counter={}",
            counter.name()
        );
        self.counters.count(counter);
        let (kind, error) = (SegmentType::ConnectReject, refusal(IsCode::Security));
        self.refuse(now_ns, number, header.message, (kind, error));
    }

    /// Checks whether a request on this connection can be accepted here. A keyed request cannot without keys:
    /// its sender requires a proof.
    pub(super) fn can_prove(&self, number: u32) -> bool {
        let connection = self.connection(number);
        self.keys.is_some() || connection.is_none_or(|connection| connection.exchange.is_none())
    }

    /// Adds the proof to the Security Information of `ce`, if this NIC has keys. Before a challenge it is left
    /// empty.
    pub(super) fn prove(&self, number: u32, kind: ProofKind, message: u32, ce: &mut CeHeader) {
        if let Some(keys) = &self.keys {
            let security = core::mem::take(&mut ce.security);
            let signed = (kind, message, &*ce, &security);
            let proven = self
                .connection(number)
                .and_then(|c| proven(keys, c, signed));
            ce.security = proven.unwrap_or_default();
        }
    }

    /// Processes a challenge. Returns the event for the request.
    pub(super) fn on_challenge(
        &mut self,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> Event {
        let has_keys = self.keys.is_some();
        let Some(connection) = self.connection_mut(number) else {
            return Event::Reject(CallError::Rejected);
        };
        let (counter, why) = match Challenge::parse(&ce.security) {
            _ if !has_keys => (
                Counter::KeyWanted,
                "the peer requires a key: set key_file of this NIC to a file with a key for it",
            ),
            _ if connection.exchange.is_some() => {
                (Counter::DropUnproven, "the peer sent a second challenge")
            }
            None => (
                Counter::DropUnproven,
                "the peer sent a challenge of an unsupported format",
            ),
            Some(Challenge { challenge }) => {
                connection.exchange = Some(Box::new(Exchange {
                    challenge,
                    nonce: Some(random_nonce()),
                    next: header.message.wrapping_add(1),
                }));
                // More may be readable already, which epoll does not report again.
                self.queue(number);
                return Event::Challenge;
            }
        };
        self.log_refused_peer(number, counter, why);
        Event::Reject(CallError::Rejected)
    }

    /// Verifies the proof of a Connect Accept, if this NIC has keys. Returns the Security Information for the
    /// consumer.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) fn proven_acceptance(
        &self,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> Result<Security, &'static str> {
        let Some(keys) = &self.keys else {
            return Ok(ce.security);
        };
        let connection = self.connection(number).ok_or("the connection is closed")?;
        let exchange = connection.exchange.as_deref();
        let exchange =
            exchange.ok_or("the peer accepted without a challenge: it has no key_file")?;
        let key = keys.of(host_of(connection.remote));
        let key = key.ok_or("key_file of this NIC has no key for it")?;
        let acceptance = Acceptance::parse(&ce.security);
        let acceptance = acceptance.ok_or("the peer accepted without a proof")?;
        let signed = (ProofKind::Accept, header.message, ce, &acceptance.security);
        let is_next = header.message == exchange.next;
        match is_next && is_proven(key, connection, exchange, signed, &acceptance.proof) {
            true => Ok(acceptance.security),
            false => Err(
                "invalid proof: check that both hosts have the same key for each other in key_file",
            ),
        }
    }

    /// Counts and logs the refusal of a peer that we connect to.
    pub(super) fn log_refused_peer(&mut self, number: u32, counter: Counter, why: &str) {
        self.counters.count(counter);
        if let Some(connection) = self.connection(number) {
            let remote = connection.remote.ip();
            let line = format_args!("connection to {remote} refused: {why}");
            self.log_limited(log::Level::Warn, line);
        }
    }

    /// Checks that there is a key for a host, if this NIC has keys; otherwise counts and logs it.
    pub(super) fn has_key_for(&mut self, host: [u8; 16]) -> bool {
        let has = (self.keys.as_ref()).is_none_or(|keys| keys.of(host).is_some());
        if !has {
            self.counters.count(Counter::DropNoKey);
            let remote = ip_address(HostAddress(host));
            let line = format_args!(
                "connection to {remote} refused: key_file of this NIC has no key for it"
            );
            self.log_limited(log::Level::Warn, line);
        }
        has
    }
}

/// Returns the Remote Error Code of a Connect Reject.
pub(super) fn refusal(is_code: IsCode) -> RemoteError {
    RemoteError {
        vi_error: ViErrorType::None,
        is_code,
    }
}

/// What a proof signs: segment kind, message number, CE header, Security Information of the consumer.
type Signed<'a> = (ProofKind, u32, &'a CeHeader, &'a Security);

/// Builds the statement of a proof; `None` before the initiator's nonce is known.
fn statement<'a>(
    connection: &Connection,
    exchange: &Exchange,
    (kind, message, ce, security): Signed<'a>,
) -> Option<Statement<'a>> {
    let (local, remote) = (host_of(connection.local), host_of(connection.remote));
    let (initiator, responder) = match connection.stage {
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

fn proven(keys: &Keys, connection: &Connection, signed: Signed<'_>) -> Option<Security> {
    let (kind, _, _, security) = signed;
    let exchange = connection.exchange.as_deref()?;
    let key = keys.of(host_of(connection.remote))?;
    let proof = key.prove(&statement(connection, exchange, signed)?);
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

fn is_proven(
    key: &Key,
    connection: &Connection,
    exchange: &Exchange,
    signed: Signed<'_>,
    proof: &Proof,
) -> bool {
    statement(connection, exchange, signed)
        .is_some_and(|statement| key.is_proven(&statement, proof))
}
