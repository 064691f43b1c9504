//! Reports to the service manager: sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Where the service manager listens: a path, or `@` and an abstract name.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// A service manager that does not read delays the process no longer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Reports a state such as `READY=1`, if there is a service manager.
pub(crate) fn notify(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        log::warn!(
            "service manager: {state} not reported: {SOCKET_VARIABLE}={}: {error}",
            socket.display()
        );
    }
}

fn send(address: &OsStr, state: &str) -> io::Result<()> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(address)?,
        _ => {
            let needed = "begins neither with / nor with @";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, needed));
        }
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.send_to_addr(format!("{state}\n").as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_another_kind_is_refused_and_a_missing_one_is_an_error() {
        for (address, reason) in [
            ("vsock:2:9", "begins neither with / nor with @"),
            ("/nowhere/notify", "No such file"),
            ("@viaduct-nowhere", "refused"),
        ] {
            let error = send(OsStr::new(address), "READY=1").unwrap_err();
            assert!(error.to_string().contains(reason), "{address}: {error}");
        }
    }
}
