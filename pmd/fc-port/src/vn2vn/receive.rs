//! Received frames: checked, and their effect.

use fcvi_frame::MacAddress;
use fcvi_frame::error::Field;
use fcvi_frame::fip::{FipView, Vn2vnFrame, Vn2vnMessage, VnPort};

use super::config::{MIN_FCOE_PDU_BYTES, is_vn2vn_id};
use super::counters::Vn2vnCounter;
use super::neighbour::{BeaconOutcome, Source};
use super::outbound::{Answer, Sender};
use super::{Input, Vn2vn, Vn2vnState};
use crate::Neighbour;

/// A frame that passed all checks.
struct Received {
    frame: Vn2vnFrame,
    to_all: bool,
    pdu_bytes: usize,
}

impl Vn2vn {
    /// Handles a FIP frame, from the destination address to the last byte before the Ethernet
    /// checksum. Link services are not for this machine; they are counted.
    pub fn handle_frame(&mut self, now_ns: u64, bytes: &[u8]) {
        match self.check(bytes) {
            Ok(received) => {
                self.counters.count(Vn2vnCounter::Rx);
                self.apply(now_ns, &received);
                self.reschedule();
            }
            Err(reason) => self.counters.count(reason),
        }
    }

    fn check(&self, bytes: &[u8]) -> Result<Received, Vn2vnCounter> {
        if self.state == Vn2vnState::Stopped {
            return Err(Vn2vnCounter::DropStopped);
        }
        let view = FipView::parse(bytes).map_err(|_| Vn2vnCounter::DropMalformed)?;
        let dst = view.ethernet.dst;
        let to_all = dst == MacAddress::ALL_VN2VN;
        if !to_all && dst != self.config.enode_mac {
            return Err(Vn2vnCounter::DropBadDestination);
        }
        let frame = view.vn2vn().map_err(|error| match error.field {
            Field::FipOperation => Vn2vnCounter::DropOtherOperation,
            _ => Vn2vnCounter::DropBadDescriptor,
        })?;
        let VnPort { enode_mac, id, .. } = frame.port;
        if !is_vn2vn_id(id.n_port_id) || id.port_name == 0 {
            return Err(Vn2vnCounter::DropBadIdentity);
        }
        if view.ethernet.src != frame.src()
            || enode_mac.is_multicast()
            || id.mac != MacAddress::vn2vn(id.n_port_id)
        {
            return Err(Vn2vnCounter::DropBadAddress);
        }
        if id.port_name == self.config.port_name && enode_mac == self.config.enode_mac {
            return Err(Vn2vnCounter::DropOwn);
        }
        let claim = frame.message.claim();
        if claim.is_some_and(|claim| claim.max_fcoe_bytes < MIN_FCOE_PDU_BYTES) {
            return Err(Vn2vnCounter::DropTooSmall);
        }
        Ok(Received {
            frame,
            to_all,
            pdu_bytes: view.pdu_bytes,
        })
    }

    /// Reports whether a port has lower precedence for an N_Port_ID: the larger name has
    /// precedence. A port with our own name is distinguished by its interface.
    fn yields(&self, port: &VnPort) -> bool {
        let theirs = (port.id.port_name, port.enode_mac);
        theirs < (self.config.port_name, self.config.enode_mac)
    }

    fn apply(&mut self, now_ns: u64, received: &Received) {
        let Received { frame, .. } = received;
        let port = &frame.port;
        let is_probe = matches!(
            frame.message,
            Vn2vnMessage::ProbeRequest | Vn2vnMessage::ProbeReply
        );
        let is_duplicate = port.id.port_name == self.config.port_name;
        if is_duplicate {
            self.counters.count(Vn2vnCounter::DropDuplicateName);
        }
        let is_response = matches!(frame.message, Vn2vnMessage::ClaimResponse(_));
        if frame.recorded && !is_probe && !is_response {
            // Not ours to decide: probe whether another port has our N_Port_ID.
            if self.answers.allow(now_ns, &mut self.counters) {
                self.broadcasts.probe = true;
            }
        } else if port.id.n_port_id == self.id {
            self.handle_own_id_frame(now_ns, frame);
        } else if is_probe {
            self.counters.count(Vn2vnCounter::DropOtherId);
        } else if !self.has_id() {
            self.counters.count(Vn2vnCounter::DropTooEarly);
        } else if !is_duplicate {
            self.handle_neighbour_frame(now_ns, received);
        }
    }

    /// Handles a frame of a port with our N_Port_ID.
    fn handle_own_id_frame(&mut self, now_ns: u64, frame: &Vn2vnFrame) {
        let port = &frame.port;
        let input = match frame.message {
            Vn2vnMessage::ProbeRequest => Input::Probed {
                enode_mac: port.enode_mac,
                yields: self.yields(port) && !frame.recorded,
            },
            Vn2vnMessage::ProbeReply => Input::Refused,
            Vn2vnMessage::ClaimNotification(_)
            | Vn2vnMessage::ClaimResponse(_)
            | Vn2vnMessage::Beacon => Input::Taken {
                yields: self.yields(port),
                port_name: port.id.port_name,
            },
        };
        self.step(now_ns, input);
    }

    /// Handles a frame of a neighbour.
    fn handle_neighbour_frame(&mut self, now_ns: u64, received: &Received) {
        let port = &received.frame.port;
        let (claim, source) = match received.frame.message {
            Vn2vnMessage::ClaimNotification(claim) => {
                let size_bytes = claim.max_fcoe_bytes.min(self.config.fcoe_bytes());
                let answer = Answer::Claim(port.enode_mac, size_bytes);
                let limiter = self.neighbours.answer_limiter(port);
                let sender = limiter.map_or(Sender::Other, Sender::Pinned);
                self.answers
                    .push(now_ns, answer, sender, &mut self.counters);
                if received.to_all {
                    (claim, Source::Notification)
                } else {
                    (claim, Source::PathTest)
                }
            }
            Vn2vnMessage::ClaimResponse(claim) => {
                let pdu_bytes = received.pdu_bytes;
                (claim, Source::Response { pdu_bytes })
            }
            Vn2vnMessage::Beacon => return self.handle_beacon(now_ns, port),
            // A probe is about an N_Port_ID, not about its sender.
            Vn2vnMessage::ProbeRequest | Vn2vnMessage::ProbeReply => return,
        };
        let neighbour = Neighbour::new(port, &claim, self.config.fc4.fc_type);
        let (config, counters) = (&self.config, &mut self.counters);
        self.neighbours
            .handle_claim(now_ns, neighbour, source, config, counters);
    }

    fn handle_beacon(&mut self, now_ns: u64, port: &VnPort) {
        match self.neighbours.handle_beacon(now_ns, port, &self.config) {
            BeaconOutcome::Known => {}
            BeaconOutcome::NoRoom => self.counters.count(Vn2vnCounter::DropNeighboursFull),
            BeaconOutcome::Unknown => {
                self.request_claims(now_ns);
            }
        }
    }

    /// Sends a claim to all, whose responses are claims of all, unless the last one is recent. Returns
    /// false if it is.
    pub(super) fn request_claims(&mut self, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.claimed_ns);
        let is_due = self.state == Vn2vnState::Up && since_ns >= self.config.announce_wait_ns;
        if is_due {
            self.claim(now_ns);
        }
        is_due
    }
}
