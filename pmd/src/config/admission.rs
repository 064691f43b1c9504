//! Admission of applications to the datapath process, and their quotas.

use std::io;

use nix::unistd::{Group, User, geteuid};
use vi_config::{Principal, ProcessConfig, QuotaConfig, UserDatabase};

/// Reason why an application may not attach; displayed with what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Neither its user nor any of its groups is listed.
    NotNamed {
        /// The application's user.
        uid: u32,
    },
    /// No other entry admits the application, and this name cannot be looked up.
    Unresolved {
        /// The application's user.
        uid: u32,
        /// The user or group of the configuration.
        name: String,
        /// Error of the user database.
        reason: String,
    },
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotNamed { uid } => write!(
                f,
                "user {uid} may not attach: add it to users of [process], or one of its groups to groups"
            ),
            Self::Unresolved { uid, name, reason } => write!(
                f,
                "user {uid} may not attach: {name:?} of [process] cannot be looked up ({reason}): \
                 give its number, or repair the user database"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// User database of this host.
pub(super) struct SystemUserDatabase;

impl UserDatabase for SystemUserDatabase {
    fn own_uid(&self) -> u32 {
        geteuid().as_raw()
    }

    fn uid(&self, name: &str) -> io::Result<Option<u32>> {
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    }

    fn gid(&self, name: &str) -> io::Result<Option<u32>> {
        Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
    }
}

/// Credentials of an application, compared with the names of the configuration.
struct Credentials<'a> {
    database: &'a dyn UserDatabase,
    uid: u32,
    gids: &'a [u32],
    /// The first name that could not be looked up.
    unresolved: Option<(String, io::Error)>,
}

impl Credentials<'_> {
    fn is_user(&mut self, principal: &Principal) -> bool {
        let found = match principal {
            Principal::Id(id) => return *id == self.uid,
            Principal::Name(name) => self.database.uid(name),
        };
        self.resolved(principal, found) == Some(self.uid)
    }

    fn is_in(&mut self, principal: &Principal) -> bool {
        let found = match principal {
            Principal::Id(id) => return self.gids.contains(id),
            Principal::Name(name) => self.database.gid(name),
        };
        self.resolved(principal, found)
            .is_some_and(|gid| self.gids.contains(&gid))
    }

    fn resolved(&mut self, principal: &Principal, found: io::Result<Option<u32>>) -> Option<u32> {
        match (found, principal) {
            (Ok(found), _) => found,
            (Err(_), Principal::Id(_)) => None,
            (Err(error), Principal::Name(name)) => {
                self.unresolved.get_or_insert_with(|| (name.clone(), error));
                None
            }
        }
    }
}

/// Checks whether an application of this user and these groups may attach (`gids` includes the primary group), and returns
/// its quota. An entry of `application` for its user precedes entries for its groups, of which the first in the file
/// applies. Queries the user database of the host, which may take long.
///
/// # Errors
/// [`Refusal`], whose text states what to change.
pub fn admit(process: &ProcessConfig, uid: u32, gids: &[u32]) -> Result<QuotaConfig, Refusal> {
    admit_with(process, &SystemUserDatabase, uid, gids)
}

fn admit_with(
    process: &ProcessConfig,
    database: &dyn UserDatabase,
    uid: u32,
    gids: &[u32],
) -> Result<QuotaConfig, Refusal> {
    let mut credentials = Credentials {
        database,
        uid,
        gids,
        unresolved: None,
    };
    let is_named = match &process.users {
        None => uid == database.own_uid(),
        Some(users) => users.iter().any(|principal| credentials.is_user(principal)),
    };
    if !is_named
        && !process
            .groups
            .iter()
            .any(|principal| credentials.is_in(principal))
    {
        return Err(match credentials.unresolved {
            None => Refusal::NotNamed { uid },
            Some((name, error)) => Refusal::Unresolved {
                uid,
                name,
                reason: error.to_string(),
            },
        });
    }
    let by_user = process.application.iter().find(|entry| {
        entry
            .user
            .as_ref()
            .is_some_and(|principal| credentials.is_user(principal))
    });
    let entry = by_user.or_else(|| {
        process.application.iter().find(|entry| {
            entry
                .group
                .as_ref()
                .is_some_and(|principal| credentials.is_in(principal))
        })
    });
    if let (None, Some((name, error))) = (entry, &credentials.unresolved) {
        log::warn!("{name:?} of [process] cannot be looked up ({error}): its quota is not applied");
    }
    Ok(entry.map_or_else(|| process.quota.clone(), |entry| entry.over(&process.quota)))
}
#[cfg(test)]
mod tests {
    use super::*;
    use vi_config::ApplicationConfig;

    /// alice is 1000, bob 1001, users 100, staff 50; looking up "lost" fails.
    struct Fake;

    impl UserDatabase for Fake {
        fn own_uid(&self) -> u32 {
            7
        }

        fn uid(&self, name: &str) -> io::Result<Option<u32>> {
            match name {
                "alice" => Ok(Some(1000)),
                "bob" => Ok(Some(1001)),
                "lost" => Err(io::ErrorKind::PermissionDenied.into()),
                _ => Ok(None),
            }
        }

        fn gid(&self, name: &str) -> io::Result<Option<u32>> {
            match name {
                "users" => Ok(Some(100)),
                "staff" => Ok(Some(50)),
                "lost" => Err(io::ErrorKind::PermissionDenied.into()),
                _ => Ok(None),
            }
        }
    }

    fn named(name: &str) -> Principal {
        Principal::Name(name.into())
    }

    fn admit(config: &ProcessConfig, uid: u32, gids: &[u32]) -> Result<QuotaConfig, Refusal> {
        admit_with(config, &Fake, uid, gids)
    }

    #[test]
    fn only_the_own_user_attaches_by_default() {
        let config = ProcessConfig::default();
        assert_eq!(admit(&config, 7, &[7]), Ok(QuotaConfig::default()));
        for other in [0, 1000] {
            let refused = admit(&config, other, &[7, 0]);
            assert_eq!(refused, Err(Refusal::NotNamed { uid: other }));
        }
    }

    #[test]
    fn users_and_groups_attach_by_name_and_by_number() {
        let config = ProcessConfig {
            users: Some(vec![
                named("alice"),
                Principal::Id(2000),
                named("no such user"),
            ]),
            groups: vec![named("staff"), Principal::Id(60)],
            ..ProcessConfig::default()
        };
        for (uid, gids) in [(1000, [1, 2]), (2000, [1, 2]), (5, [1, 50]), (5, [60, 1])] {
            assert!(admit(&config, uid, &gids).is_ok(), "{uid} {gids:?}");
        }
        // The default, the own user, does not apply once users are listed.
        for (uid, gids) in [(7, [7, 7]), (1001, [100, 2]), (50, [1000, 2000])] {
            assert_eq!(admit(&config, uid, &gids), Err(Refusal::NotNamed { uid }));
        }
    }

    #[test]
    fn groups_do_not_exclude_the_own_user() {
        let config = ProcessConfig {
            groups: vec![named("users")],
            ..ProcessConfig::default()
        };
        assert!(admit(&config, 7, &[]).is_ok());
        assert!(admit(&config, 8, &[100]).is_ok());
        assert!(admit(&config, 8, &[]).is_err());
    }

    #[test]
    fn name_that_cannot_be_looked_up_admits_no_user_and_is_reported() {
        let config = ProcessConfig {
            users: Some(vec![named("lost"), named("alice")]),
            ..ProcessConfig::default()
        };
        assert!(admit(&config, 1000, &[]).is_ok());
        let refusal = admit(&config, 1001, &[]).expect_err("a refusal");
        let text = refusal.to_string();
        assert!(text.contains("lost") && text.contains("1001"), "{text}");
        assert!(matches!(refusal, Refusal::Unresolved { uid: 1001, .. }));
    }

    #[test]
    fn user_entry_precedes_group_entries_and_the_first_group_applies() {
        let entry = |user: Option<Principal>, group: Option<Principal>, max_vi| ApplicationConfig {
            user,
            group,
            max_vi: Some(max_vi),
            ..ApplicationConfig::default()
        };
        let config = ProcessConfig {
            users: Some(vec![named("alice"), named("bob"), Principal::Id(3)]),
            quota: QuotaConfig {
                max_calls: Some(9),
                ..QuotaConfig::default()
            },
            application: vec![
                entry(None, Some(named("users")), 1),
                entry(None, Some(named("staff")), 2),
                entry(Some(named("alice")), None, 3),
                entry(Some(Principal::Id(1001)), None, 4),
            ],
            ..ProcessConfig::default()
        };
        for (uid, gids, max_vi) in [
            (1000, &[50, 100][..], Some(3)),
            (1001, &[100], Some(4)),
            (3, &[50, 100], Some(1)),
            (3, &[50], Some(2)),
            (3, &[], None),
        ] {
            let quota = admit(&config, uid, gids).expect("listed");
            assert_eq!(
                (quota.max_vi, quota.max_calls),
                (max_vi, Some(9)),
                "{uid} {gids:?}"
            );
        }
    }

    #[test]
    fn system_database_knows_root_and_no_invented_name() {
        assert_eq!(SystemUserDatabase.uid("root").unwrap(), Some(0));
        assert_eq!(SystemUserDatabase.gid("root").unwrap(), Some(0));
        assert_eq!(
            SystemUserDatabase.uid("no such user of this host").unwrap(),
            None
        );
        let config = ProcessConfig::default();
        assert!(super::admit(&config, SystemUserDatabase.own_uid(), &[]).is_ok());
    }
}
