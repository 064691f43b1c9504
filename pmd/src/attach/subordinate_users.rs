//! Subordinate user IDs of user namespaces (`/etc/subuid`): they count as the user who may use them, so that one user
//! cannot appear as thousands.

use std::fs;
use std::io;

use nix::unistd::User;

/// Assigns ranges of user IDs to users; format and meaning are those of subuid(5).
const FILE: &str = "/etc/subuid";

/// Ranges of subordinate user IDs, in the order of the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SubordinateUsers(Vec<Range>);

#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    count: u32,
    /// The user as which they count.
    counts_as: u32,
}

impl SubordinateUsers {
    /// Reads the ranges of this host. Queries the user database, which may take long.
    ///
    /// # Errors
    /// The file exists, and cannot be read.
    pub(super) fn of_host() -> io::Result<Self> {
        match fs::read_to_string(FILE) {
            Ok(text) => {
                let uid_of = |name: &str| Some(User::from_name(name).ok()??.uid.as_raw());
                Ok(Self::parse(&text, uid_of))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(io::Error::new(error.kind(), format!("{FILE}: {error}"))),
        }
    }

    /// Parses lines `USER:FIRST:COUNT`; invalid ones are ignored, as by newuidmap(1). IDs of a range of root, or of a
    /// user that is unknown, count as the first one of the range: a container of root's must not count as root.
    fn parse(text: &str, uid_of: impl Fn(&str) -> Option<u32>) -> Self {
        let range = |line: &str| {
            let mut fields = line.trim().split(':');
            let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let (first, count) = (first.parse().ok()?, count.parse().ok()?);
            let uid = uid_of(user).or_else(|| user.parse().ok());
            Some(Range {
                first,
                count,
                counts_as: uid.filter(|uid| *uid != 0).unwrap_or(first),
            })
        };
        Self(text.lines().filter_map(range).collect())
    }

    /// Returns the user as which a user counts: the one to whom the first range that contains it belongs, or itself.
    pub(super) fn counted_as(&self, uid: libc::uid_t) -> libc::uid_t {
        let contains = |range: &&Range| {
            (uid.checked_sub(range.first)).is_some_and(|offset| offset < range.count)
        };
        self.0
            .iter()
            .find(contains)
            .map_or(uid, |range| range.counts_as)
    }
}

#[cfg(test)]
impl SubordinateUsers {
    /// Parses a file in which all users are numbers.
    pub(super) fn of_numbers(text: &str) -> Self {
        Self::parse(text, |_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_users_count_as_the_user_of_their_range() {
        let text = "alice:100000:65536\n\n# comment\nbroken:1\nalice:300000:x\n1001:200000:2\nalice:200001:1\n\
                    lost:500000:10\nroot:1000:1\nroot:1000000:1000000000\n";
        let users = SubordinateUsers::parse(text, |name| match name {
            "alice" => Some(1000),
            "root" => Some(0),
            _ => None,
        });
        for (uid, counted_as) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 165_536),
            (200_000, 1001),
            // The first range that contains it.
            (200_001, 1001),
            (200_002, 200_002),
            (300_000, 300_000),
            (500_009, 500_000),
            (1_000_000, 1_000_000),
            (5_000_000, 1_000_000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(users.counted_as(uid), counted_as, "{uid}");
        }
    }

    #[test]
    fn missing_file_has_no_ranges() {
        assert_eq!(
            SubordinateUsers::parse("", |_| None),
            SubordinateUsers::default()
        );
        assert_eq!(SubordinateUsers::default().counted_as(7), 7);
    }
}
