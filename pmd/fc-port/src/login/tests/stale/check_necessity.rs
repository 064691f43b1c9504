//! Necessity of each check for stale link services: with all checks none is accepted, without one of them one is.

use protocol_testkit::necessity::{assert_needed, assert_rejected};

use super::Scenario;
use crate::login::synonym::Check;

#[test]
fn no_stale_login_frame_is_accepted() {
    assert_rejected(Scenario::Logins);
    assert_rejected(Scenario::FewLoginExchanges);
}

#[test]
fn confirmed_login_is_needed() {
    assert_needed(Check::ConfirmedLogin, Scenario::Logins);
}

#[test]
fn accepted_login_is_needed() {
    assert_needed(Check::AcceptedLogin, Scenario::Logins);
}

#[test]
fn quarantined_login_exchange_is_needed() {
    assert_needed(Check::QuarantinedLoginExchange, Scenario::FewLoginExchanges);
}
