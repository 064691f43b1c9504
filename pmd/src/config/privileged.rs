//! Configuration of privileged programs: a file that only root can write.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pmd_port::environment;

use super::{CONFIG_VARIABLE, ConfigError};

/// Configuration file of programs with set-user-ID, set-group-ID or file capabilities, which ignore the environment.
pub const PRIVILEGED_CONFIG: &str = "/etc/viaduct/vipl.toml";

/// Write permission of group and others.
const FOREIGN_WRITE: u32 = 0o022;

/// Returns the path of the configuration of this program; `None` for the built-in one.
///
/// # Errors
/// In a privileged program, those of [`configuration`].
pub(super) fn config_path() -> Result<Option<PathBuf>, ConfigError> {
    let named = std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty());
    if !environment::is_privileged() {
        return Ok(named.map(PathBuf::from));
    }
    if named.is_some() {
        log::warn!(
            "{CONFIG_VARIABLE} is ignored: this program has set-user-ID, set-group-ID or file capabilities, and its \
             configuration is {PRIVILEGED_CONFIG}"
        );
    }
    configuration(Path::new(PRIVILEGED_CONFIG))
}

/// Returns the path if the file exists.
///
/// # Errors
/// The file or its directory is not owned by root, or is writable for others.
fn configuration(path: &Path) -> Result<Option<PathBuf>, ConfigError> {
    for checked in path.parent().into_iter().chain([path]) {
        let found = match fs::metadata(checked) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let text = format!("{}: {error}", checked.display());
                return Err(ConfigError::new(text));
            }
        };
        check(found.uid(), found.mode()).map_err(|reason| {
            ConfigError::new(format!(
                "{}: {reason}: a program with set-user-ID or file capabilities reads it only if root owns it and \
                 no other user can write to it (chown root, chmod go-w)",
                checked.display()
            ))
        })?;
    }
    Ok(Some(path.to_owned()))
}

fn check(owner: u32, mode: u32) -> Result<(), String> {
    match (owner, mode & FOREIGN_WRITE) {
        (0, 0) => Ok(()),
        (0, _) => Err(format!("mode {:o}", mode & 0o7777)),
        _ => Err(format!("owned by user {owner}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_file_is_no_configuration() {
        let missing = Path::new("/nonexistent/vipl.toml");
        assert_eq!(configuration(missing), Ok(None));
    }

    #[test]
    fn file_of_another_user_or_writable_for_others_is_refused() {
        assert_eq!(check(0, 0o100_644), Ok(()));
        assert_eq!(check(0, 0o40_755), Ok(()));
        assert_eq!(check(1000, 0o100_644), Err("owned by user 1000".to_owned()));
        assert_eq!(check(0, 0o100_664), Err("mode 664".to_owned()));
        assert_eq!(check(0, 0o41_777), Err("mode 1777".to_owned()));
    }

    #[test]
    fn file_in_a_directory_writable_for_others_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let name = format!("viaduct-privileged-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(directory.join("vipl.toml"), "").unwrap();
        let refused = configuration(&directory.join("vipl.toml")).unwrap_err();
        fs::remove_dir_all(&directory).unwrap();
        let reason = match nix::unistd::geteuid().is_root() {
            true => "mode 777",
            false => "owned by user",
        };
        assert!(refused.to_string().contains(reason), "{refused}");
    }
}
