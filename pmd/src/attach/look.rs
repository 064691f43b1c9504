//! An operator's question to a datapath process.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::listener;
use super::message::{Reply, Request, VERSION};
use super::socket::Socket;

/// The process answers within so long, or is taken for stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the process that listens at a socket says of itself, in the form that it was started with
/// ([`super::server::Server::start`]).
///
/// # Errors
/// There is no process, it refuses, or it does not answer; says which.
pub fn look(path: &Path) -> io::Result<Vec<u8>> {
    let socket = Socket::connect(path)?;
    listener::verify(&socket, path)?;
    socket.set_patience(Some(PATIENCE))?;
    let mut answer = socket.begin::<Reply>(&Request::Look { version: VERSION })?;
    let mut all = Vec::new();
    loop {
        match answer {
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
        answer = socket.receive()?;
    }
}
