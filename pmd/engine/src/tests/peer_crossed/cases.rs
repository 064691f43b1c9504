//! docs/spec/crossed-requests.md: the orders by cases.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::{Event, Fault, Rank, orders};
use crate::testkit::document::compare;
use crate::testkit::net::{CLIENT, SERVER};

const DOCUMENT: &str = "crossed-requests.md";

/// How two requests cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Case {
    LowerAsksFirst,
    HigherAsksFirst,
    /// Both ask before either hears of the other: whose RQST, and whose RESP1, arrives first.
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
            Case::LowerAsksFirst
        } else if at(false, Some("RQST")) < at(false, None) {
            Case::HigherAsksFirst
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
            Case::LowerAsksFirst => "The lower one asks first".to_owned(),
            Case::HigherAsksFirst => "The higher one asks first".to_owned(),
            Case::Crossed {
                request_of_lower,
                response_to_lower,
            } => format!(
                "Crossed: the {} one's RQST arrives first, and the RESP1 to the {} one",
                first(request_of_lower),
                first(response_to_lower)
            ),
        }
    }

    fn says(self) -> &'static str {
        match self {
            Case::LowerAsksFirst => {
                "H has no request yet when RQST comes: pending. When H asks, L accepts it."
            }
            Case::HigherAsksFirst => {
                "L has no request yet when RQST comes: pending. When L asks, H keeps its own and asks again at once; L accepts."
            }
            Case::Crossed { .. } => "H keeps its own, L takes its own back and accepts.",
        }
    }
}

fn end(higher: bool) -> char {
    if higher { 'H' } else { 'L' }
}

/// An order in one line: what happens at which end, and what it sends then.
pub(super) fn line(events: &[Event]) -> String {
    let mut line = String::new();
    for event in events {
        let end = end(event.higher);
        match event.arrived {
            None => write!(line, "{end} asks"),
            Some(iu) => write!(line, "{end}<{iu}"),
        }
        .expect("a string");
        for sent in &event.sent {
            write!(line, " >{sent}").expect("a string");
        }
        line.push_str("; ");
    }
    line.trim_end_matches("; ").to_owned()
}

/// What an end sends in all, in its order.
fn sends(events: &[Event], higher: bool) -> String {
    let own = events.iter().filter(|e| e.higher == higher);
    let sent: Vec<&str> = own.flat_map(|e| e.sent.iter().copied()).collect();
    sent.join(", ")
}

fn sections(document: &mut String, orders: &BTreeSet<Vec<Event>>) {
    let cases: BTreeSet<Case> = orders.iter().map(|order| Case::of(order)).collect();
    for case in cases {
        let of_case: Vec<_> = orders.iter().filter(|o| Case::of(o) == case).collect();
        writeln!(document, "\n### {}\n\n{}\n", case.title(), case.says()).expect("a string");
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

Two VIs ask for each other. Of two requests that match one stands: that of the port with the higher N_Port_Name, then the one with the
higher FCVI_CONNECTION_ID, then that of the higher N_Port_ID [FCVI P-12]. These are all orders in which the requests and what follows
them can happen, if frames of one direction arrive in their order: at each moment an end asks, or the oldest frame to one port
arrives. L is the lower one, H the higher one; `L<RQST >RESP1 accepted` is RQST arriving at L, and what L sends then. RESP1 *pending*:
no matching request yet. *superseded*: the receiver's own request stands.

Whatever the order: both ends are Connected with each other by one connection, H is its originator and both know that, each can send,
no exchange, timer or table entry stays behind, and requests beside them (another one in the pool, one that a consumer holds) wait as
before and find their matches. It needs no timer. The tests play each order with each of its frames lost, doubled, or repeated at the end
as well: the same holds, within two repetitions of the lost IU.

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
        "## Two ports\n\nSix cases, and the same orders whichever port is the higher one, and whichever of the three decides it.\n",
    );
    sections(&mut document, &two_ports);
    document.push_str(
        "\n## Two VIs of one port\n\nNames are equal, connection IDs decide; all frames go one way. The higher one is the second to ask, unless \
         connection IDs come round between the two.\n",
    );
    let (mut one_port, _) = orders(Rank::OnePort(SERVER), Fault::None);
    one_port.extend(orders(Rank::OnePort(CLIENT), Fault::None).0);
    sections(&mut document, &one_port);
    document
}

/// The table of what happens in which order, for both winners.
#[test]
fn every_order_makes_one_connection() {
    compare(DOCUMENT, "peer_crossed", &document());
}
