//! A TCP connection.

use std::net::SocketAddr;

use vi_types::{NetAddress, ViIndex, ViParams};
use vitcp_lite::keyed::Nonce;
use vitcp_lite::machine::responder::{ResponderEvent, ResponderState};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{CeHeader, Flags, Item, Segment};

use super::socket::Stream;
use super::stream_error::{is_budget_spent, is_tls_error, is_would_block, needs_turn};

use super::unbound::Unbound;
use vitcp_lite::transfer::Transfer;

/// Stage of a TCP connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// Opened for the connection request of this VI.
    Requesting(ViIndex),
    /// Accepted; no Connect Request is received, or its proof is pending.
    Incoming(ResponderState),
    /// A Connect Request is received; the consumer's decision is pending.
    RequestReceived(Box<ReceivedRequest>),
    /// The peer disconnected before the consumer's decision.
    PeerGone,
    /// Bound to this VI.
    Connected(ViIndex),
    /// Closing: the peer has time to read what was sent.
    Closing,
}

/// A Connect Request that waits for the consumer's decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) state: ResponderState,
    pub(super) ce: CeHeader,
    /// Its message number.
    pub(super) number: u32,
    /// Receives that the peer has posted.
    pub(super) rx_posted: u16,
    /// The peer's address and discriminator.
    pub(super) remote: NetAddress,
    pub(super) attributes: ViParams,
}

/// Challenge-response exchange on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// Chosen by the responder.
    pub(super) challenge: Nonce,
    /// Chosen by the initiator; `None` at the responder until it is received.
    pub(super) nonce: Option<Nonce>,
    /// Expected number of the peer's next message.
    pub(super) next: u32,
}

/// One TCP connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) transfer: Transfer,
    /// Security Information of the peer's consumer.
    pub(super) security: Vec<u8>,
    /// Challenge and nonce of a keyed connection, until it is bound to a VI.
    pub(super) exchange: Option<Box<Exchange>>,
    /// The TCP connect has succeeded or failed.
    pub(super) established: bool,
    /// It is queued for one of the next polls.
    pub(super) queued: bool,
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    /// The peer has closed: after the data that is left to read, the stream ends.
    pub(super) peer_closed: bool,
    /// A write failed: the connection breaks when nothing is left to read.
    pub(super) write_failed: bool,
    /// Our sending direction is shut down.
    pub(super) send_closed: bool,
    /// The timeout of an accepted connection is set.
    pub(super) timer_started: bool,
    /// TCP may have space again for TLS data that waits.
    pub(super) must_flush: bool,
    /// Its TLS handshake waits for a turn.
    pub(super) handshake_waits: bool,
    /// Its TLS handshake has had a turn, or is our own.
    pub(super) handshake_started: bool,
    /// Set if it counts towards a limit of connections without a VI.
    pub(super) unbound: Option<Unbound>,
}

/// Result of reading a connection without a VI.
pub(super) enum ReadOutcome {
    Nothing,
    /// A segment of connection establishment.
    Segment(Box<Segment>),
    /// The peer closed the connection, or it broke.
    Closed,
    /// Invalid VI/TCP data, or more than is allowed.
    Malformed,
    /// The TLS handshake failed.
    TlsFailed,
    /// The system calls of one poll are used up: there may be more data.
    BudgetSpent,
    /// The TLS handshake has received data, and needs a turn.
    NeedsTurn,
}

impl Connection {
    /// Creates the state of a TCP connection, outgoing or accepted.
    pub(super) fn new(
        stream: Stream,
        (local, remote): (SocketAddr, SocketAddr),
        generation: u32,
        stage: Stage,
    ) -> Self {
        let is_outgoing = matches!(stage, Stage::Requesting(_));
        Self {
            stream,
            local,
            remote,
            generation,
            stage,
            transfer: Transfer::default(),
            security: Vec::new(),
            exchange: None,
            established: !is_outgoing,
            queued: false,
            may_read: !is_outgoing,
            may_write: !is_outgoing,
            peer_closed: false,
            write_failed: false,
            send_closed: false,
            timer_started: false,
            must_flush: false,
            handshake_waits: false,
            handshake_started: is_outgoing,
            unbound: None,
        }
    }

    /// Returns its epoll user data: generation and number.
    pub(super) fn epoll_data(&self, number: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(number)
    }

    /// Returns the VI that it is bound to.
    pub(super) fn vi(&self) -> Option<ViIndex> {
        match self.stage {
            Stage::Connected(vi) => Some(vi),
            Stage::Requesting(_)
            | Stage::Incoming(_)
            | Stage::RequestReceived(_)
            | Stage::PeerGone
            | Stage::Closing => None,
        }
    }

    /// Checks that it has this generation and kind, and that no consumer knows of it.
    pub(super) fn is_evictable(&self, unbound: Unbound, generation: u32) -> bool {
        let is_unknown = match &self.stage {
            Stage::Incoming(_) | Stage::Closing => true,
            Stage::Requesting(_)
            | Stage::RequestReceived(_)
            | Stage::PeerGone
            | Stage::Connected(_) => false,
        };
        is_unknown && self.generation == generation && self.unbound == Some(unbound)
    }

    /// Checks whether a challenge was sent on it.
    pub(super) fn is_challenged(&self) -> bool {
        matches!(&self.stage, Stage::Incoming(state) if *state == ResponderState::Challenged)
    }

    /// Returns its Connect Request that waits for the consumer's decision.
    pub(super) fn received_request(&self) -> Option<&ReceivedRequest> {
        match &self.stage {
            Stage::RequestReceived(request) => Some(request),
            _ => None,
        }
    }

    /// Passes an event to the state machine of an incoming connection; returns its state, `None` for any other.
    pub(super) fn advance(&mut self, event: ResponderEvent) -> Option<ResponderState> {
        let state = match &mut self.stage {
            Stage::Incoming(state) => state,
            Stage::RequestReceived(request) => &mut request.state,
            Stage::Requesting(_) | Stage::PeerGone | Stage::Connected(_) | Stage::Closing => {
                return None;
            }
        };
        (*state, _) = state.on(event);
        Some(*state)
    }

    /// Reads the next segment of connection establishment, and no byte after it.
    pub(super) fn read_control(&mut self) -> ReadOutcome {
        loop {
            if !self.may_read {
                return ReadOutcome::Nothing;
            }
            // Before a connection is established segments have headers only: at least these bytes are
            // missing.
            let mut bytes = [0; SEGMENT_HEADER_BYTES];
            let decoder = &mut self.transfer.rx.decoder;
            let missing = decoder.missing_bytes().min(bytes.len());
            let Some(buffer) = bytes.get_mut(..missing) else {
                return ReadOutcome::Malformed;
            };
            let got = match self.stream.receive_bytes(buffer) {
                Ok(0) => return ReadOutcome::Closed,
                Ok(got) => got,
                Err(error) if is_would_block(&error) => {
                    self.may_read = false;
                    return ReadOutcome::Nothing;
                }
                Err(error) if is_budget_spent(&error) => return ReadOutcome::BudgetSpent,
                Err(error) if needs_turn(&error) => return ReadOutcome::NeedsTurn,
                Err(error) if is_tls_error(&error) => return ReadOutcome::TlsFailed,
                Err(_) => return ReadOutcome::Closed,
            };
            let Some(mut input) = bytes.get(..got) else {
                return ReadOutcome::Malformed;
            };
            match decoder.next(&mut input) {
                Ok(None) => {}
                Ok(Some(Item::Segment(segment))) => {
                    let header = &segment.header;
                    let is_whole =
                        header.flags.contains(Flags::END_OF_MESSAGE) && header.data_offset == 0;
                    return match is_whole {
                        true => ReadOutcome::Segment(Box::new(segment)),
                        false => ReadOutcome::Malformed,
                    };
                }
                Ok(Some(Item::Payload { .. })) | Err(_) => return ReadOutcome::Malformed,
            }
        }
    }

    /// Writes pending control segments as far as TCP takes them. Returns false if the connection is broken.
    pub(super) fn write_control(&mut self) -> bool {
        let control = &mut self.transfer.tx.control;
        while !control.is_empty() {
            match self.stream.send_bytes(control) {
                Ok(written) => drop(control.drain(..written)),
                Err(error) if is_would_block(&error) => {
                    self.may_write = false;
                    return true;
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// As [`Connection::write_control`]; a broken connection is reported by the next read.
    pub(super) fn try_write_control(&mut self) {
        let _reported_later = self.write_control();
    }

    /// Discards received data, with at most `max_reads` reads. Returns true if the peer has closed, or the connection
    /// broke.
    pub(super) fn discard_received(&mut self, max_reads: u32) -> bool {
        has_peer_closed(max_reads, || self.stream.discard())
    }
}

fn has_peer_closed(max_reads: u32, mut read: impl FnMut() -> std::io::Result<usize>) -> bool {
    for _ in 0..max_reads {
        match read() {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return !is_would_block(&error),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn has_peer_closed_limits_reads_of_an_active_peer() {
        const MAX_READS: u32 = 4;
        let mut reads = 0;
        let closed = has_peer_closed(MAX_READS, || {
            reads += 1;
            assert!(reads <= MAX_READS, "the peer controls the number of reads");
            Ok(1)
        });
        assert!(!closed);
        assert!(has_peer_closed(MAX_READS, || Ok(0)));
        let would_block = || Err(io::ErrorKind::WouldBlock.into());
        assert!(!has_peer_closed(MAX_READS, would_block));
        let reset = || Err(io::ErrorKind::ConnectionReset.into());
        assert!(has_peer_closed(MAX_READS, reset));
    }
}
