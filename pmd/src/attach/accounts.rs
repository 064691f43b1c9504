//! Accounts of users: what all attachments of a user to a NIC have together. Limits of users count subordinate users of
//! user namespaces as the user to whom they belong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::session::Session;
use super::subordinate_users::SubordinateUsers;

/// The accounts of all users of a datapath process, by user and number of the NIC.
#[derive(Default)]
pub(super) struct UserAccounts {
    subordinate: Mutex<Arc<SubordinateUsers>>,
    accounts: Mutex<HashMap<(libc::uid_t, u16), Weak<Account>>>,
}

/// The account of a user on one NIC; it exists as long as a session has it.
pub(super) struct Account {
    /// The user, of whom subordinate users are a part.
    pub(super) uid: libc::uid_t,
    all: Arc<UserAccounts>,
    /// Its attachments. The lock is held while resources are reserved, so that calls of a user's applications do not
    /// exceed its limits together.
    sessions: Mutex<Vec<Weak<Session>>>,
}

impl UserAccounts {
    /// Reads the subordinate users of this host; keeps the previous ones if that fails. May take long.
    pub(super) fn read_subordinate_users(&self) {
        match SubordinateUsers::of_host() {
            Ok(users) => self.set_subordinate_users(users),
            Err(error) => log::warn!("{error}: its users count as users of their own"),
        }
    }

    pub(super) fn set_subordinate_users(&self, users: SubordinateUsers) {
        *self.subordinate() = Arc::new(users);
    }

    fn subordinate(&self) -> MutexGuard<'_, Arc<SubordinateUsers>> {
        self.subordinate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the user as which a user counts.
    pub(super) fn counted_as(&self, uid: libc::uid_t) -> libc::uid_t {
        self.subordinate().counted_as(uid)
    }

    /// Returns the account of a user on a NIC.
    pub(super) fn of(self: &Arc<Self>, uid: libc::uid_t, nic: u16) -> Arc<Account> {
        let uid = self.counted_as(uid);
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(&(uid, nic)).and_then(Weak::upgrade) {
            return account;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = Arc::new(Account {
            uid,
            all: Arc::clone(self),
            sessions: Mutex::default(),
        });
        accounts.insert((uid, nic), Arc::downgrade(&account));
        account
    }
}

impl Account {
    /// Locks the account, and returns its sessions.
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session; ended ones are removed.
    pub(super) fn add(&self, session: Weak<Session>) {
        let mut sessions = self.lock();
        sessions.retain(|session| session.strong_count() > 0);
        sessions.push(session);
    }

    /// Checks whether a user counts as the user of the account.
    pub(super) fn includes(&self, uid: libc::uid_t) -> bool {
        self.all.counted_as(uid) == self.uid
    }
}
