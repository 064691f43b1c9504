//! docs/spec/synonym-checks.md: each check, where it is made, what it counts, and the test that
//! shows what it is for.

use std::fmt::Write;

use super::scenes::Scene;
use crate::Counter;
use crate::login::LoginCounter;
use crate::synonym::Check;
use crate::testkit::document::compare;

const DOCUMENT: &str = "synonym-checks.md";
const TESTS: &str = include_str!("needed.rs");

struct Row {
    check: Check,
    /// Its place in the order of the checks [FCVI P-10].
    rule: &'static str,
    says: &'static str,
    file: &'static str,
    source: &'static str,
    counters: &'static [&'static str],
    /// What a stale frame does without it, or what else tells it then.
    without: &'static str,
    test: &'static str,
}

macro_rules! row {
    ($check:ident, $rule:literal, $says:literal, $file:literal, [$($counter:expr),*], $without:literal, $test:literal) => {
        Row {
            check: Check::$check,
            rule: $rule,
            says: $says,
            file: $file,
            source: include_str!(concat!("../../", $file)),
            counters: &[$($counter.name()),*],
            without: $without,
            test: $test,
        }
    };
}

/// All of them.
const ROWS: [Row; 24] = [
    row!(
        Addresses,
        "1",
        "D_ID and the destination address are ours, the source address is that of S_ID",
        "receive.rs",
        [Counter::DropBadAddress],
        "a port that hears frames of others (a flooding switch) takes one of a connection whose handle is like its own",
        "addresses_are_needed"
    ),
    row!(
        Handle,
        "3",
        "FCVI_HANDLE is that of the VI's connection, not only its place",
        "receive.rs",
        [Counter::DropUnknownHandle],
        "a frame of the VI's earlier connection with the same port",
        "handle_is_needed"
    ),
    row!(
        Peer,
        "3",
        "S_ID is the VI's peer",
        "receive.rs",
        [Counter::DropWrongPeer],
        "DeadHandle tells it: no two connections have one handle within R_A_TOV; for frames that are forged it is the first line",
        "peer_is_covered_by_dead_handle"
    ),
    row!(
        OlderMessage,
        "4",
        "FCVI_MSG_ID is not before the one that is expected",
        "receive.rs",
        [Counter::DropStaleMessage],
        "a message that was delivered is delivered again, or breaks a reliable connection as one that is far ahead",
        "older_message_is_needed"
    ),
    row!(
        MessageWindow,
        "4",
        "FCVI_MSG_ID is not further ahead than `message_window`",
        "receive.rs",
        [Counter::DropOutOfWindow],
        "DeadHandle tells it: frames of this connection are never ahead of it",
        "message_window_is_covered_by_dead_handle"
    ),
    row!(
        OpenMessage,
        "5",
        "a further frame has the FCVI_MSG_ID of the open message",
        "receive.rs",
        [Counter::DropOtherMessage],
        "a frame with the same OX_ID, SEQ_ID and SEQ_CNT, 256 uses of the OX_ID ago",
        "open_message_is_needed"
    ),
    row!(
        OpenExchange,
        "5",
        "a further frame has the OX_ID and SEQ_ID of the open message",
        "receive.rs",
        [Counter::DropSynonym],
        "OpenMessage tells it: a message is on one exchange, and so is what is sent again of it",
        "open_exchange_is_covered_by_open_message"
    ),
    row!(
        SequenceCount,
        "5",
        "SEQ_CNT is the next one",
        "receive/follows.rs",
        [Counter::DropDuplicate],
        "RelativeOffset tells it: no two frames of a message have one offset",
        "sequence_count_is_covered_by_relative_offset"
    ),
    row!(
        RelativeOffset,
        "5",
        "the relative offset is the next one",
        "receive/follows.rs",
        [Counter::DropDuplicate],
        "a frame of the same message, 65,536 frames ago; with recovery any one that is placed",
        "relative_offset_is_needed"
    ),
    row!(
        PlacedAhead,
        "5",
        "with recovery: the bytes of a frame ahead of order are not there yet",
        "recovery/incoming.rs",
        [Counter::DropDuplicate],
        "bytes are placed and counted twice",
        "placed_ahead_is_needed"
    ),
    row!(
        AnsweredMessage,
        "7",
        "FCVI_MSG_ID of an answer is that of a message in flight",
        "receive/response.rs",
        [Counter::DropStrayResponse],
        "the response to a message that used the same OX_ID: a send completes that is not placed",
        "answered_message_is_needed"
    ),
    row!(
        AnsweredExchange,
        "7",
        "an answer comes on the exchange of its message",
        "receive/response.rs",
        [Counter::DropStrayResponse],
        "AnsweredMessage tells it",
        "answered_exchange_is_covered_by_answered_message"
    ),
    row!(
        OlderAcknowledgement,
        "7",
        "with recovery: an acknowledgement, by itself or carried, does not say less than one before",
        "recovery/outgoing.rs",
        [Counter::StaleAcknowledgements],
        "what is acknowledged counts as unacknowledged again: it is asked for and sent again, and the window is full of it",
        "older_acknowledgement_is_needed"
    ),
    row!(
        AcknowledgedMessage,
        "7",
        "nor does it say more than was sent",
        "recovery/outgoing.rs",
        [Counter::DropStrayResponse],
        "DeadHandle tells it: no acknowledgement of this connection says more; without both, one of an earlier connection completes a send that is not placed",
        "acknowledged_message_is_covered_by_dead_handle"
    ),
    row!(
        KnownRequest,
        "connect",
        "(S_ID, FCVI_CONNECTION_ID) of a request is not that of one that is held, refused, accepted or connected",
        "accept/incoming.rs",
        [Counter::KnownRequests],
        "one request is shown to two consumers",
        "known_request_is_needed"
    ),
    row!(
        DeadRequest,
        "connect",
        "nor that of one that came to a connection, was taken back, or made room for others, less than R_A_TOV ago",
        "dead.rs",
        [Counter::DropLateRequest],
        "a consumer is shown a request that nobody makes",
        "dead_request_is_needed"
    ),
    row!(
        ConnectionId,
        "connect",
        "FCVI_CONNECTION_ID of RESP1, RESP2, RESP3 and both disconnect IUs is that of the procedure",
        "disconnect.rs",
        [Counter::DropStrayConnect, Counter::UnknownDisconnects],
        "a disconnect without handle takes back a later request; the answer to an earlier one ends a disconnect",
        "connection_id_is_needed"
    ),
    row!(
        ConnectionHandle,
        "connect",
        "so is our handle",
        "endpoint.rs",
        [Counter::DropStrayConnect, Counter::UnknownDisconnects],
        "ConnectionId tells it; for frames that are forged the handle is the first line",
        "connection_handle_is_covered_by_connection_id"
    ),
    row!(
        ConnectionPeer,
        "connect",
        "and S_ID is the port that the procedure is with",
        "disconnect.rs",
        [Counter::DropStrayConnect, Counter::UnknownDisconnects],
        "a disconnect of one port takes back the request of another one that chose the same connection ID",
        "connection_peer_is_needed"
    ),
    row!(
        DeadHandle,
        "held",
        "a handle that was given up does not come again for R_A_TOV: a place goes through all of its numbers before",
        "handles.rs",
        [],
        "a frame of the VI's earlier connection, once in 65,536 connections",
        "dead_handle_is_needed"
    ),
    row!(
        DeadExchange,
        "held",
        "an OX_ID that was given up is not used again for R_A_TOV, and one that an ADISC was sent on for twice that: a late question is answered late",
        "exchange.rs",
        [],
        "an answer to an earlier ADISC: a port that went seems to be there",
        "dead_exchange_is_needed"
    ),
    row!(
        ConfirmedLogin,
        "login",
        "a port that is logged in confirms, asked by ADISC, that it is not, before its FLOGI is believed",
        "login/request.rs",
        [LoginCounter::Doubts, LoginCounter::Repeated],
        "an FLOGI that was repeated or held ends a login, and all connections with that port",
        "confirmed_login_is_needed"
    ),
    row!(
        AcceptedLogin,
        "login",
        "(S_ID, command, OX_ID) of a PLOGI or LOGO is not that of one that was accepted less than R_A_TOV ago",
        "login/request.rs",
        [LoginCounter::Repeated, LoginCounter::RefusedBusy],
        "a LOGO ends a later login; a PLOGI begins one with a port that is not there",
        "accepted_login_is_needed"
    ),
    row!(
        DeadLoginExchange,
        "held",
        "the OX_ID of a link service is not used again for twice R_A_TOV, answered or not: a late request is answered late",
        "login/exchanges.rs",
        [],
        "an earlier answer is taken for that of a port that is not there, or started anew",
        "dead_login_exchange_is_needed"
    ),
];

const HEAD: &str = "# Stale frames: what each check is for

Made by `pmd/engine/src/tests/stale/table.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-engine stale::table`.

A frame can be on its way for R_A_TOV, and a network can repeat it. It is intact then; only what it names tells that its time is
over. In the model of `pmd/engine/src/tests/stale/` a network keeps every frame for R_A_TOV and lets, before each one, older ones
arrive that resemble it: the same OX_ID, SEQ_ID and SEQ_CNT, the same exchange, message, offset or IU. Messages and reads name
themselves in each of their bytes, and a judge looks at every byte that is placed, every message that is delivered, every descriptor
that completes, and at what both ends believe of their connection. With all checks no stale frame is ever taken for a new one. With one
left out (the name in the first column stands where it is made; it costs nothing outside these tests), one is, or another check
tells it, and without both one is.

Rules are those of FCVI P-10, in whose order a frame is checked. Counters are the NIC's, by their names. Tests are in `stale/needed.rs`.

| check | rule | what is checked | where | counter | without it | test |
| --- | --- | --- | --- | --- | --- | --- |
";

const TAIL: &str = "
What P-10 says besides:

| rule | what is so here |
| --- | --- |
| 1: CRC, SOF, EOF; 2: header size against opcode | `drop_bad_crc`, `drop_malformed`, `drop_bad_iu`. They are for frames that are damaged or forged: whatever was sent once passes them, and the model finds none of these counters moved |
| 4: a new message while the last one lacks frames | the old one failed (`incomplete_messages`): its FCVI_MSG_ID is older |
| 5: a further frame while no message is open | `drop_no_context`: there is nothing that it could continue. One of a message that is yet to come shows at the reliable levels that its first frame is missing |
| 5: RX_ID | not compared: requests have none yet, and answers repeat the OX_ID |
| 6: abandoned contexts | need no list: a late frame of one has an older FCVI_MSG_ID (`drop_no_context`, `drop_other_message`, `drop_stale_message`), which OpenMessage and OlderMessage are tested for. While the message is still the newest, what is left of it is swallowed (`drop_discarded`) |
| 7: OX_ID of an acknowledgement | not compared: it is that of the newest frame that came, of whatever message that was, and an acknowledgement that is told again for a stale frame names an exchange that has ended at its originator. What an acknowledgement says is its FCVI_MSG_ID and offset |
| what is held | all handles, by their order: a place that goes through its numbers (4 million at 1024 VIs) within R_A_TOV has none until then (`no_handle`). 16,384 requests at most; if more end within R_A_TOV, a late one of the oldest is shown to a consumer, and comes to nothing by the RESP2 that it never gets |
| what is held of logins | 16 PLOGIs and LOGOs for each neighbour that there can be, and 32 of one port, at most; if more are accepted within R_A_TOV, the oldest are believed again |
| a LOGO that no earlier copy came of | is believed, however late it is: the port that sent it may be gone, and nobody could confirm it. |
| a port that starts anew | begins with an OX_ID drawn at random; an answer to its former life is believed if it draws one of the few that it used within R_A_TOV. Requests that it accepted in that life are forgotten, and believed once more |
| a message ID comes round | after 2^32 messages of one direction of a connection, half of which must take longer than R_A_TOV: at 100 million messages a second it is 21 s |

## Scenes

Legal traffic, with identifiers that come round soon: a port's other OX_IDs are taken, frames are small, random numbers have few bits.

| scene | seeds |
| --- | --- |
";

fn document() -> String {
    let mut document = HEAD.to_owned();
    for row in ROWS {
        let check = row.check;
        let counters = row.counters.iter().map(|name| format!("`{name}`"));
        let counters: Vec<String> = counters.collect();
        writeln!(
            document,
            "| {check:?} | {} | {} | `{}` | {} | {} | `{}` |",
            row.rule,
            row.says,
            row.file,
            counters.join(", "),
            row.without,
            row.test
        )
        .expect("a string");
    }
    document.push_str(TAIL);
    for scene in Scene::ALL {
        writeln!(document, "| {scene:?} | {} |", scene.seeds().count()).expect("a string");
    }
    document
}

/// The names of all checks, from their declaration.
fn declared() -> Vec<&'static str> {
    let source = include_str!("../../synonym.rs");
    let (_, after) = source.split_once("enum Check {").expect("the checks");
    let (body, _) = after.split_once("\n}\n").expect("its end");
    let lines = body.lines().map(str::trim);
    lines.filter_map(|line| line.strip_suffix(',')).collect()
}

#[test]
fn every_check_has_its_place_its_counter_and_its_test() {
    let mut named: Vec<String> = ROWS.iter().map(|row| format!("{:?}", row.check)).collect();
    let mut declared = declared();
    named.sort_unstable();
    declared.sort_unstable();
    assert_eq!(named, declared);
    for row in ROWS {
        let check = row.check;
        let stands = format!("skips(Check::{check:?})");
        assert!(row.source.contains(&stands), "{check:?} in {}", row.file);
        let test = format!("fn {}()", row.test);
        assert!(TESTS.contains(&test), "{check:?}: {test}");
        assert!(TESTS.contains(&format!("Check::{check:?}")));
    }
}

#[test]
fn the_document_says_what_is_so() {
    compare(DOCUMENT, "stale::table", &document());
}
