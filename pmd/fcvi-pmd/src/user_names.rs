//! The names of users, looked up once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use nix::unistd::{Uid, User};

/// Names that are kept; a look-up may ask a directory service.
const MAX_NAMES: usize = 1024;

/// The names of the users that were asked for.
#[derive(Debug, Default)]
pub(crate) struct UserNames(Mutex<HashMap<u32, String>>);

impl UserNames {
    /// The name of a user; the number where there is none.
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
