//! Checks the user that listens at the socket of a datapath process: a program that attaches passes descriptors to the
//! listener, and may permit it to access its memory.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;

use vi_core::control_socket::Socket;

/// Credentials of the listener, as the kernel reports them, and owner and mode of the directory of the socket.
#[derive(Clone, Copy, Debug)]
struct Credentials {
    /// The user that listens.
    uid: u32,
    /// This program's user.
    own: u32,
    /// The owner and the permission bits of the directory that the socket is in.
    directory: (u32, u32),
    /// False if `uid` is the ID that the kernel reports for every user that the user namespace of this program does
    /// not map.
    is_mapped: bool,
}

impl Credentials {
    /// The listener is root, the user of this program, or the owner of the directory.
    fn is_trusted(self) -> bool {
        let (owner, mode) = self.directory;
        // Where only the owner can create files, the owner created the socket.
        let made_by_owner = self.is_mapped || mode & 0o022 == 0;
        self.uid == 0
            || self.uid == self.own && self.is_mapped
            || self.uid == owner && made_by_owner
    }
}

/// Checks the user that listens at `path`, to which `socket` is connected.
///
/// # Errors
/// `PermissionDenied` for a user that is not trusted, with the remedy.
pub(super) fn verify(socket: &Socket, path: &Path) -> io::Result<()> {
    check(path, socket.peer()?.uid)
        .map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))
}

fn check(path: &Path, uid: u32) -> Result<(), String> {
    let found = credentials(path, uid).map_err(|error| format!("its directory: {error}"))?;
    if found.is_trusted() {
        return Ok(());
    }
    let (own, (owner, _)) = (found.own, found.directory);
    let unmapped = match found.is_mapped {
        true => "",
        false => " (in this user namespace that is every user without an ID here)",
    };
    Err(format!(
        "the listener is user {uid}{unmapped}, and neither root, nor user {own} as this program, nor user {owner} \
         who owns the directory: run fcvi-pmd as one of these, or set socket in [process] to the path of one that does"
    ))
}

fn credentials(path: &Path, uid: u32) -> io::Result<Credentials> {
    // The path as it is written: a symbolic link at the socket's path must not select the directory.
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let directory = fs::metadata(directory)?;
    Ok(Credentials {
        uid,
        own: geteuid().as_raw(),
        directory: (directory.uid(), directory.mode()),
        is_mapped: uid != overflow_uid() || maps_all(&fs::read_to_string("/proc/self/uid_map")?),
    })
}

/// The user ID by which the kernel reports users that a user namespace does not map.
fn overflow_uid() -> u32 {
    /// The kernel's default.
    const DEFAULT: u32 = 65534;
    let text = fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT)
}

/// True if a user namespace with this map has an ID for every user, as the initial one does.
fn maps_all(map: &str) -> bool {
    let counts = map
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERFLOW: u32 = 65534;

    fn is_trusted(uid: u32, own: u32, owner: u32, mode: u32, is_mapped: bool) -> bool {
        let directory = (owner, mode);
        Credentials {
            uid,
            own,
            directory,
            is_mapped,
        }
        .is_trusted()
    }

    #[test]
    fn only_root_own_user_and_owner_of_the_directory_are_trusted() {
        for mode in [0o755, 0o1777] {
            assert!(is_trusted(0, 1000, 1001, mode, true));
            assert!(is_trusted(1000, 1000, 0, mode, true));
            assert!(is_trusted(1001, 1000, 1001, mode, true));
            assert!(!is_trusted(1002, 1000, 0, mode, true));
            assert!(!is_trusted(1002, 0, 1001, mode, true));
            assert!(is_trusted(OVERFLOW, OVERFLOW, 0, mode, true));
        }
    }

    #[test]
    fn unmapped_user_is_trusted_only_where_only_the_owner_creates_files() {
        assert!(!is_trusted(OVERFLOW, OVERFLOW, 0, 0o755, false));
        assert!(is_trusted(OVERFLOW, 1000, OVERFLOW, 0o755, false));
        for mode in [0o1777, 0o775, 0o777] {
            assert!(!is_trusted(OVERFLOW, 1000, OVERFLOW, mode, false));
        }
    }

    #[test]
    fn maps_all_detects_partial_uid_maps() {
        assert!(maps_all("         0          0 4294967295\n"));
        for map in ["", "0 1000 1\n", "0 1000 1\n1 100000 65536\n", "nonsense"] {
            assert!(!maps_all(map), "{map}");
        }
    }

    #[test]
    fn listener_of_another_user_is_refused_with_its_id_and_the_remedy() {
        let path = std::env::temp_dir().join("pmd.sock");
        let own = geteuid().as_raw();
        let other = own + 4321;
        let why = check(&path, other).unwrap_err();
        for part in [
            format!("the listener is user {other}, "),
            format!("user {own} as this program"),
            "run fcvi-pmd as one of these, or set socket".into(),
        ] {
            assert!(why.contains(&part), "{why}");
        }
        assert_eq!(check(&path, own), Ok(()));
        assert_eq!(check(&path, 0), Ok(()));
    }
}
