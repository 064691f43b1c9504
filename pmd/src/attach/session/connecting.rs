//! Calls that establish and end connections, and the discriminators that they use.

use vi_types::{CallError, Limit, Outcome, ResourceError};

use super::Session;
use super::owned::all_in_use;
use crate::attach::limiters;
use crate::attach::message::{Reply, Request};
use crate::attach::reservations::{Refused, RequestNames, UsedNames};
use crate::config::Quota;
use crate::nic;
use vi_core::control_socket::Peer;

impl Session {
    /// Executes a call of this module.
    pub(super) fn execute_connecting(&self, request: Request) -> Outcome<Reply> {
        let done = |()| Reply::Done;
        match request {
            Request::ConnectWait { nic, local, limit } => {
                // Calls that wait at the same time may exceed the limit of the application by their number.
                self.reserve_owned(|owned, quota| owned.check_conns(quota.max_incoming))?;
                let name = local.discriminator;
                self.reserve(nic, |names| names.begin_wait(nic, name))?;
                let found = nic::connect_wait(nic, &local, limit);
                self.names().end_wait(nic, name);
                let found = found?;
                self.add_conn(found.conn, nic)?;
                Ok(Reply::Request {
                    conn: found.conn,
                    remote: found.remote,
                    attributes: found.attributes,
                })
            }
            Request::ConnectAccept { conn, vi } => {
                let conn = self.conn(conn)?;
                let outcome = nic::connect_accept(conn, self.vi(vi)?);
                if !nic::is_pending(conn) {
                    self.owned().conns.remove(&conn);
                }
                outcome.map(done)
            }
            Request::SecurityOf { conn } => {
                nic::request_security(self.conn(conn)?).map(Reply::Security)
            }
            Request::UserOf { conn } => nic::request_user(self.conn(conn)?).map(Reply::User),
            Request::PeerUser { vi } => nic::peer_user(self.vi(vi)?).map(Reply::User),
            Request::ConnectReject { conn } => {
                if self.owned().conns.remove(&conn).is_none() {
                    return Err(CallError::InvalidParameter);
                }
                nic::connect_reject(conn).map(done)
            }
            Request::Connect {
                vi,
                local,
                remote,
                limit,
            } => {
                self.reserve_for(vi, RequestNames::of_client(&local))?;
                nic::connect_request(vi, &local, &remote, limit).map(Reply::Attributes)
            }
            Request::ConnectPeer {
                vi,
                local,
                remote,
                limit,
            } => {
                self.reserve_for(vi, RequestNames::of_peer(&local, &remote))?;
                nic::connect_peer_request(vi, &local, &remote, limit).map(done)
            }
            Request::ConnectPeerDone { vi } => {
                let outcome = nic::connect_peer_done(self.vi(vi)?)?;
                Ok(outcome.map_or(Reply::Pending, Reply::Attributes))
            }
            Request::ConnectPeerWait { vi } => {
                nic::connect_peer_wait(self.vi(vi)?).map(Reply::Attributes)
            }
            Request::Disconnect { vi } => nic::disconnect(self.vi(vi)?).map(done),
            // `execute` passes only the calls above.
            _ => Err(CallError::InvalidParameter),
        }
    }

    /// Adds a received connection request; rejects it beyond the limit of the application's user.
    fn add_conn(&self, conn: u64, nic: u64) -> Outcome<()> {
        let of_application = Quota {
            max_incoming: u32::MAX,
            ..self.quota
        };
        let added = self.reserve_within(&of_application, |owned, quota| {
            let is_within_limit = owned.check_conns(quota.max_incoming);
            is_within_limit.map(|()| owned.add_conn(conn, nic))
        });
        added.inspect_err(|_| {
            // Fails if its NIC handle was closed meanwhile.
            let _rejected = nic::connect_reject(conn);
        })?
    }

    /// A pending connection request of the application.
    fn conn(&self, conn: u64) -> Outcome<u64> {
        let known = self.owned().conns.contains_key(&conn);
        known.then_some(conn).ok_or(CallError::InvalidParameter)
    }

    /// Undoes a call whose reply could not be sent.
    pub(super) fn undo(&self, reply: &Reply) {
        if let Reply::Request { conn, .. } = reply {
            self.owned().conns.remove(conn);
            let _rejected = nic::connect_reject(*conn);
        }
    }

    /// Reserves the discriminators of a connection request of this VI.
    fn reserve_for(&self, vi: u64, names: RequestNames) -> Outcome<()> {
        let nic = self.owned().vis.get(&vi).copied();
        let nic = nic.ok_or(CallError::InvalidParameter)?;
        self.reserve(nic, |used| used.request(nic, vi, names))
    }

    /// Reserves discriminators for a NIC handle, which another call may be closing.
    fn reserve(
        &self,
        nic: u64,
        reserve: impl FnOnce(&mut UsedNames) -> Result<(), Refused>,
    ) -> Outcome<()> {
        let refused = {
            let owned = self.owned();
            if !owned.nics.contains(&nic) {
                return Err(CallError::InvalidParameter);
            }
            match reserve(&mut self.names()) {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            }
        };
        let (name, Peer { pid, uid, .. }) = (&self.config.name, self.peer);
        let line = format_args!("NIC {name}: discriminator refused: {refused} uid={uid} pid={pid}");
        limiters::log_of_user(self.account.uid, log::Level::Warn, line);
        Err(match refused {
            Refused::Reserved { .. } => ResourceError::Discriminator.into(),
            Refused::Limit { limit, .. } => all_in_use(Limit::MaxDiscriminators, limit),
        })
    }
}
