//! The error table: the effects of each error at each reliability level, and the sides that observe them.
//!
//! The guide refers to an error table that it does not contain; these rows are derived from its text and from the
//! VI Architecture.

/// A reliability level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Ud,
    Rd,
    Rr,
}

impl Level {
    pub(crate) const ALL: [Self; 3] = [Self::Ud, Self::Rd, Self::Rr];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ud => "UD",
            Self::Rd => "RD",
            Self::Rr => "RR",
        }
    }
}

/// A row of the table.
pub(crate) struct Row {
    /// Name in the declarations of the tests.
    pub(crate) name: &'static str,
    pub(crate) event: &'static str,
    /// Effects at each level.
    pub(crate) follows: [&'static str; 3],
    /// Sides that observe the effects.
    pub(crate) sides: &'static [&'static str],
}

const SENDER_AND_RECEIVER: &[&str] = &["sender", "receiver"];
const CONSUMER_AND_PEER: &[&str] = &["consumer", "peer"];
const CONSUMER: &[&str] = &["consumer"];

#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    Row { name: "local_error", event: "a send, write or read descriptor has a FORMAT, PROTECTION or LENGTH error; a message longer than MaxTransferSize counts as LENGTH", sides: SENDER_AND_RECEIVER, follows: [
        "it completes with that error; the receiver observes nothing; stays Connected",
        "it completes with that error, then break",
        "as RD"] },
    Row { name: "no_receive", event: "a message arrives while no receive is posted", sides: SENDER_AND_RECEIVER, follows: [
        "dropped; async RECVQ_EMPTY at the receiver; stays Connected",
        "async RECVQ_EMPTY at the receiver, break",
        "as RD, and the send REMOTE_DESC_ERROR"] },
    Row { name: "receive_too_small", event: "the receive is too small for the message", sides: SENDER_AND_RECEIVER, follows: [
        "the receive LENGTH_ERROR with Length 0; stays Connected",
        "the same, then break",
        "as RD, and the send REMOTE_DESC_ERROR"] },
    Row { name: "receive_malformed", event: "the receive is malformed or its memory is invalid", sides: SENDER_AND_RECEIVER, follows: [
        "the receive FORMAT_ERROR or PROTECTION_ERROR; stays Connected",
        "the same, then break",
        "as RD, and the send REMOTE_DESC_ERROR"] },
    Row { name: "write_refused", event: "an RDMA write without immediate data is refused: memory handle, range, protection tag, access right of the region or of the VI", sides: SENDER_AND_RECEIVER, follows: [
        "nothing written; async RDMAW_PROT at the target; stays Connected",
        "nothing written; async RDMAW_PROT at the target, break",
        "as RD, and the write RDMA_PROT_ERROR"] },
    Row { name: "write_with_immediate_refused", event: "the same with immediate data", sides: SENDER_AND_RECEIVER, follows: [
        "nothing written; the target's receive PROTECTION_ERROR, no async error; stays Connected",
        "the same, then break",
        "as RD, and the write RDMA_PROT_ERROR"] },
    Row { name: "read_refused", event: "an RDMA read is refused", sides: SENDER_AND_RECEIVER, follows: [
        "reads are not supported: VIP_INVALID_RDMAREAD for the VI, FORMAT_ERROR for a posted read",
        "the read RDMA_PROT_ERROR; async RDMAR_PROT at the target; break",
        "as RD"] },
    Row { name: "frame_missing", event: "a frame of a message that consumes a receive is damaged or missing", sides: SENDER_AND_RECEIVER, follows: [
        "the receive TRANSPORT_ERROR and PARTIAL_ERROR; stays Connected",
        "the same, then break",
        "as RD, and the send TRANSPORT_ERROR"] },
    Row { name: "frame_of_a_write_missing", event: "a frame of an RDMA write without immediate data is missing", sides: SENDER_AND_RECEIVER, follows: [
        "not reported",
        "async RDMAW_ABORT at the target, break",
        "as RD, and the write TRANSPORT_ERROR"] },
    Row { name: "frame_of_a_write_damaged", event: "a frame of an RDMA write without immediate data is damaged", sides: SENDER_AND_RECEIVER, follows: [
        "not reported",
        "async RDMAW_DATA at the target, break",
        "as RD, and the write TRANSPORT_ERROR"] },
    Row { name: "message_lost", event: "a whole message is lost", sides: SENDER_AND_RECEIVER, follows: [
        "not detected",
        "the next receive TRANSPORT_ERROR, or async RDMA_TRANSPORT; break",
        "as RD, and the send TRANSPORT_ERROR"] },
    Row { name: "peer_disconnects", event: "the peer calls VipDisconnect", sides: CONSUMER_AND_PEER, follows: [
        "async CONN_LOST, Error; nothing at the peer", "as UD", "as UD"] },
    Row { name: "peer_closes", event: "the peer closes its NIC and exits", sides: CONSUMER_AND_PEER, follows: [
        "async CONN_LOST, Error", "as UD", "as UD"] },
    Row { name: "peer_dies", event: "the peer is killed", sides: CONSUMER_AND_PEER, follows: [
        "async CONN_LOST, Error", "as UD", "as UD"] },
    Row { name: "overrun", event: "more descriptors are posted than MaxDescriptorsPerQueue", sides: CONSUMER_AND_PEER, follows: [
        "async VI_OVERRUN, Error; CONN_LOST at the peer", "as UD", "as UD"] },
    Row { name: "memory_deregistered", event: "a region that contains a posted descriptor is deregistered", sides: CONSUMER_AND_PEER, follows: [
        "async COMP_PROT on its completion, Error; CONN_LOST at the peer", "as UD", "as UD"] },
    Row { name: "send_posted_unconnected", event: "a send is posted in Idle or Connect Pending", sides: CONSUMER, follows: [
        "accepted; completes immediately with DESC_FLUSHED_ERROR", "as UD", "as UD"] },
    Row { name: "receive_posted_unconnected", event: "a receive is posted in Idle or Connect Pending", sides: CONSUMER, follows: [
        "accepted and kept", "as UD", "as UD"] },
    Row { name: "send_posted_in_error", event: "a send is posted in Error", sides: CONSUMER, follows: [
        "accepted; completes immediately with DESC_FLUSHED_ERROR", "as UD", "as UD"] },
    Row { name: "receive_posted_in_error", event: "a receive is posted in Error", sides: CONSUMER, follows: [
        "accepted; completes immediately with DESC_FLUSHED_ERROR", "as UD", "as UD"] },
    Row { name: "disconnect_in_any_state", event: "VipDisconnect in Idle, Connect Pending, Connected, Error", sides: CONSUMER, follows: [
        "both queues flushed, Idle", "as UD", "as UD"] },
    Row { name: "destroy_requires_idle", event: "VipDestroyVi in a state other than Idle, or with descriptors on its queues", sides: CONSUMER, follows: [
        "VIP_INVALID_STATE", "as UD", "as UD"] },
];
