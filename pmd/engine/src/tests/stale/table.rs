//! Writes docs/spec/synonym-checks.md: each check, its source file, its counters, and a test that fails without it.

use super::scenarios::Scenario;
use crate::Counter;
use crate::testkit::check_table::{self, Row};
use crate::testkit::document::compare;

const DOCUMENT: &str = "synonym-checks.md";
/// The sources of the tests.
const TESTS: [&str; 6] = [
    include_str!("../../handles.rs"),
    include_str!("rejected.rs"),
    include_str!("../disconnect.rs"),
    include_str!("../receive_checks.rs"),
    include_str!("../response_checks.rs"),
    include_str!("../recovery/checks.rs"),
];

macro_rules! row {
    ($check:ident, $rule:literal, $condition:literal, $file:literal, [$($counter:expr),*], $without:literal, $test:literal) => {
        Row {
            check: stringify!($check),
            rule: $rule,
            condition: $condition,
            file: $file,
            source: include_str!(concat!("../../", $file)),
            counters: &[$($counter.name()),*],
            without: $without,
            test: $test,
        }
    };
}

/// All checks.
const ROWS: [Row; 21] = [
    row!(
        Addresses,
        "1",
        "D_ID and the destination address are local, the source address is that of S_ID",
        "engine.rs",
        [Counter::DropBadAddress],
        "a port that receives frames of others (a flooding switch) accepts one of a connection with a similar handle",
        "no_stale_frame_of_other_connections_is_accepted"
    ),
    row!(
        Handle,
        "3",
        "FCVI_HANDLE is that of the VI's connection, not only its slot",
        "engine.rs",
        [Counter::DropUnknownHandle],
        "a frame of the VI's earlier connection with the same port",
        "no_stale_frame_is_accepted_when_frames_are_withheld"
    ),
    row!(
        Peer,
        "3",
        "S_ID is the VI's peer",
        "engine.rs",
        [Counter::DropWrongPeer],
        "covered by QuarantinedHandle: no two connections have one handle within R_A_TOV; against forged frames it is the first defence",
        "valid_handle_from_another_port_matches_no_vi"
    ),
    row!(
        OlderMessage,
        "4",
        "FCVI_MSG_ID is not older than the expected one",
        "reassembly.rs",
        [Counter::DropStaleMessage],
        "a delivered message is delivered again, or breaks a reliable connection as one that is far ahead",
        "no_stale_frame_of_one_connection_is_accepted"
    ),
    row!(
        MessageWindow,
        "4",
        "FCVI_MSG_ID is not further ahead than `message_window`",
        "reassembly.rs",
        [Counter::DropOutOfWindow],
        "covered by QuarantinedHandle: frames of this connection are never ahead of it",
        "messages_outside_the_window_are_dropped"
    ),
    row!(
        OpenMessage,
        "5",
        "a continuation frame has the FCVI_MSG_ID of the open message",
        "reassembly.rs",
        [Counter::DropOtherMessage],
        "a frame with the same OX_ID, SEQ_ID and SEQ_CNT, 256 uses of the OX_ID ago",
        "no_stale_frame_is_accepted_when_identifiers_wrap"
    ),
    row!(
        OpenExchange,
        "5",
        "a continuation frame has the OX_ID and SEQ_ID of the open message",
        "reassembly.rs",
        [Counter::DropSynonym],
        "covered by OpenMessage: a message and its retransmissions use one exchange",
        "continuation_frames_of_another_message_are_dropped"
    ),
    row!(
        SequenceCount,
        "5",
        "SEQ_CNT is the next one",
        "reassembly.rs",
        [Counter::DropDuplicate],
        "covered by RelativeOffset: no two frames of a message have one offset",
        "duplicate_frames_of_a_message_are_dropped"
    ),
    row!(
        RelativeOffset,
        "5",
        "the relative offset is the next one",
        "reassembly.rs",
        [Counter::DropDuplicate],
        "a frame of the same message, 65,536 frames ago; with recovery any frame that is placed",
        "no_stale_frame_is_accepted_with_recovery"
    ),
    row!(
        PlacedAhead,
        "5",
        "with recovery: the bytes of an out-of-order frame have not been placed",
        "reassembly.rs",
        [Counter::DropDuplicate],
        "bytes are placed and counted twice",
        "no_stale_frame_is_accepted_with_recovery"
    ),
    row!(
        AnsweredMessage,
        "7",
        "FCVI_MSG_ID of a response is that of a message in flight",
        "receive/response.rs",
        [Counter::DropStrayResponse],
        "the response to a message that used the same OX_ID: a send completes that is not placed",
        "no_stale_frame_is_accepted_when_identifiers_wrap"
    ),
    row!(
        AnsweredExchange,
        "7",
        "a response arrives on the exchange of its message",
        "receive/response.rs",
        [Counter::DropStrayResponse],
        "covered by AnsweredMessage",
        "responses_that_match_no_request_are_dropped"
    ),
    row!(
        OlderAcknowledgement,
        "7",
        "with recovery: an acknowledgement, separate or piggybacked, does not cover less than an earlier one",
        "recovery/outgoing.rs",
        [Counter::StaleAcknowledgements],
        "acknowledged messages count as unacknowledged again: they are probed and retransmitted, and fill the window",
        "no_stale_frame_is_accepted_with_recovery"
    ),
    row!(
        AcknowledgedMessage,
        "7",
        "with recovery: an acknowledgement does not cover more than was sent",
        "recovery/outgoing.rs",
        [Counter::DropStrayResponse],
        "covered by QuarantinedHandle: no acknowledgement of this connection covers more; without both, one of an earlier connection completes a send that is not placed",
        "invalid_acknowledgements_are_dropped"
    ),
    row!(
        KnownRequest,
        "connect",
        "(S_ID, FCVI_CONNECTION_ID) of a request is not that of one that is pending, refused, accepted or connected",
        "accept.rs",
        [Counter::KnownRequests],
        "one request is indicated to two consumers",
        "no_stale_connection_iu_is_accepted"
    ),
    row!(
        QuarantinedRequest,
        "connect",
        "(S_ID, FCVI_CONNECTION_ID) of a request is not that of one that was connected, cancelled or evicted less than R_A_TOV ago",
        "quarantine.rs",
        [Counter::DropLateRequest],
        "a consumer gets a request that no peer is making",
        "no_stale_connection_iu_is_accepted"
    ),
    row!(
        ConnectionId,
        "connect",
        "FCVI_CONNECTION_ID of RESP1, RESP2, RESP3 and both disconnect IUs is that of the procedure",
        "disconnect.rs",
        [Counter::DropStrayConnect, Counter::UnknownDisconnects],
        "a disconnect without handle cancels a later request; the response to an earlier one ends a disconnect",
        "no_stale_connection_iu_is_accepted"
    ),
    row!(
        ConnectionHandle,
        "connect",
        "the local handle in these IUs is that of the procedure",
        "endpoint.rs",
        [Counter::DropStrayConnect, Counter::UnknownDisconnects],
        "covered by ConnectionId; against forged frames the handle is the first defence",
        "disconnect_with_another_handle_is_dropped"
    ),
    row!(
        ConnectionPeer,
        "connect",
        "S_ID of these IUs is the port of the procedure",
        "disconnect.rs",
        [Counter::DropStrayConnect, Counter::UnknownDisconnects],
        "a disconnect of one port cancels the request of another one with the same connection ID",
        "no_stale_connection_iu_is_accepted"
    ),
    row!(
        QuarantinedHandle,
        "quarantine",
        "a released handle is not reused for R_A_TOV: a slot goes through all of its numbers first",
        "handles.rs",
        [],
        "a frame of the VI's earlier connection, once in 65,536 connections",
        "slot_reuses_a_handle_only_after_r_a_tov"
    ),
    row!(
        QuarantinedExchange,
        "quarantine",
        "the OX_ID of an abandoned exchange is not reused for R_A_TOV, that of an ADISC for twice that: a late request is answered late",
        "exchange.rs",
        [],
        "a response to an earlier ADISC: a lost port appears to be present",
        "late_probe_response_does_not_keep_a_lost_port"
    ),
];

const HEAD: &str = "# Stale frames: what each check is for

Made by `pmd/engine/src/tests/stale/table.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-engine stale::table`.

A frame can be in flight for R_A_TOV, and a network can duplicate it. It is intact then; only its identifiers show that
it is stale. In the model of `pmd/engine/src/tests/stale/` a network keeps every frame for R_A_TOV and, before each
frame, delivers older ones that are similar: with the same OX_ID, SEQ_ID and SEQ_CNT, or the same exchange, message,
offset or IU. Every block of a message or read identifies its message, and the model checks every placed byte, every
delivered message, every completed descriptor, and the state of both sides of each connection. No stale frame is
accepted. Without one of the checks a stale frame is accepted, or another check rejects it. Each check was removed once,
and the test in its row failed ([ADR 0059](../adr/0059-endpoint-and-context.md)): one of the model
(`stale/rejected.rs`) or, where another check rejects what the model sends, one of that check alone.

Rules are those of FCVI P-10, in the order in which a frame is checked. Counters are those of the NIC.
[stale-logins.md](stale-logins.md) has the checks of logins.

";

const TAIL: &str = "
Other rules of P-10, and limits:

| rule | implementation |
| --- | --- |
| 1: CRC, SOF, EOF; 2: header size against opcode | `drop_bad_crc`, `drop_malformed`, `drop_bad_iu`. They are for damaged or forged frames: every frame that was sent passes them, and the model finds that none of these counters changes |
| 4: a new message while the last one lacks frames | the old one failed (`incomplete_messages`): its FCVI_MSG_ID is older |
| 5: a continuation frame while no message is open | `drop_no_context`. At the reliable levels a continuation frame of a later message shows that its first frame is missing |
| 5: RX_ID | not compared: requests have none yet, and responses repeat the OX_ID |
| 6: abandoned contexts | need no list: their late frames have an older FCVI_MSG_ID (`drop_no_context`, `drop_other_message`, `drop_stale_message`), which OpenMessage and OlderMessage are tested for. While the message is still the newest, its remaining frames are discarded (`drop_discarded`) |
| 7: OX_ID of an acknowledgement | not compared: it is that of the newest frame received, of any message, and an acknowledgement that is repeated for a stale frame has an exchange that has ended at its originator. The contents of an acknowledgement are its FCVI_MSG_ID and offset |
| quarantine of handles and requests | all handles, by their order: a slot that goes through its numbers (4 million at 1024 VIs) within R_A_TOV has none until then (`no_handle`). At most 16,384 requests; if more end within R_A_TOV, a late copy of the oldest is indicated to a consumer, and fails because its RESP2 never arrives |
| a message ID wraps | after 2^32 messages of one direction of a connection, half of which must take longer than R_A_TOV: at 100 million messages a second it is 21 s |

## Scenarios

Legal traffic, with identifiers that wrap soon: the other OX_IDs of a port are occupied, frames are small, random numbers have few bits.

";

fn document() -> String {
    let checks = check_table::checks(&ROWS);
    let scenarios = Scenario::ALL.map(|s| format!("| {s:?} | {} |\n", s.seeds().count()));
    let scenarios = scenarios.concat();
    format!("{HEAD}{checks}{TAIL}| scenario | seeds |\n| --- | --- |\n{scenarios}")
}

#[test]
fn every_check_has_a_test() {
    for row in &ROWS {
        let test = format!("fn {}()", row.test);
        let exists = TESTS.iter().any(|source| source.contains(&test));
        assert!(exists, "{}: {test}", row.check);
    }
}

#[test]
fn document_matches_the_checks() {
    compare(DOCUMENT, "vi-engine stale::table", &document());
}
