//! Notifications to the service manager: sd_notify(3).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The variable with the socket of the service manager: a path, or `@` and an abstract name.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// Limit of the wait for a service manager that does not read.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Notifies the service manager, if there is one, of a state such as `READY=1`.
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
            let why = "begins neither with / nor with @";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
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
    fn send_to_an_unknown_or_missing_address_is_an_error() {
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
