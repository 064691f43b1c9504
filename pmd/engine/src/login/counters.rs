//! What the login machine counts: every frame that it does not take has its reason.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:literal,)+) => {
        /// What the login machine counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum LoginCounter { $($(#[doc = $doc])+ $variant,)+ }

        impl LoginCounter {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [LoginCounter] = &[$(LoginCounter::$variant,)+];

            /// The stable name under which it is shown.
            pub const fn name(self) -> &'static str {
                match self { $(LoginCounter::$variant => $name,)+ }
            }
        }
    };
}

counters! {
    /// Logins that both ends agreed on.
    Logins => "logins",
    /// Logins that ended.
    Logouts => "logouts",
    /// Logins that came to nothing, after all retries.
    LoginFailures => "login_failures",
    /// Requests sent: FLOGI, PLOGI, LOGO, ADISC, FARP-REQ.
    Requests => "requests",
    /// Those of them that were sent again.
    Retries => "retries",
    /// Requests not sent because all OX_IDs were in use; a timer repeats them.
    NoExchange => "no_exchange",
    /// Requests of ours that were refused.
    Rejected => "rejected",
    /// Answers sent: LS_ACC, LS_RJT, BA_ACC, BA_RJT, FARP-REPLY.
    Answers => "answers",
    /// FLOGI, PLOGI or LOGO of a login that holds: a late one, or one whose answer was lost.
    Repeated => "repeated",
    /// Ports that are logged in asked by ADISC whether they are, for they sent FLOGI, or a LOGO
    /// that was accepted before.
    Doubts => "doubts",
    /// LOGOs sent to ports that are not logged in and behaved as if.
    LogosToStrangers => "logos_to_strangers",
    /// Exchanges aborted by the other port.
    Aborts => "aborts",
    /// FARP-REPLYs that named a port of a host that was asked for.
    Resolved => "resolved",
    /// Hosts that nobody answered for.
    Unresolved => "unresolved",
    /// Refused: the payload cannot be read.
    RefusedMalformed => "refused_malformed",
    /// Refused: the command is not served.
    RefusedCommand => "refused_command",
    /// Refused: the sender of a login is not a neighbour.
    RefusedStranger => "refused_stranger",
    /// Refused: names, class or sizes of a login, or identifiers, that cannot be.
    RefusedParameters => "refused_parameters",
    /// Refused: not now, because a login or a logout is under way.
    RefusedBusy => "refused_busy",
    /// Dropped: we have no N_Port_ID.
    DropNoId => "drop_no_id",
    /// Dropped: the D_ID is not ours. On a shared interface FIP frames for others are seen.
    DropNotOurs => "drop_not_ours",
    /// Dropped: the S_ID or the Port_Name is ours, or none.
    DropBadSource => "drop_bad_source",
    /// Dropped: the Ethernet source is not that of the S_ID.
    DropWrongMac => "drop_wrong_mac",
    /// Dropped: neither a request nor a reply, of several frames, or with headers that no link
    /// service has.
    DropBadHeader => "drop_bad_header",
    /// Dropped: FLOGI outside FIP, in FIP what does not belong there, or a reply in another kind of
    /// frame than its request.
    DropWrongCarrier => "drop_wrong_carrier",
    /// Dropped: a reply that cannot be read.
    DropMalformedReply => "drop_malformed_reply",
    /// Dropped: a reply to a request that is over.
    DropLateReply => "drop_late_reply",
    /// Dropped: a reply to nothing of ours.
    DropStrayReply => "drop_stray_reply",
    /// Dropped: the sender is not logged in.
    DropNotLoggedIn => "drop_not_logged_in",
    /// Dropped: an answer would exceed the limit per second.
    DropLimit => "drop_limit",
    /// Dropped: no room for an answer or an event.
    DropNoRoom => "drop_no_room",
    /// Dropped: a neighbour beyond the table.
    DropTableFull => "drop_table_full",
    /// Dropped: a FARP-REQ for somebody else.
    DropFarpNoMatch => "drop_farp_no_match",
    /// Dropped: a FARP frame whose addresses contradict each other.
    DropFarpMalformed => "drop_farp_malformed",
    /// Dropped: a FARP frame of a port that is not a neighbour.
    DropFarpStranger => "drop_farp_stranger",
    /// Dropped: a FARP-REPLY for a host that was not asked for.
    DropFarpNotAsked => "drop_farp_not_asked",
    /// Dropped: a port of a host beyond the limit.
    DropFarpFull => "drop_farp_full",
}

/// One number for each [`LoginCounter`].
#[derive(Clone, Debug)]
pub struct LoginCounters {
    values: [u64; LoginCounter::ALL.len()],
}

impl Default for LoginCounters {
    fn default() -> Self {
        Self {
            values: [0; LoginCounter::ALL.len()],
        }
    }
}

impl LoginCounters {
    pub(super) fn count(&mut self, counter: LoginCounter) {
        self.values[counter as usize] += 1;
    }

    /// How often it happened.
    pub fn get(&self, counter: LoginCounter) -> u64 {
        self.values[counter as usize]
    }

    /// Names and numbers, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        LoginCounter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
}
