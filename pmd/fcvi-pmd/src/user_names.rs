//! Cached look-up of user names.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use nix::unistd::{Uid, User};

/// Maximum number of cached names: a look-up may query a directory service.
const MAX_NAMES: usize = 1024;

/// Cached user names by user ID.
#[derive(Debug, Default)]
pub(crate) struct UserNames(Mutex<HashMap<u32, String>>);

impl UserNames {
    /// Returns the name of a user, or the user ID if it has no name.
    pub(crate) fn name(&self, uid: u32) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES {
            names.clear();
        }
        let name = names
            .entry(uid)
            .or_insert_with(|| match User::from_uid(Uid::from_raw(uid)) {
                Ok(Some(user)) => user.name,
                Ok(None) | Err(_) => uid.to_string(),
            });
        name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_name_gives_the_number_of_a_user_without_a_name() {
        let names = UserNames::default();
        assert_eq!(names.name(0), "root");
        assert_eq!(names.name(u32::MAX - 7), (u32::MAX - 7).to_string());
    }
}
