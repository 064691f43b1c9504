//! Stale link services: a network that delivers frames again for R_A_TOV, and the necessity of each check [FCVI P-10].
//!
//! | module | contents |
//! | --- | --- |
//! | [`logins`] | two ports that log in, log out and restart on such a network |
//! | [`check_necessity`] | no stale frame is accepted; without each check one is |
//! | [`table`] | writes docs/spec/stale-logins.md |

mod check_necessity;
mod logins;
mod table;

use core::ops::Range;

use protocol_testkit::necessity;

use crate::login::synonym::Check;

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// Ports log in, log out and restart.
    Logins,
    /// The same, and each port has few OX_IDs.
    FewLoginExchanges,
}

impl Scenario {
    const ALL: [Scenario; 2] = [Scenario::Logins, Scenario::FewLoginExchanges];
}

impl necessity::Scenario for Scenario {
    type Check = Check;

    fn seeds(self) -> Range<u64> {
        0..24
    }

    fn run(self, seed: u64) -> Result<(), String> {
        let ox_ids = match self {
            Scenario::Logins => 1024,
            Scenario::FewLoginExchanges => 20,
        };
        logins::run(0x57A1_E000 + seed, ox_ids)
    }
}
