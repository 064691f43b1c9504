//! The status query of an operator to a datapath process.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::listener_credentials;
use super::message::{Reply, Request, VERSION};
use vi_core::control_socket::Socket;

/// Limit of the wait for each reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Queries the status of the process that listens at a socket, as the handler of
/// [`super::server::Server::start`] formats it.
///
/// # Errors
/// No process listens, it refuses, or it does not reply in time.
pub fn query_status(path: &Path) -> io::Result<Vec<u8>> {
    let socket = Socket::connect(path)?;
    listener_credentials::verify(&socket, path)?;
    socket.set_timeout(Some(TIMEOUT))?;
    let query = Request::QueryStatus { version: VERSION };
    let mut reply = socket.send_first::<Reply>(&query)?;
    let mut all = Vec::new();
    loop {
        match reply {
            Some((Reply::Part(part, last), _)) => {
                all.extend(part);
                if last {
                    return Ok(all);
                }
            }
            Some((Reply::Refused(why), _)) => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            Some(_) | None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        reply = socket.receive()?;
    }
}
