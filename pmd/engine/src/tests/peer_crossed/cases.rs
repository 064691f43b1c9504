//! Writes docs/spec/crossed-requests.md: the orders of `peer_crossed`, by case.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Event, Fault, Rank, orders};
use crate::testkit::document::compare;
use crate::testkit::net::{CLIENT, SERVER};

const DOCUMENT: &str = "crossed-requests.md";

/// How two requests cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Case {
    LowerRequestsFirst,
    HigherRequestsFirst,
    /// Both sides request before either receives the other's RQST: whose RQST, and whose RESP1, arrives first.
    Crossed {
        request_of_lower: bool,
        response_to_lower: bool,
    },
}

impl Case {
    fn of(events: &[Event]) -> Self {
        let at = |higher: bool, arrived: Option<&str>| {
            let is = |e: &Event| {
                let same = match (e.arrived, arrived) {
                    (Some(iu), Some(wanted)) => iu.starts_with(wanted),
                    (iu, wanted) => iu == wanted,
                };
                e.higher == higher && same
            };
            events.iter().position(is).unwrap_or(usize::MAX)
        };
        if at(true, Some("RQST")) < at(true, None) {
            Case::LowerRequestsFirst
        } else if at(false, Some("RQST")) < at(false, None) {
            Case::HigherRequestsFirst
        } else {
            Case::Crossed {
                request_of_lower: at(true, Some("RQST")) < at(false, Some("RQST")),
                response_to_lower: at(false, Some("RESP1")) < at(true, Some("RESP1")),
            }
        }
    }

    fn title(self) -> String {
        let first = |lower: bool| if lower { "lower" } else { "higher" };
        match self {
            Case::LowerRequestsFirst => "The lower side requests first".to_owned(),
            Case::HigherRequestsFirst => "The higher side requests first".to_owned(),
            Case::Crossed {
                request_of_lower,
                response_to_lower,
            } => format!(
                "Crossed: the RQST of the {} side arrives first, and the RESP1 to the {} side",
                first(request_of_lower),
                first(response_to_lower)
            ),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Case::LowerRequestsFirst => {
                "H has no request yet when RQST arrives: pending. When H requests, L accepts."
            }
            Case::HigherRequestsFirst => {
                "L has no request yet when RQST arrives: pending. When L requests, H keeps its own request and repeats it at \
                 once; L accepts."
            }
            Case::Crossed { .. } => "H keeps its own request; L cancels its own and accepts.",
        }
    }
}

fn side(higher: bool) -> char {
    if higher { 'H' } else { 'L' }
}

/// Formats an order as one line: each step with its side, and the IUs that the side then sends.
pub(super) fn line(events: &[Event]) -> String {
    let mut line = String::new();
    for event in events {
        let side = side(event.higher);
        match event.arrived {
            None => write!(line, "{side} requests"),
            Some(iu) => write!(line, "{side}<{iu}"),
        }
        .expect("a string");
        for sent in &event.sent {
            write!(line, " >{sent}").expect("a string");
        }
        line.push_str("; ");
    }
    line.trim_end_matches("; ").to_owned()
}

/// Lists all IUs that a side sends, in order.
fn sends(events: &[Event], higher: bool) -> String {
    let own = events.iter().filter(|e| e.higher == higher);
    let sent: Vec<&str> = own.flat_map(|e| e.sent.iter().copied()).collect();
    sent.join(", ")
}

fn sections(document: &mut String, orders: &BTreeSet<Vec<Event>>) {
    let cases: BTreeSet<Case> = orders.iter().map(|order| Case::of(order)).collect();
    for case in cases {
        let of_case: Vec<_> = orders.iter().filter(|o| Case::of(o) == case).collect();
        writeln!(
            document,
            "\n### {}\n\n{}\n",
            case.title(),
            case.description()
        )
        .expect("a string");
        let rows: BTreeSet<_> = of_case
            .iter()
            .map(|order| (sends(order, false), sends(order, true)))
            .collect();
        for (lower, higher) in rows {
            writeln!(document, "- L sends: {lower}\n- H sends: {higher}").expect("a string");
        }
        document.push_str("\n```text\n");
        for order in of_case {
            writeln!(document, "{}", line(order)).expect("a string");
        }
        document.push_str("```\n");
    }
}

const HEAD: &str = "# Crossed peer requests

Made by `pmd/engine/src/tests/peer_crossed/cases.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-engine peer_crossed`.

Two VIs request each other. Of two matching requests one wins: that of the port with the higher N_Port_Name, else the
one with the higher FCVI_CONNECTION_ID, else that of the higher N_Port_ID [FCVI P-12]. These are all possible orders of
the requests and the frames that follow them, if frames of one direction arrive in order: in each step a side posts its
request, or the oldest frame to one port arrives. L is the lower side, H the higher one; `L<RQST >RESP1 accepted` is
RQST arriving at L, and what L then sends. RESP1 *pending*: no matching request yet. *superseded*: the receiver's own
request wins.

In every order both sides are Connected with each other by one connection, H is its originator and both know that, each
can send, no exchange, timer or table entry remains, and other requests (one in the pool, one pending at a consumer) stay
pending and find their matches. No timer is needed. The tests also run each order with each of its frames lost,
duplicated, or repeated at the end: the result is the same, within two retries of the lost IU.

";

fn document() -> String {
    let mut document = HEAD.to_owned();
    let (two_ports, _) = orders(Rank::PortName(SERVER), Fault::None);
    for rank in [
        Rank::PortName(CLIENT),
        Rank::ConnectionId(SERVER),
        Rank::ConnectionId(CLIENT),
        Rank::PortId(SERVER),
        Rank::PortId(CLIENT),
    ] {
        let (found, _) = orders(rank, Fault::None);
        assert_eq!(found, two_ports, "{rank:?}");
    }
    document.push_str(
        "## Two ports\n\nSix cases, with the same orders whichever port is the higher one and whichever value decides.\n",
    );
    sections(&mut document, &two_ports);
    document.push_str(
        "\n## Two VIs of one port\n\nThe names are equal and the connection IDs decide; all frames have one direction. The \
         IDs have a random order: either side can be the higher one.\n",
    );
    let (mut one_port, _) = orders(Rank::OnePort(SERVER), Fault::None);
    one_port.extend(orders(Rank::OnePort(CLIENT), Fault::None).0);
    sections(&mut document, &one_port);
    document
}

/// Compares the document with the orders of every rank.
#[test]
fn every_order_makes_one_connection() {
    compare(DOCUMENT, "vi-engine peer_crossed", &document());
}
