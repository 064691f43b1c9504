//! Ends that share a key prove it before a consumer hears of a request, and before a VI is connected
//! (docs/spec/vitcp.md, "Keyed challenge-response").
//!
//! ```text
//!   asks                                     is asked
//!    |------- Connect Request ----------------->|  nothing but what the first one says anyway
//!    |<------ Connect Reject: challenge --------|
//!    |------- Connect Request: nonce, proof --->|  looked at before anybody who waits is
//!    |<------ Connect Accept: proof ------------|
//! ```

use fcvi_frame::connect::HostAddress;
use vi_engine::ConnectError;
use vitcp_lite::keyed::{Acceptance, Answer, Challenge, Nonce, Proof, Says, Statement};
use vitcp_lite::machine::passive::PassiveEvent;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{
    CeHeader, Flags, IsCode, RemoteError, Security, SegmentHeader, SegmentType, ViErrorType,
};

use super::ViTcp;
use super::active::Event;
use super::connection::{Connection, Stage};
use super::counters::Counter;
use super::keys::{Key, Keys, fresh};
use super::timers::Key as Timer;
use crate::config::ip_address;

/// What two ends prove on a connection that they have a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// Made up by the asked end.
    pub(super) challenge: Nonce,
    /// Made up by the asking end; the asked one waits for it at first.
    pub(super) nonce: Option<Nonce>,
    /// The number of the other end's next message.
    pub(super) next: u32,
}

/// What is to be done about a Connect Request.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made, once a connection"
)]
pub(super) enum Judgement {
    /// Whoever waits for it may hear of it, and of this that its consumer says.
    Hear(Security),
    /// Its sender is to prove itself first.
    Challenge,
    /// It is refused for this reason.
    Refuse(Counter),
}

impl ViTcp {
    /// Is a Connect Request to be heard?
    pub(super) fn judge(
        &mut self,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> Judgement {
        let Some(connection) = self.connection(number) else {
            return Judgement::Refuse(Counter::DropWrongProof);
        };
        let Some(keys) = &self.keys else {
            return Judgement::Hear(ce.security);
        };
        let Some(key) = keys.of(connection.far.host) else {
            return Judgement::Refuse(Counter::DropNoKey);
        };
        let Some(exchange) = connection.exchange.as_deref() else {
            return Judgement::Challenge;
        };
        let answer = Answer::parse(&ce.security).filter(|_| header.message == exchange.next);
        let proven = answer.filter(|answer| {
            let exchange = Exchange {
                nonce: Some(answer.nonce),
                ..*exchange
            };
            let said = (Says::Request, header.message, ce, &answer.own);
            is_proven(key, connection, &exchange, said, &answer.proof)
        });
        let Some(answer) = proven else {
            return Judgement::Refuse(Counter::DropWrongProof);
        };
        if let Some(connection) = self.connection_mut(number)
            && let Some(exchange) = &mut connection.exchange
        {
            exchange.nonce = Some(answer.nonce);
        }
        Judgement::Hear(answer.own)
    }

    /// Who asks must prove itself, on the same TCP connection, and has a while to do so.
    pub(super) fn challenge(
        &mut self,
        now_ns: u64,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        random: u32,
    ) {
        let answer_ns = self.settings.answer_ns;
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if let Stage::Incoming(state) = &mut connection.stage {
            (*state, _) = state.on(PassiveEvent::Unproven);
        }
        let challenge = fresh();
        connection.exchange = Some(Box::new(Exchange {
            challenge,
            nonce: None,
            next: header.message.wrapping_add(1),
        }));
        connection.tx.number = random;
        // Of a VI there is nothing to be said yet.
        let said = CeHeader {
            calling: ce.called,
            called: ce.calling,
            read_window: 0,
            security: Challenge { challenge }.emit(),
            ..*ce
        };
        let mut behind = [0; CE_HEADER_BYTES + MAX_SECURITY_BYTES];
        let behind_bytes = said.emit(&mut behind).unwrap_or_default();
        let kind = SegmentType::ConnectReject;
        let mut answer = SegmentHeader::new(kind, (SEGMENT_HEADER_BYTES + behind_bytes) as u16);
        answer.flags = Flags::END_OF_MESSAGE;
        answer.message = random;
        answer.ack = header.message;
        answer.remote_error = refusal(IsCode::Challenge);
        super::closing::put_control(connection, &answer);
        let control = &mut connection.tx.control;
        control.extend(behind.iter().take(behind_bytes));
        // If TCP is gone that is read, too.
        let _gone = super::closing::write_control(connection);
        self.counters.count(Counter::Challenges);
        self.timers
            .set(now_ns + answer_ns, Timer::Connection(number));
        // The answer may be there already, of which nobody is told again.
        self.queue(number);
    }

    /// Who asks has not proven itself: nobody hears of the request.
    pub(super) fn disproved(
        &mut self,
        now_ns: u64,
        number: u32,
        header: &SegmentHeader,
        why: Counter,
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        if let Stage::Incoming(state) = &mut connection.stage {
            (*state, _) = state.on(PassiveEvent::Disproved);
        }
        let far = connection.far.address().ip();
        log::debug!(
            "connection request of {far} refused: counter={}",
            why.name()
        );
        self.counters.count(why);
        let (kind, error) = (SegmentType::ConnectReject, refusal(IsCode::Security));
        self.refuse(now_ns, number, header.message, (kind, error));
    }

    /// May a request on this connection be heard here? Not if it proves something that there are no
    /// keys for: its sender would not take our word for an answer.
    pub(super) fn can_prove(&self, number: u32) -> bool {
        let connection = self.connection(number);
        self.keys.is_some() || connection.is_none_or(|connection| connection.exchange.is_none())
    }

    /// What a VI says of itself, with our proof where there are keys: nothing as long as there is no
    /// challenge.
    pub(super) fn prove(&self, number: u32, says: Says, message: u32, ce: &mut CeHeader) {
        if let Some(keys) = &self.keys {
            let own = core::mem::take(&mut ce.security);
            let said = (says, message, &*ce, &own);
            let proven = self.connection(number).and_then(|c| proven(keys, c, said));
            ce.security = proven.unwrap_or_default();
        }
    }

    /// A challenge came: what happens to the request then.
    pub(super) fn challenged(
        &mut self,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
    ) -> Event {
        let has_keys = self.keys.is_some();
        let Some(connection) = self.connection_mut(number) else {
            return Event::Reject(ConnectError::Rejected);
        };
        let (counter, why) = match Challenge::parse(&ce.security) {
            _ if !has_keys => (
                Counter::KeyWanted,
                "it wants a key: set key_file of this NIC to a file that has one for it",
            ),
            _ if connection.exchange.is_some() => {
                (Counter::DropUnproven, "it has challenged us twice")
            }
            None => (
                Counter::DropUnproven,
                "its challenge is of a form that is not known here",
            ),
            Some(Challenge { challenge }) => {
                connection.exchange = Some(Box::new(Exchange {
                    challenge,
                    nonce: Some(fresh()),
                    next: header.message.wrapping_add(1),
                }));
                // What follows may be there already, of which nobody is told again.
                self.queue(number);
                return Event::Challenge;
            }
        };
        self.refuse_answer(number, counter, why);
        Event::Reject(ConnectError::Rejected)
    }

    /// What an acceptance says to a consumer, if it is proven where there are keys.
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
        let connection = self.connection(number).ok_or("it is gone")?;
        let exchange = connection.exchange.as_deref();
        let exchange = exchange.ok_or("it accepts without a challenge: it has no key_file")?;
        let key = keys.of(connection.far.host).ok_or("there is no key")?;
        let acceptance = Acceptance::parse(&ce.security).ok_or("it accepts without a proof")?;
        let said = (Says::Accept, header.message, ce, &acceptance.own);
        let is_next = header.message == exchange.next;
        match is_next && is_proven(key, connection, exchange, said, &acceptance.proof) {
            true => Ok(acceptance.own),
            false => Err("its proof is wrong: is the key the same at both ends?"),
        }
    }

    /// Somebody whom we ask does not prove what it should.
    pub(super) fn refuse_answer(&mut self, number: u32, counter: Counter, why: &str) {
        self.counters.count(counter);
        if let Some(connection) = self.connection(number) {
            let far = connection.far.address();
            let line = format_args!("connection to {} refused: {why}", far.ip());
            self.log_limited(log::Level::Warn, line);
        }
    }

    /// Nobody is asked for whom there is no key. True if it may be asked.
    pub(super) fn has_key_for(&mut self, host: [u8; 16]) -> bool {
        let has = (self.keys.as_ref()).is_none_or(|keys| keys.of(host).is_some());
        if !has {
            self.counters.count(Counter::DropNoKey);
            let far = ip_address(HostAddress(host));
            let line =
                format_args!("no connection to {far}: key_file of this NIC has no key for it");
            self.log_limited(log::Level::Warn, line);
        }
        has
    }
}

/// Why a Connect Reject is sent.
pub(super) fn refusal(is_code: IsCode) -> RemoteError {
    RemoteError {
        vi_error: ViErrorType::None,
        is_code,
    }
}

/// What one end says in a message of this number, with this CE header, for its consumer.
type Said<'a> = (Says, u32, &'a CeHeader, &'a Security);

/// `None` if the asking end has said nothing yet.
fn statement<'a>(
    connection: &Connection,
    exchange: &Exchange,
    (says, message, ce, own): Said<'a>,
) -> Option<Statement<'a>> {
    let (near, far) = (connection.near.host, connection.far.host);
    let (asking, asked) = match connection.stage {
        Stage::Asking(_) => (near, far),
        _ => (far, near),
    };
    Some(Statement {
        says,
        asking,
        asked,
        challenge: exchange.challenge,
        nonce: exchange.nonce?,
        message,
        ce,
        own,
    })
}

fn proven(keys: &Keys, connection: &Connection, said: Said<'_>) -> Option<Security> {
    let (says, _, _, own) = said;
    let exchange = connection.exchange.as_deref()?;
    let key = keys.of(connection.far.host)?;
    let proof = key.prove(&statement(connection, exchange, said)?);
    let (nonce, own) = (exchange.nonce?, *own);
    match says {
        Says::Request => Answer { nonce, proof, own }.emit(),
        Says::Accept => Acceptance { proof, own }.emit(),
    }
}

fn is_proven(
    key: &Key,
    connection: &Connection,
    exchange: &Exchange,
    said: Said<'_>,
    proof: &Proof,
) -> bool {
    statement(connection, exchange, said).is_some_and(|statement| key.is_proven(&statement, proof))
}
