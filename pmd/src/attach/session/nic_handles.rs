//! NIC handles of an application.

use std::sync::Arc;

use vi_core::events::AsyncEvent;
use vi_core::sync::Ordering;
use vi_types::{Limit, Outcome, ResourceError};

use super::Session;
use super::owned::all_in_use;
use crate::attach::client::Clients;
use crate::attach::limiters;
use crate::nic;
use crate::nic_backend::Backend;

impl Session {
    /// Opens another NIC handle, whose asynchronous errors are reported to the application.
    pub(super) fn open(self: &Arc<Self>) -> Outcome<u64> {
        let limit = self.quota.max_calls;
        if self.owned().nics.len() >= limit as usize {
            return Err(all_in_use(Limit::MaxCalls, limit));
        }
        let nic = nic::open(self.config).map_err(|error| {
            let line = format_args!("NIC {}: {error}", self.config.name);
            limiters::log_of_user(self.account.uid, log::Level::Error, line);
            ResourceError::NicFailed
        })?;
        let session = Arc::downgrade(self);
        let handler = move |event: &AsyncEvent| {
            if let Some(session) = session.upgrade() {
                session.report(nic, event);
            }
        };
        nic::set_error_handler(nic, Some(Box::new(handler)))?;
        let mut owned = self.owned();
        // `end` closes the NIC handles that it finds after it has set `ending`.
        if self.ending.load(Ordering::SeqCst) {
            drop(owned);
            nic::close(nic)?;
            return Err(ResourceError::ProcessGone.into());
        }
        // Other calls may have opened handles meanwhile.
        if owned.nics.len() >= limit as usize {
            drop(owned);
            nic::close(nic)?;
            return Err(all_in_use(Limit::MaxCalls, limit));
        }
        owned.nics.push(nic);
        Ok(nic)
    }

    /// Reports an error of the NIC; the data path reports those of VIs.
    fn report(&self, nic: u64, event: &AsyncEvent) {
        // An error that concerns all NIC handles is reported once.
        if self.owned().nics.first() != Some(&nic) {
            return;
        }
        let mut held = self.device.lock();
        if let Some(poller) = held.as_mut().and_then(Backend::state_mut)
            && let Some(client) = self.client()
            && let Some(clients) = Clients::of(&mut poller.path)
        {
            clients.report(client, event);
            poller.path.deliver_completions();
        }
    }

    /// Closes a NIC handle, with what was created with it.
    pub(super) fn close(&self, nic: u64) -> Outcome<()> {
        let nic = self.nic(nic)?;
        nic::close(nic)?;
        let ended = self.owned().close(nic);
        drop(ended);
        self.names().close(nic);
        Ok(())
    }
}
