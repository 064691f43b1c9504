//! Writes docs/spec/stale-logins.md: each check, its source file, its counters, and the test of its necessity.

use protocol_testkit::check_table::{self, Row, assert_complete};
use protocol_testkit::document::compare;

use super::Scenario;
use crate::login::LoginCounter;

const DOCUMENT: &str = "stale-logins.md";
const TESTS: &str = include_str!("check_necessity.rs");
const DECLARATION: &str = include_str!("../../synonym.rs");
const REQUEST: &str = include_str!("../../request.rs");
const EXCHANGES: &str = include_str!("../../exchanges.rs");

/// All checks.
const ROWS: [Row; 3] = [
    Row {
        check: "ConfirmedLogin",
        rule: "login",
        condition: "a port with a login confirms by ADISC that it has none before its FLOGI, PLOGI or LOGO is accepted",
        file: "login/request.rs",
        source: REQUEST,
        counters: &[LoginCounter::Doubts.name(), LoginCounter::Repeated.name()],
        without: "an FLOGI that was repeated or delayed ends a login, and all exchanges with that port",
        test: "confirmed_login_is_needed",
    },
    Row {
        check: "AcceptedLogin",
        rule: "login",
        condition: "(S_ID, OX_ID) of a PLOGI is not that of one that was accepted less than R_A_TOV ago",
        file: "login/request.rs",
        source: REQUEST,
        counters: &[
            LoginCounter::Repeated.name(),
            LoginCounter::RefusedBusy.name(),
        ],
        without: "a PLOGI starts a login with a port that is not present",
        test: "accepted_login_is_needed",
    },
    Row {
        check: "QuarantinedLoginExchange",
        rule: "quarantine",
        condition: "the OX_ID of a link service is not reused for twice R_A_TOV, answered or not: a late request is answered late",
        file: "login/exchanges.rs",
        source: EXCHANGES,
        counters: &[],
        without: "an earlier response is taken for that of a port that is not present, or has restarted",
        test: "quarantined_login_exchange_is_needed",
    },
];

const HEAD: &str = "# Stale link services: what each check of logins is for

Made by `pmd/fc-port/src/login/tests/stale/table.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p fc-port stale::table`.

[synonym-checks.md](synonym-checks.md) has the method and the checks of FC-VI, this page those of logins. The tests are in
`pmd/fc-port/src/login/tests/stale/check_necessity.rs`.

";

const TAIL: &str = "
Limits:

| rule | implementation |
| --- | --- |
| quarantine of logins | at most 16 PLOGIs per possible neighbour, and 32 of one port; if more are accepted within R_A_TOV, the oldest are accepted again |
| a port that restarts | has random OX_IDs; a response to its previous life is accepted if it draws one of the few that it used within R_A_TOV. It has no record of the requests that it accepted in that life, and accepts them again |

## Scenarios

Two ports on a network that delivers link services again for R_A_TOV, and delays FLOGIs.

";

fn document() -> String {
    let checks = check_table::checks(&ROWS);
    let scenarios = check_table::scenarios(&Scenario::ALL);
    format!("{HEAD}{checks}{TAIL}{scenarios}")
}

#[test]
fn every_check_of_logins_has_a_source_and_a_test() {
    assert_complete(&ROWS, DECLARATION, TESTS);
}

#[test]
fn document_matches_the_checks_of_logins() {
    compare(DOCUMENT, "fc-port stale::table", &document());
}
