//! What all parts of the login machine use: time, configuration, exchanges, random numbers, counters.

use fcvi_frame::fc::{FCtl, FcHeader, NPortId};

use super::accepted::AcceptedRequests;
use super::config::LoginConfig;
use super::counters::{LoginCounter, LoginCounters};
use super::exchanges::ExchangeIds;
use crate::random::Random;

/// What all parts of the login machine use. A part is passed it with each call.
#[derive(Debug)]
pub(super) struct Context {
    /// Time of the call.
    pub(super) now_ns: u64,
    pub(super) config: LoginConfig,
    /// Our N_Port_ID.
    pub(super) id: Option<NPortId>,
    pub(super) is_closing: bool,
    pub(super) exchanges: ExchangeIds,
    pub(super) accepted: AcceptedRequests,
    pub(super) counters: LoginCounters,
    /// A port or a host changed since the next deadline was found.
    pub(super) changed: bool,
    random: Random,
}

impl Context {
    pub(super) fn new(config: LoginConfig, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let exchanges = ExchangeIds::new(
            config.first_ox_id,
            config.ox_ids,
            config.max_neighbours,
            random.next(),
            config.r_a_tov_ns,
        );
        Self {
            now_ns: 0,
            id: None,
            is_closing: false,
            exchanges,
            accepted: AcceptedRequests::new(config.max_neighbours, config.r_a_tov_ns),
            counters: LoginCounters::default(),
            changed: false,
            random,
            config,
        }
    }

    /// Returns the time after this wait.
    pub(super) fn after(&self, ns: u64) -> u64 {
        self.now_ns.saturating_add(ns)
    }

    /// Returns the time after this wait and up to an eighth of it.
    pub(super) fn after_jitter(&mut self, ns: u64) -> u64 {
        let wait_ns = self.random.with_jitter(ns);
        self.after(wait_ns)
    }

    /// Reports whether a frame of another port names an exchange that this machine opened.
    pub(super) fn is_own_exchange(&self, fc: &FcHeader) -> bool {
        fc.f_ctl.contains(FCtl::EXCHANGE_RESPONDER) && self.exchanges.contains(fc.ox_id)
    }

    /// Counts an error, or returns the result.
    pub(super) fn count_error<T>(&mut self, result: Result<T, LoginCounter>) -> Option<T> {
        result
            .inspect_err(|reason| self.counters.count(*reason))
            .ok()
    }
}
