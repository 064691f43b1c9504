//! Discriminators reserved for users, so that a program can neither accept connections of another user's clients nor
//! connect under another user's discriminator.
//!
//! A discriminator is reserved for the user whose program used it first: to wait for requests, as the local
//! discriminator of a connection request, or as the discriminator by which a peer request is matched. It remains
//! reserved while any NIC handle that has used it is open, not only during a call.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vi_types::{Discriminator, HostAddress, NetAddress};

/// The reservations of a datapath process. NICs with the same host address share its discriminators.
#[derive(Debug, Default)]
pub(super) struct Reservations(Mutex<HashMap<NetAddress, Reservation>>);

#[derive(Debug)]
struct Reservation {
    uid: libc::uid_t,
    /// NIC handles that have used it.
    handles: u32,
}

impl Reservations {
    fn table(&self) -> MutexGuard<'_, HashMap<NetAddress, Reservation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a discriminator for another NIC handle of a user.
    ///
    /// # Errors
    /// The ID of the other user for whom it is reserved.
    fn reserve(&self, name: NetAddress, uid: libc::uid_t) -> Result<(), libc::uid_t> {
        let mut table = self.table();
        let reservation = table.entry(name).or_insert(Reservation { uid, handles: 0 });
        if reservation.uid != uid {
            return Err(reservation.uid);
        }
        reservation.handles += 1;
        Ok(())
    }

    /// Ends the reservation of one NIC handle.
    fn release(&self, name: &NetAddress) {
        let mut table = self.table();
        if let Some(reservation) = table.get_mut(name) {
            reservation.handles -= 1;
            if reservation.handles == 0 {
                table.remove(name);
            }
        }
    }
}

/// Why a discriminator cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is reserved for another user.
    Reserved {
        name: Discriminator,
        owner: libc::uid_t,
    },
    /// The quota of the application is reached, and all of its discriminators are in use.
    Limit { name: Discriminator, limit: u32 },
}

/// Cause, values and remedy, for a log line. The discriminator is escaped: the application chooses it.
impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Reserved { name, owner } => write!(
                f,
                "reserved for user {owner} until its programs that used it close the NIC: use \
                 another one, or end those discriminator={name:?} owner={owner}"
            ),
            Self::Limit { name, limit } => write!(
                f,
                "all max_discriminators = {limit} are in use: destroy VIs, or raise it in \
                 [process.quota] discriminator={name:?}"
            ),
        }
    }
}

/// The discriminators that the NIC handles of one application have used.
///
/// At the limit, a new discriminator evicts the least recently used one that no call waits on and no VI uses: a program
/// may use a new discriminator for each connection without end.
#[derive(Debug)]
pub(super) struct UsedNames {
    reservations: Arc<Reservations>,
    host: HostAddress,
    uid: libc::uid_t,
    /// Maximum number of discriminators, counted once for each NIC handle.
    limit: u32,
    used: HashMap<(u64, Discriminator), Usage>,
    /// By VI: its NIC handle, and the discriminators of its last connection request.
    vis: HashMap<u64, (u64, RequestNames)>,
    /// A logical clock: orders uses.
    uses: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    last: u64,
    /// Calls that wait for requests on it.
    waits: u32,
}

/// The discriminators that a connection request uses: the local one, and the one by which a peer request is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestNames {
    local: Option<Discriminator>,
    matched_by: Option<Discriminator>,
}

impl RequestNames {
    /// The discriminators of a client's request. An empty discriminator is not reserved.
    pub(super) fn of_client(local: &NetAddress) -> Self {
        let local = local.discriminator;
        Self {
            local: (!local.as_bytes().is_empty()).then_some(local),
            matched_by: None,
        }
    }

    /// The discriminators of a peer request, which is matched by the remote discriminator.
    pub(super) fn of_peer(local: &NetAddress, remote: &NetAddress) -> Self {
        Self {
            matched_by: Some(remote.discriminator),
            ..Self::of_client(local)
        }
    }

    fn iter(self) -> impl Iterator<Item = Discriminator> {
        self.local.into_iter().chain(self.matched_by)
    }
}

impl UsedNames {
    pub(super) fn new(
        reservations: Arc<Reservations>,
        host: HostAddress,
        uid: libc::uid_t,
        limit: u32,
    ) -> Self {
        Self {
            reservations,
            host,
            uid,
            limit,
            used: HashMap::new(),
            vis: HashMap::new(),
            uses: 0,
        }
    }

    /// The number that counts against the limit.
    pub(super) fn count(&self) -> u64 {
        self.used.len() as u64
    }

    fn address(&self, discriminator: Discriminator) -> NetAddress {
        NetAddress {
            host: self.host,
            discriminator,
        }
    }

    /// Reserves a discriminator for a NIC handle on which a call is about to wait. [`Self::end_wait`] follows.
    pub(super) fn begin_wait(&mut self, nic: u64, name: Discriminator) -> Result<(), Refused> {
        self.use_name(nic, name)?.waits += 1;
        Ok(())
    }

    /// Notes the end of the call; its NIC handle may have been closed.
    pub(super) fn end_wait(&mut self, nic: u64, name: Discriminator) {
        self.uses += 1;
        if let Some(usage) = self.used.get_mut(&(nic, name)) {
            usage.waits -= 1;
            usage.last = self.uses;
        }
    }

    /// Reserves the discriminators of a connection request of a VI.
    pub(super) fn request(
        &mut self,
        nic: u64,
        vi: u64,
        names: RequestNames,
    ) -> Result<(), Refused> {
        for name in names.iter() {
            // Assigned to the VI before the second discriminator may evict another one.
            self.use_name(nic, name)?;
            self.vis.insert(vi, (nic, names));
        }
        Ok(())
    }

    /// Removes a destroyed VI.
    pub(super) fn remove_vi(&mut self, vi: u64) {
        self.vis.remove(&vi);
    }

    /// Ends all reservations of a closed NIC handle.
    pub(super) fn close(&mut self, nic: u64) {
        self.vis.retain(|_, (handle, _)| *handle != nic);
        let ended: Vec<_> = self
            .used
            .extract_if(|(handle, _), _| *handle == nic)
            .map(|((_, name), _)| name)
            .collect();
        for name in ended {
            self.reservations.release(&self.address(name));
        }
    }

    fn use_name(&mut self, nic: u64, name: Discriminator) -> Result<&mut Usage, Refused> {
        self.uses += 1;
        if !self.used.contains_key(&(nic, name)) {
            let address = self.address(name);
            let reserved = self.reservations.reserve(address, self.uid);
            reserved.map_err(|owner| Refused::Reserved { name, owner })?;
            let limit = self.limit;
            if self.used.len() >= limit as usize && !self.evict() {
                self.reservations.release(&address);
                return Err(Refused::Limit { name, limit });
            }
        }
        let usage = self.used.entry((nic, name)).or_default();
        usage.last = self.uses;
        Ok(usage)
    }

    /// Ends the least recently used reservation that is not in use. False if there is none.
    fn evict(&mut self) -> bool {
        let vis = self.vis.values();
        let of_vis: HashSet<_> = vis
            .flat_map(|(nic, names)| names.iter().map(move |name| (*nic, name)))
            .collect();
        let unused = self
            .used
            .iter()
            .filter(|(key, usage)| usage.waits == 0 && !of_vis.contains(key));
        let Some(oldest) = unused
            .min_by_key(|(_, usage)| usage.last)
            .map(|(key, _)| *key)
        else {
            return false;
        };
        self.used.remove(&oldest);
        self.reservations.release(&self.address(oldest.1));
        true
    }
}

impl Drop for UsedNames {
    fn drop(&mut self) {
        for (_, name) in self.used.keys() {
            self.reservations.release(&self.address(*name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostAddress = HostAddress::from_ipv4([127, 0, 0, 1]);

    fn name(text: &str) -> Discriminator {
        Discriminator::new(text.as_bytes()).unwrap()
    }

    fn address(text: &str) -> NetAddress {
        NetAddress {
            host: HOST,
            discriminator: name(text),
        }
    }

    fn application(table: &Arc<Reservations>, uid: libc::uid_t, limit: u32) -> UsedNames {
        UsedNames::new(Arc::clone(table), HOST, uid, limit)
    }

    fn client(text: &str) -> RequestNames {
        RequestNames::of_client(&address(text))
    }

    fn reserved(text: &str, owner: libc::uid_t) -> Result<(), Refused> {
        let name = name(text);
        Err(Refused::Reserved { name, owner })
    }

    #[test]
    fn refusal_names_user_and_remedy_and_escapes_the_discriminator() {
        let text = reserved("a\n\u{1b}[0m", 7).unwrap_err().to_string();
        assert!(
            text.contains(r#"discriminator="a\n\x1b[0m" owner=7"#),
            "{text}"
        );
        assert!(text.contains("use another one, or end those"), "{text}");
    }

    #[test]
    fn discriminator_is_reserved_between_calls_until_the_last_handle_of_its_user_is_closed() {
        let table = Arc::new(Reservations::default());
        let [mut first, mut second] = [application(&table, 7, 8), application(&table, 7, 8)];
        let mut other = application(&table, 8, 8);
        first.begin_wait(1, name("service")).unwrap();
        first.end_wait(1, name("service"));
        second.begin_wait(3, name("service")).unwrap();
        first.begin_wait(2, name("service")).unwrap();
        let refused = reserved("service", 7);
        assert_eq!(other.begin_wait(4, name("service")), refused);
        assert_eq!(other.request(4, 40, client("service")), refused);
        assert_eq!(other.begin_wait(4, name("another")), Ok(()));
        for used in [&mut first, &mut second] {
            assert_eq!(other.begin_wait(4, name("service")), refused);
            used.close(1);
            used.close(3);
        }
        assert_eq!(other.begin_wait(4, name("service")), refused, "handle 2");
        drop(first);
        assert_eq!(other.begin_wait(4, name("service")), Ok(()));
        let taken = second.begin_wait(3, name("service"));
        assert_eq!(taken, reserved("service", 8));
        drop((second, other));
        assert!(table.table().is_empty());
    }

    #[test]
    fn same_discriminator_of_another_host_is_independent() {
        let table = Arc::new(Reservations::default());
        let other_host = HostAddress::from_ipv4([127, 0, 0, 2]);
        let mut first = application(&table, 7, 8);
        let mut second = UsedNames::new(Arc::clone(&table), other_host, 8, 8);
        first.begin_wait(1, name("service")).unwrap();
        assert_eq!(second.begin_wait(2, name("service")), Ok(()));
    }

    #[test]
    fn requests_reserve_their_local_discriminator_and_the_matched_one() {
        let table = Arc::new(Reservations::default());
        let [mut owner, mut other] = [application(&table, 7, 8), application(&table, 8, 8)];
        owner.request(1, 10, client("client")).unwrap();
        let peer = RequestNames::of_peer(&address("peer"), &address("meeting"));
        owner.request(1, 11, peer).unwrap();
        for taken in ["client", "peer", "meeting"] {
            let refused = reserved(taken, 7);
            assert_eq!(other.request(2, 20, client(taken)), refused, "{taken}");
            assert_eq!(other.begin_wait(2, name(taken)), refused, "{taken}");
        }
        let thief = RequestNames::of_peer(&address("thief"), &address("meeting"));
        assert_eq!(other.request(2, 20, thief), reserved("meeting", 7));
        // An empty discriminator is not reserved.
        for used in [&mut owner, &mut other] {
            assert_eq!(used.request(3, 30, client("")), Ok(()));
        }
        owner.close(1);
        assert_eq!(other.request(2, 20, peer), Ok(()));
    }

    #[test]
    fn least_recently_used_discriminator_is_evicted_unless_it_is_in_use() {
        let table = Arc::new(Reservations::default());
        let [mut used, mut other] = [application(&table, 7, 4), application(&table, 8, 8)];
        used.begin_wait(1, name("waiting")).unwrap();
        used.request(1, 10, client("connected")).unwrap();
        used.begin_wait(1, name("older")).unwrap();
        used.end_wait(1, name("older"));
        used.begin_wait(1, name("younger")).unwrap();
        used.end_wait(1, name("younger"));
        for number in 0..1000 {
            // A VI keeps only the discriminators of its last request.
            used.request(1, 11, client(&number.to_string())).unwrap();
            assert_eq!(used.used.len(), 4);
        }
        assert_eq!(table.table().len(), 4);
        for free in ["older", "younger", "997"] {
            assert_eq!(other.begin_wait(2, name(free)), Ok(()), "{free}");
        }
        for kept in ["waiting", "connected", "999"] {
            let refused = other.begin_wait(2, name(kept));
            assert_eq!(refused, reserved(kept, 7));
        }
        used.request(1, 12, client("999 too")).unwrap();
        let full = Refused::Limit {
            name: name("more"),
            limit: 4,
        };
        assert_eq!(used.begin_wait(1, name("more")), Err(full));
        assert_eq!(other.begin_wait(2, name("more")), Ok(()), "it is not kept");
        used.remove_vi(12);
        assert_eq!(used.begin_wait(1, name("room")), Ok(()));
    }
}
