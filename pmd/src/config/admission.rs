//! Who may attach to the datapath process, and what they may have there.

use nix::unistd::{Group, User, geteuid};

use super::process::{ProcessConfig, QuotaConfig, Who};

/// Why an application may not attach, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Neither its user nor a group of it is named.
    NotNamed {
        /// The application's user.
        uid: u32,
    },
    /// Nobody else lets it in, and whether this name does cannot be said.
    Unresolved {
        /// The application's user.
        uid: u32,
        /// The user or group of the configuration.
        name: String,
        /// What the user database answered.
        reason: String,
    },
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotNamed { uid } => write!(
                f,
                "user {uid} may not attach: add it to users of [process], or a group of it to groups"
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

/// Names of users and groups, and their numbers.
pub(super) trait Directory {
    /// The process's own user.
    fn own_uid(&self) -> u32;
    /// The user of this name; `None` if there is none.
    fn uid(&self, name: &str) -> nix::Result<Option<u32>>;
    /// The group of this name; `None` if there is none.
    fn gid(&self, name: &str) -> nix::Result<Option<u32>>;
}

/// The user database of this host.
pub(super) struct Host;

impl Directory for Host {
    fn own_uid(&self) -> u32 {
        geteuid().as_raw()
    }

    fn uid(&self, name: &str) -> nix::Result<Option<u32>> {
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    }

    fn gid(&self, name: &str) -> nix::Result<Option<u32>> {
        Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()))
    }
}

/// Somebody at the socket, while the names of the configuration are looked up.
struct Visitor<'a> {
    directory: &'a dyn Directory,
    uid: u32,
    gids: &'a [u32],
    /// The first name that could not be looked up.
    unresolved: Option<(String, nix::Error)>,
}

impl Visitor<'_> {
    fn is_user(&mut self, who: &Who) -> bool {
        let found = match who {
            Who::Id(id) => return *id == self.uid,
            Who::Name(name) => self.directory.uid(name),
        };
        self.resolved(who, found) == Some(self.uid)
    }

    fn is_in(&mut self, who: &Who) -> bool {
        let found = match who {
            Who::Id(id) => return self.gids.contains(id),
            Who::Name(name) => self.directory.gid(name),
        };
        self.resolved(who, found)
            .is_some_and(|gid| self.gids.contains(&gid))
    }

    fn resolved(&mut self, who: &Who, found: nix::Result<Option<u32>>) -> Option<u32> {
        match (found, who) {
            (Ok(found), _) => found,
            (Err(_), Who::Id(_)) => None,
            (Err(error), Who::Name(name)) => {
                self.unresolved.get_or_insert((name.clone(), error));
                None
            }
        }
    }
}

impl ProcessConfig {
    /// May an application of this user and these groups attach (the primary group is one of `gids`), and with which
    /// quota? An entry of `application` that names its user comes before one that names a group of it; of several
    /// groups the first in the file counts. Looks names up in the host's user database, which can take a while.
    ///
    /// # Errors
    /// [`Refusal`], whose text says what to change.
    pub fn admit(&self, uid: u32, gids: &[u32]) -> Result<QuotaConfig, Refusal> {
        self.admit_by(&Host, uid, gids)
    }

    pub(super) fn admit_by(
        &self,
        directory: &dyn Directory,
        uid: u32,
        gids: &[u32],
    ) -> Result<QuotaConfig, Refusal> {
        let mut visitor = Visitor {
            directory,
            uid,
            gids,
            unresolved: None,
        };
        let is_named = match &self.users {
            None => uid == directory.own_uid(),
            Some(users) => users.iter().any(|who| visitor.is_user(who)),
        };
        if !is_named && !self.groups.iter().any(|who| visitor.is_in(who)) {
            return Err(match visitor.unresolved {
                None => Refusal::NotNamed { uid },
                Some((name, error)) => Refusal::Unresolved {
                    uid,
                    name,
                    reason: error.desc().to_owned(),
                },
            });
        }
        let by_user = self
            .application
            .iter()
            .find(|entry| entry.user.as_ref().is_some_and(|who| visitor.is_user(who)));
        let entry = by_user.or_else(|| {
            self.application
                .iter()
                .find(|entry| entry.group.as_ref().is_some_and(|who| visitor.is_in(who)))
        });
        if let (None, Some((name, error))) = (entry, &visitor.unresolved) {
            log::warn!(
                "{name:?} of [process] cannot be looked up ({error}): its quota is not applied"
            );
        }
        Ok(entry.map_or(self.quota, |entry| entry.over(&self.quota)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::ApplicationConfig;
    use super::*;

    /// alice is 1000, bob 1001, users 100, staff 50, and nobody knows about "lost".
    struct Fake;

    impl Directory for Fake {
        fn own_uid(&self) -> u32 {
            7
        }

        fn uid(&self, name: &str) -> nix::Result<Option<u32>> {
            match name {
                "alice" => Ok(Some(1000)),
                "bob" => Ok(Some(1001)),
                "lost" => Err(nix::Error::EIO),
                _ => Ok(None),
            }
        }

        fn gid(&self, name: &str) -> nix::Result<Option<u32>> {
            match name {
                "users" => Ok(Some(100)),
                "staff" => Ok(Some(50)),
                "lost" => Err(nix::Error::EIO),
                _ => Ok(None),
            }
        }
    }

    fn named(name: &str) -> Who {
        Who::Name(name.into())
    }

    fn admit(config: &ProcessConfig, uid: u32, gids: &[u32]) -> Result<QuotaConfig, Refusal> {
        config.admit_by(&Fake, uid, gids)
    }

    #[test]
    fn unless_it_is_said_otherwise_only_our_own_user_attaches() {
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
            users: Some(vec![named("alice"), Who::Id(2000), named("nobody here")]),
            groups: vec![named("staff"), Who::Id(60)],
            ..ProcessConfig::default()
        };
        for (uid, gids) in [(1000, [1, 2]), (2000, [1, 2]), (5, [1, 50]), (5, [60, 1])] {
            assert!(admit(&config, uid, &gids).is_ok(), "{uid} {gids:?}");
        }
        // The own user is not meant any more once users are named.
        for (uid, gids) in [(7, [7, 7]), (1001, [100, 2]), (50, [1000, 2000])] {
            assert_eq!(admit(&config, uid, &gids), Err(Refusal::NotNamed { uid }));
        }
    }

    #[test]
    fn groups_alone_leave_our_own_user_in() {
        let config = ProcessConfig {
            groups: vec![named("users")],
            ..ProcessConfig::default()
        };
        assert!(admit(&config, 7, &[]).is_ok());
        assert!(admit(&config, 8, &[100]).is_ok());
        assert!(admit(&config, 8, &[]).is_err());
    }

    #[test]
    fn a_name_that_cannot_be_looked_up_lets_nobody_in_and_is_told() {
        let config = ProcessConfig {
            users: Some(vec![named("lost"), named("alice")]),
            ..ProcessConfig::default()
        };
        assert!(admit(&config, 1000, &[]).is_ok());
        let refusal = admit(&config, 1001, &[]).expect_err("a refusal");
        let said = refusal.to_string();
        assert!(said.contains("lost") && said.contains("1001"), "{said}");
        assert!(matches!(refusal, Refusal::Unresolved { uid: 1001, .. }));
    }

    #[test]
    fn a_user_comes_before_a_group_and_an_earlier_group_before_a_later_one() {
        let entry = |user: Option<Who>, group: Option<Who>, max_vi| ApplicationConfig {
            user,
            group,
            max_vi: Some(max_vi),
            ..ApplicationConfig::default()
        };
        let config = ProcessConfig {
            users: Some(vec![named("alice"), named("bob"), Who::Id(3)]),
            quota: QuotaConfig {
                max_calls: Some(9),
                ..QuotaConfig::default()
            },
            application: vec![
                entry(None, Some(named("users")), 1),
                entry(None, Some(named("staff")), 2),
                entry(Some(named("alice")), None, 3),
                entry(Some(Who::Id(1001)), None, 4),
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
            let quota = admit(&config, uid, gids).expect("named");
            assert_eq!(
                (quota.max_vi, quota.max_calls),
                (max_vi, Some(9)),
                "{uid} {gids:?}"
            );
        }
    }

    #[test]
    fn the_host_knows_root_and_no_made_up_name() {
        assert_eq!(Host.uid("root"), Ok(Some(0)));
        assert_eq!(Host.gid("root"), Ok(Some(0)));
        assert_eq!(Host.uid("no such user of this host"), Ok(None));
        let config = ProcessConfig::default();
        assert!(config.admit(Host.own_uid(), &[]).is_ok());
    }
}
