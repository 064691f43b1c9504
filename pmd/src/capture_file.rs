//! Files for captured frames, accessible to their owner only.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::unistd::geteuid;
use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::file_size::max_file_bytes;

/// Permission bits of a capture file.
const MODE: u32 = 0o600;
/// Attempts to open a path whose file is created or removed concurrently.
const ATTEMPTS: u32 = 8;

/// A file for captured frames.
#[derive(Debug)]
pub struct CaptureFile {
    file: File,
    written_bytes: u64,
    /// RLIMIT_FSIZE.
    max_bytes: u64,
}

impl Write for CaptureFile {
    /// Writes as [`File`] does, but fails with EFBIG at RLIMIT_FSIZE, where SIGXFSZ would end the process.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.max_bytes.saturating_sub(self.written_bytes) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let written = self.file.write(bytes)?;
        self.written_bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Creates a file with mode 0600, or truncates an existing regular file of this user and sets that mode.
///
/// # Errors
/// Those of the file system. [`ErrorKind::InvalidInput`] for an existing file that is not regular (a symbolic
/// link is not followed), belongs to another user or has several hard links.
pub fn create(path: &Path) -> io::Result<CaptureFile> {
    for _ in 0..ATTEMPTS {
        let mut options = OpenOptions::new();
        // O_NONBLOCK: opening a FIFO without a reader does not block.
        options
            .write(true)
            .mode(MODE)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
        match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.and_then(into_capture_file),
        }
        // Checked before it is opened, since opening a device may have side effects.
        match path.symlink_metadata() {
            Ok(found) => check(found.file_type().into(), found.uid(), found.nlink())?,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        }
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let opened = file.metadata()?;
        check(opened.file_type().into(), opened.uid(), opened.nlink())?;
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.set_len(0)?;
        return into_capture_file(file);
    }
    Err(ErrorKind::ResourceBusy.into())
}

/// Checks whether [`create`] would succeed. A file that does not exist is created and removed.
pub(crate) fn check_path(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) => check(found.file_type().into(), found.uid(), found.nlink()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            File::create_new(path)?;
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

/// Wraps a file, whose descriptor is moved above the standard streams.
fn into_capture_file(file: File) -> io::Result<CaptureFile> {
    Ok(CaptureFile {
        file: above_standard_streams(file.into()).map(File::from)?,
        written_bytes: 0,
        max_bytes: max_file_bytes()?,
    })
}

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Regular,
    Link,
    Directory,
    Pipe,
    Socket,
    Device,
}

impl From<std::fs::FileType> for FileKind {
    fn from(kind: std::fs::FileType) -> Self {
        if kind.is_file() {
            Self::Regular
        } else if kind.is_symlink() {
            Self::Link
        } else if kind.is_dir() {
            Self::Directory
        } else if kind.is_fifo() {
            Self::Pipe
        } else if kind.is_socket() {
            Self::Socket
        } else {
            Self::Device
        }
    }
}

/// Refuses anything but a regular file of this user with one hard link.
fn check(kind: FileKind, owner: u32, links: u64) -> io::Result<()> {
    let user = geteuid().as_raw();
    let error = match kind {
        FileKind::Regular if owner != user => format!(
            "an existing file that belongs to user {owner}, not to user {user}: remove it, or choose another path"
        ),
        FileKind::Regular if links > 1 => {
            format!("an existing file with {links} hard links: remove it, or choose another path")
        }
        FileKind::Regular => return Ok(()),
        FileKind::Link => {
            "a symbolic link, which is not followed: set the path of the file itself".into()
        }
        FileKind::Directory => "a directory: set the path of a file".into(),
        FileKind::Pipe => "a pipe: only regular files are written".into(),
        FileKind::Socket => "a socket: only regular files are written".into(),
        FileKind::Device => "a device: only regular files are written".into(),
    };
    Err(io::Error::new(ErrorKind::InvalidInput, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;

    /// A directory that is removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let name = format!("viaduct-capture-file-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn refusal(path: &Path) -> String {
        let error = create(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        error.to_string()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn new_file_is_accessible_to_its_owner_only() {
        let scratch = Scratch::new("new");
        let path = scratch.0.join("frames");
        create(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn own_regular_file_is_truncated_and_its_mode_restricted() {
        let scratch = Scratch::new("own");
        let path = scratch.0.join("frames");
        fs::write(&path, "previous contents").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        create(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn symbolic_link_is_not_followed() {
        let scratch = Scratch::new("link");
        let (victim, path) = (scratch.0.join("victim"), scratch.0.join("frames"));
        fs::write(&victim, "kept").unwrap();
        symlink(&victim, &path).unwrap();
        let why = refusal(&path);
        assert!(why.contains("a symbolic link"), "{why}");
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        // Neither is a dangling link, which would create its target.
        fs::remove_file(&victim).unwrap();
        let why = refusal(&path);
        assert!(why.contains("a symbolic link"), "{why}");
        assert!(!victim.exists());
    }

    #[test]
    fn file_with_several_hard_links_is_refused() {
        let scratch = Scratch::new("names");
        let (victim, path) = (scratch.0.join("victim"), scratch.0.join("frames"));
        fs::write(&victim, "kept").unwrap();
        fs::hard_link(&victim, &path).unwrap();
        let why = refusal(&path);
        assert!(why.contains("2 hard links"), "{why}");
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
    }

    #[test]
    fn pipe_device_socket_and_directory_are_refused_without_blocking() {
        let scratch = Scratch::new("kinds");
        let pipe = scratch.0.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let socket = scratch.0.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in [
            (pipe.as_path(), "a pipe"),
            (&socket, "a socket"),
            (&scratch.0, "a directory"),
            (Path::new("/dev/null"), "a device"),
        ] {
            let why = refusal(path);
            assert!(why.contains(what), "{why}");
        }
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let scratch = Scratch::new("owner");
        let path = scratch.0.join("frames");
        let own = geteuid();
        let path = if own.is_root() {
            fs::write(&path, "kept").unwrap();
            chown(&path, Some(65534), None).unwrap();
            path
        } else {
            PathBuf::from("/etc/hostname")
        };
        let before = fs::read(&path).unwrap();
        let why = refusal(&path);
        let expected = format!("not to user {own}");
        assert!(why.contains(&expected), "{why}");
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}
